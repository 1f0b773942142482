//! Duties: background work that a server does repeatedly, independently of requests.
//!
//! Each duty runs in its own task, so a slow one does not delay the others. One supervisor waits for all of them. A
//! duty is never supposed to end; if one returns or panics, the supervisor logs its name and publishes it in
//! [`Duties::stopped`], because a server without it would silently neglect that work. Duties that only one node of a
//! cluster may run check [`Leadership`] first.
//!
//! [`of_server`] lists all duties, including those of the capabilities; [`Duties::start`] runs a list.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidings_api::LiveConnections;
use tidings_auth::{Exchange, Projects};
use tidings_engine::Clock;
use tidings_engine::duty::{Leadership, Stopped};
use tidings_streams::Cleared;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::capabilities::Capabilities;

/// Interval between attempts to remove the data of removed projects.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(5);
/// Interval at which live responses are checked for whether they may continue.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the store is asked to reclaim space.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Reclaims space in the store, if the store supports that.
pub type Upkeep = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// What the server's own duties work on.
pub struct Subjects {
    /// The capabilities, which add duties of their own.
    pub capabilities: Capabilities,
    /// The projects whose removal has to be completed.
    pub projects: Projects,
    /// Exchanges revocations with other nodes. `None` for a node alone.
    pub exchange: Option<Arc<Exchange>>,
    /// Registry of live responses.
    pub live_connections: Arc<LiveConnections>,
    /// Reclaims space in the store.
    pub upkeep: Upkeep,
    /// Clock for intervals and expiry.
    pub clock: Arc<dyn Clock>,
}

/// Returns all duties of a server.
pub fn of_server(subjects: Subjects) -> Vec<Duty> {
    let Subjects { capabilities, projects, exchange, live_connections, upkeep, clock } = subjects;
    let mut duties = capabilities.duties();
    let (removing, removal_clock) = (projects.clone(), clock.clone());
    duties.extend([
        Duty::lasting("project-removal", move || {
            remove_projects(capabilities.clone(), removing.clone(), removal_clock.clone())
        }),
        // These two run on every node, because each node has its own readers and its own store.
        Duty::lasting("live-answers", move || {
            ask_lives(live_connections.clone(), projects.clone(), clock.clone())
        })
        .on_each_node(),
        Duty::every("store-upkeep", UPKEEP_INTERVAL, move || give_space_back(upkeep.clone())).on_each_node(),
    ]);
    duties.extend(exchange.map(|exchange| {
        let run = move || {
            let exchange = exchange.clone();
            async move { exchange.run().await }
        };
        Duty::lasting("revocation-exchange", run).on_each_node()
    }));
    duties
}

/// One duty: its work, when it runs, and on which nodes.
#[derive(Clone)]
pub struct Duty {
    name: &'static str,
    schedule: Schedule,
    nodes: Nodes,
    work: Work,
}

type Work = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum Schedule {
    /// Runs the work repeatedly, waiting this long before each run.
    Every(Duration),
    /// Runs the work once, for as long as the server runs.
    Lasting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nodes {
    /// Only on the node that is the leader.
    Leader,
    /// On every node.
    All,
}

impl Duty {
    /// Creates a duty that runs at intervals on the leader.
    pub fn every<W>(
        name: &'static str,
        interval: Duration,
        work: impl Fn() -> W + Send + Sync + 'static,
    ) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self::new(name, Schedule::Every(interval), work)
    }

    /// Creates a duty that runs continuously on the leader. Its future is dropped when the node loses leadership and
    /// created again when it regains it.
    pub fn lasting<W>(name: &'static str, work: impl Fn() -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self::new(name, Schedule::Lasting, work)
    }

    fn new<W>(name: &'static str, schedule: Schedule, work: impl Fn() -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self { name, schedule, nodes: Nodes::Leader, work: Arc::new(move || Box::pin(work())) }
    }

    /// Runs the duty on every node instead of only on the leader.
    pub fn on_each_node(self) -> Self {
        Self { nodes: Nodes::All, ..self }
    }

    /// Name of the duty in logs and errors.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Runs the duty. Returns only if continuous work ends, which is an error.
    async fn run(self, clock: Arc<dyn Clock>, leadership: Leadership) {
        let mut leadership = if self.nodes == Nodes::Leader { leadership } else { Leadership::alone() };
        match self.schedule {
            Schedule::Every(interval) => loop {
                clock.sleep(interval).await;
                if leadership.is_held() {
                    (self.work)().await;
                }
            },
            Schedule::Lasting => loop {
                let mut losing = leadership.clone();
                leadership.gained().await;
                tokio::select! {
                    () = (self.work)() => return,
                    () = losing.lost() => {}
                }
            },
        }
    }
}

