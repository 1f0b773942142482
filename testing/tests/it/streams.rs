//! What the official suite leaves out: expiry by the clock, forks that end, reading in chunks, many writers.

use std::time::Duration;

use tidings_streams::Options;
use tidings_testing::http::{Method, Response};
use tidings_testing::{ADMIN_KEY, Doors, Harness, Setup, http};

fn next_offset(answer: &Response) -> String {
    answer.headers()["stream-next-offset"].to_str().expect("text").to_owned()
}

async fn text(answer: Response) -> String {
    answer.text().await.expect("text")
}

#[tokio::test]
async fn a_stream_goes_when_it_was_not_used_for_its_time_to_live() {
    let server = Harness::start().await;
    let create = server.put("/v1/stream/s").header("content-type", "text/plain").header("stream-ttl", "60");
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    for _ in 0..3 {
        server.clock.advance(Duration::from_secs(59));
        assert_eq!(server.get("/v1/stream/s").await.status(), 200, "a read renews");
    }
    server.clock.advance(Duration::from_secs(59));
    server.append_text("/v1/stream/s", "an append renews").await;
    server.clock.advance(Duration::from_secs(59));
    let head = server.request(http::Method::HEAD, "/v1/stream/s").send().await.expect("an answer");
    assert_eq!((head.status().as_u16(), &head.headers()["stream-ttl"]), (200, &"60".parse().expect("value")));
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(server.get("/v1/stream/s").await.status(), 404, "looking at its head does not renew");
    server.create_text("/v1/stream/s").await;
    assert_eq!(text(server.get("/v1/stream/s").await).await, "", "the new one has nothing of the old");
}

#[tokio::test]
async fn a_moment_of_expiry_never_moves() {
    let server = Harness::start().await;
    let create = server.put("/v1/stream/s").header("stream-expires-at", "2025-11-16T13:01:00+01:00");
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let head = server.request(http::Method::HEAD, "/v1/stream/s").send().await.expect("an answer");
    assert_eq!(head.headers()["stream-expires-at"], "2025-11-16T12:01:00Z");
    server.clock.advance(Duration::from_secs(59));
    assert_eq!(server.get("/v1/stream/s").await.status(), 200);
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(server.get("/v1/stream/s").await.status(), 404, "the read before did not renew it");
}

#[tokio::test]
async fn a_source_that_expired_is_gone_but_its_forks_read_on() {
    let server = Harness::start().await;
    let create =
        server.put("/v1/stream/source").header("content-type", "text/plain").header("stream-ttl", "60");
    assert_eq!(create.body("inherited ").send().await.expect("an answer").status(), 201);
    let fork = server.put("/v1/stream/fork").header("stream-forked-from", "/v1/stream/source");
    assert_eq!(fork.header("stream-ttl", "3600").send().await.expect("an answer").status(), 201);
    server.append_text("/v1/stream/fork", "and own").await;
    server.clock.advance(Duration::from_secs(61));
    assert_eq!(server.get("/v1/stream/source").await.status(), 410);
    let again = server.put("/v1/stream/source").send().await.expect("an answer");
    assert_eq!(again.status(), 409, "its name is not free while a fork holds it");
    assert_eq!(text(server.get("/v1/stream/fork").await).await, "inherited and own");
    let deleted = server.request(http::Method::DELETE, "/v1/stream/fork").send().await.expect("an answer");
    assert_eq!(deleted.status(), 204);
    server.create_text("/v1/stream/source").await;
}

#[tokio::test]
async fn a_stream_cannot_be_forked_into_another_project() {
    let server = Harness::start().await;
    server.create_text("/v1/one/stream/secret").await;
    let fork = server.put("/v1/two/stream/fork").header("stream-forked-from", "/v1/one/stream/secret");
    assert_eq!(fork.send().await.expect("an answer").status(), 403);
}

