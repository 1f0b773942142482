//! What workers are told: which streams have something, and how far each was acknowledged.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tidings_model::{LogId, Position, StreamId, limits};
use tidings_streams::{ContentType, From, StreamError, StreamKey};

use crate::subscription::Subscription;
use crate::table::Linked;
use crate::{SubscriptionError, Subscriptions};

/// The streams of a subscription at one moment, at most [`limits::WAKE_STREAMS`], those with something pending first.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The streams, each with its tail.
    pub streams: Vec<Linked>,
    /// Whether there are more streams with something pending.
    pub more: bool,
}

/// A stream in a wake, as workers are told of it.
#[derive(Serialize)]
pub(crate) struct Told {
    #[serde(flatten)]
    stream: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<ToldPayload>,
}

#[derive(Serialize)]
struct ToldPayload {
    encoding: &'static str,
    messages: Vec<Box<RawValue>>,
    next_offset: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    omitted: Option<usize>,
}

/// Messages of one stream that a wake brings.
pub(crate) struct Payload {
    /// Position of the last of them.
    pub(crate) through: Position,
    /// How they are written: `json`, `text` or `base64`.
    encoding: &'static str,
    messages: Vec<Box<RawValue>>,
    /// Messages up to that position that are too large to be brought.
    omitted: usize,
}

impl Subscriptions {
    /// The streams that a wake or a claim tells of.
    pub(crate) async fn snapshot(&self, number: LogId) -> Result<Snapshot, SubscriptionError> {
        let mut pending = self.first_pending(number, limits::WAKE_STREAMS + 1).await?;
        let more = pending.len() > limits::WAKE_STREAMS;
        pending.truncate(limits::WAKE_STREAMS);
        let mut streams = Vec::with_capacity(pending.len());
        for stream in &pending {
            streams.extend(self.0.store.link(number, stream).await?);
        }
        let room = limits::WAKE_STREAMS - streams.len();
        if room > 0 {
            let told: HashSet<&StreamId> = pending.iter().collect();
            let others = self.0.store.links(number, None, limits::WAKE_STREAMS).await?;
            streams.extend(others.into_iter().filter(|one| !told.contains(&one.stream)).take(room));
        }
        Ok(Snapshot { streams, more })
    }

    /// The messages of a stream after its cursor, within `room` bytes. `None` if the stream is gone.
    pub(crate) async fn payload(
        &self,
        subscription: &Subscription,
        linked: &Linked,
        room: &mut usize,
    ) -> Result<Option<Payload>, SubscriptionError> {
        let key = StreamKey { project: subscription.project.clone(), id: linked.stream.clone() };
        let read = match self.0.streams.read(&key, From::After(linked.link.acked)).await {
            // What was trimmed is gone for everybody.
            Err(StreamError::Trimmed { .. }) => self.0.streams.read(&key, From::Start).await,
            read => read,
        };
        let (stream, chunk) = match read {
            Ok(read) => read,
            Err(StreamError::NotFound | StreamError::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let encoding = encoding(&stream.content_type);
        let mut payload = Payload { through: linked.link.acked, encoding, messages: Vec::new(), omitted: 0 };
        for record in chunk.records.iter().filter(|record| record.position <= linked.tail) {
            let bytes = record.payload.len();
            if bytes > limits::WAKE_PAYLOAD_BYTES && payload.messages.is_empty() && payload.omitted == 0 {
                // No wake could bring it, so the worker has to read it. What follows it is for the next wake.
                (payload.through, payload.omitted) = (record.position, 1);
                return Ok(Some(payload));
            }
            if bytes > *room {
                *room = 0;
                return Ok(Some(payload));
            }
            *room -= bytes;
            payload.through = record.position;
            payload.messages.push(message(encoding, &record.payload));
        }
        if chunk.up_to_date {
            payload.through = payload.through.max(linked.tail);
        }
        Ok(Some(payload))
    }

    /// A stream as workers are told of it.
    pub fn told(&self, linked: &Linked) -> Value {
        let print = self.0.print;
        json!({
            "path": linked.stream.as_str(),
            "link_type": if linked.link.explicit { "explicit" } else { "glob" },
            "acked_offset": print(linked.link.acked),
            "tail_offset": print(linked.tail),
            "has_pending": linked.is_pending(),
        })
    }

    /// The same with messages, if a wake brings some.
    pub(crate) fn told_with(&self, linked: &Linked, payload: Option<Payload>) -> Told {
        let payload = payload.map(|payload| ToldPayload {
            encoding: payload.encoding,
            messages: payload.messages,
            next_offset: (self.0.print)(payload.through),
            omitted: Some(payload.omitted).filter(|&omitted| omitted > 0),
        });
        Told { stream: self.told(linked), payload }
    }
}

fn encoding(content_type: &ContentType) -> &'static str {
    match (content_type.is_json(), content_type.is_text()) {
        (true, _) => "json",
        (false, true) => "text",
        (false, false) => "base64",
    }
}

/// A message as JSON. One that is JSON is passed on as it was written.
fn message(encoding: &str, payload: &[u8]) -> Box<RawValue> {
    let text = match encoding {
        "json" => return serde_json::from_slice(payload).expect("messages of JSON streams are JSON"),
        "text" => String::from_utf8_lossy(payload).into_owned(),
        _ => STANDARD.encode(payload),
    };
    to_raw_value(&text).expect("a text is JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_written_as_their_content_type_allows() {
        let of = |content_type: &str, payload: &[u8]| {
            let encoding = encoding(&ContentType::parse(content_type).expect("a type"));
            message(encoding, payload).get().to_owned()
        };
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        for json in [r#"{"a":[1, 2],"a":3}"#, "1e999", r#""\ud800""#, "-0", "0.1000000000000000000001", &deep]
        {
            assert_eq!(of("application/json", json.as_bytes()), json, "as it was written");
        }
        assert_eq!(of("text/plain", "é".as_bytes()), r#""é""#);
        assert_eq!(of("image/png", &[0, 255]), r#""AP8=""#);
    }
}
