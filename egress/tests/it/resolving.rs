//! Names that are looked up, with name servers that fail or are silent.

use std::sync::Arc;
use std::time::Duration;

use tidings_egress::{Phase, SendError};
use tidings_model::limits;
use tokio::sync::Notify;

use crate::fixture::{Endpoint, Fixture, NO_CONTENT, Resolved, sent, until};

const NO_SUCH_NAME: &str = "cannot resolve the host: no such name";

async fn error(fixture: &Fixture, url: &str) -> String {
    sent(fixture.send(url)).await.expect_err("it cannot be resolved").to_string()
}

#[tokio::test]
async fn requests_that_need_the_same_name_share_one_lookup() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    fixture.resolver.set("shared.example", [Resolved::local(1)]);
    let url = format!("http://shared.example:{}/", endpoint.address.port());
    let sending = [(); 8].map(|()| fixture.send(&url));
    for _ in 0..sending.len() {
        let mut peer = endpoint.accept().await;
        peer.request().await;
        peer.say("HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
    }
    for sending in sending {
        sent(sending).await.expect("an answer");
    }
    assert_eq!(fixture.resolver.lookups(), 1);
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_told_and_soon_looked_up_again() {
    let (fixture, endpoint) = (Fixture::new(), Endpoint::listen().await);
    fixture.resolver.set("flaky.example", [Resolved::Fails, Resolved::local(1)]);
    let url = format!("http://flaky.example:{}/", endpoint.address.port());
    assert_eq!(error(&fixture, &url).await, NO_SUCH_NAME);
    assert_eq!(error(&fixture, &url).await, NO_SUCH_NAME);
    assert_eq!(fixture.resolver.lookups(), 1);
    fixture.clock.advance(Duration::from_secs(1));
    let sending = fixture.send(&url);
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
}

#[tokio::test]
async fn a_name_without_an_address_is_told() {
    let fixture = Fixture::new();
    fixture.resolver.set("empty.example", [Resolved::to(&[])]);
    assert_eq!(error(&fixture, "http://empty.example/").await, "cannot resolve the host: no address");
}

#[tokio::test]
async fn a_resolver_that_panics_costs_that_lookup_only() {
    let fixture = Fixture::new();
    fixture.resolver.set("panics.example", [Resolved::Panics, Resolved::Fails]);
    assert_eq!(error(&fixture, "http://panics.example/").await, NO_SUCH_NAME);
    assert_eq!(fixture.resolver.lookups(), 2);
}

#[tokio::test]
async fn a_silent_name_server_is_given_up_and_its_name_not_looked_up_for_as_long_as_it_took() {
    let (fixture, end) = (Fixture::new(), Arc::new(Notify::new()));
    fixture.resolver.set("silent.example", [Resolved::Hangs(end.clone()), Resolved::Fails]);
    let sending = fixture.send("http://silent.example/");
    fixture.advance(limits::EGRESS_CONNECT_TIMEOUT).await;
    let timeout = SendError::Timeout { phase: Phase::Connecting, after: limits::EGRESS_CONNECT_TIMEOUT };
    assert_eq!(sent(sending).await, Err(timeout));
    // The lookup goes on. Another request waits for it instead of beginning one of its own.
    let sending = fixture.send("http://silent.example/");
    until("it waits for the lookup", || fixture.clock.sleepers() > 0).await;
    fixture.clock.advance(Duration::from_secs(2));
    assert_eq!(fixture.resolver.lookups(), 1);
    end.notify_one();
    assert_eq!(sent(sending).await.expect_err("no name").to_string(), "cannot resolve the host: no answer");
    fixture.clock.advance(Duration::from_millis(4999));
    assert_eq!(error(&fixture, "http://silent.example/").await, "cannot resolve the host: no answer");
    fixture.clock.advance(Duration::from_millis(1));
    assert_eq!(error(&fixture, "http://silent.example/").await, NO_SUCH_NAME);
}

#[tokio::test]
async fn names_whose_servers_are_silent_do_not_hold_up_names_that_were_resolved_before() {
    let (fixture, endpoint, end) = (Fixture::new(), Endpoint::listen().await, Arc::new(Notify::new()));
    fixture.resolver.set("good.example", [Resolved::local(1)]);
    let url = format!("http://good.example:{}/", endpoint.address.port());
    let sending = fixture.send(&url);
    let mut peer = endpoint.accept().await;
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    let mut silent = Vec::new();
    for number in 0..2 * limits::RESOLVING {
        let name = format!("silent{number}.example");
        fixture.resolver.set(&name, [Resolved::Hangs(end.clone())]);
        silent.push(fixture.send(&format!("http://{name}/")));
    }
    until("all wait", || fixture.clock.sleepers() == silent.len()).await;
    // Those that have no place do not begin: they wait, and give up without having looked anything up.
    assert_eq!(fixture.resolver.lookups(), 1 + limits::RESOLVING);
    fixture.clock.advance(limits::RESOLVED_TTL);
    for sending in silent {
        assert_eq!(sent(sending).await.expect_err("no name").name(), "timeout");
    }
    let sending = fixture.send(&url);
    peer.request().await;
    peer.say(NO_CONTENT).await;
    sent(sending).await.expect("an answer");
    assert_eq!(fixture.resolver.lookups(), 2 + limits::RESOLVING);
    end.notify_waiters();
}
