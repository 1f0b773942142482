//! One running server: store, capabilities and routes put together, listening.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tidings_api::{Api, Drain, Gate, GateOptions, MetricsAccess, Observe, Spans};
use tidings_embedded::{DirectoryLock, Embedded, Folder, OpenError};
use tidings_engine::log::Memory;
use tidings_engine::metrics::{Kind, Name};
use tidings_engine::{Bus, Chance, Clock, LimitHits, Metrics};
use tidings_model::limits;
use tidings_streams::{Options, Store, Streams, Table};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connections::{self, ConnectionOptions, Connections, Counts};
use crate::http::Http;
use crate::tls::{Tls, TlsError, TlsOptions};
use crate::usage;

/// How often expired streams are swept up. Nobody sees them once they are due, so this is only about space.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

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
    /// Seed of what is left to chance.
    pub seed: u64,
    /// How streams are set.
    pub streams: Options,
    /// What clients may not exceed.
    pub limits: LimitOptions,
    /// Certificate and key, to speak TLS.
    pub tls: Option<TlsOptions>,
    /// What operators see.
    pub observe: ObserveOptions,
}

/// What clients may not exceed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// Requests of one project in a second; 0 lets all pass.
    pub requests_per_second: u32,
    /// Connections at a time.
    pub connections: usize,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// How long the first request's head of a connection may take.
    pub head_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            requests_per_second: limits::REQUESTS_PER_SECOND,
            connections: limits::CONNECTIONS,
            header_bytes: limits::HEADER_BYTES,
            head_timeout: limits::HEAD_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
        }
    }
}

/// What operators see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Where metrics, and nothing of clients, are served without credentials.
    pub metrics_listen: Option<SocketAddr>,
    /// Who may read the metrics where clients are served.
    pub metrics_access: MetricsAccess,
    /// Whether each request has a span, for those who export traces.
    pub spans: Spans,
}

impl Default for ObserveOptions {
    fn default() -> Self {
        Self { metrics_listen: None, metrics_access: MetricsAccess::AdminKey, spans: Spans::No }
    }
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    bus: Bus,
    metrics: Metrics,
    drain: Drain,
    tls: Option<Arc<Tls>>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    /// Serves metrics on a listener of its own until the very end.
    serving_metrics: Option<JoinHandle<()>>,
    keeping_house: JoinHandle<()>,
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
        let opened = open_store(options.store, &bus, &clock, &metrics)?;
        let streams = Streams::new(opened.store, bus.clone(), clock.clone(), options.streams);
        let (drain, drained) = Drain::new();
        let keeping_house = tokio::spawn(keep_house(streams.clone(), clock.clone(), opened.tend));
        let chance = Arc::new(Chance::seeded(options.seed));
        let observe = Arc::new(Observe::new(&metrics, clock.clone(), &chance, options.observe.spans));
        let gate = Arc::new(Gate::new(options.limits.gate(), clock));
        let metrics_access = options.observe.metrics_access;
        let api = Api { streams, chance, drained, gate, observe, metrics_access };
        let (stop, stopped) = watch::channel(false);
        let serving = {
            let router = tidings_api::router(api.clone());
            let shared = connections(router, options.limits.connections(), tls.clone(), &metrics);
            tokio::spawn(connections::serve(listener, shared, when_stopped(stopped.clone())))
        };
        let serve_metrics = |(listener, address): (TcpListener, SocketAddr)| {
            let settings = ConnectionOptions {
                connections: limits::METRICS_CONNECTIONS,
                ..options.limits.connections()
            };
            let shared = connections(tidings_api::operators_router(api), settings, None, &Metrics::new());
            (address, tokio::spawn(connections::serve(listener, shared, when_dropped(stopped))))
        };
        let (metrics_address, serving_metrics) = metrics_listener.map(serve_metrics).unzip();
        Ok(Self {
            address,
            metrics_address,
            bus,
            metrics,
            drain,
            tls,
            stop,
            serving,
            serving_metrics,
            keeping_house,
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

    /// Reads certificate and key again, for connections that come from now on.
    pub fn reload_tls(&self) -> Result<(), TlsError> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.reload())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who waits for what.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Takes no new connections, tells waiting readers to come again, and returns when all answers are out, or when
    /// it has waited long enough for those that do not take theirs.
    pub async fn stop(mut self) -> io::Result<()> {
        self.drain.begin();
        self.stop.send_replace(true);
        let served = match tokio::time::timeout(STOP_TIMEOUT, &mut self.serving).await {
            Ok(served) => served.map_err(io::Error::other),
            Err(_) => {
                tracing::warn!("some connections did not end by themselves and are cut");
                self.serving.abort();
                Ok(())
            }
        };
        if let Some(serving_metrics) = self.serving_metrics {
            serving_metrics.abort();
        }
        self.keeping_house.abort();
        // It may hold the store; who stops the server wants the store closed.
        let _ = self.keeping_house.await;
        served
    }
}

impl LimitOptions {
    fn gate(&self) -> GateOptions {
        GateOptions { header_bytes: self.header_bytes, requests_per_second: self.requests_per_second }
    }

