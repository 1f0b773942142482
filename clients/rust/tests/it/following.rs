//! What the client does with events and infos of a stream.

use serde_json::json;
use tidings_client::rooms::{BackoffReason, ConnectionState, MissedEvents, Reason, Stopped, Wire};

use crate::scene::*;

#[tokio::test]
async fn it_is_disconnected_then_connecting_then_streaming_and_then_in_backoff() {
    for wire in WIRES {
        let mut scene = Scene::with(Setup::on(wire)).await;
        scene.expect([disconnected(), connecting()]).await;
        let flow = scene.call().await.open().await;
        scene.expect([streaming()]).await;
        flow.end().await;
        let Told::State(ConnectionState::Backoff { why, wait }) = scene.told().await else {
            panic!("it waits before it comes back")
        };
        assert_eq!(why, BackoffReason::Ended);
        scene.pass(wait).await;
        scene.expect([connecting()]).await;
        scene.call().await.open().await;
        scene.expect([streaming()]).await;
    }
}

#[tokio::test]
async fn it_sends_its_token_and_the_cursor_that_is_stored_or_none() {
    for wire in WIRES {
        for last_seen in [None, Some("01B")] {
            let mut scene = Scene::with(Setup { last_seen, ..Setup::on(wire) }).await;
            let call = scene.call().await;
            assert_eq!(call.cursor(), last_seen);
            assert!(call.path().starts_with("/v1/shop/rooms/lobby/events"), "{}", call.path());
            assert_eq!(call.header("authorization"), Some("Bearer token-1"));
            match wire {
                Wire::Sse => assert_eq!(call.header("accept"), Some("text/event-stream")),
                Wire::WebSocket => assert_eq!(call.header("upgrade"), Some("websocket")),
            }
        }
    }
}

#[tokio::test]
async fn an_event_is_handled_and_then_its_cursor_is_stored_each_time() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        for kind in ["messageEvent", "reactionEvent", "laterEvent"] {
            flow.event(kind, kind).await;
            scene.expect([event(kind), stored(kind)]).await;
        }
        assert_eq!(scene.memory.cursor(), Some(cursor("laterEvent")));
    }
}

#[tokio::test]
async fn events_are_handled_one_after_the_other() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup { permits: 0, ..Setup::on(wire) }).await;
        for text in ["01A", "01B", "01C"] {
            flow.message(text).await;
        }
        scene.expect([event("01A")]).await;
        scene.permit();
        scene.expect([stored("01A"), event("01B")]).await;
        scene.permit();
        scene.expect([stored("01B"), event("01C")]).await;
        scene.permit();
        scene.expect([stored("01C")]).await;
    }
}

#[tokio::test]
async fn a_heartbeat_changes_nothing() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.message("01A").await;
        flow.heartbeat().await;
        flow.heartbeat().await;
        flow.message("01B").await;
        scene.expect([event("01A"), stored("01A"), event("01B"), stored("01B")]).await;
    }
}

#[tokio::test]
async fn an_event_that_comes_again_is_not_handled_again() {
    for wire in WIRES {
        let (mut scene, mut flow) =
            Scene::streaming(Setup { last_seen: Some("01A"), ..Setup::on(wire) }).await;
        for text in ["01A", "01B", "01B", "01C", "01B", "01D"] {
            flow.message(text).await;
        }
        for text in ["01B", "01C", "01D"] {
            scene.expect([event(text), stored(text)]).await;
        }
        flow.end().await;
        scene.wait().await;
        let mut flow = scene.call().await.open().await;
        scene.expect([streaming()]).await;
        for text in ["01C", "01D", "01E"] {
            flow.message(text).await;
        }
        scene.expect([event("01E"), stored("01E")]).await;
    }
}

#[tokio::test]
async fn a_typing_event_is_handled_and_its_cursor_is_not_stored() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.event("typingEvent", "01A").await;
        flow.message("01B").await;
        flow.event("typingEvent", "01C").await;
        scene.expect([event("01A"), event("01B"), stored("01B"), event("01C")]).await;
        flow.end().await;
        scene.wait().await;
        assert_eq!(scene.call().await.cursor(), Some("01B"));
    }
}

#[tokio::test]
async fn an_id_without_an_event_moves_the_cursor_and_nothing_is_handled() {
    let (mut scene, mut flow) = Scene::streaming(Setup::on(Wire::Sse)).await;
    flow.raw("id: 01A\n\n").await;
    scene.expect([stored("01A")]).await;
    flow.end().await;
    scene.wait().await;
    assert_eq!(scene.call().await.cursor(), Some("01A"));
}

