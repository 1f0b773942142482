//! Messages of clients: `{"type","payload"?}` in JSON.
//!
//! What is not known is ignored, so that clients may say more than this server understands. The id of a request is in
//! `payload.requestId`, or beside `payload`, and is repeated as it was sent.

use std::borrow::Cow;

use serde_json::value::RawValue;
use tidings_entities::EntityCode;
use tidings_model::limits;

use super::error::{Refusal, WireError, code};
use crate::wire::json::{BadList, elements, members, string};

/// A message and the id that its answer repeats.
#[derive(Debug)]
pub struct Message<'a> {
    /// Id as it was sent: a text or a number.
    pub request_id: Option<&'a RawValue>,
    /// What the client wants.
    pub wish: Wish<'a>,
}

/// What a client wants.
#[derive(Debug)]
pub enum Wish<'a> {
    /// Show a token, as the first message.
    Auth { token: Cow<'a, str> },
    /// Watch entities of a type; without ids, the whole type.
    Subscribe { code: EntityCode, ids: Vec<SentId<'a>>, since: Option<Cow<'a, str>> },
    /// Watch entities no more; without ids, everything of the type.
    Unsubscribe { code: EntityCode, ids: Vec<SentId<'a>> },
    /// Watch nothing.
    UnsubscribeAll,
    /// Go on with another token of the same user.
    TokenRefresh { token: Cow<'a, str> },
    /// A sign of life.
    Ping,
}

/// An id of an entity as it was sent. Whether it can be one depends on the source of changes.
#[derive(Clone, Debug)]
pub enum SentId<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// Something else, which is no id.
    Other(&'a RawValue),
}

impl Wish<'_> {
    /// Type of the message, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Auth { .. } => "AUTH",
            Self::Subscribe { .. } => "SUBSCRIBE",
            Self::Unsubscribe { .. } => "UNSUBSCRIBE",
            Self::UnsubscribeAll => "UNSUBSCRIBE_ALL",
            Self::TokenRefresh { .. } => "TOKEN_REFRESH",
            Self::Ping => "PING",
        }
    }
}

impl<'a> Message<'a> {
    /// Parses a message with at most so many ids.
    pub fn parse(text: &'a str, most_ids: usize) -> Result<Self, Refusal<'a>> {
        let unreadable = |request_id| Refusal { request_id, error: WireError::unreadable() };
        let [kind, payload, beside] =
            members(text, ["type", "payload", "requestId"]).map_err(|_| unreadable(None))?;
        let payload = payload.filter(|payload| payload.get() != "null");
        let names = ["requestId", "entityCode", "entityIds", "since", "token"];
        let [within, code, ids, since, token] = match payload {
            Some(payload) => members(payload.get(), names).map_err(|_| unreadable(None))?,
            None => [None; 5],
        };
        let request_id = match within.or(beside).filter(|id| id.get() != "null") {
            Some(id) if is_request_id(id) => Some(id),
            Some(_) => {
                let expected =
                    format!("a number, or text of up to {} characters", limits::ENTITY_REQUEST_ID_CHARS);
                return Err(Refusal { request_id: None, error: WireError::field("requestId", &expected) });
            }
            None => None,
        };
        let kind = kind.and_then(string).ok_or_else(|| unreadable(request_id))?;
        let fields = Fields { code, ids, since, token, most_ids };
        let wish = fields.wish(&kind).map_err(|error| Refusal { request_id, error })?;
        Ok(Self { request_id, wish })
    }
}

/// Fields of a payload as they were sent.
struct Fields<'a> {
    code: Option<&'a RawValue>,
    ids: Option<&'a RawValue>,
    since: Option<&'a RawValue>,
    token: Option<&'a RawValue>,
    most_ids: usize,
}