impl fmt::Debug for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duty")
            .field("name", &self.name)
            .field("schedule", &self.schedule)
            .finish_non_exhaustive()
    }
}

/// Adds `others` to `duties`. A duty in `others` replaces the one of the same name.
pub fn with(mut duties: Vec<Duty>, others: Vec<Duty>) -> Vec<Duty> {
    duties.retain(|duty| others.iter().all(|other| other.name != duty.name));
    duties.extend(others);
    duties
}

/// The duties of a running server. They end when this is dropped.
pub struct Duties {
    stop: oneshot::Sender<()>,
    supervising: JoinHandle<()>,
    stopped: watch::Receiver<Option<Stopped>>,
}

impl Duties {
    /// Starts all duties.
    pub fn start(duties: Vec<Duty>, clock: &Arc<dyn Clock>, leadership: &Leadership) -> Self {
        let (mut tasks, mut names) = (JoinSet::new(), HashMap::new());
        for duty in duties {
            let name = duty.name;
            names.insert(tasks.spawn(duty.run(clock.clone(), leadership.clone())).id(), name);
        }
        let (stop, told_to_stop) = oneshot::channel();
        let (tell, stopped) = watch::channel(None);
        let supervising = tokio::spawn(supervise(tasks, names, tell, told_to_stop));
        Self { stop, supervising, stopped }
    }

    /// Receives the first duty that has stopped unexpectedly; `None` until then.
    pub fn stopped(&self) -> watch::Receiver<Option<Stopped>> {
        self.stopped.clone()
    }

    /// Ends all duties, and returns when none of them holds any resource.
    pub async fn stop(self) {
        drop(self.stop);
        // The supervisor does not panic.
        let _ = self.supervising.await;
    }
}

/// Reports duties that stop unexpectedly, until it is told to end all of them.
async fn supervise(
    mut tasks: JoinSet<()>,
    names: HashMap<tokio::task::Id, &'static str>,
    tell: watch::Sender<Option<Stopped>>,
    mut told_to_stop: oneshot::Receiver<()>,
) {
    loop {
        let ended = tokio::select! {
            _ = &mut told_to_stop => return tasks.shutdown().await,
            Some(ended) = tasks.join_next_with_id() => ended,
        };
        let (id, why) = match ended {
            Ok((id, ())) => (id, "it came to an end".to_owned()),
            Err(error) => (error.id(), panic_of(error)),
        };
        let stopped = Stopped { duty: names.get(&id).copied().unwrap_or_default(), why };
        tracing::error!(
            duty = stopped.duty,
            why = stopped.why,
            "a duty has stopped; the server cannot go on"
        );
        tell.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(stopped);
            is_first
        });
    }
}

/// Returns the message of a task's panic.
fn panic_of(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let panic: &(dyn Any + Send) = &*panic;
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

async fn give_space_back(upkeep: Upkeep) {
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || upkeep()).await {
        tracing::warn!(%error, "could not give space back; trying again later");
    }
}

/// Checks periodically whether each live response may continue.
async fn ask_lives(live_connections: Arc<LiveConnections>, projects: Projects, clock: Arc<dyn Clock>) {
    let mut generations = projects.generations();
    loop {
        tokio::select! {
            () = clock.sleep(LIVE_INTERVAL) => {}
            // A key may have been revoked: check at once instead of at the next interval.
            _ = generations.changed() => {}
        }
        live_connections.sweep(clock.now());
    }
}

/// Removes the data of removed projects: as soon as a project is removed, and repeatedly until all of it is gone.
async fn remove_projects(capabilities: Capabilities, projects: Projects, clock: Arc<dyn Clock>) {
    loop {
        clear_removed(&capabilities, &projects).await;
        tokio::select! {
            () = clock.sleep(REMOVAL_INTERVAL) => {}
            () = projects.some_removed() => {}
        }
    }
}

/// Removes the data of removed projects, and frees the ids of projects that have no data left.
async fn clear_removed(capabilities: &Capabilities, projects: &Projects) {
    for project in projects.removing() {
        let forgotten = match capabilities.clear(&project).await {
            Ok(Cleared::InPart) => continue,
            Ok(Cleared::Whole) => projects.forget(&project).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        match forgotten {
            Ok(()) => tracing::info!(%project, "removed a project and all it had"),
            Err(error) => tracing::warn!(%project, error, "could not remove a project; trying again later"),
        }
    }
}
