//! A running server: opens the store and the capabilities, builds the routes and listens.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidings_api::{
    Api, BodyBudget, Drain, FastPath, LiveConnections, LiveContext, Observe, Parts, RequestLimiter,
    RequestLimits, TopicHubs,
};
use tidings_auth::{Admission, Authorize, Exchange, Gate, Given, Projects};
use tidings_egress::AllowList;
use tidings_embedded::{DirectoryLock, OpenError};
use tidings_engine::bus::messages::MessageBus;
use tidings_engine::deliver::Channels;
use tidings_engine::duty::{Leadership, Stopped};
use tidings_engine::journal::Journals;
use tidings_engine::{Bus, Clock, LimitHits, Metrics, Rng};
use tidings_hooks::Hooks;
use tidings_model::limits;
use tidings_rooms::Rooms;
use tidings_sessions::Sessions;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::bus::{self, BusUrl};
use crate::capabilities::{self, Capabilities, CapabilityError, Foundation};
use crate::connections::{self, ConnectionOptions, Connections, Counts};
use crate::duties::{self, Duties, Duty, Subjects};
use crate::http::Http;
use crate::options::{LimitOptions, ObserveOptions, TlsOptions};
use crate::projects::SystemRandomness;
use crate::store::StoreChoice;
use crate::tls::{Tls, TlsError};
use crate::usage;

/// Time that a stopping server waits for responses in progress before it cuts their connections.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between looks whether the store is closed.
const CLOSING: Duration = Duration::from_millis(1);

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The listen address is in use or not available on this machine.
    #[error("cannot listen on {listen}: {error}")]
    Listen {
        /// The configured address.
        listen: SocketAddr,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// A capability could not be opened.
    #[error(transparent)]
    Capability(#[from] CapabilityError),
    /// There is neither a project nor an admin key, so every request would be refused.
    #[error(
        "there is no project and no admin key yet, so nobody could do anything.\n\
         Create a project:      tidings project create NAME{data}\n\
         or an admin key:       tidings admin-key{data}\n\
         or try it on this machine alone: tidings serve --dev"
    )]
    NoProjects {
        /// The `--data` argument to repeat in the suggested commands; empty for a store in memory.
        data: String,
    },
    /// The TLS certificate or key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Everything needed to start a server.
pub struct ServerOptions {
    /// Which store to open.
    pub store: StoreChoice,
    /// Address to listen on. Port 0 picks a free port.
    pub listen: SocketAddr,
    /// Source of the current time and of timers.
    pub clock: Arc<dyn Clock>,
    /// Seed of the random number generator. Default: 0.
    pub seed: u64,
    /// Options of the capabilities.
    pub capabilities: capabilities::Options,
    /// The broker that connects this node with others. Default: none, for a node alone.
    pub bus: Option<BusUrl>,
    /// Limits on requests and connections.
    pub limits: LimitOptions,
    /// Who may use the server.
    pub access: Access,
    /// Certificate and key files. Default: none, which serves plain HTTP.
    pub tls: Option<TlsOptions>,
    /// Options of metrics and tracing.
    pub observe: ObserveOptions,
    /// Whether this node is the leader, which alone runs the duties that a cluster runs once.
    pub leadership: Leadership,
    /// Additional duties. One with the name of a built-in duty replaces it.
    pub duties: Vec<Duty>,
}

impl ServerOptions {
    /// Options with defaults for everything else, and a fixed random seed.
    pub fn new(store: StoreChoice, listen: SocketAddr, clock: Arc<dyn Clock>) -> Self {
        Self {
            store,
            listen,
            clock,
            seed: 0,
            capabilities: capabilities::Options::default(),
            bus: None,
            limits: LimitOptions::default(),
            access: Access::default(),
            tls: None,
            observe: ObserveOptions::default(),
            leadership: Leadership::alone(),
            duties: Vec::new(),
        }
    }
}

/// Who may use the server.
#[derive(Clone, Default)]
pub struct Access {
    /// Dev mode: every project exists and no credential is required. A credential that is sent is still verified.
    pub dev: bool,
    /// Projects and keys from the configuration, in addition to the stored ones.
    pub given: Given,
    /// Custom authorization, used instead of the built-in rules.
    pub authorize: Option<Arc<dyn Authorize>>,
}

/// A running server.
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
    /// Task serving the metrics listener, which runs until the server has stopped.
    serving_metrics: Option<JoinHandle<()>>,
    duties: Duties,
    /// Keeps other processes from opening the store.
    lock: Option<DirectoryLock>,
}

