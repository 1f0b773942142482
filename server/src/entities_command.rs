//! `tidings entities`: prepares a PostgreSQL database as a source of changes, and shows how it goes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand, ValueEnum};
use tidings_engine::WallClock;
use tidings_entities::EntityCode;
use tidings_model::ProjectId;
use tidings_postgres::DatabaseError;
use tidings_postgres::schema::{self, Log, Operator, Status};
use tidings_server::{Config, DatabaseUrl, Mode, SourceOptions};
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
    /// Tell the changes of a table, by triggers on it or, in mode logical, by a publication and a replication slot.
    #[command(after_help = "Example:\n  \
        tidings entities attach public.todos --code todo --key id --config tidings.toml")]
    Attach(Attach),
    /// Stop telling the changes of a table. With the last one in mode logical the replication slot is dropped.
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
    /// How the changes are read; without it, as the configuration says, or by triggers.
    #[arg(long)]
    mode: Option<AttachMode>,
    #[command(flatten)]
    target: DatabaseTarget,
}

/// How the changes of a table are read.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum AttachMode {
    /// By triggers on the table.
    Outbox,
    /// By logical replication.
    Logical,
}

impl From<AttachMode> for Mode {
    fn from(mode: AttachMode) -> Self {
        match mode {
            AttachMode::Outbox => Self::Outbox,
            AttachMode::Logical => Self::Logical,
        }
    }
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
            Verb::Attach(Attach { table, code, key, mode, target }) => {
                match mode.map_or_else(|| target.mode(), |mode| Ok(mode.into()))? {
                    Mode::Outbox => {
                        target.with(async |operator| operator.attach(&table, &code, &key).await)?
                    }
                    Mode::Logical => {
                        target.with(async |operator| operator.publish(&table, &code, &key).await)?
                    }
                }
                Ok(writeln!(io::stdout(), "changes of {table} are told as {code}")?)
            }
            Verb::Detach(Detach { table, target }) => {
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
        let url = self.configured()?.database_url;
        url.map(|url: DatabaseUrl| url.reveal().to_owned()).ok_or(CommandError::NoDatabase)
    }

    /// How the changes of the database are read. By triggers, if no configuration says otherwise.
    fn mode(&self) -> Result<Mode, CommandError> {
        match self.database_url {
            Some(_) => Ok(Mode::Outbox),
            None => Ok(self.configured()?.mode),
        }
    }

    /// The database that the configuration names.
    fn configured(&self) -> Result<SourceOptions, CommandError> {
        let config = Config::load(self.config.as_deref(), std::env::vars_os())?;
        let sources: Vec<_> = config.capabilities.entities.sources().collect();
        let wanted = match &self.project {
            Some(project) => sources.iter().find(|source| source.project == *project),
            None if sources.len() > 1 => return Err(CommandError::SeveralDatabases),
            None => sources.first(),
        };
        wanted.map(|source| (*source).clone()).ok_or(CommandError::NoDatabase)
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
        let state = match (attached.published, attached.triggers) {
            (Some(true), _) => ", by logical replication".to_owned(),
            (Some(false), _) => {
                ", by logical replication (not in the publication: attach it again)".to_owned()
            }
            (None, 4) => String::new(),
            (None, count) => format!(" ({count} of 4 triggers are active: attach it again)"),
        };
        writeln!(out, "  {} as {} by {}{state}", attached.table, attached.code, attached.key)?;
    }
    if let Some(slot) = &status.slot {
        let state = match (slot.lost, slot.active) {
            (true, _) => "lost",
            (false, true) => "read by a node",
            (false, false) => "read by nobody",
        };
        let (name, retained, behind) = (&slot.name, slot.retained, slot.behind);
        writeln!(
            out,
            "slot {name}: {state}, {behind} bytes behind, {retained} bytes of the log kept for it"
        )?;
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
