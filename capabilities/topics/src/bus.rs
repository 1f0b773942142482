//! The driver of several nodes: subscriptions are local, and messages travel over a bus.
//!
//! A node tells the bus which topics its members subscribe to. What is published here is delivered here at once and
//! sent to the bus; what comes back from there is recognised by the node's number and not delivered again.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tidings_engine::bus::messages::{Arrival, Arrivals, BusError, Interest, Joined, MessageBus};
use tidings_engine::deliver::BundleReader;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::driver::{
    BrokerConsumer, Consumption, Count, Deliver, DriverError, Handover, PubSubDriver, Route, Verification,
};
use crate::envelope::PublishEnvelope;
use crate::local::{Local, Member};
use crate::parcel;
use crate::policy::ClientId;
use crate::result::{Capability, PublishError, PublishFailure, Sent};

/// A driver over a [`MessageBus`]. Numbers are those of this node, so they are lower bounds.
pub struct BusDriver {
    local: Local,
    node: u64,
    /// Begins the name of each channel.
    prefix: Arc<str>,
    bus: Arc<dyn MessageBus>,
    interest: Arc<dyn Interest>,
    state: Mutex<State>,
}

/// Receives what other nodes publish.
pub struct BusConsumer {
    node: u64,
    /// `None` while the consumer is started.
    arrivals: Arc<Mutex<Option<Arrivals>>>,
    lost: Arc<AtomicU64>,
}

/// How a node joins a bus.
#[derive(Clone, Debug)]
pub struct BusOptions {
    /// A number that no other node on the bus has.
    pub node: u64,
    /// Begins the name of each channel, so that others may use the same bus.
    pub prefix: Arc<str>,
    /// Bytes of messages that have arrived and wait to be delivered, beyond which further ones are lost.
    pub arrivals_bytes: usize,
}

#[derive(Default)]
struct State {
    /// Topics that a member of this node subscribes to.
    topics: HashMap<Arc<str>, Topic>,
    /// Topics of each member.
    members: HashMap<u64, HashSet<Arc<str>>>,
}

struct Topic {
    members: usize,
    confirmation: Shared<BoxFuture<'static, Result<(), BusError>>>,
}

impl BusDriver {
    /// Joins the bus. The consumer must be started for messages of other nodes to arrive.
    pub fn join(local: Local, bus: Arc<dyn MessageBus>, options: BusOptions) -> (Self, BusConsumer) {
        let BusOptions { node, prefix, arrivals_bytes } = options;
        let Joined { interest, arrivals } = bus.join(arrivals_bytes);
        let consumer =
            BusConsumer { node, arrivals: Arc::new(Mutex::new(Some(arrivals))), lost: Arc::default() };
        (Self { local, node, prefix, bus, interest, state: Mutex::default() }, consumer)
    }

    /// Number of topics that this node has subscribed to at the bus.
    pub fn topics(&self) -> usize {
        self.lock().topics.len()
    }

    fn channel(&self, topic: &str) -> String {
        format!("{}{topic}", self.prefix)
    }

    fn leave(&self, state: &mut State, number: u64, topic: &str) {
        let Some(topics) = state.members.get_mut(&number) else { return };
        if !topics.remove(topic) {
            return;
        }
        if topics.is_empty() {
            state.members.remove(&number);
        }
        self.release(state, topic);
    }

    /// Counts one member less of a topic.
    fn release(&self, state: &mut State, topic: &str) {
        let Some(entry) = state.topics.get_mut(topic) else { return };
        entry.members -= 1;
        if entry.members == 0 {
            state.topics.remove(topic);
            self.interest.unsubscribe(&self.channel(topic));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure of a driver whose bus failed.
fn failure(error: BusError) -> DriverError {
    DriverError {
        cause: Some(Arc::new(error.clone())),
        ..DriverError::new(error.to_string()).transient(true)
    }
}

impl PubSubDriver for BusDriver {
    fn name(&self) -> &'static str {
        "bus"
    }

    fn capability(&self) -> Capability {
        Capability::Estimate
    }

    fn connect(&self, client_id: ClientId) -> (Member, BundleReader) {
        self.local.connect(client_id)
    }

    fn subscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<Handover, DriverError>> {
        // Under the lock, so that a removal comes before or after all of it.
        let mut state = self.lock();
        if member.enter(topic).is_err() {
            return Answer::now(Err(DriverError::closed()));
        }
        let is_new = state.members.entry(member.number()).or_default().insert(topic.clone());
        let entry = state.topics.entry(topic.clone()).or_insert_with(|| {
            let confirmation = self.interest.subscribe(&self.channel(topic));
            Topic { members: 0, confirmation: confirmation.shared() }
        });
        entry.members += usize::from(is_new);
        let confirmation = entry.confirmation.clone();
        drop(state);
        Answer::now(match confirmation.clone().now_or_never() {
            Some(Ok(())) => Ok(Handover::Settled),
            Some(Err(error)) => {
                // A call that fails leaves nothing.
                member.leave(topic);
                self.leave(&mut self.lock(), member.number(), topic);
                Err(failure(error))
            }
            None => Ok(Handover::Confirming(Box::pin(async move { confirmation.await.map_err(failure) }))),
        })
    }

    fn unsubscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<(), DriverError>> {
        let mut state = self.lock();
        member.leave(topic);
        self.leave(&mut state, member.number(), topic);
        Answer::now(Ok(()))
    }

    fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
    ) -> Answer<'a, Result<Sent, PublishFailure>> {
        let frame = match self.local.encode(envelope) {
            Ok(frame) => frame,
            Err(error) => return Answer::now(Err(error.into_failure(self.name()))),
        };
        Answer::later(async move {
            let parcel = parcel::pack(self.node, envelope);
            match self.bus.publish(&self.channel(&envelope.topic), parcel).await {
                Ok(()) => {
                    let matched = self.local.send(&envelope.topic, frame, route.exclude);
                    Ok(Sent::at_least(matched as u64))
                }
                Err(BusError::Full) => Err(PublishFailure::new(PublishError::Backpressure).by(self.name())),
                Err(BusError::TooLarge { max, .. }) => {
                    Err(PublishFailure::new(PublishError::PayloadTooLarge).with("limit", max).by(self.name()))
                }
                Err(error @ BusError::Failed(_)) => Err(PublishFailure::new(PublishError::AdapterError)
                    .with("transient", true)
                    .by(self.name())
                    .because(error)),
            }
        })
    }

