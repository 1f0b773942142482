//! Readers on sockets of their own: WebSockets, slow readers, readers that go, and what is left of them.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http_body_util::Empty;
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tidings_streams::Options;
use tidings_testing::sse::Events;
use tidings_testing::{Harness, SLEEPERS, Setup, http, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::MaybeTlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

type Client = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn connect(server: &Harness, path: &str) -> Client {
    let url = server.url(path).replace("http://", "ws://");
    tokio_tungstenite::connect_async(url).await.expect("a WebSocket").0
}

/// The next message that is not a ping.
async fn hear(client: &mut Client) -> Message {
    loop {
        match client.next().await.expect("it goes on").expect("a message") {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

async fn control(client: &mut Client) -> Value {
    serde_json::from_str(hear(client).await.to_text().expect("a control is text")).expect("a control is JSON")
}

async fn close_of(client: &mut Client) -> (u16, String) {
    loop {
        if let Message::Close(close) = hear(client).await {
            let close = close.expect("a code");
            return (close.code.into(), close.reason.to_string());
        }
    }
}

pub(crate) async fn nobody_is_left(server: &Harness) {
    until("no live answer is left", || server.server().live_connections().is_empty()).await;
    until("no channel is left", || server.server().channels().is_empty()).await;
    until("nobody listens", || server.bus().listened() == 0).await;
}

/// Lets so many seconds pass, in each of which the server asks its live readers.
pub(crate) async fn let_pass(server: &Harness, seconds: usize) {
    for _ in 0..seconds {
        until("the server asks", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(Duration::from_secs(1));
    }
}

/// A connection that hyper has, because it was used before.
pub(crate) async fn used_before(server: &Harness) -> TcpStream {
    let mut socket = TcpStream::connect(server.address()).await.expect("a connection");
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
    let mut bytes = [0; 4096];
    assert!(socket.read(&mut bytes).await.expect("an answer") > 0);
    socket
}

/// A raw request for events, and its socket.
pub(crate) async fn raw(server: &Harness, path: &str) -> TcpStream {
    let address = server.url("").replace("http://", "");
    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("sent");
    socket
}

pub(crate) async fn to_the_end(mut socket: TcpStream) -> String {
    let mut all = Vec::new();
    socket.read_to_end(&mut all).await.expect("a proper end");
    String::from_utf8(all).expect("text")
}

#[tokio::test]
async fn a_websocket_hears_what_was_there_and_what_comes_each_with_where_to_resume() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let first = server.append_text("/v1/stream/s", "one").await;
    let mut client = connect(&server, "/v1/stream/s?offset=-1&live=websocket").await;
    assert_eq!(hear(&mut client).await, Message::text("one"));
    assert_eq!(control(&mut client).await, json!({ "streamNextOffset": first, "upToDate": true }));
    let second = server.append_text("/v1/stream/s", "two").await;
    assert_eq!(hear(&mut client).await, Message::text("two"));
    assert_eq!(control(&mut client).await["streamNextOffset"], json!(second));
    drop(client);
    let mut again = connect(&server, &format!("/v1/stream/s?offset={first}&live=websocket")).await;
    assert_eq!(hear(&mut again).await, Message::text("two"));
    drop(again);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_websocket_carries_bytes_as_bytes_and_json_as_arrays() {
    let server = Harness::start().await;
    for (path, kind, body, heard) in [
        ("/v1/stream/bytes", "application/octet-stream", &b"\xff\x00"[..], Message::binary(&b"\xff\x00"[..])),
        ("/v1/stream/json", "application/json", b"[1,{\"a\":2}]", Message::text("[1,{\"a\":2}]")),
        ("/v1/stream/odd", "text/plain", b"\xff", Message::binary(&b"\xff"[..])),
    ] {
        let created = server.put(path).header("content-type", kind).body(body.to_vec()).send().await;
        assert_eq!(created.expect("an answer").status(), 201);
        let mut client = connect(&server, &format!("{path}?offset=-1&live=websocket")).await;
        assert_eq!(hear(&mut client).await, heard, "{path}");
    }
}

#[tokio::test]
async fn a_websocket_is_told_why_it_ends() {
    let server = Harness::start().await;
    for path in ["/v1/stream/closed", "/v1/stream/deleted", "/v1/stream/spoken"] {
        server.create_text(path).await;
    }
    let mut closed = connect(&server, "/v1/stream/closed?offset=-1&live=websocket").await;
    control(&mut closed).await;
    let close = server.post("/v1/stream/closed").header("stream-closed", "true").send().await;
    assert_eq!(close.expect("an answer").status(), 204);
    assert_eq!(control(&mut closed).await["streamClosed"], json!(true));
    assert_eq!(close_of(&mut closed).await, (1000, "closed".into()));

    let mut deleted = connect(&server, "/v1/stream/deleted?offset=-1&live=websocket").await;
    control(&mut deleted).await;
    server.request(http::Method::DELETE, "/v1/stream/deleted").send().await.expect("an answer");
    assert_eq!(close_of(&mut deleted).await, (1001, "gone".into()));

    let mut spoken = connect(&server, "/v1/stream/spoken?offset=-1&live=websocket").await;
    spoken.send(Message::text("hello?")).await.expect("sent");
    assert_eq!(close_of(&mut spoken).await.0, 1003);
    drop((closed, deleted, spoken));
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_server_that_stops_tells_its_websockets() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut client = connect(&server, "/v1/stream/s?offset=-1&live=websocket").await;
    control(&mut client).await;
    let (closed, ()) = tokio::join!(close_of(&mut client), server.stop());
    assert_eq!(closed, (1012, "server-restart".into()));
}

#[tokio::test]
async fn a_websocket_that_answers_no_ping_is_given_up() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut client = connect(&server, "/v1/stream/s?offset=-1&live=websocket").await;
    control(&mut client).await;
    // Whoever reads answers pings; this one does for a while.
    server.clock.advance(Duration::from_secs(31));
    let ping = client.next().await.expect("it goes on").expect("a message");
    assert!(matches!(ping, Message::Ping(_)), "{ping:?}");
    client.flush().await.expect("the pong goes out");
    assert_eq!(server.server().live_connections().len(), 1);
    // And then not any more: half open, as far as the server can see.
    let_pass(&server, 100).await;
    nobody_is_left(&server).await;
    drop(client);
}

#[tokio::test]
async fn a_websocket_must_be_asked_for_properly() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let answer = server.get("/v1/stream/s?offset=-1&live=websocket").await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["sec-websocket-version"]),
        (426, &"13".parse().expect("value"))
    );
    let missing = tokio_tungstenite::connect_async(
        server.url("/v1/stream/missing?offset=-1&live=websocket").replace("http://", "ws://"),
    );
    let refused = missing.await.expect_err("there is no such stream");
    assert!(refused.to_string().contains("404"), "{refused}");
}

#[tokio::test]
async fn a_websocket_works_on_a_connection_that_was_used_before() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let socket = used_before(&server).await;
    let url = server.url("/v1/stream/s?offset=-1&live=websocket").replace("http://", "ws://");
    let (mut client, _) = tokio_tungstenite::client_async(url, socket).await.expect("a WebSocket");
    let heard = client.next().await.expect("it goes on").expect("a message");
    assert!(heard.to_text().expect("text").contains("upToDate"));
    server.append_text("/v1/stream/s", "more").await;
    assert_eq!(client.next().await.expect("it goes on").expect("a message"), Message::text("more"));
    client.close(None).await.expect("closed");
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn the_first_request_of_a_connection_is_answered_as_any_other() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let error = to_the_end(raw(&server, "/v1/stream/missing?offset=-1&live=sse").await).await;
    assert!(error.starts_with("HTTP/1.1 404 Not Found\r\n"), "{error}");
    assert!(
        error.ends_with(r#"{"error":{"code":"stream_not_found","message":"the stream does not exist"}}"#)
    );
    server.append_text("/v1/stream/s", "all").await;
    server.post("/v1/stream/s").header("stream-closed", "true").send().await.expect("an answer");
    let answer = to_the_end(raw(&server, "/v1/stream/s?offset=-1&live=sse").await).await;
    let head = answer.split("\r\n\r\n").next().expect("a head").to_lowercase();
    for part in
        ["200 ok", "transfer-encoding: chunked", "connection: close", "x-content-type-options: nosniff"]
    {
        assert!(head.contains(part), "{part} in {head}");
    }
    assert!(!head.contains("content-length"), "{head}");
    assert!(answer.contains("data:all\n") && answer.contains("streamClosed"), "{answer}");
    assert!(answer.ends_with("\r\n0\r\n\r\n"), "it ends as an answer in chunks does");
    nobody_is_left(&server).await;
}

/// Fills a stream until those who do not read cannot be sent any more.
async fn flood(server: &Harness, path: &str) {
    let block = "x".repeat(256 * 1024);
    for _ in 0..48 {
        server.append_text(path, &block).await;
    }
}

#[tokio::test]
async fn readers_that_stop_reading_are_told_and_cut_and_nobody_else_notices() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let path = "/v1/stream/s?offset=-1&live=sse";
    let mut stopped = Vec::new();
    for _ in 0..20 {
        stopped.push(raw(&server, path).await);
    }
    let mut healthy = Events::of(server.get(path).await);
    until("all are there", || server.server().live_connections().len() == 21).await;
    let hearing = tokio::spawn(async move {
        let mut bytes = 0;
        while bytes < 48 * 256 * 1024 {
            bytes += healthy.next().await.expect("it goes on").data.matches('x').count();
        }
        healthy
    });
    flood(&server, "/v1/stream/s").await;
    let mut healthy = hearing.await.expect("the healthy one heard all of it");
    let_pass(&server, 17).await;
    until("those who stopped are cut", || server.server().live_connections().len() == 1).await;
    let heard = to_the_end_somehow(stopped.pop().expect("one of them")).await;
    let last = &heard[heard.len().saturating_sub(100)..];
    assert!(
        heard.ends_with(": slow-consumer\n\n\r\n0\r\n\r\n") || !heard.contains("slow-consumer"),
        "{last}"
    );
    server.append_text("/v1/stream/s", "still here").await;
    while healthy.next().await.expect("it goes on").data != "still here" {}
}

