//! Events as they are stored, and as they are delivered.
//!
//! The events of a project lie in one log, each a complete record, and the queues of hooks refer to them. A record has a
//! short head (type, id, time) and the event as one JSON object, so that a delivery is made without parsing it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde_json::Value;
use serde_json::value::RawValue;
use tidings_model::{LogId, ProjectId};

use crate::hook::Format;

/// First byte of a record that is a complete event. In a journal it tells such records from headers.
pub const EVENT: u8 = 1;
/// Bytes of the head before its texts: kind, flags, three lengths.
const FIXED: usize = 2 + 3 * 2;
/// Flag: the event is a notice about a hook, whose queue follows the texts.
const ABOUT: u8 = 1;
/// Flag: the publisher chose the id.
const ID_CHOSEN: u8 = 2;

/// An event of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Type of the event, which patterns match.
    pub event_type: String,
    /// Id of the event.
    pub id: String,
    /// Time of the event as the publisher wrote it, in ISO 8601.
    pub ts: String,
    /// Queue of the hook that this notice is about. It never receives it.
    pub about: Option<LogId>,
    /// Whether the publisher chose the id, so that it is remembered.
    pub id_chosen: bool,
    /// The event as one JSON object with at least one member, without `_namespace`.
    pub json: Bytes,
}

impl Event {
    /// Encodes the event as a record.
    pub fn to_record(&self) -> Bytes {
        let texts = [&self.event_type, &self.id, &self.ts];
        let length: usize = texts.iter().map(|text| text.len()).sum();
        let mut out = BytesMut::with_capacity(FIXED + length + 8 + self.json.len());
        out.put_u8(EVENT);
        let about = if self.about.is_some() { ABOUT } else { 0 };
        out.put_u8(about | if self.id_chosen { ID_CHOSEN } else { 0 });
        for text in texts {
            out.put_u16_le(u16::try_from(text.len()).expect("limits of texts are below 64 KiB"));
        }
        for text in texts {
            out.put_slice(text.as_bytes());
        }
        if let Some(about) = self.about {
            out.put_u64_le(about.get());
        }
        out.put_slice(&self.json);
        out.freeze()
    }

    /// Decodes a record. The JSON shares its bytes. Returns `None` if the record is no event.
    pub fn from_record(record: &Bytes) -> Option<Self> {
        let mut head = &record[..];
        if head.len() < FIXED || head.get_u8() != EVENT {
            return None;
        }
        let flags = head.get_u8();
        let lengths = [head.get_u16_le(), head.get_u16_le(), head.get_u16_le()].map(usize::from);
        let mut text = |length: usize| {
            let text = std::str::from_utf8(head.get(..length)?).ok()?.to_owned();
            head.advance(length);
            Some(text)
        };
        let (event_type, id, ts) = (text(lengths[0])?, text(lengths[1])?, text(lengths[2])?);
        let about = match flags & ABOUT {
            0 => None,
            _ if head.len() < 8 => return None,
            _ => Some(LogId::new(head.get_u64_le())),
        };
        let json = record.slice(record.len() - head.len()..);
        Some(Self { event_type, id, ts, about, id_chosen: flags & ID_CHOSEN != 0, json })
    }

    /// The event as a JSON value, for filters and ordering keys.
    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.json).unwrap_or(Value::Null)
    }

    /// The event with its namespace, as a delivery carries it. Events of the default project have none.
    pub fn payload(&self, project: &ProjectId) -> Bytes {
        if *project == ProjectId::default_project() {
            return self.json.clone();
        }
        let mut out = Vec::with_capacity(self.json.len() + 32);
        self.write_payload(project, &mut out);
        out.into()
    }

    fn write_payload(&self, project: &ProjectId, out: &mut Vec<u8>) {
        if *project == ProjectId::default_project() {
            out.extend_from_slice(&self.json);
            return;
        }
        let open = self.json.iter().rposition(|&byte| byte == b'}').unwrap_or(self.json.len());
        out.extend_from_slice(&self.json[..open]);
        out.extend_from_slice(b",\"_namespace\":\"");
        // The id of a project has no character that JSON escapes.
        out.extend_from_slice(project.as_str().as_bytes());
        out.extend_from_slice(b"\"}");
    }

    /// The body of a delivery in a format.
    pub fn body(&self, format: Format, project: &ProjectId) -> Bytes {
        let mut out = Vec::with_capacity(self.json.len() + self.id.len() + 256);
        let member = |out: &mut Vec<u8>, name: &str, value: &str| {
            out.extend_from_slice(name.as_bytes());
            serde_json::to_writer(&mut *out, value).expect("text can be written to memory");
        };
        match format {
            Format::Raw | Format::CloudEventsBinary => return self.payload(project),
            Format::Envelope => {
                member(&mut out, "{\"id\":", &self.id);
                member(&mut out, ",\"type\":", &self.event_type);
                member(&mut out, ",\"ts\":", &self.ts);
                out.extend_from_slice(b",\"payload\":");
            }
            Format::CloudEventsStructured => {
                member(&mut out, "{\"specversion\":\"1.0\",\"id\":", &self.id);
                member(&mut out, ",\"source\":", &source(project));
                member(&mut out, ",\"type\":", &self.event_type);
                member(&mut out, ",\"time\":", &self.ts);
                out.extend_from_slice(b",\"datacontenttype\":\"application/json\",\"data\":");
            }
        }
        self.write_payload(project, &mut out);
        out.push(b'}');
        out.into()
    }
}

