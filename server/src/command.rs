//! The command line: which commands there are, and why one ends with an error.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tidings_embedded::OpenError;
use tidings_server::StartError;
use tidings_server::config::{Config, ConfigError, DEFAULT_FILE};

use crate::client::ClientError;
use crate::serve_command::Serve;
use crate::store_command::StoreCommand;
use crate::stream_command::StreamCommand;

/// Publish once; every subscriber hears it, its own way, and nothing acknowledged is lost.
#[derive(Debug, Parser)]
#[command(
    name = "tidings",
    version,
    about,
    after_help = "Example:\n  tidings serve --dev\n\n`tidings help COMMAND` shows examples of each."
)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Serve.
    Serve(Serve),
    /// Say what is wrong with a configuration, or nothing.
    CheckConfig(CheckConfig),
    /// Print the complete configuration with its defaults, explained.
    #[command(after_help = "Example:\n  tidings default-config > tidings.toml")]
    DefaultConfig,
    /// Create, list, append to, read and delete the streams of a running server.
    Stream(StreamCommand),
    /// Look at a store, check it, copy it.
    Store(StoreCommand),
}

/// The file and the environment are read as `tidings serve` would read them.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings check-config --config tidings.toml")]
struct CheckConfig {
    /// The file to check.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Why the command ends with an error. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Nobody could be told apart from anybody else.
    #[error(
        "there are no projects and no admin key yet, and without them nobody may do anything.\n\
         Create them, then serve again:\n\
         \x20 tidings project create shop --data {data}\n\
         \x20 tidings admin-key --data {data}\n\
         Or try it on this machine alone:\n\
         \x20 tidings serve --dev"
    )]
    NoProjects {
        /// The folder of the data.
        data: String,
    },
    /// Something is set wrongly.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log's filter cannot be read.
    #[error("TIDINGS_LOG is not a filter such as debug or info,tidings_api=trace: {0}")]
    LogFilter(String),
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
    /// A running server does not do it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server ended by itself.
    #[error("stopped: {0}")]
    Stopped(#[from] io::Error),
}

impl Command {
    /// Does what the command line says.
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Serve(serve) => serve.run(),
            Verb::CheckConfig(check) => check.run(),
            Verb::DefaultConfig => Ok(io::stdout().lock().write_all(DEFAULT_FILE.as_bytes())?),
            Verb::Stream(stream) => stream.run(),
            Verb::Store(store) => store.run(),
        }
    }
}

impl CheckConfig {
    fn run(self) -> Result<(), CommandError> {
        Config::load(Some(&self.config), std::env::vars_os())?.check()?;
        println!("{} is good", self.config.display());
        Ok(())
    }
}
