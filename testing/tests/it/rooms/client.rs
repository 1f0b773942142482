//! The client in Rust and a real server, with trouble between them.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_client::rooms::{
    self, Client, ConnectionState, Handler, InMemory, MissedEvents, Stopped, Target, Token,
};

use super::proxy::{Proxy, Then, Way};
use super::*;

/// Nobody waits: what a client waits for before it comes again has passed at once.
struct Hurry;

impl tidings_client::Clock for Hurry {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // Longer ones are given to the server: they are not to pass.
        if duration > Duration::from_secs(31) {
            return Box::pin(std::future::pending());
        }
        // A moment all the same: while its server is away the client would try without end.
        Box::pin(tokio::time::sleep(Duration::from_millis(1)))
    }
}

/// Notes what it hears, until the last.
#[derive(Default)]
struct Notes {
    heard: Vec<String>,
    skips: usize,
    states: Vec<ConnectionState>,
    /// Connections are narrowed anew each time.
    narrow: Option<(Arc<Proxy>, fastrand::Rng, std::net::SocketAddr)>,
}

impl Handler for Notes {
    type Error = &'static str;

    async fn event(&mut self, event: &rooms::Event) -> Result<(), Self::Error> {
        self.heard.push(event.cursor.to_string());
        if event.payload["messageView"]["id"] == "last" { Err("that was the last") } else { Ok(()) }
    }

    fn skipped(&mut self, _: &MissedEvents) {
        self.skips += 1;
    }

    fn state(&mut self, state: &ConnectionState) {
        if let (ConnectionState::Connecting, Some((proxy, rng, to))) = (state, &mut self.narrow) {
            proxy.set(Way::Narrow { to: *to, bytes: rng.usize(200..12_000), then: Then::Cut });
        }
        self.states.push(state.clone());
    }
}

fn client(
    server: &Harness,
    wire: rooms::Wire,
    proxy: &Proxy,
    notes: Notes,
    last: InMemory,
) -> Client<Notes, InMemory, Token> {
    let target = Target::new(&format!("http://{}", proxy.address), "app", ROOM).expect("a target").on(wire);
    let token = Token(token(server, "alice"));
    Client::new(target, notes, last).with_credential(token).with_clock(Arc::new(Hurry))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_hears_all_in_order_and_once_through_a_hundred_cuts() {
    for (wire, seed) in [(rooms::Wire::Sse, 1), (rooms::Wire::WebSocket, 2)] {
        let server = open().await;
        let first = write(&server, message("first")).await;
        let proxy = Arc::new(Proxy::start(Way::Closed).await);
        let narrow = Some((proxy.clone(), fastrand::Rng::with_seed(seed), server.address()));
        let last = InMemory::at(first.parse().expect("a cursor"));
        let mut client = client(&server, wire, &proxy, Notes { narrow, ..Notes::default() }, last);
        let writing = async {
            let mut written = Vec::new();
            for burst in 0..40 {
                let some: Vec<_> = (0..100).map(|n| message(format!("{burst}.{n}"))).collect();
                written.extend(writes(&server, &some).await);
            }
            written.push(write(&server, message("last")).await);
            written
        };
        let (written, stopped) = tokio::join!(writing, client.run());
        assert!(matches!(stopped, Stopped::Handler(_)), "{stopped}");
        let notes = client.handler();
        assert!(notes.heard == written, "{} of {}", notes.heard.len(), written.len());
        assert_eq!(notes.skips, 0);
        let visits = notes.states.iter().filter(|state| **state == ConnectionState::Streaming).count();
        assert!(visits >= 100, "{visits}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_goes_on_when_the_server_was_restarted_and_when_its_place_is_gone() {
    for wire in [rooms::Wire::Sse, rooms::Wire::WebSocket] {
        let options = Options::default();
        let server = open_on(TestStore::Embedded, options.clone()).await;
        let before = write_messages(&server, 3).await;
        let proxy = Proxy::start(Way::Open(server.address())).await;
        let last = InMemory::at(before[0].parse().expect("a cursor"));
        let mut following = client(&server, wire, &proxy, Notes::default(), last.clone());
        let working = async {
            let server = server.restart().await;
            proxy.set(Way::Open(server.address()));
            write(&server, message("last")).await;
            server
        };
        let (server, stopped) = tokio::join!(working, following.run());
        assert!(matches!(stopped, Stopped::Handler(_)), "{stopped}");
        let heard = &following.handler().heard;
        assert_eq!((heard.len(), &heard[..2]), (3, &before[1..]));

        // It was away for longer than events are kept: it is told, and goes on with what is new.
        let_pass(&server, 2).await;
        let_age(&server, &options).await;
        let mut following = client(&server, wire, &proxy, Notes::default(), last);
        let working = async {
            until("it follows again", || {
                server.metric("tidings_live_readers{transport=\"sse\"}").unwrap_or_default()
                    + server.metric("tidings_live_readers{transport=\"websocket\"}").unwrap_or_default()
                    > 0.0
            })
            .await;
            write(&server, message("last")).await
        };
        let (newest, stopped) = tokio::join!(working, following.run());
        assert!(matches!(stopped, Stopped::Handler(_)), "{stopped}");
        let notes = following.handler();
        assert_eq!((&notes.heard[..], notes.skips), (&[newest][..], 1));
    }
}
