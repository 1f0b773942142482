//! What goes when it is old, what is left out, and that nobody misses anything by it.

use tidings_model::Position;
use tidings_rooms::{Bounds, Cursor, Room};

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
    // Nobody remembers that there were reactions; the first sweep looks everywhere.
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
