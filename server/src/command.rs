//! The command line: which commands there are, and why one ends with an error.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tidings_auth::{InvalidKey, InvalidToken, ProjectError};
use tidings_embedded::OpenError;
use tidings_server::StartError;
use tidings_server::config::{Config, ConfigError, DEFAULT_FILE};

use crate::client::ClientError;
use crate::logs::LogError;
use crate::project_command::{AdminKeyCommand, ProjectCommand};
use crate::serve_command::Serve;
use crate::store_command::StoreCommand;
use crate::stream_command::StreamCommand;
use crate::token_command::TokenCommand;

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
    Serve(Serve),
    CheckConfig(CheckConfig),
    /// Print the complete configuration with its defaults, explained.
    #[command(after_help = "Example:\n  tidings default-config > tidings.toml")]
    DefaultConfig,
    Project(ProjectCommand),
    AdminKey(AdminKeyCommand),
    Token(TokenCommand),
    Stream(StreamCommand),
    Store(StoreCommand),
}

/// Say what is wrong with a configuration, or nothing.
///
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
    /// Something is set wrongly.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There would be no log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The server ran, and cannot go on.
    #[error(transparent)]
    Duty(#[from] tidings_engine::duty::Stopped),
    /// The server does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A store cannot be looked at.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A server has it, and can be asked itself.
    #[error(
        "{} is in use by a running server. Stop it, or ask it: --server http://ADDRESS with the admin key in \
         TIDINGS_ADMIN_KEY", .0.display()
    )]
    InUse(PathBuf),
    /// A project cannot be changed so.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// Its data is still there, and only a server removes data.
    #[error(
        "a project of this id was removed and its data is still there. Start the server once: it removes the data, and \
         then the id is free"
    )]
    Removing,
    /// A key that somebody chose is none.
    #[error("--key: {0}")]
    Key(#[from] InvalidKey),
    /// A token that nobody could use.
    #[error("--ttl is at least 1s")]
    NoTime,
    /// A token cannot say this.
    #[error("{0}")]
    Claims(#[from] InvalidToken),
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
            Verb::Project(project) => project.run(),
            Verb::AdminKey(admin_key) => admin_key.run(),
            Verb::Token(token) => token.run(),
            Verb::Stream(stream) => stream.run(),
            Verb::Store(store) => store.run(),
        }
    }
}

impl CheckConfig {
    fn run(self) -> Result<(), CommandError> {
        let config = Config::load(Some(&self.config), std::env::vars_os())?;
        config.check()?;
        config.check_files().map_err(StartError::Tls)?;
        for warning in &config.warnings {
            eprintln!("tidings: warning: {warning}");
        }
        println!("{} is good", self.config.display());
        Ok(())
    }
}
