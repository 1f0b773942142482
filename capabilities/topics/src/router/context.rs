//! What a handler can do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use serde_json::{Map, Value};
use tidings_model::limits;
use tokio_util::sync::CancellationToken;

use super::{Capability, Data, HandlerError, PubSub, frame};
use crate::local::Member;
use crate::message::Message;
use crate::options::PublishOptions;
use crate::policy::ClientId;
use crate::result::PublishResult;
use crate::topics::Topics;

/// A connection.
pub(crate) struct Connected<D: Send + Sync + 'static, C: Capability<D>> {
    pub(crate) member: Member,
    pub(crate) data: Data<D>,
    pub(crate) capability: C::Connected,
    /// Ends the outbox.
    pub(crate) ended: CancellationToken,
}

impl<D: Send + Sync + 'static, C: Capability<D>> Connected<D, C> {
    /// Sends a frame before those of topics. A client that does not take what it is sent is disconnected.
    fn reply(&self, frame: Bytes) {
        self.member.reply(frame, []);
        if self.member.reply_bytes() > limits::REPLIES_BYTES {
            self.end();
        }
    }

    /// Ends what the connection has, and its outbox after what it has not sent.
    pub(crate) fn end(&self) {
        C::close(&self.capability);
        self.ended.cancel();
    }

    /// Whether nothing is to be done for the client any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ended.is_cancelled()
    }
}

/// A message and its connection. Clones are the same message.
pub struct Context<D: Send + Sync + 'static, C: Capability<D>> {
    connected: Arc<Connected<D, C>>,
    message: Arc<MessageInfo>,
}

struct MessageInfo {
    kind: String,
    meta: Map<String, Value>,
    correlation_id: Option<String>,
    /// Set once the terminal answer was sent.
    answered: AtomicBool,
}

impl<D: Send + Sync + 'static, C: Capability<D>> Context<D, C> {
    pub(crate) fn new(
        connected: Arc<Connected<D, C>>,
        kind: String,
        meta: Map<String, Value>,
        correlation_id: Option<String>,
    ) -> Self {
        let answered = AtomicBool::new(false);
        Self { connected, message: Arc::new(MessageInfo { kind, meta, correlation_id, answered }) }
    }

    /// The connection.
    pub fn client_id(&self) -> &ClientId {
        self.connected.member.client_id()
    }

    /// Type of the message. Empty when a connection is opened or closed.
    pub fn kind(&self) -> &str {
        &self.message.kind
    }

    /// What the client sent beside the payload.
    pub fn meta(&self) -> &Map<String, Value> {
        &self.message.meta
    }

    /// The data of the connection as it is now.
    pub fn data(&self) -> Arc<D> {
        self.connected.data.get()
    }

    /// Changes the data of the connection.
    pub fn assign_data(&self, change: impl FnOnce(&mut D))
    where
        D: Clone,
    {
        self.connected.data.assign(change);
    }

    /// Answers the message. A request with a correlation id is answered once: later answers are dropped.
    pub fn reply<M: Message>(&self, payload: &M::Payload) {
        if self.is_first_answer() {
            self.write::<M>(self.message.correlation_id.as_deref(), payload);
        }
    }

    /// Answers the message with a failure, as [`Context::reply`] does with a success.
    pub fn error(&self, code: &str, message: &str) {
        self.fail(&HandlerError::new(code, message));
    }

    /// Answers the message with a failure that has details.
    pub fn fail(&self, error: &HandlerError) {
        if self.is_first_answer() {
            let frame = frame::error(self.message.correlation_id.as_deref(), error);
            self.connected.reply(frame);
        }
    }

    /// Sends a message to this connection only.
    pub fn send<M: Message>(&self, payload: &M::Payload) {
        self.write::<M>(None, payload);
    }

    /// Lets the policy forget what it remembers of the connection, because its rights have changed. Without pub/sub there
    /// is none.
    pub fn invalidate_auth(&self) {
        C::invalidate(&self.connected.capability);
    }

    fn is_first_answer(&self) -> bool {
        self.message.correlation_id.is_none() || !self.message.answered.swap(true, Ordering::SeqCst)
    }

    fn write<M: Message>(&self, correlation_id: Option<&str>, payload: &M::Payload) {
        match frame::encode(M::TYPE, correlation_id, payload) {
            Ok(frame) => self.connected.reply(frame),
            Err(error) => {
                tracing::error!(kind = M::TYPE, %error, "a payload cannot be encoded");
                let frame = frame::error(correlation_id, &HandlerError::internal());
                self.connected.reply(frame);
            }
        }
    }
}

impl<D: Send + Sync + 'static> Context<D, PubSub<D>> {
    /// The topics of the connection.
    pub fn topics(&self) -> &Topics {
        &self.connected.capability
    }

    /// Publishes a message for the connection. All failures are values.
    pub async fn publish<M: Message>(
        &self,
        topic: &str,
        payload: &M::Payload,
        options: PublishOptions,
    ) -> PublishResult {
        self.topics().publish_message::<M>(topic, payload, options).await
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Clone for Context<D, C> {
    fn clone(&self) -> Self {
        Self { connected: self.connected.clone(), message: self.message.clone() }
    }
}
