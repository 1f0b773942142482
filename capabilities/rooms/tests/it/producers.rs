//! A request that is repeated is answered as it was the first time.

use tidings_engine::Clock;
use tidings_model::{Producer, ProducerId, limits};
use tidings_rooms::{Cursor, RoomError, Rooms};

use crate::world::{DAY, SECOND, World, message, reaction, stamp, typing, user};

#[tokio::test]
async fn a_repeated_request_writes_nothing_and_gets_the_first_answer() {
    let mut world = World::new().await;
    let room = world.room("r", &[]).await;
    world.write(&room, message("before")).await;
    let batch = || vec![message("a"), reaction("a", "ann", "x", "add"), message("b")];
    let first = world.rooms.write(&room, &user("ann"), batch(), Some(stamp(0))).await.expect("written");
    world.clock.advance(SECOND);
    let second =
        world.rooms.write(&room, &user("ann"), vec![message("c")], Some(stamp(1))).await.expect("written");
    // Once while it is young, and once when it lies far back.
    for wait in [SECOND, DAY] {
        world.clock.advance(wait);
        world.restart().await;
        for (sequence, events, answer) in [(0, batch(), &first), (1, vec![message("c")], &second)] {
            let again = world
                .rooms
                .write(&room, &user("ann"), events, Some(stamp(sequence)))
                .await
                .expect("repeated");
            assert!(again.duplicate && !answer.duplicate);
            assert_eq!(again.events, answer.events);
        }
        world.write(&room, message("between")).await;
    }
    let expected = ["before", "a", "a ann x add", "b", "c", "between", "between"];
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, expected);
}

#[tokio::test]
async fn a_producer_is_of_its_user_and_others_may_have_one_of_the_same_name() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let of = |who: &str, stamp: Producer, words: &str| {
        let (rooms, room, who, event) = (world.rooms.clone(), room.clone(), user(who), message(words));
        async move { rooms.write(&room, &who, vec![event], Some(stamp)).await }
    };
    let ann = of("ann", stamp(0), "a").await.expect("written");
    let bob = of("bob", stamp(0), "b").await.expect("written");
    assert!(!bob.duplicate && bob.events != ann.events);
    // Neither is fenced off by the other, nor do two pairs become one.
    of("bob", Producer { epoch: 7, ..stamp(0) }, "c").await.expect("written");
    assert!(!of("ann", stamp(1), "d").await.expect("written").duplicate);
    let id = |id: &str| Producer { id: ProducerId::parse(id).expect("an id"), ..stamp(0) };
    assert!(!of("x", id("yz"), "e").await.expect("written").duplicate);
    assert!(!of("xy", id("z"), "f").await.expect("written").duplicate);
    let long = id(&"p".repeat(limits::PRODUCER_ID_BYTES));
    assert!(!of(&"u".repeat(limits::MEMBER_ID_BYTES), long, "g").await.expect("written").duplicate);
    assert_eq!(of("ann", stamp(0), "a").await.expect("repeated").events, ann.events);
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["a", "b", "c", "d", "e", "f", "g"]);
}

#[tokio::test]
async fn what_a_repeated_request_wrote_may_be_gone() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    world.rooms.write(&room, &user("ann"), vec![message("a")], Some(stamp(0))).await.expect("written");
    world.clock.advance(world.options.retention);
    world.rooms.sweep().await.expect("swept");
    let again = world.rooms.write(&room, &user("ann"), vec![message("a")], Some(stamp(0))).await;
    assert!(matches!(again, Err(RoomError::Forgotten)), "{again:?}");
    world.rooms.write(&room, &user("ann"), vec![message("b")], Some(stamp(1))).await.expect("it goes on");
}

#[tokio::test]
async fn a_repeated_request_is_not_searched_for_again_and_again_nor_for_ever() {
    let mut world = World::new().await;
    let (room, ann) = (world.room("r", &[]).await, user("ann"));
    let repeat = async |rooms: &Rooms| rooms.write(&room, &ann, vec![message("a")], Some(stamp(0))).await;
    let first = repeat(&world.rooms).await.expect("written");
    let fill = async |world: &World, batches: usize| {
        for _ in 0..batches {
            let batch = vec![message("b"); limits::EVENTS_PER_WRITE];
            world.rooms.write(&room, &ann, batch, None).await.expect("written");
        }
    };
    fill(&world, 2).await;
    assert_eq!(repeat(&world.rooms).await.expect("repeated").events, first.events);
    assert_eq!(world.faults.read(), 0, "it is known");
    world.restart().await;
    for _ in 0..2 {
        assert_eq!(repeat(&world.rooms).await.expect("repeated").events, first.events);
        assert!((1..=limits::READ_CHUNK_RECORDS).contains(&world.faults.read()), "it was searched for once");
    }
    world.clock.advance(DAY);
    fill(&world, limits::REPEAT_SEARCH_EVENTS / limits::EVENTS_PER_WRITE).await;
    world.restart().await;
    let before = world.faults.read();
    for _ in 0..2 {
        let again = repeat(&world.rooms).await;
        assert!(matches!(again, Err(RoomError::Forgotten)), "{again:?}");
        assert_eq!(world.faults.read() - before, limits::REPEAT_SEARCH_EVENTS);
    }
}

#[tokio::test]
async fn a_write_that_cannot_be_is_refused_whole() {
    let world = World::new().await;
    let room = world.room("r", &[]).await;
    let large = message(&"x".repeat(world.options.payload_bytes));
    let many = vec![message("a"); limits::EVENTS_PER_WRITE + 1];
    for (events, producer, why) in [
        (Vec::new(), None, "NoEvents"),
        (many, None, "TooManyEvents"),
        (vec![message("a"), large], None, "PayloadTooLarge { most: 16384 }"),
        (vec![message("a"), typing("t")], Some(stamp(0)), "TypingByProducer"),
        (vec![message("a")], Some(stamp(1)), "Producer(Gap { expected: 0, received: 1 })"),
    ] {
        let refused = world.rooms.write(&room, &user("ann"), events, producer).await.expect_err(why);
        assert_eq!(format!("{refused:?}"), why);
    }
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, Vec::<String>::new());
    assert_eq!(world.clock.now(), crate::world::START);
}
