//! Answers are compressed for who asks for it, where it is worth it, and never events.

use std::io::Read;
use std::time::Duration;

use tidings_testing::http::{Method, Response};
use tidings_testing::{Harness, SLEEPERS, until};

/// A stream with much text.
async fn stream(server: &Harness, path: &str, content_type: &str) -> String {
    let text = format!("[{}0]", "\"again and again\",".repeat(200));
    let request = server.put(path).header("content-type", content_type).body(text.clone());
    assert_eq!(request.send().await.expect("an answer").status(), 201);
    text
}

async fn get(server: &Harness, path: &str, accepted: &str) -> Response {
    let request = server.request(Method::GET, path).header("accept-encoding", accepted);
    request.send().await.expect("an answer")
}

fn header<'a>(answer: &'a Response, name: &str) -> Option<&'a str> {
    answer.headers().get(name).map(|value| value.to_str().expect("text"))
}

fn plain(coding: &str, body: &[u8]) -> String {
    let mut text = String::new();
    match coding {
        "gzip" => flate2::read::GzDecoder::new(body).read_to_string(&mut text).expect("gzip"),
        _ => zstd::stream::read::Decoder::new(body).expect("zstd").read_to_string(&mut text).expect("zstd"),
    };
    text
}

#[tokio::test]
async fn a_catch_up_is_compressed_as_the_client_asks() {
    let server = Harness::start().await;
    for content_type in ["text/plain", "application/json"] {
        let path = format!("/v1/stream/{content_type}");
        let text = stream(&server, &path, content_type).await;
        let identity = get(&server, &path, "identity").await;
        let tag = header(&identity, "etag").expect("an etag").to_owned();
        assert_eq!(
            (header(&identity, "content-encoding"), header(&identity, "vary")),
            (None, Some("accept-encoding"))
        );
        assert_eq!(identity.text().await.expect("text"), text);
        let mut tags = vec![tag];
        for (accepted, coding) in [
            ("gzip", "gzip"),
            ("gzip;q=0.5, zstd;q=0.6", "zstd"),
            ("gzip, zstd;q=0.9, br", "gzip"),
            ("zstd", "zstd"),
        ] {
            let answer = get(&server, &path, accepted).await;
            assert_eq!(header(&answer, "content-encoding"), Some(coding), "{accepted}");
            assert_eq!(header(&answer, "vary"), Some("accept-encoding"));
            assert_eq!(header(&answer, "content-type"), Some(content_type));
            assert_eq!(header(&answer, "stream-up-to-date"), Some("true"));
            tags.push(header(&answer, "etag").expect("an etag").to_owned());
            let length: usize =
                header(&answer, "content-length").expect("a length").parse().expect("a number");
            let body = answer.bytes().await.expect("a body");
            assert!(body.len() == length && length < text.len() / 4, "{length} of {}", text.len());
            assert_eq!(plain(coding, &body), text);
        }
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 3, "each coding has an etag of its own: {tags:?}");
    }
}

#[tokio::test]
async fn an_etag_holds_for_the_coding_it_was_given_with() {
    let server = Harness::start().await;
    stream(&server, "/v1/stream/s", "text/plain").await;
    let tag = header(&get(&server, "/v1/stream/s", "gzip").await, "etag").expect("an etag").to_owned();
    for (accepted, status) in [("gzip", 304), ("zstd", 200), ("identity", 200)] {
        let request = server.request(Method::GET, "/v1/stream/s").header("accept-encoding", accepted);
        let answer = request.header("if-none-match", &tag).send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{accepted}");
        if status == 304 {
            assert_eq!(header(&answer, "etag"), Some(&*tag));
            assert_eq!(header(&answer, "vary"), Some("accept-encoding"));
            assert_eq!(header(&answer, "content-encoding"), None);
        }
    }
}

#[tokio::test]
async fn what_is_small_or_not_text_stays_as_it_is() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/small").await;
    server.append_text("/v1/stream/small", &"x".repeat(1023)).await;
    assert_eq!(header(&get(&server, "/v1/stream/small", "gzip").await, "content-encoding"), None);
    server.append_text("/v1/stream/small", "x").await;
    assert_eq!(header(&get(&server, "/v1/stream/small", "gzip").await, "content-encoding"), Some("gzip"));
    for content_type in ["application/octet-stream", "image/png", "application/gzip"] {
        let path = format!("/v1/stream/{content_type}");
        let text = stream(&server, &path, content_type).await;
        let answer = get(&server, &path, "gzip, zstd").await;
        assert_eq!((header(&answer, "content-encoding"), header(&answer, "vary")), (None, None));
        assert_eq!(answer.text().await.expect("text"), text);
    }
}

#[tokio::test]
async fn a_long_poll_is_compressed_and_events_are_not() {
    let server = Harness::start().await;
    let text = stream(&server, "/v1/stream/s", "text/plain").await;
    let answer = get(&server, "/v1/stream/s?offset=-1&live=long-poll", "zstd").await;
    assert_eq!(header(&answer, "content-encoding"), Some("zstd"));
    assert_eq!(plain("zstd", &answer.bytes().await.expect("a body")), text);
    let waiting = server.request(Method::GET, "/v1/stream/s?offset=now&live=long-poll");
    let waiting = tokio::spawn(waiting.header("accept-encoding", "gzip").send());
    until("the reader waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(Duration::from_secs(4));
    let nothing = waiting.await.expect("no panic").expect("an answer");
    assert_eq!((nothing.status().as_u16(), header(&nothing, "content-encoding")), (204, None));
    let events = get(&server, "/v1/stream/s?offset=-1&live=sse", "gzip, zstd").await;
    assert_eq!(header(&events, "content-type"), Some("text/event-stream"));
    assert_eq!(header(&events, "content-encoding"), None);
}

#[tokio::test]
async fn a_large_answer_is_compressed_chunk_by_chunk_and_a_head_says_what_it_depends_on() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    for n in 0..6 {
        server.append_text("/v1/stream/s", &n.to_string().repeat(100 << 10)).await;
    }
    let (mut offset, mut length) = ("-1".to_owned(), 0);
    loop {
        let answer = get(&server, &format!("/v1/stream/s?offset={offset}"), "gzip").await;
        assert_eq!(header(&answer, "content-encoding"), Some("gzip"));
        offset = header(&answer, "stream-next-offset").expect("an offset").to_owned();
        let last = header(&answer, "stream-up-to-date").is_some();
        length += plain("gzip", &answer.bytes().await.expect("a body")).len();
        if last {
            break;
        }
    }
    assert_eq!(length, 600 << 10);
    let head = server.request(Method::HEAD, "/v1/stream/s").header("accept-encoding", "gzip").send().await;
    let head = head.expect("an answer");
    assert_eq!((header(&head, "vary"), header(&head, "content-encoding")), (Some("accept-encoding"), None));
}
