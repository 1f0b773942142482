//! Failures: how long the client waits, what it keeps, when it stops.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_client::rooms::{BackoffReason, ConnectionState, MissedEvents, Reason, Stopped, Wire};

use crate::scene::*;

const PAUSE_LEAST: Duration = Duration::from_millis(250);
const PAUSE_MOST: Duration = Duration::from_millis(1000);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

async fn begin(setup: Setup) -> Scene {
    let mut scene = Scene::with(setup).await;
    scene.expect([disconnected(), connecting()]).await;
    scene
}

fn resuming(wire: Wire) -> Setup {
    Setup { last_seen: Some("01A"), ..Setup::on(wire) }
}

#[tokio::test]
async fn on_410_it_tells_of_the_skip_drops_its_cursor_and_begins_at_the_head() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        let detail = json!({"floor": "01E", "oldest": "01F", "head": "01G", "epoch": 1});
        let call = scene.call().await;
        assert_eq!(call.cursor(), Some("01A"));
        call.refuse(410, json!({"error": "CursorCompacted", "message": "gone", "detail": detail})).await;
        let skip = MissedEvents {
            name: "CursorCompacted".to_owned(),
            floor: Some(cursor("01E")),
            oldest: Some(cursor("01F")),
            head: Some(cursor("01G")),
        };
        scene.expect([Told::Skipped(skip), Told::Stored(None)]).await;
        assert_eq!(scene.wait().await, (BackoffReason::Skipped, PAUSE_LEAST));
        let call = scene.call().await;
        assert_eq!(call.cursor(), None);
        let mut flow = call.open().await;
        scene.expect([streaming()]).await;
        // The server announces it again, and the handler is not told twice.
        flow.info("compacted", "01G", detail.clone()).await;
        scene.expect([Told::Info(Reason::Compacted), Told::Stored(None), stored("01G")]).await;
        flow.message("01H").await;
        scene.expect([event("01H"), stored("01H")]).await;
        // A later skip is a new one.
        flow.info("compacted", "01K", detail).await;
        scene.expect([Told::Info(Reason::Compacted)]).await;
        assert!(matches!(scene.told().await, Told::Skipped(_)));
    }
}

#[tokio::test]
async fn a_410_to_a_client_without_a_cursor_is_trouble_like_any_other() {
    for wire in WIRES {
        let mut scene = begin(Setup::on(wire)).await;
        for wait in [500, 1000, 2000] {
            scene.call().await.refuse(410, json!({"error": "CursorCompacted"})).await;
            assert_eq!(scene.wait().await, (BackoffReason::Unavailable(410), millis(wait)));
        }
    }
}

#[tokio::test]
async fn on_409_it_waits_a_moment_and_comes_back_with_the_same_cursor() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        for (rng, wait) in [(0, PAUSE_LEAST), (100, PAUSE_MOST), (50, millis(625))] {
            scene.draw_at(rng);
            let call = scene.call().await;
            assert_eq!(call.cursor(), Some("01A"));
            call.refuse(409, json!({"error": "SlowConsumer", "message": "too slow"})).await;
            assert_eq!(scene.wait().await, (BackoffReason::SlowConsumer, wait));
        }
    }
}

#[tokio::test]
async fn told_that_it_is_slow_it_waits_a_moment_and_comes_back_with_the_same_cursor() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        scene.draw_at(100);
        flow.message("01B").await;
        flow.info(
            "slow-consumer",
            "01B",
            json!({"status": 409, "resume": "01B", "lag": 9, "retryAfter": 0.4}),
        )
        .await;
        scene.expect([event("01B"), stored("01B"), Told::Info(Reason::SlowConsumer)]).await;
        assert_eq!(scene.wait().await, (BackoffReason::SlowConsumer, PAUSE_MOST));
        assert_eq!(scene.call().await.cursor(), Some("01B"));
    }
}

