//! How far somebody has seen is known on each device: the furthest counts, and nothing that was never there.

use futures_util::FutureExt;
use tidings_engine::Clock;
use tidings_model::{Position, UserId, limits};
use tidings_rooms::{Capacity, Cursor, Options, Room, Rooms};

use crate::world::{HOUR, SECOND, World, device, message, user};

async fn cursors(world: &World, room: &Room, count: usize) -> Vec<Cursor> {
    let mut cursors = Vec::new();
    for n in 0..count {
        cursors.push(world.write(room, message(&n.to_string())).await);
    }
    cursors
}

async fn seen(rooms: &Rooms, room: &Room, of: &UserId) -> Vec<(String, Cursor)> {
    let seen = rooms.seen(room, of).await.expect("a room");
    seen.devices.into_iter().map(|(device, (cursor, _))| (device.to_string(), cursor)).collect()
}

#[tokio::test]
async fn the_furthest_counts_on_each_device_and_the_future_does_not() {
    let mut world = World::new().await;
    let (room, ann) = (world.room("r", &["ann"]).await, user("ann"));
    let cursors = cursors(&world, &room, 5).await;
    let future = Cursor::at(Position::new(cursors[4].position().get() + 1));
    for (device_id, cursor) in [("phone", 2), ("laptop", 4), ("phone", 1), ("watch", 0), ("laptop", 3)] {
        world.rooms.see(&room, &ann, &device(device_id), cursors[cursor], false).await.expect("seen");
    }
    world.rooms.see(&room, &ann, &device("watch"), future, false).await.expect("ignored");
    world.rooms.see(&room, &ann, &device("new"), future, true).await.expect("ignored");
    let expected = [("laptop", cursors[4]), ("phone", cursors[2]), ("watch", cursors[0])]
        .map(|(id, at)| (id.to_owned(), at));
    assert_eq!(seen(&world.rooms, &room, &ann).await, expected);
    assert_eq!(world.rooms.seen(&room, &ann).await.expect("seen").last(None), Some(cursors[4]));
    assert!(seen(&world.rooms, &room, &user("bob")).await.is_empty());
    world.rooms.see(&room, &ann, &device("laptop"), cursors[1], true).await.expect("rewound");
    world.restart().await;
    assert_eq!(seen(&world.rooms, &room, &ann).await[0], ("laptop".to_owned(), cursors[1]));
    assert_eq!(world.count("tidings_room_seen_writes_total"), 4);
}

#[tokio::test]
async fn what_is_noted_counts_at_once_and_is_written_once_a_second() {
    let world = World::new().await;
    let (room, ann, phone) = (world.room("r", &["ann"]).await, user("ann"), device("phone"));
    let cursors = cursors(&world, &room, 4).await;
    let tending = tokio::spawn(world.rooms.clone().maintain());
    while world.clock.sleepers() < 2 {
        tokio::task::yield_now().await;
    }
    for at in [1, 3, 2] {
        world.rooms.note_seen(&room, &ann, &phone, cursors[at]);
    }
    world.rooms.note_seen(&room, &ann, &device("x"), Cursor::at(Position::MAX));
    assert_eq!(seen(&world.rooms, &room, &ann).await, [("phone".to_owned(), cursors[3])]);
    assert_eq!(world.count("tidings_room_seen_writes_total"), 0);
    world.clock.advance(SECOND);
    while world.count("tidings_room_seen_writes_total") == 0 || world.clock.sleepers() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.count("tidings_room_seen_writes_total"), 1);
    assert_eq!(seen(&world.taken_over().await, &room, &ann).await, [("phone".to_owned(), cursors[3])]);
    tending.abort();
}

#[tokio::test]
async fn what_was_never_there_does_not_stand_in_the_way_of_what_is_noted() {
    let world = World::new().await;
    let (room, ann, phone) = (world.room("r", &["ann"]).await, user("ann"), device("phone"));
    let cursors = cursors(&world, &room, 2).await;
    for cursor in [cursors[0], Cursor::at(Position::MAX), cursors[1]] {
        world.rooms.note_seen(&room, &ann, &phone, cursor);
    }
    assert_eq!(seen(&world.rooms, &room, &ann).await, [("phone".to_owned(), cursors[1])]);
    world.rooms.write_pending_receipts().await.expect("written");
    assert_eq!(seen(&world.taken_over().await, &room, &ann).await, [("phone".to_owned(), cursors[1])]);
}

#[tokio::test]
async fn what_is_noted_is_known_also_while_it_is_being_written() {
    let world = World::new().await;
    let (room, ann, phone) = (world.room("r", &["ann"]).await, user("ann"), device("phone"));
    let cursors = cursors(&world, &room, 1).await;
    world.rooms.note_seen(&room, &ann, &phone, cursors[0]);
    let rooms = world.rooms.clone();
    world.faults.after_look(move || {
        let written = rooms.write_pending_receipts().now_or_never();
        written.expect("nothing to wait for").expect("written");
    });
    assert_eq!(seen(&world.rooms, &room, &ann).await, [("phone".to_owned(), cursors[0])]);
    assert_eq!(world.count("tidings_room_seen_writes_total"), 1, "it was written meanwhile");
}

#[tokio::test]
async fn many_tell_at_once_how_far_they_have_seen() {
    let world = World::new().await;
    let room = world.room("r", &["ann", "bob"]).await;
    let (cursors, phone) = (cursors(&world, &room, 1).await, device("phone"));
    let before = world.faults.commits();
    let held = world.store.hold().await;
    let (ann, bob) = (user("ann"), user("bob"));
    let see = |of| Box::pin(world.rooms.see(&room, of, &phone, cursors[0], false));
    let mut both = [see(&ann), see(&bob)];
    for one in &mut both {
        assert!(one.now_or_never().is_none());
    }
    assert_eq!(world.faults.commits(), before + 2, "neither waits for the other");
    drop(held);
    for one in both {
        one.await.expect("seen");
    }
}

