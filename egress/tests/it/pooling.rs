//! Connections that are kept, used again, limited and closed.

use std::time::Duration;

use tidings_egress::{EgressOptions, Scope, SendError};
use tidings_model::limits;

use crate::fixture::{
    Endpoint, Fixture, NO_CONTENT, Peer, Resolved, Setup, TIMEOUT, outgoing, sent, settle, soon, target,
    until,
};

/// A fixture with other limits.
fn limited(options: EgressOptions) -> Fixture {
    Setup { options, ..Setup::default() }.fixture()
}

/// Sends a request on a new connection, which is then idle.
async fn idle(fixture: &Fixture, endpoint: &Endpoint) -> Peer {
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    assert_eq!(sent(sending).await.expect("an answer").status, 204);
    peer
}

/// Sends a request and answers it on a connection that is open.
async fn reuse(fixture: &Fixture, url: &str, peer: &mut Peer) {
    let sending = fixture.send(url);
    peer.request().await;
    peer.say(NO_CONTENT).await;
    assert_eq!(sent(sending).await.expect("an answer").status, 204);
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let mut peer = idle(&fixture, &endpoint).await;
    for _ in 0..5 {
        reuse(&fixture, &endpoint.url(), &mut peer).await;
    }
    assert_eq!(fixture.metric("tidings_egress_connects_total"), 1);
    assert_eq!(fixture.metric("tidings_egress_reuses_total"), 5);
    assert_eq!(fixture.metric("tidings_egress_requests_total{outcome=\"answered\"}"), 6);
}

#[tokio::test]
async fn requests_at_the_same_time_have_a_connection_each() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = [fixture.send(&endpoint.url()), fixture.send(&endpoint.url())];
    let mut peers = [endpoint.accept().await, endpoint.accept().await];
    for peer in &mut peers {
        peer.request().await;
        peer.say(NO_CONTENT).await;
    }
    for sending in sending {
        sent(sending).await.expect("an answer");
    }
    assert_eq!(fixture.open_connections(), 2);
}

#[tokio::test]
async fn a_connection_that_the_endpoint_closed_meanwhile_is_not_used() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    drop(idle(&fixture, &endpoint).await);
    settle().await;
    let mut peer = idle(&fixture, &endpoint).await;
    assert_eq!(fixture.metric("tidings_egress_reuses_total"), 0);
    reuse(&fixture, &endpoint.url(), &mut peer).await;
    assert_eq!(fixture.open_connections(), 1);
}

#[tokio::test]
async fn an_answer_with_connection_close_is_the_last_of_its_connection() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let sending = fixture.send(&endpoint.url());
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
    sent(sending).await.expect("an answer");
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
}

#[tokio::test]
async fn a_connection_that_dies_when_it_is_used_again_is_dialed_again_at_once() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    for reset in [false, true] {
        let mut stale = idle(&fixture, &endpoint).await;
        let sending = fixture.send(&endpoint.url());
        stale.request().await;
        if reset {
            stale.reset()
        } else {
            drop(stale)
        };
        let mut fresh = endpoint.accept().await;
        let request = fresh.request().await;
        assert_eq!((&*request.line, &*request.body), ("POST /hooks?k=v HTTP/1.1", &b"{\"id\":1}"[..]));
        fresh.say("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
        drop(fresh);
        assert_eq!(sent(sending).await.expect("an answer").status, 200);
    }
    assert_eq!(fixture.metric("tidings_egress_requests_total{outcome=\"answered\"}"), 4);
    assert_eq!(fixture.open_connections(), 0);
}

#[tokio::test]
async fn a_request_is_dialed_again_once_only() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let mut stale = idle(&fixture, &endpoint).await;
    let sending = fixture.send(&endpoint.url());
    stale.request().await;
    drop(stale);
    let mut fresh = endpoint.accept().await;
    fresh.request().await;
    drop(fresh);
    assert_eq!(sent(sending).await, Err(SendError::Closed));
    assert!(!endpoint.is_called());
}

#[tokio::test]
async fn a_request_is_not_dialed_again_after_the_first_byte_of_an_answer() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let mut stale = idle(&fixture, &endpoint).await;
    let sending = fixture.send(&endpoint.url());
    stale.request().await;
    stale.say("H").await;
    drop(stale);
    assert_eq!(sent(sending).await, Err(SendError::Closed));
    assert!(!endpoint.is_called());
}

