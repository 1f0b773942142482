//! Who hears what: subscribe, unsubscribe, look.

use super::*;
use tidings_testing::http;

#[tokio::test]
async fn what_is_published_is_in_the_stream_of_every_subscriber_and_of_nobody_else() {
    for server in both_stores().await {
        for source in ["news", "sport"] {
            create(&server, source, "text/plain").await;
        }
        for (session, source) in [("alice", "news"), ("bob", "news"), ("alice", "sport"), ("carol", "sport")]
        {
            subscribe(&server, session, source).await;
        }
        assert_eq!(publish(&server, "news", "one,").await, inline(2));
        assert_eq!(publish(&server, "sport", "two,").await, inline(2));
        assert_eq!(publish(&server, "news", "three,").await, inline(2));
        assert_eq!(content(&server, "alice").await, "one,two,three,");
        assert_eq!(content(&server, "session:alice").await, "one,two,three,");
        assert_eq!(content(&server, "bob").await, "one,three,");
        assert_eq!(content(&server, "carol").await, "two,");
        assert_eq!(content(&server, "news").await, "one,three,");
    }
}

#[tokio::test]
async fn subscribing_answers_as_the_seed_shows_it() {
    let server = Harness::start().await;
    let path = "/v1/myapp/stream/chat-room-1";
    assert_eq!(answer(server.put(path).header("content-type", "application/json")).await.status(), 201);
    let subscribing = || {
        let pair = json!({ "sessionId": "user-alice", "streamId": "chat-room-1" });
        server.post("/v1/myapp/subscribe").json(&pair)
    };
    let first = answer(subscribing()).await;
    assert_eq!(first.status(), 201);
    let expires_at = server.clock.now().as_millis() + 1_800_000;
    let expected = |is_new: bool, expires_at: u64| {
        json!({
            "sessionId": "user-alice",
            "streamId": "chat-room-1",
            "sessionStreamPath": "/v1/myapp/stream/user-alice",
            "expiresAt": expires_at,
            "isNewSession": is_new,
        })
    };
    assert_eq!(body(first).await, expected(true, expires_at));
    server.clock.advance(Duration::from_secs(60));
    let again = answer(subscribing()).await;
    assert_eq!(again.status(), 200);
    assert_eq!(body(again).await, expected(false, expires_at + 60_000));
}

#[tokio::test]
async fn a_session_tells_what_it_hears_and_since_when() {
    let server = Harness::start().await;
    for source in ["b", "a"] {
        create(&server, source, "application/json; charset=utf-8").await;
    }
    let began = server.clock.now().as_millis();
    subscribe(&server, "alice", "b").await;
    server.clock.advance(Duration::from_secs(5));
    let pair = json!({ "sessionId": "alice", "streamId": "a", "envelope": true });
    assert_eq!(answer(server.post("/v1/app/subscribe").json(&pair)).await.status(), 200);
    server.clock.advance(Duration::from_secs(5));
    // Once more: nothing changes but the expiry.
    subscribe(&server, "alice", "b").await;
    subscribe(&server, "alice", "a").await;
    let expected = json!({
        "sessionId": "alice",
        "sessionStreamPath": "/v1/app/stream/alice",
        "expiresAt": began + 1_810_000,
        "contentType": "application/json; charset=utf-8",
        "subscriptions": [
            { "streamId": "b", "subscribedAt": began, "envelope": false },
            { "streamId": "a", "subscribedAt": began + 5000, "envelope": true },
        ],
    });
    assert_eq!(session(&server, "alice").await, expected);
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(session(&server, "alice").await, expected, "looking does not renew it");
    assert_eq!(
        refused(server.request(Method::GET, "/v1/app/session/nobody"), 404).await,
        "session_not_found"
    );
    assert_eq!(refused(server.request(Method::GET, "/v1/app/session/a"), 404).await, "session_not_found");
}

