//! Frames of routers: one JSON object with `type`, `meta` and `payload`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::HandlerError;
use crate::envelope::{KIND_LENGTH, RESERVED_META};
use crate::message::Message;

/// A message of a client.
pub(crate) struct Incoming {
    pub(crate) kind: String,
    /// Without what only the server sets.
    pub(crate) meta: Map<String, Value>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) payload: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Raw {
    r#type: String,
    #[serde(default)]
    meta: Map<String, Value>,
    #[serde(default, deserialize_with = "present")]
    payload: Option<Box<RawValue>>,
}

/// Keeps `null` apart from an absent member.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Serialize)]
struct Outgoing<'a, P> {
    r#type: &'a str,
    #[serde(skip_serializing_if = "Meta::is_empty")]
    meta: Meta<'a>,
    payload: P,
}

#[derive(Serialize)]
struct Meta<'a> {
    #[serde(rename = "correlationId", skip_serializing_if = "Option::is_none")]
    correlation_id: Option<&'a str>,
}

impl Meta<'_> {
    fn is_empty(&self) -> bool {
        self.correlation_id.is_none()
    }
}

/// Parses a frame.
pub(crate) fn parse(text: &str) -> Result<Incoming, HandlerError> {
    let invalid =
        |reason: &str, message: &str| HandlerError::new("INVALID_ARGUMENT", message).with("reason", reason);
    if serde_json::from_str::<&RawValue>(text).is_err() {
        return Err(invalid("json", "the frame is not JSON"));
    }
    let raw: Raw = serde_json::from_str(text)
        .map_err(|error| invalid("envelope", &format!("the frame is not a message: {error}")))?;
    let mut meta = raw.meta;
    let correlation_id = match meta.remove("correlationId") {
        None => None,
        Some(Value::String(id)) if (1..=KIND_LENGTH).contains(&id.chars().count()) => Some(id),
        Some(_) => return Err(invalid("envelope", "correlationId is a string of 1 to 128 characters")),
    };
    if !(1..=KIND_LENGTH).contains(&raw.r#type.chars().count()) {
        return Err(invalid("envelope", "type is a string of 1 to 128 characters"));
    }
    meta.retain(|name, _| !RESERVED_META.contains(&name.as_str()));
    Ok(Incoming { kind: raw.r#type, meta, correlation_id, payload: raw.payload })
}

/// Parses and checks the payload of a message.
pub(crate) fn payload<M: Message>(payload: Option<&RawValue>) -> Result<M::Payload, HandlerError> {
    let invalid = |message: String| {
        HandlerError::new("INVALID_ARGUMENT", message).with("reason", "payload").with("type", M::TYPE)
    };
    let text = payload.map_or("null", RawValue::get);
    let payload: M::Payload = serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?;
    M::validate(&payload).map_err(|error| invalid(error.to_string()))?;
    Ok(payload)
}

/// Encodes a frame to one connection.
pub(crate) fn encode(
    kind: &str,
    correlation_id: Option<&str>,
    payload: &impl Serialize,
) -> Result<Bytes, serde_json::Error> {
    let frame = Outgoing { r#type: kind, meta: Meta { correlation_id }, payload };
    serde_json::to_vec(&frame).map(Bytes::from)
}

/// Encodes a failure.
pub(crate) fn error(correlation_id: Option<&str>, error: &HandlerError) -> Bytes {
    #[derive(Serialize)]
    struct Payload<'a> {
        code: &'a str,
        message: &'a str,
        retryable: bool,
        #[serde(skip_serializing_if = "Map::is_empty")]
        details: &'a Map<String, Value>,
    }
    let HandlerError { code, message, retryable, details } = error;
    let payload = Payload { code, message, retryable: *retryable, details };
    let kind = if correlation_id.is_some() { "RPC_ERROR" } else { "ERROR" };
    encode(kind, correlation_id, &payload).expect("text and JSON values can be written as JSON")
}
