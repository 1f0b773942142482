//! Who is let in and with what, until the server drains.

use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_server::LimitOptions;
use tidings_testing::http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::grants::{KEY, OTHER_KEY, claims, closed, grants, revoke, signed, token};
use super::*;

/// What a server answers to a handshake that it refuses: status and body.
async fn refused(server: &Harness, path: &str) -> (u16, Value) {
    let mut socket = TcpStream::connect(server.address()).await.expect("connected");
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("sent");
    answer_on(&mut socket).await
}

/// The next answer on a socket: its status and its body.
async fn answer_on(socket: &mut TcpStream) -> (u16, Value) {
    let reading = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("an answer"));
        }
        let head = String::from_utf8(head).expect("text").to_lowercase();
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        let length = head.split("content-length: ").nth(1).expect("a length").lines().next();
        let mut body = vec![0; length.expect("a length").parse().expect("a number")];
        socket.read_exact(&mut body).await.expect("a body");
        (status, serde_json::from_slice(&body).expect("JSON"))
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("an answer within half a minute")
}

#[tokio::test]
async fn a_handshake_at_no_path_or_too_many_of_them_are_refused_in_the_usual_body() {
    let limits = LimitOptions { requests_per_second: 1, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    let (status, body) = refused(&server, "/v1/app/topic").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("no_such_path")));
    let client = Client::at(&server, "/v1/busy/topics", None).await.expect("a WebSocket");
    let (status, body) = refused(&server, "/v1/busy/topics").await;
    assert_eq!((status, &body["error"]["code"]), (429, &json!("too_many_requests")));
    assert!(body["error"]["message"].is_string(), "{body}");
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_token_that_is_sent_is_checked_in_dev_mode_too() {
    let server = Harness::start().await;
    let app = ProjectId::parse("app").expect("an id");
    let key = Key::parse(KEY).expect("a key");
    server.projects().create(&app, Some(key)).await.expect("created");
    for bad in ["nonsense", &signed(&claims(&server, None, Scope::Write, Resources::default()))[1..]] {
        let error = Client::at(&server, PATH, Some(bad)).await.err().expect("refused");
        assert!(error.to_string().contains("401"), "{bad}: {error}");
        let in_query = Client::at(&server, &format!("{PATH}?token={bad}"), None).await;
        assert!(in_query.err().expect("refused").to_string().contains("401"), "{bad}");
        let publish = server.post(&format!("{PATH}/t")).json(&json!({ "type": "T" })).bearer_auth(bad);
        assert_eq!(publish.send().await.expect("an answer").status(), 401, "{bad}");
        let count = server.request(Method::GET, &format!("{PATH}/t")).bearer_auth(bad);
        assert_eq!(count.send().await.expect("an answer").status(), 401, "{bad}");
    }
    let mut client = Client::with_token(&server, &token(&server, grants(&["room:*"], &[]))).await;
    assert_eq!(client.hello["user"], "alice");
    client.subscribe("room:1").await;
    let error = client.fails("$subscribe", json!({ "topic": "other" })).await;
    assert_eq!((&error["code"], &error["details"]["kind"]), (&json!("ACL_SUBSCRIBE"), &json!("forbidden")));
    assert_eq!(client.fails("$auth", json!({ "token": "nonsense" })).await["code"], "UNAUTHENTICATED");
}

#[tokio::test]
async fn what_is_withdrawn_between_two_subscribes_is_refused_to_the_second() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, Resources::default())).await;
    client.subscribe("room:1").await;
    revoke(&server, json!({ "user": "alice", "topics": ["room:2"] })).await;
    let error = client.fails("$subscribe", json!({ "topic": "room:2" })).await;
    assert_eq!((&error["code"], &error["details"]["reason"]), (&json!("ACL_SUBSCRIBE"), &json!("revoked")));
    client.subscribe("room:3").await;
    assert_eq!(client.list().await, json!(["room:1", "room:3"]));
}

