//! Endpoints that do not answer as they should. Each costs a bounded amount of time and memory.

use std::net::SocketAddr;
use std::time::Duration;

use tidings_egress::{Phase, SendError};
use tidings_model::limits;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::fixture::{Endpoint, Fixture, NO_CONTENT, Peer, Resolved, TIMEOUT, sent, settle, until};

/// An interim response.
const INTERIM: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload; as=style\r\n\r\n";

fn timeout(phase: Phase) -> SendError {
    SendError::Timeout { phase, after: TIMEOUT }
}

/// Sends a request to an endpoint that says this and then nothing, and lets the time pass.
async fn cut_after(said: &[u8]) -> SendError {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(said).await;
    fixture.advance(TIMEOUT - Duration::from_millis(1)).await;
    assert!(!sending.is_finished() && peer.is_open(), "it waits until its time is over");
    fixture.clock.advance(Duration::from_millis(1));
    let error = sent(sending).await.expect_err("no answer");
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
    assert_eq!(fixture.metric("tidings_egress_requests_total{outcome=\"timeout\"}"), 1);
    error
}

/// Sends a request to an endpoint that says this and then closes the connection.
async fn refused(said: impl AsRef<[u8]>) -> SendError {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    // The connection may be closed before everything was said.
    let _ = peer.socket.write_all(said.as_ref()).await;
    peer.socket.shutdown().await.unwrap_or_default();
    let error = sent(sending).await.expect_err("no answer");
    assert!(!endpoint.is_called(), "an endpoint that was heard is not called again");
    assert_eq!(fixture.open_connections(), 0);
    error
}

#[tokio::test]
async fn an_endpoint_that_is_silent_is_given_up_when_the_time_is_over() {
    let error = cut_after(b"").await;
    assert_eq!(error, timeout(Phase::Waiting));
    assert_eq!(error.to_string(), "timeout after 10000 ms while waiting for a response");
}

#[tokio::test]
async fn an_endpoint_that_stops_within_the_head_is_given_up() {
    assert_eq!(cut_after(b"HTTP/1.1 200 OK\r\ncontent-le").await, timeout(Phase::Waiting));
}

#[tokio::test]
async fn an_endpoint_that_stops_within_the_body_is_given_up() {
    let error = cut_after(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    assert_eq!(error, timeout(Phase::Reading));
    assert_eq!(error.to_string(), "timeout after 10000 ms while reading the response");
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n";
    assert_eq!(cut_after(chunked).await, timeout(Phase::Reading));
    assert_eq!(cut_after(b"HTTP/1.1 200 OK\r\n\r\nwithout an end").await, timeout(Phase::Reading));
}

#[tokio::test]
async fn a_response_that_drips_is_cut_when_the_time_is_over() {
    for (dripped, phase) in
        [("HTTP/1.1 200 OK\r\nx: ", Phase::Waiting), ("HTTP/1.1 200 OK\r\n\r\n", Phase::Reading)]
    {
        let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
        let sending = fixture.send(&endpoint.url());
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.say(dripped).await;
        for _ in 0..TIMEOUT.as_secs() {
            assert!(!sending.is_finished());
            peer.say("a").await;
            fixture.advance(Duration::from_secs(1)).await;
        }
        assert_eq!(sent(sending).await, Err(timeout(phase)));
        peer.closed().await;
    }
}

#[tokio::test]
async fn a_host_that_takes_no_connection_is_given_up_after_three_seconds() {
    let fixture = Fixture::new();
    let (full, _taken) = full_listener(([127, 0, 0, 1], 0).into()).await;
    let sending = fixture.send(&format!("http://{full}/"));
    fixture.advance(Duration::from_secs(3)).await;
    let error = sent(sending).await.expect_err("no connection");
    assert_eq!(error.to_string(), "timeout after 3000 ms while connecting");
    assert_eq!(fixture.open_connections(), 0);
}

#[tokio::test]
async fn an_address_that_takes_no_connection_leaves_time_for_the_next() {
    let fixture = Fixture::new();
    let endpoint = Endpoint::listen_on(6, 0).await;
    let (full, _taken) = full_listener(([127, 0, 0, 7], endpoint.address.port()).into()).await;
    fixture.resolver.set("two.example", [Resolved::to(&["127.0.0.7", "127.0.0.6"])]);
    let sending = fixture.send(&format!("http://two.example:{}/", full.port()));
    fixture.advance(Duration::from_millis(1500)).await;
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    assert_eq!(sent(sending).await.expect("an answer").status, 204);
}

#[tokio::test]
async fn a_refused_connection_is_told() {
    let fixture = Fixture::new();
    // No other test listens on this address.
    let address = Endpoint::listen_on(8, 0).await.address;
    let error = sent(fixture.send(&format!("http://{address}/"))).await.expect_err("nobody listens");
    assert_eq!(error, SendError::Connect("connection refused".to_owned()));
    assert_eq!(fixture.open_connections(), 0);
}

#[tokio::test]
async fn a_body_without_end_is_cut_at_its_limit_and_the_answer_counts() {
    let heads = ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n"];
    for head in heads {
        let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
        let sending = fixture.send(&endpoint.url());
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.say(head).await;
        // Not one byte more has to come.
        peer.flood(&[b'x'; 4096], limits::EGRESS_BODY_BYTES).await;
        let answer = sent(sending).await.expect("an answer");
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, &[b'x'; 16][..]));
        assert_eq!(fixture.open_connections(), 0);
    }
}