#[tokio::test]
async fn a_server_that_stops_is_come_back_to_after_the_time_it_says() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(resuming(wire)).await;
        flow.info("server-restart", "01A", json!({"retryAfter": 2.25})).await;
        scene.expect([Told::Info(Reason::ServerRestart)]).await;
        assert_eq!(scene.wait().await, (BackoffReason::ServerRestart, millis(2250)));
        assert_eq!(scene.call().await.cursor(), Some("01A"));
    }
}

#[tokio::test]
async fn a_retry_after_is_waited_for() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.call().await.refuse(409, json!({"error": "SlowConsumer", "retryAfter": 1.5})).await;
        assert_eq!(scene.wait().await, (BackoffReason::SlowConsumer, millis(1500)));
        // The header has whole seconds, for clients that do not read the body.
        scene.call().await.refuse_with(503, "retry-after: 7\r\n", json!({})).await;
        assert_eq!(scene.wait().await, (BackoffReason::Unavailable(503), millis(7000)));
        let both = json!({"error": "TooManyStreams", "retryAfter": 6.5});
        scene.call().await.refuse_with(429, "retry-after: 7\r\n", both).await;
        assert_eq!(scene.wait().await, (BackoffReason::Unavailable(429), millis(6500)));
        // It does not shorten a longer wait of the client's own.
        scene.draw_at(100);
        scene.call().await.refuse(503, json!({"retryAfter": 0.1})).await;
        assert_eq!(scene.wait().await, (BackoffReason::Unavailable(503), millis(4000)));
        scene.call().await.refuse(409, json!({"retryAfter": 86_400})).await;
        assert_eq!(scene.wait().await, (BackoffReason::SlowConsumer, millis(300_000)), "but not for a day");
    }
}

#[tokio::test]
async fn what_retry_says_is_the_least_wait_from_then_on() {
    let (mut scene, mut flow) = Scene::streaming(Setup::on(Wire::Sse)).await;
    flow.raw("retry: 900\n\n").await;
    flow.end().await;
    assert_eq!(scene.wait().await, (BackoffReason::Ended, millis(900)));
    let mut flow = scene.call().await.open().await;
    scene.expect([streaming()]).await;
    flow.raw("retry: 0\n\n").await;
    flow.end().await;
    assert_eq!(scene.wait().await, (BackoffReason::Ended, PAUSE_LEAST), "but nothing makes it hurry");
}

#[tokio::test]
async fn a_network_error_is_waited_for_longer_each_time_but_not_longer_than_half_a_minute() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.draw_at(100);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            // Closes the connection without a response.
            assert_eq!(scene.call().await.cursor(), Some("01A"));
            let (why, wait) = scene.wait().await;
            assert!(matches!(why, BackoffReason::Network(_)), "{why:?}");
            assert_eq!(wait, Duration::from_secs(seconds));
        }
        scene.draw_at(0);
        drop(scene.call().await);
        assert_eq!(scene.wait().await.1, Duration::from_secs(15), "and rng takes up to half of it");
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_network_error() {
    for wire in WIRES {
        let mut scene = begin(Setup::on(wire)).await;
        scene.stop_listening();
        let Told::State(ConnectionState::Backoff { why, .. }) = scene.told().await else {
            panic!("it waits")
        };
        assert!(matches!(why, BackoffReason::Network(_)), "{why:?}");
    }
}

#[tokio::test]
async fn a_5xx_is_waited_for_longer_each_time_and_the_cursor_is_kept() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.draw_at(100);
        for (status, seconds) in [(503, 1), (500, 2), (502, 4), (504, 8)] {
            let call = scene.call().await;
            assert_eq!(call.cursor(), Some("01A"));
            call.refuse(status, json!({"error": "Unavailable", "message": "later"})).await;
            assert_eq!(
                scene.wait().await,
                (BackoffReason::Unavailable(status), Duration::from_secs(seconds))
            );
        }
    }
}

