//! Duties: what a server does by itself, again and again, beside answering requests.
//!
//! Each duty is a task of its own, so a long one holds up no other. One supervisor waits for all of them. A duty never ends
//! by itself; one that does, or panics, is named in the log and makes [`Duties::failed`] resolve: without it the server
//! would go on and quietly not do its work. Duties that one node of a cluster does alone ask [`Leadership`] first.
//!
//! [`of_server`] lists all duties, those of the capabilities included; [`Duties::start`] runs a list.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidings_api::LiveConnections;
use tidings_auth::Projects;
use tidings_engine::Clock;
use tidings_engine::duty::{Leadership, Stopped};
use tidings_streams::Cleared;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use crate::capabilities::Capabilities;

/// How often it is tried again to remove what a removed project had.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(5);
/// How often live answers are asked whether they may go on.
const LIVE_INTERVAL: Duration = Duration::from_secs(1);
/// How often the store is asked to give space back.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Gives space back, where the store can.
pub type Upkeep = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// What the server's own duties work on.
pub struct Subjects {
    /// The capabilities, which have duties of their own.
    pub capabilities: Capabilities,
    /// The projects.
    pub projects: Projects,
    /// The live answers.
    pub live_connections: Arc<LiveConnections>,
    /// The store's upkeep.
    pub upkeep: Upkeep,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

/// All duties of a server.
pub fn of_server(subjects: Subjects) -> Vec<Duty> {
    let Subjects { capabilities, projects, live_connections, upkeep, clock } = subjects;
    let mut duties = capabilities.duties();
    let (removing, removal_clock) = (projects.clone(), clock.clone());
    duties.extend([
        Duty::lasting("project-removal", move || {
            remove_projects(capabilities.clone(), removing.clone(), removal_clock.clone())
        }),
        // Each node has readers and a store of its own.
        Duty::lasting("live-answers", move || {
            ask_lives(live_connections.clone(), projects.clone(), clock.clone())
        })
        .on_each_node(),
        Duty::every("store-upkeep", UPKEEP_INTERVAL, move || give_space_back(upkeep.clone())).on_each_node(),
    ]);
    duties
}

/// One duty: what is done, how often, and on which nodes.
#[derive(Clone)]
pub struct Duty {
    name: &'static str,
    rhythm: Rhythm,
    place: Place,
    work: Work,
}

type Work = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

#[derive(Clone, Copy, Debug)]
enum Rhythm {
    /// Done, and done again when so much time has passed since.
    Every(Duration),
    /// Done for as long as the server runs.
    Lasting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the node that leads.
    Leader,
    /// On each node.
    Everywhere,
}

impl Duty {
    /// Work that is done at intervals, on the node that leads.
    pub fn every<W>(
        name: &'static str,
        interval: Duration,
        work: impl Fn() -> W + Send + Sync + 'static,
    ) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self::new(name, Rhythm::Every(interval), work)
    }

    /// Work without an end, on the node that leads. It is dropped when the node does not lead any more, and begun anew when
    /// it does.
    pub fn lasting<W>(name: &'static str, work: impl Fn() -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self::new(name, Rhythm::Lasting, work)
    }

    fn new<W>(name: &'static str, rhythm: Rhythm, work: impl Fn() -> W + Send + Sync + 'static) -> Self
    where
        W: Future<Output = ()> + Send + 'static,
    {
        Self { name, rhythm, place: Place::Leader, work: Arc::new(move || Box::pin(work())) }
    }

    /// The same on each node, whichever leads.
    pub fn on_each_node(self) -> Self {
        Self { place: Place::Everywhere, ..self }
    }

    /// Its name in the log and in errors.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Does it, for ever.
    async fn run(self, clock: Arc<dyn Clock>, leadership: Leadership) {
        let mut leadership = if self.place == Place::Leader { leadership } else { Leadership::alone() };
        match self.rhythm {
            Rhythm::Every(interval) => loop {
                clock.sleep(interval).await;
                if leadership.is_held() {
                    (self.work)().await;
                }
            },
            Rhythm::Lasting => loop {
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
        f.debug_struct("Duty").field("name", &self.name).field("rhythm", &self.rhythm).finish_non_exhaustive()
    }
}

/// A list of duties in which those of the second list take the place of those of the same name, or come beside them.
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
    /// Begins all of them.
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

    /// The first duty that has stopped, once one has.
    pub fn stopped(&self) -> watch::Receiver<Option<Stopped>> {
        self.stopped.clone()
    }

    /// Ends all of them, and returns when none holds anything any more.
    pub async fn stop(self) {
        drop(self.stop);
        // Nothing in it panics.
        let _ = self.supervising.await;
    }
}

/// Waits for duties that stop, until it is told to stop all.
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

/// The words of a task's panic.
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

/// Asks all live answers, again and again, whether they may go on.
async fn ask_lives(live_connections: Arc<LiveConnections>, projects: Projects, clock: Arc<dyn Clock>) {
    let mut generations = projects.generations();
    loop {
        tokio::select! {
            () = clock.sleep(LIVE_INTERVAL) => {}
            // Somebody's key may be gone: they need not wait to hear it.
            _ = generations.changed() => {}
        }
        live_connections.sweep(clock.now());
    }
}

/// Removes what removed projects had: at once, and what could not be removed later.
async fn remove_projects(capabilities: Capabilities, projects: Projects, clock: Arc<dyn Clock>) {
    loop {
        clear_removed(&capabilities, &projects).await;
        tokio::select! {
            () = clock.sleep(REMOVAL_INTERVAL) => {}
            () = projects.some_removed() => {}
        }
    }
}

/// Removes what removed projects had, and frees the ids of those that have nothing left.
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
