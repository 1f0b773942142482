//! Ephemeral messages between nodes: what is published on a channel reaches the nodes that have subscribed to it.
//!
//! Nothing is stored. A node whose arrivals are full loses messages and is told so, so that no node can slow down or
//! fill the memory of another. [`LocalMessages`] is the bus of a single process, and the reference for brokers. What all
//! of them promise is tested by the suite in `contract`.

mod arrivals;
mod local;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
#[cfg(doc)]
use tidings_model::limits;

pub use arrivals::{Arrival, Arrivals, Arriving};
pub use local::LocalMessages;

/// A bus that carries messages between nodes.
///
/// - A message that is published after [`Interest::subscribe`] has resolved reaches that node at most once, and exactly
///   once while nothing fails. The publisher itself is no exception. One that was accepted before the call does not.
/// - The messages of one publisher on one channel arrive in the order of the calls of [`MessageBus::publish`].
/// - The name of a channel is any text of at most [`limits::BUS_CHANNEL_BYTES`] bytes and means itself only, never a pattern. A
///   message is any bytes.
/// - A node is told when it has lost messages, or may have: see [`Arrival::Lost`].
/// - Neither a node that does not take its messages nor a broker that does not answer makes anybody else wait without an
///   end, or fills the memory.
pub trait MessageBus: Send + Sync + 'static {
    /// Publishes a message. The call itself queues it; the future resolves when the bus has accepted it. After an error it
    /// may have been published all the same, if it was on its way when the bus failed.
    fn publish<'a>(&'a self, channel: &'a str, message: Bytes) -> BoxFuture<'a, Result<(), BusError>>;

    /// Joins as a node, which keeps at most so many bytes of messages that it has not taken.
    fn join(&self, bytes_max: usize) -> Joined;
}

/// What a node has after it has joined.
pub struct Joined {
    /// The channels that it subscribes to.
    pub interest: Arc<dyn Interest>,
    /// What arrives there.
    pub arrivals: Arrivals,
}

/// The channels that a node has subscribed to. They end when the [`Arrivals`] are dropped.
pub trait Interest: Send + Sync + 'static {
    /// Subscribes to a channel. The call itself begins it; the future resolves when it is in effect, which takes as long
    /// as the broker is away. It stays until it is ended, also over failures of the broker. An error means that it was
    /// refused or ended.
    fn subscribe(&self, channel: &str) -> BoxFuture<'static, Result<(), BusError>>;

    /// Ends the subscription to a channel. Messages that are on their way may still arrive, but none after a later
    /// subscription of the node has come into effect.
    fn unsubscribe(&self, channel: &str);

    /// Whether a subscription to the channel is in effect now, so that messages can arrive.
    fn is_in_effect(&self, channel: &str) -> bool;
}

/// Why the bus has not done something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BusError {
    /// The queue of outgoing messages is full.
    #[error("the queue of the bus is full")]
    Full,
    /// The message is larger than what the bus carries.
    #[error("the message has {bytes} bytes, and the bus carries at most {max}")]
    TooLarge {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes that a message may have.
        max: usize,
    },
    /// The bus failed.
    #[error("the bus failed: {0}")]
    Failed(String),
}
