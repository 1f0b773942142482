//! How long a session lives, what keeps it alive, what ends it, and what is counted.

use std::time::Duration;

use tidings_engine::Clock;
use tidings_sessions::Options;
use tidings_testing::sse::Events;
use tidings_testing::{SLEEPERS, until};

use super::*;

const TTL: Duration = Duration::from_secs(1800);

fn event(server: &Harness, category: &str, event: &str, error: &str) -> f64 {
    let labels = format!("category=\"{category}\",event=\"{event}\",error=\"{error}\"");
    server.metric(&format!("tidings_events_total{{{labels}}}")).unwrap_or_default()
}

/// Lets so much time pass, and waits until sessions have been cleaned up.
async fn advance_through_clean_up(server: &Harness, time: Duration) {
    let before = event(server, "cleanup", "cleanup_batch", "");
    server.clock.advance(time);
    until("sessions are cleaned up", || event(server, "cleanup", "cleanup_batch", "") > before).await;
}

async fn alice_hears_news(server: &Harness) {
    create(server, "news", "text/plain").await;
    subscribe(server, "alice", "news").await;
}

async fn touch(server: &Harness, session: &str) -> Response {
    answer(server.post(&format!("/v1/app/session/{session}/touch"))).await
}

#[tokio::test]
async fn a_session_that_nobody_uses_is_gone_after_half_an_hour_and_begins_anew() {
    for server in both_stores().await {
        alice_hears_news(&server).await;
        publish(&server, "news", "old").await;
        server.clock.advance(TTL - Duration::from_millis(1));
        assert_eq!(status(&server, "/v1/app/session/alice").await, 200);
        server.clock.advance(Duration::from_millis(1));
        for path in ["/v1/app/session/alice", "/v1/app/stream/alice", "/v1/app/stream/session:alice"] {
            assert_eq!(status(&server, path).await, 404, "{path}");
        }
        assert_eq!(touch(&server, "alice").await.status(), 404);
        assert_eq!(touch(&server, "nobody").await.status(), 404);
        assert_eq!(subscribe(&server, "alice", "news").await["isNewSession"], true);
        assert_eq!(content(&server, "alice").await, "", "nothing of the old one is left");
        assert_eq!(publish(&server, "news", "new").await, inline(1));
        assert_eq!(content(&server, "alice").await, "new");
    }
}

#[tokio::test]
async fn the_time_to_live_can_be_set() {
    let server = server_with(Options { ttl: Duration::from_secs(10), ..Options::default() }).await;
    create(&server, "news", "text/plain").await;
    let expires_at = subscribe(&server, "alice", "news").await["expiresAt"].as_u64().expect("a number");
    assert_eq!(expires_at, server.clock.now().as_millis() + 10_000);
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(status(&server, "/v1/app/session/alice").await, 404);
}

#[tokio::test]
async fn touching_and_subscribing_really_extend_it() {
    let server = Harness::start().await;
    alice_hears_news(&server).await;
    server.clock.advance(Duration::from_secs(1000));
    let touched = touch(&server, "alice").await;
    assert_eq!(touched.status(), 200);
    let expires_at = server.clock.now().as_millis() + 1_800_000;
    assert_eq!(body(touched).await, json!({ "sessionId": "alice", "expiresAt": expires_at }));
    server.clock.advance(Duration::from_secs(1799));
    assert_eq!(session(&server, "alice").await["expiresAt"], expires_at);
    subscribe(&server, "alice", "news").await;
    server.clock.advance(Duration::from_secs(1799));
    assert_eq!(status(&server, "/v1/app/session/alice").await, 200);
}

#[tokio::test]
async fn reading_extends_it_and_looking_does_not() {
    let server = Harness::start().await;
    alice_hears_news(&server).await;
    let expiry = async || session(&server, "alice").await["expiresAt"].as_u64().expect("a number");
    let first = expiry().await;
    server.clock.advance(Duration::from_millis(999));
    content(&server, "alice").await;
    assert_eq!(expiry().await, first, "not for less than a second");
    server.clock.advance(Duration::from_millis(1));
    content(&server, "alice").await;
    assert_eq!(expiry().await, first + 1000);
    server.clock.advance(Duration::from_secs(1000));
    assert_eq!(answer(server.request(Method::HEAD, "/v1/app/stream/alice")).await.status(), 200);
    assert_eq!(expiry().await, first + 1000);
    publish(&server, "news", "x").await;
    assert_eq!(expiry().await, first + 1000, "nor does what it hears");
}

