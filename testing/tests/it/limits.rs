//! What a client can make grow has a limit, and hitting it changes nothing.

use std::time::Duration;

use serde_json::Value;
use tidings_engine::Clock;
use tidings_model::{Timestamp, limits};
use tidings_server::LimitOptions;
use tidings_streams::Options;
use tidings_testing::{Doors, Harness, SLEEPERS, Setup, TestStore, http, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_body_above_the_limit_is_refused_and_nothing_is_written() {
    let streams = Options { max_append_bytes: 1000, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    for (method, path) in [("POST", "/v1/stream/s"), ("PUT", "/v1/stream/new")] {
        let request =
            server.request(method.parse().expect("a method"), path).header("content-type", "text/plain");
        let answer = request.body("x".repeat(1001)).send().await.expect("an answer");
        assert_eq!(answer.status(), 413);
        let body: Value = answer.json().await.expect("errors are JSON");
        assert_eq!(body["error"]["code"], "body_too_large");
    }
    assert_eq!(server.metric(&hits("body_bytes")), Some(2.0));
    assert_eq!(server.get("/v1/stream/new").await.status(), 404);
    server.append_text("/v1/stream/s", &"x".repeat(1000)).await;
    assert_eq!(server.get("/v1/stream/s").await.text().await.expect("text").len(), 1000);
}

#[tokio::test]
async fn readers_beyond_the_limit_are_refused_until_one_goes() {
    let streams = Options { max_readers_per_stream: 2, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    let follow = || async { server.get("/v1/stream/s?offset=-1&live=sse").await };
    let (first, second) = (follow().await, follow().await);
    assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 200));
    let third = follow().await;
    assert_eq!(third.status(), 503);
    assert_eq!(third.headers()["retry-after"], "5");
    let body: Value = third.json().await.expect("errors are JSON");
    assert_eq!(body["error"]["code"], "too_many_readers");
    assert_eq!(server.metric(&hits("readers_per_stream")), Some(1.0));
    assert_eq!(server.get("/v1/stream/s").await.status(), 200, "whoever does not wait is no live reader");
    drop((first, second));
    until("the readers have left", || server.bus().listened() == 0).await;
    assert_eq!(follow().await.status(), 200);
}

#[tokio::test]
async fn bad_input_is_a_bad_request_with_a_code() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let json = server.put("/v1/stream/j").header("content-type", "application/json").send().await;
    assert_eq!(json.expect("an answer").status(), 201);
    let cases = [
        ("PUT", "/v1/stream/n", vec![("stream-ttl", "01")], "", "invalid_ttl"),
        ("PUT", "/v1/stream/n", vec![("stream-ttl", "99999999999999999999")], "", "invalid_ttl"),
        ("PUT", "/v1/stream/n", vec![("stream-expires-at", "tomorrow")], "", "invalid_expires_at"),
        ("PUT", "/v1/stream/n", vec![("stream-expires-at", "2025-11-16T12:00:00")], "", "invalid_expires_at"),
        ("PUT", "/v1/stream/n", vec![("stream-forked-from", "s")], "", "invalid_source"),
        (
            "PUT",
            "/v1/stream/n",
            vec![("stream-fork-offset", "0000000000000000_0000000000000000")],
            "",
            "invalid_fork",
        ),
        ("PUT", "/v1/stream/n", vec![("content-type", "application/json")], "{", "invalid_json"),
        ("POST", "/v1/stream/s", vec![], "x", "content_type_required"),
        ("POST", "/v1/stream/s", vec![("content-type", "nonsense")], "x", "content_type_required"),
        ("POST", "/v1/stream/s", vec![("content-type", "text/plain")], "", "empty_append"),
        ("POST", "/v1/stream/j", vec![("content-type", "application/json")], "[]", "empty_array"),
        ("POST", "/v1/stream/j", vec![("content-type", "application/json")], "[1,]", "invalid_json"),
        (
            "POST",
            "/v1/stream/s",
            vec![("content-type", "text/plain"), ("producer-id", "p")],
            "x",
            "invalid_producer",
        ),
        ("GET", "/v1/stream/s?offset=", vec![], "", "invalid_offset"),
        ("GET", "/v1/stream/s?offset=-1&offset=-1", vec![], "", "invalid_query"),
        ("GET", "/v1/stream/s?live=sse", vec![], "", "offset_required"),
        ("GET", "/v1/stream/s?live=telepathy&offset=-1", vec![], "", "invalid_live"),
    ];
    for (method, path, headers, body, code) in cases {
        let mut request = server.request(method.parse().expect("a method"), path).body(body);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 400, "{method} {path} {code}");
        let told: Value = answer.json().await.expect("errors are JSON");
        assert_eq!(told["error"]["code"], code, "{method} {path}: {told}");
    }
    assert_eq!(server.get("/v1/stream/n").await.status(), 404, "nothing was created");
}

