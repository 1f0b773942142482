//! Whoever hears the journal of a project hears each message and reaction of its rooms, once, and no typing.

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::{Heard, HeardByTests, heard};
use tidings_engine::log::{Commit, Commits, Logs, Operation, Record, Span, StoreError};
use tidings_model::{LogId, Position};
use tidings_rooms::{Cursor, NewEvent, Room, RoomError};

use crate::world::{HOUR, SECOND, World, message, project, reaction, stamp, typing, user};

/// Rooms of a project whose journal is heard.
struct HeardWorld {
    world: World,
    hearer: Arc<HeardByTests>,
    journal: LogId,
}

impl HeardWorld {
    async fn new() -> Self {
        let mut world = World::new().await;
        let journal = world.store.reserve().await.expect("a number");
        world.store.commit(Commit::new().with(Operation::create(journal))).await.expect("made");
        let hearer = Arc::new(HeardByTests::default());
        hearer.hear(&project(), "room", Some(journal));
        world.rooms = world.rooms.clone().journaled(Journals::new(hearer.clone()));
        Self { world, hearer, journal }
    }

    async fn write(&self, room: &Room, events: Vec<NewEvent>) {
        self.world.rooms.write(room, &user("ann"), events, None).await.expect("written");
    }

    /// Types and contents of all events.
    async fn events(&self) -> Vec<(String, Bytes)> {
        let heard = heard(&self.world.store, self.journal).await;
        heard.into_iter().map(|heard| (heard.header.event_type, heard.content)).collect()
    }
}

fn pair(event_type: &str, event: NewEvent) -> (String, Bytes) {
    (event_type.to_owned(), event.payload)
}

async fn records(world: &World, room: &Room) -> Vec<Record> {
    world.store.read(room.log, Span::after(Position::ZERO)).await.expect("readable").records
}

#[tokio::test]
async fn each_stored_event_is_one_of_the_project_in_its_commit() {
    let heard_world = HeardWorld::new().await;
    let world = &heard_world.world;
    let (room, other) = (world.room("team/a:b", &[]).await, world.room("other", &[]).await);
    let thumb = || reaction("one", "ann", "+1", "add");
    heard_world.write(&room, vec![message("one"), typing("…"), thumb(), message("two")]).await;
    heard_world.write(&other, vec![message("three")]).await;
    heard_world.write(&other, vec![typing("…")]).await;
    let events = heard_world.events().await;
    let expected = [
        pair("room.team.a.b.messageEvent", message("one")),
        pair("room.team.a.b.reactionEvent", thumb()),
        pair("room.team.a.b.messageEvent", message("two")),
        pair("room.other.messageEvent", message("three")),
    ];
    assert_eq!(events, expected);
    assert_eq!(heard_world.hearer.appended(), [heard_world.journal; 2], "once for each stored write");
    let heard = heard(&world.store, heard_world.journal).await;
    for room in [&room, &other] {
        let own: Vec<&Heard> = heard.iter().filter(|heard| heard.header.name == room.id.as_str()).collect();
        let records = records(world, room).await;
        assert_eq!(own.len(), records.len());
        for (event, record) in own.iter().zip(&records) {
            assert_eq!((event.origin.log, event.origin.position), (room.log, record.position));
            assert_eq!(event.commit, record.commit);
            assert_eq!((&*event.header.field, &*event.header.content_type), ("room", "application/json"));
        }
    }
}

#[tokio::test]
async fn what_a_producer_repeats_is_not_heard_again() {
    let heard_world = HeardWorld::new().await;
    let world = &heard_world.world;
    let room = world.room("r", &[]).await;
    // The stored form of the first event of a request names the producer; the content does not.
    for attempt in 0..3 {
        let events = vec![message("one"), message("two")];
        let written = world.rooms.write(&room, &user("ann"), events, Some(stamp(0))).await.expect("written");
        assert_eq!(written.duplicate, attempt > 0);
    }
    let gap = world.rooms.write(&room, &user("ann"), vec![message("gap")], Some(stamp(2))).await;
    assert!(gap.is_err());
    world.faults.full_after(0);
    let full = world.rooms.write(&room, &user("ann"), vec![message("no space")], None).await;
    assert!(matches!(full, Err(RoomError::Store(StoreError::NoSpace))), "{full:?}");
    world.faults.emptied();
    let expected = ["one", "two"].map(|text| pair("room.r.messageEvent", message(text)));
    assert_eq!(heard_world.events().await, expected);
    assert_eq!(records(world, &room).await.len(), 2);
    assert_eq!(heard_world.hearer.appended().len(), 1);
}

#[tokio::test]
async fn an_event_stays_when_the_room_collapses_it_or_lets_it_go() {
    let heard_world = HeardWorld::new().await;
    let world = &heard_world.world;
    let room = world.room("r", &[]).await;
    let thumb = |op| reaction("one", "ann", "+1", op);
    for event in [message("one"), thumb("add"), thumb("remove"), thumb("add")] {
        world.write(&room, event).await;
        world.clock.advance(SECOND);
    }
    let expected = [
        pair("room.r.messageEvent", message("one")),
        pair("room.r.reactionEvent", thumb("add")),
        pair("room.r.reactionEvent", thumb("remove")),
        pair("room.r.reactionEvent", thumb("add")),
    ];
    world.clock.advance(HOUR);
    world.rooms.sweep().await.expect("swept");
    let kept = world.replayed(&room, Cursor::ZERO).await;
    assert_eq!(kept, ["one", "one ann +1 add"], "only the last reaction is left");
    assert_eq!(heard_world.events().await, expected);
    world.clock.advance(world.options.retention);
    world.rooms.sweep().await.expect("swept");
    assert_eq!(world.rooms.bounds(&room).await.expect("bounds").oldest, None, "all is gone");
    assert_eq!(heard_world.events().await, expected);
}

#[tokio::test]
async fn a_write_succeeds_when_nobody_hears_or_the_journal_was_deleted_meanwhile() {
    let heard_world = HeardWorld::new().await;
    let world = &heard_world.world;
    let room = world.room("r", &[]).await;
    heard_world.hearer.hear(&project(), "room", None);
    heard_world.hearer.hear(&project(), "stream", Some(heard_world.journal));
    world.write(&room, message("one")).await;
    assert!(heard_world.events().await.is_empty());
    heard_world.hearer.hear(&project(), "room", Some(heard_world.journal));
    world.store.commit(Commit::new().with(Operation::Delete(heard_world.journal))).await.expect("made");
    world.write(&room, message("two")).await;
    world.write(&room, message("three")).await;
    assert_eq!(world.replayed(&room, Cursor::ZERO).await, ["one", "two", "three"]);
    assert!(heard_world.hearer.appended().is_empty());
}
