//! The command line.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use tidings_api::{MetricsAccess, Spans};
use tidings_embedded::OpenError;
use tidings_engine::WallClock;
use tidings_server::{
    LimitOptions, ObserveOptions, Server, ServerOptions, StartError, StoreChoice, TlsOptions,
};
use tidings_streams::Options;
use tokio::signal::unix::{SignalKind, signal};

use crate::logs::{LogError, LogOptions, Logs};
use crate::store_command::StoreCommand;

/// Publish once; every subscriber hears it, its own way, and nothing acknowledged is lost.
#[derive(Debug, Parser)]
#[command(name = "tidings", version, about)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve.
    Serve(Serve),
    /// Look at a store, check it, copy it.
    Store(StoreCommand),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  tidings serve --dev\n  curl -X PUT http://127.0.0.1:4437/v1/stream/hello"
)]
struct Serve {
    /// Address and port to listen on.
    #[arg(long, env = "TIDINGS_LISTEN", default_value = "127.0.0.1:4437")]
    listen: SocketAddr,
    /// Folder of the data; made if it is not there.
    #[arg(
        long,
        env = "TIDINGS_DATA",
        default_value = "./tidings-data",
        value_name = "DIR",
        overrides_with = "data"
    )]
    data: PathBuf,
    /// Any project exists and no credentials are needed. Only on the loopback interface.
    #[arg(long, env = "TIDINGS_DEV", value_parser = clap::builder::FalseyValueParser::new())]
    dev: bool,
    /// What is logged: a level, or levels by module, such as `info` or `tidings_api=debug`.
    #[arg(long, env = "TIDINGS_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Collector of OpenTelemetry that gets a trace of each request, such as http://127.0.0.1:4318.
    #[arg(long, env = "TIDINGS_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Address and port where metrics are served to everybody who can reach it.
    #[arg(long, env = "TIDINGS_METRICS_LISTEN", value_name = "ADDR")]
    metrics_listen: Option<SocketAddr>,
    /// PEM file with the certificate, to serve HTTPS. Read again on SIGHUP.
    #[arg(long, env = "TIDINGS_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    #[arg(long, env = "TIDINGS_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Why the command ends with an error. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Nobody could be told apart from anybody else.
    #[error(
        "there are no projects and no keys yet, and without them nobody may do anything.\n\
         Try it on this machine alone: tidings serve --dev"
    )]
    NoProjects,
    /// Open to everybody on the network.
    #[error(
        "--dev lets everybody in, so it listens only on this machine: use --listen 127.0.0.1:{port}, not {listen}"
    )]
    DevOnNetwork {
        /// What was asked.
        listen: SocketAddr,
        /// Its port.
        port: u16,
    },
    /// There would be no log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A store cannot be looked at.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// There is no such folder.
    #[error("{0} is not a store's folder; name the one that --data named")]
    NoStore(PathBuf),
    /// Something is damaged, as was told.
    #[error("{count} places are damaged; restore a backup")]
    Damaged {
        /// How many.
        count: usize,
    },
    /// There is no such stream.
    #[error("there is no stream {0}; name it as project/id, such as _default/orders")]
    NoStream(String),
    /// The server ended by itself.
    #[error("stopped: {0}")]
    Stopped(#[from] io::Error),
}

impl Command {
    /// Does what the command line says.
    pub async fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Serve(serve) => serve.run().await,
            Verb::Store(store) => store.run(),
        }
    }
}

impl Serve {
    async fn run(self) -> Result<(), CommandError> {
        let log = LogOptions { filter: self.log.clone(), otlp_endpoint: self.otlp_endpoint.clone() };
        let logs = Logs::begin(&log)?;
        let listen = self.listen;
        if !self.dev {
            return Err(CommandError::NoProjects);
        }
        if !listen.ip().is_loopback() {
            return Err(CommandError::DevOnNetwork { listen, port: listen.port() });
        }
        let options =
            tidings_embedded::Options { on_failure: Arc::new(|_| exit_now()), ..Default::default() };
        let store = StoreChoice::Embedded { data: self.data.clone(), options };
        let options = ServerOptions {
            store,
            listen,
            clock: Arc::new(WallClock),
            seed: fastrand::u64(..),
            streams: Options::default(),
            limits: LimitOptions::default(),
            tls: self.tls_cert.zip(self.tls_key).map(|(certificate, key)| TlsOptions { certificate, key }),
            observe: ObserveOptions {
                metrics_listen: self.metrics_listen,
                metrics_access: if self.dev { MetricsAccess::Open } else { MetricsAccess::AdminKey },
                spans: if self.otlp_endpoint.is_some() { Spans::EachRequest } else { Spans::No },
            },
        };
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let server = Server::start(options).await?;
        greet(scheme, server.address(), &self.data);
        if let Some(address) = server.metrics_address() {
            println!("metrics: http://{address}/metrics");
        }
        wait_for_signal(&server).await?;
        tracing::info!("draining");
        server.stop().await?;
        logs.end().await;
        Ok(())
    }
}

/// The disk has failed, and the log says how. Whatever is still on its way must not be acknowledged.
fn exit_now() {
    std::process::exit(1);
}

fn greet(scheme: &str, address: SocketAddr, data: &Path) {
    println!(
        "tidings {version} serves on {scheme}://{address}\n\
         data: {data}\n\
         try:\n\
         \x20 curl -i -X PUT {scheme}://{address}/v1/stream/hello -H 'content-type: text/plain'\n\
         \x20 curl -i -X POST {scheme}://{address}/v1/stream/hello -H 'content-type: text/plain' -d 'good tidings'\n\
         \x20 curl -N '{scheme}://{address}/v1/stream/hello?offset=-1&live=sse'",
        version = env!("CARGO_PKG_VERSION"),
        data = data.display(),
    );
}

/// Waits until the process is told to end. SIGHUP renews what can be renewed meanwhile.
async fn wait_for_signal(server: &Server) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => match server.reload_tls() {
                Ok(()) => tracing::info!("read certificate and key again"),
                Err(error) => tracing::error!(%error, "the certificate stays as it was"),
            },
        }
    }
}