#[tokio::test]
async fn a_clean_up_every_five_minutes_removes_what_has_expired_from_both_sides() {
    for server in both_stores().await {
        for source in ["news", "sport"] {
            create(&server, source, "text/plain").await;
            for session in ["alice", "bob"] {
                subscribe(&server, session, source).await;
            }
        }
        advance_through_clean_up(&server, Duration::from_secs(300)).await;
        assert_eq!(event(&server, "session", "session_expire", ""), 0.0);
        server.clock.advance(Duration::from_secs(1000));
        assert_eq!(touch(&server, "bob").await.status(), 200);
        advance_through_clean_up(&server, Duration::from_secs(800)).await;
        until("alice is gone", || event(&server, "session", "session_expire", "") == 1.0).await;
        for source in ["news", "sport"] {
            assert_eq!(publish(&server, source, "x,").await, inline(1), "only bob is left");
        }
        assert_eq!(content(&server, "bob").await, "x,x,");
        let counted = |what: &str| server.metric(&format!("tidings_cleanup_total{{what=\"{what}\"}}"));
        assert_eq!(counted("sessions_expired"), Some(1.0));
        assert_eq!(counted("streams_deleted"), Some(1.0));
        assert_eq!(counted("subscriptions_removed"), Some(2.0));
        assert_eq!(counted("removals_failed"), Some(0.0));
        let time = "tidings_event_latency_seconds_count{category=\"cleanup\",event=\"cleanup_batch\"}";
        assert!(server.metric(time).is_some_and(|count| count >= 2.0));
    }
}

#[tokio::test]
async fn how_often_it_is_cleaned_up_can_be_set() {
    let options = Options {
        cleanup_interval: Duration::from_secs(7),
        ttl: Duration::from_secs(5),
        ..Options::default()
    };
    let server = server_with(options).await;
    alice_hears_news(&server).await;
    server.clock.advance(Duration::from_secs(6));
    assert_eq!(event(&server, "cleanup", "cleanup_batch", ""), 0.0);
    assert_eq!(event(&server, "session", "session_expire", ""), 0.0, "nobody has looked after it yet");
    advance_through_clean_up(&server, Duration::from_secs(1)).await;
    until("alice is gone", || event(&server, "session", "session_expire", "") == 1.0).await;
    assert_eq!(publish(&server, "news", "x").await, inline(0));
}

#[tokio::test]
async fn a_connected_reader_keeps_its_session_alive() {
    for live in ["sse", "long-poll"] {
        let mut setup = Setup::default();
        // So that it is one answer all the time.
        setup.streams.sse_duration = Duration::from_secs(1_000_000);
        setup.streams.long_poll_timeout = Duration::from_secs(1_000_000);
        let server = Harness::with(setup).await;
        alice_hears_news(&server).await;
        let path = format!("/v1/app/stream/alice?offset=-1&live={live}");
        let connected = if live == "sse" {
            let mut events = Events::of(server.get(&path).await);
            let up_to_date = events.next().await;
            assert!(up_to_date.is_some_and(|event| event.name == "control"));
            Connected::Sse(Box::new(events))
        } else {
            let poll = server.request(Method::GET, &path);
            Connected::Poll(tokio::spawn(async move { poll.send().await.expect("an answer") }))
        };
        until("the reader listens", || server.server().channels().len() == 1).await;
        for _ in 0..5 {
            advance_through_clean_up(&server, Duration::from_secs(1000)).await;
            assert_eq!(status(&server, "/v1/app/session/alice").await, 200, "{live}");
        }
        advance_through_clean_up(&server, Duration::from_secs(100_000)).await;
        let expires_at = session(&server, "alice").await["expiresAt"].as_u64().expect("a number");
        assert!(expires_at > server.clock.now().as_millis(), "{live}: it never looks expired");
        assert_eq!(publish(&server, "news", "still there").await, inline(1), "{live}");
        drop(connected);
        until("the reader has gone", || server.server().channels().is_empty()).await;
        advance_through_clean_up(&server, TTL).await;
        assert_eq!(status(&server, "/v1/app/session/alice").await, 404, "{live}");
    }
}

