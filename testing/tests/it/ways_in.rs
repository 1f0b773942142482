//! A request is answered alike whether it takes a fast path or goes through the router, as all do where traces are exported.

use std::time::Duration;

use serde_json::json;
use tidings_api::Spans;
use tidings_auth::{Claims, Key, Scope};
use tidings_engine::Clock;
use tidings_model::{ProjectId, limits};
use tidings_server::{LimitOptions, ObserveOptions};
use tidings_streams::Options;
use tidings_testing::{ADMIN_KEY, Doors, Harness, Setup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const KEY: &str = "the-signing-key-of-app";
const OTHER_KEY: &str = "the-signing-key-of-other";
/// The largest append.
const APPEND_BYTES: usize = 2000;
const HOUR: Duration = Duration::from_secs(3600);
const STREAM: &str = "/v1/app/stream/s";
const ROOM: &str = "/v1/app/rooms/general/events";
const TOPIC: &str = "/v1/app/topics/room:1";
const SAID: &str = r#"{"type":"SAID","payload":{"text":"hi"}}"#;
const TEXT: &str = "content-type: text/plain";
const JSON: &str = "content-type: application/json";
const MESSAGE: &str = r#"{"type":"messageEvent","payload":{"messageView":{"id":"1"}}}"#;
const PAGE: &str = "origin: https://a.example";
const OTHER_PAGE: &str = "origin: https://b.example";

/// A request, and the status it is answered with either way.
struct Row {
    status: u16,
    request: String,
}

/// A `POST` with these headers and this body.
fn post(status: u16, path: &str, headers: &[&str], body: &str) -> Row {
    row(status, "POST", path, headers, body)
}

fn row(status: u16, method: &str, path: &str, headers: &[&str], body: &str) -> Row {
    let length = format!("content-length: {}", body.len());
    let all = [&["host: localhost", &length], headers].concat().join("\r\n");
    Row { status, request: format!("{method} {path} HTTP/1.1\r\n{all}\r\n\r\n{body}") }
}

/// A `POST` whose body comes in these chunks.
fn chunked(status: u16, path: &str, headers: &[&str], chunks: &str) -> Row {
    let all = [&["host: localhost", "transfer-encoding: chunked"], headers].concat().join("\r\n");
    Row { status, request: format!("POST {path} HTTP/1.1\r\n{all}\r\n\r\n{chunks}") }
}

/// A request that ends the connection.
const LAST: &str = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// An answer: its status, its sorted headers without those that differ each time, and its body, with what [`LAST`] is answered
/// if the connection is still there.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    headers: Vec<String>,
    body: String,
}

async fn ask(server: &Harness, request: &str) -> Answer {
    let mut socket = TcpStream::connect(server.address()).await.expect("connected");
    socket.write_all(format!("{request}{LAST}").as_bytes()).await.expect("written");
    let mut text = String::new();
    socket.read_to_string(&mut text).await.expect("readable");
    let is_steady = |line: &&str| !["date:", "x-request-id:"].iter().any(|name| line.starts_with(name));
    let text = text.split("\r\n").filter(is_steady).collect::<Vec<_>>().join("\r\n");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    let (line, headers) = head.split_once("\r\n").expect("headers");
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut headers: Vec<_> = headers.split("\r\n").map(str::to_owned).collect();
    headers.sort();
    Answer { status, headers, body: body.to_owned() }
}

