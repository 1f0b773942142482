//! Messages on their way from a publisher to subscribers.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// A message under a topic, as drivers and brokers carry it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishEnvelope {
    /// The topic.
    pub topic: String,
    /// Type of the message.
    pub kind: String,
    /// What is known of the message beside its payload.
    pub meta: Map<String, Value>,
    /// The payload.
    pub payload: Payload,
}

/// The payload of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// There is none, which is not the same as `null`.
    #[default]
    None,
    /// One JSON value as text.
    Json(Bytes),
    /// Any bytes.
    Binary(Bytes),
}

/// Characters of the type of a message.
pub const KIND_LENGTH: usize = 128;

/// Members of `meta` that only the server sets.
pub const RESERVED_META: [&str; 7] =
    ["topic", "epoch", "offset", "clientId", "receivedAt", "excludeClientId", "correlationId"];

impl PublishEnvelope {
    /// A message without payload.
    pub fn new(topic: impl Into<String>, kind: impl Into<String>) -> Self {
        Self { topic: topic.into(), kind: kind.into(), meta: Map::new(), payload: Payload::None }
    }

    /// Adds a payload.
    pub fn with_payload(self, payload: Payload) -> Self {
        Self { payload, ..self }
    }

    /// Whether the type of a message is reserved for the protocol.
    pub fn is_reserved(kind: &str) -> bool {
        kind.starts_with('$') || kind.starts_with("__") || matches!(kind, "ERROR" | "RPC_ERROR")
    }

    /// Whether the type of the message may be published: not empty, not too long, not reserved.
    pub fn has_valid_kind(&self) -> bool {
        let length = self.kind.chars().take(KIND_LENGTH + 1).count();
        (1..=KIND_LENGTH).contains(&length) && !Self::is_reserved(&self.kind)
    }

    /// Removes what only the server may set.
    pub(crate) fn strip_meta(&mut self) {
        if !self.meta.is_empty() {
            self.meta.retain(|name, _| !RESERVED_META.contains(&name.as_str()));
        }
    }
}

impl Payload {
    /// Encodes a value as JSON.
    pub fn json(value: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        serde_json::to_vec(value).map(|text| Self::Json(text.into()))
    }

    /// A JSON value that was parsed already, digit by digit as it was written.
    pub fn raw(value: &RawValue) -> Self {
        Self::Json(Bytes::copy_from_slice(value.get().as_bytes()))
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Json(bytes) | Self::Binary(bytes) => bytes.len(),
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