#[tokio::test]
async fn what_was_noted_does_not_undo_a_rewind() {
    let world = World::new().await;
    let (room, ann, phone) = (world.room("r", &["ann"]).await, user("ann"), device("phone"));
    let cursors = cursors(&world, &room, 3).await;
    world.rooms.note_seen(&room, &ann, &phone, cursors[2]);
    world.rooms.see(&room, &ann, &phone, cursors[0], true).await.expect("rewound");
    world.rooms.write_pending_receipts().await.expect("written");
    assert_eq!(seen(&world.rooms, &room, &ann).await, [("phone".to_owned(), cursors[0])]);
}

#[tokio::test]
async fn of_many_devices_the_one_that_was_silent_for_the_longest_is_forgotten() {
    let world = World::new().await;
    let (room, ann) = (world.room("r", &["ann"]).await, user("ann"));
    let cursors = cursors(&world, &room, 2).await;
    for n in 0..limits::DEVICES_PER_MEMBER {
        world.rooms.see(&room, &ann, &device(&n.to_string()), cursors[0], false).await.expect("seen");
        world.clock.advance(SECOND);
    }
    world.rooms.see(&room, &ann, &device("0"), cursors[1], false).await.expect("seen");
    world.clock.advance(SECOND);
    world.rooms.see(&room, &ann, &device("one more"), cursors[0], false).await.expect("seen");
    let known: Vec<_> = seen(&world.rooms, &room, &ann).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(known.len(), limits::DEVICES_PER_MEMBER);
    assert!(known.contains(&"0".to_owned()) && known.contains(&"one more".to_owned()));
    assert!(!known.contains(&"1".to_owned()));
}

#[tokio::test]
async fn how_far_somebody_has_seen_is_forgotten_after_twice_the_time_that_events_are_kept() {
    let world = World::new().await;
    let (room, ann) = (world.room("r", &["ann"]).await, user("ann"));
    let cursors = cursors(&world, &room, 2).await;
    world.rooms.see(&room, &ann, &device("old"), cursors[0], false).await.expect("seen");
    world.clock.advance(SECOND);
    world.rooms.see(&room, &ann, &device("new"), cursors[0], false).await.expect("seen");
    world.clock.advance(2 * world.options.retention - SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").forgotten, 0);
    world.clock.advance(std::time::Duration::from_millis(1));
    assert_eq!(world.rooms.sweep().await.expect("swept").forgotten, 1);
    let left: Vec<_> = seen(&world.rooms, &room, &ann).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(left, ["new"]);
    assert!(world.clock.now() > crate::world::START);
}

#[tokio::test]
async fn a_device_that_tells_the_same_again_is_not_forgotten_and_that_costs_a_write_an_hour() {
    let world = World::new().await;
    let (room, ann) = (world.room("r", &["ann"]).await, user("ann"));
    let cursors = cursors(&world, &room, 1).await;
    let writes = || world.count("tidings_room_seen_writes_total");
    for id in ["asks", "notes"] {
        world.rooms.see(&room, &ann, &device(id), cursors[0], false).await.expect("seen");
    }
    let tell = async || {
        world.rooms.see(&room, &ann, &device("asks"), cursors[0], false).await.expect("seen");
        world.rooms.note_seen(&room, &ann, &device("notes"), cursors[0]);
        world.rooms.write_pending_receipts().await.expect("written");
    };
    world.clock.advance(HOUR - SECOND);
    tell().await;
    assert_eq!(writes(), 2, "it is known");
    world.clock.advance(SECOND);
    tell().await;
    tell().await;
    assert_eq!(writes(), 4, "it is told to be there still, once");
    world.clock.advance(2 * world.options.retention - HOUR);
    assert_eq!(world.rooms.sweep().await.expect("swept").forgotten, 0);
    assert_eq!(seen(&world.rooms, &room, &ann).await.len(), 2);
    world.clock.advance(HOUR + SECOND);
    assert_eq!(world.rooms.sweep().await.expect("swept").forgotten, 1, "when it is silent it is");
}

#[tokio::test]
async fn of_more_than_can_be_noted_the_rest_is_as_if_it_had_not_been_said_and_counted() {
    let capacity = Capacity { noted_seen: 2, ..Capacity::default() };
    let world = World::with(Options { capacity, ..Options::default() }).await;
    let room = world.room("r", &["ann"]).await;
    let first = world.write(&room, message("a")).await;
    let second = world.write(&room, message("b")).await;
    for name in ["phone", "watch", "laptop"] {
        world.rooms.note_seen(&room, &user("ann"), &device(name), first);
    }
    assert_eq!(world.count("tidings_room_seen_dropped_total"), 1);
    // Those that are noted already may go on.
    world.rooms.note_seen(&room, &user("ann"), &device("phone"), second);
    world.rooms.write_pending_receipts().await.expect("written");
    let seen = world.rooms.seen(&room, &user("ann")).await.expect("a room");
    assert_eq!(seen.last(Some(&device("phone"))), Some(second));
    assert_eq!(seen.last(Some(&device("watch"))), Some(first));
    assert_eq!(seen.last(Some(&device("laptop"))), None);
    // When they are written, there is room again.
    world.rooms.note_seen(&room, &user("ann"), &device("laptop"), first);
    world.rooms.write_pending_receipts().await.expect("written");
    let seen = world.rooms.seen(&room, &user("ann")).await.expect("a room");
    assert_eq!(seen.last(Some(&device("laptop"))), Some(first));
    assert_eq!(world.count("tidings_room_seen_dropped_total"), 1);
}
