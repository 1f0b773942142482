//! What requests do: each becomes an operation of `tidings_topics`, and its outcome an answer.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use tidings_model::limits;
use tidings_topics::{
    AbortReason, Aborted, Begins, CancellationToken, Capability, Change, Held, HistoryPage, MutateError,
    MutateOptions, Position, Presence, PresenceInfo, PresentMember, PubSubError, PublishEnvelope,
    PublishOptions, PublishResult, SettleOptions, Since, Topics, Verification, VerifyMode, VerifyOptions,
};

use super::encode;
use super::error::{WireError, code};
use super::request::{Options, Publish, Recover, Request};

/// A request without what it was parsed from, so that it can wait for something.
pub enum Operation {
    Subscribe { topic: String, options: Options, recover: Option<Since>, presence: Option<PresenceInfo> },
    Presence { topic: String, capability: Capability },
    Unsubscribe { topic: String, options: Options },
    SubscribeMany { topics: Vec<String>, options: Options, recover: Vec<(String, Since)> },
    UnsubscribeMany { topics: Vec<String>, options: Options },
    Clear { options: Options },
    Set { topics: Vec<String>, options: Options, recover: Vec<(String, Since)> },
    History { topic: String, since: Option<Since>, limit: usize },
    Update { add: Vec<String>, remove: Vec<String>, options: Options },
    Settle { topic: Option<String>, options: SettleOptions },
    Verify { topic: String, mode: VerifyMode },
    LocalStatus { topic: String },
    List,
    Publish { envelope: PublishEnvelope, options: PublishOptions },
}

/// What an operation came to.
pub struct Outcome {
    pub payload: Answer,
    /// Keeps the frames of new subscriptions back until the answer is queued.
    pub held: Option<Held>,
}

/// The payload of an answer.
pub enum Answer {
    Change(Counts),
    Publish(PublishResult),
    History(HistoryPage),
    Value(Value),
}

/// What a change of subscriptions tells.
#[derive(Serialize)]
pub struct Counts {
    #[serde(skip_serializing_if = "Option::is_none")]
    added: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<usize>,
    #[serde(flatten)]
    place: Option<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    positions: Option<Map<String, Value>>,
}

/// Members of a change that a request is told.
#[derive(Clone, Copy)]
struct Shown {
    added: bool,
    removed: bool,
    total: bool,
}