#[tokio::test]
async fn a_subscribe_that_is_refused_leaves_nothing_behind() {
    let server = Harness::start().await;
    create(&server, "text", "text/plain").await;
    create(&server, "json", "application/json").await;
    assert_eq!(refused(subscribing(&server, "alice", "nowhere"), 404).await, "stream_not_found");
    assert_eq!(status(&server, "/v1/app/session/alice").await, 404);
    assert_eq!(status(&server, "/v1/app/stream/alice").await, 404);
    let pair = json!({ "sessionId": "alice", "streamId": "text", "envelope": true });
    let refusal = refused(server.post("/v1/app/subscribe").json(&pair), 400).await;
    assert_eq!(refusal, "envelope_needs_json");
    assert_eq!(status(&server, "/v1/app/session/alice").await, 404);
    subscribe(&server, "alice", "json").await;
    let mismatch = answer(subscribing(&server, "alice", "text")).await;
    assert_eq!(mismatch.status(), 409);
    let message = body(mismatch).await;
    assert_eq!(message["error"]["code"], "content_type_mismatch");
    let message = message["error"]["message"].as_str().expect("a message");
    assert!(message.contains("application/json") && message.contains("text/plain"), "{message}");
    assert_eq!(session(&server, "alice").await["subscriptions"].as_array().expect("a list").len(), 1);
    assert_eq!(publish(&server, "text", "x").await, inline(0));
    create(&server, "more-json", "application/json;charset=utf-8").await;
    subscribe(&server, "alice", "more-json").await;
    assert_eq!(session(&server, "alice").await["contentType"], "application/json");
}

#[tokio::test]
async fn sessions_and_streams_are_kept_apart() {
    let server = Harness::start().await;
    create(&server, "news", "text/plain").await;
    create(&server, "plain", "text/plain").await;
    subscribe(&server, "alice", "news").await;
    assert_eq!(refused(subscribing(&server, "plain", "news"), 409).await, "stream_exists");
    for source in ["alice", "session:alice"] {
        assert_eq!(refused(subscribing(&server, "bob", source), 400).await, "source_is_session");
        assert_eq!(refused(subscribing(&server, "alice", source), 400).await, "source_is_session");
    }
    let append = |path: &str| server.post(path).header("content-type", "text/plain").body("x");
    for path in ["/v1/app/stream/alice", "/v1/app/stream/session:alice", "/v1/app/publish/alice"] {
        assert_eq!(refused(append(path), 403).await, "session_stream", "{path}");
    }
    let put = server.put("/v1/app/stream/session:bob").header("content-type", "text/plain");
    assert_eq!(refused(put, 400).await, "reserved_id");
    // A session may be closed, and deleted, through its stream.
    let close = server.post("/v1/app/stream/alice").header("stream-closed", "true");
    assert_eq!(answer(close).await.status(), 204);
    let deleted = server.request(Method::DELETE, "/v1/app/stream/session:alice");
    assert_eq!(answer(deleted).await.status(), 204);
    assert_eq!(status(&server, "/v1/app/session/alice").await, 404);
    assert_eq!(publish(&server, "news", "x").await, inline(0));
}

#[tokio::test]
async fn reserved_ids_are_refused_by_every_way_in() {
    let server = Harness::start().await;
    create(&server, "news", "text/plain").await;
    let put = |id: &str| server.put(&format!("/v1/app/stream/{id}")).header("content-type", "text/plain");
    for id in ["__ds", "__ds/x", "session:x"] {
        assert_eq!(refused(put(id), 400).await, "reserved_id", "{id}");
        let fork = put(id).header("stream-forked-from", "/v1/app/stream/news");
        assert_eq!(refused(fork, 400).await, "reserved_id", "{id}");
        assert_eq!(status(&server, &format!("/v1/app/stream/{id}")).await, 404, "{id}");
        refused(publishing(&server, id, "x"), 404).await;
    }
    assert_eq!(refused(subscribing(&server, "__ds", "news"), 400).await, "reserved_id");
    assert_eq!(refused(unsubscribing(&server, "__ds", "news"), 400).await, "reserved_id");
    for path in ["/v1/app/session/__ds", "/v1/app/session/__ds/touch"] {
        let method = if path.ends_with("touch") { Method::POST } else { Method::GET };
        assert_eq!(refused(server.request(method, path), 400).await, "reserved_id", "{path}");
    }
    for id in [".", "..", "%2e", "%2E%2e", ".%2e"] {
        assert_eq!(refused(subscribing(&server, id, "news"), 400).await, "invalid_session_id", "{id}");
        assert_eq!(refused(unsubscribing(&server, id, "news"), 400).await, "invalid_session_id", "{id}");
    }
    for id in ["...", ".a", "a..", "%2e%2e%2e"] {
        let path =
            subscribe(&server, id, "news").await["sessionStreamPath"].as_str().expect("text").to_owned();
        assert_eq!(status(&server, &path).await, 200, "{path}");
    }
    let listed = body(server.get("/v1/app/streams?sessions=true").await).await;
    let ids: Vec<_> = listed["streams"].as_array().expect("a list").iter().map(|one| &one["id"]).collect();
    assert_eq!(ids, ["%2e%2e%2e", "...", ".a", "a..", "news"]);
}

