use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::envelope::Envelope;
use super::super::request::{Publish, Request};
use super::*;

/// The payload of a frame of ours, and its opcode.
fn opened(frame: &[u8]) -> (u8, &[u8]) {
    let (head, rest) = match frame[1] {
        126 => (usize::from(u16::from_be_bytes([frame[2], frame[3]])), &frame[4..]),
        127 => (usize::MAX, &frame[10..]),
        short => (short.into(), &frame[2..]),
    };
    assert!(head == rest.len() || head == usize::MAX);
    (frame[0] & 0xf, rest)
}

fn told(frame: &[u8]) -> String {
    let (opcode, payload) = opened(frame);
    assert_eq!(opcode, 1);
    String::from_utf8(payload.to_vec()).expect("text")
}

fn message(meta: Value, payload: Payload) -> PublishEnvelope {
    let Value::Object(meta) = meta else { panic!("meta is an object") };
    PublishEnvelope { meta, ..PublishEnvelope::new("t:1", "SAID").with_payload(payload) }
}

fn json_payload(text: &'static str) -> Payload {
    Payload::Json(Bytes::from_static(text.as_bytes()))
}

/// The frame that subscribers get of a publish which was parsed from a frame.
fn broadcast_of(publish: Publish<'_>, frame: &Bytes) -> Option<Bytes> {
    let envelope = publish.message.into_envelope(publish.topic.into_owned(), frame).ok()?;
    Some(broadcast(&envelope).expect("it fits"))
}

