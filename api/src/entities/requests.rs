//! What clients ask for: each request becomes an operation of `tidings_entities`, and its outcome an answer.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::value::RawValue;
use tidings_entities::{Cursor, EntityCode, EntityId, IdForm, Subject, SubscribeError, Subscribed, Watch};
use tidings_model::limits::Limit;

use super::encode::{self, Denial, Denied, framed};
use super::error::{WireError, code};
use super::message::SentId;
use super::sockets::EntitySockets;
use super::telling::whole_type_forbidden;

/// Time after which a client should try again when the source of changes is away.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(5);

/// Who has asked, and what the answer repeats.
pub struct Asked {
    pub watch: Watch,
    pub request_id: Option<Box<RawValue>>,
    pub sockets: EntitySockets,
}

/// Ids of a request.
pub struct SentIds {
    /// The entities; the whole type if no ids were sent.
    subject: Subject,
    /// What was sent and is no id.
    invalid: Vec<Denied>,
    /// Ids as they were sent, if they have another form here.
    spellings: HashMap<EntityId, String>,
}

impl SentIds {
    /// Parses ids. Each is taken once.
    pub fn parse(sent: &[SentId<'_>], form: IdForm) -> Self {
        let mut parsed = Self { subject: Subject::WholeType, invalid: Vec::new(), spellings: HashMap::new() };
        if sent.is_empty() {
            return parsed;
        }
        let mut ids = Vec::with_capacity(sent.len());
        for sent in sent {
            let id = match sent {
                SentId::Text(text) => form.parse(text).ok().map(|id| (id, text)),
                SentId::Other(_) => None,
            };
            match id {
                Some((id, text)) => {
                    if id.as_str() != *text {
                        parsed.spellings.insert(id.clone(), text.clone().into_owned());
                    }
                    ids.push(id);
                }
                None => parsed.invalid.push(Denied::new(sent, Denial::InvalidId)),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        parsed.subject = Subject::Ids(ids);
        parsed
    }
}

/// Subscribes, and answers.
pub async fn subscribe(asked: Asked, code: EntityCode, ids: SentIds, since: Option<Cursor>) {
    let Asked { watch, request_id, sockets } = asked;
    let request_id = request_id.as_deref();
    let SentIds { subject, invalid: mut denied, spellings } = ids;
    let answer = match watch.subscribe(code.clone(), subject, since).await {
        Ok(answer) => answer,
        Err(error) => {
            if let Some(limit) = limit_of(&error) {
                sockets.hit(limit);
            }
            sockets.rejected("SUBSCRIBE");
            return watch.reply(framed(&encode::error(request_id, &wire_error(&code, &error))));
        }
    };
    let Subscribed { count, cursor, denied: forbidden, resync } = &*answer;
    denied.extend(forbidden.iter().map(|id| {
        let sent = spellings.get(id).map_or(id.as_str(), String::as_str);
        Denied::new(&SentId::Text(sent.into()), Denial::Forbidden)
    }));
    let resync = resync.map(|reason| {
        sockets.resynced();
        framed(&encode::resync(Some(&code), reason))
    });
    let told = framed(&encode::subscribed(request_id, &code, *count, cursor, &denied));
    sockets.handled("SUBSCRIBE");
    answer.send(resync.into_iter().chain([told])).await;
}

/// Ends subscriptions, and answers. What is no id has no subscription.
pub async fn unsubscribe(asked: Asked, code: EntityCode, ids: SentIds) {
    let Asked { watch, request_id, sockets } = asked;
    let answer = watch.unsubscribe(code.clone(), ids.subject).await;
    let told = framed(&encode::unsubscribed(request_id.as_deref(), Some(&code), answer.count));
    sockets.handled("UNSUBSCRIBE");
    answer.send([told]).await;
}

/// Ends all subscriptions, and answers.
pub async fn unsubscribe_all(asked: Asked) {
    let Asked { watch, request_id, sockets } = asked;
    let answer = watch.unsubscribe_all().await;
    let told = framed(&encode::unsubscribed(request_id.as_deref(), None, answer.count));
    sockets.handled("UNSUBSCRIBE_ALL");
    answer.send([told]).await;
}

fn limit_of(error: &SubscribeError) -> Option<Limit> {
    match error {
        SubscribeError::TooManyIds { .. } => Some(Limit::EntityIdsPerSubscribe),
        SubscribeError::TooManySubscriptions { .. } => Some(Limit::EntitySubscriptions),
        SubscribeError::Forbidden
        | SubscribeError::InvalidCursor
        | SubscribeError::Unavailable
        | SubscribeError::Closed => None,
    }
}

fn wire_error(code: &EntityCode, error: &SubscribeError) -> WireError {
    match error {
        SubscribeError::TooManyIds { most } => {
            WireError::limit(format!("A message names at most {most} entities"))
        }
        SubscribeError::TooManySubscriptions { most } => {
            WireError::limit(format!("A connection has at most {most} subscriptions"))
        }
        SubscribeError::Forbidden => whole_type_forbidden(code),
        SubscribeError::InvalidCursor => {
            WireError::new(code::INVALID_CURSOR, "`since` is not a cursor of this server")
        }
        SubscribeError::Unavailable => WireError {
            retry_after: Some(UNAVAILABLE_RETRY),
            ..WireError::new(code::UNAVAILABLE, "The changes cannot be read at the moment")
        },
        SubscribeError::Closed => WireError::new(code::INTERNAL, "The connection is closing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_taken_once_and_what_is_none_is_denied_as_it_was_sent() {
        let upper = "0F8FAD5B-D9CB-469F-A165-70867728950E";
        let odd = RawValue::from_string("[7]".to_owned()).expect("JSON");
        let sent: Vec<SentId<'_>> = [upper, "'; DROP TABLE x; --", &upper.to_lowercase()]
            .map(|text| SentId::Text(text.to_owned().into()))
            .into_iter()
            .chain([SentId::Other(&odd)])
            .collect();
        let ids = SentIds::parse(&sent, IdForm::Uuid);
        let id = IdForm::Uuid.parse(upper).expect("a UUID");
        assert_eq!(ids.subject, Subject::Ids(vec![id.clone()]));
        assert_eq!(ids.spellings.get(&id).map(String::as_str), Some(upper));
        let invalid = serde_json::to_value(&ids.invalid).expect("JSON");
        let told = serde_json::json!([
            { "entityId": "'; DROP TABLE x; --", "code": "InvalidId" },
            { "entityId": [7], "code": "InvalidId" },
        ]);
        assert_eq!(invalid, told);
        assert_eq!(SentIds::parse(&sent[1..2], IdForm::Uuid).subject, Subject::Ids(Vec::new()));
        assert_eq!(SentIds::parse(&[], IdForm::Uuid).subject, Subject::WholeType);
    }
}
