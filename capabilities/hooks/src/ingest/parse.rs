//! The body of an ingest request: a batch of events, valid as a whole or refused as a whole.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tidings_model::{Timestamp, limits};

use crate::pattern::is_event_type;

/// A batch of events as its publisher sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Id of the batch. A second batch with the same id within a day is ignored.
    pub id: Option<String>,
    /// Number of the events.
    pub received: usize,
    /// The events, or what is wrong with some of them. That is told only after limits and the id of the batch have been
    /// looked at: a batch that is repeated is ignored whatever has become of the times of its events.
    pub events: Result<Vec<NewEvent>, InvalidBatch>,
}

/// An event as its publisher sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// Type of the event.
    pub event_type: String,
    /// Id of the event, if the publisher chose one.
    pub id: Option<String>,
    /// Time of the event, as it was written.
    pub ts: String,
    /// The event as a JSON object, without `_namespace`.
    pub json: Bytes,
}

/// Why a batch is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBatch {
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    Json(String),
    /// The body is not a batch.
    #[error("{0}")]
    Batch(String),
    /// Some events are invalid. Holds the first ones.
    #[error("{} of the events are invalid", .0.count)]
    Events(InvalidEvents),
    /// Some events are too large. Holds the first ones.
    #[error("an event may have at most {} bytes", limits::INGEST_EVENT_BYTES)]
    TooLarge(InvalidEvents),
}

/// The invalid events of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidEvents {
    /// How many there are.
    pub count: usize,
    /// Index and reason of the first ones, at most [`limits::INGEST_DETAILS`].
    pub first: Vec<(usize, String)>,
}

impl InvalidEvents {
    fn add(&mut self, index: usize, why: String) {
        self.count += 1;
        if self.first.len() < limits::INGEST_DETAILS {
            self.first.push((index, why));
        }
    }
}

impl Batch {
    /// Parses the body of an ingest request. Fails if it is no batch. `now` bounds the times of events.
    pub fn parse(body: &[u8], now: Timestamp) -> Result<Self, InvalidBatch> {
        let mut parser = serde_json::Deserializer::from_slice(body);
        let outer = Outer.deserialize(&mut parser).and_then(|outer| parser.end().map(|()| outer));
        let Parsed { id, events } = outer.map_err(|error| InvalidBatch::Json(error.to_string()))??;
        Ok(Self { id, received: events.len(), events: Self::events(events, now) })
    }

    fn events(events: Vec<&RawValue>, now: Timestamp) -> Result<Vec<NewEvent>, InvalidBatch> {
        let mut valid = Vec::with_capacity(events.len());
        let (mut invalid, mut large) = (InvalidEvents::default(), InvalidEvents::default());
        for (index, raw) in events.into_iter().enumerate() {
            let bytes = raw.get().len();
            if bytes > limits::INGEST_EVENT_BYTES {
                large.add(index, format!("the event has {bytes} bytes"));
                continue;
            }
            match event(raw, now) {
                Ok(event) => valid.push(event),
                Err(why) => invalid.add(index, why),
            }
        }
        if invalid.count > 0 {
            return Err(InvalidBatch::Events(invalid));
        }
        if large.count > 0 {
            return Err(InvalidBatch::TooLarge(large));
        }
        Ok(valid)
    }
}

/// The members of the body.
struct Parsed<'a> {
    id: Option<String>,
    events: Vec<&'a RawValue>,
}

/// Parses the body. What is JSON but no batch is an inner error, so that it is told apart from what is not JSON.
struct Outer;

impl<'de> DeserializeSeed<'de> for Outer {
    type Value = Result<Parsed<'de>, InvalidBatch>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let raw: &RawValue = serde::Deserialize::deserialize(deserializer)?;
        let shape = |why: &str| Err(InvalidBatch::Batch(why.to_owned()));
        if !raw.get().starts_with('{') {
            return Ok(shape("the body must be an object with `events`"));
        }
        let mut parser = serde_json::Deserializer::from_str(raw.get());
        let mut members = Members::default();
        match (&mut parser).deserialize_map(&mut members) {
            Ok(()) => {}
            Err(_) if members.too_many => {
                return Ok(shape(&format!("a batch has at most {} events", limits::INGEST_EVENTS)));
            }
            Err(error) => return Ok(Err(InvalidBatch::Json(error.to_string()))),
        }
        let id = match members.id {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) if (1..=limits::EVENT_ID_BYTES).contains(&id.len()) => Some(id),
            Some(_) => {
                return Ok(shape(&format!(
                    "`batchId` must be a string of 1 to {} bytes",
                    limits::EVENT_ID_BYTES
                )));
            }
        };
        match members.events {
            Some(Some(events)) => Ok(Ok(Parsed { id, events })),
            Some(None) => Ok(shape("`events` must be an array")),
            None => Ok(shape("`events` is missing")),
        }
    }
}

/// Collects the members of the body.
#[derive(Default)]
struct Members<'de> {
    id: Option<Value>,
    /// The inner value is `None` if the member is no array.
    events: Option<Option<Vec<&'de RawValue>>>,
    too_many: bool,
}