    fn connections(&self) -> ConnectionOptions {
        ConnectionOptions {
            connections: self.connections,
            header_bytes: self.header_bytes,
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
        }
    }
}

async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let unbound = |error| StartError::Listen { listen, error };
    let listener = TcpListener::bind(listen).await.map_err(unbound)?;
    let address = listener.local_addr().map_err(unbound)?;
    Ok((listener, address))
}

fn connections(
    router: Router,
    options: ConnectionOptions,
    tls: Option<Arc<Tls>>,
    metrics: &Metrics,
) -> Arc<Connections> {
    let http = Http::new(router, &options, LimitHits::new(metrics));
    Arc::new(Connections { options, http, tls, counts: Counts::new(metrics) })
}

/// Resolves when the server stops; one that is dropped stops too.
async fn when_stopped(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stopped| stopped).await;
}

/// Resolves when the server is gone: whoever watches it sees it drain.
async fn when_dropped(mut stopped: watch::Receiver<bool>) {
    while stopped.changed().await.is_ok() {}
}

/// A store that was opened, with what belongs to it.
struct Opened {
    store: Arc<dyn Store>,
    lock: Option<DirectoryLock>,
    tend: Tend,
}

/// Gives space back, where the store can.
type Tend = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

fn open_store(
    choice: StoreChoice,
    bus: &Bus,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Opened, OpenError> {
    const STREAMS: Name = Name { name: "tidings_streams", help: "Streams in the store." };
    match choice {
        StoreChoice::Memory => {
            let store = Arc::new(Memory::<Table>::new(bus.clone(), clock.clone()));
            let counted = store.clone();
            let streams = move || counted.look(|table: &Table, _| table.len()) as f64;
            metrics.compute(STREAMS, Kind::Gauge, &[], streams);
            Ok(Opened { store, lock: None, tend: Arc::new(|| Ok(())) })
        }
        StoreChoice::Embedded { data, options } => {
            let lock = DirectoryLock::take(&data)?;
            let disk = Arc::new(Folder::new(data));
            let secret = RandomState::new().hash_one(0);
            let options = tidings_embedded::Options { secret, metrics: metrics.clone(), ..options };
            let store = Embedded::<Table>::open(disk, options, bus.clone(), clock.clone())?;
            let (tended, counted) = (store.clone(), store.downgrade());
            let streams = move || {
                counted.upgrade().map_or(0, |store| store.look(|table: &Table, _| table.len())) as f64
            };
            metrics.compute(STREAMS, Kind::Gauge, &[], streams);
            Ok(Opened { store: Arc::new(store), lock: Some(lock), tend: Arc::new(move || tended.tend()) })
        }
    }
}

/// Ends what has expired, and lets the store give space back, again and again.
async fn keep_house(streams: Streams, clock: Arc<dyn Clock>, tend: Tend) {
    let mut tended = clock.now();
    loop {
        clock.sleep(SWEEP_INTERVAL).await;
        match streams.sweep().await {
            Ok(swept) if swept.removed > 0 => tracing::debug!(removed = swept.removed, "swept streams"),
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
