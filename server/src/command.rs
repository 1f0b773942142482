//! The command line.

use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Parser, Subcommand};
use tidings_embedded::OpenError;
use tidings_engine::WallClock;
use tidings_server::{Access, Server, ServerOptions, StartError, StoreChoice};
use tidings_streams::Options;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

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
}

/// Why the command ends with an error. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
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
        log_to_stderr();
        let listen = self.listen;
        if self.dev && !listen.ip().is_loopback() {
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
            access: Access { dev: self.dev, ..Access::default() },
        };
        let server = Server::start(options).await?;
        greet(server.address(), &self.data);
        wait_for_signal().await?;
        tracing::info!("draining");
        server.stop().await?;
        Ok(())
    }
}

/// The disk has failed, and the log says how. Whatever is still on its way must not be acknowledged.
fn exit_now() {
    std::process::exit(1);
}

fn greet(address: SocketAddr, data: &Path) {
    println!(
        "tidings {version} serves on http://{address}\n\
         data: {data}\n\
         try:\n\
         \x20 curl -i -X PUT http://{address}/v1/stream/hello -H 'content-type: text/plain'\n\
         \x20 curl -i -X POST http://{address}/v1/stream/hello -H 'content-type: text/plain' -d 'good tidings'\n\
         \x20 curl -N 'http://{address}/v1/stream/hello?offset=-1&live=sse'",
        version = env!("CARGO_PKG_VERSION"),
        data = data.display(),
    );
}

async fn wait_for_signal() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// For people in a terminal, for programs elsewhere.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("TIDINGS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if io::stderr().is_terminal() { logs.init() } else { logs.json().init() }
}
