//! WebSockets of rooms: when they begin, what they may say, and that they hear what all others hear.

use super::*;

/// A WebSocket that has not said anything.
async fn silent(server: &Harness, asked: &str) -> Reader {
    alice(server, Wire::WebSocket).asking(asked).silent().comes().await
}

#[tokio::test]
async fn a_silent_websocket_begins_after_a_second_where_the_head_was_when_it_came() {
    let server = open().await;
    write_messages(&server, 2).await;
    let mut reader = silent(&server, "").await;
    let cursors = write_messages(&server, 2).await;
    server.clock.advance(Duration::from_secs(1));
    hears_all(&mut reader, &cursors).await;
    let mut reader = silent(&server, &format!("cursor={}", cursors[0])).await;
    server.clock.advance(Duration::from_secs(1));
    hears_all(&mut reader, &cursors[1..]).await;
}

#[tokio::test]
async fn nothing_is_heard_before_that_second_is_over() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let mut reader = silent(&server, "cursor=oldest").await;
    server.clock.advance(Duration::from_millis(999));
    // It may still say where it wants to begin, and then it hears only that.
    reader.says(&json!({ "type": "resume", "cursor": cursors[1] }).to_string()).await;
    hears_all(&mut reader, &cursors[2..]).await;
}

#[tokio::test]
async fn a_resume_says_where_to_begin_by_cursor_or_by_name() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let seen = request(&server, Method::POST, "alice", ROOM, "seen");
    assert_eq!(answer(seen.json(&json!({ "cursor": cursors[0] }))).await.status(), 200);
    for (cursor, expected) in
        [(&*cursors[1], &cursors[2..]), ("oldest", &cursors[..]), ("head", &[]), ("last", &cursors[1..])]
    {
        let asked = alice(&server, Wire::WebSocket).asking("caughtUp=1").resuming(cursor);
        let mut reader = asked.comes().await;
        hears_all(&mut reader, expected).await;
        reader.is_told("caught-up").await;
    }
}

#[tokio::test]
async fn a_resume_that_is_late_or_a_second_one_or_none_is_closed_with_1008() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let resume = |cursor: &str| json!({ "type": "resume", "cursor": cursor }).to_string();
    let mut late = silent(&server, "cursor=oldest").await;
    server.clock.advance(Duration::from_secs(1));
    hears_all(&mut late, &cursors).await;
    late.says(&resume(&cursors[0])).await;
    assert_eq!(late.ends().await, Some(1008), "and it hears nothing from another place");
    let mut twice = alice(&server, Wire::WebSocket).resuming(&cursors[1]).comes().await;
    hears_all(&mut twice, &cursors[2..]).await;
    twice.says(&resume(&cursors[0])).await;
    assert_eq!(twice.ends().await, Some(1008));
    let mut second_message = alice(&server, Wire::WebSocket).comes().await;
    second_message.says(&resume(&cursors[0])).await;
    assert_eq!(second_message.ends().await, Some(1008), "only the first message is one");
    for bad in [
        resume("nonsense"),
        resume(""),
        resume(&format!("8{}", "Z".repeat(25))),
        r#"{"type":"resume"}"#.to_owned(),
        r#"{"type":"resume","cursor":7}"#.to_owned(),
        r#"{"type":"restart"}"#.to_owned(),
        r#"{"type":"ack","cursor":"x"}"#.to_owned(),
        "{}".to_owned(),
        "hello".to_owned(),
        "[1]".to_owned(),
    ] {
        let mut reader = silent(&server, "cursor=oldest").await;
        reader.says(&bad).await;
        assert_eq!(reader.ends().await, Some(1008), "{bad}");
    }
}