impl<'a> Fields<'a> {
    fn wish(&self, kind: &str) -> Result<Wish<'a>, WireError> {
        Ok(match kind {
            "AUTH" => Wish::Auth { token: self.token()? },
            "SUBSCRIBE" => {
                let code = self.code()?;
                let ids = self.ids.ok_or_else(Self::no_ids)?;
                let since = match self.since.filter(|since| since.get() != "null") {
                    Some(since) => Some(string(since).ok_or_else(|| WireError::field("since", "text"))?),
                    None => None,
                };
                Wish::Subscribe { code, ids: self.ids(ids)?, since }
            }
            "UNSUBSCRIBE" => {
                let ids = self.ids.filter(|ids| ids.get() != "null");
                let ids = ids.map(|ids| self.ids(ids)).transpose()?;
                Wish::Unsubscribe { code: self.code()?, ids: ids.unwrap_or_default() }
            }
            "UNSUBSCRIBE_ALL" => Wish::UnsubscribeAll,
            "TOKEN_REFRESH" => Wish::TokenRefresh { token: self.token()? },
            "PING" => Wish::Ping,
            other => {
                let named: String = other.chars().take(limits::ENTITY_CODE_CHARS).collect();
                return Err(WireError::new(code::UNKNOWN_TYPE, format!("Unknown message type `{named}`")));
            }
        })
    }

    fn token(&self) -> Result<Cow<'a, str>, WireError> {
        self.token.and_then(string).ok_or_else(|| WireError::field("token", "text"))
    }

    fn code(&self) -> Result<EntityCode, WireError> {
        let text = self.code.and_then(string).ok_or_else(|| WireError::field("entityCode", "text"))?;
        EntityCode::parse(&text).map_err(|error| WireError::new(code::INVALID_CODE, error.to_string()))
    }

    fn ids(&self, sent: &'a RawValue) -> Result<Vec<SentId<'a>>, WireError> {
        let sent = elements(sent, self.most_ids).map_err(|bad| match bad {
            BadList::OtherKind => Self::no_ids(),
            BadList::TooLong => {
                WireError::limit(format!("A message names at most {} entities", self.most_ids))
            }
        })?;
        Ok(sent.into_iter().map(|id| string(id).map_or(SentId::Other(id), SentId::Text)).collect())
    }

    fn no_ids() -> WireError {
        WireError::field("entityIds", "a list of ids; an empty one is the whole type")
    }
}