impl Server {
    /// Binds the addresses, opens the store and starts serving. Clients that connect before the store is open wait in
    /// the listen backlog.
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
        let mut capabilities = options.capabilities;
        if options.access.dev {
            // So that a newcomer's first hook can call a receiver on the same machine.
            capabilities.hooks.allow_targets.get_or_insert_with(AllowList::loopback);
        }
        let opened = options.store.open(&bus, &clock, &metrics)?;
        let gate = open_gate(opened.store.clone(), options.access, clock.clone(), data)?;
        let slow_readers = [capabilities.streams.slow_reader_timeout, capabilities.topics.slow_consumer];
        let connection_options =
            options.limits.connections(slow_readers.into_iter().max().unwrap_or_default());
        let rng = Arc::new(Rng::seeded(options.seed));
        let messages = match options.bus {
            None => None,
            Some(url) => Some(join_cluster(url, &clock, &rng, &metrics).await),
        };
        let exchange = messages.clone().map(|messages| {
            let projects = gate.projects().clone();
            Arc::new(Exchange::new(projects, messages, bus::node_number(), clock.clone(), &metrics))
        });
        let capabilities = {
            let (bus, clock, rng, metrics) = (bus.clone(), clock.clone(), rng.clone(), metrics.clone());
            let leadership = options.leadership.clone();
            let (store, journals, projects) = (opened.store, Journals::default(), gate.projects().clone());
            let foundation =
                Foundation { store, bus, messages, clock, rng, metrics, projects, leadership, journals };
            Capabilities::open(&foundation, capabilities).await?
        };
        let projects = gate.projects().clone();
        let (drain, drained) = Drain::new();
        let live = LiveContext { clock: clock.clone(), live_connections: Arc::default() };
        let live_connections = live.live_connections.clone();
        let duties = {
            let own = duties::of_server(Subjects {
                capabilities: capabilities.clone(),
                projects: projects.clone(),
                exchange,
                live_connections: live_connections.clone(),
                upkeep: opened.upkeep,
                clock: clock.clone(),
            });
            Duties::start(duties::with(own, options.duties), &clock, &options.leadership)
        };
        let observe = Arc::new(Observe::new(&metrics, clock.clone(), &rng, options.observe.spans));
        let request_limiter = Arc::new(RequestLimiter::new(options.limits.request_limiter(), clock.clone()));
        let metrics_access = options.observe.metrics_access;
        let Capabilities { streams, sessions, subscriptions, rooms, hooks, topics, entities } =
            capabilities.clone();
        let api = Api::new(Parts {
            streams,
            sessions,
            subscriptions,
            rooms,
            hooks,
            topics,
            entities: entities.entities,
            entity_sockets: entities.sockets,
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
            // Connections to the metrics listener are not included in the metrics about clients.
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
            lock: opened.lock,
        })
    }

    /// Address of the metrics listener, which needs no credentials; `None` if it is not configured.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Metrics of this server.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns whether the server uses TLS.
    pub fn speaks_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the certificate and the key again. New connections use them; existing ones are unchanged.
    pub fn reload_tls(&self) -> Result<(), TlsError> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// Address the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The projects of this server.
    pub fn projects(&self) -> &Projects {
        &self.projects
    }

    /// The bus that wakes followers of a log.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The channels that deliver records to live subscribers.
    pub fn channels(&self) -> &Channels {
        self.capabilities.streams.channels()
    }

    /// The rooms of this server.
    pub fn rooms(&self) -> &Rooms {
        &self.capabilities.rooms
    }

    /// The hooks of this server.
    pub fn hooks(&self) -> &Hooks {
        &self.capabilities.hooks
    }

    /// The topics of this server.
    pub fn topics(&self) -> &TopicHubs {
        &self.capabilities.topics
    }

    /// The sessions of this server.
    pub fn sessions(&self) -> &Sessions {
        &self.capabilities.sessions
    }

    /// All live responses in progress.
    pub fn live_connections(&self) -> &LiveConnections {
        &self.live_connections
    }

    /// Waits until one of the server's duties has stopped unexpectedly. The server must then be stopped.
    pub async fn failed(&self) -> Stopped {
        let mut stopped = self.duties.stopped();
        match stopped.wait_for(Option::is_some).await.map(|stopped| stopped.clone()) {
            Ok(Some(stopped)) => stopped,
            // The supervisor has ended, so the server is already stopping.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Stops the server: accepts no new connections, tells waiting readers to reconnect, and waits for responses in
    /// progress. Connections still open after 10 s are cut.
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
        // Duties may hold the store, and the store has to be closed when this returns.
        self.duties.stop().await;
        self.capabilities.entities.leave().await;
        drop((self.capabilities, self.projects, self.live_connections));
        closed(self.lock).await;
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
            // A live response has its own timeout for slow readers, which must be able to expire first.
            write_timeout: self.write_timeout.max(slow_reader_timeout),
        }
    }
}

/// Waits until the store is closed: tasks that were cancelled hold it for a moment longer.
async fn closed(lock: Option<DirectoryLock>) {
    let Some(lock) = lock else { return };
    let closing = async {
        while lock.is_in_use() {
            tokio::time::sleep(CLOSING).await;
        }
    };
    if tokio::time::timeout(STOP_TIMEOUT, closing).await.is_err() {
        tracing::warn!("the store is still in use");
    }
}

/// Connects to the broker that the nodes of a cluster share. If it is away, the server starts all the same, and joins the
/// others when it is there.
async fn join_cluster(
    url: BusUrl,
    clock: &Arc<dyn Clock>,
    rng: &Arc<Rng>,
    metrics: &Metrics,
) -> Arc<dyn MessageBus> {
    let (clock, rng, metrics) = (clock.clone(), rng.clone(), metrics.clone());
    let bus =
        url.connect(tidings_broker::Options::default(), tidings_broker::Context { clock, rng, metrics });
    bus.attempted().await;
    Arc::new(bus)
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let unbound = |error| StartError::Listen { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(unbound)?;
    let address = listener.local_addr().map_err(unbound)?;
    Ok((listener, address))
}

/// Waits until the server is stopped or dropped.
async fn when_stopped(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stopped| stopped).await;
}

/// Waits until the server is dropped, so that metrics remain readable while it drains.
async fn when_dropped(mut stopped: watch::Receiver<bool>) {
    while stopped.changed().await.is_ok() {}
}

/// Opens the gate that admits requests. Fails if no request could ever be admitted.
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
