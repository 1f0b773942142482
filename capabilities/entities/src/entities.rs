//! The entities of a server.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tidings_engine::journal::Journals;
use tidings_engine::log::StoreError;
use tidings_engine::metrics::Kind;
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_model::{ProjectId, Timestamp, limits};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::authorize::Authorize;
use crate::change_log::ChangeLogs;
use crate::counts::{self, Counts};
use crate::hub::{Hub, HubParts, Reader};
use crate::project::Project;
use crate::registry::{NoRegistry, Registry};
use crate::relay::Relay;
use crate::source::Source;
use crate::store::Store;

/// Delay before a reader that has panicked is started again.
const RESTART: Duration = Duration::from_secs(1);

/// Handle to the entities of a server. Clones share the same state.
#[derive(Clone)]
pub struct Entities {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) logs: ChangeLogs,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) journals: Journals,
    pub(crate) counts: Arc<Counts>,
    pub(crate) options: Options,
    pub(crate) backings: HashMap<ProjectId, Backing>,
    authorize: Option<Arc<dyn Authorize>>,
    hubs: Mutex<HashMap<ProjectId, Arc<Hub>>>,
    wanted: mpsc::UnboundedSender<Weak<Hub>>,
    /// Taken by whoever serves.
    to_read: tokio::sync::Mutex<mpsc::UnboundedReceiver<Weak<Hub>>>,
}

/// What the entities of a server are made of.
pub struct Parts {
    /// The store of change logs.
    pub store: Arc<dyn Store>,
    /// Bus that wakes readers of logs.
    pub bus: Bus,
    /// Source of the current time and of timers.
    pub clock: Arc<dyn Clock>,
    /// Random numbers, for jitter and epochs.
    pub rng: Arc<Rng>,
    /// Journals that changes are entered into.
    pub journals: Journals,
    /// Registry of metrics.
    pub metrics: Metrics,
    /// Settings.
    pub options: Options,
    /// Projects whose changes come from elsewhere. All others have a change log in the store.
    pub backings: HashMap<ProjectId, Backing>,
    /// Decides who may watch what, in addition to tokens. `None`: nobody else does.
    pub authorize: Option<Arc<dyn Authorize>>,
}

/// What a project has whose changes come from elsewhere.
#[derive(Clone)]
pub struct Backing {
    /// Where changes come from.
    pub source: Arc<dyn Source>,
    /// Where subscriptions are shown.
    pub registry: Arc<dyn Registry>,
    /// The lease of telling changes to hooks. Without one, hooks do not hear them.
    pub relay: Option<Arc<dyn Relay>>,
    /// Decides who may watch what. `None`: as in all projects.
    pub authorize: Option<Arc<dyn Authorize>>,
}

/// Settings of entities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long changes are kept for clients that come back. Default: [`limits::ENTITY_SINCE_WINDOW`].
    pub since_window: Duration,
    /// Maximum ids of one subscribe. Default: [`limits::ENTITY_IDS_PER_SUBSCRIBE`].
    pub max_ids_per_subscribe: usize,
    /// Maximum subscriptions of one connection, and changes that wait for it. Default:
    /// [`limits::ENTITY_SUBSCRIPTIONS_PER_CONNECTION`].
    pub max_subscriptions_per_connection: usize,
    /// Maximum connections of one user. Default: [`limits::ENTITY_CONNECTIONS_PER_USER`].
    pub connections_per_user: usize,
}

/// The state of a source that is not a change log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceState {
    /// The project that hears it.
    pub project: ProjectId,
    /// Set while it cannot be read.
    pub failing: Option<Failing>,
}

/// A source that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Time of the first failure.
    pub since: Timestamp,
    /// The last error, for operators.
    pub error: String,
    /// What is not set up, if that is why. May be shown to anybody.
    pub misconfigured: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            since_window: limits::ENTITY_SINCE_WINDOW,
            max_ids_per_subscribe: limits::ENTITY_IDS_PER_SUBSCRIBE,
            max_subscriptions_per_connection: limits::ENTITY_SUBSCRIPTIONS_PER_CONNECTION,
            connections_per_user: limits::ENTITY_CONNECTIONS_PER_USER,
        }
    }
}

impl Entities {
    /// Opens the entities of a server. Nobody hears anything until they are [served](Self::serve).
    pub fn new(parts: Parts) -> Self {
        let Parts { store, bus, clock, rng, journals, metrics, options, backings, authorize } = parts;
        let logs = ChangeLogs::new(store, bus, clock.clone(), rng.clone(), journals.clone());
        let (wanted, to_read) = mpsc::unbounded_channel();
        let inner = Inner {
            logs,
            clock,
            rng,
            journals,
            counts: Arc::new(Counts::new(&metrics)),
            options,
            backings,
            authorize,
            hubs: Mutex::default(),
            wanted,
            to_read: tokio::sync::Mutex::new(to_read),
        };
        let inner = Arc::new(inner);
        // Those are read also while nobody is connected, so that it is known whether they can be.
        for project in inner.backings.keys() {
            inner.hub(project);
        }
        inner.show(&metrics);
        Self { inner }
    }

