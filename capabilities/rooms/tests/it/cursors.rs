//! Cursors of a room only grow.

use std::time::Duration;

use tidings_engine::Clock;
use tidings_model::RoomId;
use tidings_rooms::{Cursor, RoomError};

use crate::world::{DAY, SECOND, START, World, message, payloads, project, reaction, typing, user, write};

#[tokio::test]
async fn events_of_one_millisecond_follow_each_other_and_a_later_one_is_drawn_anew() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let first = world.write(&room, message("a")).await;
    assert_eq!(first.millis(), START.as_millis());
    for n in 1..100 {
        let next = world.write(&room, message("b")).await;
        assert_eq!(next.position().get(), first.position().get() + n);
    }
    world.clock.advance(Duration::from_millis(1));
    let later = world.write(&room, message("c")).await;
    assert_eq!(later.millis(), START.as_millis() + 1);
    assert!(later.position().get() > first.position().get() + 100);
}

#[tokio::test]
async fn a_batch_is_one_behind_the_other_and_typing_lies_behind_it() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let batch = vec![message("a"), typing("t"), reaction("a", "bob", "x", "add"), message("b")];
    let written = world.rooms.write(&room, &user("ann"), batch, None).await.expect("written");
    let places: Vec<_> = written.events.iter().map(|(cursor, _)| cursor.position().get()).collect();
    assert_eq!((places[2], places[3]), (places[0] + 1, places[0] + 2));
    assert!(places[1] > places[3]);
    assert!(written.events.iter().all(|(_, at)| *at == START) && !written.duplicate);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "a bob x add", "b"]);
}

#[tokio::test]
async fn cursors_grow_when_the_clock_goes_back_and_when_the_server_starts_again_with_it() {
    let mut world = World::new().await;
    let room = world.room("r", &[]).await;
    world.clock.advance(20 * SECOND);
    let mut last = world.write(&room, message("a")).await;
    let top = last.millis();
    for (at, event) in [(10, message("b")), (5, typing("t")), (0, message("c"))] {
        world.clock.set(START + at * SECOND);
        let next = world.write(&room, event).await;
        assert!(next > last && next.millis() == top, "{next} after {last}");
        last = next;
    }
    for _ in 0..3 {
        world.restart().await;
        world.clock.set(world.clock.now() - SECOND);
        for event in [message("d"), typing("t")] {
            let next = world.write(&room, event).await;
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }
    assert!(world.count("tidings_room_clock_alarms_total{clock=\"behind\"}") > 0);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "b", "c", "d", "d", "d"]);
}

#[tokio::test]
async fn a_clock_that_jumps_a_day_ahead_and_comes_back_leaves_no_trace_in_cursors() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.clock.set(START + DAY);
    assert_eq!(world.write(&room, message("a")).await.millis(), START.as_millis());
    assert_eq!(world.count("tidings_room_clock_alarms_total{clock=\"ahead\"}"), 1);
    world.clock.set(START);
    world.clock.advance(SECOND);
    assert_eq!(world.write(&room, message("b")).await.millis(), (START + SECOND).as_millis());
}

#[tokio::test]
async fn who_was_replaced_cannot_write_and_no_cursor_exists_twice() {
    let world = World::new().await;
    let room = world.room("r", &["ann"]).await;
    let old = &world.rooms;
    let a = world.write(&room, message("a")).await;
    let t = world.write(&room, typing("t")).await;
    let new = world.taken_over().await;
    assert!(new.epoch() > old.epoch());
    // What it reserved it may still give to those who listen to it.
    let stray = write(old, &room, typing("stray")).await.expect("reserved");
    let refused = [
        write(old, &room, message("b")).await.map(drop),
        old.change_members(&project(), &room.id, vec![user("bob")], Vec::new()).await.map(drop),
        old.change_members(&project(), &RoomId::parse("q").expect("an id"), Vec::new(), Vec::new())
            .await
            .map(drop),
        old.see(&room, &user("ann"), &crate::world::device("d"), a, false).await,
    ];
    for refused in refused {
        assert!(matches!(refused, Err(RoomError::Fenced)), "{refused:?}");
    }
    world.clock.advance(10 * SECOND);
    let late = write(old, &room, typing("late")).await;
    assert!(matches!(late, Err(RoomError::Fenced)), "{late:?}");
    let b = write(&new, &room, message("b")).await.expect("written");
    assert!(a < t && t < stray && stray < b);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "b"]);
    assert_eq!(world.count("tidings_room_fenced_total"), 5);
}

