//! What is not kept is heard by those who are there, in its place, and nothing is missed by that.

use std::time::Duration;

use futures_util::FutureExt;
use tidings_engine::Clock;
use tidings_model::limits;
use tidings_rooms::Cursor;

use crate::world::{SECOND, World, message, typing, user, write};

#[tokio::test]
async fn typing_is_heard_in_its_place_by_those_who_are_there_and_never_again() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    for event in [message("a"), typing("t"), message("b"), typing("u")] {
        world.write(&room, event).await;
    }
    assert_eq!(reader.hear(4).await, ["a", "t", "b", "u"]);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "b"]);
    let typed = reader.heard[1].0;
    assert_eq!(world.replayed(&room, typed).await, ["b"]);
}

#[tokio::test]
async fn typing_that_nobody_hears_is_dropped_and_costs_a_commit_only_now_and_then() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, typing("t")).await;
    // Nothing can be committed any more.
    let held = world.store.hold().await;
    for _ in 0..3 {
        world.clock.advance(SECOND);
        world.write(&room, typing("t")).await;
    }
    world.clock.advance(SECOND);
    let mut fourth = Box::pin(write(&world.rooms, &room, typing("t")));
    assert!((&mut fourth).now_or_never().is_none(), "what was reserved has been used up");
    drop(held);
    fourth.await.expect("typed");
    assert_eq!(world.count("tidings_room_typing_dropped_total"), 5);
    assert_eq!(world.count("tidings_room_events_total{kind=\"typingEvent\"}"), 5);
}

#[tokio::test]
async fn typing_is_not_shown_while_an_event_with_a_lower_cursor_is_on_its_way() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    world.write(&room, typing("first")).await;
    let held = world.store.hold().await;
    let mut written = Box::pin(write(&world.rooms, &room, message("a")));
    assert!((&mut written).now_or_never().is_none());
    // The append has set out when its task has run.
    tokio::task::yield_now().await;
    let mut typed = Box::pin(write(&world.rooms, &room, typing("t")));
    assert!((&mut typed).now_or_never().is_none(), "it waits for what lies below it");
    let before = world.ceiling(&room).await;
    drop(held);
    let (written, typed) = (written.await.expect("written"), typed.await.expect("typed"));
    assert!(before < written && written < typed);
    assert_eq!(reader.hear(3).await, ["first", "a", "t"]);
    assert_eq!(world.replayed(&room, typed).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_append_whose_caller_went_away_holds_typing_back_until_it_has_arrived() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, typing("first")).await;
    let held = world.store.hold().await;
    let mut gone = Box::pin(write(&world.rooms, &room, message("a")));
    assert!((&mut gone).now_or_never().is_none());
    drop(gone);
    tokio::task::yield_now().await;
    let mut typed = Box::pin(write(&world.rooms, &room, typing("t")));
    assert!((&mut typed).now_or_never().is_none());
    drop(held);
    let typed = typed.await.expect("typed");
    let replayed = world.replay(&room, Cursor::ZERO).await;
    assert_eq!(replayed.len(), 1, "it was written all the same");
    assert!(replayed[0].0 < typed);
}

#[tokio::test]
async fn typing_is_heard_also_when_what_lies_above_it_is_shown_before_it_is_known_that_it_may_be() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    world.write(&room, typing("first")).await;
    let held = world.store.hold().await;
    let mut below = Box::pin(write(&world.rooms, &room, message("below")));
    assert!((&mut below).now_or_never().is_none());
    tokio::task::yield_now().await;
    let mut typed = Box::pin(write(&world.rooms, &room, typing("t")));
    assert!((&mut typed).now_or_never().is_none());
    let mut above = Box::pin(write(&world.rooms, &room, message("above")));
    assert!((&mut above).now_or_never().is_none());
    tokio::task::yield_now().await;
    // Both are in the log now, and neither writer knows.
    let unanswered = world.faults.hold_answers().await;
    drop(held);
    let heard_above = |heard: &[(Cursor, String)]| heard.iter().any(|(_, words)| words == "above");
    let reading = async {
        while !heard_above(&reader.heard) {
            reader.hear(reader.heard.len() + 1).await;
        }
        drop(unanswered);
    };
    let (below, typed, above, ()) = tokio::join!(below, typed, above, reading);
    let (below, typed) = (below.expect("written"), typed.expect("typed"));
    assert!(below < typed && typed < above.expect("written"));
    world.write(&room, message("end")).await;
    while reader.heard.last().is_none_or(|(_, words)| words != "end") {
        reader.hear(reader.heard.len() + 1).await;
    }
    assert_eq!(reader.hear(0).await, ["first", "below", "t", "above", "end"]);
}

