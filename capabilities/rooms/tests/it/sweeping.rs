//! What goes when it is old, what is left out, and that nobody misses anything by it.

use futures_util::FutureExt;
use tidings_engine::log::{Commit, Commits};
use tidings_model::{Position, Timestamp};
use tidings_rooms::{Bounds, Capacity, Change, Cursor, Options, Room, Swept};

use crate::world::{DAY, SECOND, START, World, message, reaction, typing};

/// Of a room in which nobody has typed.
fn between(floor: Cursor, oldest: Option<Cursor>, head: Cursor) -> Bounds {
    Bounds { floor, oldest, head, ceiling: head }
}

async fn bounds(world: &World, room: &Room) -> Bounds {
    world.rooms.bounds(room).await.expect("bounds")
}

#[tokio::test]
async fn events_go_when_they_are_too_old_and_the_floor_is_the_last_that_went() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    assert_eq!(bounds(&world, &room).await, between(Cursor::ZERO, None, Cursor::ZERO));
    let mut cursors = Vec::new();
    for n in 0..200 {
        cursors.push(world.write(&room, message(&n.to_string())).await);
        world.clock.advance(SECOND);
    }
    let (first, last) = (cursors[0], cursors[199]);
    assert_eq!(bounds(&world, &room).await, between(Cursor::ZERO, Some(first), last));
    world.clock.advance(world.options.retention - 50 * SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
    let expected = between(cursors[150], Some(cursors[151]), last);
    assert_eq!(bounds(&world, &room).await, expected);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 0, "there is nothing more to let go of");
    // Below the floor something is missing, at it and above nothing is.
    for (after, count) in [(cursors[150], 49), (cursors[151], 48), (last, 0)] {
        assert_eq!(world.replayed(&room, after).await.len(), count);
    }
    world.clock.advance(DAY);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await, between(last, None, last));
}

#[tokio::test]
async fn age_counts_from_when_an_event_was_written_whatever_its_cursor_says() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.clock.advance(10 * SECOND);
    world.write(&room, message("a")).await;
    world.clock.set(START);
    let late = world.write(&room, message("b")).await;
    assert_eq!(late.millis(), (START + 10 * SECOND).as_millis());
    world.clock.advance(world.options.retention);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(
        bounds(&world, &room).await.oldest.map(|oldest| oldest < late),
        Some(true),
        "the first is younger"
    );
    world.clock.advance(10 * SECOND);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await.oldest, None);
}

#[tokio::test]
async fn a_clock_that_has_just_jumped_ahead_lets_nothing_go() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("a")).await;
    world.clock.set(START + 3 * world.options.retention);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 0);
    world.clock.advance(60 * SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1, "it was right");
}

#[tokio::test]
async fn nothing_goes_that_a_connected_reader_has_not_heard() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let first = world.write(&room, message("a")).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    assert_eq!(reader.hear(1).await, ["a"]);
    for n in 0..3000 {
        world.write(&room, message(&n.to_string())).await;
    }
    world.clock.advance(world.options.retention);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await.floor, first, "it has heard no more");
    assert_eq!(reader.hear(3001).await.last().map(String::as_str), Some("2999"));
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await.floor, world.ceiling(&room).await);
}

#[tokio::test]
async fn a_reader_that_stays_behind_holds_events_for_a_tenth_of_the_time_they_are_kept_and_no_longer() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    let first = world.write(&room, message("a")).await;
    reader.hear(1).await;
    let mut cursors = Vec::new();
    for n in 0..10 {
        cursors.push(world.write(&room, message(&n.to_string())).await);
        world.clock.advance(SECOND);
    }
    let held = world.options.retention + world.options.retention / 10;
    world.clock.advance(held - 11 * SECOND);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await.floor, first, "it is let hear what it has not heard");
    world.clock.advance(5 * SECOND);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(bounds(&world, &room).await.floor, cursors[4], "it took too long");
}