#[test]
fn answers_have_the_shape_of_the_protocol() {
    let ok = reply("1", json!({ "added": 1, "total": 2 }));
    assert_eq!(
        told(&ok),
        r#"{"type":"$reply","meta":{"correlationId":"1"},"payload":{"added":1,"total":2}}"#
    );
    let bad = WireError::frame("json", "frame is not JSON");
    let expected = r#"{"type":"ERROR","payload":{"code":"INVALID_ARGUMENT","message":"frame is not JSON","retryable":false,"details":{"reason":"json"}}}"#;
    assert_eq!(told(&error(None, &bad)), expected);
    let fast = WireError::too_fast(Duration::from_millis(7));
    let expected = r#"{"type":"RPC_ERROR","meta":{"correlationId":"\"x"},"payload":{"code":"RESOURCE_EXHAUSTED","message":"this connection sends too many frames","retryable":true,"retryAfterMs":7}}"#;
    assert_eq!(told(&error(Some("\"x"), &fast)), expected);
    let now = Timestamp::from_millis(5);
    assert_eq!(told(&heartbeat_ack(None, now)), r#"{"type":"__heartbeat_ack","meta":{"ts":5}}"#);
    let expected = r#"{"type":"__heartbeat_ack","meta":{"ts":5,"correlationId":"c"}}"#;
    assert_eq!(told(&heartbeat_ack(Some("c"), now)), expected);
    let expected = r#"{"type":"$unsubscribed","payload":{"topics":["a","b"],"reason":"token"}}"#;
    assert_eq!(told(&unsubscribed(&["a", "b"], "token")), expected);
}

#[test]
fn each_end_has_one_code_and_reason_in_the_last_text_and_in_the_close_frame() {
    for closing in Closing::ALL {
        let text: Value = serde_json::from_slice(&closing.last_text(None)).expect("JSON");
        let close = closing.close();
        assert_eq!(text["type"], "$close");
        assert_eq!(text["payload"]["code"], close.code().number());
        assert_eq!(text["payload"]["reason"], close.reason());
        assert_eq!(closing.reason(), close.reason());
        assert_eq!(text["payload"].get("retryAfterMs"), None);
    }
    let text = Closing::GoingAway.last_text(Some(Duration::from_millis(250)));
    let expected = r#"{"type":"$close","payload":{"code":1001,"reason":"going-away","reconnect":true,"retryAfterMs":250}}"#;
    assert_eq!(text, expected);
}

#[test]
fn a_broadcast_has_its_topic_and_the_payload_as_it_was_sent() {
    let broadcast = |meta, payload| told(&broadcast(&message(meta, payload)).expect("it fits"));
    let text = broadcast(json!({}), json_payload(r#"{"big": 9007199254740993}"#));
    assert_eq!(text, r#"{"type":"SAID","meta":{"topic":"t:1"},"payload":{"big": 9007199254740993}}"#);
    assert_eq!(broadcast(json!({}), Payload::None), r#"{"type":"SAID","meta":{"topic":"t:1"}}"#);
    let text = broadcast(json!({ "a": 1, "\"": null }), json_payload("null"));
    assert_eq!(text, r#"{"type":"SAID","meta":{"\"":null,"a":1,"topic":"t:1"},"payload":null}"#);
}

#[test]
fn bytes_follow_their_header() {
    let bytes = || Payload::Binary(Bytes::from_static(b"\xff\0\xfe"));
    let frame = broadcast(&message(json!({ "a": 1 }), bytes())).expect("it fits");
    let header = r#"{"type":"SAID","meta":{"a":1,"topic":"t:1"}}"#;
    let length = u16::try_from(header.len()).expect("short").to_be_bytes();
    assert_eq!(opened(&frame), (2, &[&length, header.as_bytes(), b"\xff\0\xfe"].concat()[..]));
    let long = json!({ "a": "x".repeat(usize::from(u16::MAX)) });
    let error = broadcast(&message(long, bytes())).expect_err("too long");
    assert!(error.to_string().contains("65535 bytes"), "{error}");
}

/// Any JSON value.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_published_is_what_is_broadcast(
        topic in "[a-z0-9:_./-]{1,20}",
        kind in "[^$_].{0,20}",
        meta in prop::option::of(prop::collection::btree_map("[a-z]{1,4}", value(), 0..4)),
        payload in prop::option::of(value()),
        bytes in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
    ) {
        prop_assume!(!["ERROR", "RPC_ERROR"].contains(&&*kind));
        let mut message = json!({ "type": kind });
        if let Some(meta) = &meta {
            message["meta"] = json!(meta);
        }
        if let (Some(payload), None) = (&payload, &bytes) {
            message["payload"] = payload.clone();
        }
        let text = json!({ "type": "$publish", "payload": { "topic": topic, "message": message } }).to_string();
        let sent = match &bytes {
            None => Bytes::from(text),
            Some(bytes) => {
                let length = u16::try_from(text.len()).expect("short").to_be_bytes();
                Bytes::from([&length, text.as_bytes(), bytes].concat())
            }
        };
        let request = match &bytes {
            None => {
                let text = std::str::from_utf8(&sent).expect("text");
                Request::parse(&Envelope::of_text(text).expect("an envelope"), 9)
            }
            Some(_) => {
                let (envelope, body) = Envelope::of_binary(&sent).expect("an envelope");
                Request::parse_binary(&envelope, body)
            }
        };
        let Ok(Request::Publish(publish)) = request else { panic!("{request:?}") };
        let frame = broadcast_of(publish, &sent).expect("good meta");
        let (opcode, received) = opened(&frame);
        let (header, rest) = match &bytes {
            None => (received, &b""[..]),
            Some(_) => {
                let (length, rest) = received.split_first_chunk::<2>().expect("a length");
                rest.split_at(u16::from_be_bytes(*length).into())
            }
        };
        let mut expected = json!({ "type": kind, "meta": { "topic": topic } });
        for (key, value) in meta.into_iter().flatten() {
            expected["meta"][key] = value;
        }
        if let (Some(payload), None) = (payload, &bytes) {
            expected["payload"] = payload;
        }
        prop_assert_eq!(serde_json::from_slice::<Value>(header).expect("JSON"), expected);
        prop_assert_eq!(rest, bytes.as_deref().unwrap_or_default());
        prop_assert_eq!(opcode, if bytes.is_some() { 2 } else { 1 });
    }

    #[test]
    fn frames_that_were_damaged_never_panic(
        at in any::<prop::sample::Index>(),
        with in prop::collection::vec(any::<u8>(), 0..4),
        cut in any::<prop::sample::Index>(),
        form in 0..4_usize,
    ) {
        let texts = [
            r#"{"type":"$publish","meta":{"correlationId":"1"},"payload":{"topic":"t","message":{"type":"T","meta":{"a":1},"payload":[1,{"x":"é\u00e9"}]},"excludeSelf":true}}"#,
            r#"{"type":"$set","payload":{"topics":["a","b"],"options":{"timeoutMs":5},"recover":{"a":{"epoch":"e","offset":1}}}}"#,
            r#"{"type":"$update","payload":{"add":["a"],"remove":["b"]}}"#,
            r#"{"type":"$settle","payload":{"topic":"a","timeoutMs":1}}"#,
        ];
        let mut frame = texts[form].as_bytes().to_vec();
        let at = at.index(frame.len());
        frame.splice(at..(at + with.len()).min(frame.len()), with);
        frame.truncate(cut.index(frame.len() + 1));
        let frame = Bytes::from(frame);
        if let Ok(text) = std::str::from_utf8(&frame)
            && let Ok(envelope) = Envelope::of_text(text)
            && let Ok(Request::Publish(publish)) = Request::parse(&envelope, 3)
            && let Some(received) = broadcast_of(publish, &frame)
        {
            prop_assert!(serde_json::from_slice::<serde::de::IgnoredAny>(opened(&received).1).is_ok());
        }
        let binary = [&u16::try_from(texts[form].len()).expect("short").to_be_bytes()[..], &frame].concat();
        if let Ok((envelope, body)) = Envelope::of_binary(&binary) {
            let _ = Request::parse_binary(&envelope, body);
        }
    }
}
