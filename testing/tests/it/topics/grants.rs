//! What tokens grant, while they last, and what becomes of a connection whose token is swapped.

use std::time::Duration;

use tidings_auth::{Claims, Key, Resources, Scope, TopicGrants};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId};
use tidings_testing::{Doors, until};

use super::*;

pub const KEY: &str = "the-signing-key-of-app";
pub const OTHER_KEY: &str = "the-signing-key-of-other";
const HOUR: Duration = Duration::from_secs(3600);

/// A server with the projects `app` and `other`, and their keys.
pub async fn closed() -> Harness {
    let doors = Doors::Closed { created: vec![("app", KEY), ("other", OTHER_KEY)], given: vec![] };
    Harness::with(Setup { doors, ..Setup::default() }).await
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect()
}

/// Grants of topics to subscribe to and to publish to.
pub fn grants(subscribe: &[&str], publish: &[&str]) -> Resources {
    let topics = TopicGrants { subscribe: patterns(subscribe), publish: patterns(publish) };
    Resources { topics: Some(topics), ..Resources::default() }
}

/// Claims on the project `app`.
pub fn claims(server: &Harness, user: Option<&str>, scope: Scope, resources: Resources) -> Claims {
    let app = ProjectId::parse("app").expect("an id");
    Claims { user: user.map(Into::into), resources, ..Claims::new(app, scope, server.clock.now() + HOUR) }
}

/// The token of claims, signed with the key of `app`.
pub fn signed(claims: &Claims) -> String {
    claims.sign(&Key::parse(KEY).expect("a key"))
}

/// A token of alice.
pub fn token(server: &Harness, resources: Resources) -> String {
    signed(&claims(server, Some("alice"), Scope::Write, resources))
}

fn denied(op: &str, reason: &str, topic: &str) -> Value {
    json!({ "op": op, "kind": "forbidden", "reason": reason, "topic": topic })
}

async fn publish(client: &mut Client, topic: &str) -> Value {
    client.done("$publish", json!({ "topic": topic, "message": { "type": "T" } })).await
}

#[tokio::test]
async fn the_handshake_needs_a_credential_of_the_project() {
    let server = closed().await;
    let good = token(&server, Resources::default());
    let client = Client::with_token(&server, &good).await;
    assert_eq!(client.hello["user"], "alice");
    let expires = (server.clock.now() + HOUR).as_millis() / 1000 * 1000;
    assert_eq!(client.hello["expiresAt"], expires);
    let in_query = Client::at(&server, &format!("{PATH}?token={good}"), None).await.expect("a WebSocket");
    assert_eq!(in_query.hello["user"], "alice");
    let expired = signed(&Claims {
        expires_at: server.clock.now(),
        ..claims(&server, None, Scope::Write, Resources::default())
    });
    for (path, token, status) in [
        (PATH, None, "401"),
        (PATH, Some("nonsense"), "401"),
        (PATH, Some(&*expired), "401"),
        ("/v1/other/topics", Some(&*good), "403"),
    ] {
        let refused = Client::at(&server, path, token).await.err().expect("refused");
        assert!(refused.to_string().contains(status), "{path} {token:?}: {refused}");
    }
}

#[tokio::test]
async fn a_token_subscribes_and_publishes_to_what_it_grants_and_to_nothing_else() {
    let server = closed().await;
    let mut client =
        Client::with_token(&server, &token(&server, grants(&["room:*"], &["inbox:alice"]))).await;
    client.subscribe("room:1").await;
    let error = client.fails("$subscribe", json!({ "topic": "inbox:alice" })).await;
    assert_eq!((&error["code"], &error["retryable"]), (&json!("ACL_SUBSCRIBE"), &json!(false)));
    assert_eq!(error["details"], denied("subscribe", "grant", "inbox:alice"));
    let error = client.fails("$subscribeMany", json!({ "topics": ["room:2", "other"] })).await;
    assert_eq!(error["details"], denied("subscribe", "grant", "other"));
    assert_eq!(client.list().await, json!(["room:1"]), "all or nothing");
    // What is there already is not asked about, nor is what is to go.
    client.done("$set", json!({ "topics": ["room:1"] })).await;
    client.done("$unsubscribe", json!({ "topic": "other" })).await;

    assert_eq!(publish(&mut client, "inbox:alice").await["ok"], true);
    let result = publish(&mut client, "room:1").await;
    assert_eq!((&result["error"], &result["retryable"]), (&json!("ACL_PUBLISH"), &json!(false)));
    assert_eq!(result["details"], denied("publish", "grant", "room:1"));
    let error = client.fails("$history", json!({ "topic": "inbox:alice" })).await;
    assert_eq!(error["code"], "PERMISSION_DENIED");
}

