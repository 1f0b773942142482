//! Clients that are slow, silent or gone.

use tidings_server::LimitOptions;
use tidings_testing::Process;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// A connection whose client has a small buffer.
async fn connected(address: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("set");
    socket.connect(address.parse().expect("an address")).await.expect("connected")
}

/// A WebSocket on a connection, whose client reads only when told.
async fn upgraded(mut socket: TcpStream) -> TcpStream {
    let head = format!(
        "GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    read_until(&mut socket, "CONNECTED").await;
    socket
}

/// A masked text frame; the mask is zero.
fn text(message: &Value) -> Vec<u8> {
    let payload = message.to_string().into_bytes();
    let mut frame = vec![0x81];
    match u8::try_from(payload.len()) {
        Ok(short) if short < 126 => frame.push(0x80 | short),
        Ok(_) | Err(_) => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(payload.len()).expect("short").to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

/// Reads until a text was seen.
async fn read_until(socket: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        let mut bytes = [0; 4096];
        let read = tokio::time::timeout(Duration::from_secs(30), socket.read(&mut bytes)).await;
        let read = read.expect("something comes").expect("readable");
        assert!(read > 0, "it goes on: {}", String::from_utf8_lossy(&seen));
        seen.extend(&bytes[..read]);
    }
}

/// A client that has subscribed to a hundred entities and reads no more.
async fn stopped(address: &str) -> TcpStream {
    stopped_on(connected(address).await).await
}

/// The same on a connection.
async fn stopped_on(socket: TcpStream) -> TcpStream {
    let mut socket = upgraded(socket).await;
    let payload = json!({ "entityCode": "project", "entityIds": hundred() });
    socket.write_all(&text(&json!({ "type": "SUBSCRIBE", "payload": payload }))).await.expect("sent");
    read_until(&mut socket, "SUBSCRIBED").await;
    socket
}

fn hundred() -> Vec<String> {
    (0..100).map(|n| n.to_string()).collect()
}

/// Changes each of a hundred entities, many times.
async fn flood(server: &Harness, rounds: usize) {
    let all: Vec<_> = (0..10_000).map(|n| change("project", &(n % 100).to_string(), "UPDATE")).collect();
    for _ in 0..rounds {
        publish(server, &all).await;
    }
}

/// Changes entities until nothing more goes into the socket of the only client.
async fn fill(server: &Harness) {
    until("it is there", || server.server().live_connections().len() == 1).await;
    let mut rounds = 0;
    while server.metric("tidings_entity_pending") == Some(0.0) {
        flood(server, 1).await;
        rounds += 1;
        assert!(rounds < 500, "the socket never gets full");
    }
}

#[tokio::test]
async fn changes_of_a_client_that_reads_nothing_are_joined_and_the_latest_is_told_when_it_reads_on() {
    let server = Harness::start().await;
    let address = server.address().to_string();
    let mut slow = stopped(&address).await;
    let mut healthy = Client::connect(&server).await;
    healthy.subscribe("project", &["99"]).await;
    let mut last = 0;
    // Until the socket is full, what is told leaves at once.
    for _ in 0..12 {
        flood(&server, 1).await;
        last = healthy.changes("project").await.last().expect("a change").2;
        assert!(server.metric("tidings_entity_pending").expect("counted") <= 100.0);
    }
    update(&server, "project", "0").await;
    assert!(last > 0);
    read_until(
        &mut slow,
        &format!("\"entityId\":\"0\",\"action\":\"UPDATE\",\"version\":{}", 12 * 10_000 + 1),
    )
    .await;
    drop(slow);
}

#[tokio::test]
async fn a_million_changes_to_a_hundred_entities_leave_a_hundred_pending_and_little_memory() {
    let process = Process::serve(&[]).await;
    let address = process.url("").replace("http://", "");
    let client = http::Client::new();
    let mut stopped_ones = Vec::new();
    for _ in 0..10 {
        stopped_ones.push(stopped(&address).await);
    }
    let body: Vec<_> = (0..10_000).map(|n| change("project", &(n % 100).to_string(), "UPDATE")).collect();
    let body = json!(body);
    let publish = async |rounds: usize| {
        for _ in 0..rounds {
            let answer = client.post(process.url("/v1/app/changes")).json(&body).send().await;
            assert_eq!(answer.expect("an answer").status(), 200);
        }
    };
    publish(20).await;
    let before = process.memory();
    publish(80).await;
    let pending = async || -> f64 {
        let metrics =
            http::get(process.url("/metrics")).await.expect("an answer").text().await.expect("text");
        let line = metrics.lines().find_map(|line| line.strip_prefix("tidings_entity_pending "));
        line.expect("it is shown").parse().expect("a number")
    };
    assert!(pending().await <= 10.0 * 100.0, "{} changes wait for ten clients", pending().await);
    let grown = process.memory().saturating_sub(before);
    assert!(grown < 192 * 1024 * 1024, "it grew by {grown} bytes");
    process.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_not_held_to_be_silent_and_is_closed_after_the_stall_limit() {
    let server = Harness::start().await;
    let address = server.address().to_string();
    let slow = stopped(&address).await;
    fill(&server).await;
    let_pass(&server, 55).await;
    assert_eq!(server.server().live_connections().len(), 1, "longer than two heartbeats, but not too long");
    let_pass(&server, 12).await;
    until("it is gone", || server.server().live_connections().is_empty()).await;
    let hits = server.metric(r#"tidings_limit_hits_total{limit="entity_stall"}"#);
    assert_eq!(hits, Some(1.0));
    drop(slow);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_client_through_hyper_that_takes_nothing_has_the_same_limit_and_not_that_of_responses() {
    let limits = LimitOptions { write_timeout: Duration::from_millis(1), ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    let mut socket = connected(&server.address().to_string()).await;
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    read_until(&mut socket, "\"ok\"}").await;
    let slow = stopped_on(socket).await;
    fill(&server).await;
    let_pass(&server, 50).await;
    assert_eq!(server.server().live_connections().len(), 1);
    let_pass(&server, 17).await;
    until("it is gone", || server.server().live_connections().is_empty()).await;
    drop(slow);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_client_that_answers_no_ping_is_dropped_after_two_heartbeats() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1"]).await;
    // Half open, as far as the server can see: nobody reads, so no ping is answered.
    let_pass(&server, 28).await;
    assert_eq!(server.server().live_connections().len(), 1);
    let_pass(&server, 12).await;
    until("it is gone", || server.metric("tidings_entity_connections") == Some(0.0)).await;
    let closed = server.metric(r#"tidings_entity_closed_total{reason="silent"}"#);
    assert_eq!(closed, Some(1.0));
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_client_that_answers_pings_stays() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1"]).await;
    for _ in 0..6 {
        let_pass(&server, 16).await;
        // Reading answers the ping.
        client.ask("PING", json!({}), "PONG").await;
    }
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answers_is_not_read_from() {
    let server = Harness::start().await;
    let mut socket = upgraded(connected(&server.address().to_string()).await).await;
    let ping = text(&json!({ "type": "PING", "payload": { "requestId": "x".repeat(100) } }));
    let flood = ping.repeat(1000);
    let mut sent = 0_usize;
    // It stops when what it has sent is not taken any more.
    while let Ok(written) = tokio::time::timeout(Duration::from_secs(2), socket.write_all(&flood)).await {
        written.expect("sent");
        sent += flood.len();
        assert!(sent < 64 * 1024 * 1024, "the server reads without end");
    }
    let mut other = Client::connect(&server).await;
    other.ask("PING", json!({}), "PONG").await;
}

#[tokio::test]
async fn one_client_that_reads_nothing_delays_no_other() {
    let server = Harness::start().await;
    let address = server.address().to_string();
    let slow = stopped(&address).await;
    let mut healthy = Client::connect(&server).await;
    healthy.subscribe("project", &[]).await;
    for _ in 0..20 {
        flood(&server, 1).await;
        let cursor = update(&server, "project", "end").await;
        assert!(cursor.is_string());
        healthy.until("end").await;
    }
    drop(slow);
}