impl Operation {
    /// The operation of a request; `None` for requests that are not about subscriptions or messages.
    pub fn of(request: Request<'_>, frame: &Bytes) -> Result<Option<Self>, WireError> {
        let places = |recover: Recover<'_>| {
            recover.into_iter().map(|(topic, since)| (topic.into_owned(), since)).collect()
        };
        let owned = |topics: Vec<std::borrow::Cow<'_, str>>| topics.into_iter().map(Into::into).collect();
        Ok(Some(match request {
            Request::Subscribe { topic, options, recover, presence } => {
                Self::Subscribe { topic: topic.into(), options, recover, presence }
            }
            Request::Unsubscribe { topic, options } => Self::Unsubscribe { topic: topic.into(), options },
            Request::SubscribeMany { topics, options, recover } => {
                Self::SubscribeMany { topics: owned(topics), options, recover: places(recover) }
            }
            Request::UnsubscribeMany { topics, options } => {
                Self::UnsubscribeMany { topics: owned(topics), options }
            }
            Request::Clear { options } => Self::Clear { options },
            Request::Set { topics, options, recover } => {
                Self::Set { topics: owned(topics), options, recover: places(recover) }
            }
            Request::History { topic, since, limit } => {
                let limit = limit.unwrap_or(limits::HISTORY_PAGE);
                Self::History { topic: topic.into(), since, limit }
            }
            Request::Update { add, remove, options } => {
                Self::Update { add: owned(add), remove: owned(remove), options }
            }
            Request::Settle { topic, timeout } => Self::Settle {
                topic: topic.map(Into::into),
                options: SettleOptions { timeout, ..SettleOptions::default() },
            },
            Request::Verify { topic, mode } => Self::Verify { topic: topic.into(), mode },
            Request::LocalStatus { topic } => Self::LocalStatus { topic: topic.into() },
            Request::List => Self::List,
            Request::Publish(publish) => Self::publish(publish, frame)?,
            Request::Presence { .. } | Request::Auth { .. } | Request::Abort { .. } | Request::Heartbeat => {
                return Ok(None);
            }
        }))
    }

    fn publish(publish: Publish<'_>, frame: &Bytes) -> Result<Self, WireError> {
        let Publish { topic, message, exclude_self, partition_key } = publish;
        let envelope = message.into_envelope(topic.into(), frame)?;
        let options = PublishOptions { exclude_self, partition_key: partition_key.map(Into::into) };
        Ok(Self::Publish { envelope, options })
    }

    /// Does it. The first poll takes its place among the other operations of the connection.
    pub async fn run(self, topics: Topics, cancel: Option<CancellationToken>) -> Result<Outcome, WireError> {
        let with = |options: Options| mutate_options(options, cancel.clone());
        match self {
            Self::Subscribe { topic, options, recover, presence } => {
                let recovers = recover.is_some();
                let recover = recover.into_iter().map(|since| (topic.clone(), since)).collect();
                let change =
                    topics.subscribe(&topic, &MutateOptions { recover, presence, ..with(options) }).await?;
                let begins = change.positions.first().map(Place::of);
                let none = || (recovers && change.added > 0).then_some(Place::NOWHERE);
                let place = begins.or_else(none);
                let told = Shown { added: true, removed: false, total: true };
                Ok(Outcome::of(change, told, |counts| counts.place = place))
            }
            Self::Unsubscribe { topic, options } => {
                let change = topics.unsubscribe(&topic, &with(options)).await?;
                Ok(Outcome::of(change, Shown { added: false, removed: true, total: true }, |_| {}))
            }
            Self::SubscribeMany { topics: names, options, recover } => {
                let asked = recover.iter().map(|(topic, _)| topic.clone()).collect();
                let options = MutateOptions { recover: recover.into_iter().collect(), ..with(options) };
                let change = topics.subscribe_many(names, &options).await?;
                let positions = positions(&topics, &change, asked);
                let told = Shown { added: true, removed: false, total: true };
                Ok(Outcome::of(change, told, |counts| counts.positions = positions))
            }
            Self::UnsubscribeMany { topics: names, options } => {
                let change = topics.unsubscribe_many(names, &with(options)).await?;
                Ok(Outcome::of(change, Shown { added: false, removed: true, total: true }, |_| {}))
            }
            Self::Clear { options } => {
                let change = topics.clear(&with(options)).await?;
                Ok(Outcome::of(change, Shown { added: false, removed: true, total: false }, |_| {}))
            }
            Self::Set { topics: names, options, recover } => {
                let asked = recover.iter().map(|(topic, _)| topic.clone()).collect();
                let options = MutateOptions { recover: recover.into_iter().collect(), ..with(options) };
                let change = topics.set(names, &options).await?;
                let positions = positions(&topics, &change, asked);
                let told = Shown { added: true, removed: true, total: true };
                Ok(Outcome::of(change, told, |counts| counts.positions = positions))
            }
            Self::Update { add, remove, options } => {
                let options = with(options);
                let draft = topics.update(
                    |draft| {
                        for topic in &remove {
                            draft.remove(topic);
                        }
                        for topic in &add {
                            draft.insert(topic);
                        }
                    },
                    &options,
                );
                let change = draft.await?;
                Ok(Outcome::of(change, Shown { added: true, removed: true, total: true }, |_| {}))
            }
            Self::Settle { topic, options } => {
                let options = SettleOptions { cancel, ..options };
                topics.settle(topic.as_deref(), &options).await?;
                Ok(Outcome::value(json!({})))
            }
            Self::Verify { topic, mode } => {
                let options = VerifyOptions { mode, cancel, timeout: None };
                let verified = topics.verify(&topic, &options).await?;
                let mut answer = json!({ "kind": verified.verification.as_str() });
                if let Verification::Error(error) = &verified.verification {
                    answer["cause"] = json!(error.to_string());
                }
                if verified.local {
                    answer["local"] = json!(true);
                }
                Ok(Outcome::value(answer))
            }
            Self::LocalStatus { topic } => {
                let (status, has) = (topics.local_status(&topic).as_str(), topics.contains(&topic));
                Ok(Outcome::value(json!({ "status": status, "has": has })))
            }
            Self::List => {
                let list = topics.snapshot();
                let names: Vec<&str> = list.iter().map(|topic| &**topic).collect();
                Ok(Outcome::value(json!({ "topics": names, "total": names.len() })))
            }
            Self::Presence { topic, capability } => {
                let Presence { members, count } = topics.presence(&topic);
                let members: Vec<Value> = members.iter().map(PresentMember::to_json).collect();
                let answer = json!({ "members": members, "count": count, "capability": capability.as_str() });
                Ok(Outcome::value(answer))
            }
            Self::History { topic, since, limit } => {
                let page = topics.history(&topic, since.as_ref(), limit).await;
                let page = page.map_err(|error| {
                    tracing::warn!(%topic, %error, "a history cannot be read");
                    WireError::retryable(code::INTERNAL, "the history cannot be read at the moment")
                })?;
                let Some(page) = page else {
                    let message = format!("`{topic}` has no history");
                    return Err(WireError::new(code::FAILED_PRECONDITION, message));
                };
                Ok(Outcome { payload: Answer::History(page), held: None })
            }
            Self::Publish { envelope, options } => {
                let result = topics.publish(envelope, options).await;
                Ok(Outcome { payload: Answer::Publish(result), held: None })
            }
        }
    }
}

