//! Frames to clients: answers, errors, broadcasts, the first frame and the last. Each is a whole WebSocket message,
//! encoded once.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde::ser::{Error, SerializeMap, Serializer};
use serde_json::value::RawValue;
use tidings_engine::deliver::FrameChunks;
use tidings_model::Timestamp;
use tidings_topics::{Announce, Encode, EncodeError, Passing, Payload, PresentMember, PublishEnvelope};

use super::envelope::LENGTH_BYTES;
use super::error::WireError;
use crate::websocket::frame::{self, HeaderBytes};
use crate::websocket::{Close, Code, Opcode};

/// Bytes of the longest header of a WebSocket frame of ours.
const HEADER_ROOM: usize = 10;

/// Meta of an answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnswerMeta<'a> {
    correlation_id: &'a str,
}

/// A frame from the server.
#[derive(Serialize)]
struct Told<'a, M, P> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<M>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<P>,
}

/// The answer to a request that succeeded.
pub fn reply(correlation_id: &str, payload: impl Serialize) -> Bytes {
    text(&Told { kind: "$reply", meta: Some(AnswerMeta { correlation_id }), payload: Some(payload) })
}

/// The answer to a request or frame that was rejected.
pub fn error(correlation_id: Option<&str>, error: &WireError) -> Bytes {
    let kind = if correlation_id.is_some() { "RPC_ERROR" } else { "ERROR" };
    let meta = correlation_id.map(|correlation_id| AnswerMeta { correlation_id });
    text(&Told { kind, meta, payload: Some(error) })
}

/// The text of the answer to a frame that was rejected, without the header of a WebSocket message.
pub fn error_text(error: &WireError) -> Bytes {
    json(&Told { kind: "ERROR", meta: None::<()>, payload: Some(error) }).into()
}

/// The answer to a heartbeat.
pub fn heartbeat_ack(correlation_id: Option<&str>, now: Timestamp) -> Bytes {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta<'a> {
        ts: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        correlation_id: Option<&'a str>,
    }
    let meta = Meta { ts: now.as_millis(), correlation_id };
    text(&Told { kind: "__heartbeat_ack", meta: Some(meta), payload: None::<()> })
}

/// The first frame of a connection.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hello<'a> {
    pub client_id: &'a str,
    pub member_id: &'a str,
    pub session: &'a str,
    pub project: &'a str,
    pub user: Option<&'a str>,
    /// Time in milliseconds at which the token expires.
    pub expires_at: Option<u64>,
    pub heartbeat_ms: u64,
    pub limits: HelloLimits,
}

/// Limits that a client should know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HelloLimits {
    pub topic_length: usize,
    pub topics_per_connection: Option<usize>,
    pub topics_per_request: usize,
    pub frame_bytes: usize,
    pub payload_bytes: Option<usize>,
}

impl Hello<'_> {
    /// The frame.
    pub fn frame(&self) -> Bytes {
        text(&Told { kind: "$hello", meta: None::<()>, payload: Some(self) })
    }
}

/// The frame that tells a client which of its subscriptions the server has ended.
pub fn unsubscribed<T: AsRef<str>>(topics: &[T], reason: &str) -> Bytes {
    #[derive(Serialize)]
    struct Payload<'a> {
        topics: Vec<&'a str>,
        reason: &'a str,
    }
    let payload = Payload { topics: topics.iter().map(AsRef::as_ref).collect(), reason };
    text(&Told { kind: "$unsubscribed", meta: None::<()>, payload: Some(payload) })
}

/// Why the server closes a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// The server stops.
    GoingAway,
    /// The client sends what is not understood.
    ProtocolError,
    /// A frame is too large.
    FrameTooLarge,
    /// A fault of the server.
    Internal,
    /// The token has expired.
    TokenExpired,
    /// The access was revoked.
    Revoked,
    /// The client was silent.
    HeartbeatTimeout,
    /// The client takes too little of what it is sent.
    SlowConsumer,
}

impl Closing {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::GoingAway,
        Self::ProtocolError,
        Self::FrameTooLarge,
        Self::Internal,
        Self::TokenExpired,
        Self::Revoked,
        Self::HeartbeatTimeout,
        Self::SlowConsumer,
    ];

    /// Code, reason, and whether the client should connect again.
    fn parts(self) -> (u16, &'static str, bool) {
        match self {
            Self::GoingAway => (1001, "going-away", true),
            Self::ProtocolError => (1008, "protocol-error", false),
            Self::FrameTooLarge => (1009, "frame-too-large", false),
            Self::Internal => (1011, "internal", true),
            Self::TokenExpired => (4401, "token-expired", true),
            Self::Revoked => (4403, "revoked", false),
            Self::HeartbeatTimeout => (4408, "heartbeat-timeout", true),
            Self::SlowConsumer => (4409, "slow-consumer", true),
        }
    }

    /// The reason, for metrics.
    pub fn reason(self) -> &'static str {
        self.parts().1
    }

    /// The close frame.
    pub fn close(self) -> Close {
        let (code, reason, _) = self.parts();
        Close::new(Code::new(code).expect("our codes may be sent"), reason)
    }

    /// The text of the last frame before it.
    pub fn last_text(self, retry_after: Option<Duration>) -> Bytes {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Payload {
            code: u16,
            reason: &'static str,
            reconnect: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            retry_after_ms: Option<u64>,
        }
        let (code, reason, reconnect) = self.parts();
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let retry_after_ms = retry_after.map(millis);
        let payload = Payload { code, reason, reconnect, retry_after_ms };
        json(&Told { kind: "$close", meta: None::<()>, payload: Some(payload) }).into()
    }
}

