//! Options and configuration keys of entities.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidings_api::EntityOptions as SocketOptions;
use tidings_egress::{EgressOptions, Target};
use tidings_model::ProjectId;

use crate::config::Config;
use crate::config::keys::{Key, Tables, key};
use crate::config::value::{Given, Wrong};

/// Most ids in one message, subscriptions of a connection, and connections of a user.
const COUNT_MAX: usize = 10_000_000;
/// Bytes of a database's log that may be kept for its replication slot, unless configured otherwise.
const SLOT_RETAINED_LIMIT: u64 = 4 << 30;
/// Least and most bytes that can be configured: a segment of the log, and more than a disk has.
const SLOT_RETAINED: RangeInclusive<u64> = 16 << 20..=1 << 50;
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Options of entities.
#[derive(Clone, Debug, Default)]
pub struct EntityOptions {
    /// Database whose changes one project hears, from `[entities]`. It counts if it has an address.
    pub main: SourceOptions,
    /// Further databases, from `[[entities.sources]]`.
    pub more: Vec<SourceOptions>,
    /// Options of the capability.
    pub entities: tidings_entities::Options,
    /// Options of its sockets.
    pub sockets: SocketOptions,
    /// Who decides which entities a user may watch, beside the token.
    pub authorize: AuthorizeOptions,
}

/// A database whose changes a project hears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceOptions {
    /// Address of the database. Default: none, which is no database.
    pub database_url: Option<DatabaseUrl>,
    /// The project that hears it. Default: `_default`.
    pub project: ProjectId,
    /// How changes are read.
    pub mode: Mode,
    /// Whether entries of `app.logging` that were read are marked. Default: true.
    pub mark_status: bool,
    /// Bytes of the database's log that may be kept for the replication slot. Default: 4 GiB.
    pub slot_retained_limit: u64,
}

/// How changes of a database are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// From a table that triggers fill.
    #[default]
    Outbox,
    /// From the database's own log, by logical replication.
    Logical,
}

/// Address of a database. Its `Debug` output does not contain it, because it may have a password.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

/// Who decides which entities a user may watch, beside the token. At most one is set.
#[derive(Clone, Debug, Default)]
pub struct AuthorizeOptions {
    /// URL that is asked.
    pub callback_url: Option<Target>,
    /// SQL query that is asked, in the database of the project.
    pub sql: Option<String>,
    /// Role of the database under which the query runs. Default: none, which is the user of the database's address.
    pub sql_role: Option<String>,
    /// Limits of connections to the callback.
    pub egress: EgressOptions,
}

impl Default for SourceOptions {
    fn default() -> Self {
        Self {
            database_url: None,
            project: ProjectId::default_project(),
            mode: Mode::default(),
            mark_status: true,
            slot_retained_limit: SLOT_RETAINED_LIMIT,
        }
    }
}

impl DatabaseUrl {
    /// Takes a text as the address of a database.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The address, with the password that it may have.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseUrl(..)")
    }
}

impl EntityOptions {
    /// All databases that are configured.
    pub fn sources(&self) -> impl Iterator<Item = &SourceOptions> {
        let main = Some(&self.main).filter(|main| main.database_url.is_some());
        main.into_iter().chain(&self.more)
    }

    /// The first project that would hear two databases.
    pub fn twice(&self) -> Option<&ProjectId> {
        let sources: Vec<_> = self.sources().collect();
        let heard_before = |at: usize| sources[..at].iter().any(|other| other.project == sources[at].project);
        (0..sources.len()).find(|&at| heard_before(at)).map(|at| &sources[at].project)
    }
}

