//! How long a token keeps a connection open, and how another takes its place.

use super::*;

/// A token of alice that lives so long.
fn living(server: &Harness, time: Duration) -> String {
    // Tokens have whole seconds.
    let expires_at = server.clock.now() + time;
    signed(&Claims { expires_at, ..claims(server, "alice", Scope::Write) })
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[tokio::test]
async fn a_client_is_told_five_minutes_before_its_token_expires_and_only_once() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &living(&server, seconds(400))).await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(seconds(98));
    client.ask("PING", json!({}), "PONG").await;
    assert!(client.heard.is_empty(), "not yet: {:?}", client.heard);
    let_pass(&server, 3).await;
    let told = client.hear_a("TOKEN_EXPIRING_SOON").await;
    let expires_in = told["expiresIn"].as_u64().expect("a number");
    assert!((298..=300).contains(&expires_in), "{told}");
    let_pass(&server, 3).await;
    client.ask("PING", json!({}), "PONG").await;
    assert!(client.heard.is_empty(), "once: {:?}", client.heard);
}

#[tokio::test]
async fn with_less_than_five_minutes_left_it_is_told_at_once() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &living(&server, seconds(60))).await;
    let told = client.hear_a("TOKEN_EXPIRING_SOON").await;
    assert!((59..=60).contains(&told["expiresIn"].as_u64().expect("a number")), "{told}");
}

#[tokio::test]
async fn after_the_expiry_and_the_grace_the_connection_is_closed_with_4401() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &living(&server, seconds(60))).await;
    client.hear_a("TOKEN_EXPIRING_SOON").await;
    client.subscribe("project", &["1"]).await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(seconds(61));
    let refused = client.refused("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": ["2"] })).await;
    assert_eq!(refused, "TokenExpired", "during the grace nothing is added");
    client.ask("PING", json!({}), "PONG").await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(seconds(10));
    assert_eq!(client.closed().await, (4401, "Token expired".into()));
    drop(client);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn without_a_grace_the_connection_ends_with_its_token() {
    let server = closed_with(|setup| setup.entities.sockets.token_grace = Duration::ZERO).await;
    let mut client = Client::with_token(&server, &living(&server, seconds(60))).await;
    client.hear_a("TOKEN_EXPIRING_SOON").await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(seconds(61));
    assert_eq!(client.closed().await, (4401, "Token expired".into()));
}

#[tokio::test]
async fn a_refreshed_token_keeps_the_connection_and_its_subscriptions() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &living(&server, seconds(60))).await;
    client.hear_a("TOKEN_EXPIRING_SOON").await;
    client.subscribe("project", &["1"]).await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    // Within the grace, too.
    server.clock.advance(seconds(63));
    let newer = living(&server, seconds(3600));
    let payload = json!({ "token": newer, "requestId": "r" });
    let told = client.ask("TOKEN_REFRESH", payload, "TOKEN_REFRESHED").await;
    assert!((3598..=3600).contains(&told["expiresIn"].as_u64().expect("a number")), "{told}");
    assert_eq!((&told["requestId"], told.get("removed")), (&json!("r"), None));
    let_pass(&server, 20).await;
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
}

#[tokio::test]
async fn a_bad_refresh_or_one_of_another_user_is_refused_and_the_old_token_counts() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &living(&server, seconds(120))).await;
    client.hear_a("TOKEN_EXPIRING_SOON").await;
    let bob = token(&server, "bob");
    let expired = living(&server, Duration::ZERO);
    let nameless = signed(&Claims { user: None, ..claims(&server, "alice", Scope::Write) });
    let foreign = claims(&server, "alice", Scope::Write).sign(&Key::parse(OTHER_KEY).expect("a key"));
    for bad in ["nonsense", &bob, &expired, &nameless, &foreign] {
        let error = client.ask("TOKEN_REFRESH", json!({ "token": bad, "requestId": 7 }), "ERROR").await;
        let told = (&error["message"], &error["code"], &error["requestId"]);
        assert_eq!(
            told,
            (&json!("Invalid refresh token"), &json!("InvalidRefreshToken"), &json!(7)),
            "{bad}"
        );
    }
    assert_eq!(client.refused("TOKEN_REFRESH", json!({})).await, "InvalidMessage");
    client.subscribe("project", &["1"]).await;
    until("it is served", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(seconds(131));
    assert_eq!(client.closed().await, (4401, "Token expired".into()));
}

