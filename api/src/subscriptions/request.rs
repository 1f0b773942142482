//! Reads the bodies of requests about subscriptions.

use axum::body::Body;
use serde_json::{Map, Value};
use tidings_model::{Position, ProjectId, StreamId, limits};
use tidings_subscriptions::{Config, Delivery, Glob, Report, Then};

use super::error::Refusal;
use crate::Api;
use crate::wire::{body, offset};

/// Members of a body that is a JSON object.
pub struct Members(Map<String, Value>);

/// A subscription to be created.
pub struct Wanted {
    /// What its owner chooses.
    pub config: Config,
    /// Streams that are named.
    pub streams: Vec<StreamId>,
}

impl Members {
    /// Reads a body. An empty one has no members.
    pub async fn read(api: &Api, project: &ProjectId, sent: Body) -> Result<Self, Refusal> {
        let context = api.context(Some(project));
        let (body, _reserved) = body::bytes(sent, limits::SUBSCRIPTION_BODY_BYTES, context).await?;
        if body.is_empty() {
            return Ok(Self(Map::new()));
        }
        let members = serde_json::from_slice(&body).ok();
        members.map(Self).ok_or_else(|| Refusal::invalid("the body must be a JSON object"))
    }

    /// The subscription to be created.
    pub fn wanted(&self) -> Result<Wanted, Refusal> {
        let delivery = match self.text("type")? {
            Some("webhook") => Delivery::Webhook { url: self.url()?.into() },
            Some("pull-wake") => Delivery::PullWake { stream: self.wake_stream()? },
            _ => return Err(Refusal::invalid("type must be `webhook` or `pull-wake`")),
        };
        let pattern = match self.text("pattern")?.filter(|text| !text.is_empty()) {
            Some(text) => {
                Some(Glob::parse(text).map_err(|error| Refusal::invalid(format!("pattern: {error}")))?)
            }
            None => None,
        };
        let streams = match self.present("streams") {
            Some(_) => self.streams()?,
            None => Vec::new(),
        };
        if pattern.is_none() && streams.is_empty() {
            return Err(Refusal::invalid("pattern or streams is required"));
        }
        let description = self.text("description")?;
        if description.is_some_and(|text| text.len() > limits::SUBSCRIPTION_DESCRIPTION_BYTES) {
            let most = limits::SUBSCRIPTION_DESCRIPTION_BYTES;
            return Err(Refusal::invalid(format!("description has at most {most} bytes")));
        }
        let lease = limits::SUBSCRIPTION_LEASE_MS_MIN..=limits::SUBSCRIPTION_LEASE_MS_MAX;
        let attempts = 1..=u64::from(limits::SUBSCRIPTION_ATTEMPTS_MAX);
        let max_attempts = self.number("max_attempts", attempts)?;
        let payload = match self.present("payload") {
            None => false,
            Some(Value::Bool(payload)) => *payload,
            Some(_) => return Err(Refusal::invalid("payload must be `true` or `false`")),
        };
        if payload && matches!(delivery, Delivery::PullWake { .. }) {
            return Err(Refusal::invalid("payload is for subscriptions of type `webhook` only"));
        }
        let config = Config {
            delivery,
            pattern,
            lease_ms: self.number("lease_ttl_ms", lease)?.unwrap_or(limits::SUBSCRIPTION_LEASE_MS),
            description: description.map(Into::into),
            payload,
            max_attempts: max_attempts
                .and_then(|most| u32::try_from(most).ok())
                .unwrap_or(limits::SUBSCRIPTION_ATTEMPTS),
        };
        Ok(Wanted { config, streams })
    }

    /// The streams that are named; at least one.
    pub fn streams(&self) -> Result<Vec<StreamId>, Refusal> {
        let invalid = || {
            let most = limits::SUBSCRIPTION_STREAMS;
            Refusal::invalid(format!("streams must be an array of 1 to {most} paths of streams"))
        };
        let Some(Value::Array(listed)) = self.0.get("streams") else { return Err(invalid()) };
        if listed.is_empty() || listed.len() > limits::SUBSCRIPTION_STREAMS {
            return Err(invalid());
        }
        listed.iter().map(|one| one.as_str().ok_or_else(invalid).and_then(stream)).collect()
    }

    /// The name of the worker that claims.
    pub fn worker(&self) -> Result<&str, Refusal> {
        let most = limits::WORKER_NAME_BYTES;
        let worker = self.text("worker")?.filter(|name| (1..=most).contains(&name.len()));
        worker.ok_or_else(|| Refusal::invalid(format!("worker must be a text of 1 to {most} bytes")))
    }

    /// A report of a worker that shows this token.
    pub fn report(&self, token: String) -> Result<Report, Refusal> {
        let wake_id = self.text("wake_id")?.ok_or_else(|| Refusal::invalid("wake_id is required"))?;
        let generation = self
            .number("generation", 0..=u64::MAX)?
            .ok_or_else(|| Refusal::invalid("generation is required"))?;
        let then = match self.present("done") {
            None | Some(Value::Bool(false)) => Then::GoOn,
            Some(Value::Bool(true)) => Then::Done,
            Some(_) => return Err(Refusal::invalid("done must be `true` or `false`")),
        };
        Ok(Report { token, wake_id: wake_id.to_owned(), generation, acks: self.acks()?, then })
    }