/// Keys of `[entities]` and `[entities.authorize]`.
pub const KEYS: &[Key] = &[
    key("entities.database_url", |config, given| set_url(&mut options(config).main, given)),
    key("entities.project", |config, given| set_project(&mut options(config).main, given)),
    key("entities.mode", |config, given| set_mode(&mut options(config).main, given)),
    key("entities.slot_retained_limit", |config, given| set_slot_limit(&mut options(config).main, given)),
    key("entities.mark_status", |config, given| set_mark_status(&mut options(config).main, given)),
    key("entities.since_window", |config, given| {
        given.duration(SECOND..=30 * DAY).map(|time| options(config).entities.since_window = time)
    }),
    key("entities.max_ids_per_subscribe", |config, given| {
        let count = given.count(1..=COUNT_MAX)?;
        options(config).entities.max_ids_per_subscribe = count;
        options(config).sockets.max_ids_per_subscribe = count;
        Ok(())
    }),
    key("entities.max_subscriptions_per_connection", |config, given| {
        given
            .count(1..=COUNT_MAX)
            .map(|count| options(config).entities.max_subscriptions_per_connection = count)
    }),
    key("entities.connections_per_user", |config, given| {
        given.count(1..=COUNT_MAX).map(|count| options(config).entities.connections_per_user = count)
    }),
    key("entities.heartbeat", |config, given| {
        given.duration(SECOND..=HOUR).map(|time| options(config).sockets.heartbeat = time)
    }),
    key("entities.stall_limit", |config, given| {
        given.duration(SECOND..=DAY).map(|time| options(config).sockets.stall_limit = time)
    }),
    key("entities.token_grace", |config, given| {
        given.duration(Duration::ZERO..=HOUR).map(|time| options(config).sockets.token_grace = time)
    }),
    key("entities.authorize.callback_url", |config, given| {
        let target = Target::parse(given.text()?).map_err(|error| format!("is not good: {error}"))?;
        options(config).authorize.callback_url = Some(target);
        Ok(())
    }),
    key("entities.authorize.sql", |config, given| match given.text()?.trim() {
        "" => Err("must be an SQL query, not nothing".to_owned()),
        sql => {
            options(config).authorize.sql = Some(sql.to_owned());
            Ok(())
        }
    }),
    key("entities.authorize.sql_role", |config, given| match given.text()? {
        "" => Err("must be the name of a role, not nothing".to_owned()),
        role if role.contains('\0') => Err("must be the name of a role".to_owned()),
        role => {
            options(config).authorize.sql_role = Some(role.to_owned());
            Ok(())
        }
    }),
];

/// `[[entities.sources]]`.
pub const TABLES: &[Tables] = &[Tables {
    name: "entities.sources",
    keys: &[
        key("entities.sources.database_url", |config, given| set_url(last(config)?, given)),
        key("entities.sources.project", |config, given| set_project(last(config)?, given)),
        key("entities.sources.mode", |config, given| set_mode(last(config)?, given)),
        key("entities.sources.mark_status", |config, given| set_mark_status(last(config)?, given)),
        key("entities.sources.slot_retained_limit", |config, given| set_slot_limit(last(config)?, given)),
    ],
    begin: |config| options(config).more.push(SourceOptions::default()),
    check: |config| match config.capabilities.entities.more.last() {
        Some(SourceOptions { database_url: None, .. }) => {
            Err("needs database_url, which is missing".to_owned())
        }
        Some(_) | None => Ok(()),
    },
}];

fn options(config: &mut Config) -> &mut EntityOptions {
    &mut config.capabilities.entities
}

fn last(config: &mut Config) -> Result<&mut SourceOptions, Wrong> {
    options(config).more.last_mut().ok_or_else(|| "belongs into a table".to_owned())
}

/// Checks only what an address begins with, so that no message can quote a password.
fn set_url(source: &mut SourceOptions, given: &Given<'_>) -> Result<(), Wrong> {
    let text = given.text()?;
    if !["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme)) {
        return Err("must be a URL that begins with postgres:// or postgresql://".to_owned());
    }
    source.database_url = Some(DatabaseUrl::new(text));
    Ok(())
}

fn set_project(source: &mut SourceOptions, given: &Given<'_>) -> Result<(), Wrong> {
    let project = ProjectId::parse(given.text()?).map_err(|error| format!("is not good: {error}"))?;
    if project.is_reserved() && project != ProjectId::default_project() {
        return Err(format!("is {project}, which is kept for the server"));
    }
    source.project = project;
    Ok(())
}

fn set_mode(source: &mut SourceOptions, given: &Given<'_>) -> Result<(), Wrong> {
    given.choice(&[("outbox", Mode::Outbox), ("logical", Mode::Logical)]).map(|mode| source.mode = mode)
}

fn set_slot_limit(source: &mut SourceOptions, given: &Given<'_>) -> Result<(), Wrong> {
    given.number(SLOT_RETAINED).map(|bytes| source.slot_retained_limit = bytes)
}

fn set_mark_status(source: &mut SourceOptions, given: &Given<'_>) -> Result<(), Wrong> {
    given.truth().map(|mark| source.mark_status = mark)
}
