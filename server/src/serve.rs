//! One running server: store, capabilities and routes put together, listening.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::ListenerExt;
use tidings_api::{Api, Drain};
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Chance, Clock};
use tidings_streams::{Options, Streams, Table};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How often expired streams are swept up. Nobody sees them once they are due, so this is only about space.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What a server is made of.
pub struct ServerOptions {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Seed of what is left to chance.
    pub seed: u64,
    /// How streams are set.
    pub streams: Options,
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    bus: Bus,
    drain: Drain,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<()>>,
    sweeping: JoinHandle<()>,
}

impl Server {
    /// Binds the address and begins to serve.
    pub async fn start(options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(options.listen).await?;
        let address = listener.local_addr()?;
        let bus = Bus::new();
        let store = Memory::<Table>::new(bus.clone(), options.clock.clone());
        let streams = Streams::new(Arc::new(store), bus.clone(), options.clock.clone(), options.streams);
        let (drain, drained) = Drain::new();
        let (stop, stopped) = oneshot::channel::<()>();
        let sweeping = tokio::spawn(sweep(streams.clone(), options.clock));
        let chance = Arc::new(Chance::seeded(options.seed));
        let router = tidings_api::router(Api { streams, chance, drained });
        // Small answers must not wait for the acknowledgement of the ones before.
        let listener = listener.tap_io(|socket| {
            if let Err(error) = socket.set_nodelay(true) {
                tracing::debug!(%error, "a socket keeps its delay");
            }
        });
        let serving = tokio::spawn(async move {
            let stopped = async {
                // A server that is dropped stops too.
                let _ = stopped.await;
            };
            axum::serve(listener, router).with_graceful_shutdown(stopped).await
        });
        Ok(Self { address, bus, drain, stop, serving, sweeping })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who waits for what.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Takes no new connections, tells waiting readers to come again, and returns when all answers are out.
    pub async fn stop(self) -> io::Result<()> {
        self.drain.begin();
        // An error means that serving has ended by itself; then its result tells.
        let _ = self.stop.send(());
        let served = self.serving.await.map_err(io::Error::other)?;
        self.sweeping.abort();
        served
    }
}

async fn sweep(streams: Streams, clock: Arc<dyn Clock>) {
    loop {
        clock.sleep(SWEEP_INTERVAL).await;
        match streams.sweep().await {
            Ok(swept) if swept.removed > 0 => tracing::debug!(removed = swept.removed, "swept streams"),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "could not sweep streams; trying again later"),
        }
    }
}
