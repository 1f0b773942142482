//! The contract of drivers: who subscribes to what, and how a message gets to them.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_engine::deliver::{BundleReader, FrameChunks};

use crate::answer::Answer;
use crate::envelope::PublishEnvelope;
use crate::error::Cause;
use crate::local::{EncodeError, Member};
use crate::policy::ClientId;
use crate::result::{Capability, PublishFailure, Sent};

/// An index of subscriptions and the way out for messages.
///
/// Promises of a driver, checked by the contract suite:
///
/// - A topic that is subscribed to may be a [pattern](crate::is_pattern). After `subscribe` has succeeded, each message that is
///   published under the topic, or under one that matches, reaches the member once, however many of its subscriptions match,
///   and messages of one publisher in the order in which they were published. Frames are held back until [`Member::release`].
/// - After `unsubscribe` has succeeded, none does that no other subscription matches. Both may be called again without harm.
/// - A call that fails has changed nothing.
/// - After `remove`, nothing is left of the member. It does not wait, may be called again, and is called again after
///   calls that were under way when the connection was closed.
/// - Every call ends: a driver that talks to something remote has a time limit.
///
/// Calls for one member and one topic are made one after the other.
pub trait PubSubDriver: Send + Sync + 'static {
    /// Name for error messages, for example `memory`.
    fn name(&self) -> &'static str;

    /// What the driver knows of the number of subscribers.
    fn capability(&self) -> Capability;

    /// Makes a connection known.
    fn connect(&self, client_id: ClientId) -> (Member, BundleReader);

    /// Subscribes a member to a topic.
    fn subscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<Handover, DriverError>>;

    /// Ends the subscription of a member to a topic.
    fn unsubscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<(), DriverError>>;

    /// Makes the frame of a message as members receive it. A driver that cannot has no history.
    fn encode(&self, _envelope: &PublishEnvelope) -> Result<FrameChunks, EncodeError> {
        Err(EncodeError("this driver has no frames".to_owned()))
    }

    /// Sends a message to all members that subscribe to its topic, on all nodes, but for an excluded one.
    fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
    ) -> Answer<'a, Result<Sent, PublishFailure>>;

    /// Asks whether a member subscribes to a topic, wherever that is known for certain.
    fn is_subscribed<'a>(&'a self, _member: &'a Member, _topic: &'a str) -> Answer<'a, Verification> {
        Answer::now(Verification::Unsupported)
    }

    /// Connections of this node that subscribe to a topic, in no particular order.
    fn local_subscribers(&self, topic: &str) -> Vec<ClientId>;

    /// Delivers a message that another node has sent to the members of this one. Returns their number.
    fn deliver_local(&self, envelope: &PublishEnvelope) -> usize;

    /// Number of connections that a message under the topic would reach, on all nodes.
    fn count<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<Count, DriverError>>;

    /// Forgets a member.
    fn remove(&self, member: &Member);
}

/// Messages that come in from other nodes.
pub trait BrokerConsumer: Send + Sync + 'static {
    /// Starts to pass messages to `deliver`. Ends with the result's [`Consumption::stop`].
    fn start(&self, deliver: Deliver) -> BoxFuture<'_, Result<Box<dyn Consumption>, DriverError>>;
}

/// A consumer that was started.
pub trait Consumption: Send + Sync + 'static {
    /// Ends the consumer. After it has resolved, `deliver` is not called any more.
    fn stop(self: Box<Self>) -> BoxFuture<'static, ()>;
}

/// Delivers a message of another node to the members of this one. Returns their number.
pub type Deliver = Arc<dyn Fn(&PublishEnvelope) -> usize + Send + Sync>;

/// Who receives a published message, and how it is to be routed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route<'a> {
    /// A member that does not receive it.
    pub exclude: Option<&'a Member>,
    /// A hint for drivers that have partitions.
    pub partition_key: Option<&'a str>,
}

/// How far a subscription is.
pub enum Handover {
    /// It is in effect.
    Settled,
    /// It is in effect on this node, and the future tells whether it is everywhere. It may be awaited in a task of the
    /// current Tokio runtime.
    Confirming(BoxFuture<'static, Result<(), DriverError>>),
}

/// A failure of a driver.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct DriverError {
    /// A sentence for people.
    pub message: String,
    /// Whether another attempt may succeed; `None` if the driver does not know.
    pub transient: Option<bool>,
    /// The failure below, if there is one.
    #[source]
    pub cause: Option<Cause>,
    /// Whether the failure is that the connection is closed.
    pub closed: bool,
    /// Whether the failure is that there are too many patterns that one topic can match.
    pub too_many_patterns: bool,
}

/// What a driver knows of a subscription.
#[derive(Clone, Debug)]
pub enum Verification {
    /// The connection subscribes to the topic.
    Subscribed,
    /// The connection does not subscribe to the topic.
    Unsubscribed,
    /// The driver cannot tell.
    Unsupported,
    /// The driver failed; another attempt may succeed.
    Error(DriverError),
    /// The driver did not answer in time.
    Timeout,
}

/// A number of subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The number; 0 if it is unknown.
    pub subscribers: u64,
    /// What it means.
    pub capability: Capability,
}

impl DriverError {
    /// A failure with a sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            transient: None,
            cause: None,
            closed: false,
            too_many_patterns: false,
        }
    }

    /// The failure of a member whose connection is closed.
    pub fn closed() -> Self {
        Self { closed: true, ..Self::new("the connection is closed") }
    }

    /// The failure of a pattern that would make publishing too expensive.
    pub fn too_many_patterns() -> Self {
        let message = "there are too many patterns that one topic can match";
        Self { too_many_patterns: true, ..Self::new(message).transient(false) }
    }

    /// Says whether another attempt may succeed.
    pub fn transient(self, transient: bool) -> Self {
        Self { transient: Some(transient), ..self }
    }
}

impl Verification {
    /// The result as it is written on the wire.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Subscribed => "subscribed",
            Self::Unsubscribed => "unsubscribed",
            Self::Unsupported => "unsupported",
            Self::Error(_) => "error",
            Self::Timeout => "timeout",
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Settled => "Settled",
            Self::Confirming(_) => "Confirming",
        })
    }
}