#[tokio::test]
async fn a_resume_at_any_position_gives_just_what_follows() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let (mut cursors, mut kept) = (Vec::new(), Vec::new());
    for n in 0..30 {
        let words = n.to_string();
        let event = match n % 3 {
            0 => message(&words),
            1 => reaction(&words, "ann", "x", "add"),
            _ => typing(&words),
        };
        cursors.push(world.write(&room, event).await);
        if n % 3 < 2 {
            kept.push((cursors[n], n));
        }
        if n % 5 == 0 {
            world.clock.advance(Duration::from_millis(1));
        }
    }
    assert!(cursors.is_sorted_by(|a, b| a < b));
    for after in std::iter::once(Cursor::ZERO).chain(cursors) {
        let replayed = world.replay(&room, after).await;
        let expected: Vec<_> = kept.iter().filter(|(cursor, _)| *cursor > after).collect();
        let heard: Vec<_> = replayed.iter().map(|(cursor, _)| *cursor).collect();
        assert_eq!(heard, expected.iter().map(|(cursor, _)| *cursor).collect::<Vec<_>>());
        let first = |words: &String| words.split(' ').next().map(str::to_owned);
        let words: Vec<_> = payloads(&replayed).iter().filter_map(first).collect();
        assert_eq!(words, expected.iter().map(|(_, n)| n.to_string()).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_hears_everything_once_and_in_order_while_many_write_and_type() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let mut live = world.listen(&room, Cursor::ZERO).await;
    let writers = (0..4).map(|writer| {
        let (rooms, room, clock) = (world.rooms.clone(), room.clone(), world.clock.clone());
        tokio::spawn(async move {
            let mut written = Vec::new();
            for n in 0..100 {
                written.push(write(&rooms, &room, message(&format!("{writer}/{n}"))).await.expect("written"));
                write(&rooms, &room, typing("t")).await.expect("typed");
                if n % 7 == writer {
                    clock.advance(Duration::from_millis(1));
                }
            }
            written
        })
    });
    let mut written = Vec::new();
    for writer in writers.collect::<Vec<_>>() {
        let cursors = writer.await.expect("no panic");
        assert!(cursors.is_sorted_by(|a, b| a < b));
        written.extend(cursors);
    }
    written.sort_unstable();
    let replayed = world.replay(&room, Cursor::ZERO).await;
    assert!(replayed.iter().map(|(cursor, _)| *cursor).eq(written), "each is there once, and nothing else");
    let end = world.write(&room, message("end")).await;
    while live.heard.last().map(|(cursor, _)| *cursor) != Some(end) {
        live.hear(live.heard.len() + 1).await;
    }
    let kept: Vec<_> =
        live.heard.iter().filter(|(_, words)| words != "t" && words != "end").cloned().collect();
    assert!(kept == replayed, "{} of {} heard", kept.len(), replayed.len());
    let typed = live.heard.iter().filter(|(_, words)| words == "t").count() as u64;
    assert_eq!(typed + world.count("tidings_room_typing_dropped_total"), 400, "all who were there heard it");
    // Whoever resumes where it has heard somebody type misses nothing.
    for (typed, _) in live.heard.iter().filter(|(_, words)| words == "t").step_by(29) {
        let rest = world.replay(&room, *typed).await;
        let expected = live.heard.iter().filter(|(cursor, words)| cursor > typed && words != "t");
        assert!(rest.iter().eq(expected), "after {typed}");
    }
}
