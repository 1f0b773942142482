//! What a client can make grow, what is told when it is too much, and what an operator sets.

use std::sync::Arc;
use tidings_testing::http;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_auth::{Allowed, Authorize, Credential, Denied, Route};
use tidings_server::LimitOptions;
use tidings_testing::Process;
use tokio::sync::Notify;

use super::*;

#[tokio::test]
async fn a_payload_has_so_many_bytes_and_no_more() {
    let server = open().await;
    let of = |bytes: usize| {
        let frame = r#"{"messageView":{"x":""}}"#.len();
        json!({ "type": "messageEvent", "payload": { "messageView": { "x": "x".repeat(bytes - frame) } } })
    };
    assert_eq!(answer(writing(&server, ROOM, &of(16_384))).await.status(), 200);
    assert_eq!(refused(writing(&server, ROOM, &of(16_385))).await, (413, "PayloadTooLarge".into()));
    let mixed = json!([message(1), of(16_385)]);
    assert_eq!(refused(writing(&server, ROOM, &mixed)).await, (413, "PayloadTooLarge".into()));
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    assert_eq!(reader.hears().await.payload(), &of(16_384)["payload"]);
    hears_only_what_is_new(&server, &mut reader).await;
    let small = open_with(Options { payload_bytes: 50, ..Options::default() }).await;
    assert_eq!(answer(writing(&small, ROOM, &of(50))).await.status(), 200);
    assert_eq!(refused(writing(&small, ROOM, &of(51))).await, (413, "PayloadTooLarge".into()));
}

