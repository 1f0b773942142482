//! `tidings serve`: what is set, put together; served until a signal comes.

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

/// Serve.
///
/// Flags win over variables (TIDINGS_LISTEN and so on), variables over the file, the file over the defaults.
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
    /// Folder of the data; made if it is not there [default: ./tidings-data].
    #[arg(long, value_name = "DIR", overrides_with = "data")]
    data: Option<PathBuf>,
    /// The configuration; `tidings default-config` explains what may be in it.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Any project exists and no credentials are needed. Only on the loopback interface.
    #[arg(long)]
    dev: bool,
    /// Address and port where /metrics is open to whoever reaches it.
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<SocketAddr>,
    /// File of the certificate, in PEM, to speak HTTPS; needs --tls-key.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// File of the certificate's private key, in PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Collector of OpenTelemetry that gets a trace of each request, such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// What is logged: a level, or levels by module, such as debug or info,tidings_api=trace [default: info].
    #[arg(long, env = "TIDINGS_LOG", value_name = "FILTER")]
    log: Option<String>,
}

impl Serve {
    /// Serves until a signal comes.
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

    /// What is set, flags included.
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

/// How long a server of which a duty has stopped may take to end.
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
    config.limits.connections = descriptors.connections(wanted);
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
    descriptors.log(wanted);
    greet(&config, &server);
    serve_until_told(server, signals).await.map(|()| Ended::Served)
}

/// Serves until a signal comes, or until a duty of the server has stopped. That is an error: whoever watches the process
/// is to start it again.
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

/// The disk has failed, and the log says how. Whatever is still on its way must not be acknowledged.
fn exit_now() {
    std::process::exit(1);
}

/// What the process can be told from outside.
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

    /// Resolves when the process is told to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// The same. SIGHUP renews what can be renewed meanwhile.
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
