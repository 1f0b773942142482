//! Connections: none is kept for nothing, and none keeps others waiting.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidings_engine::Clock;
use tidings_model::limits;
use tidings_server::{LimitOptions, ObserveOptions};
use tidings_streams::Options;
use tidings_testing::{Harness, Launch, Process, Setup, http, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_keep_neither_others_waiting_nor_the_server_from_stopping() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut silent = Vec::new();
    for head in [
        "",
        "GET /health HT",
        "PUT /v1/stream/x HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nhalf",
    ] {
        let mut socket = TcpStream::connect(server.address()).await.expect("connected");
        socket.write_all(head.as_bytes()).await.expect("written");
        silent.push(socket);
    }
    assert_eq!(server.get("/v1/stream/s").await.status(), 200);
    // Returns, and does not wait for them longer than it must.
    server.stop().await;
}

const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(3600);

async fn server(limits: LimitOptions) -> Harness {
    Harness::with(Setup { limits, ..Setup::default() }).await
}

fn hits(server: &Harness, limit: &str) -> f64 {
    server.metric(&format!("tidings_limit_hits_total{{limit=\"{limit}\"}}")).expect("all limits are counted")
}

/// Waits until the other side ends the connection, and returns what it said before.
async fn to_the_end(mut socket: TcpStream) -> String {
    let mut said = Vec::new();
    // A reset is an end, too.
    let _ = socket.read_to_end(&mut said).await;
    String::from_utf8_lossy(&said).into_owned()
}

#[tokio::test]
async fn a_connection_that_does_not_say_what_it_wants_in_time_is_ended() {
    let server =
        server(LimitOptions { head_timeout: SOON, idle_timeout: LATE, ..LimitOptions::default() }).await;
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = "\0\0\0\u{4}\0\0\0\0\0";
    let http2 = [preface, settings].concat();
    let beginnings = ["", "G", "GET /health HTTP/1.1\r\nhost: localhost\r\n", "PRI * HT", preface, &http2];
    for (n, beginning) in beginnings.into_iter().enumerate() {
        let mut socket = TcpStream::connect(server.address()).await.expect("connected");
        socket.write_all(beginning.as_bytes()).await.expect("written");
        let said = to_the_end(socket).await;
        assert!(!said.contains("200"), "{beginning:?}: {said}");
        until("it is counted", || hits(&server, "head_time") == (n + 1) as f64).await;
    }
}

#[tokio::test]
async fn an_idle_connection_is_ended_and_a_busy_one_is_not() {
    let server =
        server(LimitOptions { head_timeout: LATE, idle_timeout: SOON, ..LimitOptions::default() }).await;
    server.create_text("/v1/stream/s").await;
    let connect = || async { TcpStream::connect(server.address()).await.expect("connected") };
    let (mut idle, mut busy) = (connect().await, connect().await);
    let follow = "GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n";
    busy.write_all(follow.as_bytes()).await.expect("written");
    idle.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("written");
    assert!(to_the_end(idle).await.contains("200 OK"));
    let mut dribbling = connect().await;
    dribbling.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea").await.expect("written");
    assert_eq!(to_the_end(dribbling).await.matches("HTTP/1.1").count(), 1, "the second never came");
    until("they are counted", || hits(&server, "idle_time") >= 2.0).await;
    server.append_text("/v1/stream/s", "still here").await;
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("still here") {
        assert_ne!(busy.read_buf(&mut heard).await.expect("readable"), 0, "whoever follows is not idle");
    }
}