#[tokio::test]
async fn what_is_revoked_or_granted_in_one_project_is_nothing_to_another() {
    let server = closed().await;
    let in_other = |resources| {
        let other = ProjectId::parse("other").expect("an id");
        let until = claims(&server, None, Scope::Write, Resources::default()).expires_at;
        let claims =
            Claims { user: Some("alice".into()), resources, ..Claims::new(other, Scope::Write, until) };
        claims.sign(&Key::parse(OTHER_KEY).expect("a key"))
    };
    let mut here = Client::with_token(&server, &token(&server, grants(&["room:*"], &["news"]))).await;
    let there = in_other(grants(&["news", "room:1"], &["room:*"]));
    let mut there = Client::at(&server, "/v1/other/topics", Some(&there)).await.expect("a WebSocket");
    here.subscribe("room:1").await;
    assert_eq!(here.fails("$subscribe", json!({ "topic": "news" })).await["code"], "ACL_SUBSCRIBE");
    there.done("$set", json!({ "topics": ["news", "room:1"] })).await;
    let publish = json!({ "topic": "room:1", "message": { "type": "T" } });
    assert_eq!(here.done("$publish", publish.clone()).await["error"], "ACL_PUBLISH");
    assert_eq!(there.done("$publish", publish).await["matched"], 1);
    let ended = revoke(&server, json!({ "user": "alice", "topics": ["room:*"] })).await;
    assert_eq!(ended["subscriptions"], 1);
    assert_eq!(here.list().await, json!([]));
    assert_eq!(there.list().await, json!(["news", "room:1"]), "it has the same user there");
}

#[tokio::test]
async fn what_a_swapped_token_allowed_ends_with_its_connection() {
    let server = closed().await;
    let narrow = token(&server, grants(&["a"], &[]));
    let wide = token(&server, grants(&["a", "b"], &[]));
    let mut client = Client::with_token(&server, &narrow).await;
    assert_eq!(client.fails("$subscribe", json!({ "topic": "b" })).await["code"], "ACL_SUBSCRIBE");
    client.done("$auth", json!({ "token": wide })).await;
    client.subscribe("b").await;
    let session = client.hello["session"].as_str().expect("text").to_owned();
    client.leave().await;
    let path = format!("{PATH}?session={session}");
    let mut again = Client::at(&server, &path, Some(&narrow)).await.expect("a WebSocket");
    assert_eq!(again.fails("$subscribe", json!({ "topic": "b" })).await["code"], "ACL_SUBSCRIBE");
    again.subscribe("a").await;
}

#[tokio::test]
async fn a_client_that_says_nothing_but_pongs_stays() {
    let server = server(|options| {
        options.heartbeat = Duration::from_secs(5);
        options.heartbeat_timeout = Duration::from_secs(30);
    })
    .await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    let mut seconds = 0;
    while seconds < 70 {
        let_pass(&server, 1).await;
        seconds += 1;
        // A ping may be on its way for some of the server's seconds.
        match tokio::time::timeout(Duration::from_millis(50), client.socket.next()).await {
            Ok(Some(Ok(Message::Ping(_)))) => client.socket.flush().await.expect("answered"),
            Ok(other) => panic!("expected a ping: {other:?}"),
            Err(_) => {}
        }
    }
    assert_eq!(subscribers(&server, "t").await, 1, "it is still there");
    assert_eq!(post(&server, "t", &json!({ "type": "T", "payload": 7 })).await.1["matched"], 1);
    assert_eq!(client.message("t").await, 7);
}

/// A publish to `t` by HTTP whose body the server waits for, and the body.
async fn publishing(server: &Harness, headers: &str) -> (TcpStream, String) {
    let body = json!({ "type": "T" }).to_string();
    let head = format!(
        "POST {PATH}/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    let mut socket = TcpStream::connect(server.address()).await.expect("connected");
    socket.write_all(head.as_bytes()).await.expect("sent");
    let go_on = b"HTTP/1.1 100 Continue\r\n\r\n";
    let mut told = vec![0; go_on.len()];
    socket.read_exact(&mut told).await.expect("the body is awaited");
    assert_eq!(told, go_on);
    (socket, body)
}

#[tokio::test]
async fn a_publish_by_http_meets_a_token_that_expires_or_is_revoked_while_its_body_comes() {
    let server = closed().await;
    let witness = signed(&claims(&server, Some("witness"), Scope::Read, Resources::default()));
    let mut witness = Client::with_token(&server, &witness).await;
    witness.subscribe("t").await;
    let begin = async |user: &str, lasts: u64| {
        let claims = claims(&server, Some(user), Scope::Write, Resources::default());
        let expires_at = server.clock.now() + Duration::from_secs(lasts);
        let token = signed(&Claims { expires_at, ..claims });
        publishing(&server, &format!("authorization: Bearer {token}\r\n")).await
    };
    let (mut revoked, body) = begin("alice", 3600).await;
    let (mut confined, _) = begin("bob", 3600).await;
    let (mut expired, _) = begin("carol", 2).await;
    revoke(&server, json!({ "user": "alice" })).await;
    revoke(&server, json!({ "user": "bob", "topics": ["t"] })).await;
    revoked.write_all(body.as_bytes()).await.expect("sent");
    let (status, error) = answer_on(&mut revoked).await;
    assert_eq!((status, &error["error"]["code"]), (401, &json!("token_revoked")));
    confined.write_all(body.as_bytes()).await.expect("sent");
    let (status, result) = answer_on(&mut confined).await;
    assert_eq!(
        (status, &result["error"], &result["details"]["reason"]),
        (403, &json!("ACL_PUBLISH"), &json!("revoked"))
    );
    server.clock.advance(Duration::from_secs(2));
    expired.write_all(body.as_bytes()).await.expect("sent");
    let (status, error) = answer_on(&mut expired).await;
    assert_eq!((status, &error["error"]["code"]), (401, &json!("token_expired")));
    assert_eq!(witness.list().await, json!(["t"]));
    assert!(witness.heard.is_empty(), "nothing of it was published: {:?}", witness.heard);
}

#[tokio::test]
async fn a_publish_that_is_under_way_when_the_server_drains_is_refused_as_not_the_state_for_it() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    let (mut socket, body) = publishing(&server, "").await;
    let answered = async {
        assert_eq!(client.closed().await["code"], 1001, "the server drains");
        socket.write_all(body.as_bytes()).await.expect("sent");
        let (status, result) = answer_on(&mut socket).await;
        assert_eq!((status, &result["ok"], &result["error"]), (409, &json!(false), &json!("STATE")));
        assert!(client.heard.is_empty(), "{:?}", client.heard);
    };
    tokio::join!(server.stop(), answered);
}

