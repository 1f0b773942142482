//! The subscriptions of this node: names in the engine's rings, and the members that subscribe to them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tidings_engine::deliver::{Bundle, BundleReader, FrameChunks, Patterns, Refused, Rings};
use tidings_model::Pattern;

use crate::driver::DriverError;
use crate::envelope::{Payload, PublishEnvelope};
use crate::policy::ClientId;
use crate::presence::{Announce, Passing, PresentMember};
use crate::result::{PublishError, PublishFailure};
use crate::topic::is_pattern;

/// Makes the frame of a message that subscribers receive, once for all of them. Frames must be told apart by their bytes,
/// unless the rings are [`Rings::unjoined`].
pub trait Encode: Send + Sync + 'static {
    /// Encodes a message.
    fn encode(&self, envelope: &PublishEnvelope) -> Result<FrameChunks, EncodeError>;
}

/// A message that cannot be encoded.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the message cannot be encoded: {0}")]
pub struct EncodeError(pub String);

impl EncodeError {
    /// The failure of a publish whose message cannot be encoded.
    pub(crate) fn into_failure(self, adapter: &'static str) -> PublishFailure {
        PublishFailure::new(PublishError::Validation).with("reason", "encoding").by(adapter).because(self)
    }
}

/// A text of JSON for each frame: `{"type", "meta": {.., "topic"}, "payload"}`. Binary payloads are refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonText;

/// The local part of a driver. All that it does is done when the call returns.
#[derive(Clone)]
pub struct Local {
    rings: Rings,
    patterns: Patterns,
    scope: Arc<str>,
    encode: Arc<dyn Encode>,
    behind_max: u64,
    members: Arc<Mutex<HashMap<u64, ClientId>>>,
}

/// A connection as drivers see it.
#[derive(Clone)]
pub struct Member {
    client_id: ClientId,
    scope: Arc<str>,
    bundle: Bundle,
    patterns: Patterns,
}

impl Local {
    /// Keeps the subscriptions of one scope in rings that other scopes may share. A member that is more than
    /// `behind_max` bytes behind is disconnected.
    pub fn new(rings: Rings, scope: impl Into<Arc<str>>, encode: Arc<dyn Encode>, behind_max: u64) -> Self {
        let patterns = rings.patterns();
        Self { rings, patterns, scope: scope.into(), encode, behind_max, members: Arc::default() }
    }

    /// Makes a connection a member without subscriptions.
    pub fn connect(&self, client_id: ClientId) -> (Member, BundleReader) {
        let (bundle, reader) = self.rings.bundle(self.behind_max);
        self.lock().insert(bundle.number(), client_id.clone());
        let (scope, patterns) = (self.scope.clone(), self.patterns.clone());
        (Member { client_id, scope, bundle, patterns }, reader)
    }

    /// Forgets a member.
    pub fn remove(&self, member: &Member) {
        self.lock().remove(&member.bundle.number());
        member.bundle.seal();
    }

    /// Forgets the name of a member that never subscribes to anything.
    pub(crate) fn forget(&self, member: &Member) {
        self.lock().remove(&member.bundle.number());
    }

    /// Delivers a message to the members that subscribe to its topic, but for an excluded one. Returns their
    /// number.
    pub fn deliver(
        &self,
        envelope: &PublishEnvelope,
        exclude: Option<&Member>,
    ) -> Result<usize, EncodeError> {
        if !self.patterns.has_subscribers(&envelope.topic, &name(&self.scope, &envelope.topic)) {
            return Ok(0);
        }
        Ok(self.send(&envelope.topic, self.encode(envelope)?, exclude))
    }

    /// As [`Local::deliver`] without exception. A message that cannot be encoded is logged.
    pub fn deliver_or_log(&self, envelope: &PublishEnvelope) -> usize {
        self.deliver(envelope, None).unwrap_or_else(|error| {
            tracing::warn!(topic = envelope.topic, %error, "a message of another node is not delivered");
            0
        })
    }

    /// Makes the frame of a message.
    pub fn encode(&self, envelope: &PublishEnvelope) -> Result<FrameChunks, EncodeError> {
        self.encode.encode(envelope)
    }

    /// Sends a frame to the members that subscribe to a topic, but for an excluded one. Returns their number.
    pub fn send(&self, topic: &str, frame: FrameChunks, exclude: Option<&Member>) -> usize {
        let name = name(&self.scope, topic);
        self.patterns.publish(topic, &name, frame, exclude.map(|member| &member.bundle))
    }

    /// Number of members that a message under a topic would reach.
    pub fn subscribers(&self, topic: &str) -> usize {
        self.patterns.subscribers(topic, &name(&self.scope, topic))
    }

    /// Number of patterns that members subscribe to.
    pub fn patterns(&self) -> usize {
        self.patterns.len()
    }

    /// Connections that a message under a topic would reach, in no particular order.
    pub fn clients(&self, topic: &str) -> Vec<ClientId> {
        let numbers = self.patterns.members(topic, &name(&self.scope, topic));
        let members = self.lock();
        numbers.iter().filter_map(|number| members.get(number).cloned()).collect()
    }

