//! One running server: store, capabilities and routes put together, listening.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidings_api::{
    Api, BodyBudget, Drain, FastPath, LiveConnections, LiveContext, Observe, Parts, RequestLimiter,
    RequestLimits,
};
use tidings_auth::{Admission, Authorize, Gate, Given, Projects};
use tidings_embedded::{DirectoryLock, OpenError};
use tidings_engine::deliver::Channels;
use tidings_engine::duty::{Leadership, Stopped};
use tidings_engine::{Bus, Clock, LimitHits, Metrics, Rng};
use tidings_model::limits;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::capabilities::{self, Capabilities, CapabilityError, Foundation};
use crate::connections::{self, ConnectionOptions, Connections, Counts};
use crate::duties::{self, Duties, Duty, Subjects};
use crate::http::Http;
use crate::options::{LimitOptions, ObserveOptions, TlsOptions};
use crate::projects::SystemRandomness;
use crate::store::StoreChoice;
use crate::tls::{Tls, TlsError};
use crate::usage;

/// How long a server that stops waits for answers that are on their way.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// A capability cannot be opened.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
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
    /// Certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// What a server is made of.
pub struct ServerOptions {
    /// Where streams are kept.
    pub store: StoreChoice,
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Seed of what is random.
    pub seed: u64,
    /// How the capabilities are set.
    pub capabilities: capabilities::Options,
    /// How much a client may ask.
    pub limits: LimitOptions,
    /// Who is let in.
    pub access: Access,
    /// The files of TLS; without them it speaks plain HTTP.
    pub tls: Option<TlsOptions>,
    /// How it lets itself be watched.
    pub observe: ObserveOptions,
    /// Whether this node does what one of several does alone.
    pub leadership: Leadership,
    /// Duties that take the place of the server's own of the same name, or come beside them.
    pub duties: Vec<Duty>,
}

impl ServerOptions {
    /// A server in which nothing is set that has a default, and nothing is random.
    pub fn new(store: StoreChoice, listen: SocketAddr, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            listen,
            clock,
            seed: 0,
            capabilities: capabilities::Options::default(),
            limits: LimitOptions::default(),
            access: Access::default(),
            tls: None,
            observe: ObserveOptions::default(),
            leadership: Leadership::alone(),
            duties: Vec::new(),
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
    metrics_address: Option<SocketAddr>,
    bus: Bus,
    capabilities: Capabilities,
    live_connections: Arc<LiveConnections>,
    clock: Arc<dyn Clock>,
    projects: Projects,
    metrics: Metrics,
    drain: Drain,
    tls: Option<Arc<Tls>>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    /// Serves metrics on a listener of its own until the very end.
    serving_metrics: Option<JoinHandle<()>>,
    duties: Duties,
    /// Keeps other processes out of the store.
    _lock: Option<DirectoryLock>,
}

impl Server {
    /// Binds the addresses, opens the store and begins to serve. Clients that come before the store is open wait.
    pub async fn start(options: ServerOptions) -> Result<Self, StartError> {
        let tls = options.tls.map(Tls::load).transpose()?.map(Arc::new);
        let (listener, address) = bind(options.listen).await?;
        let metrics_listener = match options.observe.metrics_listen {
            Some(listen) => Some(bind(listen).await?),
            None => None,
        };
        let (bus, metrics, clock) = (Bus::new(), Metrics::new(), options.clock);
        usage::show(&metrics);
        let data = match &options.store {
            StoreChoice::Memory => String::new(),
            StoreChoice::Embedded { data, .. } => format!(" --data {}", data.display()),
        };
        let opened = options.store.open(&bus, &clock, &metrics)?;
        let gate = open_gate(opened.store.clone(), options.access, clock.clone(), data)?;
        let connection_options = options.limits.connections(options.capabilities.streams.slow_reader_timeout);
        let rng = Arc::new(Rng::seeded(options.seed));
        let capabilities = {
            let (bus, clock, rng, metrics) = (bus.clone(), clock.clone(), rng.clone(), metrics.clone());
            let leadership = options.leadership.clone();
            let foundation = Foundation { store: opened.store, bus, clock, rng, metrics, leadership };
            Capabilities::open(&foundation, options.capabilities).await?
        };
        let projects = gate.projects().clone();
        let (drain, drained) = Drain::new();
        let live = LiveContext { clock: clock.clone(), live_connections: Arc::default() };
        let live_connections = live.live_connections.clone();
        let duties = {
            let own = duties::of_server(Subjects {
                capabilities: capabilities.clone(),
                projects: projects.clone(),
                live_connections: live_connections.clone(),
                upkeep: opened.upkeep,
                clock: clock.clone(),
            });
            Duties::start(duties::with(own, options.duties), &clock, &options.leadership)
        };
        let observe = Arc::new(Observe::new(&metrics, clock.clone(), &rng, options.observe.spans));
        let request_limiter = Arc::new(RequestLimiter::new(options.limits.request_limiter(), clock.clone()));
        let metrics_access = options.observe.metrics_access;
        let Capabilities { streams, sessions, rooms } = capabilities.clone();
        let api = Api::new(Parts {
            streams,
            sessions,
            rooms,
            gate,
            rng,
            drained,
            live: live.clone(),
            request_limiter,
            body_budget: BodyBudget::new(options.limits.body_bytes_in_flight, &metrics),
            observe,
            metrics_access,
            stopped_duty: duties.stopped(),
        });
        let (stop, stopped) = watch::channel(false);
        let serving = {
            let http = Http::new(FastPath::new(api.clone()), &connection_options, LimitHits::new(&metrics));
            let counts = Counts::new(&metrics);
            let shared = Connections {
                options: connection_options.clone(),
                http,
                tls: tls.clone(),
                counts,
                live: live.clone(),
            };
            tokio::spawn(connections::serve(listener, Arc::new(shared), when_stopped(stopped.clone())))
        };
        let serve_metrics = |(listener, address): (TcpListener, SocketAddr)| {
            let settings =
                ConnectionOptions { connections: limits::METRICS_CONNECTIONS, ..connection_options };
            // Not counted among those of clients.
            let uncounted = Metrics::new();
            let http =
                Http::new(FastPath::for_operators(api), &settings, LimitHits::new(&uncounted)).always();
            let counts = Counts::new(&uncounted);
            let shared = Connections { options: settings, http, tls: None, counts, live };
            (address, tokio::spawn(connections::serve(listener, Arc::new(shared), when_dropped(stopped))))
        };
        let (metrics_address, serving_metrics) = metrics_listener.map(serve_metrics).unzip();
        Ok(Self {
            address,
            metrics_address,
            bus,
            capabilities,
            live_connections,
            clock,
            projects,
            metrics,
            drain,
            tls,
            stop,
            serving,
            serving_metrics,
            duties,
            _lock: opened.lock,
        })
    }