#[tokio::test]
async fn a_cursor_of_typing_is_good_after_a_restart_and_is_not_given_again() {
    let mut world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("a")).await;
    let typed = world.write(&room, typing("t")).await;
    assert_eq!(world.ceiling(&room).await, typed);
    world.restart().await;
    let before = world.ceiling(&room).await;
    assert!(before >= typed, "it is not a cursor of the future");
    let mut reader = world.listen(&room, typed).await;
    let again = [world.write(&room, typing("u")).await, world.write(&room, message("b")).await];
    assert!(again.iter().all(|cursor| *cursor > typed));
    assert_eq!(reader.hear(2).await, ["u", "b"]);
}

#[tokio::test]
async fn however_often_the_server_starts_cursors_are_a_few_seconds_ahead_of_the_clock_at_most() {
    let mut world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut last = Cursor::ZERO;
    for n in 0..20u32 {
        world.clock.advance(Duration::from_millis(10));
        for event in [typing("t"), message("a"), typing("u")] {
            let next = world.write(&room, event).await;
            assert!(next > last);
            last = next;
        }
        let ahead = last.millis().saturating_sub(world.clock.now().as_millis());
        assert!(ahead <= 4000, "{ahead} ms after {n} restarts");
        world.restart().await;
    }
    // And while they are ahead it takes no more commits than otherwise.
    let before = world.faults.commits();
    for _ in 0..100 {
        world.write(&room, typing("t")).await;
    }
    assert_eq!(world.faults.commits(), before + 1);
}

#[tokio::test]
async fn a_room_that_was_let_go_of_gives_no_cursor_again() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let typed = world.write(&room, typing("t")).await;
    world.clock.advance(2 * limits::TYPING_KEPT);
    world.clock.set(crate::world::START);
    world.rooms.sweep().await.expect("swept");
    assert!(world.ceiling(&room).await >= typed);
    assert!(world.write(&room, typing("t")).await > typed);
}

#[tokio::test]
async fn of_much_typing_the_newest_is_heard() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    let many = limits::TYPING_PER_ROOM + 10;
    let batch = (0..many).map(|n| typing(&n.to_string())).collect();
    let written = world.rooms.write(&room, &user("ann"), batch, None).await.expect("typed");
    let heard = reader.hear(limits::TYPING_PER_ROOM).await;
    assert_eq!(heard, (10..many).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(written.events.len(), many, "each has a cursor all the same");
    assert_eq!(world.count("tidings_room_typing_dropped_total"), 10);
}

#[tokio::test]
async fn of_typing_that_comes_faster_than_it_is_heard_what_nobody_hears_is_counted() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    world.write(&room, typing("heard")).await;
    reader.hear(1).await;
    let half = limits::TYPING_PER_ROOM / 2;
    let ann = user("ann");
    let write = |n: usize| {
        let batch = (n * half..(n + 1) * half).map(|n| typing(&n.to_string())).collect();
        world.rooms.write(&room, &ann, batch, None)
    };
    for n in 0..3 {
        let written = write(n).now_or_never().expect("nobody else has a turn meanwhile");
        written.expect("typed");
    }
    let heard = reader.hear(1 + 2 * half).await;
    assert_eq!(heard[1..], (half..3 * half).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(world.count("tidings_room_typing_dropped_total"), half as u64);
    for n in 3..6 {
        write(n).await.expect("typed");
        reader.hear(1 + n * half).await;
    }
    assert_eq!(world.count("tidings_room_typing_dropped_total"), half as u64, "what was heard makes room");
}

#[tokio::test]
async fn messages_that_were_written_are_answered_also_if_typing_beside_them_can_be_told_to_nobody() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut reader = world.listen(&room, Cursor::ZERO).await;
    let held = world.store.hold().await;
    let (rooms, user) = (world.rooms.clone(), user("ann"));
    let batch = vec![typing("t"), message("a"), message("b")];
    let mut writing = Box::pin(rooms.write(&room, &user, batch, None));
    assert!((&mut writing).now_or_never().is_none(), "cursors are being reserved");
    drop(held);
    let held = world.faults.hold_answers().await;
    assert!((&mut writing).now_or_never().is_none());
    world.clock.advance(10 * SECOND);
    world.faults.full_after(1);
    drop(held);
    let written = writing.await.expect("the messages are durable").events;
    assert_eq!(reader.hear(2).await, ["a", "b"]);
    let (a, b) = (reader.heard[0].0, reader.heard[1].0);
    assert_eq!(written.iter().map(|(cursor, _)| *cursor).collect::<Vec<_>>(), [b, a, b]);
    assert_eq!(world.count("tidings_room_typing_dropped_total"), 1);
    assert!(write(&world.rooms, &room, typing("t")).await.is_err(), "alone it has failed");
}