#[tokio::test]
async fn what_a_refreshed_token_does_not_name_is_not_heard_any_more() {
    let server = closed().await;
    let wide = token_for(&server, "alice", &["project:**", "task:**"]);
    let mut client = Client::with_token(&server, &wide).await;
    client.subscribe("project", &["1", "2"]).await;
    client.subscribe("task", &[]).await;
    let narrow = token_for(&server, "alice", &["project:2", "task:9"]);
    let told = client.ask("TOKEN_REFRESH", json!({ "token": narrow }), "TOKEN_REFRESHED").await;
    let mut removed = told["removed"].as_array().expect("a list").clone();
    removed.sort_by_key(|one| one["entityCode"].to_string());
    assert_eq!(
        removed,
        [json!({ "entityCode": "project", "entityIds": ["1"] }), json!({ "entityCode": "task" })]
    );
    publish(&server, &[change("task", "9", "UPDATE"), change("project", "1", "UPDATE")]).await;
    update(&server, "project", "2").await;
    assert_eq!(ids(&client.until("2").await), ["2"]);
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_its_connections_at_once_and_nothing_more_is_told() {
    let server = closed().await;
    let mut alice = Client::with_token(&server, &token(&server, "alice")).await;
    let mut bob = Client::with_token(&server, &token(&server, "bob")).await;
    for client in [&mut alice, &mut bob] {
        client.subscribe("project", &[]).await;
    }
    let revoke = server.post("/v1/app/revocations").bearer_auth(token(&server, "carol"));
    let revoked = revoke.json(&json!({ "user": "alice" })).send().await.expect("an answer");
    let revoked: Value = revoked.json().await.expect("JSON");
    assert_eq!(revoked["connections"], 1, "{revoked}");
    update(&server, "project", "1").await;
    assert_eq!(ids(&bob.changes("project").await), ["1"]);
    assert_eq!(alice.closed().await, (4401, "Token revoked".into()));
}

#[tokio::test]
async fn a_token_that_is_revoked_in_the_middle_of_a_burst_hears_nothing_after_it() {
    let server = closed().await;
    let mut alice = Client::with_token(&server, &token(&server, "alice")).await;
    alice.subscribe("project", &[]).await;
    let (url, publisher) = (server.url("/v1/app/changes"), token(&server, "publisher"));
    let burst = tokio::spawn({
        let (url, publisher) = (url.clone(), publisher.clone());
        async move {
            let client = http::Client::new();
            for n in 0..200 {
                let body = json!([change("project", &format!("burst-{n}"), "UPDATE")]);
                let answer = client.post(&url).bearer_auth(&publisher).json(&body).send().await;
                assert_eq!(answer.expect("an answer").status(), 200);
            }
        }
    });
    alice.until("burst-5").await;
    let revoke = server.post("/v1/app/revocations").bearer_auth(&publisher);
    let revoked = revoke.json(&json!({ "user": "alice" })).send().await.expect("an answer");
    assert_eq!(revoked.status(), 200);
    update(&server, "project", "after").await;
    loop {
        match alice.frame().await {
            Heard::Message(message) => {
                assert!(!message.to_string().contains("after"), "told after it was revoked: {message}");
            }
            Heard::Close(code, reason) => break assert_eq!((code, &*reason), (4401, "Token revoked")),
            Heard::Gone => panic!("it is told why"),
        }
    }
    burst.await.expect("all were published");
}
