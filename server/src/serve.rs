//! One running server: store, capabilities and routes put together, listening.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidings_api::{Api, Drain, Lives, Stage};
use tidings_auth::{Admission, Authorize, Gate, Given, Projects};
use tidings_embedded::{DirectoryLock, Embedded, Folder, OpenError};
use tidings_engine::deliver::Channels;
use tidings_engine::log::{Memory, StoreError};
use tidings_engine::{Bus, Chance, Clock};
use tidings_streams::{Cleared, Options, Streams};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::ledger::Ledger;
use crate::options::{LimitOptions, ObserveOptions, TlsOptions};
use crate::projects::SystemRandomness;
use crate::{connections, projects};

/// How often expired streams are swept up. Nobody sees them once they are due, so this is only about space.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How often answers that stay are asked whether they may go on.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// How often the store is asked to give space back.
const TEND_INTERVAL: Duration = Duration::from_secs(60);
/// How long a server that stops waits for answers that are on their way.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Where streams are kept.
#[derive(Clone)]
pub enum StoreChoice {
    /// In memory, for as long as the process lives.
    Memory,
    /// In files.
    Embedded {
        /// The folder.
        data: PathBuf,
        /// How the store is set; its secret is drawn anew.
        options: tidings_embedded::Options,
    },
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is taken or not ours.
    #[error("cannot listen on {listen}: {error}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The projects cannot be read.
    #[error(transparent)]
    Projects(StoreError),
    /// Nobody could be told apart from anybody else.
    #[error(
        "there is no project and no admin key yet, so nobody could do anything.\n\
         Create a project:      tidings project create NAME{data}\n\
         or an admin key:       tidings admin-key{data}\n\
         or try it on this machine alone: tidings serve --dev"
    )]
    NoProjects {
        /// How the commands name the folder of the data; empty when that has no name.
        data: String,
    },
}

/// What a server is made of.
pub struct ServerOptions {
    /// Where streams are kept.
    pub store: StoreChoice,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Seed of what is left to chance.
    pub seed: u64,
    /// How streams are set.
    pub streams: Options,
    /// How much a client may ask.
    pub limits: LimitOptions,
    /// Who is let in.
    pub access: Access,
    /// The files of TLS; without them it speaks plain HTTP.
    pub tls: Option<TlsOptions>,
    /// How it lets itself be watched.
    pub observe: ObserveOptions,
}

impl ServerOptions {
    /// A server in which nothing is set that has a default, and nothing is left to chance.
    pub fn new(store: StoreChoice, listen: SocketAddr, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            listen,
            clock,
            seed: 0,
            streams: Options::default(),
            limits: LimitOptions::default(),
            access: Access::default(),
            tls: None,
            observe: ObserveOptions::default(),
        }
    }
}

/// Who is let in.
#[derive(Clone, Default)]
pub struct Access {
    /// Any project exists and nobody needs a credential; but one that is sent must be good.
    pub dev: bool,
    /// What the configuration gives, beside what is stored.
    pub given: Given,
    /// Decides instead of the built-in rules.
    pub authorize: Option<Arc<dyn Authorize>>,
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    bus: Bus,
    channels: Channels,
    lives: Arc<Lives>,
    clock: Arc<dyn Clock>,
    projects: Projects,
    drain: Drain,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    keeping: [JoinHandle<()>; 2],
    /// Keeps other processes out of the store.
    _lock: Option<DirectoryLock>,
}

impl Server {
    /// Binds the address, opens the store and begins to serve. Clients that come before the store is open wait.
    pub async fn start(options: ServerOptions) -> Result<Self, StartError> {
        let listen = options.listen;
        let unbound = |error| StartError::Listen { listen, error };
        let listener = TcpListener::bind(listen).await.map_err(unbound)?;
        let address = listener.local_addr().map_err(unbound)?;
        let bus = Bus::new();
        let data = match &options.store {
            StoreChoice::Memory => String::new(),
            StoreChoice::Embedded { data, .. } => format!(" --data {}", data.display()),
        };
        let opened = open_store(options.store, &bus, &options.clock)?;
        let gate = open_gate(opened.projects, options.access, options.clock.clone(), data).await?;
        let streams = Streams::new(opened.store, bus.clone(), options.clock.clone(), options.streams);
        let projects = gate.projects().clone();
        let (drain, drained) = Drain::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let lives = Arc::new(Lives::default());
        let clock = options.clock.clone();
        let keeping_house =
            tokio::spawn(keep_house(streams.clone(), projects.clone(), clock.clone(), opened.tend));
        let asking = tokio::spawn(ask_lives(lives.clone(), projects.clone(), clock.clone()));
        let stage = Stage { clock: clock.clone(), lives: lives.clone() };
        let chance = Arc::new(Chance::seeded(options.seed));
        let channels = streams.channels().clone();
        let router = tidings_api::router(Api { streams, gate, chance, drained, stage: stage.clone() });
        let stopped = async {
            // A server that is dropped stops too.
            let _ = stopped.await;
        };
        let service = connections::Service { router, stage };
        let serving = tokio::spawn(connections::serve(listener, service, stopped));
        let keeping = [keeping_house, asking];
        let _lock = opened.lock;
        Ok(Self { address, bus, channels, projects, lives, clock, drain, stop, serving, keeping, _lock })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its projects.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }

