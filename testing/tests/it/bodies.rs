//! Bodies: how much memory they take together, how long they may pause, and that a client that has said all is answered.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::Request;
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidings_model::limits;
use tidings_server::LimitOptions;
use tidings_streams::Options;
use tidings_testing::{Harness, SLEEPERS, Setup, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sockets::{nobody_is_left, to_the_end, used_before};
use crate::tls::Files;

/// Bytes of all bodies; a project has a quarter.
const ALL: usize = 4000;

async fn server() -> Harness {
    let streams = Options { max_append_bytes: ALL / 4, ..Options::default() };
    let limits = LimitOptions { body_bytes_in_flight: ALL, ..LimitOptions::default() };
    Harness::with(Setup { streams, limits, ..Setup::default() }).await
}

async fn connected(server: &Harness) -> TcpStream {
    TcpStream::connect(server.address()).await.expect("connected")
}

fn in_flight(server: &Harness) -> Option<f64> {
    server.metric("tidings_body_bytes_in_flight")
}

fn head(asked: &str, length: usize) -> String {
    format!(
        "{asked} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// A request of which a part of the body has come.
async fn half_sent(server: &Harness, asked: &str, bytes: usize) -> TcpStream {
    let before = in_flight(server).expect("it is shown");
    let mut socket = connected(server).await;
    let sent = format!("{}{}", head(asked, bytes + 1), " ".repeat(bytes));
    socket.write_all(sent.as_bytes()).await.expect("written");
    until("the server holds it", || in_flight(server) == Some(before + bytes as f64)).await;
    socket
}

async fn head_of_answer(socket: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut answer).await.expect("readable"), 0, "it ends too early");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn every_route_that_reads_a_body_holds_memory_for_it_and_gives_it_back() {
    let server = server().await;
    server.create_text("/v1/app/stream/s").await;
    let members = server.post("/v1/app/rooms/r/members").json(&serde_json::json!({ "add": ["a"] }));
    assert_eq!(members.send().await.expect("an answer").status(), 200);
    for asked in [
        "POST /v1/app/stream/s",
        "PUT /v1/app/stream/new",
        "POST /v1/app/publish/s",
        "POST /v1/app/rooms/r/events",
        "POST /v1/app/rooms/r/members",
        "POST /v1/app/subscribe",
        "DELETE /v1/app/unsubscribe",
        "PUT /v1/config/app",
        "POST /v1/projects",
        "POST /v1/projects/app/tokens",
        "POST /x/blue.catbird.mls.updateCursor",
    ] {
        let socket = half_sent(&server, asked, 100).await;
        drop(socket);
        until("it is given back", || in_flight(&server) == Some(0.0)).await;
    }
}

#[tokio::test]
async fn a_project_holds_a_quarter_and_what_is_beyond_is_told_when_to_come_again() {
    let server = server().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.create_text(&format!("/v1/{name}/stream/s")).await;
    }
    let mut first = half_sent(&server, "POST /v1/a/stream/s", 600).await;
    for asked in ["POST /v1/a/stream/s", "PUT /v1/a/stream/new", "POST /v1/a/publish/s"] {
        let mut second = connected(&server).await;
        second
            .write_all(format!("{}{}", head(asked, 600), " ".repeat(600)).as_bytes())
            .await
            .expect("written");
        let answer = head_of_answer(&mut second).await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("retry-after: 1"), "{answer}");
    }
    assert_eq!(in_flight(&server), Some(600.0), "what was refused holds nothing");
    server.append_text("/v1/b/stream/s", &"x".repeat(600)).await;
    let others = [
        half_sent(&server, "POST /v1/b/stream/s", 999).await,
        half_sent(&server, "POST /v1/c/stream/s", 999).await,
        half_sent(&server, "POST /v1/d/stream/s", 999).await,
    ];
    let append = server.post("/v1/e/stream/s").header("content-type", "text/plain").body("x".repeat(600));
    let refused = append.send().await.expect("an answer");
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().ok()), (503, Some("1")));
    let told: serde_json::Value = refused.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "too_many_bodies");
    let hits = server.metric("tidings_limit_hits_total{limit=\"body_bytes_in_flight\"}");
    assert_eq!(hits, Some(4.0));
    first.write_all(b"x").await.expect("written");
    assert!(head_of_answer(&mut first).await.starts_with("HTTP/1.1 204"), "what was taken in goes on");
    drop(others);
    until("all is given back", || in_flight(&server) == Some(0.0)).await;
    server.append_text("/v1/a/stream/s", &"x".repeat(600)).await;
}

#[tokio::test]
async fn one_http2_connection_holds_no_more_than_its_project_may() {
    let server = server().await;
    server.create_text("/v1/a/stream/s").await;
    let socket = connected(&server).await;
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    // A body of which one part comes, and then nothing.
    let request = || {
        let part = stream::iter([Ok::<_, std::io::Error>(Frame::data(Bytes::from("x".repeat(300))))]);
        let body = StreamBody::new(Box::pin(part.chain(stream::pending())));
        let request = Request::post(server.url("/v1/a/stream/s")).header("content-type", "text/plain");
        request.header("content-length", "301").body(body).expect("a request")
    };
    let mut asking = Vec::new();
    for _ in 0..8 {
        let mut sender = sender.clone();
        asking.push(tokio::spawn(sender.send_request(request())));
    }
    let hits = || server.metric("tidings_limit_hits_total{limit=\"body_bytes_in_flight\"}");
    until("three are held and five refused", || hits() == Some(5.0) && in_flight(&server) == Some(900.0))
        .await;
    for asking in &asking {
        asking.abort();
    }
    drop((asking, sender));
    until("all is given back", || in_flight(&server) == Some(0.0)).await;
}