#[tokio::test]
async fn the_session_of_the_reference_runs_as_written_where_topics_have_no_history() {
    let server = closed().await;
    let bob = signed(&claims(&server, Some("bob"), Scope::Write, Resources::default()));
    let mut bob = Client::with_token(&server, &bob).await;
    bob.subscribe("chat:1").await;
    let mut alice = Client::with_token(&server, &token(&server, Resources::default())).await;
    assert_eq!(
        (&alice.hello["project"], &alice.hello["user"], &alice.hello["heartbeatMs"]),
        (&json!("app"), &json!("alice"), &json!(25_000))
    );
    alice
            .say(r#"{"type":"$set","meta":{"correlationId":"1"},"payload":{"topics":["chat:1","news:1"],"recover":{"chat:1":{"epoch":"e5","offset":41}}}}"#)
            .await;
    let positions = json!({ "chat:1": { "recovered": false } });
    let payload = json!({ "added": 2, "removed": 0, "total": 2, "positions": positions });
    let reply = json!({ "type": "$reply", "meta": { "correlationId": "1" }, "payload": payload });
    assert_eq!(alice.text().await, reply);
    alice
            .say(r#"{"type":"$publish","meta":{"correlationId":"2"},"payload":{"topic":"chat:1","message":{"type":"SAID","payload":{"text":"hi"}},"excludeSelf":true}}"#)
            .await;
    let payload = json!({ "ok": true, "capability": "exact", "matched": 1 });
    let reply = json!({ "type": "$reply", "meta": { "correlationId": "2" }, "payload": payload });
    assert_eq!(alice.text().await, reply);
    let said = json!({ "type": "SAID", "meta": { "topic": "chat:1" }, "payload": { "text": "hi" } });
    assert_eq!(bob.text().await, said);
    alice.say(r#"{"type":"$subscribe","meta":{"correlationId":"3"},"payload":{"topic":"no spaces"}}"#).await;
    let error = alice.text().await;
    assert_eq!((&error["type"], &error["meta"]), (&json!("RPC_ERROR"), &json!({ "correlationId": "3" })));
    let details = json!({ "reason": "pattern", "topic": "no spaces" });
    assert_eq!(
        (&error["payload"]["code"], &error["payload"]["retryable"], &error["payload"]["details"]),
        (&json!("INVALID_TOPIC"), &json!(false), &details)
    );
    alice.say("not json").await;
    let error = alice.text().await;
    assert_eq!((&error["type"], error.get("meta")), (&json!("ERROR"), None));
    assert_eq!(
        (&error["payload"]["code"], &error["payload"]["details"]),
        (&json!("INVALID_ARGUMENT"), &json!({ "reason": "json" }))
    );
    let (close, ()) = tokio::join!(alice.closed(), server.stop());
    assert_eq!(
        (&close["code"], &close["reason"], &close["reconnect"]),
        (&json!(1001), &json!("going-away"), &json!(true))
    );
    assert!(alice.heard.is_empty(), "{:?}", alice.heard);
}