#[tokio::test]
async fn a_body_of_the_largest_size_is_read_to_its_end() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    let body = "x".repeat(limits::EGRESS_BODY_BYTES);
    peer.say(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())).await;
    sent(sending).await.expect("an answer");
    assert!(peer.is_open());
    assert_eq!(fixture.open_connections(), 1);
}

#[tokio::test]
async fn framing_that_weighs_more_than_the_body_is_cut() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let chunks = "1\r\nx\r\n".repeat(limits::EGRESS_BODY_BYTES);
    let extension = format!("1;{}\r\nx\r\n", "e".repeat(20_000));
    for (chunks, outcome) in [(chunks, "too_large"), (extension, "protocol")] {
        let sending = fixture.send(&endpoint.url());
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.flood(INTERIM, limits::EGRESS_RECEIVED_BYTES - 200_000).await;
        peer.say("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        peer.flood(chunks.as_bytes(), 0).await;
        assert_eq!(sent(sending).await.expect_err("too much").name(), outcome);
        assert_eq!(fixture.open_connections(), 0);
    }
}

#[tokio::test]
async fn what_is_not_http_is_told_as_such() {
    for said in [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "\u{0}\u{1}\u{2}\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 9999 x\r\n\r\n",
    ] {
        let error = refused(said).await;
        assert!(error.to_string().starts_with("the response is not valid HTTP: "), "{said:?}: {error}");
    }
    let nonsense = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    assert!(matches!(refused(nonsense).await, SendError::Protocol(_)));
    let twice = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab";
    assert!(matches!(refused(twice).await, SendError::Protocol(_)));
}

#[tokio::test]
async fn a_head_with_too_many_or_too_large_headers_is_refused() {
    let many: String = (0..=limits::EGRESS_HEADERS).map(|number| format!("x-{number}: y\r\n")).collect();
    assert_eq!(refused(format!("HTTP/1.1 200 OK\r\n{many}\r\n")).await, SendError::TooLarge);
    let large = "y".repeat(limits::EGRESS_HEADER_BYTES);
    assert_eq!(refused(format!("HTTP/1.1 200 OK\r\nx: {large}\r\n\r\n")).await, SendError::TooLarge);
    assert_eq!(refused("y".repeat(1 << 20)).await.name(), "protocol");
    assert_eq!(refused(format!("HTTP/1.1 200 {}", "y".repeat(1 << 20))).await, SendError::TooLarge);
}

#[tokio::test]
async fn interim_responses_without_end_are_cut() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.flood(INTERIM, limits::EGRESS_RECEIVED_BYTES).await;
    assert_eq!(sent(sending).await, Err(SendError::TooLarge));
}

#[tokio::test]
async fn a_connection_that_is_closed_before_the_answer_is_complete_is_told() {
    for said in [
        "",
        "HTTP/1.1 200 OK\r\ncontent",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
    ] {
        assert_eq!(refused(said).await, SendError::Closed, "{said:?}");
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_is_told() {
    for said in ["", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"] {
        let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
        let sending = fixture.send(&endpoint.url());
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.say(said).await;
        peer.reset();
        assert_eq!(sent(sending).await, Err(SendError::Closed), "{said:?}");
        assert!(!endpoint.is_called());
        assert_eq!(fixture.open_connections(), 0);
    }
}

#[tokio::test]
async fn a_switch_to_another_protocol_is_an_answer_and_the_end_of_the_connection() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n").await;
    match sent(sending).await {
        Ok(answer) => assert_eq!(answer.status, 101),
        Err(error) => assert!(matches!(error, SendError::Protocol(_)), "{error}"),
    }
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
}

#[tokio::test]
async fn an_answer_that_nobody_asked_for_is_not_taken_for_the_next() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let ok = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n";
    for unasked_at_once in [true, false] {
        let sending = fixture.send(&endpoint.url());
        let mut first = endpoint.accept().await;
        first.request().await;
        if unasked_at_once {
            first.say(format!("{ok}one{ok}bad")).await;
            assert_eq!(sent(sending).await.expect("an answer").body, "one");
        } else {
            first.say(format!("{ok}one")).await;
            assert_eq!(sent(sending).await.expect("an answer").body, "one");
            first.say(format!("{ok}bad")).await;
            settle().await;
        }
        let sending = fixture.send(&endpoint.url());
        let mut second: Peer = endpoint.accept().await;
        second.request().await;
        second.say(format!("{ok}two")).await;
        assert_eq!(sent(sending).await.expect("an answer").body, "two");
        drop(second);
        until("the connection is seen to be closed", || {
            fixture.egress.sweep();
            fixture.clock.advance(limits::EGRESS_IDLE_TIMEOUT);
            fixture.open_connections() == 0
        })
        .await;
    }
}

/// A listener whose backlog is full, and the connections that fill it.
async fn full_listener(address: SocketAddr) -> (SocketAddr, impl Sized) {
    const BACKLOG: u32 = 1;
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(address).expect("a free port");
    let listener = socket.listen(BACKLOG).expect("it is bound");
    let address = listener.local_addr().expect("an address");
    let mut taken = Vec::new();
    // The kernel takes one more than was asked for, and then lets attempts wait.
    for _ in 0..=BACKLOG {
        taken.push(TcpStream::connect(address).await.expect("room in the backlog"));
    }
    (address, (listener, taken))
}