#[tokio::test]
async fn a_connected_websocket_keeps_its_session_alive() {
    let ttl = Duration::from_secs(10);
    let server = server_with(Options { ttl, ..Options::default() }).await;
    alice_hears_news(&server).await;
    let url = server.url("/v1/app/stream/alice?offset=-1&live=websocket").replace("http://", "ws://");
    let (client, _) = tokio_tungstenite::connect_async(url).await.expect("a WebSocket");
    until("the reader listens", || server.server().channels().len() == 1).await;
    // Second by second: who has been silent for too long when the server asks is cut off.
    for _ in 0..3 * ttl.as_secs() {
        until("the server asks", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(Duration::from_secs(1));
        assert_eq!(status(&server, "/v1/app/session/alice").await, 200);
    }
    drop(client);
    until("the reader has gone", || server.server().channels().is_empty()).await;
    server.clock.advance(2 * ttl);
    assert_eq!(status(&server, "/v1/app/session/alice").await, 404);
}

#[expect(dead_code, reason = "they are only held")]
enum Connected {
    Sse(Box<Events>),
    Poll(tokio::task::JoinHandle<Response>),
}

#[tokio::test]
async fn deleting_a_session_ends_its_stream_its_subscriptions_and_its_readers() {
    for server in both_stores().await {
        for source in ["news", "sport"] {
            create(&server, source, "text/plain").await;
            subscribe(&server, "alice", source).await;
        }
        let mut events = Events::of(server.get("/v1/app/stream/alice?offset=-1&live=sse").await);
        assert!(events.next().await.is_some());
        let delete = || server.request(Method::DELETE, "/v1/app/session/alice");
        assert_eq!(answer(delete()).await.status(), 204);
        while events.next().await.is_some() {}
        for path in ["/v1/app/session/alice", "/v1/app/stream/alice"] {
            assert_eq!(status(&server, path).await, 404);
        }
        for source in ["news", "sport"] {
            assert_eq!(publish(&server, source, "x").await, inline(0));
        }
        assert_eq!(refused(delete(), 404).await, "session_not_found");
        let plain = server.request(Method::DELETE, "/v1/app/session/news");
        assert_eq!(refused(plain, 404).await, "session_not_found", "a stream is no session");
        assert_eq!(content(&server, "news").await, "x");
    }
}

#[tokio::test]
async fn a_session_is_read_as_any_stream() {
    let server = Harness::start().await;
    alice_hears_news(&server).await;
    let mut events = Events::of(server.get("/v1/app/stream/session:alice?offset=-1&live=sse").await);
    assert!(events.next().await.is_some_and(|event| event.name == "control"));
    publish(&server, "news", "one").await;
    let heard = events.next().await.expect("an event");
    assert_eq!((heard.name.as_str(), heard.data.as_str()), ("data", "one"));
    let offset = events.next().await.expect("a control event").json()["streamNextOffset"].clone();
    let offset = offset.as_str().expect("an offset").to_owned();
    let poll = server.request(Method::GET, &format!("/v1/app/stream/alice?offset={offset}&live=long-poll"));
    let poll = tokio::spawn(async move { poll.send().await.expect("an answer") });
    until("both listen", || server.server().channels().len() == 2).await;
    publish(&server, "news", "two").await;
    let polled = poll.await.expect("no panic");
    assert_eq!(polled.status(), 200);
    assert_eq!(polled.text().await.expect("text"), "two");
    assert_eq!(events.next().await.expect("an event").data, "two");
    let caught_up = server.get(&format!("/v1/app/stream/alice?offset={offset}")).await;
    assert_eq!(caught_up.text().await.expect("text"), "two", "nothing is missed or repeated");
    let fork = server.put("/v1/app/stream/fork").header("stream-forked-from", "/v1/app/stream/session:alice");
    assert_eq!(answer(fork).await.status(), 201);
    assert_eq!(content(&server, "fork").await, "onetwo");
    server.append_text("/v1/app/stream/fork", "own").await;
    assert_eq!(content(&server, "fork").await, "onetwoown");
    assert_eq!(content(&server, "alice").await, "onetwo");
}

#[tokio::test]
async fn what_a_session_has_got_is_kept_for_so_long() {
    let options = Options { keep: Duration::from_secs(3600), ttl: 4 * TTL, ..Options::default() };
    let server = server_with(options).await;
    alice_hears_news(&server).await;
    publish(&server, "news", "old,").await;
    server.clock.advance(Duration::from_secs(3599));
    publish(&server, "news", "new,").await;
    assert_eq!(content(&server, "alice").await, "old,new,");
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(content(&server, "alice").await, "new,");
    assert_eq!(content(&server, "news").await, "old,new,", "the source keeps its own");
}

#[tokio::test]
async fn what_happens_is_counted() {
    let server = Harness::start().await;
    let all = |expected: [f64; 10]| {
        let counted = [
            event(&server, "subscription", "subscribe", ""),
            event(&server, "session", "session_create", ""),
            event(&server, "publish", "publish", ""),
            event(&server, "fanout", "fanout", ""),
            event(&server, "fanout", "fanout_queued", ""),
            event(&server, "publish_error", "publish_error", "not_found"),
            event(&server, "publish_error", "publish_error", "content_type"),
            event(&server, "session", "session_touch", ""),
            event(&server, "subscription", "unsubscribe", ""),
            event(&server, "session", "session_delete", ""),
        ];
        assert_eq!(counted, expected);
    };
    for source in ["news", "sport"] {
        create(&server, source, "text/plain").await;
        subscribe(&server, "alice", source).await;
    }
    all([2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    publish(&server, "news", "x").await;
    refused(publishing(&server, "nowhere", "x"), 404).await;
    let wrong = server.post("/v1/app/publish/news").header("content-type", "image/png").body("x");
    refused(wrong, 409).await;
    all([2.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0]);
    for n in 0..200 {
        subscribe(&server, &format!("s{n}"), "news").await;
    }
    publish(&server, "news", "x").await;
    touch(&server, "alice").await;
    answer(unsubscribing(&server, "alice", "sport")).await;
    answer(server.request(Method::DELETE, "/v1/app/session/alice")).await;
    all([202.0, 201.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    let time = "tidings_event_latency_seconds_count{category=\"publish\",event=\"publish\"}";
    assert_eq!(server.metric(time), Some(2.0));
    let http = "tidings_events_total{category=\"http\",event=\"POST /v1/{project}/subscribe\",error=\"\"}";
    assert_eq!(server.metric(http), Some(202.0));
    let requests =
        "tidings_http_requests_total{route=\"/v1/{project}/publish/{id}\",method=\"POST\",status=\"4xx\"}";
    assert_eq!(server.metric(requests), Some(2.0));
}