impl Outcome {
    fn of(change: Change, shown: Shown, more: impl FnOnce(&mut Counts)) -> Self {
        let Change { added, removed, total, held, positions: _ } = change;
        let mut counts = Counts {
            added: shown.added.then_some(added),
            removed: shown.removed.then_some(removed),
            total: shown.total.then_some(total),
            place: None,
            positions: None,
        };
        more(&mut counts);
        Self { payload: Answer::Change(counts), held: Some(held) }
    }

    fn value(value: Value) -> Self {
        Self { payload: Answer::Value(value), held: None }
    }
}

/// Where a subscription begins.
#[derive(Clone, Serialize)]
struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recovered: Option<bool>,
}

impl Place {
    /// That of a topic without history, whose missed messages were asked for.
    const NOWHERE: Self = Self { epoch: None, offset: None, recovered: Some(false) };

    fn of(begins: &Begins) -> Self {
        let Position { epoch, offset } = begins.position;
        Self { epoch: Some(epoch.to_string()), offset: Some(offset), recovered: begins.recovered }
    }
}

/// Where new subscriptions begin, by topic as the client has named it if it has asked for what it missed.
fn positions(topics: &Topics, change: &Change, asked: Vec<String>) -> Option<Map<String, Value>> {
    let added = change.held.topics();
    let mut positions = Map::new();
    let mut named: HashMap<Arc<str>, String> = HashMap::new();
    for topic in asked {
        let normal = topics.normal(&topic);
        if added.contains(&normal) {
            positions.insert(topic.clone(), json!(Place::NOWHERE));
            named.insert(normal, topic);
        }
    }
    for begins in &change.positions {
        let name = named.get(&begins.topic).cloned().unwrap_or_else(|| begins.topic.to_string());
        positions.insert(name, json!(Place::of(begins)));
    }
    (!positions.is_empty()).then_some(positions)
}