#[tokio::test]
async fn a_body_that_pauses_is_cut_whatever_came_before() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    for asked in ["POST /v1/stream/s", "PUT /v1/stream/new"] {
        let mut socket = connected(&server).await;
        // As much as would have given it more than a minute.
        let sent = format!("{}{}", head(asked, 1 << 20), "x".repeat(256 * 1024));
        socket.write_all(sent.as_bytes()).await.expect("written");
        until("the server has it", || in_flight(&server) >= Some(256.0 * 1024.0)).await;
        until("it waits for the rest", || server.clock.sleepers() == SLEEPERS + 1).await;
        server.clock.advance(limits::BODY_STALL);
        let answer = to_the_end(socket).await;
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("body_too_slow"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        until("nothing is held", || in_flight(&server) == Some(0.0)).await;
    }
}

/// Requests that a client may close its side after, and how their answers begin.
fn said_and_closed() -> Vec<(String, &'static str, &'static str)> {
    let whole = |asked: &str| format!("{}x", head(asked, 1));
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    vec![
        (whole("PUT /v1/app/stream/s"), "HTTP/1.1 201", ""),
        (whole("POST /v1/app/stream/s"), "HTTP/1.1 204", ""),
        (whole("POST /v1/app/publish/s"), "HTTP/1.1 204", ""),
        (get("/v1/app/stream/s"), "HTTP/1.1 200", "xxx"),
        (get("/v1/app/stream/s?offset=-1&live=long-poll"), "HTTP/1.1 200", "xxx"),
        // An answer that would stay tells what there is, and ends.
        (get("/v1/app/stream/s?offset=-1&live=sse"), "HTTP/1.1 200", "upToDate"),
        (get("/v1/app/stream/none?offset=-1&live=sse"), "HTTP/1.1 404", "stream_not_found"),
        (head("POST /v1/app/stream/s", 2) + "x", "HTTP/1.1 400", "body_incomplete"),
    ]
}

#[tokio::test]
async fn a_client_that_closes_its_side_after_the_body_is_answered() {
    let server = Harness::start().await;
    for (request, status, said) in said_and_closed() {
        let mut socket = connected(&server).await;
        socket.write_all(request.as_bytes()).await.expect("written");
        socket.shutdown().await.expect("closed");
        let answer = to_the_end(socket).await;
        assert!(answer.starts_with(status) && answer.contains(said), "{request}: {answer}");
    }
    nobody_is_left(&server).await;
    let server = Harness::start().await;
    for (request, status, said) in said_and_closed() {
        let mut socket = used_before(&server).await;
        socket.write_all(request.as_bytes()).await.expect("written");
        socket.shutdown().await.expect("closed");
        let answer = to_the_end(socket).await;
        assert!(answer.starts_with(status) && answer.contains(said), "{request}: {answer}");
    }
    nobody_is_left(&server).await;
    until("no connection is left", || server.metric("tidings_connections") == Some(0.0)).await;
}

#[tokio::test]
async fn a_client_that_closes_its_side_is_answered_above_tls_too() {
    let files = Files::new();
    let server = Harness::with(Setup { tls: Some(files.options()), ..Setup::default() }).await;
    for (request, status, said) in said_and_closed() {
        let mut io = files.connect(&server.address().to_string(), &["http/1.1"]).await.expect("shaken hands");
        io.write_all(request.as_bytes()).await.expect("written");
        io.shutdown().await.expect("closed");
        let mut answer = Vec::new();
        io.read_to_end(&mut answer).await.expect("a proper end");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(status) && answer.contains(said), "{request}: {answer}");
    }
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_client_that_goes_leaves_nothing_behind() {
    let server = Harness::start().await;
    // On a connection that stays.
    server.create_text("/v1/stream/s").await;
    let follow = b"GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let poll = b"GET /v1/stream/s?offset=now&live=long-poll HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    let half = head("POST /v1/stream/s", 100) + "x";
    let mut sockets = Vec::new();
    for request in [&follow[..], poll, half.as_bytes()] {
        for mut socket in [connected(&server).await, used_before(&server).await] {
            socket.write_all(request).await.expect("written");
            sockets.push(socket);
        }
    }
    until("all are there", || {
        server.bus().listened() > 0
            && server.metric("tidings_live_readers{transport=\"sse\"}") == Some(2.0)
            && server.metric("tidings_live_readers{transport=\"long-poll\"}") == Some(2.0)
            && in_flight(&server) == Some(2.0)
    })
    .await;
    drop(sockets);
    // Whoever waits for a moment only could still be answered.
    until("two polls are left", || server.metric("tidings_connections") == Some(1.0 + 2.0)).await;
    server.clock.advance(limits::LONG_POLL_TIMEOUT + Duration::from_secs(1));
    until("none of them is left", || server.metric("tidings_connections") == Some(1.0)).await;
    nobody_is_left(&server).await;
}