#[tokio::test]
async fn the_scope_read_does_not_publish_and_a_token_for_something_else_has_no_topics() {
    let server = closed().await;
    let reader = signed(&claims(&server, None, Scope::Read, Resources::default()));
    let mut client = Client::with_token(&server, &reader).await;
    client.subscribe("any").await;
    assert_eq!(publish(&mut client, "any").await["details"], denied("publish", "scope", "any"));

    let streams = Resources { streams: Some(patterns(&["**"])), ..Resources::default() };
    let mut client = Client::with_token(&server, &token(&server, streams)).await;
    let error = client.fails("$subscribe", json!({ "topic": "any" })).await;
    assert_eq!(
        error["details"],
        denied("subscribe", "grant", "any"),
        "the socket may be opened all the same"
    );
}

#[tokio::test]
async fn over_http_a_token_publishes_and_counts_what_it_grants() {
    let server = closed().await;
    let token = token(&server, grants(&["heard"], &["said"]));
    let publish = |topic: &str| {
        let request = server.post(&format!("{PATH}/{topic}")).json(&json!({ "type": "T" }));
        request.header("authorization", format!("Bearer {token}")).send()
    };
    assert_eq!(publish("said").await.expect("an answer").status(), 200);
    let refused = publish("heard").await.expect("an answer");
    assert_eq!(refused.status(), 403);
    let result: Value = refused.json().await.expect("JSON");
    assert_eq!(
        (&result["error"], &result["details"]),
        (&json!("ACL_PUBLISH"), &denied("publish", "grant", "heard"))
    );
    let count = |topic: &str| {
        let request = server.request(tidings_testing::http::Method::GET, &format!("{PATH}/{topic}"));
        request.header("authorization", format!("Bearer {token}")).send()
    };
    assert_eq!(count("heard").await.expect("an answer").status(), 200);
    assert_eq!(count("said").await.expect("an answer").status(), 403);
    assert_eq!(server.get(&format!("{PATH}/heard")).await.status(), 401);
    let unknown = server.post(&format!("{PATH}/said")).json(&json!({ "type": "T" })).send().await;
    let unknown = unknown.expect("an answer");
    assert_eq!(unknown.status(), 401);
    let error: Value = unknown.json().await.expect("JSON");
    assert_eq!(error["error"]["code"], "token_missing", "the usual body");
}

