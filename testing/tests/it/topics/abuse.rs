//! Clients that do what they can to be a burden: they cost their own connection, and nobody else notices.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::frames::{frame, raw};
use super::*;

/// Bytes of memory that the process has.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a system that tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line");
    let kib: u64 = line.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024
}

/// Two clients that are not abusive, and hear each other.
struct Healthy {
    publisher: Client,
    subscriber: Client,
    n: u64,
}

impl Healthy {
    async fn connect(server: &Harness) -> Self {
        let (publisher, mut subscriber) = (Client::connect(server).await, Client::connect(server).await);
        subscriber.subscribe("healthy").await;
        Self { publisher, subscriber, n: 0 }
    }

    /// A message is sent and heard.
    async fn hear_each_other(&mut self) {
        self.n += 1;
        assert_eq!(self.publisher.publish("healthy", json!(self.n)).await["matched"], 1);
        assert_eq!(self.subscriber.message("healthy").await, self.n);
    }
}

#[tokio::test]
async fn whoever_asks_without_reading_is_not_read_any_more() {
    let server = server(|options| {
        options.rate_capacity = u32::MAX;
        options.slow_consumer = Duration::from_secs(3600);
    })
    .await;
    let mut healthy = Healthy::connect(&server).await;
    let before = memory();
    let subscribe = br#"{"type":"$subscribe","meta":{"correlationId":"1"},"payload":{"topic":"t"}}"#;
    let unsubscribe = br#"{"type":"$unsubscribe","meta":{"correlationId":"2"},"payload":{"topic":"t"}}"#;
    let block: Vec<u8> =
        (0..200).flat_map(|_| [frame(0x81, subscribe), frame(0x81, unsubscribe)].concat()).collect();
    let mut flooding = Vec::new();
    for _ in 0..4 {
        let (mut socket, _) = raw(&server, "").await;
        let mut sent = 0;
        // Until the server takes no more.
        while let Ok(written) = tokio::time::timeout(Duration::from_millis(500), socket.write(&block)).await {
            sent += written.expect("it is not cut");
            assert!(sent < 64 * 1024 * 1024, "the server reads on although nobody takes its answers");
            healthy.hear_each_other().await;
        }
        flooding.push(socket);
    }
    healthy.hear_each_other().await;
    let grown = memory().saturating_sub(before);
    println!("memory grew by {} KiB for 4 floods", grown / 1024);
    assert!(grown < 64 * 1024 * 1024, "{grown}");
    assert_eq!(server.server().live_connections().len(), 6);
    drop((flooding, healthy));
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn whoever_floods_is_slowed_down_by_its_rate_and_the_others_are_not() {
    let server = server(|options| {
        options.rate_capacity = 100;
        options.rate_per_second = 100;
    })
    .await;
    let mut healthy = Healthy::connect(&server).await;
    let mut flood = Client::connect(&server).await;
    for n in 0..1000 {
        let kind = if n % 2 == 0 { "$subscribe" } else { "$unsubscribe" };
        flood.say(json!({ "type": kind, "payload": { "topic": "t" } }).to_string()).await;
    }
    for _ in 0..900 {
        assert_eq!(flood.hear().await["payload"]["code"], "RESOURCE_EXHAUSTED");
    }
    healthy.hear_each_other().await;
    let handled = server.metric(r#"tidings_topics_requests_total{type="$subscribe",result="ok"}"#);
    assert_eq!(handled, Some(51.0), "50 of the flood, and one of the healthy");
}

#[tokio::test]
async fn a_length_that_is_only_announced_and_fragments_of_one_byte_take_no_memory() {
    let server = Harness::start().await;
    let mut healthy = Healthy::connect(&server).await;
    let before = memory();
    let mut sockets = Vec::new();
    for _ in 0..200 {
        // Almost as much as is allowed, and nothing of it comes.
        let (mut socket, _) = raw(&server, "").await;
        let mut head = vec![0x81, 0x80 | 127];
        head.extend(1_114_000_u64.to_be_bytes());
        head.extend([0; 4]);
        socket.write_all(&head).await.expect("sent");
        socket.write_all(b"{").await.expect("sent");
        sockets.push(socket);
    }
    for _ in 0..20 {
        let (mut socket, _) = raw(&server, "").await;
        let mut fragments = frame(0x01, b"{");
        (0..10_000).for_each(|_| fragments.extend(frame(0x00, b" ")));
        socket.write_all(&fragments).await.expect("sent");
        sockets.push(socket);
    }
    healthy.hear_each_other().await;
    let grown = memory().saturating_sub(before);
    println!("memory grew by {} KiB for 220 sockets", grown / 1024);
    assert!(grown < 32 * 1024 * 1024, "{grown}");
    // Lengths that cannot be are refused at once.
    for length in [u64::MAX, 1 << 63, 1 << 40, 1_114_113] {
        let (mut socket, _) = raw(&server, "").await;
        let mut head = vec![0x81, 0x80 | 127];
        head.extend(length.to_be_bytes());
        head.extend([0; 4]);
        socket.write_all(&head).await.expect("sent");
        let mut all = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(30), socket.read_to_end(&mut all)).await;
        let closes: Vec<u16> = all
            .windows(4)
            .filter(|window| window[0] == 0x88)
            .map(|window| u16::from_be_bytes([window[2], window[3]]))
            .collect();
        assert!(closes.contains(&1009) || closes.contains(&1002), "{length}: {closes:?}");
    }
    drop((sockets, healthy));
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn pings_without_reading_are_owed_one_pong_and_harm_nobody() {
    let server = Harness::start().await;
    let mut healthy = Healthy::connect(&server).await;
    let before = memory();
    let (mut socket, _) = raw(&server, "").await;
    let block: Vec<u8> = (0..500).flat_map(|_| frame(0x89, &[b'x'; 100])).collect();
    for _ in 0..200 {
        let sending = tokio::time::timeout(Duration::from_secs(10), socket.write_all(&block));
        sending.await.expect("they are read").expect("sent");
    }
    healthy.hear_each_other().await;
    let grown = memory().saturating_sub(before);
    println!("memory grew by {} KiB for 100,000 pings", grown / 1024);
    assert!(grown < 16 * 1024 * 1024, "{grown}");
}

#[tokio::test]
async fn many_different_topics_are_bounded_and_gone_with_their_connection() {
    let server = Harness::start().await;
    let mut healthy = Healthy::connect(&server).await;
    let before = memory();
    let mut client = Client::connect(&server).await;
    // A hundred thousand different topics; never more than a thousand at a time.
    for batch in 0..100 {
        let topics: Vec<String> = (0..1000).map(|n| format!("{}:{batch}:{n}", "x".repeat(100))).collect();
        let counts = client.done("$set", json!({ "topics": topics })).await;
        assert_eq!((&counts["added"], &counts["total"]), (&json!(1000), &json!(1000)));
    }
    assert_eq!(
        client.fails("$subscribe", json!({ "topic": "one-more" })).await["code"],
        "TOPIC_LIMIT_EXCEEDED"
    );
    assert_eq!(server.server().topics().subscribed(), 1001);
    healthy.hear_each_other().await;
    // Publishing to topics that nobody hears leaves nothing.
    for n in 0..2000 {
        let message = json!({ "type": "T" });
        let frame =
            json!({ "type": "$publish", "payload": { "topic": format!("p{n}"), "message": message } });
        client.say(frame.to_string()).await;
    }
    client.list().await;
    assert_eq!(server.server().topics().subscribed(), 1001);
    let grown = memory().saturating_sub(before);
    println!("memory grew by {} KiB", grown / 1024);
    assert!(grown < 64 * 1024 * 1024, "{grown}");
    drop((client, healthy));
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_project_holds_so_many_subscriptions_and_the_others_have_theirs() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_subscriptions(Some(3));
    })
    .await;
    let (mut one, mut two) = (Client::connect(&server).await, Client::connect(&server).await);
    one.done("$set", json!({ "topics": ["a", "b"] })).await;
    two.subscribe("a").await;
    for (kind, payload, requested) in [
        ("$subscribe", json!({ "topic": "b" }), 1),
        ("$subscribeMany", json!({ "topics": ["a", "b", "c"] }), 2),
        ("$set", json!({ "topics": ["b", "c"] }), 2),
        ("$update", json!({ "add": ["b"] }), 1),
    ] {
        let error = two.fails(kind, payload).await;
        assert_eq!(
            (&error["code"], &error["retryable"], &error["details"]),
            (
                &json!("TOPIC_LIMIT_EXCEEDED"),
                &json!(false),
                &json!({ "scope": "project", "limit": 3, "requested": requested })
            ),
            "{kind}"
        );
    }
    assert_eq!(two.list().await, json!(["a"]), "nothing was done");
    assert_eq!(two.done("$set", json!({ "topics": ["b"] })).await["total"], 1, "one for another");
    let mut other = Client::at(&server, "/v1/other/topics", None).await.expect("a WebSocket");
    other.done("$set", json!({ "topics": ["a", "b", "c"] })).await;
    // Whoever leaves makes room.
    one.leave().await;
    assert_eq!(two.done("$set", json!({ "topics": ["x", "y", "z"] })).await["total"], 3);
    drop((two, other));
    nobody_is_left(&server).await;
}
