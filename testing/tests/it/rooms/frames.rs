//! What goes over the wire: events, heartbeats, and ids without events.

use super::*;

/// Events of all kinds, one after the other.
fn all_kinds() -> [Value; 3] {
    [message(1), reaction("1", "bob", "+1", "add"), typing("carol")]
}

#[tokio::test]
async fn events_of_all_kinds_are_heard_under_their_names_with_all_their_fields() {
    let server = open().await;
    for wire in WIRES {
        let mut reader = alice(&server, wire).comes().await;
        for event in all_kinds() {
            let answer = answer(writing(&server, ROOM, &event)).await;
            assert_eq!(answer.status(), 200);
            let written = body(answer).await;
            let heard = reader.hears().await;
            assert_eq!(json!(heard.kind), event["type"]);
            let expected = json!({
                "cursor": written["cursor"],
                "convoId": ROOM,
                "emittedAt": written["emittedAt"],
                "payload": event["payload"],
            });
            assert_eq!(heard.body, expected, "these and no others");
            assert_eq!(written["emittedAt"], json!("2025-11-16T12:00:00.123Z"));
            if wire != Wire::WebSocket {
                let durable = event["type"] != json!("typingEvent");
                let id = heard.body["cursor"].as_str().filter(|_| durable);
                assert_eq!(heard.id.as_deref(), id, "typing moves no browser's place");
            }
        }
    }
}