#[tokio::test]
async fn a_project_has_so_many_sessions() {
    for store in [TestStore::Memory, TestStore::Embedded] {
        let sessions = tidings_sessions::Options { max_per_project: 3, ..Default::default() };
        let server = Harness::with(Setup { sessions, store, ..Setup::default() }).await;
        create(&server, "news", "text/plain").await;
        let all = (0..12).map(|n| subscribing(&server, &format!("s{n}"), "news").send());
        let all = futures_util::future::join_all(all).await;
        let begun = all.iter().filter(|one| one.as_ref().is_ok_and(|one| one.status() == 201)).count();
        assert!(begun <= 3, "{begun} at the same time");
        for n in 0..3 {
            subscribe(&server, &format!("s{n}"), "news").await;
            // Those that came first among the twelve are in the way.
            if publish(&server, "news", "x").await.1 == 3 {
                break;
            }
        }
        assert_eq!(publish(&server, "news", "x").await, inline(3));
        assert_eq!(refused(subscribing(&server, "more", "news"), 429).await, "too_many_sessions");
        let hits = server.metric("tidings_limit_hits_total{limit=\"sessions_per_project\"}");
        assert!(hits.is_some_and(|hits| hits >= 1.0), "{hits:?}");
        let put = server.put("/v1/other/stream/news").header("content-type", "text/plain");
        assert_eq!(answer(put).await.status(), 201);
        let pair = json!({ "sessionId": "more", "streamId": "news" });
        assert_eq!(
            answer(server.post("/v1/other/subscribe").json(&pair)).await.status(),
            201,
            "its own count"
        );
        let server = if matches!(store, TestStore::Embedded) { server.restart().await } else { server };
        assert_eq!(refused(subscribing(&server, "more", "news"), 429).await, "too_many_sessions");
        let listed = body(server.get("/v1/app/streams?sessions=true&prefix=s").await).await;
        let one = listed["streams"][0]["id"].as_str().expect("an id").to_owned();
        let ended = server.request(Method::DELETE, &format!("/v1/app/session/{one}"));
        assert_eq!(answer(ended).await.status(), 204);
        assert_eq!(subscribe(&server, "more", "news").await["isNewSession"], true);
    }
}

#[tokio::test]
async fn ids_of_sessions_and_streams_are_checked() {
    let server = Harness::start().await;
    create(&server, "news:eu.1_x-2", "text/plain").await;
    create(&server, "deep/er/b%C3%A4r", "text/plain").await;
    subscribe(&server, "123e4567-e89b-12d3-a456-426614174000", "news:eu.1_x-2").await;
    let answered = subscribe(&server, "al ice", "deep/er/bär").await;
    assert_eq!(answered["sessionStreamPath"], "/v1/app/stream/al%20ice");
    assert_eq!(publish(&server, "deep/er/b%C3%A4r", "x").await, inline(1));
    assert_eq!(content(&server, "al%20ice").await, "x");
    let long = "x".repeat(513);
    for bad in ["", "a/b", "session:a", "a\nb", &long] {
        refused(subscribing(&server, bad, "news:eu.1_x-2"), 400).await;
        refused(unsubscribing(&server, bad, "news:eu.1_x-2"), 400).await;
    }
    for bad in ["", "a\u{0}b", &long] {
        refused(subscribing(&server, "alice", bad), 400).await;
    }
    for path in ["/v1/app/session/a%2Fb", "/v1/app/session/session:a", "/v1/app/session/a%0Ab"] {
        refused(server.request(Method::GET, path), 400).await;
        refused(server.request(Method::DELETE, path), 400).await;
        refused(server.post(&format!("{path}/touch")), 400).await;
    }
    refused(server.post("/v1/a%20b/subscribe").json(&json!({ "sessionId": "a", "streamId": "b" })), 400)
        .await;
    for bad in [
        "",
        "{",
        "[]",
        "7",
        r#"{"sessionId":"a"}"#,
        r#"{"streamId":"a"}"#,
        r#"{"sessionId":1,"streamId":"a"}"#,
    ] {
        let subscribe = server.post("/v1/app/subscribe").body(bad);
        assert_eq!(refused(subscribe, 400).await, "invalid_json", "{bad}");
        let unsubscribe = server.request(Method::DELETE, "/v1/app/unsubscribe").body(bad);
        assert_eq!(refused(unsubscribe, 400).await, "invalid_json", "{bad}");
    }
    let large = server.post("/v1/app/subscribe").body(" ".repeat(20_000));
    assert_eq!(answer(large).await.status(), 413);
}