impl<'de> Visitor<'de> for &mut Members<'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            match &*name {
                "batchId" => self.id = Some(map.next_value()?),
                "events" => {
                    let raw: &RawValue = map.next_value()?;
                    self.events = Some(match raw.get().starts_with('[') {
                        false => None,
                        true => {
                            let mut parser = serde_json::Deserializer::from_str(raw.get());
                            let elements = Elements { too_many: &mut self.too_many };
                            let events = (&mut parser).deserialize_seq(elements);
                            Some(events.map_err(serde::de::Error::custom)?)
                        }
                    });
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Collects the elements of an array, up to the limit.
struct Elements<'a> {
    too_many: &'a mut bool,
}

impl<'de> Visitor<'de> for Elements<'_> {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            if elements.len() == limits::INGEST_EVENTS {
                *self.too_many = true;
                return Err(serde::de::Error::custom("too many events"));
            }
            elements.push(element);
        }
        Ok(elements)
    }
}

/// Validates one event.
fn event(raw: &RawValue, now: Timestamp) -> Result<NewEvent, String> {
    let text = raw.get();
    if !text.starts_with('{') {
        return Err("an event must be an object".to_owned());
    }
    let mut fields = Fields::default();
    serde_json::Deserializer::from_str(text)
        .deserialize_map(&mut fields)
        .map_err(|error| error.to_string())?;
    let event_type = match fields.event_type {
        Some(Value::String(event_type)) if is_event_type(&event_type) => event_type,
        Some(Value::String(_)) => {
            let (bytes, segments) = (limits::EVENT_TYPE_BYTES, limits::EVENT_TYPE_SEGMENTS);
            return Err(format!(
                "`type` must have 1 to {bytes} letters, digits, `.`, `_` or `-`, in at most {segments} segments, none empty"
            ));
        }
        Some(_) => return Err("`type` must be a string".to_owned()),
        None => return Err("`type` is missing".to_owned()),
    };
    let ts = match fields.ts {
        Some(Value::String(ts)) => ts,
        Some(_) => return Err("`ts` must be a string".to_owned()),
        None => return Err("`ts` is missing".to_owned()),
    };
    check_time(&ts, now)?;
    let id = match fields.id {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) if (1..=limits::EVENT_ID_BYTES).contains(&id.len()) => Some(id),
        Some(_) => return Err(format!("`id` must be a string of 1 to {} bytes", limits::EVENT_ID_BYTES)),
    };
    let json = match fields.namespace {
        false => Bytes::copy_from_slice(text.as_bytes()),
        true => without_namespace(text)?,
    };
    Ok(NewEvent { event_type, id, ts, json })
}

/// The members of an event that the server reads.
#[derive(Default)]
struct Fields {
    event_type: Option<Value>,
    ts: Option<Value>,
    id: Option<Value>,
    namespace: bool,
}

