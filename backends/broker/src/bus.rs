//! [`BrokerBus`]: a message bus over a broker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tidings_engine::bus::messages::{Arrivals, BusError, Interest, Joined, MessageBus};
use tidings_model::limits;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;

use crate::connection;
use crate::link::Broker;
use crate::metrics::BusMetrics;
use crate::options::{Context, Options};
use crate::state::{Phase, State};

/// A message bus over a broker. It connects, again and again, until it is dropped, which ends it for all nodes.
pub struct BrokerBus {
    shared: Arc<Shared>,
    /// Whether the first attempt to connect has ended.
    attempted: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

/// What the bus, its nodes and its task share.
pub(crate) struct Shared {
    pub(crate) broker: Box<dyn Broker>,
    pub(crate) options: Options,
    pub(crate) context: Context,
    pub(crate) metrics: BusMetrics,
    state: Mutex<State>,
    /// There is something to send.
    pub(crate) work: Notify,
}

struct BrokerInterest {
    shared: Arc<Shared>,
    node: u64,
}

impl BrokerBus {
    /// Begins to connect. Call it within a Tokio runtime.
    pub fn start(broker: impl Broker, options: Options, context: Context) -> Self {
        let metrics = BusMetrics::new(&context.metrics);
        let (work, state) = (Notify::new(), Mutex::default());
        let shared = Arc::new(Shared { broker: Box::new(broker), options, context, metrics, state, work });
        let (has_attempted, attempted) = watch::channel(false);
        let task = tokio::spawn(connection::keep(shared.clone(), has_attempted));
        Self { shared, attempted, task }
    }

    /// Waits until the first attempt to connect has ended. Returns whether the bus is connected.
    pub async fn attempted(&self) -> bool {
        // An error means that the task has ended, so that there will be no attempt.
        let _ = self.attempted.clone().wait_for(|attempted| *attempted).await;
        matches!(self.shared.lock().phase, Phase::Connected)
    }

    fn queue(
        &self,
        channel: &str,
        message: Bytes,
    ) -> Result<oneshot::Receiver<Result<(), BusError>>, BusError> {
        let Shared { broker, options, context, .. } = &*self.shared;
        let max = broker.message_bytes_max(channel);
        if message.len() > max {
            return Err(BusError::TooLarge { bytes: message.len(), max });
        }
        let (answer, answered) = oneshot::channel();
        let at = context.clock.elapsed();
        let mut state = self.shared.lock();
        match &state.phase {
            Phase::Connected => {}
            Phase::Away => return Err(BusError::Failed("not connected to the broker".to_owned())),
            Phase::Ended => return Err(ended()),
        }
        state.queue.add(channel, message, answer, at, (options.queue_bytes, options.queue_messages))?;
        drop(state);
        self.shared.work.notify_one();
        Ok(answered)
    }
}

impl MessageBus for BrokerBus {
    fn publish<'a>(&'a self, channel: &'a str, message: Bytes) -> BoxFuture<'a, Result<(), BusError>> {
        let queued = self.queue(channel, message);
        Box::pin(async move {
            let result = match queued {
                Ok(answered) => answered.await.unwrap_or_else(|_| Err(ended())),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => self.shared.metrics.published.count(),
                Err(error) => return Err(self.shared.metrics.failure(error)),
            }
            Ok(())
        })
    }

    fn join(&self, bytes_max: usize) -> Joined {
        let (arriving, arrivals) = Arrivals::new(bytes_max);
        let node = self.shared.lock().join(arriving);
        let interest: Arc<dyn Interest> = Arc::new(BrokerInterest { shared: self.shared.clone(), node });
        Joined { interest, arrivals }
    }
}

impl Drop for BrokerBus {
    fn drop(&mut self) {
        self.task.abort();
        self.shared.lock().end();
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interest for BrokerInterest {
    fn subscribe(&self, channel: &str) -> BoxFuture<'static, Result<(), BusError>> {
        if channel.len() > limits::BUS_CHANNEL_BYTES {
            let max = limits::BUS_CHANNEL_BYTES;
            let error = format!("the name of a channel has {} bytes, and may have {max}", channel.len());
            return Box::pin(std::future::ready(Err(BusError::Failed(error))));
        }
        let (answer, answered) = oneshot::channel();
        self.shared.lock().subscribe(self.node, channel, answer);
        self.shared.work.notify_one();
        Box::pin(async move {
            let ended = || Err(BusError::Failed("the subscription has ended".to_owned()));
            answered.await.unwrap_or_else(|_| ended())
        })
    }

    fn unsubscribe(&self, channel: &str) {
        self.shared.lock().unsubscribe(self.node, channel);
        self.shared.work.notify_one();
    }

    fn is_in_effect(&self, channel: &str) -> bool {
        self.shared.lock().is_in_effect(self.node, channel)
    }
}

impl Drop for BrokerInterest {
    fn drop(&mut self) {
        self.shared.lock().leave(self.node);
        self.shared.work.notify_one();
    }
}

fn ended() -> BusError {
    BusError::Failed("the bus has ended".to_owned())
}