/// The media type of a delivery in a format.
pub fn content_type(format: Format) -> &'static str {
    match format {
        Format::Envelope | Format::Raw | Format::CloudEventsBinary => "application/json",
        Format::CloudEventsStructured => "application/cloudevents+json",
    }
}

/// The `source` of a CloudEvent: the path of the project.
pub fn source(project: &ProjectId) -> String {
    format!("/v1/{project}")
}

/// Makes the JSON of an event that refers to a message of another capability: its type, its time, a field that names
/// what it was appended to, and the content as `data` or, if it is not text, as `data_base64`.
pub fn of_message(
    event_type: &str,
    ts: &str,
    field: &str,
    name: &str,
    content_type: &str,
    content: &[u8],
) -> Bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    let mut out = Vec::with_capacity(content.len() + 256);
    let text = |out: &mut Vec<u8>, value: &str| {
        serde_json::to_writer(&mut *out, value).expect("text can be written to memory");
    };
    out.extend_from_slice(b"{\"type\":");
    text(&mut out, event_type);
    out.extend_from_slice(b",\"ts\":");
    text(&mut out, ts);
    out.push(b',');
    text(&mut out, field);
    out.push(b':');
    text(&mut out, name);
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = media == "application/json" || media.ends_with("+json");
    let as_text = std::str::from_utf8(content).ok();
    match as_text {
        Some(json) if is_json && serde_json::from_str::<&RawValue>(json).is_ok() => {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(content);
        }
        Some(plain) if is_json || media.starts_with("text/") => {
            out.extend_from_slice(b",\"data\":");
            text(&mut out, plain);
        }
        _ => {
            out.extend_from_slice(b",\"data_base64\":");
            text(&mut out, &STANDARD.encode(content));
        }
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn event(json: &'static str) -> Event {
        Event {
            event_type: "orders.paid".into(),
            id: "evt \"1\"".into(),
            ts: "2026-01-15T10:30:00.000Z".into(),
            about: None,
            id_chosen: false,
            json: Bytes::from_static(json.as_bytes()),
        }
    }

    fn shop() -> ProjectId {
        ProjectId::parse("shop").expect("an id")
    }

    #[test]
    fn a_body_has_the_form_that_the_hook_asks_for() {
        let event = event(r#"{"type":"orders.paid","amount":7}"#);
        let parsed = |format, project: &ProjectId| -> Value {
            serde_json::from_slice(&event.body(format, project)).expect("valid JSON")
        };
        let payload = json!({"type": "orders.paid", "amount": 7, "_namespace": "shop"});
        assert_eq!(
            parsed(Format::Envelope, &shop()),
            json!({"id": "evt \"1\"", "type": "orders.paid", "ts": "2026-01-15T10:30:00.000Z", "payload": payload})
        );
        assert_eq!(parsed(Format::Raw, &shop()), payload);
        assert_eq!(parsed(Format::CloudEventsBinary, &shop()), payload);
        assert_eq!(
            parsed(Format::CloudEventsStructured, &shop()),
            json!({
                "specversion": "1.0", "id": "evt \"1\"", "source": "/v1/shop", "type": "orders.paid",
                "time": "2026-01-15T10:30:00.000Z", "datacontenttype": "application/json", "data": payload,
            })
        );
        let default = ProjectId::default_project();
        assert_eq!(parsed(Format::Raw, &default), json!({"type": "orders.paid", "amount": 7}));
    }

    #[test]
    fn a_message_becomes_data_as_its_content_type_says() {
        let made = |content_type: &str, content: &[u8]| -> Value {
            let json = of_message("stream.a", "t", "stream", "a", content_type, content);
            serde_json::from_slice(&json).expect("valid JSON")
        };
        let with = |name: &str, value: Value| {
            let mut event = json!({"type": "stream.a", "ts": "t", "stream": "a"});
            event[name] = value;
            event
        };
        assert_eq!(made("application/json", b"{\"a\":[1]}"), with("data", json!({"a": [1]})));
        assert_eq!(made("application/ld+json; charset=utf-8", b"7"), with("data", json!(7)));
        assert_eq!(made("application/json", b"not json"), with("data", json!("not json")));
        assert_eq!(made("text/plain", "gr\u{fc}n".as_bytes()), with("data", json!("gr\u{fc}n")));
        assert_eq!(made("text/plain", &[0xff, 0]), with("data_base64", json!("/wA=")));
        assert_eq!(made("application/octet-stream", b"abc"), with("data_base64", json!("YWJj")));
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(
            texts in prop::collection::vec(".{0,40}", 3), about in prop::option::of(any::<u64>()), json in ".{2,80}",
            id_chosen in any::<bool>(),
        ) {
            let event = Event {
                event_type: texts[0].clone(), id: texts[1].clone(), ts: texts[2].clone(),
                about: about.map(LogId::new), id_chosen, json: json.into(),
            };
            let record = event.to_record();
            prop_assert_eq!(Event::from_record(&record), Some(event.clone()));
            for length in 0..record.len() - event.json.len() {
                prop_assert_eq!(Event::from_record(&record.slice(..length)), None);
            }
        }
    }
}
