//! Cursors whose place is gone, or never was: who is told what, and how it goes on.

use super::*;

fn rooms() -> Options {
    Options { retention: DAY, sweep_interval: Duration::from_secs(60), ..Options::default() }
}

/// A room of which the first two events are gone and three are kept.
struct Aged {
    server: Harness,
    gone: Vec<String>,
    kept: Vec<String>,
}

impl Aged {
    async fn new() -> Self {
        let server = open_with(rooms()).await;
        let gone = write_messages(&server, 2).await;
        server.clock.advance(Duration::from_secs(3600));
        let kept = write_messages(&server, 3).await;
        until("all wait", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(DAY - Duration::from_secs(3600));
        until("all wait", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(rooms().sweep_interval);
        until("the first are gone", || trims(&server) > 0.0).await;
        Self { server, gone, kept }
    }

    fn stale(&self) -> &str {
        &self.gone[0]
    }

    fn floor(&self) -> &str {
        &self.gone[1]
    }

    fn head(&self) -> &str {
        &self.kept[2]
    }

    fn future(&self) -> String {
        cursor_of(number(self.head()) + 1)
    }

    fn alice(&self, wire: Wire) -> Guest {
        alice(&self.server, wire)
    }

    /// What is told of the room with whatever was asked for.
    fn detail(&self, detail: &Value, requested: Option<&str>) {
        assert_eq!(detail["floor"], json!(self.floor()));
        assert_eq!(detail["oldest"], json!(self.kept[0]));
        assert_eq!(detail["head"], json!(self.head()));
        assert_eq!(detail["requested"], json!(requested));
    }
}

#[tokio::test]
async fn a_cursor_is_good_from_the_floor_to_the_head() {
    let room = Aged::new().await;
    for wire in WIRES {
        let at = |cursor: &str| room.alice(wire).asking(&format!("cursor={cursor}&deviceId={wire:?}"));
        hears_all(&mut at(room.floor()).comes().await, &room.kept).await;
        let below = cursor_of(number(room.floor()) - 1);
        assert_eq!(at(&below).is_refused().await.what(), (410, "CursorCompacted"));
        hears_all(&mut at(&room.kept[0]).comes().await, &room.kept[1..]).await;
        assert_eq!(at(&room.future()).is_refused().await.what(), (410, "FutureCursor"));
        let mut oldest = at("oldest").comes().await;
        hears_all(&mut oldest, &room.kept).await;
    }
    let mut live = room.alice(Wire::Sse).asking(&format!("cursor={}", room.head())).comes().await;
    hears_only_what_is_new(&room.server, &mut live).await;
}

#[tokio::test]
async fn a_stale_cursor_in_the_address_is_410_with_all_that_is_needed_to_go_on() {
    let room = Aged::new().await;
    for wire in WIRES {
        for (cursor, name) in [(room.stale().to_owned(), "CursorCompacted"), (room.future(), "FutureCursor")]
        {
            let guest = room.alice(wire).asking(&format!("cursor={cursor}&deviceId={name}"));
            let refused = guest.is_refused().await;
            assert_eq!(refused.what(), (410, name));
            is_a_refusal(refused.status, &refused.headers, &refused.body);
            let detail = &refused.body["detail"];
            room.detail(detail, Some(&cursor));
            assert!(detail["epoch"].as_u64().is_some(), "{detail}");
        }
        // What it was told is enough to read all that is kept.
        let oldest = room.alice(wire).asking("cursor=oldest&deviceId=CursorCompacted");
        hears_all(&mut oldest.comes().await, &room.kept).await;
    }
}

#[tokio::test]
async fn after_410_the_next_stream_without_a_cursor_begins_with_why_and_only_that_one() {
    let room = Aged::new().await;
    for wire in WIRES {
        let device = |device: &str| room.alice(wire).asking(&format!("deviceId={device}-{wire:?}"));
        let stale = device("a").asking(&format!("cursor={}", room.stale()));
        assert_eq!(stale.is_refused().await.what(), (410, "CursorCompacted"));
        let server = &room.server;
        // Another device, another user and another room know nothing of it.
        hears_only_what_is_new(server, &mut device("b").comes().await).await;
        let bob = guest(server, wire, "bob", ROOM).asking(&format!("deviceId=a-{wire:?}"));
        hears_only_what_is_new(server, &mut bob.comes().await).await;
        let head = write(server, message("head")).await;
        let mut reader = device("a").comes().await;
        let info = reader.is_told("compacted").await;
        assert_eq!(info.cursor(), head, "it goes on at the head");
        assert_eq!(info.detail()["floor"], json!(room.floor()));
        assert_eq!(info.detail()["head"], json!(head));
        hears_only_what_is_new(server, &mut reader).await;
        let mut reader = device("a").comes().await;
        hears_only_what_is_new(server, &mut reader).await;
    }
    // Without a device, too.
    let nameless = room.alice(Wire::Sse);
    let stale = nameless.clone().asking(&format!("cursor={}", room.stale()));
    assert_eq!(stale.is_refused().await.status, 410);
    nameless.comes().await.is_told("compacted").await;
    let mut again = nameless.comes().await;
    hears_only_what_is_new(&room.server, &mut again).await;
}

#[tokio::test]
async fn a_stale_cursor_of_a_browser_is_told_in_the_stream_which_goes_on_at_the_head() {
    let room = Aged::new().await;
    for wire in WIRES {
        let cases = [
            (room.stale().to_owned(), "compacted", Some(room.stale().to_owned())),
            (cursor_of(u128::MAX), "reset", Some(cursor_of(u128::MAX))),
            ("nonsense".to_owned(), "reset", None),
            (format!("8{}", "Z".repeat(25)), "reset", None),
        ];
        for (cursor, reason, requested) in cases {
            let mut reader = room.alice(wire).having_heard(&cursor).comes().await;
            let info = reader.is_told(reason).await;
            let detail = info.detail();
            assert_eq!(detail["floor"], json!(room.floor()));
            assert_eq!(detail["oldest"], json!(room.kept[0]));
            assert_eq!((&detail["head"], &detail["requested"]), (&json!(info.cursor()), &json!(requested)));
            if wire != Wire::WebSocket {
                assert_eq!(reader.head["last-event-id"], *info.cursor());
            }
            hears_only_what_is_new(&room.server, &mut reader).await;
        }
    }
}

#[tokio::test]
async fn a_stale_resume_of_a_websocket_is_told_in_the_stream_which_goes_on_at_the_head() {
    let room = Aged::new().await;
    for (cursor, reason) in [(room.stale().to_owned(), "compacted"), (cursor_of(u128::MAX), "reset")] {
        let mut reader = room.alice(Wire::WebSocket).resuming(&cursor).comes().await;
        let info = reader.is_told(reason).await;
        assert_eq!(info.detail()["requested"], json!(cursor));
        assert_eq!(info.detail()["head"], json!(info.cursor()));
        hears_only_what_is_new(&room.server, &mut reader).await;
    }
}

#[tokio::test]
async fn a_client_may_say_what_is_to_become_of_it() {
    let room = Aged::new().await;
    for wire in WIRES {
        let by_address = |cursor: &str, policy: &str| {
            room.alice(wire).asking(&format!("cursor={cursor}&onStale={policy}&deviceId={wire:?}{policy}"))
        };
        let by_header = |cursor: &str, policy: &str| {
            room.alice(wire).asking(&format!("onStale={policy}")).having_heard(cursor)
        };
        let guests = |cursor: &str, policy: &str| match wire {
            Wire::WebSocket => vec![
                by_address(cursor, policy),
                by_header(cursor, policy),
                room.alice(wire).asking(&format!("onStale={policy}")).resuming(cursor),
            ],
            Wire::Sse | Wire::SseLater => vec![by_address(cursor, policy), by_header(cursor, policy)],
        };
        for (cursor, reason) in [(room.stale().to_owned(), "compacted"), (room.future(), "reset")] {
            for guest in guests(&cursor, "oldest") {
                let mut reader = guest.comes().await;
                let info = reader.is_told(reason).await;
                room.detail(info.detail(), Some(&cursor));
                hears_all(&mut reader, &room.kept).await;
            }
            for guest in guests(&cursor, "head") {
                let mut reader = guest.comes().await;
                let info = reader.is_told(reason).await;
                assert_eq!(info.cursor(), room.head());
            }
            for guest in guests(&cursor, "error").iter().take(2) {
                let refused = guest.is_refused().await;
                assert_eq!(refused.status, 410);
                room.detail(&refused.body["detail"], Some(&cursor));
            }
        }
        let bad = by_address(room.stale(), "newest").is_refused().await;
        assert_eq!(bad.what(), (400, "InvalidRequest"));
        // A place that is good is not asked about.
        for policy in ["oldest", "head", "error"] {
            for guest in guests(&room.kept[1], policy) {
                hears_all(&mut guest.comes().await, &room.kept[2..]).await;
            }
        }
    }
    for cursor in [room.stale().to_owned(), room.future()] {
        let mut reader = room.alice(Wire::WebSocket).asking("onStale=error").resuming(&cursor).comes().await;
        assert_eq!(reader.ends().await, Some(4410));
    }
}
