//! The command line: its commands, and the errors that they end with.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tidings_auth::{InvalidKey, InvalidToken, ProjectError};
use tidings_embedded::OpenError;
use tidings_server::StartError;
use tidings_server::config::{Config, ConfigError, DEFAULT_FILE};

use crate::client::ClientError;
use crate::entities_command::EntitiesCommand;
use crate::hooks_command::HooksCommand;
use crate::logs::LogError;
use crate::project_command::{AdminKeyCommand, ProjectCommand};
use crate::serve_command::Serve;
use crate::store_command::StoreCommand;
use crate::stream_command::StreamCommand;
use crate::token_command::TokenCommand;

/// A subscription server: publish once, and every subscriber receives it. Nothing acknowledged is lost.
#[derive(Debug, Parser)]
#[command(
    name = "tidings",
    version,
    about,
    after_help = "Example:\n  tidings serve --dev\n\n`tidings help COMMAND` shows examples of each command."
)]
pub struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(Serve),
    CheckConfig(CheckConfig),
    /// Print the complete configuration file with all defaults and their documentation.
    #[command(after_help = "Example:\n  tidings default-config > tidings.toml")]
    DefaultConfig,
    Project(ProjectCommand),
    AdminKey(AdminKeyCommand),
    Token(TokenCommand),
    Stream(StreamCommand),
    Hooks(HooksCommand),
    Entities(EntitiesCommand),
    Store(StoreCommand),
}

/// Check a configuration and print what is wrong with it.
///
/// Reads the file and the environment as `tidings serve` does. Prints nothing if they are valid.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidings check-config --config tidings.toml")]
struct CheckConfig {
    /// Configuration file to check.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Error that a command ends with. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The configuration is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Logging cannot be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A duty of the running server has stopped.
    #[error(transparent)]
    Duty(#[from] tidings_engine::duty::Stopped),
    /// The server cannot start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A running server uses the data folder.
    #[error(
        "{} is in use by a running server. Stop it, or ask it: --server http://ADDRESS with the admin key in \
         TIDINGS_ADMIN_KEY", .0.display()
    )]
    InUse(PathBuf),
    /// The change of a project was refused.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// The data of a removed project with this id still exists; only a running server removes it.
    #[error(
        "a project of this id was removed and its data is still there. Start the server once: it removes the data, and \
         then the id is free"
    )]
    Removing,
    /// The given signing key is not valid.
    #[error("--key: {0}")]
    Key(#[from] InvalidKey),
    /// The lifetime of the token is zero.
    #[error("--ttl is at least 1s")]
    NoTime,
    /// The claims of the token are not valid.
    #[error("{0}")]
    Claims(#[from] InvalidToken),
    /// The folder does not exist or is not a store.
    #[error("{0} is not a store's folder; name the one that --data named")]
    NoStore(PathBuf),
    /// The store is damaged; the places were printed.
    #[error("{count} places are damaged; restore a backup")]
    Damaged {
        /// Number of damaged places.
        count: usize,
    },
    /// The stream does not exist.
    #[error("there is no stream {0}; name it as project/id, such as _default/orders")]
    NoStream(String),
    /// The running server refused the request or could not be reached.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The database of entities did not do what was asked.
    #[error(transparent)]
    Database(#[from] tidings_postgres::DatabaseError),
    /// No database is named.
    #[error("no database is named: give --database-url, or --config with database_url in [entities]")]
    NoDatabase,
    /// The configuration names several databases.
    #[error("the configuration names several databases: say which with --project")]
    SeveralDatabases,
    /// The port for deliveries cannot be listened on.
    #[error("cannot listen on 127.0.0.1:{port}: {error}")]
    Listen {
        /// The port.
        port: u16,
        /// Cause of the failure.
        error: io::Error,
    },
    /// Serving failed.
    #[error("stopped: {0}")]
    Stopped(#[from] io::Error),
}

impl Command {
    /// Runs the command.
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Serve(serve) => serve.run(),
            Verb::CheckConfig(check) => check.run(),
            Verb::DefaultConfig => Ok(io::stdout().lock().write_all(DEFAULT_FILE.as_bytes())?),
            Verb::Project(project) => project.run(),
            Verb::AdminKey(admin_key) => admin_key.run(),
            Verb::Token(token) => token.run(),
            Verb::Stream(stream) => stream.run(),
            Verb::Hooks(hooks) => hooks.run(),
            Verb::Entities(entities) => entities.run(),
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
