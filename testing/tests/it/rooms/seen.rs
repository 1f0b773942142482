//! How far somebody has seen a room: on each device, the highest counts.

use super::*;

fn seeing(server: &Harness, user: &str, sent: &Value) -> RequestBuilder {
    request(server, Method::POST, user, ROOM, "seen").json(sent)
}

async fn sees(server: &Harness, user: &str, sent: Value) -> Value {
    let answer = answer(seeing(server, user, &sent)).await;
    assert_eq!(answer.status(), 200, "{sent}");
    body(answer).await
}

/// What is known of a user.
async fn seen(server: &Harness, user: &str, device: Option<&str>) -> Value {
    let what = device.map_or("seen".to_owned(), |device| format!("seen?deviceId={device}"));
    let answer = answer(request(server, Method::GET, user, ROOM, &what)).await;
    assert_eq!(answer.status(), 200);
    body(answer).await
}

#[tokio::test]
async fn what_was_seen_is_kept_for_each_user_and_device_and_the_highest_counts() {
    let server = open().await;
    let cursors = write_messages(&server, 5).await;
    let nothing = json!({ "cursor": null, "devices": {}, "updatedAt": 0 });
    assert_eq!(seen(&server, "alice", None).await, nothing);
    let now = server.clock.now().as_millis();
    let told = sees(&server, "alice", json!({ "cursor": cursors[3], "deviceId": "phone" })).await;
    assert_eq!(told, json!({ "cursor": cursors[3], "devices": { "phone": cursors[3] }, "updatedAt": now }));
    sees(&server, "alice", json!({ "cursor": cursors[1], "deviceId": "tablet" })).await;
    sees(&server, "alice", json!({ "cursor": cursors[0], "deviceId": "phone" })).await;
    let expected = json!({ "phone": cursors[3], "tablet": cursors[1] });
    let all = seen(&server, "alice", None).await;
    assert_eq!(
        (&all["cursor"], &all["devices"]),
        (&json!(cursors[3]), &expected),
        "a lower one changes nothing"
    );
    let tablet = seen(&server, "alice", Some("tablet")).await;
    assert_eq!((&tablet["cursor"], &tablet["devices"]), (&json!(cursors[1]), &expected));
    assert_eq!(seen(&server, "alice", Some("laptop")).await["cursor"], Value::Null);
    assert_eq!(seen(&server, "bob", None).await, nothing, "it is alice's alone");
    let forced =
        sees(&server, "alice", json!({ "cursor": cursors[0], "deviceId": "phone", "force": true })).await;
    assert_eq!(forced["cursor"], json!(cursors[0]));
    assert_eq!(seen(&server, "alice", None).await["cursor"], json!(cursors[1]), "the tablet has seen more");
}

#[tokio::test]
async fn what_lies_above_the_head_was_not_seen() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    sees(&server, "alice", json!({ "cursor": cursors[0] })).await;
    for above in [cursor_of(number(&cursors[1]) + 1), cursor_of(u128::MAX)] {
        for force in [false, true] {
            let told = sees(&server, "alice", json!({ "cursor": above, "force": force })).await;
            assert_eq!(told["cursor"], json!(cursors[0]));
        }
    }
}