#[tokio::test]
async fn http2_is_served_without_tls_and_ends_when_it_is_idle() {
    let server =
        server(LimitOptions { head_timeout: LATE, idle_timeout: SOON, ..LimitOptions::default() }).await;
    server.create_text("/v1/stream/s").await;
    let socket = TcpStream::connect(server.address()).await.expect("connected");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let get = |path: &str| Request::get(server.url(path)).body(Empty::<Bytes>::new()).expect("a request");
    let followed = sender.send_request(get("/v1/stream/s?offset=-1&live=sse")).await.expect("an answer");
    let health = sender.send_request(get("/health")).await.expect("an answer");
    assert_eq!((health.status().as_u16(), health.version()), (200, hyper::Version::HTTP_2));
    assert_eq!(health.into_body().collect().await.expect("whole").to_bytes(), "{\"status\":\"ok\"}");
    // A request that is not answered to the end keeps the connection.
    server.append_text("/v1/stream/s", "hello").await;
    let mut events = followed.into_body();
    let mut heard = Vec::new();
    while !String::from_utf8_lossy(&heard).contains("hello") {
        let frame = events.frame().await.expect("it goes on").expect("readable");
        heard.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    drop(events);
    assert!(connection.await.expect("no panic").is_ok(), "the server ends it well");
    assert!(hits(&server, "idle_time") >= 1.0);
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
const READ: &[u8] = b"GET /v1/stream/s HTTP/1.1\r\nhost: localhost\r\n\r\n";
const FOLLOW: &[u8] = b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n";

async fn connected(server: &Harness) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("the system takes it")
}

/// Sends a request and reads until the answer has this.
async fn ask(socket: &mut TcpStream, request: &[u8], expected: &str) -> String {
    socket.write_all(request).await.expect("written");
    let mut heard = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&heard);
        if text.contains(expected) {
            return text.into_owned();
        }
        let read = socket.read_buf(&mut heard).await.expect("readable");
        assert_ne!(read, 0, "it ends without {expected:?}: {}", String::from_utf8_lossy(&heard));
    }
}

/// Whether the other side has closed, which it does in an orderly way.
async fn is_closed(socket: &mut TcpStream) -> bool {
    socket.read(&mut [0; 64]).await.expect("no reset") == 0
}

#[tokio::test]
async fn at_the_limit_the_longest_idle_connection_makes_room() {
    let limits =
        LimitOptions { connections: 3, idle_timeout: LATE, head_timeout: LATE, ..LimitOptions::default() };
    let server = server(limits).await;
    let (mut used, mut silent, mut young) =
        (connected(&server).await, connected(&server).await, connected(&server).await);
    until("all are taken", || server.metric("tidings_connections") == Some(3.0)).await;
    ask(&mut used, HEALTH, "ok").await;
    ask(&mut young, HEALTH, "ok").await;
    // One after the other: the silent one has been idle for longest, then the one that asked first.
    let (mut fourth, mut fifth) = (connected(&server).await, connected(&server).await);
    ask(&mut fourth, HEALTH, "ok").await;
    ask(&mut fifth, HEALTH, "ok").await;
    assert!(is_closed(&mut silent).await);
    assert!(is_closed(&mut used).await);
    ask(&mut young, HEALTH, "ok").await;
    assert!(hits(&server, "connections") >= 1.0);
    assert!(server.metric("tidings_connections_evicted_total") >= Some(1.0));
}

#[tokio::test]
async fn at_the_limit_http2_connections_and_half_sent_heads_make_room() {
    let limits =
        LimitOptions { connections: 2, idle_timeout: LATE, head_timeout: LATE, ..LimitOptions::default() };
    let server = server(limits).await;
    let mut half = connected(&server).await;
    half.write_all(b"GET /health HT").await.expect("written");
    let socket = connected(&server).await;
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let get = Request::get(server.url("/health")).body(Empty::<Bytes>::new()).expect("a request");
    let health = sender.send_request(get).await.expect("an answer");
    health.into_body().collect().await.expect("whole");
    let mut others = (connected(&server).await, connected(&server).await);
    ask(&mut others.0, HEALTH, "ok").await;
    ask(&mut others.1, HEALTH, "ok").await;
    assert_eq!(to_the_end(half).await, "");
    assert!(connection.await.expect("no panic").is_ok(), "it is told, and ends well");
}

#[tokio::test]
async fn when_all_connections_are_in_use_only_health_gets_through_and_others_are_told() {
    let limits =
        LimitOptions { connections: 2, idle_timeout: LATE, head_timeout: LATE, ..LimitOptions::default() };
    let server = server(limits).await;
    ask(
        &mut connected(&server).await,
        b"PUT /v1/stream/s HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
        "201",
    )
    .await;
    // On a socket of its own, and on a connection that was used before.
    let (mut early, mut later) = (connected(&server).await, connected(&server).await);
    ask(&mut early, FOLLOW, "upToDate").await;
    ask(&mut later, HEALTH, "ok").await;
    ask(&mut later, FOLLOW, "upToDate").await;
    let silent: Vec<_> = {
        let mut silent = Vec::new();
        for _ in 0..3 * limits::CONNECTIONS_RESERVED {
            silent.push(connected(&server).await);
        }
        silent
    };
    for path in ["/health", "/ready"] {
        let mut watching = connected(&server).await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let answer = ask(&mut watching, request.as_bytes(), "status").await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        assert!(is_closed(&mut watching).await);
    }
    for request in [READ, FOLLOW] {
        let mut refused = connected(&server).await;
        let answer = ask(&mut refused, request, "too_many_connections").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("retry-after: 1") && answer.contains("connection: close"), "{answer}");
        assert!(is_closed(&mut refused).await);
    }
    drop(silent);
    server.server().live_connections().drain(server.clock.now());
    ask(&mut early, b"", "0\r\n\r\n").await;
    ask(&mut connected(&server).await, READ, "200 OK").await;
}

