//! Messages of a server in a stream: events of the room, and infos about the stream itself.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::Cursor;
use super::retry::RETRY_AFTER_MAX;

/// Kind of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message; its payload has `messageView`.
    Message,
    /// A reaction to a message.
    Reaction,
    /// A user is typing. Live only: it is not stored, so a reader that reconnects does not get it.
    Typing,
    /// A kind that this version of the client does not know.
    Other(String),
}

impl Kind {
    /// Name of the kind on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::Message => "messageEvent",
            Self::Reaction => "reactionEvent",
            Self::Typing => "typingEvent",
            Self::Other(name) => name,
        }
    }

    fn named(name: &str) -> Self {
        match name {
            "messageEvent" => Self::Message,
            "reactionEvent" => Self::Reaction,
            "typingEvent" => Self::Typing,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Whether the event is stored on the server, so that its cursor can be resumed from.
    pub(super) fn is_kept(&self) -> bool {
        *self != Self::Typing
    }
}

/// An event of a room.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Kind of the event.
    pub kind: Kind,
    /// Position of the event.
    pub cursor: Cursor,
    /// Id of the room.
    pub convo_id: String,
    /// Time of the write, as the server prints it (RFC 3339, UTC).
    pub emitted_at: String,
    /// Content of the event.
    pub payload: Value,
}

/// Reason of an info about the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Events after the reader's cursor are no longer stored; the stream continues with later ones.
    Compacted,
    /// The reader's cursor belongs to another history; the stream continues at the head.
    Reset,
    /// The reader read too little for too long.
    SlowConsumer,
    /// The server is stopping, and will probably be restarted.
    ServerRestart,
    /// The reader is no longer a member of the room.
    MembershipRevoked,
    /// The token has expired.
    TokenExpired,
    /// Everything that was stored when the stream began has been sent.
    CaughtUp,
}

impl Reason {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "compacted" => Self::Compacted,
            "reset" => Self::Reset,
            "slow-consumer" => Self::SlowConsumer,
            "server-restart" => Self::ServerRestart,
            "membership-revoked" => Self::MembershipRevoked,
            "token-expired" => Self::TokenExpired,
            "caught-up" => Self::CaughtUp,
            _ => return None,
        })
    }
}

/// An info of the server about the stream itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// Reason of the info.
    pub reason: Reason,
    /// Cursor to resume from, if the info has one.
    pub cursor: Option<Cursor>,
    /// Details that depend on the reason.
    pub detail: Value,
}

impl Info {
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.detail)
    }
}

/// Reads `retryAfter` of an object: seconds, with a fraction, at most [`RETRY_AFTER_MAX`].
pub(super) fn retry_after(object: &Value) -> Option<Duration> {
    let seconds = Duration::try_from_secs_f64(object["retryAfter"].as_f64()?).ok()?;
    Some(seconds.min(RETRY_AFTER_MAX))
}

/// One message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message {
    Event(Event),
    Info(Info),
}

/// A message that violates the protocol.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("a message of the server is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("a message of type {0} has no valid cursor")]
    Cursor(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    #[serde(rename = "type")]
    kind: Option<String>,
    cursor: Option<String>,
    #[serde(default)]
    convo_id: String,
    #[serde(default)]
    emitted_at: String,
    #[serde(default)]
    payload: Value,
    reason: Option<String>,
    #[serde(default)]
    detail: Value,
}

impl Message {
    /// Parses a message. With SSE the name of the event is given separately, on a WebSocket its type is in
    /// the JSON. Returns `None` for messages to ignore: unknown reasons, and messages of other types without
    /// a cursor, such as the reply to a ping.
    pub(super) fn parse(name: Option<&str>, json: &str) -> Result<Option<Self>, Malformed> {
        let form: Form = serde_json::from_str(json)?;
        let name = name.or(form.kind.as_deref()).unwrap_or_default();
        let cursor = form.cursor.as_deref().and_then(|text| text.parse().ok());
        if name == "infoEvent" {
            let reason = form.reason.as_deref().or(form.payload["reason"].as_str());
            let detail = if form.detail.is_null() { form.payload["detail"].clone() } else { form.detail };
            let info = reason.and_then(Reason::named).map(|reason| Info { reason, cursor, detail });
            return Ok(info.map(Self::Info));
        }
        let kind = Kind::named(name);
        match (cursor, &kind) {
            (None, Kind::Other(_)) => Ok(None),
            (None, _) => Err(Malformed::Cursor(name.to_owned())),
            (Some(cursor), _) => Ok(Some(Self::Event(Event {
                kind,
                cursor,
                convo_id: form.convo_id,
                emitted_at: form.emitted_at,
                payload: form.payload,
            }))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_read_with_its_type_inside_or_beside_it() {
        let inside = r#"{"type":"messageEvent","cursor":"01A","convoId":"r","emittedAt":"t","payload":{"messageView":{}}}"#;
        let beside = r#"{"cursor":"01A","convoId":"r","emittedAt":"t","payload":{"messageView":{}}}"#;
        let event = Event {
            kind: Kind::Message,
            cursor: "01A".parse().unwrap(),
            convo_id: "r".to_owned(),
            emitted_at: "t".to_owned(),
            payload: json!({"messageView": {}}),
        };
        assert_eq!(Message::parse(None, inside).unwrap(), Some(Message::Event(event.clone())));
        assert_eq!(Message::parse(Some("messageEvent"), beside).unwrap(), Some(Message::Event(event)));
    }

    #[test]
    fn an_info_is_read_in_the_short_form_and_in_the_long_one() {
        let short = r#"{"reason":"slow-consumer","detail":{"retryAfter":0.5}}"#;
        let long = r#"{"cursor":"01A","payload":{"reason":"slow-consumer","detail":{"retryAfter":0.5}}}"#;
        for (text, cursor) in [(short, None), (long, Some("01A".parse().unwrap()))] {
            let Some(Message::Info(info)) = Message::parse(Some("infoEvent"), text).unwrap() else {
                panic!("{text} is an info");
            };
            assert_eq!((info.reason, &info.cursor), (Reason::SlowConsumer, &cursor));
            assert_eq!(info.retry_after(), Some(Duration::from_millis(500)));
        }
    }

    #[test]
    fn what_is_not_known_is_nothing_and_what_is_wrong_is_an_error() {
        assert_eq!(Message::parse(Some("infoEvent"), r#"{"reason":"new-moon"}"#).unwrap(), None);
        assert_eq!(Message::parse(None, r#"{"type":"pong"}"#).unwrap(), None);
        assert!(Message::parse(None, r#"{"type":"messageEvent"}"#).is_err());
        assert!(Message::parse(None, r#"{"type":"messageEvent","cursor":"a b"}"#).is_err());
        assert!(Message::parse(Some("messageEvent"), "no JSON").is_err());
    }

    #[test]
    fn a_retry_after_that_is_no_time_is_none_and_a_long_one_is_cut() {
        assert_eq!(retry_after(&json!({"retryAfter": -1})), None);
        assert_eq!(retry_after(&json!({"retryAfter": "soon"})), None);
        assert_eq!(retry_after(&json!(null)), None);
        assert_eq!(retry_after(&json!({"retryAfter": 1e300})), None);
        assert_eq!(retry_after(&json!({"retryAfter": 1e9})), Some(RETRY_AFTER_MAX));
    }
}