#[tokio::test]
async fn a_connection_that_is_idle_for_too_long_is_closed() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let mut peer = idle(&fixture, &endpoint).await;
    fixture.clock.advance(limits::EGRESS_IDLE_TIMEOUT - Duration::from_millis(1));
    fixture.egress.sweep();
    assert_eq!(fixture.open_connections(), 1);
    fixture.clock.advance(Duration::from_millis(1));
    fixture.egress.sweep();
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
    // A request to elsewhere does the same.
    let mut peer = idle(&fixture, &endpoint).await;
    fixture.clock.advance(limits::EGRESS_IDLE_TIMEOUT);
    let other = Endpoint::listen().await;
    let _other = idle(&fixture, &other).await;
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 1);
}

#[tokio::test]
async fn at_the_limit_of_a_destination_no_further_connection_is_opened() {
    let fixture = limited(EgressOptions { sockets_per_destination: 2, ..EgressOptions::default() });
    let (endpoint, other) = (Endpoint::listen().await, Endpoint::listen().await);
    let sending = [fixture.send(&endpoint.url()), fixture.send(&endpoint.url())];
    let mut peers = [endpoint.accept().await, endpoint.accept().await];
    let error = sent(fixture.send(&endpoint.url())).await.expect_err("no slot");
    assert_eq!(error, SendError::TooManySockets(Scope::Destination));
    assert_eq!(error.to_string(), "too many connections to this destination");
    idle(&fixture, &other).await;
    for peer in &mut peers {
        peer.request().await;
        peer.say(NO_CONTENT).await;
    }
    for sending in sending {
        sent(sending).await.expect("an answer");
    }
    let [_, last] = &mut peers;
    reuse(&fixture, &endpoint.url(), last).await;
}

#[tokio::test]
async fn at_the_limit_in_all_an_idle_connection_makes_room_and_otherwise_none_is_opened() {
    let fixture = limited(EgressOptions { sockets: 2, ..EgressOptions::default() });
    let [first, second, third] =
        [Endpoint::listen().await, Endpoint::listen().await, Endpoint::listen().await];
    let mut oldest = idle(&fixture, &first).await;
    let newer = idle(&fixture, &second).await;
    let sending = fixture.send(&third.url());
    let _busy = third.accept().await;
    oldest.closed().await;
    assert!(newer.is_open());
    assert_eq!(fixture.open_connections(), 2);
    let another = fixture.send(&third.url());
    let _busy_too = third.accept().await;
    let error = sent(fixture.send(&first.url())).await.expect_err("no slot");
    assert_eq!(error, SendError::TooManySockets(Scope::All));
    assert!(!sending.is_finished() && !another.is_finished());
    assert_eq!(fixture.open_connections(), 2);
}