/// What a socket has, whether it was ended or cut.
async fn to_the_end_somehow(mut socket: TcpStream) -> String {
    let mut all = Vec::new();
    // A cut is an error, after which what came before is still there.
    let _ = socket.read_to_end(&mut all).await;
    String::from_utf8(all).expect("text")
}

#[tokio::test]
async fn a_reader_that_stopped_and_reads_on_in_time_is_told_that_it_was_too_slow() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let reader = raw(&server, "/v1/stream/s?offset=-1&live=sse").await;
    until("it is there", || server.server().live_connections().len() == 1).await;
    flood(&server, "/v1/stream/s").await;
    let_pass(&server, 12).await;
    let heard = to_the_end(reader).await;
    assert!(heard.ends_with(": slow-consumer\n\n\r\n0\r\n\r\n"), "{}", &heard[heard.len() - 100..]);
    // What it has heard is whole, and where to resume is in it.
    let offset = heard
        .rsplit("streamNextOffset\":\"")
        .next()
        .expect("a control")
        .split('"')
        .next()
        .expect("an offset");
    let rest = server.get(&format!("/v1/stream/s?offset={offset}")).await;
    assert_eq!(rest.status(), 200);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_reader_through_hyper_that_stops_reading_is_cut_too() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut socket = used_before(&server).await;
    let head = b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nhost: localhost\r\n\r\n";
    socket.write_all(head).await.expect("sent");
    until("it is there", || server.server().live_connections().len() == 1).await;
    flood(&server, "/v1/stream/s").await;
    let_pass(&server, 17).await;
    nobody_is_left(&server).await;
    drop(socket);
}

