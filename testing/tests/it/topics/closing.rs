//! How connections end, and what they are told.

use std::sync::Arc;

use tidings_testing::until;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

use super::frames::{frame, raw};
use super::*;
use crate::sockets::used_before;
use crate::tls::Files;

#[tokio::test]
async fn a_server_that_stops_says_so_after_what_is_pending() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    client.publish("t", json!("last")).await;
    let (close, ()) = tokio::join!(client.closed(), server.stop());
    assert_eq!((&close["code"], &close["reconnect"]), (&json!(1001), &json!(true)));
    assert_eq!(close["reason"], "going-away");
    let retry = close["retryAfterMs"].as_u64().expect("a number");
    assert!((100..=2000).contains(&retry), "{retry}");
    assert_eq!(client.message("t").await, "last");
}

#[tokio::test]
async fn frames_that_are_not_understood_one_after_the_other_end_a_connection() {
    let server = server(|options| options.bad_frames = 3).await;
    let mut client = Client::connect(&server).await;
    for _ in 0..5 {
        client.say("not json").await;
        client.say("{}").await;
        assert_eq!(client.list().await, json!([]), "this one was understood");
    }
    // What was understood but not allowed is no misuse.
    for _ in 0..5 {
        client.fails("$subscribe", json!({ "topic": "no spaces" })).await;
    }
    client.heard.clear();
    for _ in 0..4 {
        client.say("not json").await;
    }
    let close = client.closed().await;
    assert_eq!(close, json!({ "code": 1008, "reason": "protocol-error", "reconnect": false }));
    assert_eq!(client.heard.len(), 3, "each of them was answered: {:?}", client.heard);
    let closed = server.metric(r#"tidings_topics_closed_total{reason="protocol-error"}"#);
    assert_eq!(closed, Some(1.0));
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_frame_that_is_too_large_is_answered_and_ends_the_connection() {
    let server = server(|options| options.frame_bytes = 1024).await;
    for fragments in [1, 3] {
        let mut client = Client::connect(&server).await;
        let id = client.begin("$list", json!({})).await;
        let part = Bytes::from("x".repeat(1025 / fragments + 1));
        for n in 0..fragments {
            use tungstenite::protocol::frame::Frame;
            use tungstenite::protocol::frame::coding::{Data, OpCode};
            let code = if n == 0 { Data::Text } else { Data::Continue };
            let frame = Frame::message(part.clone(), OpCode::Data(code), n + 1 == fragments);
            client.socket.send(Message::Frame(frame)).await.expect("sent");
        }
        let close = client.closed().await;
        assert_eq!(close, json!({ "code": 1009, "reason": "frame-too-large", "reconnect": false }));
        assert!(client.answer_to(&id).await.is_ok(), "what came before it was answered");
        let error = client.hear().await;
        assert_eq!(
            (&error["type"], &error["payload"]["code"]),
            (&json!("ERROR"), &json!("RESOURCE_EXHAUSTED"))
        );
        assert_eq!(error["payload"]["details"], json!({ "limit": 1024 }));
    }
    let mut client = Client::connect(&server).await;
    let padding = "x".repeat(1024 - r#"{"type":"$list","pad":""}"#.len());
    client.say(format!(r#"{{"type":"$list","pad":"{padding}"}}"#)).await;
    assert_eq!(client.list().await, json!([]), "exactly the limit is good");
    assert_eq!(server.metric(r#"tidings_limit_hits_total{limit="topic_frame_bytes"}"#), Some(2.0));
}

#[tokio::test]
async fn broken_framing_and_broken_text_have_codes_of_their_own_and_no_last_frame() {
    use tungstenite::protocol::frame::Frame;
    use tungstenite::protocol::frame::coding::{Data, OpCode};
    let server = Harness::start().await;
    let frame = |bytes: &'static [u8], code: OpCode| Frame::message(Bytes::from_static(bytes), code, true);
    let mut reserved = frame(b"{}", OpCode::Data(Data::Text));
    reserved.header_mut().rsv1 = true;
    for (frame, code) in [
        (frame(b"\xff", OpCode::Data(Data::Text)), 1007),
        (frame(b"x", OpCode::Data(Data::Continue)), 1002),
        (reserved, 1002),
    ] {
        let mut client = Client::connect(&server).await;
        client.socket.send(Message::Frame(frame)).await.expect("sent");
        match client.frame().await {
            Heard::Close(told, _) => assert_eq!(told, code),
            other => panic!("expected {code}: {other:?}"),
        }
    }
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_silent_client_is_pinged_and_then_let_go() {
    let server = server(|options| {
        options.heartbeat = Duration::from_secs(5);
        options.heartbeat_timeout = Duration::from_secs(12);
    })
    .await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    // Whoever reads answers pings, and stays.
    for _ in 0..4 {
        let_pass(&server, 6).await;
        let ping = client.socket.next().await.expect("it goes on").expect("a frame");
        assert!(matches!(ping, Message::Ping(_)), "{ping:?}");
        client.list().await;
    }
    // Who does not read does not answer.
    let_pass(&server, 14).await;
    let close = client.closed().await;
    assert_eq!(close, json!({ "code": 4408, "reason": "heartbeat-timeout", "reconnect": true }));
    drop(client);
    nobody_is_left(&server).await;
}

/// Publishes until a client that does not read is more bytes behind than it may.
async fn flood(server: &Harness, topic: &str, mebibytes: usize) {
    let payload = "x".repeat(256 * 1024);
    for _ in 0..mebibytes * 4 {
        assert_eq!(post(server, topic, &json!({ "type": "T", "payload": payload })).await.0, 200);
    }
}

#[tokio::test]
async fn a_client_that_is_too_far_behind_is_told_after_an_unbroken_prefix_and_others_lose_nothing() {
    let server = Harness::start().await;
    let mut slow = Client::connect(&server).await;
    let mut healthy = Client::connect(&server).await;
    slow.subscribe("t").await;
    healthy.subscribe("t").await;
    let reading = tokio::spawn(async move {
        for n in 0..400 {
            assert_eq!(healthy.message("t").await["n"], n);
        }
        healthy
    });
    let padding = "x".repeat(64 * 1024);
    for n in 0..400 {
        let body = json!({ "type": "T", "payload": { "n": n, "padding": padding } });
        assert_eq!(post(&server, "t", &body).await.0, 200);
    }
    drop(reading.await.expect("the healthy one heard all of it"));
    let_pass(&server, 2).await;
    let close = slow.closed().await;
    assert_eq!(close, json!({ "code": 4409, "reason": "slow-consumer", "reconnect": true }));
    assert!(slow.heard.len() < 400, "it could not have been told all of it");
    for (n, frame) in slow.heard.iter().enumerate() {
        assert_eq!(frame["payload"]["n"], n, "what it heard has no gap");
    }
    assert_eq!(server.metric(r#"tidings_limit_hits_total{limit="slow_consumer"}"#), Some(1.0));
    drop(slow);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_client_that_accepts_nothing_for_long_is_let_go_though_it_is_not_far_behind() {
    let server = server(|options| {
        options.slow_consumer_bytes = 1 << 30;
        options.slow_consumer = Duration::from_secs(3);
        options.close_grace = Duration::from_secs(2);
    })
    .await;
    let mut slow = Client::connect(&server).await;
    slow.subscribe("t").await;
    flood(&server, "t", 12).await;
    assert_eq!(server.server().live_connections().len(), 1);
    let_pass(&server, 2).await;
    assert_eq!(server.server().live_connections().len(), 1, "it has some time");
    let_pass(&server, 2).await;
    // It is offered the last frame, and then the socket is dropped.
    let_pass(&server, 3).await;
    until("it is gone", || server.server().live_connections().is_empty()).await;
    let closed = server.metric(r#"tidings_topics_closed_total{reason="slow-consumer"}"#);
    assert_eq!(closed, Some(1.0));
}

/// An address from which bytes go to a server through TLS and back.
async fn through_tls(server: &Harness, files: Arc<Files>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (address, to) = (listener.local_addr().expect("an address"), server.address().to_string());
    tokio::spawn(async move {
        while let Ok((mut plain, _)) = listener.accept().await {
            let (files, to) = (files.clone(), to.clone());
            tokio::spawn(async move {
                let mut encrypted = files.connect(&to, &["http/1.1"]).await.expect("TLS");
                tokio::io::copy_bidirectional(&mut plain, &mut encrypted).await
            });
        }
    });
    format!("ws://{address}{PATH}")
}

#[tokio::test]
async fn through_hyper_and_through_tls_all_is_the_same() {
    let bad_frames = |options: &mut TopicOptions| options.bad_frames = 2;
    let server = server(bad_frames).await;
    let url = server.url(PATH).replace("http://", "ws://");
    let socket = MaybeTlsStream::Plain(used_before(&server).await);
    let (socket, _) = tokio_tungstenite::client_async(url, socket).await.expect("a WebSocket");
    all_is_as_usual(&server, Client::on(socket).await, Client::connect(&server).await).await;

    let files = Arc::new(Files::new());
    let mut setup = Setup { tls: Some(files.options()), ..Setup::default() };
    bad_frames(&mut setup.topics);
    let server = Harness::with(setup).await;
    let url = through_tls(&server, files).await;
    let connect = || async {
        let (socket, _) = tokio_tungstenite::connect_async(&url).await.expect("a WebSocket");
        Client::on(socket).await
    };
    all_is_as_usual(&server, connect().await, connect().await).await;
}

async fn all_is_as_usual(server: &Harness, mut client: Client, mut other: Client) {
    assert_eq!(client.subscribe("t").await, json!({ "added": 1, "total": 1 }));
    for n in 0..100 {
        other.publish("t", json!(n)).await;
    }
    for n in 0..100 {
        assert_eq!(client.message("t").await, n);
    }
    client.done("$unsubscribe", json!({ "topic": "t" })).await;
    assert_eq!(other.publish("t", json!(1)).await["matched"], 0);
    client.say("not json").await;
    client.say("not json").await;
    assert_eq!(client.closed().await["code"], 1008);
    assert_eq!(client.heard.len(), 2);
    drop((client, other));
    nobody_is_left(server).await;
}

#[tokio::test]
async fn a_client_that_closes_is_answered() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    client.socket.close(None).await.expect("closed");
    let mut last = None;
    while let Some(Ok(message)) = client.socket.next().await {
        last = Some(message);
    }
    assert!(matches!(last, Some(Message::Close(_))), "{last:?}");
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_connection_that_breaks_off_in_the_middle_of_any_kind_of_request_leaves_nothing() {
    let server = Harness::start().await;
    let mut witness = Client::connect(&server).await;
    witness.subscribe("a").await;
    for (kind, payload) in [
        ("$subscribe", json!({ "topic": "a" })),
        ("$unsubscribe", json!({ "topic": "a" })),
        ("$subscribeMany", json!({ "topics": ["a", "b"] })),
        ("$unsubscribeMany", json!({ "topics": ["a", "b"] })),
        ("$set", json!({ "topics": ["a", "c"] })),
        ("$update", json!({ "add": ["d"], "remove": ["a"] })),
        ("$clear", json!({})),
        ("$list", json!({})),
        ("$settle", json!({})),
        ("$verify", json!({ "topic": "a", "mode": "strict" })),
        ("$localStatus", json!({ "topic": "a" })),
        ("$history", json!({ "topic": "a" })),
        ("$auth", json!({ "token": "nonsense" })),
        ("$publish", json!({ "topic": "b", "message": { "type": "T" } })),
        ("$ws:abort", json!({})),
        ("__heartbeat", json!({})),
    ] {
        let subscribe = json!({ "type": "$set", "payload": { "topics": ["a", "b"] } }).to_string();
        let asked = json!({ "type": kind, "meta": { "correlationId": "1" }, "payload": payload }).to_string();
        let asked = frame(0x81, asked.as_bytes());
        for (whole, part) in [(0, asked.len() / 2), (1, 0), (50, asked.len() - 1)] {
            let (mut socket, _) = raw(&server, "").await;
            let sent = [frame(0x81, subscribe.as_bytes()), asked.repeat(whole), asked[..part].to_vec()];
            socket.write_all(&sent.concat()).await.expect("sent");
            // What it is told is not read, so that the end is a reset.
            drop(socket);
        }
        tidings_testing::eventually(kind, async || subscribers(&server, "a").await == 1).await;
        assert_eq!(witness.publish("b", json!(kind)).await["matched"], 0, "{kind}");
    }
    assert_eq!(witness.list().await, json!(["a"]));
    drop(witness);
    nobody_is_left(&server).await;
}