    /// Where metrics are served without credentials, if they are.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Its numbers.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Whether it has a certificate.
    pub fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads certificate and key again, for connections that come from now on.
    pub fn reload_tls(&self) -> Result<(), TlsError> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
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
        self.capabilities.streams.channels()
    }

    /// Its rooms.
    pub fn rooms(&self) -> &Rooms {
        &self.capabilities.rooms
    }

    /// Its sessions.
    pub fn sessions(&self) -> &Sessions {
        &self.capabilities.sessions
    }

    /// All answers that stay.
    pub fn live_connections(&self) -> &LiveConnections {
        &self.live_connections
    }

    /// Resolves when one of the server's duties has stopped. Without it the server must not go on.
    pub async fn failed(&self) -> Stopped {
        let mut stopped = self.duties.stopped();
        match stopped.wait_for(Option::is_some).await.map(|stopped| stopped.clone()) {
            Ok(Some(stopped)) => stopped,
            // Nobody supervises them any more: the server stops.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Takes no new connections, tells waiting readers to come again, and returns when all answers are out, or when
    /// it has waited long enough for those that do not take theirs.
    pub async fn stop(mut self) -> io::Result<()> {
        self.drain.begin();
        self.live_connections.drain(self.clock.now());
        self.stop.send_replace(true);
        let served = match tokio::time::timeout(STOP_TIMEOUT, &mut self.serving).await {
            Ok(served) => served.map_err(io::Error::other),
            Err(_) => {
                tracing::warn!("some connections did not end by themselves and are cut");
                self.serving.abort();
                self.live_connections.cut();
                Ok(())
            }
        };
        if let Some(serving_metrics) = self.serving_metrics {
            serving_metrics.abort();
        }
        // They may hold the store; who stops the server wants the store closed.
        self.duties.stop().await;
        served
    }
}

impl LimitOptions {
    fn request_limiter(&self) -> RequestLimits {
        RequestLimits { header_bytes: self.header_bytes, requests_per_second: self.requests_per_second }
    }

    fn connections(&self, slow_reader_timeout: Duration) -> ConnectionOptions {
        ConnectionOptions {
            connections: self.connections,
            header_bytes: self.header_bytes,
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
            // Answers that stay and go through here must not be cut before their own time is over.
            write_timeout: self.write_timeout.max(slow_reader_timeout),
        }
    }
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let unbound = |error| StartError::Listen { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(unbound)?;
    let address = listener.local_addr().map_err(unbound)?;
    Ok((listener, address))
}

/// Resolves when the server stops; one that is dropped stops too.
async fn when_stopped(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stopped| stopped).await;
}

/// Resolves when the server is gone: whoever watches it sees it drain.
async fn when_dropped(mut stopped: watch::Receiver<bool>) {
    while stopped.changed().await.is_ok() {}
}

/// The gate, if anybody could ever pass it.
fn open_gate(
    store: Arc<dyn tidings_auth::Store>,
    access: Access,
    clock: Arc<dyn Clock>,
    data: String,
) -> Result<Gate, StartError> {
    let Access { dev, given, authorize } = access;
    let projects = Projects::open(store, Arc::new(SystemRandomness), given);
    let admission = match authorize {
        Some(authorize) => Admission::Custom(authorize),
        None if dev => Admission::Everybody,
        None if projects.has_no_keys() => return Err(StartError::NoProjects { data }),
        None => Admission::Credentials,
    };
    Ok(Gate::new(projects, admission, clock))
}