#[tokio::test]
async fn of_operations_on_a_reaction_the_last_stays_once_they_are_old_enough() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let lag = world.options.reaction_min_lag;
    world.write(&room, message("m")).await;
    let saw = world.write(&room, reaction("m", "ann", "+1", "add")).await;
    let removed = world.write(&room, reaction("m", "ann", "+1", "remove")).await;
    world.write(&room, reaction("m", "ann", "+1", "add")).await;
    world.write(&room, reaction("m", "bob", "+1", "add")).await;
    world.write(&room, reaction("m", "ann", "-1", "add")).await;
    world.write(&room, reaction("n", "ann", "+1", "add")).await;
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 0, "they are too young");
    world.clock.advance(lag);
    let young = world.write(&room, reaction("m", "ann", "+1", "remove")).await;
    let before = bounds(&world, &room).await;
    world.clock.advance(SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 2);
    let kept = ["m", "m ann +1 add", "m bob +1 add", "m ann -1 add", "n ann +1 add", "m ann +1 remove"];
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, kept);
    // Whoever saw the first comes to know the last, and a cursor of what is left out is as good as any.
    assert_eq!(world.replayed(&room, saw).await, kept[1..]);
    assert_eq!(world.replayed(&room, removed).await, kept[1..]);
    assert_eq!(bounds(&world, &room).await, before, "the floor does not move");
    world.clock.advance(lag);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 1, "the rest without another reaction");
    let kept = ["m", "m bob +1 add", "m ann -1 add", "n ann +1 add", "m ann +1 remove"];
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, kept, "that it was taken back stays");
    assert_eq!(bounds(&world, &room).await.head, young);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 0);
    assert_eq!(world.count("tidings_room_reactions_collapsed_total"), 3);
}

#[tokio::test]
async fn a_long_stretch_that_is_left_out_is_passed_over_and_survives_a_restart() {
    let mut world = World::new().await;
    let room = world.room("r", &[]).await;
    let long = "x".repeat(10_000);
    for n in 0..100 {
        let op = if n % 2 == 0 { "add" } else { "remove" };
        world.write(&room, reaction("m", &long, "+1", op)).await;
    }
    world.write(&room, message("end")).await;
    world.clock.advance(world.options.reaction_min_lag + SECOND);
    // It is stored that there are reactions to look through.
    world.restart().await;
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 99);
    for _ in 0..2 {
        let last = format!("m {long} +1 remove");
        assert_eq!(world.replayed(&room, Cursor::ZERO).await, [&*last, "end"]);
        let oldest = bounds(&world, &room).await.oldest.expect("there is one");
        assert_eq!(world.replayed(&room, oldest).await, ["end"]);
        world.restart().await;
    }
}

#[tokio::test]
async fn what_is_left_out_is_forgotten_when_it_goes() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    for op in ["add", "remove", "add"] {
        world.write(&room, reaction("m", "ann", "+1", op)).await;
    }
    world.clock.advance(DAY);
    world.write(&room, message("young")).await;
    world.rooms.sweep().await.expect("swept");
    let left_out = || world.store.look(|table, _| table.row(room.log).expect("a room").collapsed.len());
    assert_eq!(left_out(), 2);
    world.clock.advance(world.options.retention - DAY);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(left_out(), 0);
    assert_eq!(world.replayed(&room, bounds(&world, &room).await.floor).await, ["young"]);
}