    /// A subscription that the bus has lost, or that it has not confirmed yet, is not verified.
    fn is_subscribed<'a>(&'a self, member: &'a Member, topic: &'a str) -> Answer<'a, Verification> {
        let state = self.lock();
        let is_in = state.members.get(&member.number()).is_some_and(|topics| topics.contains(topic));
        if !is_in || !member.is_in(topic) {
            return Answer::now(Verification::Unsubscribed);
        }
        drop(state);
        Answer::now(if self.interest.is_in_effect(&self.channel(topic)) {
            Verification::Subscribed
        } else {
            let error = DriverError::new("the subscription is not in effect at the bus now");
            Verification::Error(error.transient(true))
        })
    }

    fn local_subscribers(&self, topic: &str) -> Vec<ClientId> {
        self.local.clients(topic)
    }

    fn deliver_local(&self, envelope: &PublishEnvelope) -> usize {
        self.local.deliver_or_log(envelope)
    }

    fn count<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<Count, DriverError>> {
        let subscribers = self.local.subscribers(topic) as u64;
        Answer::now(Ok(Count { subscribers, capability: Capability::Estimate }))
    }

    fn remove(&self, member: &Member) {
        let mut state = self.lock();
        self.local.remove(member);
        for topic in state.members.remove(&member.number()).unwrap_or_default() {
            self.release(&mut state, &topic);
        }
    }
}

impl BusConsumer {
    /// Messages of other nodes that were lost, because this node did not take them fast enough.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// A consumer that runs in a task.
struct Running {
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl BrokerConsumer for BusConsumer {
    fn start(&self, deliver: Deliver) -> BoxFuture<'_, Result<Box<dyn Consumption>, DriverError>> {
        let taken = self.arrivals.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let Some(arrivals) = taken else {
                return Err(DriverError::new("the consumer is started already"));
            };
            let (stop, stopped) = oneshot::channel();
            let (home, node, lost) = (self.arrivals.clone(), self.node, self.lost.clone());
            let task = tokio::spawn(async move {
                let arrivals = consume(arrivals, stopped, node, &lost, &deliver).await;
                // So that the consumer can be started again.
                *home.lock().unwrap_or_else(PoisonError::into_inner) = Some(arrivals);
            });
            Ok(Box::new(Running { stop, task }) as Box<dyn Consumption>)
        })
    }
}

async fn consume(
    mut arrivals: Arrivals,
    mut stopped: oneshot::Receiver<()>,
    node: u64,
    lost: &AtomicU64,
    deliver: &Deliver,
) -> Arrivals {
    loop {
        let arrival = tokio::select! {
            biased;
            _ = &mut stopped => return arrivals,
            arrival = arrivals.next() => arrival,
        };
        match arrival {
            Some(Arrival::Message { channel, message }) => match parcel::unpack(message) {
                Ok((sender, _)) if sender == node => {}
                Ok((_, envelope)) => {
                    deliver(&envelope);
                }
                Err(error) => tracing::warn!(%channel, %error, "a message from the bus is not readable"),
            },
            Some(Arrival::Lost { at_least: 0 }) => {
                tracing::warn!("messages of other nodes may have been lost: the bus was away");
            }
            Some(Arrival::Lost { at_least }) => {
                lost.fetch_add(at_least, Ordering::Relaxed);
                tracing::warn!(at_least, "messages of other nodes were lost: this node is too slow");
            }
            None => {
                // The bus has ended; whoever started the consumer stops it.
                let _ = (&mut stopped).await;
                return arrivals;
            }
        }
    }
}

impl Consumption for Running {
    fn stop(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // An error means that the task has ended.
            let _ = self.stop.send(());
            let _ = self.task.await;
        })
    }
}