#[tokio::test]
async fn it_never_comes_back_without_a_wait() {
    let refusals = [401, 409, 410, 429, 500, 503];
    for wire in WIRES {
        for status in refusals {
            let mut scene = begin(resuming(wire)).await;
            scene.call().await.refuse(status, json!({"retryAfter": 0})).await;
            waits(&mut scene, &format!("{status}")).await;
        }
        for reason in ["slow-consumer", "server-restart", "token-expired"] {
            let (mut scene, mut flow) = Scene::streaming(resuming(wire)).await;
            flow.info(reason, "01A", json!({"retryAfter": 0})).await;
            waits(&mut scene, reason).await;
        }
        let (mut scene, flow) = Scene::streaming(resuming(wire)).await;
        flow.end().await;
        waits(&mut scene, "the end").await;
        let (mut scene, flow) = Scene::streaming(resuming(wire)).await;
        flow.cut("01B").await;
        waits(&mut scene, "a cut").await;
    }
    for code in [1000, 1001, 1011, 1012, 1013, 4401, 4409, 4410] {
        let (mut scene, flow) = Scene::streaming(resuming(Wire::WebSocket)).await;
        flow.close(code).await;
        waits(&mut scene, &format!("{code}")).await;
    }
}

/// Asserts that the client waits at least a quarter of a second, and does not connect before that.
async fn waits(scene: &mut Scene, after: &str) {
    loop {
        match scene.told().await {
            Told::State(ConnectionState::Backoff { wait, .. }) => {
                assert!(wait >= PAUSE_LEAST, "after {after}: {wait:?}");
                scene.pass(wait).await;
                return scene.expect([connecting()]).await;
            }
            Told::State(ConnectionState::Connecting) => panic!("no wait after {after}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn on_403_it_stops() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.call().await.refuse(403, json!({"error": "NotMember", "message": "not yours"})).await;
        let stopped = scene.stopped().await;
        assert!(matches!(&stopped, Stopped::Forbidden(refusal) if refusal.error == "NotMember"), "{stopped}");
        assert_eq!(stopped.to_string(), "the room is closed to this reader: 403 NotMember: not yours");
    }
}

#[tokio::test]
async fn a_member_that_is_removed_stops() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.info("membership-revoked", "01A", json!({"status": 403})).await;
        scene.expect([Told::Info(Reason::MembershipRevoked)]).await;
        assert!(matches!(scene.stopped().await, Stopped::Forbidden(_)));
    }
    let (scene, flow) = Scene::streaming(Setup::on(Wire::WebSocket)).await;
    flow.close(4403).await;
    assert!(matches!(scene.stopped().await, Stopped::Forbidden(_)));
}

#[tokio::test]
async fn on_401_it_gets_a_new_token_once() {
    let refusal = json!({"error": "TokenExpired", "message": "too old"});
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.call().await.refuse(401, refusal.clone()).await;
        scene.expect([Told::Refreshed]).await;
        assert_eq!(scene.wait().await, (BackoffReason::TokenRefused, PAUSE_LEAST));
        let call = scene.call().await;
        assert_eq!((call.header("authorization"), call.cursor()), (Some("Bearer token-2"), Some("01A")));
        call.refuse(401, refusal.clone()).await;
        let stopped = scene.stopped().await;
        assert!(
            matches!(&stopped, Stopped::Unauthorized(refusal) if refusal.error == "TokenExpired"),
            "{stopped}"
        );
    }
}

