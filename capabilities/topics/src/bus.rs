//! The driver of several nodes: subscriptions are local, and messages travel over a bus.
//!
//! A node tells the bus which topics its members subscribe to. What is published here is delivered here at once and
//! sent to the bus; what comes back from there is recognised by the node's number and not delivered again. For its
//! patterns a node subscribes to a channel of all messages, to which the others send while they know of it (`nodes`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::time::Duration;
use tidings_engine::Clock;
use tidings_engine::bus::messages::{Arrival, Arrivals, BusError, Interest, Joined, MessageBus};
use tidings_engine::deliver::BundleReader;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::driver::{
    BrokerConsumer, Consumption, Count, Deliver, DriverError, Handover, PubSubDriver, Route, Verification,
};
use crate::envelope::PublishEnvelope;
use crate::local::{Local, Member};
use crate::nodes::Nodes;
use crate::parcel;
use crate::policy::ClientId;
use crate::result::{Capability, PublishError, PublishFailure, Sent};
use crate::topic::is_pattern;

/// A driver over a [`MessageBus`]. Numbers are those of this node, so they are lower bounds.
pub struct BusDriver {
    local: Local,
    nodes: Arc<Nodes>,
    /// Begins the name of each channel.
    prefix: Arc<str>,
    bus: Arc<dyn MessageBus>,
    interest: Arc<dyn Interest>,
    state: Mutex<State>,
}

/// Receives what other nodes publish.
pub struct BusConsumer {
    nodes: Arc<Nodes>,
    /// `None` while the consumer is started.
    arrivals: Arc<Mutex<Option<Arrivals>>>,
    lost: Arc<AtomicU64>,
}

/// How a node joins a bus.
#[derive(Clone)]
pub struct BusOptions {
    /// A number that no other node on the bus has.
    pub node: u64,
    /// Begins the name of each channel, so that others may use the same bus.
    pub prefix: Arc<str>,
    /// Bytes of messages that have arrived and wait to be delivered, beyond which further ones are lost.
    pub arrivals_bytes: usize,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Time after which a node that says nothing is taken to be gone.
    pub lease: Duration,
}

#[derive(Default)]
struct State {
    /// Channels of the topics that a member of this node subscribes to; all patterns share one.
    channels: HashMap<Box<str>, Topic>,
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
        let BusOptions { node, prefix, arrivals_bytes, clock, lease } = options;
        let Joined { interest, arrivals } = bus.join(arrivals_bytes);
        let nodes = Arc::new(Nodes::new(node, &prefix, bus.clone(), interest.clone(), clock, lease));
        let arrivals = Arc::new(Mutex::new(Some(arrivals)));
        let consumer = BusConsumer { nodes: nodes.clone(), arrivals, lost: Arc::default() };
        (Self { local, nodes, prefix, bus, interest, state: Mutex::default() }, consumer)
    }

    /// Number of channels that this node has subscribed to for its members.
    pub fn channels(&self) -> usize {
        self.lock().channels.len()
    }

    /// The channel of a topic, or that of all patterns.
    fn channel(&self, topic: &str) -> String {
        if is_pattern(topic) { self.nodes.all().to_owned() } else { format!("{}{topic}", self.prefix) }
    }

    /// Begins a subscription at the bus.
    fn begin(&self, channel: &str) -> Shared<BoxFuture<'static, Result<(), BusError>>> {
        let confirmed = self.interest.subscribe(channel);
        if channel != self.nodes.all() {
            return confirmed.shared();
        }
        // Said when it is in effect, so that what is sent because of it arrives.
        let nodes = self.nodes.clone();
        let known = async move {
            confirmed.await?;
            nodes.want_all(true).await
        };
        known.boxed().shared()
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
        let channel = self.channel(topic);
        let Some(entry) = state.channels.get_mut(&*channel) else { return };
        entry.members -= 1;
        if entry.members == 0 {
            state.channels.remove(&*channel);
            self.interest.unsubscribe(&channel);
            if is_pattern(topic) {
                // Queued by the call. If it is lost, the others stop when this node has not asked for it for long.
                let _ = self.nodes.want_all(false).now_or_never();
            }
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
        if let Err(error) = member.enter(topic) {
            return Answer::now(Err(error));
        }
        let is_new = state.members.entry(member.number()).or_default().insert(topic.clone());
        let channel = self.channel(topic);
        let begin = || Topic { members: 0, confirmation: self.begin(&channel) };
        let entry = state.channels.entry(channel.as_str().into()).or_insert_with(begin);
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
            let parcel = parcel::pack(self.nodes.node, self.nodes.next_number(), envelope);
            let channel = self.channel(&envelope.topic);
            // Both are queued before one is waited for.
            let copy = self.nodes.is_all_wanted().then(|| self.bus.publish(self.nodes.all(), parcel.clone()));
            let sent = self.bus.publish(&channel, parcel);
            let sent = async {
                let copied = match copy {
                    Some(copy) => copy.await,
                    None => Ok(()),
                };
                sent.await.and(copied)
            };
            match sent.await {
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
            let (home, nodes, lost) = (self.arrivals.clone(), self.nodes.clone(), self.lost.clone());
            let task = tokio::spawn(async move {
                let arrivals = consume(arrivals, stopped, &nodes, &lost, &deliver).await;
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
    nodes: &Nodes,
    lost: &AtomicU64,
    deliver: &Deliver,
) -> Arrivals {
    let mut talk = std::pin::pin!(talk(nodes));
    loop {
        let arrival = tokio::select! {
            biased;
            _ = &mut stopped => return arrivals,
            arrival = arrivals.next() => arrival,
            () = &mut talk => None,
        };
        match arrival {
            Some(Arrival::Message { channel, message }) if nodes.is_notes(&channel) => {
                if nodes.heard(&message) {
                    // Queued by the first poll; what has arrived does not wait for the bus.
                    let _ = nodes.say_again().now_or_never();
                }
            }
            Some(Arrival::Message { channel, message }) => match parcel::unpack(message) {
                Ok((sender, ..)) if sender == nodes.node => {}
                Ok((sender, number, envelope)) => {
                    if nodes.is_first(sender, number) {
                        deliver(&envelope);
                    }
                }
                Err(error) => tracing::warn!(%channel, %error, "a message from the bus is not readable"),
            },
            Some(Arrival::Lost { at_least }) => {
                if at_least == 0 {
                    tracing::warn!("messages of other nodes may have been lost: the bus was away");
                } else {
                    lost.fetch_add(at_least, Ordering::Relaxed);
                    tracing::warn!(at_least, "messages of other nodes were lost: this node is too slow");
                }
                let _ = nodes.lost().now_or_never();
            }
            None => {
                // The bus has ended; whoever started the consumer stops it.
                let _ = (&mut stopped).await;
                return arrivals;
            }
        }
    }
}

/// Tells the other nodes of this one, for ever.
async fn talk(nodes: &Nodes) {
    nodes.join().await;
    loop {
        nodes.clock().sleep(nodes.interval()).await;
        nodes.say_again().await;
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