    /// The entities of a project.
    pub fn project(&self, project: &ProjectId) -> Project {
        Project { hub: self.inner.hub(project), wanted: self.inner.wanted.clone() }
    }

    /// Reads the sources of the projects for their connections. Runs on each node and never returns.
    pub async fn serve(self) {
        let mut to_read = self.inner.to_read.lock().await;
        let mut readers = JoinSet::new();
        self.inner.read_wanted(&mut readers);
        loop {
            tokio::select! {
                Some(hub) = to_read.recv() => if let Some(hub) = hub.upgrade() {
                    readers.spawn(hub.run());
                },
                Some(ended) = readers.join_next() => if let Err(error) = ended {
                    // What it has not finished is delivered again.
                    tracing::error!(%error, "the reader of changes of entities has ended; starting it again");
                    self.inner.clock.sleep(RESTART).await;
                    self.inner.read_wanted(&mut readers);
                },
            }
        }
    }

    /// Removes what is stored for a removed project.
    pub async fn clear(&self, project: &ProjectId) -> Result<(), StoreError> {
        self.inner.logs.of(project).clear().await?;
        let mut hubs = self.inner.hubs();
        // Unless somebody has a handle.
        if hubs.get(project).is_some_and(|hub| !hub.permanent && Arc::strong_count(hub) == 1) {
            hubs.remove(project);
        }
        Ok(())
    }

    /// The states of the sources that are not change logs.
    pub fn states(&self) -> Vec<SourceState> {
        let hubs = self.inner.hubs();
        let mut states: Vec<_> = hubs
            .values()
            .filter(|hub| hub.permanent)
            .map(|hub| SourceState { project: hub.project.clone(), failing: hub.failing() })
            .collect();
        states.sort_by(|one, other| one.project.cmp(&other.project));
        states
    }
}

impl Inner {
    fn hub(&self, project: &ProjectId) -> Arc<Hub> {
        let mut hubs = self.hubs();
        if let Some(hub) = hubs.get(project) {
            return hub.clone();
        }
        let backing = self.backings.get(project);
        let own = backing.and_then(|backing| backing.authorize.clone());
        let hub = Arc::new(Hub::new(HubParts {
            project: project.clone(),
            source: match backing {
                Some(backing) => backing.source.clone(),
                None => Arc::new(self.logs.of(project)),
            },
            registry: backing.map_or_else(|| Arc::new(NoRegistry) as _, |backing| backing.registry.clone()),
            authorize: own.or_else(|| self.authorize.clone()),
            clock: self.clock.clone(),
            rng: self.rng.clone(),
            options: self.options.clone(),
            counts: self.counts.clone(),
            permanent: backing.is_some(),
        }));
        hubs.insert(project.clone(), hub.clone());
        hub
    }

    fn hubs(&self) -> MutexGuard<'_, HashMap<ProjectId, Arc<Hub>>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the readers that are wanted. One that runs already ends at once.
    fn read_wanted(&self, readers: &mut JoinSet<()>) {
        for hub in self.hubs().values() {
            if hub.lock().reader == Reader::Wanted {
                readers.spawn(hub.clone().run());
            }
        }
    }

    /// Adds a metric that is the sum of something over all projects.
    fn show(self: &Arc<Self>, metrics: &Metrics) {
        let sum = |name, of: fn(&Hub) -> usize| {
            let inner = Arc::downgrade(self);
            metrics.compute(name, Kind::Gauge, &[], move || {
                let Some(inner) = inner.upgrade() else { return 0.0 };
                let hubs: Vec<_> = inner.hubs().values().cloned().collect();
                hubs.iter().map(|hub| of(hub)).sum::<usize>() as f64
            });
        };
        sum(counts::PROJECTS, |_| 1);
        sum(counts::CONNECTIONS, |hub| hub.lock().connections.len());
        sum(counts::SUBSCRIPTIONS, |hub| {
            hub.lock().connections.values().map(|connection| connection.subscriptions.len()).sum()
        });
        sum(counts::PENDING, |hub| {
            let pending = |connection: &crate::hub::Connection| {
                let held: usize = connection.holds.iter().map(|hold| hold.kept.len()).sum();
                connection.inbox.len() + held
            };
            hub.lock().connections.values().map(pending).sum()
        });
        sum(counts::FAILING, |hub| usize::from(hub.failing().is_some()));
    }
}
