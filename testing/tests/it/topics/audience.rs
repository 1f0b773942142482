//! Who hears a message, what it tells of its sender, and what becomes of those who hear no more.

use super::abuse::memory;
use super::*;

#[tokio::test]
async fn a_sender_that_names_itself_in_the_payload_can_be_told_apart_by_all_who_hear() {
    let server = Harness::start().await;
    let (mut alice, mut bob) = (Client::connect(&server).await, Client::connect(&server).await);
    for client in [&mut alice, &mut bob] {
        client.subscribe("room:123").await;
    }
    alice.publish("room:123", json!({ "sender": "alice", "text": "hi" })).await;
    bob.publish("room:123", json!({ "sender": "bob", "text": "hello" })).await;
    for (client, own, other) in [(&mut alice, "alice", "hello"), (&mut bob, "bob", "hi")] {
        let heard = [client.message("room:123").await, client.message("room:123").await];
        let of_others: Vec<_> = heard.iter().filter(|payload| payload["sender"] != own).collect();
        assert_eq!(of_others.len(), 1, "{heard:?}");
        assert_eq!(of_others[0]["text"], other);
    }
}

#[tokio::test]
async fn a_second_topic_that_the_sender_does_not_hold_is_heard_by_the_others_only() {
    let server = Harness::start().await;
    let (mut alice, mut bob) = (Client::connect(&server).await, Client::connect(&server).await);
    alice.subscribe("room:123").await;
    bob.done("$set", json!({ "topics": ["room:123", "room:123:others"] })).await;
    assert_eq!(alice.publish("room:123:others", json!("for others")).await["matched"], 1);
    assert_eq!(alice.publish("room:123", json!("for all")).await["matched"], 2);
    assert_eq!(alice.message("room:123").await, "for all");
    assert_eq!(bob.message("room:123:others").await, "for others");
    assert_eq!(bob.message("room:123").await, "for all");
}

#[tokio::test]
async fn a_heartbeat_that_a_backend_repeats_reaches_all_its_subscribers_each_time() {
    let server = Harness::start().await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        let mut client = Client::connect(&server).await;
        client.subscribe("system:heartbeat").await;
        clients.push(client);
    }
    for beat in 0..20 {
        let body = json!({ "type": "HEARTBEAT", "payload": { "beat": beat } });
        let (status, result) = post(&server, "system:heartbeat", &body).await;
        assert_eq!((status, &result["matched"]), (200, &json!(5)));
        for client in &mut clients {
            assert_eq!(client.message("system:heartbeat").await["beat"], beat);
        }
    }
}

#[tokio::test]
async fn whoever_breaks_off_in_the_middle_does_not_keep_a_message_from_the_others() {
    let server = Harness::start().await;
    let mut publisher = Client::connect(&server).await;
    let mut staying = Vec::new();
    let mut leaving = Vec::new();
    for n in 0..20 {
        let mut client = Client::connect(&server).await;
        client.subscribe("t").await;
        if n % 2 == 0 { staying.push(client) } else { leaving.push(client) }
    }
    let payload = "x".repeat(2_000);
    for n in 0..100 {
        publisher.publish("t", json!({ "n": n, "padding": payload })).await;
        if n % 10 == 0 {
            // With what was sent to it unread, so that the next thing that is sent fails.
            drop(leaving.pop());
        }
    }
    for client in &mut staying {
        for n in 0..100 {
            assert_eq!(client.message("t").await["n"], n);
        }
    }
    tidings_testing::eventually("the others are gone", async || subscribers(&server, "t").await == 10).await;
}

#[tokio::test]
async fn no_other_connection_is_shown_the_names_that_are_known_to_one_only() {
    let server = Harness::start().await;
    let (mut alice, mut bob) = (Client::connect(&server).await, Client::connect(&server).await);
    bob.subscribe("t").await;
    alice.subscribe("t").await;
    let mut shown = Vec::new();
    for exclude in [true, false] {
        let message = json!({ "type": "T", "meta": { "mine": 1 }, "payload": {} });
        alice.done("$publish", json!({ "topic": "t", "message": message, "excludeSelf": exclude })).await;
        shown.push(bob.hear().await.to_string());
    }
    let header = json!({ "type": "$publish", "payload": { "topic": "t", "message": { "type": "T" } } });
    let header = header.to_string();
    let length = u16::try_from(header.len()).expect("short").to_be_bytes();
    alice.say_bytes([&length, header.as_bytes(), b"bytes"].concat()).await;
    match bob.frame().await {
        Heard::Binary(header, _) => shown.push(header.to_string()),
        other => panic!("expected bytes: {other:?}"),
    }
    for (kind, payload) in [
        ("$list", json!({})),
        ("$verify", json!({ "topic": "t" })),
        ("$localStatus", json!({ "topic": "t" })),
        ("$publish", json!({ "topic": "t", "message": { "type": "T" } })),
    ] {
        shown.push(bob.done(kind, payload).await.to_string());
    }
    shown.push(server.get(&format!("{PATH}/t")).await.text().await.expect("text"));
    shown.push(post(&server, "t", &json!({ "type": "T" })).await.1.to_string());
    for name in ["clientId", "session"] {
        let name = alice.hello[name].as_str().expect("text");
        for shown in &shown {
            assert!(!shown.contains(name), "{name}: {shown}");
        }
    }
}

#[tokio::test]
async fn connections_that_come_and_go_leave_no_subscriber_and_no_memory() {
    let server = Harness::start().await;
    let mut before = 0;
    for round in 0..20 {
        if round == 4 {
            before = memory();
        }
        let mut clients = Vec::new();
        for n in 0..20 {
            let mut client = Client::connect(&server).await;
            let name = "x".repeat(100);
            let topics: Vec<String> = (0..500).map(|topic| format!("{round}:{n}:{topic}:{name}")).collect();
            assert_eq!(client.done("$set", json!({ "topics": topics })).await["total"], 500);
            clients.push(client);
        }
        assert_eq!(server.server().topics().subscribed(), 10_000);
        for (n, mut client) in clients.into_iter().enumerate() {
            match n % 3 {
                0 => drop(client),
                1 => client.leave().await,
                // The end has nothing left to remove then.
                _ => {
                    assert_eq!(client.done("$clear", json!({})).await, json!({ "removed": 500 }));
                    client.leave().await;
                }
            }
        }
        nobody_is_left(&server).await;
    }
    let grown = memory().saturating_sub(before);
    println!("memory grew by {} KiB while 160,000 subscriptions came and went", grown / 1024);
    // Kept, they would be more than twice as much.
    assert!(grown < 48 * 1024 * 1024, "{grown}");
    assert_eq!(server.metric("tidings_topics_subscribed"), Some(0.0));
}