    fn acks(&self) -> Result<Vec<(StreamId, Position)>, Refusal> {
        let invalid = || {
            let most = limits::SUBSCRIPTION_ACKS;
            Refusal::invalid(format!(
                "acks must be an array of at most {most} objects with `stream` and `offset`"
            ))
        };
        let listed = match self.present("acks") {
            None => return Ok(Vec::new()),
            Some(Value::Array(listed)) if listed.len() <= limits::SUBSCRIPTION_ACKS => listed,
            Some(_) => return Err(invalid()),
        };
        let one = |ack: &Value| {
            let named = ack.get("stream").or_else(|| ack.get("path")).and_then(Value::as_str);
            let text = ack.get("offset").and_then(Value::as_str);
            let (named, text) = named.zip(text).ok_or_else(invalid)?;
            let position = offset::parse(text).ok_or_else(|| Refusal::no_offset(named))?;
            Ok((stream(named)?, position))
        };
        listed.iter().map(one).collect()
    }

    fn url(&self) -> Result<&str, Refusal> {
        let url = self.0.get("webhook").and_then(|webhook| webhook.get("url")).and_then(Value::as_str);
        url.ok_or_else(|| Refusal::invalid("a subscription of type `webhook` needs webhook.url"))
    }

    fn wake_stream(&self) -> Result<StreamId, Refusal> {
        let named = self.text("wake_stream")?;
        let missing = || Refusal::invalid("a subscription of type `pull-wake` needs wake_stream");
        stream(named.ok_or_else(missing)?)
    }

    /// A member that is there, and not `null`.
    fn present(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<&str>, Refusal> {
        match self.present(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Refusal::invalid(format!("{name} must be a text"))),
        }
    }

    fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.present(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        let invalid = || Refusal::invalid(format!("{name} must be a whole number from {least} to {most}"));
        number.map(Some).ok_or_else(invalid)
    }
}

/// The stream that a path below the root names.
pub fn stream(path: &str) -> Result<StreamId, Refusal> {
    let id = StreamId::parse(path.trim_matches('/')).map_err(Refusal::invalid)?;
    // Streams of sessions are listened to under their own ids.
    match id.reserved() {
        None => Ok(id),
        Some(why) => Err(Refusal::invalid(why)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members(value: Value) -> Members {
        Members(value.as_object().expect("an object").clone())
    }

    fn refused(result: Result<impl Sized, Refusal>) -> (&'static str, String) {
        match result.err().expect("it is refused") {
            Refusal::Own { code, message, .. } => (code, message),
            Refusal::Common(error) => (error.code(), String::new()),
        }
    }

    #[test]
    fn a_subscription_has_defaults() {
        let sent =
            json!({ "type": "webhook", "pattern": "/a/*", "webhook": { "url": "https://example.com" } });
        let wanted = members(sent).wanted().expect("valid");
        assert_eq!(wanted.config.pattern.as_ref().map(Glob::as_str), Some("a/*"));
        assert_eq!((wanted.config.lease_ms, wanted.config.max_attempts), (30_000, 1440));
        assert!(!wanted.config.payload && wanted.streams.is_empty());
    }

    #[test]
    fn a_subscription_that_makes_no_sense_is_refused() {
        let base = json!({ "type": "pull-wake", "wake_stream": "w", "streams": ["a"] });
        assert!(members(base.clone()).wanted().is_ok());
        for (name, value) in [
            ("type", json!("push")),
            ("type", json!(1)),
            ("wake_stream", json!(null)),
            ("wake_stream", json!("__ds/x")),
            ("streams", json!([])),
            ("streams", json!([1])),
            ("streams", json!("a")),
            ("pattern", json!("a//b")),
            ("lease_ttl_ms", json!(999)),
            ("lease_ttl_ms", json!(600_001)),
            ("lease_ttl_ms", json!("1000")),
            ("payload", json!(true)),
            ("payload", json!("yes")),
            ("max_attempts", json!(0)),
            ("description", json!("x".repeat(2000))),
        ] {
            let mut sent = base.clone();
            sent[name] = value.clone();
            assert_eq!(refused(members(sent).wanted()).0, "INVALID_REQUEST", "{name}: {value}");
        }
    }

    #[test]
    fn a_report_names_its_wake() {
        let offset = "0000000000000001_0000000000000002";
        let sent = json!({
            "wake_id": "w_1", "generation": 7, "done": true,
            "acks": [{ "stream": "/a/b", "offset": offset }, { "path": "c", "offset": offset }],
        });
        let report = members(sent.clone()).report("token".to_owned()).expect("valid");
        assert_eq!((report.generation, report.then, report.acks.len()), (7, Then::Done, 2));
        assert_eq!(report.acks[0].0.as_str(), "a/b");
        for (name, value, code) in [
            ("wake_id", json!(1), "INVALID_REQUEST"),
            ("generation", json!(-1), "INVALID_REQUEST"),
            ("done", json!("yes"), "INVALID_REQUEST"),
            ("acks", json!([{ "stream": "a" }]), "INVALID_REQUEST"),
            ("acks", json!([{ "stream": "a", "offset": "-1" }]), "INVALID_OFFSET"),
            ("acks", json!([{ "stream": "a", "offset": "now" }]), "INVALID_OFFSET"),
        ] {
            let mut sent = sent.clone();
            sent[name] = value.clone();
            assert_eq!(refused(members(sent).report(String::new())).0, code, "{name}: {value}");
        }
    }
}