#[tokio::test]
async fn a_reader_by_http_2_that_stops_reading_is_borne_longer_and_then_cut() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let socket = TcpStream::connect(server.address()).await.expect("connected");
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1024)
        .handshake(TokioIo::new(socket))
        .await
        .expect("it speaks HTTP/2");
    let connection = tokio::spawn(connection);
    let request = Request::get(server.url("/v1/stream/s?offset=-1&live=sse")).body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    flood(&server, "/v1/stream/s").await;
    let_pass(&server, 60).await;
    assert!(!connection.is_finished(), "others may use it");
    let_pass(&server, 40).await;
    nobody_is_left(&server).await;
    drop(answer);
}

#[tokio::test]
async fn a_stream_takes_so_many_live_readers_and_no_more() {
    let streams = Options { max_readers_per_stream: 2, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    let first = connect(&server, "/v1/stream/s?offset=-1&live=websocket").await;
    let _second = server.get("/v1/stream/s?offset=-1&live=sse").await;
    assert_eq!(server.get("/v1/stream/s?offset=-1&live=sse").await.status(), 503);
    drop(first);
    until("there is room again", || server.server().live_connections().len() == 1).await;
    assert_eq!(server.get("/v1/stream/s?offset=-1&live=sse").await.status(), 200);
}