#[tokio::test]
async fn idle_connections_do_not_keep_anybody_from_the_listener_of_metrics() {
    let observe =
        ObserveOptions { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..ObserveOptions::default() };
    let limits = LimitOptions { connections: 1, head_timeout: LATE, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, observe, ..Setup::default() }).await;
    let address = server.server().metrics_address().expect("it listens");
    let mut silent = Vec::new();
    for _ in 0..limits::METRICS_CONNECTIONS + 2 * limits::CONNECTIONS_RESERVED {
        silent.push(TcpStream::connect(address).await.expect("connected"));
        silent.push(connected(&server).await);
    }
    let mut watching = TcpStream::connect(address).await.expect("connected");
    let request = b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert!(ask(&mut watching, request, "tidings_connections").await.starts_with("HTTP/1.1 200"));
    ask(&mut connected(&server).await, HEALTH, "ok").await;
}

#[tokio::test]
async fn silent_connections_do_not_take_the_descriptors_that_the_store_needs() {
    let launch = Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &[]);
    let mut server = Process::launch(Launch { open_files: Some(256), ..launch }).await;
    let client = http::Client::new();
    let text = |request: http::RequestBuilder| request.header("content-type", "text/plain").body("x").send();
    assert_eq!(text(client.put(server.url("/v1/stream/s"))).await.expect("an answer").status(), 201);
    let address = server.url("").replace("http://", "");
    let mut silent = Vec::new();
    for n in 0..300 {
        silent.push(TcpStream::connect(&address).await.expect("the system takes it"));
        if n % 10 != 0 {
            continue;
        }
        let appended = text(client.post(server.url("/v1/stream/s"))).await.expect("an answer");
        assert_eq!(appended.status(), 204);
    }
    // A new stream for each, so that the store is asked for more than its open log.
    for n in 0..10 {
        let created = text(client.put(server.url(&format!("/v1/stream/{n}")))).await.expect("an answer");
        assert_eq!(created.status(), 201);
    }
    assert!(server.is_running(), "{}", server.log());
    let log = server.log();
    assert!(log.contains("256") && log.contains("allows fewer connections"), "{log}");
    assert!(!log.contains("Too many open files"), "{log}");
    drop(silent);
    server.stop().await;
}

/// Asks for what is large, with a buffer that is small, and reads nothing.
async fn asking_and_not_reading(server: &Harness, ask: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut socket = socket.connect(server.address()).await.expect("connected");
    socket.write_all(ask).await.expect("written");
    socket
}

#[tokio::test]
async fn whoever_stops_reading_an_answer_is_cut_off_and_whoever_waits_for_one_is_not() {
    let streams = Options { slow_reader_timeout: SOON, ..Options::default() };
    let limits = LimitOptions { write_timeout: SOON, idle_timeout: LATE, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    server.append_text("/v1/stream/s", &"x".repeat(8 << 20)).await;
    let ask = b"GET /v1/stream/s HTTP/1.1\r\nhost: localhost\r\n\r\n";
    // An answer that waits for what comes: nothing is written, so nothing is late.
    let poll = b"GET /v1/stream/s?offset=now&live=long-poll HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut waiting = asking_and_not_reading(&server, poll).await;
    let stuck = asking_and_not_reading(&server, ask).await;
    until("it is cut off", || hits(&server, "write_time") == 1.0).await;
    assert!(to_the_end(stuck).await.len() < 8 << 20, "not all of it came");
    server.append_text("/v1/stream/s", "hello").await;
    let mut answer = [0; 12];
    waiting.read_exact(&mut answer).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 200");
    assert_eq!(hits(&server, "write_time"), 1.0);
}