    /// Number of members.
    pub fn members(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, ClientId>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Member {
    /// The connection.
    pub fn client_id(&self) -> &ClientId {
        &self.client_id
    }

    /// Subscribes to a topic or pattern. Its frames are held back until [`Member::release`]. Returns whether the member did
    /// not subscribe to it before. Fails with an error of the connection's end, or of a pattern that cannot be had.
    pub fn enter(&self, topic: &str) -> Result<bool, DriverError> {
        let name = name(&self.scope, topic);
        if !is_pattern(topic) {
            return self.bundle.enter(&name).map_err(|_| DriverError::closed());
        }
        // Only what was checked is entered.
        let pattern = Pattern::parse(topic).map_err(|error| DriverError::new(error.to_string()))?;
        self.bundle.enter_pattern(&self.patterns, &name, &pattern).map_err(|refused| match refused {
            Refused::Closed => DriverError::closed(),
            Refused::TooComplex => DriverError::too_many_patterns(),
        })
    }

    /// Ends the subscription to a topic or pattern. What is heard because of it alone does not follow. Returns whether there
    /// was one.
    pub fn leave(&self, topic: &str) -> bool {
        let name = name(&self.scope, topic);
        if is_pattern(topic) { self.bundle.leave_pattern(&name) } else { self.bundle.leave(&name) }
    }

    /// Whether the member subscribes to a topic on this node.
    pub fn is_in(&self, topic: &str) -> bool {
        self.bundle.contains(&name(&self.scope, topic))
    }

    /// Number of topics that the member subscribes to on this node.
    pub fn len(&self) -> usize {
        self.bundle.len()
    }

    /// Whether the member subscribes to nothing on this node.
    pub fn is_empty(&self) -> bool {
        self.bundle.is_empty()
    }

    /// Lets the frames of topics that were entered follow.
    pub fn release<'a>(&self, topics: impl IntoIterator<Item = &'a str>) {
        self.reply(Bytes::new(), topics);
    }

    /// Sends a reply, if it is not empty, and then lets the frames of topics that were entered follow.
    pub fn reply<'a>(&self, reply: impl Into<FrameChunks>, topics: impl IntoIterator<Item = &'a str>) {
        if let Some(waker) = self.queue_reply(reply, topics) {
            waker.wake();
        }
    }

    /// As [`Member::reply`], but the caller wakes the reader, or polls it. The result is its waker.
    pub fn queue_reply<'a>(
        &self,
        reply: impl Into<FrameChunks>,
        topics: impl IntoIterator<Item = &'a str>,
    ) -> Option<Waker> {
        if self.scope.is_empty() {
            return self.bundle.queue_reply(reply, topics);
        }
        let names: Vec<_> = topics.into_iter().map(|topic| name(&self.scope, topic)).collect();
        self.bundle.queue_reply(reply, names.iter().map(|name| &**name))
    }

    /// Begins to hear who comes to a topic and goes.
    pub(crate) fn enter_presence(&self, topic: &str) -> Result<(), DriverError> {
        let name = presence_name(&self.scope, topic);
        self.bundle.enter(&name).map_err(|_| DriverError::closed())?;
        // Nothing is there yet, so nobody has to be woken.
        drop(self.bundle.queue_reply(Bytes::new(), [&*name]));
        Ok(())
    }

    pub(crate) fn leave_presence(&self, topic: &str) {
        self.bundle.leave(&presence_name(&self.scope, topic));
    }

    /// Tells the other members of a topic that one has come or gone.
    pub(crate) fn publish_presence(&self, topic: &str, frame: FrameChunks) {
        self.bundle.publish_to_others(&presence_name(&self.scope, topic), frame);
    }

    /// Ready when the client has taken all replies, or is gone.
    pub(crate) fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.bundle.poll_drained(cx)
    }

    /// Bytes of replies that the client has not taken.
    pub fn reply_bytes(&self) -> usize {
        self.bundle.reply_bytes()
    }

    /// Ends all subscriptions on this node and refuses new ones.
    pub fn seal(&self) {
        self.bundle.seal();
    }

    /// A number that no other member of the same rings has.
    pub fn number(&self) -> u64 {
        self.bundle.number()
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// Name of a topic's ring. A scope has no NUL, so that no two pairs have the same name.
fn name<'a>(scope: &str, topic: &'a str) -> Cow<'a, str> {
    if scope.is_empty() {
        return Cow::Borrowed(topic);
    }
    let mut name = String::with_capacity(scope.len() + 1 + topic.len());
    name.push_str(scope);
    name.push('\0');
    name.push_str(topic);
    Cow::Owned(name)
}

/// Name of the ring with the comings and goings of a topic. No topic has a star.
fn presence_name(scope: &str, topic: &str) -> String {
    format!("{}*presence", name(scope, topic))
}

/// A broadcast as it is written.
#[derive(Serialize)]
struct Broadcast<'a> {
    r#type: &'a str,
    meta: Meta<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(flatten)]
    rest: &'a Map<String, Value>,
    topic: &'a str,
}

impl Announce for JsonText {
    fn announce(&self, passing: Passing, topic: &str, member: &PresentMember) -> FrameChunks {
        let member = serde_json::json!({ "member": member.to_json() });
        let payload = Payload::json(&member).unwrap_or_default();
        let envelope = PublishEnvelope::new(topic, passing.as_str()).with_payload(payload);
        // What was made of JSON can be written as JSON.
        self.encode(&envelope).unwrap_or_else(|_| Bytes::new().into())
    }
}

impl Encode for JsonText {
    fn encode(&self, envelope: &PublishEnvelope) -> Result<FrameChunks, EncodeError> {
        let payload = match &envelope.payload {
            Payload::None => None,
            Payload::Json(text) => {
                Some(serde_json::from_slice(text).map_err(|error| EncodeError(error.to_string()))?)
            }
            Payload::Binary(_) => {
                return Err(EncodeError("JSON text has no place for a binary payload".to_owned()));
            }
        };
        let meta = Meta { rest: &envelope.meta, topic: &envelope.topic };
        let text = serde_json::to_vec(&Broadcast { r#type: &envelope.kind, meta, payload })
            .map_err(|error| EncodeError(error.to_string()))?;
        Ok(Bytes::from(text).into())
    }
}
