//! What operators see: readiness, metrics, logs, request ids.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tidings_api::MetricsAccess;
use tidings_server::ObserveOptions;
use tidings_testing::{ADMIN_KEY, Doors, Harness, Process, SLEEPERS, Setup, TestStore, http, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn a_server_is_ready_while_it_takes_writes() {
    let server = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    let answer = server.get("/ready").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().await.expect("JSON")["status"], "ready");

    let full = Harness::with(Setup { store: TestStore::Full, ..Setup::default() }).await;
    let answer = full.get("/ready").await;
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.json::<Value>().await.expect("JSON")["error"]["code"], "no_space");
    assert_eq!(full.get("/health").await.status(), 200, "it lives all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_says_so_where_operators_ask() {
    let observe =
        ObserveOptions { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..ObserveOptions::default() };
    let server = Harness::with(Setup { observe, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    let operators = server.server().metrics_address().expect("it listens");
    let mut slow = TcpStream::connect(server.address()).await.expect("connected");
    let head = "POST /v1/stream/s HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: 4\r\n\r\n";
    slow.write_all(head.as_bytes()).await.expect("written");
    until("the server waits for the body", || server.clock.sleepers() == SLEEPERS + 1).await;
    let stopping = tokio::spawn(server.stop());
    let told = loop {
        let answer = http::get(format!("http://{operators}/ready")).await.expect("an answer");
        if answer.status() == 503 {
            break answer.json::<Value>().await.expect("JSON");
        }
    };
    assert_eq!(told["error"]["code"], "draining");
    slow.write_all(b"last").await.expect("written");
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 204 "), "what was begun is finished: {answer}");
    stopping.await.expect("it ends well");
}

#[tokio::test]
async fn metrics_tell_what_was_served_and_stored() {
    let observe = ObserveOptions { metrics_access: MetricsAccess::Open, ..ObserveOptions::default() };
    let server = Harness::with(Setup { store: TestStore::Embedded, observe, ..Setup::default() }).await;
    server.create_text("/v1/app/stream/s").await;
    server.append_text("/v1/app/stream/s", "hello").await;
    assert_eq!(server.get("/v1/app/stream/none?offset=-1").await.status(), 404);
    assert_eq!(server.get("/v1/app/stream/none?token=secret").await.status(), 401);
    assert_eq!(server.get("/nowhere/secret").await.status(), 404);
    let reader = server.get("/v1/app/stream/s?offset=-1&live=sse").await;
    assert_eq!(server.metric("tidings_live_readers{transport=\"sse\"}"), Some(1.0));
    drop(reader);
    until("the reader has left", || server.metric("tidings_live_readers{transport=\"sse\"}") == Some(0.0))
        .await;

    let answer = server.get("/metrics").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text().await.expect("text");
    let route = "route=\"/v1/{project}/stream/{id}\"";
    let event = "category=\"http\",event=\"POST /v1/{project}/stream/{id}\"";
    for line in [
        format!("tidings_http_requests_total{{{route},method=\"PUT\",status=\"2xx\"}} 1"),
        format!("tidings_http_requests_total{{{route},method=\"GET\",status=\"4xx\"}} 2"),
        "tidings_http_requests_total{route=\"none\",method=\"GET\",status=\"4xx\"} 1".to_owned(),
        format!("tidings_http_request_seconds_count{{{route},method=\"POST\"}} 1"),
        format!("tidings_events_total{{{event},error=\"\"}} 1"),
        format!("tidings_events_total{{{},error=\"stream_not_found\"}} 1", event.replace("POST", "GET")),
        format!("tidings_event_latency_seconds_count{{{event}}} 1"),
        // The first takes the rooms over.
        "tidings_commits_total 3".to_owned(),
        "tidings_records_total 1".to_owned(),
        "tidings_record_bytes_total 5".to_owned(),
        "tidings_frame_commits_count 3".to_owned(),
        "tidings_sync_seconds_count 3".to_owned(),
        "tidings_streams 1".to_owned(),
        "tidings_store_segments 0".to_owned(),
        "tidings_store_generations 1".to_owned(),
    ] {
        assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
    }
    assert!(server.metric("tidings_process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6));
    assert!(server.metric("tidings_process_open_fds").is_some_and(|files| files > 3.0));
    assert!(!text.contains("secret"), "neither queries nor unknown paths are told");
    let named = |line: &str| line.starts_with("tidings_") || line.starts_with("# ");
    assert!(text.lines().all(named), "all names begin alike:\n{text}");
}

#[tokio::test]
async fn metrics_need_the_admin_key_except_on_a_listener_of_their_own() {
    let observe =
        ObserveOptions { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..ObserveOptions::default() };
    let doors = Doors::Closed { created: Vec::new(), given: Vec::new() };
    let server = Harness::with(Setup { doors, observe, ..Setup::default() }).await;
    let answer = server.get("/metrics").await;
    assert_eq!(answer.status(), 401);
    assert_eq!(answer.json::<Value>().await.expect("JSON")["error"]["code"], "token_missing");
    let with_key = server.request("GET".parse().expect("a method"), "/metrics").bearer_auth(ADMIN_KEY);
    let with_key = with_key.send().await.expect("an answer");
    assert_eq!(with_key.status(), 200);
    // A client that leaves a body unread gives its connection up.
    with_key.text().await.expect("text");
    let operators = server.server().metrics_address().expect("it listens");
    let get = |path: &str| http::get(format!("http://{operators}{path}"));
    let text = get("/metrics").await.expect("an answer").text().await.expect("text");
    assert!(text.contains("tidings_connections 1"), "{text}");
    assert_eq!(get("/health").await.expect("an answer").status(), 200);
    assert_eq!(get("/v1/stream/s").await.expect("an answer").status(), 404);
}

#[tokio::test]
async fn an_answer_has_the_id_of_its_request() {
    let server = Harness::start().await;
    let ask = |id: &'static str| {
        let request = server.request("GET".parse().expect("a method"), "/nowhere").header("x-request-id", id);
        async {
            request.send().await.expect("an answer").headers()["x-request-id"]
                .to_str()
                .expect("text")
                .to_owned()
        }
    };
    assert_eq!(ask("trace-4711").await, "trace-4711");
    let made = ask("not a sane id").await;
    assert!(made.len() > 16 && !made.contains(' '), "{made}");
    assert_ne!(ask("\"").await, made);
}

#[tokio::test]
async fn no_filter_lets_a_token_into_the_log() {
    let server = Process::serve_logging("trace", &[]).await;
    let url = |path: &str| server.url(path);
    let client = http::Client::new();
    let secret = "s3cr3t-t0k3n";
    assert_eq!(
        client.put(url("/v1/stream/s")).bearer_auth(secret).send().await.expect("an answer").status(),
        401
    );
    assert_eq!(client.put(url("/v1/stream/s")).send().await.expect("an answer").status(), 201);
    for path in ["/v1/stream/s?offset=-1&token=", "/nowhere?token=", "/v1/stream/s?offset=bad&token="] {
        client.get(url(&format!("{path}{secret}"))).send().await.expect("an answer");
    }
    let address = url("").replace("http://", "");
    let socket = TcpStream::connect(&address).await.expect("connected");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    let request = Request::get(url(&format!("/v1/stream/s?token={secret}")))
        .header("authorization", format!("Bearer {secret}"))
        .header("x-request-id", "the-last-one")
        .body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    answer.into_body().collect().await.expect("whole");
    until("the last request is logged", || server.log().contains("the-last-one")).await;
    let log = server.log();
    assert!(!log.contains(secret), "{log}");
    let line = log.lines().find(|line| line.contains("the-last-one")).expect("it is there");
    let line: Value = serde_json::from_str(line).expect("a line is JSON where nobody looks at a terminal");
    assert_eq!(line["level"], "DEBUG");
    assert_eq!(line["fields"]["route"], "/v1/stream/{id}");
    assert_eq!((&line["fields"]["method"], &line["fields"]["status"]), (&"GET".into(), &401.into()));
}

#[tokio::test]
async fn traces_go_to_a_collector_when_one_is_named() {
    let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", collector.local_addr().expect("bound"));
    let server = Process::serve(&["--otlp-endpoint", &endpoint]).await;
    let client = http::Client::new();
    let refused = client.get(server.url("/v1/stream/s?token=s3cr3t")).send().await.expect("an answer");
    assert_eq!(refused.status(), 401);
    let put = client.put(server.url("/v1/stream/s")).header("x-request-id", "traced-4711");
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let collected = tokio::spawn(async move {
        let (mut socket, _) = collector.accept().await.expect("it comes");
        let mut heard = Vec::new();
        while !String::from_utf8_lossy(&heard).contains("traced-4711") {
            assert_ne!(socket.read_buf(&mut heard).await.expect("readable"), 0, "it says it all");
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        socket.write_all(answer).await.expect("written");
        String::from_utf8_lossy(&heard).into_owned()
    });
    // What is left is sent at the end.
    assert_eq!(server.terminate().await.code(), Some(0));
    let heard = tokio::time::timeout(std::time::Duration::from_secs(30), collected).await;
    let heard = heard.expect("it comes").expect("no panic");
    assert!(heard.starts_with("POST /v1/traces HTTP/1.1"), "{heard}");
    for expected in ["\"request\"", "/v1/stream/{id}", "\"PUT\"", "tidings"] {
        assert!(heard.contains(expected), "{expected} in {heard}");
    }
    assert!(!heard.contains("s3cr3t"), "{heard}");
}

#[tokio::test]
async fn a_log_filter_or_a_collector_that_cannot_be_used_is_told() {
    for (flag, value) in [("--log", "tidings=loud"), ("--otlp-endpoint", "ftp://collector")] {
        let exit = Process::run(&["serve", "--dev", "--listen", "127.0.0.1:0", flag, value]).await;
        assert_eq!(exit.status.code(), Some(1), "{flag} {value}");
        assert!(
            exit.stderr.contains(flag.trim_start_matches("--").split('-').next().expect("a word")),
            "{}",
            exit.stderr
        );
    }
}