#[tokio::test]
async fn a_ping_in_json_is_answered() {
    let server = open().await;
    let mut reader = alice(&server, Wire::WebSocket).comes().await;
    for pongs in 1..4 {
        reader.says(r#"{"type":"ping"}"#).await;
        // The answer may come behind what is heard meanwhile.
        while reader.pongs <= pongs {
            write(&server, message("more")).await;
            reader.hears().await;
        }
        assert_eq!(reader.pongs, pongs + 1);
    }
}

#[tokio::test]
async fn who_asks_more_quickly_than_it_listens_is_not_answered_each_time() {
    let server = open().await;
    let mut reader = alice(&server, Wire::WebSocket).narrow().comes().await;
    for _ in 0..60_000 {
        reader.says(r#"{"type":"ping"}"#).await;
    }
    let last = write(&server, message("last")).await;
    while reader.hears().await.cursor() != last {}
    assert!((2..40_000).contains(&reader.pongs), "as many as are on their way, and one: {}", reader.pongs);
}

#[tokio::test]
async fn a_websocket_is_pinged_every_fifteen_seconds_and_given_up_after_two_misses() {
    let server = open().await;
    let mut reader = alice(&server, Wire::WebSocket).comes().await;
    hears_only_what_is_new(&server, &mut reader).await;
    for _ in 0..6 {
        let_pass(&server, 14).await;
        assert!(!reader.is_pinged_within(Duration::ZERO).await, "not yet");
        // The pong may have been read some of the server's seconds after the ping.
        for waited in 1.. {
            let_pass(&server, 1).await;
            if reader.is_pinged_within(Duration::from_millis(50)).await {
                break;
            }
            assert!(waited < 30, "a ping comes");
        }
    }
    hears_only_what_is_new(&server, &mut reader).await;
    assert_eq!(server.server().live_connections().len(), 1, "who answers stays");
    let_pass(&server, 31).await;
    assert_eq!(server.server().live_connections().len(), 1, "one miss is borne");
    let_pass(&server, 17).await;
    until("it is given up", || server.server().live_connections().is_empty()).await;
    until("nobody listens", || server.server().rooms().channels().is_empty()).await;
}

#[tokio::test]
async fn readers_side_by_side_hear_the_same() {
    let server = open().await;
    let mut readers = Vec::new();
    for wire in WIRES {
        for _ in 0..3 {
            readers.push(alice(&server, wire).comes().await);
        }
    }
    for n in 0..20 {
        let some = [message(n), reaction("1", "bob", "+1", "add"), message(format!("{n} again"))];
        writes(&server, &some).await;
        write(&server, typing("alice")).await;
        server.clock.advance(Duration::from_millis(n % 2));
    }
    let last = write(&server, message("last")).await;
    let mut told: Option<Vec<(String, Value)>> = None;
    for mut reader in readers {
        let mut heard = Vec::new();
        while heard.last().is_none_or(|(_, body): &(String, Value)| body["cursor"] != json!(last)) {
            let Event { kind, body, .. } = reader.hears().await;
            heard.push((kind, body));
        }
        assert_eq!(heard.len(), 81);
        assert_eq!(told.get_or_insert_with(|| heard.clone()), &heard);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_side_by_side_hear_the_same_order_while_many_write_at_once() {
    let server = std::sync::Arc::new(open().await);
    let mut readers = Vec::new();
    for wire in WIRES {
        for _ in 0..2 {
            readers.push(alice(&server, wire).comes().await);
        }
    }
    let writers = (0..4).map(|writer| {
        let server = server.clone();
        tokio::spawn(async move {
            for n in 0..50 {
                match n % 5 {
                    4 => drop(write(&server, typing("alice")).await),
                    3 => drop(write(&server, reaction("1", "bob", &format!("{writer}.{n}"), "add")).await),
                    _ => drop(writes(&server, &[message(n), message(n)]).await),
                }
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("all is written");
    }
    let last = write(&server, message("last")).await;
    let mut told: Option<Vec<(String, Value)>> = None;
    for mut reader in readers {
        let (mut kept, mut before) = (Vec::new(), String::new());
        while before != last {
            let Event { kind, body, .. } = reader.hears().await;
            let cursor = body["cursor"].as_str().expect("a cursor").to_owned();
            assert!(cursor > before, "{cursor} after {before}");
            before = cursor;
            if kind != "typingEvent" {
                kept.push((kind, body));
            }
        }
        assert_eq!(kept.len(), 4 * (30 * 2 + 10) + 1);
        assert_eq!(told.get_or_insert_with(|| kept.clone()), &kept);
    }
}

#[tokio::test]
async fn the_names_that_clients_of_the_protocol_know_lead_to_the_same_room() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let known = "/x/blue.catbird.mls.subscribeConvoEvents";
    let at = |wire: Wire, query: &str| {
        let path =
            if wire == Wire::WebSocket { format!("{known}.ws{query}") } else { format!("{known}{query}") };
        Guest::at(server.address(), wire, &path).with_token(&token(&server, "alice"))
    };
    for wire in WIRES {
        let mut reader = at(wire, &format!("?convoId={ROOM}&cursor={}", cursors[0])).comes().await;
        hears_all(&mut reader, &cursors[1..]).await;
        let mut live = at(wire, &format!("?convoId={ROOM}")).comes().await;
        hears_only_what_is_new(&server, &mut live).await;
        for missing in ["", "?convoId=", "?convoid=general", "?cursor=head", "?convoId=a&convoId=b"] {
            let refused = at(wire, missing).is_refused().await;
            assert_eq!(refused.what(), (400, "InvalidRequest"), "{missing}");
            is_a_refusal(refused.status, &refused.headers, &refused.body);
        }
        let unknown = at(wire, "?convoId=nowhere").is_refused().await;
        assert_eq!(unknown.what(), (403, "NotMember"));
        let nobody = Guest::at(server.address(), wire, &format!("{known}?convoId={ROOM}"));
        assert_eq!(nobody.is_refused().await.what().0, 401);
    }
    let mut resumed = at(Wire::WebSocket, &format!("?convoId={ROOM}")).resuming(&cursors[1]).comes().await;
    hears_all(&mut resumed, &cursors[2..]).await;
}

#[tokio::test]
async fn without_a_token_the_known_names_are_about_the_default_project() {
    let server = Harness::start().await;
    let members = server.post("/v1/_default/rooms/r/members").json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let written = answer(server.post("/v1/_default/rooms/r/events").json(&message(1))).await;
    let cursor = body(written).await["cursor"].as_str().expect("a cursor").to_owned();
    for wire in WIRES {
        let path = match wire {
            Wire::WebSocket => "/x/blue.catbird.mls.subscribeConvoEvents.ws?convoId=r&cursor=oldest",
            Wire::Sse | Wire::SseLater => "/x/blue.catbird.mls.subscribeConvoEvents?convoId=r&cursor=oldest",
        };
        hears_all(&mut Guest::at(server.address(), wire, path).comes().await, std::slice::from_ref(&cursor))
            .await;
    }
    let seen =
        server.post("/x/blue.catbird.mls.updateCursor").json(&json!({ "convoId": "r", "cursor": cursor }));
    assert_eq!(body(answer(seen).await).await["cursor"], json!(cursor));
}

#[tokio::test]
async fn a_websocket_must_be_asked_for_properly() {
    let server = open().await;
    let path = format!("/x/blue.catbird.mls.subscribeConvoEvents.ws?convoId={ROOM}");
    let plain = Guest::at(server.address(), Wire::Sse, &path).with_token(&token(&server, "alice"));
    let refused = plain.is_refused().await;
    assert_eq!(
        (refused.status, &refused.headers["sec-websocket-version"]),
        (426, &"13".parse().expect("value"))
    );
    is_a_refusal(refused.status, &refused.headers, &refused.body);
}