#[tokio::test]
async fn the_name_that_clients_of_the_protocol_know_does_the_same() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let update = |sent: Value| {
        let request = server.post("/x/blue.catbird.mls.updateCursor").bearer_auth(token(&server, "alice"));
        request.json(&sent)
    };
    let sent = json!({ "convoId": ROOM, "cursor": cursors[1], "deviceId": "phone" });
    assert_eq!(answer(update(sent)).await.status(), 200);
    assert_eq!(seen(&server, "alice", Some("phone")).await["cursor"], json!(cursors[1]));
    let back = json!({ "convoId": ROOM, "cursor": cursors[0], "deviceId": "phone" });
    assert_eq!(answer(update(back)).await.status(), 200);
    assert_eq!(seen(&server, "alice", Some("phone")).await["cursor"], json!(cursors[1]));
    let forced = json!({ "convoId": ROOM, "cursor": cursors[0], "deviceId": "phone", "force": true });
    assert_eq!(answer(update(forced)).await.status(), 200);
    assert_eq!(seen(&server, "alice", Some("phone")).await["cursor"], json!(cursors[0]));
    for (bad, name) in [
        (json!({ "convoId": ROOM }), "InvalidRequest"),
        (json!({ "cursor": cursors[0] }), "InvalidRequest"),
        (json!({ "convoId": "", "cursor": cursors[0] }), "InvalidRequest"),
        (json!({ "convoId": ROOM, "cursor": "x" }), "InvalidCursor"),
        (json!({ "convoId": ROOM, "cursor": cursors[0], "deviceId": "" }), "InvalidRequest"),
        (json!({ "convoId": ROOM, "cursor": cursors[0], "force": "yes" }), "InvalidRequest"),
        (json!(7), "InvalidRequest"),
    ] {
        assert_eq!(refused(update(bad.clone())).await, (400, name.into()), "{bad}");
    }
    let elsewhere = update(json!({ "convoId": "nowhere", "cursor": cursors[0] }));
    assert_eq!(refused(elsewhere).await, (403, "NotMember".into()));
}

#[tokio::test]
async fn a_client_resumes_where_its_device_was() {
    let server = open().await;
    let cursors = write_messages(&server, 5).await;
    sees(&server, "alice", json!({ "cursor": cursors[1], "deviceId": "phone" })).await;
    sees(&server, "alice", json!({ "cursor": cursors[3], "deviceId": "tablet" })).await;
    for wire in WIRES {
        let last = |more: &str| alice(&server, wire).asking(&format!("cursor=last{more}"));
        hears_all(&mut last("&deviceId=phone").comes().await, &cursors[2..]).await;
        hears_all(&mut last("&deviceId=tablet").comes().await, &cursors[4..]).await;
        hears_all(&mut last("").comes().await, &cursors[4..]).await;
        let mut overlapping = last("&deviceId=phone&overlap=1").comes().await;
        hears_all(&mut overlapping, &cursors[1..]).await;
    }
    let mut resumed = alice(&server, Wire::WebSocket).asking("deviceId=phone").resuming("last").comes().await;
    hears_all(&mut resumed, &cursors[2..]).await;
    let mut unknown = alice(&server, Wire::Sse).asking("cursor=last&deviceId=new").comes().await;
    hears_only_what_is_new(&server, &mut unknown).await;
}

#[tokio::test]
async fn three_devices_resume_at_once_each_from_its_own_place() {
    let server = open().await;
    let cursors = write_messages(&server, 30).await;
    // Out of order, and with what has not happened yet.
    let future = cursor_of(u128::MAX);
    for (device, told) in [("a", [9, 3, 7]), ("b", [0, 19, 5]), ("c", [25, 1, 20])] {
        for (n, at) in told.into_iter().enumerate() {
            let cursor = if n == 1 { &future } else { &cursors[at] };
            sees(&server, "alice", json!({ "cursor": cursors[at], "deviceId": device })).await;
            sees(&server, "alice", json!({ "cursor": cursor, "deviceId": device })).await;
        }
    }
    assert_eq!(
        seen(&server, "alice", None).await["devices"],
        json!({ "a": cursors[9], "b": cursors[19], "c": cursors[25] })
    );
    let mut readers = Vec::new();
    for (device, at) in [("a", 9), ("b", 19), ("c", 25)] {
        for wire in WIRES {
            let guest = alice(&server, wire).asking(&format!("cursor=last&deviceId={device}"));
            readers.push((at, guest.comes().await));
        }
    }
    let last = write(&server, message("last")).await;
    for (at, mut reader) in readers {
        hears_all(&mut reader, &cursors[at + 1..]).await;
        hears_all(&mut reader, std::slice::from_ref(&last)).await;
    }
}

