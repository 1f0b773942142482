//! `tidings entities`: prepares a PostgreSQL database as a source of changes, and shows how it goes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use tidings_engine::WallClock;
use tidings_entities::EntityCode;
use tidings_model::ProjectId;
use tidings_postgres::DatabaseError;
use tidings_postgres::schema::{self, Log, Operator, Status};
use tidings_server::{Config, DatabaseUrl, Mode};
use tokio::runtime::Runtime;

use crate::command::CommandError;

/// Prepare a PostgreSQL database as a source of changes, and show its state.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    tidings entities install --database-url postgres://localhost/shop\n  \
    tidings entities attach todos --code todo --key id --database-url postgres://localhost/shop\n  \
    tidings entities status --config tidings.toml")]
pub struct EntitiesCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create the schema `app` with its tables, functions and triggers, or bring it up to date.
    #[command(after_help = "Examples:\n  \
        tidings entities install --database-url postgres://localhost/shop\n  \
        tidings entities install --print > install.sql")]
    Install(Install),
    /// Tell the changes of a table, by triggers on it.
    #[command(after_help = "Example:\n  \
        tidings entities attach public.todos --code todo --key id --config tidings.toml")]
    Attach(Attach),
    /// Stop telling the changes of a table, and remove the triggers.
    #[command(after_help = "Example:\n  tidings entities detach public.todos --config tidings.toml")]
    Detach(Detach),
    /// Remove everything that `install` and `attach` have made, except for the table `app.logging`.
    #[command(after_help = "Example:\n  tidings entities uninstall --config tidings.toml")]
    Uninstall(Uninstall),
    /// Print what is installed and attached, the size of the outbox, and the nodes that read it.
    #[command(after_help = "Example:\n  tidings entities status --config tidings.toml")]
    Status(DatabaseTarget),
}

/// The database.
#[derive(Debug, Args)]
struct DatabaseTarget {
    /// URL of the database; without it, the configuration names it.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Configuration file whose `[entities]` names the database.
    #[arg(long, env = "TIDINGS_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Project whose database is meant, if the configuration names several.
    #[arg(long, value_parser = ProjectId::parse)]
    project: Option<ProjectId>,
}

#[derive(Debug, Args)]
struct Install {
    /// Print the SQL and change nothing.
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    target: DatabaseTarget,
}

#[derive(Debug, Args)]
struct Attach {
    /// Table, written as in SQL.
    table: String,
    /// Code of the entities, which clients subscribe to.
    #[arg(long, value_parser = EntityCode::parse)]
    code: EntityCode,
    /// Column with the id of the entity, of type uuid, written without quotes.
    #[arg(long, value_name = "COLUMN")]
    key: String,
    #[command(flatten)]
    target: DatabaseTarget,
}

#[derive(Debug, Args)]
struct Detach {
    /// Table, written as in SQL.
    table: String,
    #[command(flatten)]
    target: DatabaseTarget,
}

#[derive(Debug, Args)]
struct Uninstall {
    /// Remove the table `app.logging` and its functions, too.
    #[arg(long)]
    drop_log: bool,
    #[command(flatten)]
    target: DatabaseTarget,
}