#[tokio::test]
async fn uuids_can_be_required() {
    let server = server_with(tidings_sessions::Options { require_uuid: true, ..Default::default() }).await;
    create(&server, "news", "text/plain").await;
    let uuid = "123e4567-e89b-12d3-a456-426614174000";
    assert_eq!(subscribe(&server, uuid, "news").await["isNewSession"], true);
    assert_eq!(session(&server, uuid).await["sessionId"], uuid);
    for refusal in [
        subscribing(&server, "user-alice", "news"),
        unsubscribing(&server, "user-alice", "news"),
        server.request(Method::GET, "/v1/app/session/user-alice"),
        server.request(Method::DELETE, "/v1/app/session/user-alice"),
        server.post("/v1/app/session/user-alice/touch"),
    ] {
        assert_eq!(refused(refusal, 400).await, "invalid_session_id");
    }
}

#[tokio::test]
async fn a_session_stops_to_hear_what_it_unsubscribes() {
    for server in both_stores().await {
        for source in ["news", "sport"] {
            create(&server, source, "text/plain").await;
            subscribe(&server, "alice", source).await;
        }
        subscribe(&server, "bob", "news").await;
        publish(&server, "news", "before,").await;
        assert_eq!(answer(unsubscribing(&server, "alice", "news")).await.status(), 204);
        assert_eq!(publish(&server, "news", "after,").await, inline(1));
        assert_eq!(publish(&server, "sport", "goal,").await, inline(1));
        assert_eq!(content(&server, "alice").await, "before,goal,");
        assert_eq!(content(&server, "bob").await, "before,after,");
        let left = session(&server, "alice").await;
        assert_eq!(left["subscriptions"].as_array().expect("a list").len(), 1);
        assert_eq!(left["subscriptions"][0]["streamId"], "sport");
        for (session, source) in [("alice", "news"), ("alice", "nowhere"), ("nobody", "news")] {
            assert_eq!(answer(unsubscribing(&server, session, source)).await.status(), 204);
        }
        subscribe(&server, "alice", "news").await;
        publish(&server, "news", "again,").await;
        assert_eq!(content(&server, "alice").await, "before,goal,again,");
    }
}

#[tokio::test]
async fn projects_have_sessions_and_subscribers_of_their_own() {
    let server = Harness::start().await;
    for project in ["one", "two"] {
        let path = format!("/v1/{project}/stream/news");
        server.create_text(&path).await;
        let pair = json!({ "sessionId": "alice", "streamId": "news" });
        let subscribed = answer(server.post(&format!("/v1/{project}/subscribe")).json(&pair)).await;
        assert_eq!(subscribed.status(), 201);
    }
    let publish = server.post("/v1/one/publish/news").header("content-type", "text/plain").body("x");
    assert_eq!(told(&answer(publish).await), inline(1));
    let read = |project: &str| server.url(&format!("/v1/{project}/stream/alice?offset=-1"));
    assert_eq!(http::get(read("one")).await.expect("an answer").text().await.expect("text"), "x");
    assert_eq!(http::get(read("two")).await.expect("an answer").text().await.expect("text"), "");
    let other = server.request(Method::DELETE, "/v1/two/session/alice");
    assert_eq!(answer(other).await.status(), 204);
    assert_eq!(status(&server, "/v1/one/session/alice").await, 200);
}

#[tokio::test]
async fn a_deleted_source_takes_its_subscriptions_with_it_and_leaves_what_it_delivered() {
    for server in both_stores().await {
        create(&server, "news", "text/plain").await;
        for session in ["alice", "bob"] {
            subscribe(&server, session, "news").await;
        }
        publish(&server, "news", "kept").await;
        let deleted = server.request(Method::DELETE, "/v1/app/stream/news");
        assert_eq!(answer(deleted).await.status(), 204);
        for name in ["alice", "bob"] {
            assert_eq!(session(&server, name).await["subscriptions"], json!([]));
            assert_eq!(content(&server, name).await, "kept");
        }
        create(&server, "news", "text/plain").await;
        assert_eq!(publish(&server, "news", "new life").await, inline(0));
        assert_eq!(content(&server, "alice").await, "kept");
    }
}

#[tokio::test]
async fn the_list_of_streams_has_sessions_only_when_asked() {
    let server = Harness::start().await;
    create(&server, "news", "text/plain").await;
    subscribe(&server, "alice", "news").await;
    let ids = async |query: &str| {
        let listed = body(server.get(&format!("/v1/app/streams{query}")).await).await;
        let streams = listed["streams"].as_array().expect("a list").clone();
        streams.iter().map(|stream| stream["id"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("").await, ["news"]);
    assert_eq!(ids("?sessions=false").await, ["news"]);
    assert_eq!(ids("?sessions=true").await, ["alice", "news"]);
}

use std::time::Duration;

use tidings_engine::Clock;
