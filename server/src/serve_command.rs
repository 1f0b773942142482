//! `tidings serve`: assembles the configuration and serves until a signal arrives or a duty stops.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tidings_server::descriptors::Descriptors;
use tidings_server::{Config, Server};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::command::CommandError;
use crate::greeting::greet;
use crate::logs::Logs;

/// Run the server.
///
/// Flags take precedence over environment variables (TIDINGS_LISTEN and so on), variables over the configuration file, and
/// the file over the defaults.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings serve --dev\n  \
    curl -X PUT http://127.0.0.1:4437/v1/stream/hello\n\n  \
    tidings default-config > tidings.toml\n  \
    tidings serve --config tidings.toml")]
pub struct Serve {
    /// Address and port to listen on [default: 127.0.0.1:4437].
    #[arg(long, value_name = "ADDRESS", overrides_with = "listen")]
    listen: Option<SocketAddr>,
    /// Data folder; created if it does not exist [default: ./tidings-data].
    #[arg(long, value_name = "DIR", overrides_with = "data")]
    data: Option<PathBuf>,
    /// Configuration file; `tidings default-config` prints all keys with their documentation.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Development mode: every project exists and no credentials are needed. Only on the loopback interface.
    #[arg(long)]
    dev: bool,
    /// Address and port of a separate listener for /metrics, without credentials.
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// Certificate file in PEM format, to serve HTTPS; needs --tls-key.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// Private key file of the certificate, in PEM format.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// OpenTelemetry collector to send a trace of each request to, such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Log filter: a level, or levels by module, such as debug or info,tidings_api=trace [default: info].
    #[arg(long, env = "TIDINGS_LOG", value_name = "FILTER")]
    log: Option<String>,
}

impl Serve {
    /// Serves until a signal arrives or a duty stops.
    pub fn run(self) -> Result<(), CommandError> {
        let filter = self.log.clone().filter(|filter| !filter.is_empty());
        let config = self.config()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let served = runtime.block_on(async {
            let logs = Logs::begin(filter.as_deref(), &config.log)?;
            for warning in &config.warnings {
                tracing::warn!("{warning}");
            }
            let served = serve(config).await;
            logs.end().await;
            served
        });
        if !matches!(served, Ok(Ended::Served)) {
            // What it was doing, such as reading the store, is not waited for.
            runtime.shutdown_background();
        }
        served.map(|_| ())
    }

    /// Configuration from defaults, file, environment and flags.
    fn config(self) -> Result<Config, CommandError> {
        let file = self.config.filter(|file| !file.as_os_str().is_empty());
        let mut config = Config::load(file.as_deref(), std::env::vars_os())?;
        config.listen = self.listen.unwrap_or(config.listen);
        config.data = self.data.unwrap_or(config.data);
        config.dev |= self.dev;
        config.observe.metrics_listen = self.metrics_listen.or(config.observe.metrics_listen);
        config.tls_cert = self.tls_cert.or(config.tls_cert);
        config.tls_key = self.tls_key.or(config.tls_key);
        config.log.otlp_endpoint = self.otlp_endpoint.or(config.log.otlp_endpoint);
        config.check()?;
        Ok(config)
    }
}

/// Time that a server may take to shut down after a duty has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// When the process was told to end.
enum Ended {
    WhileStarting,
    Served,
}

async fn serve(mut config: Config) -> Result<Ended, CommandError> {
    // Before anything else: a signal that comes while the store is read is heard, too.
    let mut signals = Signals::listen()?;
    let (descriptors, wanted) = (Descriptors::raised(), config.limits.connections);
    let sockets = config.capabilities.hooks.egress.sockets;
    config.limits.connections = descriptors.connections(wanted, sockets);
    config.capabilities.hooks.egress.sockets = descriptors.sockets(sockets);
    let options = config.clone().into_options(Arc::new(|_| exit_now()));
    // In a task of its own, since it may take long without a pause.
    let starting = tokio::spawn(Server::start(options));
    let server = tokio::select! {
        started = starting => started.map_err(io::Error::other)??,
        () = signals.end() => {
            tracing::info!("told to end while starting");
            return Ok(Ended::WhileStarting);
        }
    };
    descriptors.log(wanted, sockets);
    greet(&config, &server);
    serve_until_told(server, signals).await.map(|()| Ended::Served)
}

/// Serves until a signal arrives or a duty of the server stops. The latter is an error, so that a service manager restarts
/// the process.
async fn serve_until_told(server: Server, mut signals: Signals) -> Result<(), CommandError> {
    let stopped = tokio::select! {
        () = signals.end_or_renew(&server) => None,
        stopped = server.failed() => Some(stopped),
    };
    tracing::info!("draining");
    match stopped {
        None => Ok(server.stop().await?),
        Some(stopped) => {
            // Readers are told to come again, but what is broken does not keep the process from ending.
            let _ = tokio::time::timeout(STOP_TIMEOUT, server.stop()).await;
            Err(stopped.into())
        }
    }
}

/// Ends the process after a disk failure, which the log describes. Requests in flight must not be acknowledged.
fn exit_now() {
    std::process::exit(1);
}

/// Signals that the process handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Resolves when a signal asks the process to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Resolves when a signal asks the process to end. Until then SIGHUP reloads what can be reloaded.
    async fn end_or_renew(&mut self, server: &Server) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => renew(server),
            }
        }
    }
}

fn renew(server: &Server) {
    match server.reload_tls() {
        Ok(()) if server.speaks_tls() => tracing::info!("read certificate and key again"),
        Ok(()) => tracing::info!("there is nothing to renew: only certificate and key are read again"),
        Err(error) => tracing::error!(%error, "the certificate stays as it was"),
    }
}

#[cfg(test)]
mod tests {
    use tidings_engine::{Clock, ManualClock};
    use tidings_model::Timestamp;
    use tidings_server::{Access, Duty, ServerOptions, StoreChoice};

    use super::*;

    #[tokio::test]
    async fn a_duty_that_stops_ends_the_command_with_an_error_that_names_it() {
        let clock = ManualClock::at(Timestamp::from_millis(1));
        let server_clock: Arc<dyn Clock> = Arc::new(clock.clone());
        let bad = Duty::every("bad", Duration::from_secs(7), || async { panic!("as it was told to") });
        let listen = ([127, 0, 0, 1], 0).into();
        let server = Server::start(ServerOptions {
            duties: vec![bad],
            access: Access { dev: true, ..Access::default() },
            ..ServerOptions::new(StoreChoice::Memory, listen, server_clock)
        });
        let server = server.await.expect("it starts");
        let serving = tokio::spawn(serve_until_told(server, Signals::listen().expect("signals are heard")));
        while !serving.is_finished() {
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        let error = serving.await.expect("it ends").expect_err("it cannot go on");
        assert_eq!(error.to_string(), "the duty `bad` has stopped: as it was told to");
    }
}