#[tokio::test]
async fn an_event_is_the_same_in_whatever_pieces_it_comes() {
    let (mut scene, mut flow) = Scene::streaming(Setup::on(Wire::Sse)).await;
    let text = "retry: 300\r\nid: 01A\r\nevent: messageEvent\r\ndata: {\"cursor\":\"01A\",\r\ndata: \"payload\":{\"of\":\"01A\"}}\r\n\r\n";
    for byte in text.chars() {
        flow.raw(&byte.to_string()).await;
    }
    scene.expect([event("01A"), stored("01A")]).await;
}

#[tokio::test]
async fn only_compacted_and_reset_move_the_cursor_to_where_they_say() {
    for wire in WIRES {
        for (name, reason) in [("compacted", Reason::Compacted), ("reset", Reason::Reset)] {
            let (mut scene, mut flow) =
                Scene::streaming(Setup { last_seen: Some("01A"), ..Setup::on(wire) }).await;
            flow.info("caught-up", "01X", json!({})).await;
            scene.expect([Told::Info(Reason::CaughtUp)]).await;
            assert_eq!(scene.memory.cursor(), Some(cursor("01A")));
            flow.info(
                name,
                "01G",
                json!({"floor": "01E", "oldest": "01F", "head": "01G", "requested": "01A"}),
            )
            .await;
            let skip = MissedEvents {
                name: name.to_owned(),
                floor: Some(cursor("01E")),
                oldest: Some(cursor("01F")),
                head: Some(cursor("01G")),
            };
            scene.expect([Told::Info(reason), Told::Skipped(skip), Told::Stored(None), stored("01G")]).await;
            flow.info("slow-consumer", "01X", json!({})).await;
            scene.expect([Told::Info(Reason::SlowConsumer)]).await;
            scene.wait().await;
            assert_eq!(scene.call().await.cursor(), Some("01G"));
        }
    }
}

#[tokio::test]
async fn a_reason_that_is_not_known_is_ignored() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.info("new-moon", "01X", json!({"status": 409, "retryAfter": 9})).await;
        flow.message("01A").await;
        scene.expect([event("01A"), stored("01A")]).await;
    }
}

#[tokio::test]
async fn every_reconnect_sends_the_last_cursor() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        for text in ["01A", "01B", "01C"] {
            flow.message(text).await;
            scene.expect([event(text), stored(text)]).await;
            flow.end().await;
            scene.wait().await;
            let call = scene.call().await;
            assert_eq!(call.cursor(), Some(text));
            flow = call.open().await;
            scene.expect([streaming()]).await;
        }
    }
}

#[tokio::test]
async fn where_a_stream_without_a_cursor_starts_is_where_the_next_one_resumes() {
    for wire in WIRES {
        let mut scene = Scene::with(Setup::on(wire)).await;
        let flow = scene.call().await.open_with("last-event-id: 01A\r\n").await;
        scene.expect([disconnected(), connecting(), streaming(), stored("01A")]).await;
        flow.cut("01B").await;
        scene.wait().await;
        assert_eq!(scene.call().await.cursor(), Some("01A"), "what was written meanwhile is not missed");
    }
}

#[tokio::test]
async fn a_handler_that_fails_stops_it_and_the_cursor_is_not_stored() {
    for wire in WIRES {
        let (mut scene, mut flow) =
            Scene::streaming(Setup { fails_at: Some("01B"), ..Setup::on(wire) }).await;
        flow.message("01A").await;
        flow.message("01B").await;
        scene.expect([event("01A"), stored("01A"), event("01B")]).await;
        let memory = scene.memory.clone();
        let stopped = scene.stopped().await;
        assert!(matches!(stopped, Stopped::Handler(_)), "{stopped}");
        assert_eq!(memory.cursor(), Some(cursor("01A")));
    }
}

#[tokio::test]
async fn a_client_that_is_dropped_leaves_the_server() {
    for wire in WIRES {
        let (mut scene, mut flow) = Scene::streaming(Setup::on(wire)).await;
        flow.message("01A").await;
        scene.expect([event("01A"), stored("01A")]).await;
        scene.drop_the_client();
        flow.gone().await;
    }
}

#[tokio::test]
async fn a_websocket_speaks_first_so_that_the_server_does_not_wait() {
    use futures_util::StreamExt;

    let (_scene, flow) = Scene::streaming(Setup::on(Wire::WebSocket)).await;
    let Flow::WebSocket(mut socket) = flow else { panic!("a WebSocket") };
    let first = in_time("the first message", socket.next()).await.expect("a message").expect("a whole one");
    assert_eq!(first.into_text().expect("text").as_str(), r#"{"type":"ping"}"#);
}
