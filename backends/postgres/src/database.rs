//! [`Database`]: one database with all that a node does there.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_engine::{Clock, Metrics, Rng};
use tidings_entities::SourceError;
use tokio::sync::watch;
use uuid::Uuid;

use crate::authorizer::SqlAuthorizer;
use crate::connect::{Target, TimeLimits};
use crate::directory::Directory;
use crate::error::DatabaseError;
use crate::listen;
use crate::meters::Meters;
use crate::outbox::Outbox;
use crate::pool::Pool;
use crate::relay::DatabaseRelay;
use crate::snapshot::Snapshot;
use crate::{lease, logical, upkeep};

/// What is known of a database before it is asked.
#[derive(Clone, Debug)]
pub struct Options {
    /// URL of the database, as libpq understands it.
    pub url: String,
    /// Project that hears the changes. Part of the ids of users that are not UUIDs, and a label of metrics.
    pub project: String,
    /// Id of this node, different for each process and each start.
    pub node: Uuid,
    /// Connections in use at one time, at most, beside the one that listens. Default: 8.
    pub connections: usize,
    /// Connections for the SQL authoriser, at most. Default: 4.
    pub authorizer_connections: usize,
    /// How long to wait for the database.
    pub time_limits: TimeLimits,
    /// Time for which changes are kept for clients that resume. Default: 15 minutes.
    pub since_window: Duration,
    /// Whether entries of `app.logging` become `sent` when they have been read. Default: true.
    pub mark_status: bool,
    /// How changes of attached tables come into the outbox. Default: by triggers.
    pub capture: Capture,
    /// Bytes of the database's log that may be kept for the replication slot. Beyond, it is made anew. Default: 4 GiB.
    pub slot_retained_limit: i64,
}

/// How changes of attached tables come into the outbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// Triggers on the tables write them.
    #[default]
    Triggers,
    /// A node reads the log of the database, by logical replication.
    Log,
}

impl Options {
    /// Options with defaults for everything that has one.
    pub fn new(url: impl Into<String>, project: impl Into<String>, node: Uuid) -> Self {
        Self {
            url: url.into(),
            project: project.into(),
            node,
            connections: 8,
            authorizer_connections: 4,
            time_limits: TimeLimits::default(),
            since_window: Duration::from_secs(15 * 60),
            mark_status: true,
            capture: Capture::Triggers,
            slot_retained_limit: 4 << 30,
        }
    }
}

/// A database from which changes come. Clones share it. Nothing is connected before it is needed, so that a server
/// starts while its database is away.
#[derive(Clone)]
pub struct Database {
    pub(crate) shared: Arc<Shared>,
    directory: Arc<Directory>,
}

/// What the parts of a database work on.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) pool: Pool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) meters: Meters,
    /// Counts wakes: notifications, and connections of the listener.
    pub(crate) woken: watch::Sender<u64>,
    /// Whether the listener is connected.
    pub(crate) listening: watch::Sender<bool>,
    /// What the reader of this node has read; `None` before it has begun.
    read: Mutex<Option<Snapshot>>,
    /// Why changes do not come into the outbox, if they do not.
    problem: Mutex<Option<SourceError>>,
}

impl Database {
    /// Prepares the work on a database. Fails only if the URL is not valid.
    pub fn new(
        options: Options,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        metrics: &Metrics,
    ) -> Result<Self, DatabaseError> {
        let target = Arc::new(Target::new(&options.url, clock.clone(), options.time_limits)?);
        // Nobody is promised to hear of changes before it is known that they come.
        let problem = (options.capture == Capture::Log)
            .then(|| SourceError::Unavailable("the replication slot was not looked at yet".to_owned()));
        let shared = Arc::new(Shared {
            pool: Pool::new(target, options.connections, rng.clone()),
            meters: Meters::new(metrics, &options.project),
            options,
            clock,
            rng,
            woken: watch::Sender::new(0),
            listening: watch::Sender::new(false),
            read: Mutex::default(),
            problem: Mutex::new(problem),
        });
        let directory = Arc::new(Directory::new(shared.clone()));
        Ok(Self { shared, directory })
    }

    /// The changes, as a source.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.shared.clone())
    }

    /// The registry of subscriptions.
    pub fn directory(&self) -> Arc<Directory> {
        self.directory.clone()
    }

    /// The lease of telling the changes to hooks.
    pub fn relay(&self) -> DatabaseRelay {
        DatabaseRelay::new(self.shared.clone())
    }

    /// An authoriser that asks a query of this database, on connections of its own.
    pub fn authorizer(&self, query: &str, role: Option<&str>) -> Result<SqlAuthorizer, DatabaseError> {
        SqlAuthorizer::new(&self.shared, query, role)
    }

    /// Does what a node does by itself, for as long as the server runs: listens, renews the lease, writes the registry,
    /// removes what is not needed any more.
    pub async fn run(self) {
        tokio::join!(
            listen::listen(self.shared.clone()),
            lease::keep(self.shared.clone(), self.directory.clone()),
            self.directory.write(),
            upkeep::upkeep(self.shared.clone()),
            feed(self.shared.clone()),
        );
    }

    /// Gives the lease back and removes this node's subscriptions, when the server stops.
    pub async fn leave(&self) -> Result<(), DatabaseError> {
        if self.shared.options.capture == Capture::Log {
            logical::leave(&self.shared).await?;
        }
        lease::leave(&self.shared).await
    }
}

/// Brings changes into the outbox, if triggers do not.
async fn feed(shared: Arc<Shared>) {
    match shared.options.capture {
        Capture::Triggers => logical::remove_abandoned(shared).await,
        Capture::Log => logical::lead(shared).await,
    }
}

impl Shared {
    /// Notes why changes do not come into the outbox, or that they do.
    pub(crate) fn set_problem(&self, problem: Option<SourceError>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    /// Why changes do not come into the outbox, if they do not.
    pub(crate) fn problem(&self) -> Option<SourceError> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how far the reader of this node has got.
    pub(crate) fn note_read(&self, read: Snapshot) {
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
    }

    /// What the reader of this node has read.
    pub(crate) fn read(&self) -> Option<Snapshot> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