/// A short text or a number. Anything else would cost memory to repeat.
fn is_request_id(id: &RawValue) -> bool {
    let text = id.get();
    text.chars().count() <= limits::ENTITY_REQUEST_ID_CHARS
        && text.starts_with(|first: char| first == '"' || first == '-' || first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Message<'_>, (Option<&str>, WireError)> {
        Message::parse(text, 3)
            .map_err(|Refusal { request_id, error }| (request_id.map(RawValue::get), error))
    }

    fn ids(text: &str) -> Vec<String> {
        match parse(text).expect(text).wish {
            Wish::Subscribe { ids, .. } | Wish::Unsubscribe { ids, .. } => ids
                .into_iter()
                .map(|id| match id {
                    SentId::Text(text) => text.into_owned(),
                    SentId::Other(raw) => format!("!{}", raw.get()),
                })
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn messages_of_every_type_are_read_with_and_without_an_id() {
        for (text, kind) in [
            (r#"{"type":"AUTH","payload":{"token":"t"}}"#, "AUTH"),
            (r#"{"type":"SUBSCRIBE","payload":{"entityCode":"a","entityIds":["1"]}}"#, "SUBSCRIBE"),
            (r#"{"type":"SUBSCRIBE","payload":{"entityCode":"a","entityIds":[],"since":"x"}}"#, "SUBSCRIBE"),
            (r#"{"type":"UNSUBSCRIBE","payload":{"entityCode":"a"}}"#, "UNSUBSCRIBE"),
            (r#"{"type":"UNSUBSCRIBE","payload":{"entityCode":"a","entityIds":null}}"#, "UNSUBSCRIBE"),
            (r#"{"type":"UNSUBSCRIBE_ALL"}"#, "UNSUBSCRIBE_ALL"),
            (r#"{"type":"UNSUBSCRIBE_ALL","payload":{"more":[1]}}"#, "UNSUBSCRIBE_ALL"),
            (r#"{"type":"TOKEN_REFRESH","payload":{"token":"t"}}"#, "TOKEN_REFRESH"),
            (r#" {"more":{},"payload":null,"type":"PING"} "#, "PING"),
        ] {
            let message = parse(text).expect(text);
            assert_eq!(message.wish.kind(), kind);
            assert!(message.request_id.is_none(), "{text}");
        }
        for text in [
            r#"{"type":"PING","payload":{"requestId":"r-1"}}"#,
            r#"{"type":"PING","requestId":"r-1"}"#,
            r#"{"type":"PING","requestId":"other","payload":{"requestId":"r-1"}}"#,
        ] {
            assert_eq!(parse(text).expect(text).request_id.map(RawValue::get), Some("\"r-1\""), "{text}");
        }
        let number = parse(r#"{"type":"PING","payload":{"requestId":-17}}"#).expect("good");
        assert_eq!(number.request_id.map(RawValue::get), Some("-17"));
    }

    #[test]
    fn ids_are_read_one_by_one_and_what_is_none_is_kept_as_it_was_sent() {
        let subscribe =
            |ids: &str| format!(r#"{{"type":"SUBSCRIBE","payload":{{"entityCode":"a","entityIds":{ids}}}}}"#);
        assert_eq!(ids(&subscribe(r#"["1","\u0032",""]"#)), ["1", "2", ""]);
        assert_eq!(ids(&subscribe(r#"[7,null,{"a":[1]}]"#)), ["!7", "!null", r#"!{"a":[1]}"#]);
        assert_eq!(ids(&subscribe("[]")), Vec::<String>::new());
        let text = subscribe(r#"["1","2","3","4"]"#);
        assert_eq!(parse(&text).expect_err("too many").1.code, code::LIMIT_EXCEEDED);
    }

    #[test]
    fn what_is_wrong_is_told_with_the_id_of_the_request_if_there_is_one() {
        for text in
            ["", "hello", "[]", "7", "{}", r#"{"type":7}"#, r#"{"type":"PING","payload":[]}"#, "{\"type\""]
        {
            let (request_id, error) = parse(text).expect_err(text);
            assert_eq!((request_id, error), (None, WireError::unreadable()), "{text}");
        }
        for (payload, code) in [
            (r#""entityIds":[]"#, code::INVALID_MESSAGE),
            (r#""entityCode":7,"entityIds":[]"#, code::INVALID_MESSAGE),
            (r#""entityCode":"","entityIds":[]"#, code::INVALID_CODE),
            (r#""entityCode":"a\u0000","entityIds":[]"#, code::INVALID_CODE),
            (r#""entityCode":"a""#, code::INVALID_MESSAGE),
            (r#""entityCode":"a","entityIds":"1""#, code::INVALID_MESSAGE),
            (r#""entityCode":"a","entityIds":null"#, code::INVALID_MESSAGE),
            (r#""entityCode":"a","entityIds":[],"since":7"#, code::INVALID_MESSAGE),
        ] {
            let text = format!(r#"{{"type":"SUBSCRIBE","payload":{{"requestId":1,{payload}}}}}"#);
            let (request_id, error) = parse(&text).expect_err(&text);
            assert_eq!((request_id, error.code), (Some("1"), code), "{text}");
        }
        let (_, unknown) = parse(r#"{"type":"LINK_CHANGE","payload":{}}"#).expect_err("unknown");
        assert_eq!(unknown, WireError::new(code::UNKNOWN_TYPE, "Unknown message type `LINK_CHANGE`"));
        let long =
            format!(r#"{{"type":"PING","requestId":"{}"}}"#, "x".repeat(limits::ENTITY_REQUEST_ID_CHARS));
        for text in [r#"{"type":"PING","requestId":{"a":1}}"#, r#"{"type":"PING","requestId":true}"#, &long] {
            assert_eq!(parse(text).expect_err(text).1.code, code::INVALID_MESSAGE, "{text}");
        }
    }
}