#[tokio::test]
async fn a_header_given_twice_is_refused() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let twice = server.post("/v1/stream/s").header("content-type", "text/plain").body("x");
    let answer = twice.header("stream-seq", "1").header("stream-seq", "2").send().await.expect("an answer");
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn a_full_disk_is_told_as_507() {
    let server = Harness::with(Setup { store: TestStore::Full, ..Setup::default() }).await;
    let answer =
        server.put("/v1/stream/s").header("content-type", "text/plain").send().await.expect("an answer");
    assert_eq!(answer.status(), 507);
    let told: Value = answer.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "no_space");
    assert_eq!(server.get("/v1/stream/s").await.status(), 404, "reading goes on");
}

#[tokio::test]
async fn a_head_beyond_its_limits_is_refused_and_counted() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let long = format!("/v1/stream/s?offset={}", "x".repeat(limits::URI_BYTES));
    let answer = server.get(&long).await;
    assert_eq!(answer.status(), 414);
    assert_eq!(answer.headers()["access-control-allow-origin"], "*");
    let told: Value = answer.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "uri_too_long");
    let large = server.request("GET".parse().expect("a method"), "/v1/stream/s");
    let answer = large.header("x-large", "x".repeat(limits::HEADER_BYTES)).send().await.expect("an answer");
    assert_eq!(answer.status(), 431);
    let told: Value = answer.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "headers_too_large");
    // A credential is taken out of the head, and was a part of it.
    let shown = server.request("POST".parse().expect("a method"), "/v1/stream/s");
    let answer = shown.bearer_auth("x".repeat(limits::HEADER_BYTES)).send().await.expect("an answer");
    assert_eq!(answer.status(), 431);
    let shown = server.request("GET".parse().expect("a method"), "/v1/stream/s");
    let answer = shown.bearer_auth("x".repeat(limits::HEADER_BYTES)).send().await.expect("an answer");
    assert_eq!(answer.status(), 431);
    // Far beyond, it is not even read to the end.
    let huge = server.request("GET".parse().expect("a method"), "/v1/stream/s");
    let answer =
        huge.header("x-huge", "x".repeat(10 * limits::HEADER_BYTES)).send().await.expect("an answer");
    assert_eq!(answer.status(), 431);
    until("all are counted", || server.metric(&hits("header_bytes")) == Some(4.0)).await;
    assert_eq!(server.metric(&hits("uri_bytes")), Some(1.0));
}