/// What a server counted of its requests.
fn counted(server: &Harness) -> Vec<String> {
    let is_counted = |line: &&str| {
        let names = ["tidings_http_requests_total", "tidings_limit_hits_total", "tidings_events_total"];
        names.iter().any(|name| line.starts_with(name))
    };
    let text = server.server().metrics().text();
    let mut lines: Vec<_> = text.lines().filter(is_counted).map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Two servers with the same seed, the same clock and nothing stored yet: one with fast paths, one without.
async fn both(setup: Setup) -> [Harness; 2] {
    let traced = ObserveOptions { spans: Spans::EachRequest, ..setup.observe };
    [Harness::with(setup.clone()).await, Harness::with(Setup { observe: traced, ..setup }).await]
}

/// Sends all requests, in this order, to both servers. Tells all that are answered otherwise than expected.
async fn are_answered_alike([fast, routed]: &[Harness; 2], rows: Vec<Row>) {
    let mut wrong = String::new();
    for Row { status, request } in rows {
        let [fast, routed] = [ask(fast, &request).await, ask(routed, &request).await];
        if fast != routed || fast.status != status {
            let shown: String = request.chars().take(300).collect();
            wrong += &format!("\n{shown}\nexpected {status}\nfast   {fast:?}\nrouted {routed:?}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(counted(fast), counted(routed));
}

fn token(server: &Harness, project: &str, user: Option<&str>, scope: Scope, expired: bool) -> String {
    let now = server.clock.now();
    let expires_at = if expired { now } else { now + HOUR };
    let claims = Claims {
        user: user.map(Into::into),
        ..Claims::new(ProjectId::parse(project).expect("an id"), scope, expires_at)
    };
    let key = if project == "app" { KEY } else { OTHER_KEY };
    format!("authorization: Bearer {}", claims.sign(&Key::parse(key).expect("a key")))
}

/// Servers with the projects `app` and `other`; in `app` a stream, a room with the member alice, and a page that may use it.
async fn closed(limits: LimitOptions) -> [Harness; 2] {
    let doors = Doors::Closed { created: vec![("app", KEY), ("other", OTHER_KEY)], given: vec![] };
    let streams = Options { max_append_bytes: APPEND_BYTES, ..Options::default() };
    let servers = both(Setup { doors, limits, streams, ..Setup::default() }).await;
    let manage = token(&servers[0], "app", Some("boss"), Scope::Manage, false);
    let origins = json!({ "corsOrigins": ["https://a.example"] }).to_string();
    let members = json!({ "add": ["alice"] }).to_string();
    are_answered_alike(
        &servers,
        vec![
            row(201, "PUT", STREAM, &[&manage, TEXT], ""),
            row(201, "PUT", "/v1/app/stream/json", &[&manage, JSON], ""),
            row(201, "PUT", "/v1/app/stream/a%20b", &[&manage, TEXT], ""),
            row(201, "PUT", "/v1/app/stream/rooms/r/events", &[&manage, TEXT], ""),
            row(200, "PUT", "/v1/config/app", &[&manage, JSON], &origins),
            post(200, "/v1/app/rooms/general/members", &[&manage, JSON], &members),
        ],
    )
    .await;
    servers
}

#[tokio::test]
async fn appends_are_answered_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions::default()).await;
    let alice = &token(&servers[0], "app", Some("alice"), Scope::Write, false);
    let large = "x".repeat(APPEND_BYTES + 1);
    let chunks = format!("{:x}\r\n{large}\r\n0\r\n\r\n", large.len());
    let producer = ["producer-id: p", "producer-epoch: 0", "producer-seq: 0"];
    let produced = [&[alice.as_str(), TEXT], &producer[..]].concat();
    let gap = [alice.as_str(), TEXT, "producer-id: p", "producer-epoch: 0", "producer-seq: 5"];
    let event_produced = [&[alice.as_str(), JSON], &producer[..]].concat();
    let rows = vec![
        // Streams.
        post(204, STREAM, &[alice, TEXT], "a"),
        post(204, STREAM, &[alice, TEXT, "x-request-id: mine"], "a"),
        post(200, STREAM, &produced, "b"),
        post(204, STREAM, &produced, "b"),
        post(409, STREAM, &gap, "c"),
        post(400, STREAM, &[alice, TEXT, "producer-id: p"], "c"),
        post(204, STREAM, &[alice, TEXT, "stream-seq: 1"], "d"),
        post(409, STREAM, &[alice, TEXT, "stream-seq: 1"], "d"),
        post(400, STREAM, &[alice, TEXT], ""),
        post(409, STREAM, &[alice, JSON], "{}"),
        post(413, STREAM, &[alice, TEXT], &large),
        post(204, "/v1/app/stream/json", &[alice, JSON], "[1,2]"),
        post(400, "/v1/app/stream/json", &[alice, JSON], "[1,"),
        post(404, "/v1/app/stream/unknown", &[alice, TEXT], "a"),
        post(413, "/v1/app/stream/unknown", &[alice, TEXT], &large),
        post(204, STREAM, &[alice, TEXT, "stream-closed: true"], "last"),
        post(409, STREAM, &[alice, TEXT], "later"),
        chunked(204, "/v1/app/stream/a%20b", &[alice, TEXT], "1\r\na\r\n1\r\nb\r\n0\r\n\r\n"),
        chunked(400, "/v1/app/stream/a%20b", &[alice, TEXT], "0\r\n\r\n"),
        chunked(413, "/v1/app/stream/a%20b", &[alice, TEXT], &chunks),
        chunked(401, "/v1/app/stream/a%20b", &[TEXT], &chunks),
        // Topics.
        post(200, TOPIC, &[alice, JSON], SAID),
        post(200, "/v1/app/topics/a/b.c", &[alice, JSON], SAID),
        post(200, "/v1/app/topics/room%3A1", &[alice, JSON], SAID),
        post(200, &format!("{TOPIC}?type=T&x=y"), &[alice, TEXT], "bytes"),
        post(200, &format!("{TOPIC}?type=T"), &[alice], ""),
        post(400, TOPIC, &[alice, TEXT], "bytes"),
        post(400, TOPIC, &[alice, JSON], "{"),
        post(400, TOPIC, &[alice, JSON], r#"{"type":"$T"}"#),
        post(400, "/v1/app/topics/a*", &[alice, JSON], SAID),
        post(400, "/v1/app/topics/a%20b", &[alice, JSON], SAID),
        post(401, TOPIC, &[JSON], SAID),
        post(400, "/v1/app/topics/", &[alice, JSON], SAID),
        chunked(200, TOPIC, &[alice, JSON], &format!("{:x}\r\n{SAID}\r\n0\r\n\r\n", SAID.len())),
        chunked(401, TOPIC, &[JSON], &chunks),
        // Rooms.
        post(200, ROOM, &[alice, JSON], MESSAGE),
        post(200, ROOM, &[alice, JSON], &format!("[{MESSAGE},{MESSAGE}]")),
        post(200, ROOM, &event_produced, MESSAGE),
        post(200, ROOM, &event_produced, MESSAGE),
        post(400, ROOM, &[alice, JSON, "producer-id: p"], MESSAGE),
        post(400, ROOM, &[alice, JSON], "{"),
        post(400, ROOM, &[alice, JSON], ""),
        post(400, ROOM, &[alice, JSON], r#"{"type":"unheardOf","payload":{}}"#),
        post(413, ROOM, &[alice, JSON], &large),
        post(403, "/v1/app/rooms/unknown/events", &[alice, JSON], MESSAGE),
        chunked(413, ROOM, &[alice, JSON], &chunks),
        chunked(401, ROOM, &[JSON], &chunks),
    ];
    are_answered_alike(&servers, rows).await;
}

#[tokio::test]
async fn events_from_outside_are_answered_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions::default()).await;
    let of = |project, scope, expired| token(&servers[0], project, None, scope, expired);
    let (own, reader) = (&of("app", Scope::Write, false), &of("app", Scope::Read, false));
    let admin = &format!("authorization: Bearer {ADMIN_KEY}");
    let event = r#"{"type":"a.b","ts":"2025-11-16T12:00:00Z"}"#;
    let batch = &format!(r#"{{"events":[{event}]}}"#);
    let repeated = &format!(r#"{{"events":[{event}],"batchId":"b"}}"#);
    let large = "x".repeat(limits::INGEST_BYTES + 1);
    let chunks = format!("{:x}\r\n{batch}\r\n0\r\n\r\n", batch.len());
    let mut rows = Vec::new();
    for path in ["/e", "/ingest", "/v1/app/events", "/v1/%61pp/events", "http://localhost/e?x=y"] {
        let names_none = !path.starts_with("/v1/");
        let in_query = format!("{path}{}token={}", if path.contains('?') { '&' } else { '?' }, &own[22..]);
        rows.extend([
            post(200, path, &[own, JSON], batch),
            post(200, path, &[own, JSON], repeated),
            post(200, path, &[own, JSON], r#"{"events":[]}"#),
            post(200, path, &[own], batch),
            post(200, &in_query, &[JSON], batch),
            chunked(200, path, &[own, JSON], &chunks),
            post(400, path, &[own, JSON], "{"),
            post(400, path, &[own, JSON], "[]"),
            post(400, path, &[own, JSON], r#"{"events":[7]}"#),
            post(401, path, &[JSON], batch),
            post(401, path, &[JSON, "authorization: Basic YTpi"], batch),
            post(401, path, &[&of("app", Scope::Write, true), JSON], batch),
            post(401, path, &[JSON, "authorization: Bearer ns_app_1"], batch),
            post(403, path, &[reader, JSON], batch),
            post(413, path, &[own, JSON], &large),
            post(415, path, &[own, JSON, "content-encoding: gzip"], batch),
            post(200, path, &[own, JSON, PAGE], batch),
            post(401, path, &[JSON, PAGE], batch),
            post(200, path, &[admin, JSON], batch),
            post(200, path, &[own, JSON, "x-tenant-namespace: app"], batch),
            post(if names_none { 403 } else { 200 }, path, &[own, JSON, "x-tenant-namespace: other"], batch),
            post(if names_none { 404 } else { 200 }, path, &[admin, JSON, "x-tenant-namespace: none"], batch),
            row(405, "PUT", path, &[own, JSON], batch),
            row(405, "GET", path, &[own], ""),
        ]);
    }
    rows.extend([
        post(404, "/e/", &[own, JSON], batch),
        post(403, "/v1/other/events", &[own, JSON], batch),
        post(403, "/v1/_default/events", &[own, JSON], batch),
        post(401, "/v1/unknown/events", &[own, JSON], batch),
        post(400, "/v1/a%20b/events", &[own, JSON], batch),
        post(404, "/v1/app/events/", &[own, JSON], batch),
    ]);
    are_answered_alike(&servers, rows).await;
    let open = both(Setup::default()).await;
    let rows = ["/e", "/ingest", "/v1/app/events"].map(|path| {
        [
            post(200, path, &[JSON], batch),
            post(200, path, &[JSON, "x-tenant-namespace: shop"], batch),
            post(401, path, &[JSON, "authorization: Bearer x"], batch),
            post(403, path, &[JSON, PAGE], batch),
            post(200, path, &[JSON, "origin: http://localhost:3000"], batch),
        ]
    });
    are_answered_alike(&open, rows.into_iter().flatten().collect()).await;
}

#[tokio::test]
async fn credentials_are_refused_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions::default()).await;
    let of = |project, user, scope, expired| token(&servers[0], project, user, scope, expired);
    let alice = &of("app", Some("alice"), Scope::Write, false);
    let mut rows = Vec::new();
    for (path, kind, body, taken, by_admin) in
        [(STREAM, TEXT, "a", 204, 204), (ROOM, JSON, MESSAGE, 200, 403)]
    {
        let admin = format!("authorization: Bearer {ADMIN_KEY}");
        let in_query = format!("{path}?token={}", alice.rsplit(' ').next().expect("a token"));
        rows.extend([
            post(401, path, &[kind], body),
            post(401, path, &[kind, "expect: 100-continue"], body),
            post(401, path, &["authorization: Bearer", kind], body),
            post(401, path, &["authorization: Bearer x.y.z", kind], body),
            post(401, path, &["authorization: Basic YTpi", kind], body),
            post(401, path, &[alice, alice, kind], body),
            post(401, path, &[&of("app", Some("alice"), Scope::Write, true), kind], body),
            post(403, path, &[&of("app", Some("alice"), Scope::Read, false), kind], body),
            post(403, path, &[&of("other", Some("alice"), Scope::Write, false), kind], body),
            post(by_admin, path, &[&admin, kind], body),
            post(taken, &in_query, &[kind], body),
            post(401, &format!("{path}?token=x&token=y&a=b"), &[kind], body),
        ]);
    }
    rows.push(post(403, ROOM, &[&of("app", Some("eve"), Scope::Write, false), JSON], MESSAGE));
    rows.push(post(403, ROOM, &[&of("app", None, Scope::Write, false), JSON], MESSAGE));
    are_answered_alike(&servers, rows).await;
}

#[tokio::test]
async fn paths_methods_and_heads_are_answered_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions::default()).await;
    let alice = &token(&servers[0], "app", Some("alice"), Scope::Write, false);
    let long = format!("{STREAM}{}", "x".repeat(limits::URI_BYTES));
    let header = format!("x-long: {}", "x".repeat(limits::HEADER_BYTES));
    let mut rows = vec![
        post(204, "/v1/app/stream/a%20b", &[alice, TEXT], "a"),
        post(204, "/v1/%61pp/stream/a%20b", &[alice, TEXT], "a"),
        post(204, "/v1/app/stream/session:s", &[alice, TEXT], "a"),
        post(204, "/v1/app/stream/rooms/r/events", &[alice, TEXT], "a"),
        post(204, "/v1/app/stream/s?x=y", &[alice, TEXT], "a"),
        post(204, "http://localhost/v1/app/stream/s", &[alice, TEXT], "a"),
        post(400, "/v1/app/stream/%ff", &[alice, TEXT], "a"),
        post(400, "/v1/app/stream/a%00b", &[alice, TEXT], "a"),
        post(404, "/v1/app/stream/", &[alice, TEXT], "a"),
        post(404, "/v1/app/stream", &[alice, TEXT], "a"),
        post(404, "/v1/app/stream//s", &[alice, TEXT], "a"),
        post(404, "/v1/app/stream/__ds/x", &[alice, TEXT], "a"),
        post(404, "/v1/app/stream/s/", &[alice, TEXT], "a"),
        post(403, "/v1/stream/s", &[alice, TEXT], "a"),
        post(401, "/v1/unknown/stream/s", &[alice, TEXT], "a"),
        post(403, "/v1/_default/stream/s", &[alice, TEXT], "a"),
        post(400, "/v1/a%20b/stream/s", &[alice, TEXT], "a"),
        post(401, "/v1/projects/stream/s", &[alice, TEXT], "a"),
        post(401, "/v1/config/stream/s", &[alice, TEXT], "a"),
        post(401, "/v1/streams/stream/s", &[alice, TEXT], "a"),
        post(200, "/v1/app/rooms/gener%61l/events", &[alice, JSON], MESSAGE),
        post(400, "/v1/app/rooms/%ff/events", &[alice, JSON], MESSAGE),
        post(400, "/v1/app/rooms//events", &[alice, JSON], MESSAGE),
        post(404, "/v1/app/rooms/general/events/", &[alice, JSON], MESSAGE),
        post(401, "/v1/unknown/rooms/general/events", &[alice, JSON], MESSAGE),
        post(403, "/v1/_default/rooms/general/events", &[alice, JSON], MESSAGE),
        post(401, "/v1/projects/rooms/general/events", &[alice, JSON], MESSAGE),
        post(414, &long, &[alice, TEXT], "a"),
        row(405, "PUT", ROOM, &[alice, JSON], MESSAGE),
    ];
    for (path, kind, body) in [(STREAM, TEXT, "a"), (ROOM, JSON, MESSAGE)] {
        rows.extend([
            post(431, path, &[alice, kind, &header], body),
            post(400, path, &[alice, kind, "host: other"], body),
            post(415, path, &[alice, kind, "content-encoding: gzip"], body),
            row(405, "PATCH", path, &[alice, kind], body),
            row(405, "BREW", path, &[alice, kind], body),
            row(405, "post", path, &[alice, kind], body),
        ]);
    }
    are_answered_alike(&servers, rows).await;
}

#[tokio::test]
async fn pages_are_answered_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions::default()).await;
    let alice = &token(&servers[0], "app", Some("alice"), Scope::Write, false);
    let mut rows = Vec::new();
    for (path, kind, body, taken) in [(STREAM, TEXT, "a", 204), (ROOM, JSON, MESSAGE, 200)] {
        for page in [PAGE, OTHER_PAGE, "origin: null"] {
            rows.extend([
                post(taken, path, &[alice, kind, page], body),
                post(401, path, &[kind, page], body),
                row(204, "OPTIONS", path, &[page, "access-control-request-method: POST"], ""),
            ]);
        }
    }
    are_answered_alike(&servers, rows).await;
    let open = both(Setup::default()).await;
    let mut rows = vec![
        row(201, "PUT", STREAM, &[TEXT], ""),
        row(201, "PUT", "/v1/stream/s", &[TEXT], ""),
        post(204, "/v1/stream/s", &[TEXT], "a"),
        post(401, "/v1/stream/s", &[TEXT, "authorization: Bearer x"], "a"),
    ];
    for page in ["origin: http://localhost:3000", PAGE, "origin: null"] {
        let (taken, unknown) = if page.contains("localhost") { (204, 404) } else { (403, 403) };
        rows.push(post(taken, STREAM, &[TEXT, page], "a"));
        rows.push(post(taken, "/v1/stream/s", &[TEXT, page], "a"));
        rows.push(post(unknown, ROOM, &[JSON, page], MESSAGE));
    }
    are_answered_alike(&open, rows).await;
}

#[tokio::test]
async fn requests_beyond_a_project_s_rate_are_refused_alike_with_a_fast_path_and_without() {
    let servers = closed(LimitOptions { requests_per_second: 8, ..LimitOptions::default() }).await;
    let alice = &token(&servers[0], "app", Some("alice"), Scope::Write, false);
    are_answered_alike(
        &servers,
        vec![
            post(204, STREAM, &[alice, TEXT], "a"),
            post(200, ROOM, &[alice, JSON], MESSAGE),
            post(429, STREAM, &[alice, TEXT], "a"),
            post(429, ROOM, &[alice, JSON], MESSAGE),
        ],
    )
    .await;
}
