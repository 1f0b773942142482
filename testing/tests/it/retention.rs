//! What a stream keeps by age, bytes and count, and what is told of the rest.

use std::time::Duration;

use serde_json::Value;
use tidings_testing::http::{Method, Response, StatusCode};
use tidings_testing::sse::Events;
use tidings_testing::{Harness, Process, Setup, TestStore, http};

const START: &str = "0000000000000000_0000000000000000";

async fn in_both_stores() -> [Harness; 2] {
    let embedded = Setup { store: TestStore::Embedded, ..Setup::default() };
    [Harness::start().await, Harness::with(embedded).await]
}

async fn create(server: &Harness, path: &str, headers: &[(&str, &str)]) -> StatusCode {
    let request = server.put(path).header("content-type", "text/plain");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.send().await.expect("an answer").status()
}

/// Status and text of a read.
async fn read(server: &Harness, path: &str) -> (u16, String) {
    let answer = server.get(path).await;
    (answer.status().as_u16(), answer.text().await.expect("text"))
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    answer.headers().get(name).unwrap_or_else(|| panic!("{name} in {answer:?}")).to_str().expect("text")
}

#[tokio::test]
async fn the_last_messages_are_kept_and_an_offset_below_them_is_gone() {
    for server in in_both_stores().await {
        assert_eq!(create(&server, "/v1/stream/s", &[("stream-max-messages", "3")]).await, 201);
        let mut offsets = vec![START.to_owned()];
        for text in ["a", "b", "c", "d", "e"] {
            offsets.push(server.append_text("/v1/stream/s", text).await);
        }
        for start in ["/v1/stream/s", "/v1/stream/s?offset=-1"] {
            assert_eq!(read(&server, start).await, (200, "cde".into()));
        }
        for (n, expected) in [(2, "cde"), (3, "de"), (5, "")] {
            let path = format!("/v1/stream/s?offset={}", offsets[n]);
            assert_eq!(read(&server, &path).await, (200, expected.into()));
        }
        for live in ["", "&live=long-poll", "&live=sse"] {
            for below in &offsets[..2] {
                let gone = server.get(&format!("/v1/stream/s?offset={below}{live}")).await;
                assert_eq!(gone.status(), 410, "{below}{live}");
                assert_eq!(header(&gone, "stream-oldest-offset"), offsets[2]);
                assert_eq!(header(&gone, "stream-next-offset"), offsets[5]);
                let error: Value = gone.json().await.expect("JSON");
                assert_eq!(error["error"]["code"], "offset_trimmed");
            }
        }
    }
}

#[tokio::test]
async fn a_record_is_not_served_from_the_moment_it_is_too_old() {
    for server in in_both_stores().await {
        assert_eq!(create(&server, "/v1/stream/s", &[("stream-max-age", "60")]).await, 201);
        let first = server.append_text("/v1/stream/s", "old").await;
        server.clock.advance(Duration::from_secs(1));
        let second = server.append_text("/v1/stream/s", "new").await;
        server.clock.advance(Duration::from_millis(58_999));
        assert_eq!(read(&server, "/v1/stream/s").await, (200, "oldnew".into()));
        server.clock.advance(Duration::from_millis(1));
        assert_eq!(read(&server, "/v1/stream/s").await, (200, "new".into()));
        assert_eq!(read(&server, &format!("/v1/stream/s?offset={START}")).await.0, 410);
        server.clock.advance(Duration::from_secs(1));
        let empty = server.get("/v1/stream/s?offset=-1").await;
        assert_eq!((empty.status().as_u16(), header(&empty, "stream-up-to-date")), (200, "true"));
        assert_eq!(header(&empty, "stream-next-offset"), second);
        assert_eq!(empty.text().await.expect("text"), "");
        assert_eq!(read(&server, &format!("/v1/stream/s?offset={first}")).await.0, 410);
        assert_eq!(read(&server, &format!("/v1/stream/s?offset={second}")).await, (200, String::new()));
        server.append_text("/v1/stream/s", "next").await;
        assert_eq!(read(&server, "/v1/stream/s").await, (200, "next".into()));
    }
}

#[tokio::test]
async fn bytes_are_limited_but_the_last_record_is_always_kept() {
    for server in in_both_stores().await {
        assert_eq!(create(&server, "/v1/stream/s", &[("stream-max-bytes", "10")]).await, 201);
        for (text, kept) in [
            ("123456", "123456"),
            ("7890", "1234567890"),
            ("x", "7890x"),
            ("much larger than ten", "much larger than ten"),
            ("y", "y"),
        ] {
            server.append_text("/v1/stream/s", text).await;
            assert_eq!(read(&server, "/v1/stream/s").await, (200, kept.into()));
        }
    }
}

#[tokio::test]
async fn messages_of_one_json_append_count_one_by_one() {
    let server = Harness::start().await;
    let json = |request: http::RequestBuilder| request.header("content-type", "application/json");
    let created = json(server.put("/v1/stream/s")).header("stream-max-messages", "2").body("[1,2,3]");
    assert_eq!(created.send().await.expect("an answer").status(), 201);
    assert_eq!(read(&server, "/v1/stream/s").await, (200, "[2,3]".into()));
}