#[tokio::test]
async fn a_project_beyond_its_requests_per_second_is_told_when_to_come_again() {
    let limits = LimitOptions { requests_per_second: 3, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    server.create_text("/v1/busy/stream/s").await;
    for _ in 0..2 {
        assert_eq!(server.get("/v1/busy/stream/s").await.status(), 200);
    }
    let refused = server.get("/v1/busy/stream/s").await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["retry-after"]),
        (429, &"1".parse().expect("a value"))
    );
    let told: Value = refused.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "too_many_requests");
    assert_eq!(server.get("/v1/calm/stream/s").await.status(), 404, "other projects are not affected");
    assert_eq!(server.get("/health").await.status(), 200, "nor is what belongs to no project");
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(server.get("/v1/busy/stream/s").await.status(), 200);
    assert_eq!(server.metric(&hits("requests_per_second")), Some(1.0));
    server.clock.advance(Duration::from_secs(1));
    for name in ["first", "second", "third"] {
        let fork = server.put(&format!("/v1/busy/stream/{name}"));
        let forked = fork.header("stream-forked-from", "/v1/busy/stream/s").send().await.expect("an answer");
        assert_eq!(forked.status(), 201, "a fork is one request");
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_back_does_not_exhaust_a_project() {
    let limits = LimitOptions { requests_per_second: 1, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    server.create_text("/v1/busy/stream/s").await;
    assert_eq!(server.get("/v1/busy/stream/s").await.status(), 429);
    server.clock.set(Timestamp::from_millis(server.clock.now().as_millis() - 3_600_000));
    assert_eq!(server.get("/v1/busy/stream/s").await.status(), 429, "no time has passed by that");
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(server.get("/v1/busy/stream/s").await.status(), 200);
}

#[tokio::test]
async fn a_body_that_comes_too_slowly_is_given_up_and_the_connection_ends() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut socket = TcpStream::connect(server.address()).await.expect("connected");
    let head = "POST /v1/stream/s HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("written");
    until("the server waits for the body", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(limits::BODY_GRACE);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("the connection ends");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("body_too_slow") && answer.contains("connection: close"), "{answer}");
    assert_eq!(server.metric(&hits("body_time")), Some(1.0));
    assert_eq!(server.get("/v1/stream/s").await.text().await.expect("text"), "", "nothing was appended");
}

#[tokio::test]
async fn whoever_is_refused_while_it_sends_hears_why() {
    let doors = Doors::Closed { created: Vec::new(), given: Vec::new() };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let body = vec![b'x'; 7 << 20];
    for method in ["PUT", "POST", "PUT", "POST"] {
        let request = server.request(method.parse().expect("a method"), "/v1/stream/s");
        let answer = request.body(body.clone()).send().await.expect("an answer");
        assert_eq!(answer.status(), 401, "{method}");
        assert!(!answer.headers().contains_key("connection"), "all of it was read");
    }
    let http2 = http::Client::http2();
    for method in ["PUT", "POST"] {
        let method = method.parse().expect("a method");
        let request = http2.request(method, server.url("/v1/stream/s")).body(body.clone());
        assert_eq!(request.send().await.expect("an answer").status(), 401);
    }
}

/// Sends the head of a request and returns the head of its answer.
async fn head_of_answer(socket: &mut TcpStream, head: &str) -> String {
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        assert_ne!(socket.read_buf(&mut answer).await.expect("readable"), 0, "it ends too early");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn whoever_asks_first_need_not_send_what_is_too_large() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    for method in ["PUT", "POST"] {
        let mut socket = TcpStream::connect(server.address()).await.expect("connected");
        let head = format!(
            "{method} /v1/stream/s HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n\
             content-length: 100000000\r\nexpect: 100-continue\r\n\r\n"
        );
        let answer = head_of_answer(&mut socket, &head).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
}

#[tokio::test]
async fn a_refused_body_that_does_not_come_is_not_waited_for() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let clock = server.clock.clone();
    for method in ["PUT", "POST"] {
        let mut socket = TcpStream::connect(server.address()).await.expect("connected");
        let head = format!(
            "{method} /v1/stream/s HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n\
             content-length: 100000000\r\n\r\n"
        );
        let asked = tokio::spawn(async move { head_of_answer(&mut socket, &head).await });
        until("the rest is awaited", || clock.sleepers() == SLEEPERS + 1).await;
        clock.advance(limits::DISCARD_TIMEOUT);
        let answer = asked.await.expect("no panic");
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        until("nothing is awaited", || clock.sleepers() == SLEEPERS).await;
    }
}

fn hits(limit: &str) -> String {
    format!("tidings_limit_hits_total{{limit=\"{limit}\"}}")
}