impl EntitiesCommand {
    pub fn run(self) -> Result<(), CommandError> {
        match self.verb {
            Verb::Install(Install { print: true, .. }) => {
                Ok(io::stdout().lock().write_all(schema::INSTALL.as_bytes())?)
            }
            Verb::Install(Install { target, .. }) => {
                target.with(async |operator| operator.install().await)?;
                Ok(writeln!(io::stdout(), "the schema app is installed")?)
            }
            Verb::Attach(Attach { table, code, key, target }) => {
                target.by_triggers()?;
                target.with(async |operator| operator.attach(&table, &code, &key).await)?;
                Ok(writeln!(io::stdout(), "changes of {table} are told as {code}")?)
            }
            Verb::Detach(Detach { table, target }) => {
                target.by_triggers()?;
                let was = target.with(async |operator| operator.detach(&table).await)?;
                let what = if was { "are not told any more" } else { "were not told" };
                Ok(writeln!(io::stdout(), "changes of {table} {what}")?)
            }
            Verb::Uninstall(Uninstall { drop_log, target }) => {
                let log = if drop_log { Log::Drop } else { Log::Keep };
                target.with(async |operator| operator.uninstall(log).await)?;
                let kept = if drop_log { "" } else { "; app.logging is kept" };
                Ok(writeln!(io::stdout(), "the schema app is removed{kept}")?)
            }
            Verb::Status(target) => {
                let status = target.with(async |operator| operator.status().await)?;
                Ok(write_status(&mut io::stdout().lock(), &status)?)
            }
        }
    }
}

impl DatabaseTarget {
    /// Connects and does something.
    fn with<T>(
        &self,
        work: impl AsyncFnOnce(&Operator) -> Result<T, DatabaseError>,
    ) -> Result<T, CommandError> {
        let url = self.url()?;
        let done = Runtime::new()?.block_on(async {
            let operator = Operator::connect(&url, Arc::new(WallClock)).await?;
            work(&operator).await
        });
        Ok(done?)
    }

    fn url(&self) -> Result<String, CommandError> {
        if let Some(url) = &self.database_url {
            return Ok(url.clone());
        }
        let config = Config::load(self.config.as_deref(), std::env::vars_os())?;
        let sources: Vec<_> = config.capabilities.entities.sources().collect();
        let wanted = match &self.project {
            Some(project) => sources.iter().find(|source| source.project == *project),
            None if sources.len() > 1 => return Err(CommandError::SeveralDatabases),
            None => sources.first(),
        };
        let url = wanted.and_then(|source| source.database_url.as_ref());
        url.map(|url: &DatabaseUrl| url.reveal().to_owned()).ok_or(CommandError::NoDatabase)
    }

    /// Refuses a database whose changes do not come by triggers.
    fn by_triggers(&self) -> Result<(), CommandError> {
        if self.database_url.is_some() {
            return Ok(());
        }
        let config = Config::load(self.config.as_deref(), std::env::vars_os())?;
        let logical = config.capabilities.entities.sources().any(|source| {
            source.mode == Mode::Logical
                && self.project.as_ref().is_none_or(|project| *project == source.project)
        });
        if logical { Err(CommandError::NoTriggers) } else { Ok(()) }
    }
}

fn write_status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    writeln!(out, "PostgreSQL {}, schema app of version {}", status.server, status.version)?;
    let oldest = status.outbox_oldest.map(|age| format!(", the oldest {age:.0} s old")).unwrap_or_default();
    let (rows, bytes) = (status.outbox_rows, status.outbox_bytes);
    writeln!(out, "outbox: {rows} changes{oldest}, {bytes} bytes on disk")?;
    writeln!(out, "log: {} entries pending", status.pending_logs)?;
    writeln!(out, "registry: {} subscriptions", status.subscriptions)?;
    writeln!(out, "attached tables: {}", status.attachments.len())?;
    for attached in &status.attachments {
        let state = match attached.triggers {
            4 => String::new(),
            count => format!(" ({count} of 4 triggers are active: attach it again)"),
        };
        writeln!(out, "  {} as {} by {}{state}", attached.table, attached.code, attached.key)?;
    }
    writeln!(out, "nodes: {}", status.nodes.len())?;
    for node in &status.nodes {
        let lease = match node.lease {
            left if left >= 0.0 => format!("lease for {left:.0} s"),
            over => format!("lease over for {:.0} s", -over),
        };
        let unread =
            node.unread.map_or("reads nothing".to_owned(), |count| format!("{count} changes unread"));
        writeln!(out, "  {}: {lease}, {unread}, {} subscriptions", node.id, node.subscriptions)?;
    }
    Ok(())
}