#[tokio::test]
async fn only_so_many_connections_are_kept_idle() {
    let options = EgressOptions { idle: 3, idle_per_destination: 2, ..EgressOptions::default() };
    let fixture = limited(options);
    let (first, second) = (Endpoint::listen().await, Endpoint::listen().await);
    let mut open = 0;
    for endpoint in [&first, &second] {
        let sending = [(); 3].map(|()| fixture.send(&endpoint.url()));
        let mut peers = [endpoint.accept().await, endpoint.accept().await, endpoint.accept().await];
        assert_eq!(fixture.open_connections(), open + 3);
        for peer in &mut peers {
            peer.request().await;
            peer.say(NO_CONTENT).await;
        }
        for sending in sending {
            sent(sending).await.expect("an answer");
        }
        // Of the second destination, too, two are kept, but only three in all.
        open = if open == 0 { 2 } else { 3 };
        assert_eq!(fixture.open_connections(), open);
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_closes_its_connection_and_frees_its_slot() {
    let fixture = limited(EgressOptions { sockets: 1, ..EgressOptions::default() });
    let endpoint = Endpoint::listen().await;
    for partly in [false, true] {
        let sending = fixture.send(&endpoint.url());
        let mut peer = endpoint.accept().await;
        peer.request().await;
        if partly {
            peer.say("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab").await;
        }
        until("it waits for an answer", || fixture.clock.sleepers() > 0).await;
        sending.abort();
        peer.closed().await;
        until("the slot is free", || fixture.open_connections() == 0).await;
        assert_eq!(fixture.clock.sleepers(), 0, "nothing is left behind");
    }
    idle(&fixture, &endpoint).await;
}

#[tokio::test]
async fn a_request_whose_time_is_over_leaves_no_connection_behind() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let mut peer = idle(&fixture, &endpoint).await;
    let sending = fixture.send(&endpoint.url());
    peer.request().await;
    fixture.advance(TIMEOUT).await;
    assert_eq!(sent(sending).await.expect_err("no answer").name(), "timeout");
    peer.closed().await;
    // Nobody calls again only because an answer takes long.
    assert!(!endpoint.is_called());
}

#[tokio::test]
async fn a_name_that_moved_does_not_use_the_connection_to_its_old_address() {
    let fixture = Fixture::new();
    let old = Endpoint::listen_on(2, 0).await;
    let port = old.address.port();
    let new = Endpoint::listen_on(3, port).await;
    fixture.resolver.set("moves.example", [Resolved::local(2), Resolved::local(3)]);
    let url = format!("http://moves.example:{port}/");
    let sending = fixture.send(&url);
    let mut before = old.accept().await;
    before.request().await;
    before.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    reuse(&fixture, &url, &mut before).await;
    fixture.clock.advance(limits::RESOLVED_TTL);
    let sending = fixture.send(&url);
    let mut after = new.accept().await;
    after.request().await;
    after.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    assert_eq!(fixture.resolver.lookups(), 2);
}

#[tokio::test]
async fn many_destinations_share_few_sockets() {
    let fixture = limited(EgressOptions { sockets: 4, ..EgressOptions::default() });
    let mut endpoints = Vec::new();
    for _ in 0..12 {
        endpoints.push(Endpoint::listen().await);
    }
    for _ in 0..3 {
        for endpoint in &endpoints {
            idle(&fixture, endpoint).await;
            assert!(fixture.open_connections() <= 4);
        }
    }
}

#[tokio::test]
async fn dropping_the_last_handle_closes_all_connections() {
    let endpoint = Endpoint::listen().await;
    let fixture = Fixture::new();
    let mut peer = idle(&fixture, &endpoint).await;
    drop(fixture);
    peer.closed().await;
}

#[tokio::test]
async fn requests_can_be_sent_from_any_task() {
    fn assert_send<T: Send>(value: T) -> T {
        value
    }
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    let (target, url) = (target(&endpoint.url()), endpoint.url());
    let first = async {
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.say(NO_CONTENT).await;
        peer
    };
    let (answer, mut peer) = tokio::join!(assert_send(fixture.egress.send(outgoing(&target))), first);
    assert_eq!(answer.expect("an answer").status, 204);
    // Another task, with another waker, goes on with the same connection.
    soon("it is reused", reuse(&fixture, &url, &mut peer)).await;
}

/// Requests from many tasks to few endpoints that close connections as they please; many are dropped on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_becomes_of_requests_no_slot_is_lost_and_no_limit_exceeded() {
    const SOCKETS: usize = 8;
    let options =
        EgressOptions { sockets: SOCKETS, sockets_per_destination: 4, idle: 3, ..EgressOptions::default() };
    let fixture = limited(options);
    let mut urls = Vec::new();
    for number in 0..3 {
        let endpoint = Endpoint::listen().await;
        urls.push(endpoint.url());
        tokio::spawn(moody(endpoint, number));
    }
    let mut senders = tokio::task::JoinSet::new();
    for sender in 0..16 {
        let (fixture, urls) = (fixture.clone(), urls.clone());
        senders.spawn(async move {
            let (mut answered, mut random) = (0, fastrand::Rng::with_seed(sender));
            for _ in 0..150 {
                let target = target(&urls[random.usize(..urls.len())]);
                let mut sending = std::pin::pin!(fixture.egress.send(outgoing(&target)));
                // Some are dropped after so many steps.
                let steps = if random.bool() { usize::MAX } else { random.usize(..4) };
                for _ in 0..steps {
                    assert!(fixture.open_connections() <= SOCKETS as u64);
                    match futures_util::FutureExt::now_or_never(&mut sending) {
                        None => tokio::task::yield_now().await,
                        Some(answer) => {
                            answered += usize::from(answer.is_ok());
                            break;
                        }
                    }
                }
            }
            answered
        });
    }
    let answered: usize = soon("all are sent", senders.join_all()).await.iter().sum();
    assert!(answered > 100, "{answered}");
    assert!(fixture.open_connections() <= 3);
    fixture.clock.advance(limits::EGRESS_IDLE_TIMEOUT);
    fixture.egress.sweep();
    assert_eq!(fixture.open_connections(), 0);
    assert_eq!(fixture.clock.sleepers(), 0);
}

/// Answers requests until it feels like closing the connection, before or after an answer.
async fn moody(endpoint: Endpoint, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    loop {
        let mut socket = endpoint.accept().await.socket;
        let answers = random.usize(..6);
        tokio::spawn(async move {
            let mut bytes = Vec::new();
            for _ in 0..answers {
                while !bytes.ends_with(b"{\"id\":1}") {
                    if !matches!(tokio::io::AsyncReadExt::read_buf(&mut socket, &mut bytes).await, Ok(1..)) {
                        return;
                    }
                }
                bytes.clear();
                if tokio::io::AsyncWriteExt::write_all(&mut socket, NO_CONTENT).await.is_err() {
                    return;
                }
            }
        });
    }
}