    /// Who waits for what.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Who listens to what.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// All answers that stay.
    pub fn lives(&self) -> &Lives {
        &self.lives
    }

    /// Takes no new connections, tells waiting readers to come again, and returns when all answers are out, or when
    /// it has waited long enough for those that do not take theirs.
    pub async fn stop(mut self) -> io::Result<()> {
        self.drain.begin();
        self.lives.drain(self.clock.now());
        // An error means that serving has ended by itself; then its result tells.
        let _ = self.stop.send(());
        let served = match tokio::time::timeout(STOP_TIMEOUT, &mut self.serving).await {
            Ok(served) => served.map_err(io::Error::other),
            Err(_) => {
                tracing::warn!("some connections did not end by themselves and are cut");
                self.serving.abort();
                Ok(())
            }
        };
        for keeping in self.keeping {
            keeping.abort();
            // It may hold the store; who stops the server wants the store closed.
            let _ = keeping.await;
        }
        served
    }
}

/// A store that was opened, with what belongs to it.
struct Opened {
    store: Arc<dyn tidings_streams::Store>,
    projects: Arc<dyn tidings_auth::Store>,
    lock: Option<DirectoryLock>,
    tend: Tend,
}

/// Gives space back, where the store can.
type Tend = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

fn open_store(choice: StoreChoice, bus: &Bus, clock: &Arc<dyn Clock>) -> Result<Opened, OpenError> {
    match choice {
        StoreChoice::Memory => {
            let store = Arc::new(Memory::<Ledger>::new(bus.clone(), clock.clone()));
            Ok(Opened { store: store.clone(), projects: store, lock: None, tend: Arc::new(|| Ok(())) })
        }
        StoreChoice::Embedded { data, options } => {
            let lock = DirectoryLock::take(&data)?;
            let disk = Arc::new(Folder::new(data));
            let options = tidings_embedded::Options { secret: projects::secret(), ..options };
            let store = Embedded::<Ledger>::open(disk, options, bus.clone(), clock.clone())?;
            let store = Arc::new(store);
            let tended = store.clone();
            let tend = Arc::new(move || tended.tend());
            Ok(Opened { store: store.clone(), projects: store, lock: Some(lock), tend })
        }
    }
}

/// Asks all answers that stay, again and again, whether they may go on.
async fn ask_lives(lives: Arc<Lives>, projects: Projects, clock: Arc<dyn Clock>) {
    let mut generations = projects.generations();
    loop {
        tokio::select! {
            () = clock.sleep(ASK_INTERVAL) => {}
            // Somebody's key may be gone: they need not wait to hear it.
            _ = generations.changed() => {}
        }
        lives.sweep(clock.now());
    }
}

/// The gate, if anybody could ever pass it.
async fn open_gate(
    store: Arc<dyn tidings_auth::Store>,
    access: Access,
    clock: Arc<dyn Clock>,
    data: String,
) -> Result<Gate, StartError> {
    let Access { dev, given, authorize } = access;
    let projects = Projects::open(store, Arc::new(SystemRandomness), given).await;
    let projects = projects.map_err(StartError::Projects)?;
    let admission = match authorize {
        Some(authorize) => Admission::Custom(authorize),
        None if dev => Admission::Everybody,
        None if projects.has_no_keys() => return Err(StartError::NoProjects { data }),
        None => Admission::Credentials,
    };
    Ok(Gate::new(projects, admission, clock))
}

/// Ends what has expired, and lets the store give space back, again and again.
async fn keep_house(streams: Streams, projects: Projects, clock: Arc<dyn Clock>, tend: Tend) {
    let mut tended = clock.now();
    loop {
        clear_removed(&streams, &projects).await;
        let next = clock.sleep(SWEEP_INTERVAL);
        tokio::pin!(next);
        loop {
            tokio::select! {
                () = &mut next => break,
                () = projects.some_removed() => clear_removed(&streams, &projects).await,
            }
        }
        match streams.sweep().await {
            Ok(swept) if swept.removed + swept.trimmed > 0 => {
                tracing::debug!(removed = swept.removed, trimmed = swept.trimmed, "swept streams");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not sweep streams; trying again later"),
        }
        if clock.now().since(tended) >= TEND_INTERVAL {
            tended = clock.now();
            let tend = tend.clone();
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || tend()).await {
                tracing::warn!(%error, "could not give space back; trying again later");
            }
        }
    }
}

/// Removes what removed projects had, and frees the ids of those that have nothing left.
async fn clear_removed(streams: &Streams, projects: &Projects) {
    for project in projects.removing() {
        let cleared = streams.clear(&project).await;
        let forgotten = match cleared {
            Ok(Cleared::InPart) => continue,
            Ok(Cleared::Whole) => projects.forget(&project).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match forgotten {
            Ok(()) => tracing::info!(%project, "removed a project and all it had"),
            Err(error) => tracing::warn!(%project, error, "could not remove a project; trying again later"),
        }
    }
}