#[tokio::test]
async fn a_connection_ends_with_its_token() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, Resources::default())).await;
    client.subscribe("t").await;
    server.clock.advance(HOUR);
    let close = client.closed().await;
    assert_eq!(close, json!({ "code": 4401, "reason": "token-expired", "reconnect": true }));
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_token_can_be_swapped_before_it_expires() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, grants(&["a", "b", "c"], &[]))).await;
    client.done("$set", json!({ "topics": ["a", "b", "c"] })).await;
    server.clock.advance(HOUR / 2);
    let newer = token(&server, grants(&["b", "d"], &["d"]));
    let id = client.begin("$auth", json!({ "token": newer })).await;
    let next = client.begin("$subscribe", json!({ "topic": "d" })).await;
    let expires = (server.clock.now() + HOUR).as_millis() / 1000 * 1000;
    let answer = client.answer_to(&id).await;
    assert_eq!(answer, Ok(json!({ "expiresAt": expires, "removed": ["a", "c"] })));
    assert_eq!(client.answer_to(&next).await, Ok(json!({ "added": 1, "total": 2 })), "it counts at once");
    let told = client.hear().await;
    let expected = json!({ "type": "$unsubscribed", "payload": { "topics": ["a", "c"], "reason": "token" } });
    assert_eq!(told, expected);
    assert_eq!(client.list().await, json!(["b", "d"]));
    assert_eq!(client.fails("$subscribe", json!({ "topic": "a" })).await["code"], "ACL_SUBSCRIBE");
    assert_eq!(publish(&mut client, "d").await["matched"], 1);
    assert_eq!(client.hear().await["meta"]["topic"], "d");
    // It lives as long as the newer one.
    server.clock.advance(HOUR / 2 + Duration::from_secs(10));
    client.subscribe("d").await;
    server.clock.advance(HOUR / 2);
    assert_eq!(client.closed().await["code"], 4401);
}

#[tokio::test]
async fn a_swap_that_is_refused_leaves_the_old_token() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, grants(&["a"], &[]))).await;
    client.subscribe("a").await;
    let of_bob = signed(&claims(&server, Some("bob"), Scope::Write, Resources::default()));
    let of_nobody = signed(&claims(&server, None, Scope::Write, Resources::default()));
    let other = ProjectId::parse("other").expect("an id");
    let elsewhere =
        Claims { user: Some("alice".into()), ..Claims::new(other, Scope::Write, server.clock.now() + HOUR) };
    let elsewhere = elsewhere.sign(&Key::parse(OTHER_KEY).expect("a key"));
    let expired = Claims {
        expires_at: server.clock.now(),
        ..claims(&server, Some("alice"), Scope::Write, Resources::default())
    };
    let expired = signed(&expired);
    for (token, code) in [
        (&*of_bob, "PERMISSION_DENIED"),
        (&of_nobody, "PERMISSION_DENIED"),
        (&elsewhere, "PERMISSION_DENIED"),
        (&expired, "UNAUTHENTICATED"),
        ("nonsense", "UNAUTHENTICATED"),
        ("", "UNAUTHENTICATED"),
    ] {
        let error = client.fails("$auth", json!({ "token": token })).await;
        assert_eq!((&error["code"], &error["retryable"]), (&json!(code), &json!(false)), "{token}");
        assert!(!error.to_string().contains("eyJ"), "no token is repeated: {error}");
    }
    assert_eq!(client.list().await, json!(["a"]));
    server.clock.advance(HOUR);
    assert_eq!(client.closed().await["code"], 4401, "it is still the old one");
}

#[tokio::test]
async fn a_connection_whose_key_is_removed_ends_without_coming_again() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, Resources::default())).await;
    client.subscribe("t").await;
    let app = ProjectId::parse("app").expect("an id");
    let more = Key::parse("another-signing-key-of-app").expect("a key");
    server.projects().rotate_key(&app, Some(more)).await.expect("added");
    let old = Key::parse(KEY).expect("a key");
    server.projects().remove_key(&app, old.kid()).await.expect("removed");
    until("the connection ends", || {
        server.metric(r#"tidings_topics_closed_total{reason="revoked"}"#) == Some(1.0)
    })
    .await;
    let close = client.closed().await;
    assert_eq!(close, json!({ "code": 4403, "reason": "revoked", "reconnect": false }));
}