impl<'de> Visitor<'de> for &mut Fields {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match &*name {
                "type" => self.event_type = Some(map.next_value()?),
                "ts" => self.ts = Some(map.next_value()?),
                "id" => self.id = Some(map.next_value()?),
                other => {
                    self.namespace |= other == "_namespace";
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// The namespace is the server's to tell, so a publisher's is left out.
fn without_namespace(text: &str) -> Result<Bytes, String> {
    let mut event: serde_json::Map<String, Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    event.remove("_namespace");
    serde_json::to_vec(&event).map(Bytes::from).map_err(|error| error.to_string())
}

fn check_time(ts: &str, now: Timestamp) -> Result<(), String> {
    if ts.len() > limits::EVENT_TIME_BYTES {
        return Err("`ts` must be a time in ISO 8601".to_owned());
    }
    let millis =
        ts.parse::<jiff::Timestamp>().map_err(|_| "`ts` must be a time in ISO 8601, with a time zone")?;
    let at = Timestamp::from_millis(u64::try_from(millis.as_millisecond()).unwrap_or(0));
    if now.since(at) > limits::EVENT_AGE_MAX {
        return Err("`ts` is more than 7 days in the past".to_owned());
    }
    if at.since(now) > limits::EVENT_AHEAD_MAX {
        return Err("`ts` is more than 1 hour in the future".to_owned());
    }
    Ok(())
}

/// A time as events have it: ISO 8601 in UTC, with milliseconds.
pub fn time_text(at: Timestamp) -> String {
    let millis = i64::try_from(at.as_millis()).unwrap_or(i64::MAX);
    let at = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// 2026-01-15T10:30:00Z.
    const NOW: Timestamp = Timestamp::from_millis(1_768_473_000_000);
    const TS: &str = "2026-01-15T10:30:00.000Z";

    fn parse(body: &Value) -> Result<Vec<NewEvent>, InvalidBatch> {
        Batch::parse(body.to_string().as_bytes(), NOW)?.events
    }

    #[test]
    fn a_time_is_written_with_milliseconds_and_read_back() {
        assert_eq!(time_text(NOW), TS);
        assert_eq!(time_text(Timestamp::from_millis(7)), "1970-01-01T00:00:00.007Z");
        assert!(time_text(Timestamp::from_millis(u64::MAX)).starts_with("9999-"));
    }

    #[test]
    fn a_batch_keeps_the_events_as_they_were_written() {
        let body = format!(
            r#"{{"batchId":"b1","events":[{{"type":"a.b", "ts":"{TS}","id":"e1","n":1.50}}],"more":[]}}"#
        );
        let batch = Batch::parse(body.as_bytes(), NOW).expect("valid");
        assert_eq!(batch.id.as_deref(), Some("b1"));
        assert_eq!(batch.received, 1);
        let events = batch.events.expect("valid");
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&*event.event_type, event.id.as_deref(), &*event.ts), ("a.b", Some("e1"), TS));
        assert_eq!(event.json, format!(r#"{{"type":"a.b", "ts":"{TS}","id":"e1","n":1.50}}"#));
        assert_eq!(parse(&json!({"events": []})), Ok(vec![]));
        let named = parse(&json!({"events": [{"type": "a", "ts": TS, "_namespace": "other", "x": 1}]}));
        assert_eq!(named.expect("valid")[0].json, json!({"ts": TS, "type": "a", "x": 1}).to_string());
    }

    #[test]
    fn what_is_no_batch_is_refused_with_its_reason() {
        for (body, json) in
            [("", true), ("{", true), ("nul", true), ("{\"events\":[}", true), ("{} {}", true)]
        {
            let refused = Batch::parse(body.as_bytes(), NOW).expect_err(body);
            assert_eq!(matches!(refused, InvalidBatch::Json(_)), json, "{body}: {refused:?}");
        }
        assert!(matches!(Batch::parse(b"{\"events\":[\"\xff\"]}", NOW), Err(InvalidBatch::Json(_))));
        let event = json!({"type": "a", "ts": TS});
        for body in [
            json!([]),
            json!("events"),
            json!({}),
            json!({"events": {}}),
            json!({"events": null}),
            json!({"events": [], "batchId": 7}),
            json!({"events": [], "batchId": ""}),
            json!({"events": [], "batchId": "x".repeat(257)}),
            json!({"events": vec![event.clone(); 1001]}),
        ] {
            let refused = parse(&body).expect_err("refused");
            assert!(matches!(refused, InvalidBatch::Batch(_)), "{refused:?}");
        }
        assert_eq!(parse(&json!({"events": vec![event; 1000]})).expect("valid").len(), 1000);
    }

    #[test]
    fn one_invalid_event_refuses_the_batch_and_the_first_ten_are_told() {
        let good = json!({"type": "a", "ts": TS});
        for bad in [
            json!(7),
            json!([]),
            json!({"ts": TS}),
            json!({"type": "a"}),
            json!({"type": 1, "ts": TS}),
            json!({"type": "a..b", "ts": TS}),
            json!({"type": "a b", "ts": TS}),
            json!({"type": "1.2.3.4.5.6.7.8.9.10.11", "ts": TS}),
            json!({"type": "a", "ts": 1_768_473_000_000u64}),
            json!({"type": "a", "ts": "yesterday"}),
            json!({"type": "a", "ts": "2026-01-08T10:29:59.999Z"}),
            json!({"type": "a", "ts": "2026-01-15T11:30:00.001Z"}),
            json!({"type": "a", "ts": TS, "id": 7}),
            json!({"type": "a", "ts": TS, "id": ""}),
        ] {
            match parse(&json!({"events": [good, bad, good]})) {
                Err(InvalidBatch::Events(InvalidEvents { count: 1, first })) => {
                    assert_eq!(first[0].0, 1, "{bad}")
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
        for good in ["2026-01-08T10:30:00Z", "2026-01-15T11:30:00Z", "2026-01-15T11:30:00.5+01:00"] {
            assert!(parse(&json!({"events": [{"type": "a", "ts": good}]})).is_ok(), "{good}");
        }
        let Err(InvalidBatch::Events(invalid)) = parse(&json!({"events": vec![json!(1); 12]})) else {
            panic!()
        };
        assert_eq!((invalid.count, invalid.first.len()), (12, 10));
    }

    #[test]
    fn an_event_has_at_most_ten_kibibytes() {
        let sized = |bytes: usize| {
            let empty = json!({"type": "a", "ts": TS, "x": ""}).to_string().len();
            parse(&json!({"events": [{"type": "a", "ts": TS, "x": "y".repeat(bytes - empty)}]}))
        };
        assert!(sized(10 * 1024).is_ok());
        assert!(
            matches!(sized(10 * 1024 + 1), Err(InvalidBatch::TooLarge(invalid)) if invalid.first[0].0 == 0)
        );
    }

    proptest! {
        #[test]
        fn no_body_makes_the_parser_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Batch::parse(&body, NOW);
        }

        #[test]
        fn nothing_like_a_batch_makes_the_parser_panic(body in "[{}\\[\\]\",:a-z0-9\\\\ ]{0,60}") {
            let _ = Batch::parse(format!("{{\"events\":{body}}}").as_bytes(), NOW);
            let _ = Batch::parse(format!("{{\"events\":[{{\"type\":{body}}}]}}").as_bytes(), NOW);
        }
    }
}
