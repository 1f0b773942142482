//! Messages to clients, each a text in JSON: `{"type","payload"}`.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tidings_entities::{self as entities, Cursor, EntityCode, EntityId, Reason, ResyncReason, Subject};
use tidings_model::Timestamp;

use super::error::WireError;
use super::message::SentId;
use crate::websocket::{Opcode, frame};
use crate::wire::time;

#[derive(Serialize)]
struct Told<'a, P> {
    #[serde(rename = "type")]
    kind: &'a str,
    payload: P,
}

/// Makes a WebSocket message of a text.
pub fn framed(text: &[u8]) -> Bytes {
    frame::frame(Opcode::Text, text)
}

/// The first message of a connection.
pub fn connected(connection: &str, cursor: Option<&Cursor>, heartbeat: Duration) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        connection_id: &'a str,
        cursor: Option<&'a str>,
        heartbeat_ms: u64,
    }
    let heartbeat_ms = u64::try_from(heartbeat.as_millis()).unwrap_or(u64::MAX);
    let payload = Payload { connection_id: connection, cursor: cursor.map(Cursor::as_str), heartbeat_ms };
    text("CONNECTED", payload)
}

/// Why an id was not subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It cannot be the id of an entity.
    InvalidId,
    /// The user may not watch the entity.
    Forbidden,
}

/// An id that was not subscribed.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Denied {
    entity_id: DeniedId,
    code: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum DeniedId {
    Text(String),
    Other(Box<RawValue>),
}

impl Denied {
    /// An id as it was sent, and why it was not subscribed.
    pub fn new(id: &SentId<'_>, denial: Denial) -> Self {
        let entity_id = match id {
            SentId::Text(text) => DeniedId::Text(text.clone().into_owned()),
            SentId::Other(raw) => DeniedId::Other((*raw).to_owned()),
        };
        let code = match denial {
            Denial::InvalidId => "InvalidId",
            Denial::Forbidden => "Forbidden",
        };
        Self { entity_id, code }
    }
}

/// The answer to `SUBSCRIBE`.
pub fn subscribed(
    request_id: Option<&RawValue>,
    code: &EntityCode,
    count: usize,
    cursor: &Cursor,
    denied: &[Denied],
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        count: usize,
        entity_code: &'a str,
        cursor: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        denied: &'a [Denied],
    }
    let (entity_code, cursor) = (code.as_str(), cursor.as_str());
    text("SUBSCRIBED", Payload { count, entity_code, cursor, request_id, denied })
}

/// The answer to `UNSUBSCRIBE`, of a type, and to `UNSUBSCRIBE_ALL`, of none.
pub fn unsubscribed(request_id: Option<&RawValue>, code: Option<&EntityCode>, count: usize) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        count: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        entity_code: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a RawValue>,
    }
    text("UNSUBSCRIBED", Payload { count, entity_code: code.map(EntityCode::as_str), request_id })
}

/// The answer to `PING`.
pub fn pong(request_id: Option<&RawValue>) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a RawValue>,
    }
    text("PONG", Payload { request_id })
}

/// Seconds until the token expires; absent for one that does not.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExpiresIn<'a> {
    expires_in: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a RawValue>,
}

/// The answer to `TOKEN_REFRESH`, with the subscriptions that the new token does not allow.
pub fn token_refreshed(
    request_id: Option<&RawValue>,
    expires_in: Option<Duration>,
    removed: &[(EntityCode, Subject)],
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Removed<'a> {
        entity_code: &'a str,
        /// Absent for the whole type.
        #[serde(skip_serializing_if = "Option::is_none")]
        entity_ids: Option<Vec<&'a str>>,
    }
    #[derive(Serialize)]
    struct Payload<'a> {
        #[serde(flatten)]
        expires_in: ExpiresIn<'a>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        removed: Vec<Removed<'a>>,
    }
    let removed = removed.iter().map(|(code, subject)| Removed {
        entity_code: code.as_str(),
        entity_ids: match subject {
            Subject::Ids(ids) => Some(ids.iter().map(EntityId::as_str).collect()),
            Subject::WholeType => None,
        },
    });
    let expires_in = ExpiresIn { expires_in: expires_in.map(|time| time.as_secs()), request_id };
    text("TOKEN_REFRESHED", Payload { expires_in, removed: removed.collect() })
}

/// Told some minutes before the token expires.
pub fn token_expiring_soon(expires_in: Duration) -> Vec<u8> {
    text("TOKEN_EXPIRING_SOON", ExpiresIn { expires_in: Some(expires_in.as_secs()), request_id: None })
}

/// A message or connection that was refused.
pub fn error(request_id: Option<&RawValue>, error: &WireError) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        message: &'a str,
        code: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after: Option<f64>,
    }
    let WireError { code, message, retry_after } = error;
    let retry_after = retry_after.map(|time| time.as_secs_f64());
    text("ERROR", Payload { message, code, request_id, retry_after })
}

/// A change as it is told.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToldChange<'a> {
    entity_id: &'a str,
    action: &'static str,
    version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl<'a> From<&'a entities::Told> for ToldChange<'a> {
    fn from(told: &'a entities::Told) -> Self {
        let entities::Told { id, action, version, reason } = told;
        let reason = reason.map(Reason::as_str);
        Self { entity_id: id.as_str(), action: action.as_str(), version: *version, reason }
    }
}

/// Changes of entities of one type. Whoever has heard them can resume at the cursor, if there is one.
pub fn invalidate(
    code: &EntityCode,
    changes: &[ToldChange<'_>],
    cursor: Option<&Cursor>,
    now: Timestamp,
) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        entity_code: &'a str,
        changes: &'a [ToldChange<'a>],
        timestamp: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        cursor: Option<&'a str>,
    }
    let (entity_code, cursor) = (code.as_str(), cursor.map(Cursor::as_str));
    text("INVALIDATE", Payload { entity_code, changes, timestamp: time::print(now), cursor })
}

/// A client has to fetch everything again, of a type or of all.
pub fn resync(code: Option<&EntityCode>, reason: ResyncReason) -> Vec<u8> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Payload<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        entity_code: Option<&'a str>,
        reason: &'a str,
    }
    text("RESYNC", Payload { entity_code: code.map(EntityCode::as_str), reason: reason.as_str() })
}

fn text(kind: &str, payload: impl Serialize) -> Vec<u8> {
    serde_json::to_vec(&Told { kind, payload }).expect("a message can be written as JSON")
}