/// Revokes, and returns what it ended.
pub async fn revoke(server: &Harness, body: Value) -> Value {
    let boss = signed(&claims(server, Some("boss"), Scope::Manage, Resources::default()));
    let request = server.post("/v1/app/revocations").json(&body);
    let answer = request.header("authorization", format!("Bearer {boss}")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "{body}");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn topics_that_are_revoked_end_at_once_and_are_refused_from_then_on() {
    let server = closed().await;
    let mut alice = Client::with_token(&server, &token(&server, Resources::default())).await;
    let bob = signed(&claims(&server, Some("bob"), Scope::Write, Resources::default()));
    let mut bob = Client::with_token(&server, &bob).await;
    for client in [&mut alice, &mut bob] {
        client.done("$set", json!({ "topics": ["room:1", "room:2", "news"] })).await;
    }
    let ended = revoke(&server, json!({ "user": "alice", "topics": ["room:*"] })).await;
    assert_eq!(ended, json!({ "connections": 0, "subscriptions": 2 }));
    let told = alice.hear().await;
    let expected = json!({ "type": "$unsubscribed", "payload": { "topics": ["room:1", "room:2"], "reason": "revoked" } });
    assert_eq!(told, expected);
    for topic in ["room:1", "news"] {
        publish(&mut bob, topic).await;
    }
    assert_eq!(alice.hear().await["meta"]["topic"], "news", "nothing of the room came");
    assert_eq!(alice.list().await, json!(["news"]));
    let error = alice.fails("$subscribe", json!({ "topic": "room:1" })).await;
    assert_eq!(error["details"], denied("subscribe", "revoked", "room:1"));
    assert_eq!(publish(&mut alice, "room:9").await["details"], denied("publish", "revoked", "room:9"));
    assert_eq!(bob.list().await, json!(["room:1", "room:2", "news"]), "others are not touched");
    // A token that was issued later is not touched either.
    server.clock.advance(Duration::from_secs(2));
    let newer = Claims {
        issued_at: Some(server.clock.now()),
        ..claims(&server, Some("alice"), Scope::Write, Resources::default())
    };
    alice.done("$auth", json!({ "token": signed(&newer) })).await;
    alice.subscribe("room:1").await;
}

#[tokio::test]
async fn tokens_that_are_revoked_end_their_connections_and_count_no_more() {
    let server = closed().await;
    let token_of_alice = token(&server, Resources::default());
    let mut one = Client::with_token(&server, &token_of_alice).await;
    let mut two = Client::with_token(&server, &token_of_alice).await;
    let bob = signed(&claims(&server, Some("bob"), Scope::Write, Resources::default()));
    let mut bob = Client::with_token(&server, &bob).await;
    one.subscribe("t").await;
    let ended = revoke(&server, json!({ "user": "alice" })).await;
    assert_eq!(ended, json!({ "connections": 2, "subscriptions": 0 }));
    for client in [&mut one, &mut two] {
        let close = client.closed().await;
        assert_eq!(close, json!({ "code": 4403, "reason": "revoked", "reconnect": false }));
    }
    let refused = Client::at(&server, PATH, Some(&token_of_alice)).await.err().expect("refused");
    assert!(refused.to_string().contains("401"), "{refused}");
    let of_alice = signed(&claims(&server, Some("alice"), Scope::Write, Resources::default()));
    let mut other = Client::with_token(
        &server,
        &signed(&claims(&server, Some("bob"), Scope::Read, Resources::default())),
    )
    .await;
    let error = other.fails("$auth", json!({ "token": of_alice })).await;
    assert_eq!(error["code"], "UNAUTHENTICATED");
    bob.subscribe("t").await;
}

#[tokio::test]
async fn a_page_of_a_foreign_origin_opens_no_socket() {
    use tungstenite::client::IntoClientRequest;
    let server = Harness::start().await;
    for (origin, good) in [("https://evil.example", false), ("http://localhost:3000", true)] {
        let url = server.url(PATH).replace("http://", "ws://");
        let mut request = url.into_client_request().expect("an address");
        request.headers_mut().insert("origin", origin.parse().expect("a header"));
        let opened = tokio_tungstenite::connect_async(request).await;
        assert_eq!(opened.is_ok(), good, "{origin}");
    }
}

#[tokio::test]
async fn a_page_opens_a_socket_if_the_project_allows_its_origin_even_with_a_token() {
    let server = closed().await;
    let boss = signed(&claims(&server, Some("boss"), Scope::Manage, Resources::default()));
    let good = token(&server, Resources::default());
    let page = "https://app.example.com";
    for (allowed, origin, opens) in [
        (&[][..], page, false),
        (&[], "http://localhost:5173", false),
        (&[page], page, true),
        (&[page], "https://evil.example", false),
        (&[page], "null", false),
        (&["*"], "https://evil.example", true),
    ] {
        let config = server.put("/v1/config/app").bearer_auth(&boss).json(&json!({ "corsOrigins": allowed }));
        assert_eq!(config.send().await.expect("an answer").status(), 200);
        let mut asks: Vec<(&str, bool)> = vec![(&*good, true), ("nonsense", false)];
        asks.truncate(if opens { 2 } else { 1 });
        for (token, is_good) in asks {
            let url = server.url(&format!("{PATH}?token={token}")).replace("http://", "ws://");
            let mut request =
                tungstenite::client::IntoClientRequest::into_client_request(url).expect("an address");
            request.headers_mut().insert("origin", origin.parse().expect("a header"));
            match tokio_tungstenite::connect_async(request).await {
                Ok(_) => assert!(opens && is_good, "{allowed:?} {origin}"),
                Err(error) => {
                    let status = if is_good { "403" } else { "401" };
                    assert!(!(opens && is_good) && error.to_string().contains(status), "{origin}: {error}");
                }
            }
        }
    }
    // Who is no browser names none.
    Client::with_token(&server, &good).await.list().await;
}

#[tokio::test]
async fn each_kind_of_request_meets_a_token_that_expires_is_revoked_or_is_swapped() {
    let requests = [
        ("$subscribe", json!({ "topic": "a" })),
        ("$unsubscribe", json!({ "topic": "a" })),
        ("$subscribeMany", json!({ "topics": ["a", "b"] })),
        ("$unsubscribeMany", json!({ "topics": ["a", "b"] })),
        ("$clear", json!({})),
        ("$set", json!({ "topics": ["a", "b"] })),
        ("$update", json!({ "add": ["a"], "remove": ["b"] })),
        ("$settle", json!({})),
        ("$verify", json!({ "topic": "a" })),
        ("$localStatus", json!({ "topic": "a" })),
        ("$list", json!({})),
        ("$publish", json!({ "topic": "a", "message": { "type": "T" } })),
        ("$history", json!({ "topic": "a" })),
    ];
    for (kind, payload) in requests {
        let server = closed().await;
        let good = token(&server, Resources::default());
        // Swapped in the middle: each is answered, before and after.
        let mut client = Client::with_token(&server, &good).await;
        let before = client.begin(kind, payload.clone()).await;
        let auth = client.begin("$auth", json!({ "token": token(&server, grants(&["b"], &["b"])) })).await;
        let after = client.begin(kind, payload.clone()).await;
        let _ = client.answer_to(&before).await;
        assert!(client.answer_to(&auth).await.is_ok(), "{kind}");
        let _ = client.answer_to(&after).await;
        let list = client.list().await;
        assert!(!list.to_string().contains("\"a\""), "{kind}: the newer token does not grant it: {list}");
        drop(client);
        // Revoked or expired in the middle: whatever was answered before, the connection ends.
        let kept = |issued| Claims {
            issued_at: Some(issued),
            ..claims(&server, Some("alice"), Scope::Write, Resources::default())
        };
        let mut revoked = Client::with_token(&server, &good).await;
        for _ in 0..20 {
            revoked.begin(kind, payload.clone()).await;
        }
        revoke(&server, json!({ "user": "alice" })).await;
        assert_eq!(revoked.closed().await["code"], 4403, "{kind}");
        server.clock.advance(Duration::from_secs(2));
        let mut expiring = Client::with_token(&server, &signed(&kept(server.clock.now()))).await;
        for _ in 0..20 {
            expiring.begin(kind, payload.clone()).await;
        }
        server.clock.advance(HOUR);
        assert_eq!(expiring.closed().await["code"], 4401, "{kind}");
        drop((revoked, expiring));
        until("nothing is left", || server.server().topics().subscribed() == 0).await;
    }
}
