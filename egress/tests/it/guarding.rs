//! Addresses that must not be reached.

use std::time::Duration;

use tidings_egress::{Guard, SendError};
use tidings_model::limits;

use crate::fixture::{Endpoint, Fixture, NO_CONTENT, Resolved, Setup, sent, target};

fn allowing(allow: &'static [&'static str]) -> Fixture {
    Setup { allow, ..Setup::default() }.fixture()
}

/// The error of a request that is refused by the guard.
async fn refused(fixture: &Fixture, url: &str) -> String {
    let error = sent(fixture.send(url)).await.expect_err("it is refused");
    assert!(matches!(error, SendError::Forbidden(_)), "{error:?}");
    assert!(error.to_string().starts_with("target not allowed: "), "{error}");
    error.to_string()
}

#[tokio::test]
async fn a_literal_address_that_is_not_public_is_not_reached() {
    let (fixture, endpoint) = (allowing(&[]), Endpoint::listen().await);
    let port = endpoint.address.port();
    for host in
        ["127.0.0.1", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "127.0.0.1.", "[::1]", "0.0.0.0", "[::]"]
    {
        let url = format!("http://{host}:{port}/");
        refused(&fixture, &url).await;
        assert!(
            Guard::default().check_literal(&target(&url)).is_err(),
            "{host} is refused at registration, too"
        );
    }
    assert!(!endpoint.is_called());
    assert_eq!(fixture.metric("tidings_egress_requests_total{outcome=\"forbidden\"}"), 7);
    assert_eq!(fixture.metric("tidings_egress_connects_total"), 0);
}

#[tokio::test]
async fn a_name_is_not_reached_if_any_of_its_addresses_is_not_public() {
    let (fixture, endpoint) = (allowing(&[]), Endpoint::listen().await);
    let addresses: [&[&str]; 6] = [
        &["127.0.0.1"],
        &["8.8.8.8", "127.0.0.1"],
        &["127.0.0.1", "8.8.8.8"],
        &["::ffff:127.0.0.1"],
        &["2606:4700:4700::1111", "::1"],
        &["64:ff9b::7f00:1"],
    ];
    for (number, addresses) in addresses.into_iter().enumerate() {
        let name = format!("n{number}.example");
        fixture.resolver.set(&name, [Resolved::to(addresses)]);
        let told = refused(&fixture, &format!("http://{name}:{}/", endpoint.address.port())).await;
        assert_eq!(told, format!("target not allowed: `{name}` resolves to an address that is not public"));
    }
    assert!(!endpoint.is_called());
    assert_eq!(fixture.metric("tidings_egress_connects_total"), 0);
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_connected_to() {
    // Only 127.0.0.4 may be reached. Whoever asked the name server a second time would be led to 127.0.0.5.
    let fixture = allowing(&["127.0.0.4/32"]);
    let allowed = Endpoint::listen_on(4, 0).await;
    let port = allowed.address.port();
    let forbidden = Endpoint::listen_on(5, port).await;
    fixture.resolver.set("rebinds.example", [Resolved::local(4), Resolved::local(5)]);
    let url = format!("http://rebinds.example:{port}/");
    let sending = fixture.send(&url);
    let mut peer = allowed.accept().await;
    let request = peer.request().await;
    assert_eq!(request.headers["host"], format!("rebinds.example:{port}"));
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    assert_eq!(fixture.resolver.lookups(), 1, "what was checked is not looked up again");
    // Later the name is looked up and checked again, and an open connection does not help it.
    fixture.clock.advance(limits::RESOLVED_TTL - Duration::from_millis(1));
    let sending = fixture.send(&url);
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    fixture.clock.advance(Duration::from_millis(1));
    refused(&fixture, &url).await;
    assert_eq!(fixture.resolver.lookups(), 2);
    assert!(peer.is_open() && !forbidden.is_called());
}

#[tokio::test]
async fn localhost_is_reached_only_if_all_its_addresses_are_allowed() {
    let fixture = allowing(&["127.0.0.1/32"]);
    let endpoint = Endpoint::listen().await;
    let url = format!("http://localhost:{}/", endpoint.address.port());
    fixture.resolver.set("localhost", [Resolved::to(&["127.0.0.1", "::1"]), Resolved::local(1)]);
    refused(&fixture, &url).await;
    fixture.clock.advance(limits::RESOLVED_TTL);
    let sending = fixture.send(&url);
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
}

#[tokio::test]
async fn an_allowed_name_is_reached_whatever_it_resolves_to() {
    let fixture = allowing(&["receiver.internal"]);
    let endpoint = Endpoint::listen().await;
    let port = endpoint.address.port();
    fixture.resolver.set("receiver.internal", [Resolved::to(&["::ffff:127.0.0.1"])]);
    fixture.resolver.set("other.internal", [Resolved::local(1)]);
    let sending = fixture.send(&format!("http://Receiver.Internal.:{port}/"));
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    refused(&fixture, &format!("http://other.internal:{port}/")).await;
    refused(&fixture, &format!("http://127.0.0.1:{port}/")).await;
}

#[tokio::test]
async fn a_connection_is_not_used_for_a_name_that_may_not_go_there() {
    // Both names have the same address; only one is allowed to.
    let fixture = allowing(&["receiver.internal"]);
    let endpoint = Endpoint::listen().await;
    let port = endpoint.address.port();
    fixture.resolver.set("receiver.internal", [Resolved::local(1)]);
    fixture.resolver.set("other.internal", [Resolved::local(1)]);
    let sending = fixture.send(&format!("http://receiver.internal:{port}/"));
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    refused(&fixture, &format!("http://other.internal:{port}/")).await;
}