#[tokio::test]
async fn an_event_is_an_id_a_name_and_one_line_of_data() {
    let server = open().await;
    let mut reader = alice(&server, Wire::Sse).comes().await;
    let [message, reaction, typing] = all_kinds();
    let cursor = write(&server, message).await;
    reader.hears().await;
    let fields = format!(r#""cursor":"{cursor}","convoId":"general","emittedAt":"2025-11-16T12:00:00.123Z""#);
    let data = format!(r#"{{{fields},"payload":{{"messageView":{{"id":"1"}}}}}}"#);
    assert_eq!(reader.text, format!("id: {cursor}\nevent: messageEvent\ndata: {data}\n\n"));
    let cursor = write(&server, reaction).await;
    reader.hears().await;
    assert!(
        reader.text.starts_with(&format!("id: {cursor}\nevent: reactionEvent\ndata: {{")),
        "{}",
        reader.text
    );
    write(&server, typing).await;
    reader.hears().await;
    assert!(reader.text.starts_with("event: typingEvent\ndata: {"), "{}", reader.text);
    let mut reader = alice(&server, Wire::Sse).having_heard("nonsense").comes().await;
    reader.is_told("reset").await;
    assert!(reader.text.starts_with("event: infoEvent\ndata: {"), "{}", reader.text);
    assert_eq!(reader.text.lines().count(), 3, "a name, one line of data, and the end: {}", reader.text);
}

#[tokio::test]
async fn a_websocket_has_one_message_in_json_for_each_event() {
    let server = open().await;
    let mut reader = alice(&server, Wire::WebSocket).comes().await;
    let cursor = write(&server, message(1)).await;
    reader.hears().await;
    let expected = format!(
        r#"{{"type":"messageEvent","cursor":"{cursor}","convoId":"general","emittedAt":"2025-11-16T12:00:00.123Z","payload":{{"messageView":{{"id":"1"}}}}}}"#
    );
    assert_eq!(reader.text, expected);
}

#[tokio::test]
async fn what_is_written_is_delivered_as_it_was_and_never_breaks_out_of_its_line() {
    let server = open().await;
    let odd = r#"{"messageView":{"n":12345678901234567890.10,"nul":"\u0000","ls":"\u2028","text":"a\n\ndata: x\r\nid: 1"},
        "also":   [1,
2]}"#;
    let written = format!("{{\"type\":\"messageEvent\",\r\n\"payload\":{odd}}}");
    let mut readers = Vec::new();
    for wire in WIRES {
        readers.push(alice(&server, wire).comes().await);
    }
    let request = request(&server, Method::POST, "alice", ROOM, "events");
    let answer = answer(request.header("content-type", "application/json").body(written)).await;
    assert_eq!(answer.status(), 200);
    let expected: Value = serde_json::from_str(odd).expect("JSON");
    for mut reader in readers {
        let heard = reader.hears().await;
        assert_eq!(heard.payload(), &expected);
        assert!(reader.text.contains("12345678901234567890.10"), "as it was written: {}", reader.text);
    }
    // The name of a room cannot either.
    let name = "a%22%0b"; // refused: a control character
    let odd_room = changing_members(&server, name, &["alice"], &[]);
    assert_eq!(refused(odd_room).await.0, 400);
    let name = "a%22b%5C%E2%80%A8";
    changes_members(&server, name, &["alice"], &[]).await;
    let mut reader = guest(&server, Wire::Sse, "alice", name).comes().await;
    assert_eq!(super::answer(writing(&server, name, &message(1))).await.status(), 200);
    assert_eq!(reader.hears().await.body["convoId"], json!("a\"b\\\u{2028}"));
}

#[tokio::test]
async fn what_the_server_itself_says_has_all_fields_is_not_stored_and_has_no_id() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    for wire in WIRES {
        let guest = alice(&server, wire).asking(&format!("cursor={}&caughtUp=1", cursors[0]));
        let mut reader = guest.comes().await;
        hears_all(&mut reader, &cursors[1..]).await;
        let info = reader.is_told("caught-up").await;
        assert_eq!((info.cursor(), &info.id), (&*cursors[1], &None));
        assert_eq!(info.body["convoId"], json!(ROOM));
        assert_eq!(info.body["emittedAt"], json!("2025-11-16T12:00:00.123Z"));
        assert_eq!(*info.payload(), json!({ "reason": "caught-up", "detail": info.detail() }));
        let last = (wire != Wire::WebSocket).then(|| cursors[1].clone());
        assert_eq!(reader.last_id, last, "a browser's place is where it was");
    }
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    hears_all(&mut reader, &cursors).await;
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn nobody_but_the_server_says_info_and_bad_events_are_refused_whole() {
    let server = open().await;
    let bad = [
        json!({ "type": "infoEvent", "payload": { "reason": "compacted", "detail": {} } }),
        json!({ "type": "messageEvent", "payload": { "text": "no view" } }),
        json!({ "type": "messageEvent", "payload": { "messageView": 1 } }),
        json!({ "type": "messageEvent" }),
        json!({ "payload": { "messageView": {} } }),
        json!({ "type": "otherEvent", "payload": {} }),
        json!({ "type": "typingEvent", "payload": [] }),
        reaction("1", "bob", "+1", "toggle"),
        json!({ "type": "reactionEvent", "payload": { "messageId": "1", "actor": "bob", "reaction": "+1" } }),
        json!({ "type": "reactionEvent", "payload": { "actor": "bob", "reaction": "+1", "op": "add" } }),
        json!({ "type": "reactionEvent", "payload": { "messageId": "1", "reaction": "+1", "op": "add" } }),
        json!({ "type": "reactionEvent", "payload": { "messageId": "1", "actor": "bob", "op": "add" } }),
        json!([]),
        json!("messageEvent"),
        json!(null),
        json!([["messageEvent", { "messageView": {} }]]),
        json!([message(1), [message(2)]]),
    ];
    for bad in &bad {
        assert_eq!(refused(writing(&server, ROOM, bad)).await, (400, "InvalidRequest".into()), "{bad}");
        if bad.is_object() {
            let mixed = json!([message(1), bad, message(2)]);
            assert_eq!(
                refused(writing(&server, ROOM, &mixed)).await,
                (400, "InvalidRequest".into()),
                "{bad}"
            );
        }
    }
    let deep =
        format!(r#"{{"type":"typingEvent","payload":{{"a":{}1{}}}}}"#, "[".repeat(5000), "]".repeat(5000));
    for body in [
        &b""[..],
        b"{",
        b"[{}",
        b"\0",
        b"{\"type\":\"typingEvent\",\"payload\":{\"a\":\"\xff\"}}",
        br#"{"type":"typingEvent","payload":{"a":"\ud800"}}"#,
        br#"{"type":"typingEvent","type":"typingEvent","payload":{}}"#,
        br#"{"type":"typingEvent","payload":{}} {}"#,
        deep.as_bytes(),
    ] {
        let request = request(&server, Method::POST, "alice", ROOM, "events").body(body.to_vec());
        let body = String::from_utf8_lossy(body);
        assert_eq!(refused(request).await, (400, "InvalidRequest".into()), "{body}");
    }
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn several_events_are_written_together_and_answered_in_order() {
    let server = open().await;
    let events =
        [message(1), reaction("1", "bob", "+1", "add"), message(2), reaction("2", "bob", "-1", "add")];
    let cursors = writes(&server, &events).await;
    assert_eq!(cursors.len(), 4);
    let one = body(answer(writing(&server, ROOM, &json!([message(3)]))).await).await;
    assert!(one.is_array(), "one in an array is answered with an array: {one}");
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    for (event, cursor) in events.iter().zip(&cursors) {
        let heard = reader.hears().await;
        assert_eq!((heard.cursor(), heard.payload()), (&**cursor, &event["payload"]));
    }
}

#[tokio::test]
async fn the_answer_says_how_it_is_to_be_treated_and_where_it_begins() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let mut epoch = None;
    for wire in [Wire::Sse, Wire::SseLater] {
        for accept in [None, Some("text/event-stream; charset=utf-8"), Some("*/*")] {
            let mut guest = alice(&server, wire).asking(&format!("cursor={}", cursors[1]));
            if let Some(accept) = accept {
                guest = guest.with_header("accept", accept);
            }
            let reader = guest.comes().await;
            let head = |name: &str| reader.head[name].to_str().expect("text").to_owned();
            assert!(head("content-type").starts_with("text/event-stream"), "{}", head("content-type"));
            assert_eq!((head("cache-control"), head("x-accel-buffering")), ("no-cache".into(), "no".into()));
            assert_eq!(head("last-event-id"), cursors[1]);
            let told: u64 = head("stream-epoch").parse().expect("a number");
            assert_eq!(*epoch.get_or_insert(told), told);
        }
        for (asked, begins) in [("", &cursors[2]), ("cursor=head", &cursors[2]), ("cursor=last", &cursors[2])]
        {
            assert_eq!(alice(&server, wire).asking(asked).comes().await.head["last-event-id"], **begins);
        }
    }
}

#[tokio::test]
async fn a_stream_begins_with_how_long_to_wait_before_coming_again() {
    let server = open().await;
    let mut waits = Vec::new();
    for n in 0..30 {
        let wire = if n % 2 == 0 { Wire::Sse } else { Wire::SseLater };
        let mut reader = alice(&server, wire).comes().await;
        hears_only_what_is_new(&server, &mut reader).await;
        let [wait] = reader.retries[..] else { panic!("{:?}", reader.retries) };
        assert!((250..=1000).contains(&wait), "{wait}");
        waits.push(wait);
    }
    waits.sort_unstable();
    waits.dedup();
    assert!(waits.len() > 10, "not all at once: {waits:?}");
}

#[tokio::test]
async fn an_idle_reader_hears_a_heartbeat_every_fifteen_seconds_and_no_event() {
    let server = open().await;
    for wire in [Wire::Sse, Wire::SseLater] {
        let mut reader = alice(&server, wire).comes().await;
        let_pass(&server, 14).await;
        hears_only_what_is_new(&server, &mut reader).await;
        assert_eq!(reader.comments.len(), 0, "it is not time yet");
        let_pass(&server, 61).await;
        hears_only_what_is_new(&server, &mut reader).await;
        assert_eq!(reader.comments, ["keep-alive"; 4], "in a minute");
        assert_eq!(reader.bare_ids, [""; 0], "who hears all needs no more");
    }
}

#[tokio::test]
async fn a_reader_of_some_kinds_hears_only_these_and_cursors_are_as_they_were() {
    let server = open().await;
    let [message, reaction, typing] = all_kinds();
    let cursors =
        writes(&server, &[message.clone(), reaction.clone(), message.clone(), reaction.clone()]).await;
    for wire in WIRES {
        let some = |types: &str| alice(&server, wire).asking(&format!("cursor=oldest&types={types}"));
        for (types, expected) in [
            ("messageEvent", vec![&cursors[0], &cursors[2]]),
            ("reactionEvent", vec![&cursors[1], &cursors[3]]),
            ("messageEvent,reactionEvent", cursors.iter().collect()),
            ("reactionEvent,%20messageEvent", cursors.iter().collect()),
            ("typingEvent", vec![]),
            ("infoEvent,reactionEvent", vec![&cursors[1], &cursors[3]]),
        ] {
            let mut reader = some(&format!("{types}&caughtUp=1")).comes().await;
            for cursor in expected {
                assert_eq!(reader.hears().await.cursor(), cursor, "{types}");
            }
            let info = reader.is_told("caught-up").await;
            assert_eq!(info.cursor(), cursors[3], "it is where all is, whatever it hears");
        }
        for bad in ["", "message", "messageEvent,,", "messageEvent;typingEvent", "MessageEvent"] {
            assert_eq!(some(bad).is_refused().await.what(), (400, "InvalidRequest"), "{bad:?}");
        }
    }
    let mut reader = alice(&server, Wire::Sse).asking("types=typingEvent").comes().await;
    write(&server, message).await;
    let cursor = write(&server, typing).await;
    assert_eq!(reader.hears().await.cursor(), cursor);
}

#[tokio::test]
async fn a_reader_of_some_kinds_is_told_how_far_all_has_come() {
    let server = open().await;
    for wire in [Wire::Sse, Wire::SseLater] {
        let mut reader = alice(&server, wire).asking("types=reactionEvent").comes().await;
        let cursors = write_messages(&server, 3).await;
        let_pass(&server, 16).await;
        let marker = write(&server, reaction("1", "bob", "+1", "add")).await;
        assert_eq!(reader.hears().await.cursor(), marker);
        assert_eq!(reader.bare_ids, cursors[2..], "an id, and no event");
        // Nothing is new then, and it is not told again and again.
        let_pass(&server, 61).await;
        let another = write(&server, reaction("1", "bob", "+1", "remove")).await;
        assert_eq!(reader.hears().await.cursor(), another);
        assert!(reader.bare_ids[1..].iter().eq([&marker][..reader.bare_ids.len() - 1].iter().copied()));
        // Its place is good to resume from.
        let again = alice(&server, wire).asking("types=messageEvent").having_heard(&cursors[2]).comes().await;
        assert_eq!(again.head["last-event-id"], *cursors[2]);
    }
}

#[tokio::test]
async fn a_reader_of_some_kinds_hears_heartbeats_while_others_are_written() {
    let server = open().await;
    for wire in [Wire::Sse, Wire::SseLater] {
        let mut reader = alice(&server, wire).asking("types=reactionEvent").comes().await;
        for _ in 0..32 {
            write(&server, message("m")).await;
            let_pass(&server, 1).await;
        }
        let marker = write(&server, reaction("1", "bob", "+1", "add")).await;
        assert_eq!(reader.hears().await.cursor(), marker);
        assert_eq!(reader.comments, ["keep-alive"; 2], "{wire:?}");
        assert_eq!(reader.bare_ids.len(), 2, "{wire:?}");
    }
}

#[tokio::test]
async fn who_comes_again_before_it_has_heard_anything_misses_nothing() {
    let server = open().await;
    write_messages(&server, 2).await;
    for wire in WIRES {
        let reader = alice(&server, wire).comes().await;
        let place = reader.head["last-event-id"].to_str().expect("a cursor").to_owned();
        drop(reader);
        let missed = write_messages(&server, 2).await;
        let mut again = alice(&server, wire).having_heard(&place).comes().await;
        hears_all(&mut again, &missed).await;
    }
}
