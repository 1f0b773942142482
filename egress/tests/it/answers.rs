//! What is sent, and what counts as an answer.

use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use tidings_egress::Answer;

use crate::fixture::{Endpoint, Fixture, KEEP, NO_CONTENT, outgoing, sent, target};

/// Sends a request to an endpoint that says this and then closes the connection.
async fn answer(response: impl AsRef<[u8]>) -> Answer {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(response).await;
    drop(peer);
    sent(sending).await.expect("an answer")
}

#[tokio::test]
async fn a_request_is_a_post_with_its_host_its_length_and_the_headers_it_was_given_and_no_others() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    fixture.resolver.set("hooks.example.com", [crate::fixture::Resolved::local(1)]);
    let url = format!("http://Hooks.Example.com:{}/in/a%20b?k=v", endpoint.address.port());
    let egress = fixture.egress.clone();
    let sending = tokio::spawn(async move {
        let target = target(&url);
        let headers = [
            ("webhook-id", "1"),
            ("x-key", "secret"),
            ("host", "elsewhere.example"),
            ("content-length", "3"),
        ];
        let headers =
            headers.map(|(name, value)| (name.parse().expect("a name"), HeaderValue::from_static(value)));
        egress
            .send(tidings_egress::Outgoing { headers: HeaderMap::from_iter(headers), ..outgoing(&target) })
            .await
    });
    let mut peer = endpoint.accept().await;
    let request = peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    assert_eq!(request.line, "POST /in/a%20b?k=v HTTP/1.1");
    assert_eq!(request.body, b"{\"id\":1}");
    let mut headers: Vec<_> = request.headers.into_iter().collect();
    headers.sort();
    let expected = [
        ("content-length", "8".to_owned()),
        ("host", format!("hooks.example.com:{}", endpoint.address.port())),
        ("webhook-id", "1".to_owned()),
        ("x-key", "secret".to_owned()),
    ];
    assert_eq!(headers, expected.map(|(name, value)| (name.to_owned(), value)));
}

#[tokio::test]
async fn an_answer_is_the_status_and_the_beginning_of_the_body() {
    let answered = answer("HTTP/1.1 503 Nope\r\ncontent-length: 26\r\n\r\nabcdefghijklmnopqrstuvwxyz").await;
    assert_eq!(answered.status, 503);
    assert_eq!(answered.body, "abcdefghijklmnopqrstuvwxyz"[..KEEP]);
    assert_eq!(answered.retry_after, None);
    let chunked =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nt: u\r\n\r\n";
    assert_eq!(answer(chunked).await.body, "abcde");
    assert_eq!(answer("HTTP/1.1 200 OK\r\n\r\nuntil the end").await.body, "until the end");
    assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.body, "");
}

#[tokio::test]
async fn a_204_is_an_answer_without_a_body() {
    let answered = answer(NO_CONTENT).await;
    assert_eq!((answered.status.as_u16(), &*answered.body), (204, &b""[..]));
}

#[tokio::test]
async fn http_1_0_is_understood() {
    let answered = answer("HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nold").await;
    assert_eq!((answered.status.as_u16(), &*answered.body), (200, &b"old"[..]));
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let elsewhere = Endpoint::listen().await;
    for location in [elsewhere.url(), "http://169.254.169.254/latest/".to_owned(), "/again".to_owned()] {
        for status in [301, 302, 303, 307, 308] {
            let sending = fixture.send(&endpoint.url());
            let mut peer = endpoint.accept().await;
            peer.request().await;
            let head = format!("HTTP/1.1 {status} Moved\r\nlocation: {location}\r\n");
            peer.say(format!("{head}content-length: 0\r\nconnection: close\r\n\r\n")).await;
            assert_eq!(sent(sending).await.expect("an answer").status, status);
            peer.closed().await;
        }
    }
    assert!(!endpoint.is_called() && !elsewhere.is_called());
    assert_eq!(fixture.metric("tidings_egress_connects_total"), 15);
}

#[tokio::test]
async fn an_answer_says_how_long_to_wait() {
    let wait = |value: &'static str| async move {
        answer(format!("HTTP/1.1 429 Slow\r\nretry-after: {value}\r\ncontent-length: 0\r\n\r\n"))
            .await
            .retry_after
    };
    assert_eq!(wait("7").await, Some(Duration::from_secs(7)));
    // The clock of the fixture stands at 20:27:14.
    assert_eq!(wait("Tue, 18 Nov 2025 20:28:14 GMT").await, Some(Duration::from_secs(60)));
    assert_eq!(wait("later").await, None);
}

#[tokio::test]
async fn interim_responses_are_not_the_answer() {
    let interim = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    let answered = answer(format!("{interim}HTTP/1.1 201 Created\r\ncontent-length: 1\r\n\r\nx")).await;
    assert_eq!((answered.status.as_u16(), &*answered.body), (201, &b"x"[..]));
}

#[tokio::test]
async fn nothing_is_decompressed() {
    let zipped = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0];
    let mut response = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 16\r\n\r\n".to_vec();
    response.extend(zipped);
    assert_eq!(&*answer(response).await.body, zipped);
}

#[tokio::test]
async fn an_answer_that_comes_before_the_whole_request_was_sent_counts() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let (egress, url) = (fixture.egress.clone(), endpoint.url());
    let sending = tokio::spawn(async move {
        let target = target(&url);
        let body = vec![b'x'; 8 << 20].into();
        egress.send(tidings_egress::Outgoing { body, ..outgoing(&target) }).await
    });
    let mut peer = endpoint.accept().await;
    peer.say("HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno").await;
    let answered = sent(sending).await.expect("an answer");
    assert_eq!((answered.status.as_u16(), &*answered.body), (413, &b"no"[..]));
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
}
