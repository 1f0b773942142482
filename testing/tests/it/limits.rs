//! What a client can make grow has a limit, and hitting it changes nothing.

use serde_json::Value;
use tidings_streams::Options;
use tidings_testing::{Harness, Setup, TestStore, until};

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
    let body: Value = third.json().await.expect("errors are JSON");
    assert_eq!(body["error"]["code"], "too_many_readers");
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

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_keep_neither_others_waiting_nor_the_server_from_stopping() {
    use tokio::io::AsyncWriteExt;
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let address = server.url("").replace("http://", "");
    let mut silent = Vec::new();
    for head in
        ["", "GET /health HT", "PUT /v1/stream/x HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf"]
    {
        let mut socket = tokio::net::TcpStream::connect(&address).await.expect("connected");
        socket.write_all(head.as_bytes()).await.expect("written");
        silent.push(socket);
    }
    assert_eq!(server.get("/v1/stream/s").await.status(), 200);
    // Returns, and does not wait for them longer than it must.
    server.stop().await;
}