#[tokio::test]
async fn positions_around_the_bounds_are_told_apart() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("old")).await;
    world.clock.advance(DAY);
    let oldest = world.write(&room, message("young")).await;
    world.clock.advance(world.options.retention - DAY);
    world.rooms.sweep().await.expect("swept");
    let ceiling = world.write(&room, typing("t")).await;
    let bounds = bounds(&world, &room).await;
    assert_eq!((bounds.oldest, bounds.head, bounds.ceiling), (Some(oldest), oldest, ceiling));
    let next =
        |cursor: Cursor, by: i128| Cursor::at(Position::new((cursor.position().get() as i128 + by) as u128));
    assert!(next(bounds.floor, -1) < bounds.floor, "stale");
    assert!(next(ceiling, 1) > bounds.ceiling, "of the future");
    assert_eq!(world.replayed(&room, bounds.floor).await, ["young"]);
    assert_eq!(world.replayed(&room, oldest).await, Vec::<String>::new());
    assert_eq!(world.replayed(&room, ceiling).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_sweep_looks_at_no_room_in_which_nothing_is_to_be_done() {
    let mut world = World::new().await;
    let mut rooms = Vec::new();
    for n in 0..20 {
        let room = world.room(&n.to_string(), &[]).await;
        world.write(&room, message("m")).await;
        for op in ["add", "remove"] {
            world.write(&room, reaction("m", "ann", "+1", op)).await;
        }
        rooms.push(room);
        world.clock.advance(SECOND);
    }
    world.clock.advance(world.options.reaction_min_lag);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 20);
    let looks = |world: &World| (world.faults.looked(), world.faults.read());
    // Also one that has just started.
    for _ in 0..2 {
        let before = looks(&world);
        assert_eq!(world.rooms.sweep().await.expect("swept"), Swept::default());
        assert_eq!(looks(&world), before);
        world.restart().await;
    }
    // One room is due, then it is not any more.
    let now = START + 20 * SECOND + world.options.reaction_min_lag;
    world.clock.advance((START + world.options.retention).since(now));
    let before = looks(&world);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
    assert!(looks(&world).0 > before.0, "at the room");
    assert_eq!(looks(&world).1, before.1 + 3, "its events");
    assert_eq!(bounds(&world, &rooms[0]).await.oldest, None);
    let before = looks(&world);
    assert_eq!(world.rooms.sweep().await.expect("swept"), Swept::default());
    assert_eq!(looks(&world), before);
    // Who writes there again makes it due again, in time.
    world.write(&rooms[0], message("again")).await;
    world.clock.advance(world.options.retention);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 20);
    assert_eq!(bounds(&world, &rooms[0]).await.oldest, None);
}

#[tokio::test]
async fn a_room_whose_first_event_stays_is_looked_at_again_when_that_is_old() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("a")).await;
    world.clock.advance(DAY);
    world.write(&room, message("b")).await;
    world.clock.advance(world.options.retention - DAY);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
    let before = world.faults.read();
    world.clock.advance(DAY - SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 0);
    assert_eq!(world.faults.read(), before);
    world.clock.advance(SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
}

#[tokio::test]
async fn an_event_that_comes_while_the_others_go_is_found_when_it_is_old() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("old")).await;
    world.clock.advance(world.options.retention);
    // The sweep has decided that nothing will be left, and its commit is on its way.
    let held = world.store.hold().await;
    let mut sweep = Box::pin(world.rooms.sweep());
    assert!((&mut sweep).now_or_never().is_none());
    let mut written = Box::pin(world.write(&room, message("young")));
    assert!((&mut written).now_or_never().is_none());
    drop(held);
    let (swept, _) = tokio::join!(sweep, written);
    assert_eq!(swept.expect("swept").trimmed, 1);
    assert_eq!(world.replayed(&room, bounds(&world, &room).await.floor).await, ["young"]);
    world.clock.advance(world.options.retention);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
    assert_eq!(bounds(&world, &room).await.oldest, None);
}

#[tokio::test]
async fn a_reaction_that_comes_while_others_are_looked_through_is_looked_at_later() {
    // It is on its way when the sweep looks, or comes when the sweep writes down that there are no more.
    for comes_first in [true, false] {
        let world = World::new().await;
        let room = world.room("r", &[]).await;
        for op in ["add", "remove"] {
            world.write(&room, reaction("m", "ann", "+1", op)).await;
        }
        world.clock.advance(world.options.reaction_min_lag + SECOND);
        let held = world.store.hold().await;
        let mut written = Box::pin(world.write(&room, reaction("m", "ann", "+1", "add")));
        let mut sweep = Box::pin(world.rooms.sweep());
        if comes_first {
            assert!((&mut written).now_or_never().is_none());
        }
        assert!((&mut sweep).now_or_never().is_none());
        assert!((&mut written).now_or_never().is_none());
        drop(held);
        let (swept, _) = tokio::join!(sweep, written);
        assert_eq!(swept.expect("swept").collapsed, 1);
        world.clock.advance(world.options.reaction_min_lag + SECOND);
        assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 1, "{comes_first}");
        assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["m ann +1 add"]);
    }
}