#[tokio::test]
async fn acks_of_a_websocket_are_stored_at_most_once_a_second() {
    let server = open().await;
    let cursors = write_messages(&server, 20).await;
    let stored = || server.metric("tidings_room_seen_writes_total").unwrap_or_default();
    let mut reader = alice(&server, Wire::WebSocket).asking("deviceId=phone").comes().await;
    hears_only_what_is_new(&server, &mut reader).await;
    for cursor in cursors.iter().rev().chain(&cursors) {
        reader.says(&json!({ "type": "ack", "cursor": cursor }).to_string()).await;
    }
    reader.says(&json!({ "type": "ack", "cursor": cursor_of(u128::MAX) }).to_string()).await;
    reader.says(r#"{"type":"ping"}"#).await;
    while reader.pongs < 2 {
        write(&server, message("more")).await;
        reader.hears().await;
    }
    assert_eq!(seen(&server, "alice", Some("phone")).await["cursor"], json!(cursors[19]), "known at once");
    let_pass(&server, 3).await;
    assert_eq!(stored(), 1.0, "and written once");
    assert_eq!(seen(&server, "alice", Some("phone")).await["cursor"], json!(cursors[19]));
    hears_all(&mut alice(&server, Wire::Sse).asking("cursor=last&deviceId=phone").comes().await, &[]).await;
}

#[tokio::test]
async fn a_browser_that_comes_again_tells_how_far_it_has_seen() {
    let server = open().await;
    let cursors = write_messages(&server, 4).await;
    for (wire, at) in WIRES.into_iter().zip(0..) {
        let guest = alice(&server, wire).asking(&format!("deviceId={wire:?}"));
        guest.clone().having_heard(&cursors[at]).comes().await;
        let known = seen(&server, "alice", Some(&format!("{wire:?}"))).await;
        assert_eq!(known["cursor"], json!(cursors[at]));
        // Neither back nor to what has not happened, nor to nonsense.
        for other in [cursor_of(1), cursor_of(u128::MAX), "nonsense".to_owned()] {
            guest.clone().having_heard(&other).comes().await;
        }
        let known = seen(&server, "alice", Some(&format!("{wire:?}"))).await;
        assert_eq!(known["cursor"], json!(cursors[at]));
    }
}

#[tokio::test]
async fn what_was_seen_survives_a_restart_by_whatever_it_was_told() {
    let server = open_on(TestStore::Embedded, Options::default()).await;
    let cursors = write_messages(&server, 3).await;
    sees(&server, "alice", json!({ "cursor": cursors[0], "deviceId": "told" })).await;
    alice(&server, Wire::Sse).asking("deviceId=browser").having_heard(&cursors[1]).comes().await;
    let mut socket = alice(&server, Wire::WebSocket).asking("deviceId=socket").comes().await;
    socket.says(&json!({ "type": "ack", "cursor": cursors[2] }).to_string()).await;
    tidings_testing::eventually("it is known", async || {
        seen(&server, "alice", Some("socket")).await["cursor"] == json!(cursors[2])
    })
    .await;
    let_pass(&server, 3).await;
    drop(socket);
    let server = server.restart().await;
    let expected = json!({ "told": cursors[0], "browser": cursors[1], "socket": cursors[2] });
    assert_eq!(seen(&server, "alice", None).await["devices"], expected);
    let mut reader = alice(&server, Wire::Sse).asking("cursor=last&deviceId=told").comes().await;
    hears_all(&mut reader, &cursors[1..]).await;
}

#[tokio::test]
async fn what_was_seen_is_forgotten_after_twice_the_retention() {
    let rooms = Options { retention: DAY, sweep_interval: Duration::from_secs(60), ..Options::default() };
    let server = open_with(rooms).await;
    let cursors = write_messages(&server, 1).await;
    sees(&server, "alice", json!({ "cursor": cursors[0], "deviceId": "old" })).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(DAY);
    let newer = write(&server, message("newer")).await;
    sees(&server, "alice", json!({ "cursor": newer, "deviceId": "new" })).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(DAY - Duration::from_secs(120));
    let_pass(&server, 61).await;
    assert_eq!(seen(&server, "alice", Some("old")).await["cursor"], json!(cursors[0]), "not yet");
    let_pass(&server, 121).await;
    tidings_testing::eventually("it is forgotten", async || {
        seen(&server, "alice", Some("old")).await["cursor"].is_null()
    })
    .await;
    assert_eq!(seen(&server, "alice", None).await["devices"], json!({ "new": newer }));
}
