//! What is kept, for how long, and what is left out earlier.

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn rooms() -> Options {
    Options { retention: DAY, sweep_interval: MINUTE, ..Options::default() }
}

/// How many reactions were left out so far.
fn collapsed(server: &Harness) -> f64 {
    server.metric("tidings_room_reactions_collapsed_total").unwrap_or_default()
}

/// Lets so much time pass that reactions may be left out, and a sweep.
async fn let_collapse(server: &Harness) {
    let_pass(server, 125).await;
}

/// All that is kept.
async fn kept(server: &Harness) -> Vec<Event> {
    let mut reader = alice(server, Wire::Sse).asking("cursor=oldest&caughtUp=1").comes().await;
    let mut events = Vec::new();
    loop {
        let event = reader.hears().await;
        if event.kind == "infoEvent" {
            return events;
        }
        events.push(event);
    }
}

async fn kept_cursors(server: &Harness) -> Vec<String> {
    kept(server).await.iter().map(|event| event.cursor().to_owned()).collect()
}

#[tokio::test]
async fn events_are_kept_as_long_as_is_set_and_then_they_go_and_the_floor_rises() {
    let server = open_with(rooms()).await;
    let first = write_messages(&server, 2).await;
    let_pass(&server, 1).await;
    server.clock.advance(DAY / 2);
    let second = writes(&server, &[message(1), reaction("1", "bob", "+1", "add")]).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(DAY / 2 - 3 * MINUTE);
    let_pass(&server, 61).await;
    assert_eq!(kept_cursors(&server).await, [first.clone(), second.clone()].concat(), "not yet");
    let_pass(&server, 180).await;
    until("the first are gone", || trims(&server) > 0.0).await;
    assert_eq!(kept_cursors(&server).await, second);
    let refused = alice(&server, Wire::Sse).asking(&format!("cursor={}", first[0])).is_refused().await;
    assert_eq!(refused.what(), (410, "CursorCompacted"));
    assert_eq!(refused.body["detail"]["floor"], json!(first[1]));
    assert_eq!(refused.body["detail"]["oldest"], json!(second[0]));
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(DAY);
    let_pass(&server, 61).await;
    until("all are gone", || trims(&server) > 1.0).await;
    assert_eq!(kept_cursors(&server).await, [""; 0]);
    let refused = alice(&server, Wire::Sse).asking(&format!("cursor={}", first[1])).is_refused().await;
    assert_eq!(
        refused.body["detail"],
        json!({
            "floor": second[1], "oldest": null, "head": second[1], "requested": first[1],
            "epoch": refused.body["detail"]["epoch"],
        })
    );
    let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={}", second[1])).comes().await;
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn nothing_goes_before_fourteen_days_and_a_sweep_runs_every_hour() {
    let server = open().await;
    write_messages(&server, 1).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(14 * DAY - 2 * MINUTE);
    let_pass(&server, 60).await;
    assert_eq!(kept(&server).await.len(), 1);
    // It was swept a moment ago; an hour later it is again.
    let_pass(&server, 120).await;
    assert_eq!((kept(&server).await.len(), trims(&server)), (1, 0.0), "old enough, but nobody has looked");
    server.clock.advance(Duration::from_secs(3600));
    until("it is gone", || trims(&server) == 1.0).await;
    assert_eq!(kept(&server).await.len(), 0);
}

/// Messages that fill sockets.
fn large(count: usize) -> Vec<Value> {
    let large = |n: usize| {
        let view = json!({ "id": n.to_string(), "filling": "x".repeat(8000) });
        json!({ "type": "messageEvent", "payload": { "messageView": view } })
    };
    (0..count).map(large).collect()
}

/// A short time of keeping, and nothing in memory for who is behind: what is not in the store any more is gone.
fn short() -> Options {
    Options { retention: 10 * MINUTE, ring: 1, ..rooms() }
}

#[tokio::test]
async fn who_is_connected_hears_all_of_it_whatever_goes() {
    let server = open_with(short()).await;
    // Who says nothing on a WebSocket for so long is given up.
    for wire in [Wire::Sse, Wire::SseLater] {
        // It has not read any of this, and much of it is still on the server's side.
        let mut reader = alice(&server, wire).narrow().asking("cursor=head").comes().await;
        let_pass(&server, 2).await;
        let before = trims(&server);
        let cursors = writes(&server, &large(200)).await;
        server.clock.advance(9 * MINUTE);
        let_pass(&server, 90).await;
        until("a sweep found them too old", || trims(&server) > before).await;
        let asked = format!("cursor={}&deviceId={wire:?}", cursors[0]);
        assert_eq!(alice(&server, wire).asking(&asked).is_refused().await.status, 410, "some are gone");
        let asked = format!("cursor={}&deviceId={wire:?}", cursors[150]);
        drop(alice(&server, wire).asking(&asked).comes().await);
        hears_all(&mut reader, &cursors).await;
        hears_only_what_is_new(&server, &mut reader).await;
        // When it has heard them, they go.
        let before = trims(&server);
        let_pass(&server, 65).await;
        until("they are gone", || trims(&server) > before).await;
        let asked = format!("cursor={}&deviceId={wire:?}", cursors[150]);
        assert_eq!(alice(&server, wire).asking(&asked).is_refused().await.status, 410);
        hears_only_what_is_new(&server, &mut reader).await;
        drop(reader);
        until("it has gone", || server.server().live_connections().is_empty()).await;
    }
}

#[tokio::test]
async fn who_is_connected_and_takes_a_tenth_longer_than_is_kept_is_told_that_it_missed_something() {
    let server = open_with(short()).await;
    for wire in [Wire::Sse, Wire::SseLater] {
        let mut reader = alice(&server, wire).narrow().asking("cursor=head").comes().await;
        let_pass(&server, 2).await;
        let cursors = writes(&server, &large(200)).await;
        server.clock.advance(9 * MINUTE);
        let_pass(&server, 185).await;
        let mut heard = 0;
        let info = loop {
            let event = reader.hears().await;
            if event.kind == "infoEvent" {
                break event;
            }
            assert_eq!(event.cursor(), cursors[heard]);
            heard += 1;
        };
        assert_eq!((info.reason(), info.cursor()), ("compacted", &*cursors[heard - 1]));
        assert!(heard < cursors.len(), "{heard}");
        assert_eq!(reader.ends().await, None);
        // It comes again as browsers do, is told what it missed, and goes on with what is new.
        let mut again = alice(&server, wire).having_heard(info.cursor()).comes().await;
        assert_eq!(again.is_told("compacted").await.detail()["floor"], json!(cursors[199]));
        hears_only_what_is_new(&server, &mut again).await;
        drop((reader, again));
        until("it has gone", || server.server().live_connections().is_empty()).await;
    }
}

#[tokio::test]
async fn of_reactions_that_replace_each_other_the_last_is_kept() {
    let server = open_with(rooms()).await;
    let first = writes(
        &server,
        &[
            message(1),
            reaction("1", "bob", "+1", "add"),
            reaction("1", "bob", "+1", "remove"),
            reaction("1", "carol", "+1", "add"),
            reaction("1", "bob", "heart", "add"),
            reaction("2", "bob", "+1", "add"),
        ],
    )
    .await;
    let second = write(&server, reaction("1", "bob", "+1", "add")).await;
    assert_eq!(kept(&server).await.len(), 7, "nothing is old enough");
    let_collapse(&server).await;
    until("they are left out", || collapsed(&server) == 2.0).await;
    let expected = [&first[0], &first[3], &first[4], &first[5], &second].map(String::clone);
    assert_eq!(kept_cursors(&server).await, expected);
    // That moves no floor: a cursor from before, or of one that is left out, is as good as ever.
    for wire in WIRES {
        let from = |cursor: &String| alice(&server, wire).asking(&format!("cursor={cursor}"));
        hears_all(&mut from(&first[0]).comes().await, &expected[1..]).await;
        hears_all(&mut from(&first[1]).comes().await, &expected[1..]).await;
        hears_all(&mut from(&first[2]).comes().await, &expected[1..]).await;
        let mut browser = alice(&server, wire).having_heard(&first[1]).comes().await;
        hears_all(&mut browser, &expected[1..]).await;
    }
    assert_eq!(trims(&server), 0.0);
}

#[tokio::test]
async fn reactions_that_are_young_stay_as_they_are() {
    let server = open_with(Options { reaction_min_lag: 30 * MINUTE, ..rooms() }).await;
    let old =
        writes(&server, &[reaction("1", "bob", "+1", "add"), reaction("1", "bob", "+1", "remove")]).await;
    let_pass(&server, 1).await;
    server.clock.advance(20 * MINUTE);
    let young =
        writes(&server, &[reaction("1", "bob", "+1", "add"), reaction("1", "bob", "+1", "remove")]).await;
    let_pass(&server, 65).await;
    assert_eq!(kept_cursors(&server).await, [old.clone(), young.clone()].concat());
    server.clock.advance(10 * MINUTE);
    let_pass(&server, 125).await;
    until("the old ones are left out", || collapsed(&server) >= 1.0).await;
    let kept = kept_cursors(&server).await;
    assert!(kept.ends_with(&young), "{kept:?}");
}

#[tokio::test]
async fn who_saw_the_reaction_learns_that_it_is_gone_as_long_as_anything_is_kept() {
    let server = open_with(rooms()).await;
    write(&server, message(1)).await;
    let added = write(&server, reaction("1", "bob", "+1", "add")).await;
    // A client that sees this much, and then is away.
    let_collapse(&server).await;
    let removed = write(&server, reaction("1", "bob", "+1", "remove")).await;
    let_collapse(&server).await;
    until("the first is left out", || collapsed(&server) == 1.0).await;
    for _ in 0..3 {
        until("all wait", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(DAY / 4);
        let_pass(&server, 61).await;
        let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={added}")).comes().await;
        let event = reader.hears().await;
        assert_eq!((event.cursor(), &event.payload()["op"]), (&*removed, &json!("remove")));
    }
    let events = kept(&server).await;
    assert_eq!(events.len(), 2, "a message, and that the reaction is gone");
}

#[tokio::test]
async fn add_remove_and_add_again_across_sweeps_leaves_the_last() {
    let server = open_with(rooms()).await;
    let mut last = String::new();
    let mut seen = Vec::new();
    for op in ["add", "remove", "add", "remove", "add"] {
        last = write(&server, reaction("1", "bob", "+1", op)).await;
        seen.push(last.clone());
        let_collapse(&server).await;
    }
    until("all but the last are left out", || collapsed(&server) == 4.0).await;
    assert_eq!(kept_cursors(&server).await, [last.clone()]);
    // Whoever has seen any of them is told how it is now.
    for cursor in &seen[..4] {
        let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={cursor}")).comes().await;
        hears_all(&mut reader, std::slice::from_ref(&last)).await;
    }
    let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={last}")).comes().await;
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn what_was_left_out_stays_out_after_a_restart() {
    let server = open_on(TestStore::Embedded, rooms()).await;
    let cursors = writes(
        &server,
        &[message(1), reaction("1", "bob", "+1", "add"), reaction("1", "bob", "+1", "remove")],
    )
    .await;
    let_collapse(&server).await;
    until("one is left out", || collapsed(&server) == 1.0).await;
    let server = server.restart().await;
    let expected = [cursors[0].clone(), cursors[2].clone()];
    assert_eq!(kept_cursors(&server).await, expected);
    let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={}", cursors[1])).comes().await;
    hears_all(&mut reader, &expected[1..]).await;
}