fn mutate_options(options: Options, cancel: Option<CancellationToken>) -> MutateOptions {
    let Options { wait_for, timeout, verify, ttl } = options;
    MutateOptions { cancel, wait_for, timeout, verify, ttl, ..MutateOptions::default() }
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Change(counts) => counts.serialize(serializer),
            Self::Value(value) => value.serialize(serializer),
            Self::History(page) => {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("epoch", &page.head.epoch.to_string())?;
                map.serialize_entry("offset", &page.head.offset)?;
                let messages = page.messages.iter().map(encode::Kept).collect::<Vec<_>>();
                map.serialize_entry("messages", &messages)?;
                if let Some(recovered) = page.recovered {
                    map.serialize_entry("recovered", &recovered)?;
                }
                map.end()
            }
            Self::Publish(PublishResult::Sent(sent)) => {
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("ok", &true)?;
                map.serialize_entry("capability", sent.capability.as_str())?;
                if let Some(matched) = sent.matched {
                    map.serialize_entry("matched", &matched)?;
                }
                if let Some(Position { epoch, offset }) = sent.position {
                    map.serialize_entry("epoch", &epoch.to_string())?;
                    map.serialize_entry("offset", &offset)?;
                }
                map.end()
            }
            Self::Publish(failed) => failed.to_json().serialize(serializer),
        }
    }
}

impl From<MutateError> for WireError {
    fn from(error: MutateError) -> Self {
        match error {
            MutateError::PubSub(error) => error.into(),
            MutateError::Aborted(Aborted { reason, changed }) => {
                let details = json!({ "changed": changed });
                match reason {
                    AbortReason::Cancelled => {
                        Self::new(code::CANCELLED, "the request was cancelled").with(details)
                    }
                    AbortReason::TimedOut => {
                        let message = "the time that the request allowed has passed";
                        Self::retryable(code::DEADLINE_EXCEEDED, message).with(details)
                    }
                }
            }
            MutateError::Unverified { ref verification, .. } => {
                let details = json!({ "kind": verification.as_str() });
                Self::new(code::FAILED_PRECONDITION, error.to_string()).with(details)
            }
        }
    }
}

impl From<PubSubError> for WireError {
    fn from(error: PubSubError) -> Self {
        let details = error.details.to_json();
        Self {
            code: error.code.as_str(),
            retryable: error.code.is_retryable(),
            message: error.message,
            details: (!details.is_empty()).then_some(Value::Object(details)),
            retry_after: None,
        }
    }
}

/// The error that tells of a failed publish without correlation id.
pub fn publish_error(result: &PublishResult) -> Option<WireError> {
    let PublishResult::Failed(failure) = result else { return None };
    let message = match &failure.cause {
        Some(cause) => cause.to_string(),
        None => "the message was not published".to_owned(),
    };
    let details = failure.details.clone();
    Some(WireError {
        code: failure.error.as_str(),
        retryable: failure.is_retryable(),
        message,
        details: (!details.is_empty()).then_some(Value::Object(details)),
        retry_after: None,
    })
}

#[cfg(test)]
mod tests {
    use tidings_topics::{PublishError, PublishFailure, Sent};

    use super::*;

    fn written(result: PublishResult) -> Value {
        serde_json::to_value(Answer::Publish(result)).expect("JSON")
    }

    #[test]
    fn a_number_that_is_unknown_is_not_written() {
        let exact = json!({ "ok": true, "capability": "exact", "matched": 0 });
        assert_eq!(written(Ok(Sent::exact(0)).into()), exact);
        let estimate = json!({ "ok": true, "capability": "estimate", "matched": 2 });
        assert_eq!(written(Ok(Sent::at_least(2)).into()), estimate);
        assert_eq!(written(Ok(Sent::unknown()).into()), json!({ "ok": true, "capability": "unknown" }));
    }

    #[test]
    fn a_feature_that_the_bus_does_not_have_is_named() {
        let failure = PublishFailure::new(PublishError::Unsupported).with("feature", "excludeSelf");
        let expected = json!({
            "ok": false, "error": "UNSUPPORTED", "retryable": false, "details": { "feature": "excludeSelf" },
        });
        assert_eq!(written(failure.into()), expected);
    }

    #[test]
    fn an_operation_that_takes_too_long_has_exceeded_its_deadline() {
        for (reason, code, retryable) in
            [(AbortReason::TimedOut, "DEADLINE_EXCEEDED", true), (AbortReason::Cancelled, "CANCELLED", false)]
        {
            let error = WireError::from(MutateError::Aborted(Aborted { reason, changed: None }));
            assert_eq!((error.code, error.retryable), (code, retryable));
            assert_eq!(error.details, Some(json!({ "changed": null })));
        }
    }
}