#[tokio::test]
async fn limits_are_part_of_the_configuration_and_the_head_tells_them() {
    let server = Harness::start().await;
    let limits = [("stream-max-age", "5"), ("stream-max-bytes", "1000"), ("stream-max-messages", "7")];
    assert_eq!(create(&server, "/v1/stream/s", &limits).await, 201);
    assert_eq!(create(&server, "/v1/stream/s", &limits).await, 200);
    assert_eq!(create(&server, "/v1/stream/s", &limits[..2]).await, 409);
    assert_eq!(create(&server, "/v1/stream/s", &[]).await, 409);
    let head = server.request(Method::HEAD, "/v1/stream/s").send().await.expect("an answer");
    for (name, value) in limits {
        assert_eq!(header(&head, name), value);
    }
    assert_eq!(header(&head, "stream-oldest-offset"), START);
    assert_eq!(create(&server, "/v1/stream/plain", &[]).await, 201);
    assert_eq!(create(&server, "/v1/stream/plain", &limits).await, 409);
    let head = server.request(Method::HEAD, "/v1/stream/plain").send().await.expect("an answer");
    assert!(
        !head.headers().contains_key("stream-max-age")
            && !head.headers().contains_key("stream-oldest-offset")
    );
}

#[tokio::test]
async fn limits_are_positive_whole_numbers() {
    let server = Harness::start().await;
    for name in ["stream-max-age", "stream-max-bytes", "stream-max-messages"] {
        for value in ["0", "-1", "1.5", "01", "x", "", " ", "99999999999999999999999"] {
            let answer = server.put("/v1/stream/s").header(name, value).send().await.expect("an answer");
            assert_eq!(answer.status(), 400, "{name}: {value}");
            let error: Value = answer.json().await.expect("JSON");
            assert_eq!(error["error"]["code"], "invalid_retention");
        }
        let path = format!("/v1/stream/{name}");
        assert_eq!(create(&server, &path, &[(name, "18446744073709551615")]).await, 201);
        server.append_text(&path, "kept").await;
        assert_eq!(read(&server, &path).await, (200, "kept".into()));
    }
}

#[tokio::test]
async fn a_fork_keeps_what_its_source_lets_go_of() {
    for server in in_both_stores().await {
        assert_eq!(create(&server, "/v1/stream/source", &[("stream-max-messages", "2")]).await, 201);
        let gone = server.append_text("/v1/stream/source", "a").await;
        for text in ["b", "c"] {
            server.append_text("/v1/stream/source", text).await;
        }
        let from = ("stream-forked-from", "/v1/stream/source");
        assert_eq!(create(&server, "/v1/stream/fork", &[from]).await, 201);
        assert_eq!(create(&server, "/v1/stream/wide", &[from, ("stream-max-messages", "3")]).await, 201);
        assert_eq!(create(&server, "/v1/stream/fork", &[from]).await, 200, "what is left out fits");
        assert_eq!(create(&server, "/v1/stream/fork", &[from, ("stream-max-messages", "3")]).await, 409);
        let below = [from, ("stream-fork-offset", START)];
        assert_eq!(create(&server, "/v1/stream/late", &below).await, 410);
        assert_eq!(create(&server, "/v1/stream/edge", &[from, ("stream-fork-offset", &gone)]).await, 201);
        // Enough for the source to be trimmed, if nobody held it.
        for n in 0..300 {
            server.append_text("/v1/stream/source", &format!("{n}.")).await;
        }
        assert_eq!(read(&server, "/v1/stream/source").await, (200, "298.299.".into()));
        assert_eq!(read(&server, "/v1/stream/fork").await, (200, "bc".into()), "the limit came with it");
        assert_eq!(
            read(&server, "/v1/stream/wide").await,
            (200, "bc".into()),
            "what was gone does not come back"
        );
        assert_eq!(read(&server, "/v1/stream/edge").await, (200, String::new()));
        for path in ["/v1/stream/fork", "/v1/stream/wide"] {
            server.append_text(path, "d").await;
        }
        assert_eq!(read(&server, "/v1/stream/fork").await, (200, "cd".into()), "inherited records count");
        assert_eq!(read(&server, "/v1/stream/wide").await, (200, "bcd".into()));
        let deleted = server.request(Method::DELETE, "/v1/stream/source").send().await.expect("an answer");
        assert_eq!(deleted.status(), 204);
        assert_eq!(read(&server, "/v1/stream/wide").await, (200, "bcd".into()));
    }
}