#[tokio::test]
async fn a_fork_of_forks_reads_all_its_ancestors_in_chunks() {
    let streams = Options { read_chunk_bytes: 7, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/g0").await;
    let mut expected = String::new();
    for generation in 0..6 {
        for n in 0..4 {
            let piece = format!("<{generation}.{n}>");
            server.append_text(&format!("/v1/stream/g{generation}"), &piece).await;
            expected += &piece;
        }
        let fork = server.put(&format!("/v1/stream/g{}", generation + 1));
        let fork = fork.header("stream-forked-from", format!("/v1/stream/g{generation}"));
        assert_eq!(fork.send().await.expect("an answer").status(), 201);
        server.append_text(&format!("/v1/stream/g{generation}"), "not inherited").await;
    }
    let (mut read, mut offset, mut answers) = (String::new(), "-1".to_owned(), 0);
    loop {
        let answer = server.get(&format!("/v1/stream/g6?offset={offset}")).await;
        offset = next_offset(&answer);
        let last = answer.headers().contains_key("stream-up-to-date");
        read += &text(answer).await;
        answers += 1;
        if last {
            break;
        }
    }
    assert_eq!(read, expected);
    assert!(answers > 10, "{answers} answers");
}

#[tokio::test]
async fn a_record_larger_than_a_chunk_is_read_whole() {
    let streams = Options { read_chunk_bytes: 10, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    let large = "x".repeat(1000);
    server.append_text("/v1/stream/s", &large).await;
    server.append_text("/v1/stream/s", "y").await;
    let answer = server.get("/v1/stream/s").await;
    assert!(!answer.headers().contains_key("stream-up-to-date"));
    let offset = next_offset(&answer);
    assert_eq!(text(answer).await, large);
    assert_eq!(text(server.get(&format!("/v1/stream/s?offset={offset}")).await).await, "y");
}

#[tokio::test]
async fn an_offset_beyond_the_tail_hears_all_that_is_new() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let tail = server.append_text("/v1/stream/s", "old").await;
    let beyond = "9999999999999999_9999999999999999";
    let answer = server.get(&format!("/v1/stream/s?offset={beyond}")).await;
    assert_eq!((answer.status().as_u16(), next_offset(&answer)), (200, tail));
    let waiting = {
        let request =
            server.request(http::Method::GET, &format!("/v1/stream/s?offset={beyond}&live=long-poll"));
        tokio::spawn(async move { request.send().await.expect("an answer").text().await.expect("text") })
    };
    tidings_testing::until("the reader waits", || server.bus().listened() == 1).await;
    server.append_text("/v1/stream/s", "new").await;
    assert_eq!(waiting.await.expect("no panic"), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_from_32_connections_all_hold_and_each_connection_keeps_its_order() {
    let server = Harness::start().await;
    let create = server.put("/v1/stream/s").header("content-type", "application/json");
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let writers = (0..32).map(|writer| {
        // A client of its own has a connection of its own.
        let (client, url) = (http::Client::new(), server.url("/v1/stream/s"));
        tokio::spawn(async move {
            for n in 0..20 {
                let append = client.post(&url).header("content-type", "application/json");
                let append = append.body(format!("[[{writer},{n}]]"));
                assert_eq!(append.send().await.expect("an answer").status(), 204);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("no panic");
    }
    let all: Vec<(u64, u64)> = server.get("/v1/stream/s").await.json().await.expect("pairs");
    assert_eq!(all.len(), 32 * 20);
    for writer in 0..32 {
        let own: Vec<u64> = all.iter().filter(|(by, _)| *by == writer).map(|(_, n)| *n).collect();
        assert_eq!(own, (0..20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn of_many_who_create_the_same_stream_one_is_first() {
    let server = Harness::start().await;
    let creations = (0..16).map(|_| {
        let create = server.put("/v1/stream/s").header("content-type", "text/plain").body("once");
        tokio::spawn(async move { create.send().await.expect("an answer").status().as_u16() })
    });
    let mut statuses = Vec::new();
    for creation in creations.collect::<Vec<_>>() {
        statuses.push(creation.await.expect("no panic"));
    }
    statuses.sort();
    assert_eq!((statuses[15], &statuses[..15]), (201, &[200; 15][..]));
    assert_eq!(text(server.get("/v1/stream/s").await).await, "once");
}

#[tokio::test]
async fn a_fork_begins_at_an_offset_that_its_source_gave() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/source").await;
    let first = server.append_text("/v1/stream/source", "a").await;
    server.create_text("/v1/stream/between").await;
    server.append_text("/v1/stream/source", "b").await;
    let fork = |name: &str, offset: String| {
        let request =
            server.put(&format!("/v1/stream/{name}")).header("stream-forked-from", "/v1/stream/source");
        request.header("stream-fork-offset", offset)
    };
    assert_eq!(fork("good", first.clone()).send().await.expect("an answer").status(), 201);
    let (commit, index) = first.split_once('_').expect("two halves");
    let between = format!("{:016}_{index}", commit.parse::<u64>().expect("a number") + 1);
    let refused = fork("bad", between).send().await.expect("an answer");
    assert_eq!(refused.status(), 400);
    let told: serde_json::Value = refused.json().await.expect("errors are JSON");
    assert_eq!(told["error"]["code"], "fork_between_records");
}

#[tokio::test]
async fn if_match_appends_only_at_the_expected_tail() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let first = server.append_text("/v1/stream/s", "a").await;
    let append = |expected: String, text: &'static str| {
        let request = server.post("/v1/stream/s").header("content-type", "text/plain");
        request.header("if-match", expected).body(text)
    };
    let won = append(format!("\"{first}\""), "b").send().await.expect("an answer");
    assert_eq!(won.status(), 204);
    let lost = append(first, "c").send().await.expect("an answer");
    assert_eq!((lost.status().as_u16(), next_offset(&lost)), (412, next_offset(&won)));
    assert_eq!(append("*".to_owned(), "d").send().await.expect("an answer").status(), 204);
    assert_eq!(append("nonsense".to_owned(), "e").send().await.expect("an answer").status(), 400);
    assert_eq!(text(server.get("/v1/stream/s").await).await, "abd");
}

#[tokio::test]
async fn an_etag_changes_when_what_was_the_tail_no_longer_is() {
    let streams = Options { read_chunk_bytes: 4, ..Options::default() };
    let server = Harness::with(Setup { streams, ..Setup::default() }).await;
    server.create_text("/v1/stream/s").await;
    server.append_text("/v1/stream/s", "full").await;
    let answer = server.get("/v1/stream/s").await;
    assert!(answer.headers().contains_key("stream-up-to-date"));
    assert_eq!(answer.headers()["cache-control"], "private, no-cache");
    let etag = answer.headers()["etag"].clone();
    server.append_text("/v1/stream/s", "more").await;
    let again = server.request(http::Method::GET, "/v1/stream/s").header("if-none-match", etag.clone());
    let again = again.send().await.expect("an answer");
    assert_eq!(again.status(), 200, "the same bytes, but no longer the tail");
    assert_ne!(again.headers()["etag"], etag);
    assert!(!again.headers().contains_key("stream-up-to-date"));
}

#[tokio::test]
async fn an_answer_that_fails_leaves_no_stream_behind() {
    let doors = Doors::Closed { created: Vec::new(), given: Vec::new() };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let create = server.put("/v1/stream/s").bearer_auth(ADMIN_KEY).header("host", "no host\"at all");
    assert_eq!(create.send().await.expect("an answer").status(), 400);
    let read = server.request(Method::GET, "/v1/stream/s").bearer_auth(ADMIN_KEY);
    assert_eq!(read.send().await.expect("an answer").status(), 404);
}

#[tokio::test]
async fn an_array_of_millions_is_refused_by_its_count_wherever_json_is_appended() {
    let server = Harness::start().await;
    let json = |request: http::RequestBuilder| request.header("content-type", "application/json");
    let created = json(server.put("/v1/app/stream/s")).send().await.expect("an answer");
    assert_eq!(created.status(), 201);
    // The end is missing: that the count is told and not that shows that nobody read so far.
    let many = format!("[{}", "1,".repeat(4_000_000));
    for request in
        [server.post("/v1/app/stream/s"), server.post("/v1/app/publish/s"), server.put("/v1/app/stream/new")]
    {
        let answer = json(request).body(many.clone()).send().await.expect("an answer");
        assert_eq!(answer.status(), 413);
        let told: serde_json::Value = answer.json().await.expect("JSON");
        assert_eq!(told["error"]["code"], "too_many_messages");
    }
    let absent = server.get("/v1/app/stream/new").await;
    assert_eq!(absent.status(), 404);
}