#[tokio::test]
async fn a_write_has_a_thousand_events_and_no_more() {
    let server = open().await;
    let many = |count: usize| json!((0..count).map(message).collect::<Vec<_>>());
    assert_eq!(answer(writing(&server, ROOM, &many(1000))).await.status(), 200);
    assert_eq!(refused(writing(&server, ROOM, &many(1001))).await, (413, "PayloadTooLarge".into()));
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    for n in 0..1000 {
        assert_eq!(reader.hears().await.payload()["messageView"]["id"], json!(n.to_string()));
    }
    hears_only_what_is_new(&server, &mut reader).await;
    // The end is missing: that the count is told, and not that, shows that nobody read so far.
    let endless = format!("[{}", "0,".repeat(4_000_000));
    let endless = request(&server, Method::POST, "alice", ROOM, "events").body(endless);
    assert_eq!(refused(endless).await, (413, "PayloadTooLarge".into()));
    // Nor is a payload looked into that has too many bytes: this one is no object.
    let large = format!(r#"{{"type":"messageEvent","payload":[{}0]}}"#, "0,".repeat(4_000_000));
    let large = request(&server, Method::POST, "alice", ROOM, "events").body(large);
    assert_eq!(refused(large).await, (413, "PayloadTooLarge".into()));
    let huge = request(&server, Method::POST, "alice", ROOM, "events").body(vec![b' '; 9 * 1024 * 1024]);
    assert_eq!(refused(huge).await, (413, "PayloadTooLarge".into()));
    let huge = request(&server, Method::POST, "alice", ROOM, "seen").body(vec![b' '; 20 * 1024]);
    assert_eq!(refused(huge).await, (413, "PayloadTooLarge".into()));
}

#[tokio::test]
async fn ids_have_1_to_256_bytes_and_no_control_characters() {
    let server = open().await;
    let boss = manager(&server);
    let long = "x".repeat(256);
    changes_members(&server, &long, &["alice", &long], &[]).await;
    changes_members(&server, "%C3%BC%20%2F%3F", &["alice"], &[]).await;
    for wire in WIRES {
        guest(&server, wire, "alice", &long).asking(&format!("deviceId={long}")).comes().await;
        guest(&server, wire, &long, &long).comes().await;
        guest(&server, wire, "alice", "%C3%BC%20%2F%3F").comes().await;
        for bad in ["x".repeat(257), "a%00b".into(), "a%0Ab".into(), "%7F".into(), "%FF".into()] {
            let refused = guest(&server, wire, "alice", &bad).is_refused().await;
            assert_eq!(refused.what(), (400, "InvalidRequest"), "{bad}");
            is_a_refusal(refused.status, &refused.headers, &refused.body);
        }
        for bad in ["".into(), "x".repeat(257), "a%00b".into(), "%0A".into()] {
            let refused = alice(&server, wire).asking(&format!("deviceId={bad}")).is_refused().await;
            assert_eq!(refused.what(), (400, "InvalidRequest"), "{bad}");
        }
        for bad in ["x".repeat(257), "a\u{7}".into()] {
            assert_eq!(guest(&server, wire, &bad, ROOM).is_refused().await.what(), (400, "InvalidRequest"));
        }
    }
    for bad in ["x".repeat(257), "a%01".into(), "%FF".into()] {
        for (method, what) in [(Method::POST, "members"), (Method::GET, "members"), (Method::POST, "events")]
        {
            let request = server.request(method, &format!("/v1/app/rooms/{bad}/{what}")).bearer_auth(&boss);
            let sent = if what == "members" { json!({ "add": ["alice"] }) } else { message(1) };
            assert_eq!(refused(request.json(&sent)).await, (400, "InvalidRequest".into()), "{bad} {what}");
        }
    }
    let project = server.request(Method::GET, "/v1/a%20b/rooms/r/members").bearer_auth(&boss);
    assert_eq!(refused(project).await, (400, "InvalidRequest".into()));
}

#[tokio::test]
async fn a_room_has_so_many_members_and_no_more() {
    let server = open_with(Options { max_members: 4, ..Options::default() }).await;
    changes_members(&server, ROOM, &["dora"], &[]).await;
    let fifth = changing_members(&server, ROOM, &["emil"], &[]);
    assert_eq!(refused(fifth).await, (413, "PayloadTooLarge".into()));
    changes_members(&server, ROOM, &["emil"], &["dora"]).await;
    let many = changing_members(&server, "new", &["a", "b", "c", "d", "e"], &[]);
    assert_eq!(refused(many).await, (413, "PayloadTooLarge".into()));
    // They are counted before it is looked at who they are: the last of these is nobody.
    for list in ["add", "remove"] {
        let many = server.post("/v1/app/rooms/new/members").bearer_auth(manager(&server));
        let many = many.json(&json!({ list: ["a", "b", "c", "d", 7] }));
        assert_eq!(refused(many).await, (413, "PayloadTooLarge".into()), "{list}");
    }
    let listed = server.request(Method::GET, "/v1/app/rooms/new/members").bearer_auth(manager(&server));
    assert_eq!(refused(listed).await, (404, "ConvoNotFound".into()), "and there is no such room");
}

#[tokio::test]
async fn a_user_has_so_many_streams_at_a_time_and_no_more() {
    let server = open().await;
    changes_members(&server, "other", &["alice"], &[]).await;
    let mut readers = Vec::new();
    for n in 0..50 {
        let wire = WIRES[n % 3];
        let room = if n % 2 == 0 { ROOM } else { "other" };
        readers.push(guest(&server, wire, "alice", room).comes().await);
    }
    for wire in WIRES {
        let refused = alice(&server, wire).is_refused().await;
        assert_eq!(refused.what(), (429, "TooManyStreams"));
        is_a_refusal(refused.status, &refused.headers, &refused.body);
        guest(&server, wire, "bob", ROOM).comes().await;
    }
    readers.pop();
    tidings_testing::eventually("there is room again", async || {
        alice(&server, Wire::Sse).tries().await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn too_many_requests_are_told_in_the_words_of_rooms() {
    let limits = LimitOptions { requests_per_second: 3, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    let request = || server.request(Method::GET, "/v1/p/rooms/nowhere/members");
    for _ in 0..3 {
        assert_eq!(refused(request()).await, (404, "ConvoNotFound".into()));
    }
    assert_eq!(refused(request()).await, (429, "TooManyRequests".into()));
    for wire in WIRES {
        let refused = Guest::at(server.address(), wire, "/v1/p/rooms/nowhere/events").is_refused().await;
        assert_eq!(refused.what(), (429, "TooManyRequests"));
        is_a_refusal(refused.status, &refused.headers, &refused.body);
    }
}

#[tokio::test]
async fn a_disk_without_space_is_told_and_when_to_come_again() {
    let doors = Doors::Open;
    let server = Harness::with(Setup { store: TestStore::Full, doors, ..Setup::default() }).await;
    let answer = answer(server.post("/v1/p/rooms/r/members").json(&json!({ "add": ["dev"] }))).await;
    assert_eq!(answer.status(), 507);
    let headers = answer.headers().clone();
    let body = body(answer).await;
    is_a_refusal(507, &headers, &body);
    assert_eq!((&body["error"], body["retryAfter"].is_number()), (&json!("Unavailable"), true));
}

#[tokio::test]
async fn a_repeated_write_of_a_producer_is_answered_as_the_first_and_adds_nothing() {
    let server = open().await;
    let produce = |epoch: u64, sequence: u64, events: Value| {
        let request = writing(&server, ROOM, &events).header("producer-id", "p");
        request.header("producer-epoch", epoch).header("producer-seq", sequence)
    };
    let one = body(answer(produce(0, 0, message(1))).await).await;
    let many = body(answer(produce(0, 1, json!([message(2), message(3)]))).await).await;
    server.clock.advance(Duration::from_secs(1));
    write(&server, message("between")).await;
    for _ in 0..2 {
        let again = answer(produce(0, 1, json!([message(2), message(3)]))).await;
        assert_eq!(again.status(), 200);
        assert_eq!(body(again).await, many);
    }
    let next = body(answer(produce(0, 2, message(4))).await).await;
    let again = body(answer(produce(0, 2, message(4))).await).await;
    assert_eq!(next, again);
    assert_eq!(refused(produce(0, 9, message(5))).await.0, 409, "one is missing in between");
    let epoch = body(answer(produce(1, 0, message(6))).await).await;
    assert_eq!(refused(produce(0, 3, message(5))).await, (403, "ProducerFenced".into()));
    let mixed = produce(1, 1, json!([message(7), typing("alice")]));
    assert_eq!(
        refused(mixed).await,
        (400, "InvalidRequest".into()),
        "what is not kept cannot be found again"
    );
    let nameless = writing(&server, ROOM, &message(1)).header("producer-seq", 1);
    assert_eq!(refused(nameless).await, (400, "InvalidRequest".into()));
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    let cursor = |value: &Value| value["cursor"].as_str().expect("a cursor").to_owned();
    assert_eq!(reader.hears().await.cursor(), cursor(&one));
    hears_all(&mut reader, &[cursor(&many[0]), cursor(&many[1])]).await;
    reader.hears().await;
    hears_all(&mut reader, &[cursor(&next), cursor(&epoch)]).await;
    hears_only_what_is_new(&server, &mut reader).await;
}

/// Lets everybody in, later.
struct Hesitating(Arc<Notify>);

impl Authorize for Hesitating {
    fn authorize<'a>(
        &'a self,
        route: &'a Route,
        _: Option<&'a Credential>,
    ) -> BoxFuture<'a, Result<Allowed, Denied>> {
        async move {
            if route.action == tidings_auth::Action::Read {
                self.0.notified().await;
            }
            Ok(Allowed { user: Some("dev".into()), ..Allowed::default() })
        }
        .boxed()
    }
}

#[tokio::test]
async fn who_comes_while_the_server_stops_is_told_so() {
    let gate = Arc::new(Notify::new());
    let doors = Doors::Custom(Arc::new(Hesitating(gate.clone())));
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let members = server.post("/v1/p/rooms/r/members").json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let metric = "tidings_connections";
    let before = server.metric(metric).expect("it is counted");
    let coming = Guest::at(server.address(), Wire::Sse, "/v1/p/rooms/r/events");
    let browser = coming.clone().having_heard(&cursor_of(1));
    let coming = tokio::spawn(async move { coming.is_refused().await });
    let browser = tokio::spawn(async move { browser.comes().await.rest().await });
    until("they are at the door", || server.metric(metric) == Some(before + 2.0)).await;
    let stopping = tokio::spawn(server.stop());
    tokio::task::yield_now().await;
    gate.notify_waiters();
    let opening = async {
        loop {
            gate.notify_waiters();
            tokio::task::yield_now().await;
        }
    };
    let told = async { (coming.await.expect("an answer"), browser.await.expect("a stream")) };
    let (refused, heard) = tokio::select! { told = told => told, () = opening => unreachable!() };
    assert_eq!(refused.what(), (503, "ServerRestart"));
    is_a_refusal(refused.status, &refused.headers, &refused.body);
    assert_eq!(
        heard.last().expect("a word at the end").reason(),
        "server-restart",
        "a browser must come again"
    );
    stopping.await.expect("it ends");
}

#[tokio::test]
async fn what_is_written_is_neither_in_logs_nor_in_refusals() {
    let process = Process::serve_logging("trace", &[]).await;
    let client = http::Client::new();
    let at = |what: &str| process.url(&format!("/v1/p/rooms/r/{what}"));
    let secret = "whispered-words";
    let members = client.post(at("members")).json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let good = json!({ "type": "messageEvent", "payload": { "messageView": { "text": secret } } });
    assert_eq!(answer(client.post(at("events")).json(&good)).await.status(), 200);
    for bad in [
        json!({ "type": "messageEvent", "payload": { "text": secret } }),
        json!({ "type": "reactionEvent", "payload": { "messageId": secret, "actor": secret, "reaction": secret } }),
        json!({ "type": "messageEvent", "payload": [secret] }),
    ] {
        let answer = answer(client.post(at("events")).json(&bad)).await;
        assert_eq!(answer.status(), 400);
        let told = answer.text().await.expect("text");
        assert!(!told.contains(secret), "{told}");
    }
    let address = process.url("").replace("http://", "").parse().expect("an address");
    let mut reader = Guest::at(address, Wire::Sse, "/v1/p/rooms/r/events?cursor=oldest").comes().await;
    assert_eq!(reader.hears().await.payload()["messageView"]["text"], json!(secret));
    assert!(!process.log().contains(secret));
}

#[tokio::test]
async fn the_defaults_of_rooms_are_these() {
    let printed = Process::run(&["default-config"]).await.stdout;
    let rooms =
        printed.split("\n[rooms]\n").nth(1).expect("a section").split("\n[").next().expect("its text");
    let set: Vec<&str> = rooms.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(
        set,
        [
            r#"retention = "14d""#,
            r#"sweep_interval = "1h""#,
            r#"reaction_min_lag = "60s""#,
            "ring = 4096",
            "max_lag = 5000",
            r#"stall = "5s""#,
            r#"heartbeat = "15s""#,
            "max_streams_per_user = 50",
            "payload_bytes = 16384",
            "max_members = 100000",
            "history_for_new_members = true",
        ]
    );
}

#[tokio::test]
async fn what_is_set_of_rooms_is_so_and_what_cannot_be_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tidings.toml");
    let file = file.to_str().expect("a path in UTF-8");
    let check = async |rooms: &str| {
        std::fs::write(file, format!("[rooms]\n{rooms}\n")).expect("written");
        Process::run(&["check-config", "--config", file]).await
    };
    for good in [r#"retention = "1500ms""#, r#"retention = "30d""#, r#"stall = "250ms""#, "ring = 1000"] {
        let exit = check(good).await;
        assert_eq!(exit.status.code(), Some(0), "{good}: {}", exit.stderr);
    }
    for bad in [
        "retention = 14",
        r#"retention = "14 days""#,
        r#"retention = "14""#,
        r#"retention = """#,
        r#"heartbeat = "-1s""#,
        r#"stall = "5 parsecs""#,
        "ring = 0",
        r#"max_lag = "5000""#,
        "history_for_new_members = 1",
    ] {
        let exit = check(bad).await;
        assert_eq!(exit.status.code(), Some(1), "{bad}");
        let key = bad.split(' ').next().expect("a key");
        assert!(exit.stderr.contains(&format!("rooms.{key}")), "{bad}: {}", exit.stderr);
    }
    let exit = check("retain = \"14d\"").await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("rooms.retain is not a key"), "{}", exit.stderr);
    std::fs::write(file, "[rooms]\npayload_bytes = 40\nmax_streams_per_user = 1\n").expect("written");
    let process = Process::serve(&["--config", file]).await;
    let client = http::Client::new();
    let members = client.post(process.url("/v1/p/rooms/r/members")).json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let events = process.url("/v1/p/rooms/r/events");
    assert_eq!(answer(client.post(&events).json(&message(1))).await.status(), 200);
    assert_eq!(answer(client.post(&events).json(&message("x".repeat(40)))).await.status(), 413);
    let first = answer(client.get(&events)).await;
    assert_eq!(answer(client.get(&events)).await.status(), 429);
    drop(first);
}

#[tokio::test]
async fn pages_may_use_the_known_names_as_the_project_of_their_token_says() {
    let server = open().await;
    let config = server.request(Method::PUT, "/v1/config/app").bearer_auth(manager(&server));
    let config = config.json(&json!({ "corsOrigins": ["https://a.example"] }));
    assert!(answer(config).await.status().is_success());
    let path = "/x/blue.catbird.mls.updateCursor";
    let preflight = async |origin: &str| {
        let asked = server.request(Method::OPTIONS, path).header("origin", origin);
        let asked = asked.header("access-control-request-method", "POST");
        answer(asked.header("access-control-request-headers", "authorization")).await.headers().clone()
    };
    // A browser asks before it shows the token.
    let allowed = preflight("https://a.example").await;
    assert_eq!(allowed["access-control-allow-origin"], "https://a.example");
    assert!(allowed.contains_key("access-control-allow-headers"));
    assert!(!preflight("https://evil.example").await.contains_key("access-control-allow-origin"));
    let cursor = write(&server, message("m")).await;
    for (origin, seen) in [("https://a.example", true), ("https://evil.example", false)] {
        let told = server.post(path).header("origin", origin).bearer_auth(token(&server, "alice"));
        let told = answer(told.json(&json!({ "convoId": ROOM, "cursor": cursor }))).await;
        assert_eq!(told.status(), 200);
        assert_eq!(told.headers().contains_key("access-control-allow-origin"), seen, "{origin}");
    }
}

#[tokio::test]
async fn a_connection_that_could_become_something_else_is_no_websocket() {
    let server = open().await;
    let other = alice(&server, Wire::Sse).with_header("upgrade", "h2c").with_header("connection", "Upgrade");
    let reader = other.comes().await;
    assert_eq!(reader.head["content-type"], "text/event-stream");
}