#[tokio::test]
async fn a_live_reader_below_the_floor_is_let_go_and_hears_why_when_it_comes_again() {
    let server = Harness::start().await;
    assert_eq!(create(&server, "/v1/stream/s", &[("stream-max-messages", "2")]).await, 201);
    let request = server.request(Method::GET, "/v1/stream/s?offset=-1&live=sse");
    let mut events = Events::of(request.send().await.expect("an answer"));
    let mut heard = events.next().await.expect("an event").id;
    // More than lies on the way to a client that does not read.
    let large = "x".repeat(256 << 10);
    for _ in 0..150 {
        server.append_text("/v1/stream/s", &large).await;
    }
    let mut records = 0;
    while let Some(event) = events.next().await {
        records += usize::from(event.name == "data");
        heard = event.id;
    }
    assert!(records < 150, "it could not hear all");
    let gone = server.get(&format!("/v1/stream/s?offset={}&live=sse", heard.expect("an offset"))).await;
    assert_eq!(gone.status(), 410);
    let oldest = header(&gone, "stream-oldest-offset").to_owned();
    assert_eq!(read(&server, &format!("/v1/stream/s?offset={oldest}")).await.1.len(), large.len());
}

#[tokio::test]
async fn a_live_reader_that_keeps_up_hears_all_of_a_large_append() {
    let server = Harness::start().await;
    let json = |request: http::RequestBuilder| request.header("content-type", "application/json");
    let created = json(server.put("/v1/stream/s")).header("stream-max-messages", "2");
    assert_eq!(created.send().await.expect("an answer").status(), 201);
    let request = server.request(Method::GET, "/v1/stream/s?offset=now&live=sse");
    let mut events = Events::of(request.send().await.expect("an answer"));
    assert_eq!(events.next().await.expect("an event").name, "control");
    let appended = json(server.post("/v1/stream/s")).body("[1,2,3,4]").send().await.expect("an answer");
    assert_eq!(appended.status(), 204);
    assert_eq!(events.next().await.expect("an event").data, "[1,2,3,4]");
    assert_eq!(read(&server, "/v1/stream/s").await, (200, "[3,4]".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_that_is_kept_can_always_be_read_while_others_append_and_fork() {
    for server in in_both_stores().await {
        assert_eq!(create(&server, "/v1/stream/s", &[("stream-max-messages", "1")]).await, 201);
        server.append_text("/v1/stream/s", "first").await;
        let server = std::sync::Arc::new(server);
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let server = server.clone();
                tokio::spawn(async move {
                    for n in 0..150 {
                        server.append_text("/v1/stream/s", &format!("{n}")).await;
                    }
                })
            })
            .collect();
        let mut forks = 0;
        while !writers.iter().all(|writer| writer.is_finished()) {
            for path in ["/v1/stream/s?offset=-1", "/v1/stream/s?offset=-1&live=long-poll"] {
                let (status, text) = read(&server, path).await;
                assert!(status == 200 && !text.is_empty(), "{status} {text}");
            }
            let fork = format!("/v1/stream/fork-{forks}");
            assert_eq!(create(&server, &fork, &[("stream-forked-from", "/v1/stream/s")]).await, 201);
            assert_eq!(read(&server, &fork).await.0, 200);
            let deleted = server.request(Method::DELETE, &fork).send().await.expect("an answer");
            assert_eq!(deleted.status(), 204);
            forks += 1;
        }
        for writer in writers {
            writer.await.expect("every append was made");
        }
        assert!(forks > 0);
        let kept = server.get("/v1/stream/s").await;
        assert_eq!((header(&kept, "stream-up-to-date"), kept.status().as_u16()), ("true", 200));
        assert_eq!(kept.text().await.expect("text"), "149", "the last append of the last writer");
    }
}

#[tokio::test]
async fn caches_ask_again_for_what_may_go() {
    let server = Harness::start().await;
    assert_eq!(
        create(&server, "/v1/stream/s", &[("stream-max-age", "10"), ("stream-closed", "true")]).await,
        201
    );
    let answer = server.get("/v1/stream/s").await;
    assert_eq!(header(&answer, "cache-control"), "private, no-cache");
}

#[tokio::test]
async fn what_is_kept_is_the_same_after_a_kill() {
    let client = http::Client::new();
    let mut server = Process::serve(&[]).await;
    let put = |url: String| client.put(url).header("content-type", "text/plain");
    let created = put(server.url("/v1/stream/s")).header("stream-max-messages", "5").send().await;
    assert_eq!(created.expect("an answer").status(), 201);
    let mut offsets = Vec::new();
    for n in 0..200 {
        let request = client.post(server.url("/v1/stream/s")).header("content-type", "text/plain");
        let answer = request.body(format!("{n}.")).send().await.expect("an answer");
        assert_eq!(answer.status(), 204);
        offsets.push(header(&answer, "stream-next-offset").to_owned());
    }
    for _ in 0..2 {
        server.kill().await;
        server = server.restart().await;
        let kept = client.get(server.url("/v1/stream/s")).send().await.expect("an answer");
        assert_eq!(kept.text().await.expect("text"), "195.196.197.198.199.");
        let gone = client.get(server.url(&format!("/v1/stream/s?offset={}", offsets[193])));
        let gone = gone.send().await.expect("an answer");
        assert_eq!((gone.status().as_u16(), header(&gone, "stream-oldest-offset")), (410, &*offsets[194]));
        let again = put(server.url("/v1/stream/s")).header("stream-max-messages", "5").send().await;
        assert_eq!(again.expect("an answer").status(), 200, "the limits are remembered");
    }
}