#[tokio::test]
async fn a_token_that_expires_in_a_stream_is_replaced_as_often_as_streams_last() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(resuming(wire)).await;
        for token in ["Bearer token-2", "Bearer token-3"] {
            scene.pass(Duration::from_secs(10)).await;
            flow.info("token-expired", "01A", json!({"status": 401})).await;
            scene.expect([Told::Info(Reason::TokenExpired), Told::Refreshed]).await;
            assert_eq!(scene.wait().await.0, BackoffReason::TokenRefused);
            let call = scene.call().await;
            assert_eq!(call.header("authorization"), Some(token));
            flow = call.open().await;
            scene.expect([streaming()]).await;
        }
        flow.info("token-expired", "01A", json!({"status": 401})).await;
        scene.expect([Told::Info(Reason::TokenExpired)]).await;
        assert!(
            matches!(scene.stopped().await, Stopped::Unauthorized(_)),
            "a new one that lasts no time is none"
        );
    }
}

#[tokio::test]
async fn without_a_new_token_a_401_stops_it() {
    for wire in WIRES {
        let mut scene = begin(Setup { tokens: 0, ..resuming(wire) }).await;
        scene.call().await.refuse(401, json!({"error": "AuthRequired"})).await;
        assert!(matches!(scene.stopped().await, Stopped::Unauthorized(_)));
    }
}

#[tokio::test]
async fn a_request_that_is_refused_for_itself_stops_it() {
    for wire in WIRES {
        for status in [400, 404, 307, 426] {
            let mut scene = begin(resuming(wire)).await;
            scene.call().await.refuse(status, json!({"error": "InvalidCursor"})).await;
            let stopped = scene.stopped().await;
            assert!(matches!(&stopped, Stopped::Refused(refusal) if refusal.status == status), "{stopped}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_no_stream_is_trouble_that_may_pass() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.call().await.refuse(200, json!("please log in to the hotel's network")).await;
        assert_eq!(scene.wait().await, (BackoffReason::Unavailable(200), millis(500)));
    }
}

#[tokio::test]
async fn the_wait_grows_on_until_a_stream_has_lasted_ten_seconds() {
    for wire in WIRES {
        let mut scene = begin(resuming(wire)).await;
        scene.draw_at(100);
        for (lasts, wait) in [(0, 1), (9_999, 2), (9_999, 4), (10_000, 1), (0, 2)] {
            let mut flow = scene.call().await.open().await;
            scene.expect([streaming()]).await;
            if lasts > 0 {
                scene.pass(millis(lasts)).await;
            }
            flow.info("caught-up", "01A", Value::Null).await;
            scene.expect([Told::Info(Reason::CaughtUp)]).await;
            flow.cut("01B").await;
            assert_eq!(scene.wait().await.1, Duration::from_secs(wait), "after {lasts} ms");
        }
    }
}

#[tokio::test]
async fn a_server_without_a_sign_for_two_and_a_half_heartbeats_is_left() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(resuming(wire)).await;
        for _ in 0..3 {
            scene.pass(millis(37_499)).await;
            scene.heartbeat(&mut flow).await;
        }
        flow.message("01B").await;
        scene.expect([event("01B"), stored("01B")]).await;
        scene.pass(millis(37_500)).await;
        let (why, _) = scene.wait().await;
        assert_eq!(why, BackoffReason::Network("the server has said nothing for 37.5 s".to_owned()));
        flow.gone().await;
        // A server that accepts the connection and does not answer is left as well.
        let call = scene.call().await;
        assert_eq!(call.cursor(), Some("01B"));
        scene.pass(millis(37_500)).await;
        assert!(matches!(scene.wait().await.0, BackoffReason::Network(_)));
    }
}

#[tokio::test]
async fn an_event_that_is_cut_in_the_middle_is_not_handled_and_comes_whole_later() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.message("01A").await;
        flow.cut("01B").await;
        scene.expect([event("01A"), stored("01A")]).await;
        assert!(matches!(scene.wait().await.0, BackoffReason::Network(_)));
        let call = scene.call().await;
        assert_eq!(call.cursor(), Some("01A"));
        let mut flow = call.open().await;
        flow.message("01B").await;
        scene.expect([streaming(), event("01B"), stored("01B")]).await;
    }
}

