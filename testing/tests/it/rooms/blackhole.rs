//! Connections that fall silent in the middle of a burst.

use super::proxy::{Proxy, Then, Way};
use super::*;

/// How often a connection falls silent at least.
const CUTS: usize = 100;
const BURSTS: usize = 40;
const PER_BURST: usize = 100;

/// Follows a room to its last event, on connections each of which loses what comes after some byte. What was heard, in
/// order, and how often it had to come again.
async fn follows_to_the_end(
    guest: Guest,
    proxy: &Proxy,
    server: &Harness,
    seed: u64,
) -> (Vec<String>, usize) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut heard, mut cuts): (Vec<String>, usize) = (Vec::new(), 0);
    loop {
        // Often in the middle of an event, sometimes of the answer's head.
        let then = if rng.bool() { Then::Silence } else { Then::Cut };
        proxy.set(Way::Narrow { to: server.address(), bytes: rng.usize(200..12_000), then });
        let mut silent = proxy.watch();
        let guest = match (guest.wire, rng.u8(..3), heard.last()) {
            (_, _, None) => guest.clone().asking("cursor=oldest"),
            (Wire::WebSocket, 0, Some(last)) => guest.clone().resuming(last),
            (_, 1, Some(last)) => guest.clone().having_heard(last),
            (_, _, Some(last)) => guest.clone().asking(&format!("cursor={last}")),
        };
        let ended = match then {
            Then::Cut => hear(guest, &mut heard).await,
            Then::Silence => tokio::select! {
                biased;
                ended = hear(guest, &mut heard) => ended,
                // Nobody tells it: it gives up, wherever it is.
                _ = silent.changed() => false,
            },
        };
        if ended {
            return (heard, cuts);
        }
        cuts += 1;
    }
}

/// Hears what comes on one connection. Tells whether that was all.
async fn hear(guest: Guest, heard: &mut Vec<String>) -> bool {
    let Ok(answer) = guest.attempts().await else { return false };
    let mut reader = answer.expect("it is let in");
    while let Some(event) = reader.next().await {
        heard.push(event.cursor().to_owned());
        if event.payload()["messageView"]["id"] == "last" {
            return true;
        }
    }
    assert!(reader.broken, "it was cut, it did not end");
    false
}

/// A server to which somebody writes in bursts while the test goes on.
async fn bursts(server: &Harness) -> Vec<String> {
    let mut written = Vec::new();
    for burst in 0..BURSTS {
        let some: Vec<Value> = (0..PER_BURST)
            .map(|n| match n % 5 {
                0 => reaction("1", "bob", &format!("{burst}.{n}"), "add"),
                _ => message(format!("{burst}.{n}")),
            })
            .collect();
        written.extend(writes(server, &some).await);
        server.clock.advance(Duration::from_millis(1));
    }
    written.push(write(server, message("last")).await);
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_fall_silent_in_a_burst_cost_nothing_and_double_nothing() {
    for (wire, seed) in WIRES.into_iter().zip(1..) {
        let server = open().await;
        let proxy = Proxy::start(Way::Closed).await;
        let guest = alice(&server, wire).through(proxy.address);
        let (written, (heard, cuts)) =
            tokio::join!(bursts(&server), follows_to_the_end(guest, &proxy, &server, seed));
        assert_eq!(written.len(), BURSTS * PER_BURST + 1);
        assert!(heard == written, "all of it, in order, once: {} of {}", heard.len(), written.len());
        assert!(cuts >= CUTS, "{cuts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_overlap_only_the_last_event_before_the_silence_comes_again() {
    for (wire, seed) in [(Wire::Sse, 11), (Wire::WebSocket, 12)] {
        let server = open().await;
        let proxy = Proxy::start(Way::Closed).await;
        let guest = alice(&server, wire).asking("overlap=1").through(proxy.address);
        let (written, (heard, cuts)) =
            tokio::join!(bursts(&server), follows_to_the_end(guest, &proxy, &server, seed));
        assert!(cuts >= CUTS, "{cuts}");
        let mut once = heard.clone();
        once.dedup();
        assert!(once == written, "a client that drops doubles has heard all, once and in order");
        let doubles = heard.len() - once.len();
        assert!((1..=cuts).contains(&doubles), "{doubles} doubles, {cuts} cuts");
    }
}