impl Announce for Broadcasts {
    fn announce(&self, passing: Passing, topic: &str, member: &PresentMember) -> FrameChunks {
        #[derive(Serialize)]
        struct Meta<'a> {
            topic: &'a str,
        }
        let payload = serde_json::json!({ "member": member.to_json() });
        text(&Told { kind: passing.as_str(), meta: Some(Meta { topic }), payload: Some(payload) }).into()
    }
}

/// A message of a history, written as it is broadcast. A payload of bytes is base64 in `payloadBase64`.
pub struct Kept<'a>(pub &'a PublishEnvelope);

impl Serialize for Kept<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Meta<'a> {
            #[serde(flatten)]
            rest: &'a serde_json::Map<String, serde_json::Value>,
            topic: &'a str,
        }
        let PublishEnvelope { topic, kind, meta, payload } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", kind)?;
        map.serialize_entry("meta", &Meta { rest: meta, topic })?;
        match payload {
            Payload::None => {}
            Payload::Json(text) => {
                let text = std::str::from_utf8(text).map_err(S::Error::custom)?;
                let value: &RawValue = serde_json::from_str(text).map_err(S::Error::custom)?;
                map.serialize_entry("payload", value)?;
            }
            Payload::Binary(bytes) => map.serialize_entry("payloadBase64", &STANDARD.encode(bytes))?,
        }
        map.end()
    }
}

/// Makes the frame that all subscribers of a topic receive: text, or binary if the payload is bytes.
pub struct Broadcasts;

impl Encode for Broadcasts {
    fn encode(&self, message: &PublishEnvelope) -> Result<FrameChunks, EncodeError> {
        broadcast(message).map(Into::into)
    }
}

fn broadcast(message: &PublishEnvelope) -> Result<Bytes, EncodeError> {
    let room = 128 + message.kind.len() + message.topic.len() + message.payload.len();
    let mut out = Vec::with_capacity(HEADER_ROOM + room);
    out.resize(HEADER_ROOM, 0);
    match &message.payload {
        Payload::Binary(bytes) => {
            out.extend([0; LENGTH_BYTES]);
            let begin = out.len();
            put_head(&mut out, message);
            out.push(b'}');
            let length = u16::try_from(out.len() - begin).map_err(|_| {
                EncodeError(format!("the header of a binary frame has at most {} bytes", u16::MAX))
            })?;
            out[begin - LENGTH_BYTES..begin].copy_from_slice(&length.to_be_bytes());
            out.extend_from_slice(bytes);
            return Ok(framed(Opcode::Binary, out));
        }
        Payload::Json(value) => {
            put_head(&mut out, message);
            out.extend_from_slice(b",\"payload\":");
            out.extend_from_slice(value);
        }
        Payload::None => put_head(&mut out, message),
    }
    out.push(b'}');
    Ok(framed(Opcode::Text, out))
}

/// Type and meta, and no brace at the end. What only the server sets was removed from the meta when it was published.
fn put_head(out: &mut Vec<u8>, message: &PublishEnvelope) {
    out.extend_from_slice(b"{\"type\":");
    put_json(out, &message.kind);
    out.extend_from_slice(b",\"meta\":{");
    for (key, value) in &message.meta {
        put_json(out, key);
        out.push(b':');
        put_json(out, value);
        out.push(b',');
    }
    out.extend_from_slice(b"\"topic\":");
    put_json(out, &message.topic);
    out.push(b'}');
}

fn put_json(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    serde_json::to_writer(out, value).expect("JSON can be written to memory");
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("what we say is JSON")
}

/// A text message.
fn text(value: &impl Serialize) -> Bytes {
    let mut out = Vec::with_capacity(256);
    out.resize(HEADER_ROOM, 0);
    serde_json::to_writer(&mut out, value).expect("what we say is JSON");
    framed(Opcode::Text, out)
}

/// A message whose payload begins behind [`HEADER_ROOM`].
fn framed(opcode: Opcode, mut out: Vec<u8>) -> Bytes {
    let header: HeaderBytes = frame::header(opcode, out.len() - HEADER_ROOM);
    let begin = HEADER_ROOM - header.len();
    out[begin..HEADER_ROOM].copy_from_slice(&header);
    Bytes::from(out).slice(begin..)
}

#[cfg(test)]
mod tests;