#[tokio::test]
async fn what_is_no_event_is_trouble_and_not_a_gap() {
    let (mut scene, mut flow) = Scene::streaming(resuming(Wire::Sse)).await;
    flow.raw("id: 01B\nevent: messageEvent\ndata: {\"cursor\":\n\n").await;
    assert!(matches!(scene.wait().await.0, BackoffReason::Network(_)));
    assert_eq!(scene.call().await.cursor(), Some("01A"));
    let (mut scene, mut flow) = Scene::streaming(resuming(Wire::WebSocket)).await;
    flow.text("no JSON").await;
    assert!(matches!(scene.wait().await.0, BackoffReason::Network(_)));
    assert_eq!(scene.call().await.cursor(), Some("01A"));
}

#[tokio::test]
async fn an_event_beyond_the_limit_is_not_collected() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(resuming(wire)).await;
        let large = "x".repeat(tidings_client::rooms::EVENT_BYTES + 1);
        match wire {
            Wire::Sse => flow.raw(&format!("data: {large}")).await,
            Wire::WebSocket => flow.text(&large).await,
        }
        assert!(matches!(scene.wait().await.0, BackoffReason::Network(_)));
    }
}

#[tokio::test]
async fn the_loop_as_the_seed_has_it_subscribes_handles_stores_and_survives_each_failure() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        for text in ["01A", "01B"] {
            flow.message(text).await;
            scene.expect([event(text), stored(text)]).await;
        }
        // SlowConsumer409: waits, continues with the same cursor.
        flow.end().await;
        scene.wait().await;
        scene.call().await.refuse(409, json!({"error": "SlowConsumer", "retryAfter": 0.5})).await;
        assert_eq!(scene.wait().await.0, BackoffReason::SlowConsumer);
        // Transient: backs off, continues with the same cursor.
        scene.call().await.refuse(503, json!({"error": "Unavailable"})).await;
        assert_eq!(scene.wait().await.0, BackoffReason::Unavailable(503));
        let call = scene.call().await;
        assert_eq!(call.cursor(), Some("01B"));
        // Gone410: starts at the head.
        call.refuse(410, json!({"error": "CursorCompacted"})).await;
        assert!(matches!(scene.told().await, Told::Skipped(_)));
        scene.expect([Told::Stored(None)]).await;
        scene.wait().await;
        let call = scene.call().await;
        assert_eq!(call.cursor(), None);
        let mut flow = call.open().await;
        flow.message("01X").await;
        scene.expect([streaming(), event("01X"), stored("01X")]).await;
    }
}

#[tokio::test]
async fn a_hundred_cuts_lose_nothing_and_double_nothing() {
    const EVENTS: usize = 300;
    let name = |index: usize| format!("{index:026}");
    for (wire, mut seed) in [(Wire::Sse, 7_u64), (Wire::WebSocket, 11)] {
        // A small generator, so that a failure can be reproduced.
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        let (mut next, mut handled, mut cuts) = (0, 0, 0);
        loop {
            for _ in 0..draw(7) {
                if next < EVENTS {
                    flow.message(&name(next)).await;
                    next += 1;
                }
            }
            cuts += 1;
            match draw(3) {
                0 => flow.end().await,
                1 => flow.cut(&name(next)).await,
                _ => drop(flow),
            }
            let wait = loop {
                match scene.told().await {
                    Told::Event(text) => {
                        assert_eq!(text, name(handled), "neither a gap nor a double");
                        handled += 1;
                    }
                    Told::State(ConnectionState::Backoff { wait, .. }) => break wait,
                    _ => {}
                }
            };
            if cuts >= 100 && handled == EVENTS {
                break;
            }
            scene.pass(wait).await;
            let call = scene.call().await;
            // After the cursor, or sometimes from the event at the cursor.
            let after = call.cursor().map_or(0, |text| text.parse::<usize>().expect("one of ours") + 1);
            next = after.saturating_sub(draw(2) as usize);
            flow = call.open().await;
        }
    }
}
