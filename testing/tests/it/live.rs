//! Readers that wait: what they hear, how long, and what is left of them.

use std::time::Duration;

use serde_json::json;
use tidings_testing::http::Method;
use tidings_testing::sse::Events;
use tidings_testing::{Harness, SLEEPERS, until};

/// Waits until so many long-polls wait.
async fn waiting(server: &Harness, polls: usize) {
    until("the readers wait", || server.clock.sleepers() == SLEEPERS + polls).await;
}

#[tokio::test]
async fn a_long_poll_waits_its_time_and_says_where_to_go_on() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let tail = server.append_text("/v1/stream/s", "old").await;
    let request = server.request(Method::GET, &format!("/v1/stream/s?offset={tail}&live=long-poll"));
    let poll = tokio::spawn(async move { request.send().await.expect("an answer") });
    waiting(&server, 1).await;
    server.clock.advance(Duration::from_millis(3999));
    waiting(&server, 1).await;
    assert!(!poll.is_finished());
    server.clock.advance(Duration::from_millis(1));
    let answer = poll.await.expect("no panic");
    assert_eq!(answer.status(), 204);
    assert_eq!(answer.headers()["stream-next-offset"], tail.as_str());
    assert_eq!(answer.headers()["stream-up-to-date"], "true");
    assert!(answer.headers().contains_key("stream-cursor"));
}

#[tokio::test]
async fn a_long_poll_hears_of_the_end_of_its_stream() {
    let server = Harness::start().await;
    for (path, end) in [("/v1/stream/deleted", Method::DELETE), ("/v1/stream/closed", Method::POST)] {
        server.create_text(path).await;
        let request = server.request(Method::GET, &format!("{path}?offset=now&live=long-poll"));
        let poll = tokio::spawn(async move { request.send().await.expect("an answer") });
        waiting(&server, 1).await;
        let ended = server.request(end.clone(), path).header("stream-closed", "true").send().await;
        assert_eq!(ended.expect("an answer").status(), 204);
        let answer = poll.await.expect("no panic");
        match end {
            Method::DELETE => assert_eq!(answer.status(), 404),
            _ => assert_eq!(
                (answer.status().as_u16(), &answer.headers()["stream-closed"]),
                (204, &"true".parse().expect("value"))
            ),
        }
    }
}

#[tokio::test]
async fn a_deleted_source_lets_its_readers_go_while_its_fork_reads_on() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/source").await;
    let fork = server.put("/v1/stream/fork").header("stream-forked-from", "/v1/stream/source");
    assert_eq!(fork.send().await.expect("an answer").status(), 201);
    let mut of_source = Events::of(server.get("/v1/stream/source?offset=-1&live=sse").await);
    let mut of_fork = Events::of(server.get("/v1/stream/fork?offset=-1&live=sse").await);
    for events in [&mut of_source, &mut of_fork] {
        assert_eq!(events.next().await.expect("a control event").name, "control");
    }
    let deleted = server.request(Method::DELETE, "/v1/stream/source").send().await.expect("an answer");
    assert_eq!(deleted.status(), 204);
    assert_eq!(of_source.next().await, None);
    server.append_text("/v1/stream/fork", "still here").await;
    assert_eq!(of_fork.next().await.expect("a data event").data, "still here");
}

#[tokio::test]
async fn an_sse_reader_hears_what_was_there_and_what_comes_until_its_time_is_over() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    server.append_text("/v1/stream/s", " two\n lines ").await;
    let mut events = Events::of(server.get("/v1/stream/s?offset=-1&live=sse").await);
    let data = events.next().await.expect("a data event");
    assert_eq!((data.name.as_str(), data.data.as_str()), ("data", " two\n lines "), "spaces survive");
    assert_eq!(events.next().await.expect("a control event").json()["upToDate"], json!(true));
    let next = server.append_text("/v1/stream/s", "more").await;
    assert_eq!(events.next().await.expect("a data event").data, "more");
    assert_eq!(events.next().await.expect("a control event").json()["streamNextOffset"], json!(next));
    waiting(&server, 0).await;
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(events.next().await, None, "after a minute the client is asked to come again");
}

#[tokio::test]
async fn a_reader_that_disconnects_leaves_nothing_behind() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(server.get("/v1/stream/s?offset=-1&live=sse").await);
    }
    // One through hyper, on the connection that created the stream; the others have their sockets for themselves.
    assert_eq!((server.server().live_connections().len(), server.server().channels().len()), (20, 2));
    assert_eq!(server.bus().listened(), 1);
    drop(readers);
    until("nobody listens", || server.bus().listened() == 0).await;
    until("nobody lives", || server.server().live_connections().is_empty()).await;
    assert!(server.server().channels().is_empty());
    waiting(&server, 0).await;
}

#[tokio::test]
async fn a_server_that_stops_lets_waiting_readers_go_at_once() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let mut events = Events::of(server.get("/v1/stream/s?offset=-1&live=sse").await);
    events.next().await.expect("a control event");
    let request = server.request(Method::GET, "/v1/stream/s?offset=now&live=long-poll");
    let poll = tokio::spawn(async move { request.send().await.expect("an answer").status().as_u16() });
    waiting(&server, 1).await;
    server.stop().await;
    assert_eq!(events.next().await, None);
    assert_eq!(poll.await.expect("no panic"), 204);
}

#[tokio::test]
async fn cursors_only_grow_within_one_sse_answer() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    // What the client had is the cursor of this moment.
    let mut now = Events::of(server.get("/v1/stream/s?offset=-1&live=sse").await);
    let now = now.next().await.expect("a control event").json()["streamCursor"].clone();
    let had: u64 = now.as_str().expect("a cursor").parse().expect("a number");
    let mut events = Events::of(server.get(&format!("/v1/stream/s?offset=-1&live=sse&cursor={had}")).await);
    let cursor = |event: &tidings_testing::sse::Event| -> u64 {
        event.json()["streamCursor"].as_str().expect("a cursor").parse().expect("a number")
    };
    let mut last = cursor(&events.next().await.expect("a control event"));
    assert!(last > had);
    for n in 0..5 {
        server.append_text("/v1/stream/s", &n.to_string()).await;
        events.next().await.expect("a data event");
        let next = cursor(&events.next().await.expect("a control event"));
        assert!(next >= last, "{last} then {next}");
        last = next;
    }
}

#[tokio::test]
async fn a_browser_that_reconnects_resumes_at_the_last_event_it_heard() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    server.append_text("/v1/stream/s", "one").await;
    let path = "/v1/stream/s?offset=-1&live=sse";
    let mut events = Events::of(server.get(path).await);
    let heard = events.next().await.expect("a data event");
    assert_eq!(heard.data, "one");
    drop(events);
    let next = server.append_text("/v1/stream/s", "two").await;
    // The same address, and the id of the last event, even if it was cut off before the control event.
    let again = server.request(Method::GET, path).header("last-event-id", heard.id.expect("an id"));
    let mut events = Events::of(again.send().await.expect("an answer"));
    let heard = events.next().await.expect("a data event");
    assert_eq!((heard.data.as_str(), heard.id), ("two", Some(next)));
    let bad = server.request(Method::GET, path).header("last-event-id", "nonsense").send().await;
    assert_eq!(bad.expect("an answer").status(), 400);
}
