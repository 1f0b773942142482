//! What clients found out by trying: the largest message, words after the last word, and answers that are nobody's.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frames::{frame, raw, read_frame};
use super::*;

#[tokio::test]
async fn the_largest_message_and_the_one_behind_it_reach_whoever_reads() {
    let server = Harness::start().await;
    let mut publisher = Client::connect(&server).await;
    let mut subscriber = Client::connect(&server).await;
    subscriber.subscribe("t").await;
    let most = publisher.hello["limits"]["payloadBytes"].as_u64().expect("a number");
    // With its quotes as large as a payload may be.
    let largest = "x".repeat(usize::try_from(most).expect("it fits") - 2);
    for n in 0..3 {
        let id = publisher
            .begin("$publish", json!({ "topic": "t", "message": { "type": "T", "payload": largest } }))
            .await;
        assert_eq!(publisher.publish("t", json!(n)).await["matched"], 1);
        assert_eq!(publisher.answer_to(&id).await.expect("published")["matched"], 1);
        assert_eq!(subscriber.message("t").await, largest);
        assert_eq!(subscriber.message("t").await, n);
    }
}

#[tokio::test]
async fn nothing_follows_the_close_frame_whatever_else_is_wrong() {
    let server = server(|options| options.bad_frames = 1).await;
    let mut too_large = vec![0x81, 0x80 | 127];
    too_large.extend((1_u64 << 40).to_be_bytes());
    too_large.extend([0; 4]);
    let list = br#"{"type":"$list","meta":{"correlationId":"l"}}"#;
    for more in [too_large, frame(0x81, b"\xff"), frame(0x83, b""), frame(0x89, b"ping"), frame(0x81, list)] {
        let (mut socket, _) = raw(&server, "").await;
        socket.write_all(&[frame(0x81, b"not json"), more].concat()).await.expect("sent");
        let mut told = Vec::new();
        let reading = tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut told)).await;
        reading.expect("it ends").expect("it is shut down");
        let close = [&[0x88, 16][..], &1008_u16.to_be_bytes(), b"protocol-error"].concat();
        assert!(told.ends_with(&close), "{}", String::from_utf8_lossy(&told));
        let closes = told.windows(8).filter(|window| window == b"\"$close\"").count();
        assert_eq!(closes, 1, "{}", String::from_utf8_lossy(&told));
    }
    let closed = server.metric(r#"tidings_topics_closed_total{reason="protocol-error"}"#);
    assert_eq!(closed, Some(5.0), "each counts once");
}

#[tokio::test]
async fn an_abort_that_is_refused_is_no_answer_to_the_request_that_it_names() {
    let server = server(|options| {
        options.rate_capacity = 1;
        options.rate_per_second = 1;
    })
    .await;
    let mut client = Client::connect(&server).await;
    client.say(r#"{"type":"$list","meta":{"correlationId":"l"}}"#).await;
    client.say(r#"{"type":"$ws:abort","meta":{"correlationId":"l"}}"#).await;
    let answer = client.text().await;
    assert_eq!((&answer["type"], &answer["meta"]["correlationId"]), (&json!("$reply"), &json!("l")));
    let refused = client.text().await;
    assert_eq!((&refused["type"], refused.get("meta")), (&json!("ERROR"), None));
    assert_eq!(refused["payload"]["code"], "RESOURCE_EXHAUSTED");
}

#[tokio::test]
async fn whoever_takes_too_long_for_one_message_is_told_so() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    // It is never silent for long, but its message does not end.
    for part in [frame(0x01, b"{"), frame(0x00, b" "), frame(0x00, b" ")] {
        let MaybeTlsStream::Plain(socket) = client.socket.get_mut() else { panic!("no TLS") };
        socket.write_all(&[part, frame(0x89, b"read")].concat()).await.expect("sent");
        let pong = client.socket.next().await.expect("it goes on").expect("a frame");
        assert_eq!(pong, Message::Pong(Bytes::from_static(b"read")));
        let_pass(&server, 20).await;
    }
    let close = client.closed().await;
    assert_eq!(close, json!({ "code": 1008, "reason": "protocol-error", "reconnect": false }));
    let closed = server.metric(r#"tidings_topics_closed_total{reason="protocol-error"}"#);
    assert_eq!(closed, Some(1.0));
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn what_was_asked_before_the_close_is_answered_before_it() {
    let server = Harness::start().await;
    let (mut socket, _) = raw(&server, "").await;
    let ask = |id: &str, kind: &str, payload: Value| {
        let request = json!({ "type": kind, "meta": { "correlationId": id }, "payload": payload });
        frame(0x81, request.to_string().as_bytes())
    };
    let publish = json!({ "topic": "t", "message": { "type": "T" } });
    let all = [
        ask("1", "$subscribe", json!({ "topic": "t" })),
        ask("2", "$publish", publish),
        frame(0x88, &1000_u16.to_be_bytes()),
        ask("3", "$list", json!({})),
    ];
    socket.write_all(&all.concat()).await.expect("sent");
    let hello = read_frame(&mut socket).await;
    assert_eq!(hello.0, 0x81);
    let mut answered = Vec::new();
    loop {
        let (first, payload) = read_frame(&mut socket).await;
        if first == 0x88 {
            assert_eq!(payload, 1000_u16.to_be_bytes());
            break;
        }
        let frame: Value = serde_json::from_slice(&payload).expect("JSON");
        if frame["type"] == "$reply" {
            answered.push(frame["meta"]["correlationId"].clone());
        }
    }
    assert_eq!(answered, ["1", "2"], "nothing that comes after the close is");
    assert_eq!(socket.read(&mut [0; 16]).await.expect("it is shut down"), 0, "and nothing follows the close");
    drop(socket);
    nobody_is_left(&server).await;
}