#[tokio::test]
async fn a_room_of_which_it_is_not_known_since_when_it_keeps_events_is_looked_at_once() {
    let world = World::new().await;
    let rooms = [world.room("empty", &[]).await, world.room("full", &[]).await];
    world.write(&rooms[1], message("m")).await;
    for room in &rooms {
        // As it is read from a store that was written before that was stored.
        let unknown = Change::Kept { log: room.log, since: Some(Timestamp::from_millis(0)) };
        world.store.commit(Commit::new().changing(unknown)).await.expect("committed");
    }
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 0);
    let kept_since =
        |room: &Room| world.store.look(|table, _| table.row(room.log).expect("a room").kept_since);
    assert_eq!([kept_since(&rooms[0]), kept_since(&rooms[1])], [None, Some(START)]);
    world.clock.advance(world.options.retention);
    assert_eq!(world.rooms.sweep().await.expect("swept").trimmed, 1);
}

#[tokio::test]
async fn a_reaction_whose_writer_left_before_it_was_answered_is_looked_at_as_any_other() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    for op in ["add", "remove"] {
        let held = world.faults.hold_answers().await;
        let mut writing = Box::pin(world.write(&room, reaction("m", "ann", "+1", op)));
        assert!((&mut writing).now_or_never().is_none());
        drop(writing);
        drop(held);
    }
    while world.count("tidings_room_events_total{kind=\"reactionEvent\"}") < 2 {
        tokio::task::yield_now().await;
    }
    world.clock.advance(world.options.reaction_min_lag + SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 1);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["m ann +1 remove"]);
}

#[tokio::test]
async fn of_redundant_reactions_no_more_are_left_out_than_may_be() {
    let capacity = Capacity { collapsed_per_room: 3, ..Capacity::default() };
    let world = World::with(Options { capacity, ..Options::default() }).await;
    let room = world.room("r", &[]).await;
    for n in 0..200 {
        world.write(&room, reaction("m", "ann", "+1", if n % 2 == 0 { "add" } else { "remove" })).await;
    }
    world.clock.advance(world.options.reaction_min_lag + SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 3);
    let left_out = || world.store.look(|table, _| table.row(room.log).expect("a room").collapsed.len());
    assert_eq!(left_out(), 3);
    let kept = world.replayed(&room, Cursor::ZERO).await;
    assert_eq!((kept.len(), kept[0].as_str()), (197, "m ann +1 remove"), "the first are left out");
    // There is no room for more, whoever reacts.
    world.write(&room, reaction("m", "ann", "+1", "add")).await;
    world.clock.advance(world.options.reaction_min_lag + SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 0);
    assert_eq!(left_out(), 3);
}

#[tokio::test]
async fn of_more_reactions_than_are_told_apart_more_are_kept_and_none_is_missing() {
    let capacity = Capacity { collapse_keys: 4, ..Capacity::default() };
    let world = World::with(Options { capacity, ..Options::default() }).await;
    let room = world.room("r", &[]).await;
    // Four can be told apart: a fifth lets all be forgotten.
    for actor in ["a", "b", "a", "c", "d", "e", "b", "e"] {
        world.write(&room, reaction("m", actor, "+1", "add")).await;
    }
    world.clock.advance(world.options.reaction_min_lag + SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").collapsed, 2);
    let kept = ["b", "a", "c", "d", "b", "e"].map(|actor| format!("m {actor} +1 add"));
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, kept);
}

#[tokio::test]
async fn of_rooms_in_memory_those_at_rest_make_room_for_others() {
    let capacity = Capacity { active_rooms: 4, ..Capacity::default() };
    let world = World::with(Options { capacity, ..Options::default() }).await;
    let listened = world.room("listened", &[]).await;
    let mut reader = world.listen(&listened, Cursor::ZERO).await;
    for n in 0..40 {
        let room = world.room(&n.to_string(), &[]).await;
        let first = world.write(&room, message("a")).await;
        assert!(world.write(&room, message("b")).await > first);
        assert!(world.rooms.active() <= 4, "{}", world.rooms.active());
    }
    assert!(world.rooms.ceiling(&listened).is_some(), "somebody listens to it");
    world.write(&listened, message("heard")).await;
    assert_eq!(reader.hear(1).await, ["heard"]);
}
