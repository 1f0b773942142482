//! A server's rooms without the server.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tidings_engine::deliver::{Batch, Encode, FrameChunks, Step, Subscription};
use tidings_engine::duty::Leadership;
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Clock, ManualClock, Metrics, Rng};
use tidings_model::{DeviceId, Producer, ProducerId, ProjectId, RoomId, Timestamp, UserId};
use tidings_rooms::{Cursor, Event, Kind, NewEvent, Options, Room, RoomError, Rooms, Table};

use crate::wayward::{Faults, Wayward};

pub const START: Timestamp = Timestamp::from_millis(1_763_294_400_000);
pub const SECOND: Duration = Duration::from_secs(1);
pub const HOUR: Duration = Duration::from_secs(60 * 60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub struct World {
    pub store: Memory<Table>,
    pub faults: Faults,
    pub bus: Bus,
    pub clock: ManualClock,
    pub metrics: Metrics,
    pub options: Options,
    pub rooms: Rooms,
}

impl World {
    pub async fn new() -> Self {
        Self::with(Options::default()).await
    }

    pub async fn with(options: Options) -> Self {
        let (bus, clock, metrics) = (Bus::new(), ManualClock::at(START), Metrics::new());
        let store = Memory::new(bus.clone(), Arc::new(clock.clone()));
        let faults = Faults::default();
        let rooms = open(&store, &faults, &bus, &clock, &options, &metrics, Leadership::alone()).await;
        Self { store, faults, bus, clock, metrics, options, rooms }
    }

    /// Somebody else takes the rooms over, as a server does that is started again.
    pub async fn taken_over(&self) -> Rooms {
        self.node(Leadership::alone()).await
    }

    /// Rooms over the same store, of a node that leads when it is told so.
    pub async fn node(&self, leadership: Leadership) -> Rooms {
        let Self { store, faults, bus, clock, metrics, options, .. } = self;
        open(store, faults, bus, clock, options, metrics, leadership).await
    }

    pub async fn restart(&mut self) {
        self.rooms = self.taken_over().await;
    }

    /// A room with these members.
    pub async fn room(&self, id: &str, members: &[&str]) -> Room {
        let (project, id) = (project(), RoomId::parse(id).expect("an id"));
        let members = members.iter().map(|member| user(member)).collect();
        self.rooms.change_members(&project, &id, members, Vec::new()).await.expect("members");
        self.rooms.find(&project, &id).await.expect("a store").expect("a room")
    }

    pub async fn write(&self, room: &Room, event: NewEvent) -> Cursor {
        write(&self.rooms, room, event).await.expect("written")
    }

    /// The last cursor that was ever given.
    pub async fn ceiling(&self, room: &Room) -> Cursor {
        self.rooms.bounds(room).await.expect("bounds").ceiling
    }

    /// Listens after a cursor. Has heard what the room has by then, and nothing of what comes later.
    pub async fn listen(&self, room: &Room, after: Cursor) -> Reader {
        self.reader(room, after, "live").await
    }

    /// All that is read after a cursor by somebody who was not there.
    pub async fn replay(&self, room: &Room, after: Cursor) -> Vec<(Cursor, String)> {
        self.reader(room, after, "replay").await.heard
    }

    async fn reader(&self, room: &Room, after: Cursor, form: &'static str) -> Reader {
        let bounds = self.rooms.bounds(room).await.expect("bounds");
        let subscription = self.rooms.listen(room, &bounds, after, form, Arc::new(Lines));
        let mut reader = Reader { subscription, heard: Vec::new() };
        while !reader.next().await {}
        // It waits at the tail now, and will hear what is not kept.
        while reader.next().now_or_never().is_some() {}
        reader
    }

    /// The same, without cursors.
    pub async fn replayed(&self, room: &Room, after: Cursor) -> Vec<String> {
        payloads(&self.replay(room, after).await)
    }

    pub fn count(&self, metric: &str) -> u64 {
        let text = self.metrics.text();
        let line = text.lines().find(|line| line.starts_with(metric)).expect("a metric");
        line.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
    }
}

async fn open(
    store: &Memory<Table>,
    faults: &Faults,
    bus: &Bus,
    clock: &ManualClock,
    options: &Options,
    metrics: &Metrics,
    leadership: Leadership,
) -> Rooms {
    let clock: Arc<dyn Clock> = Arc::new(clock.clone());
    let rng = Arc::new(Rng::seeded(7));
    let store = Wayward { memory: store.clone(), faults: faults.clone() };
    let opened = Rooms::open(Arc::new(store), bus.clone(), clock, rng, options.clone(), metrics, leadership);
    opened.await.expect("open")
}

pub async fn write(rooms: &Rooms, room: &Room, event: NewEvent) -> Result<Cursor, RoomError> {
    rooms.write(room, &user("ann"), vec![event], None).await.map(|written| written.events[0].0)
}

pub fn project() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

pub fn user(id: &str) -> UserId {
    UserId::parse(id).expect("an id")
}

pub fn device(id: &str) -> DeviceId {
    DeviceId::parse(id).expect("an id")
}

pub fn stamp(sequence: u64) -> Producer {
    Producer { id: ProducerId::parse("writer").expect("an id"), epoch: 0, sequence }
}

pub fn message(text: &str) -> NewEvent {
    event(Kind::Message, format!(r#"{{"messageView":{{"id":"{text}"}}}}"#))
}

pub fn typing(text: &str) -> NewEvent {
    event(Kind::Typing, format!(r#"{{"id":"{text}"}}"#))
}

pub fn reaction(to: &str, actor: &str, what: &str, op: &str) -> NewEvent {
    let payload = format!(r#"{{"messageId":"{to}","actor":"{actor}","reaction":"{what}","op":"{op}"}}"#);
    event(Kind::Reaction, payload)
}

fn event(kind: Kind, payload: String) -> NewEvent {
    NewEvent::parse(kind, payload.into()).expect("a good event")
}

/// What each says beside its braces and quotes.
pub fn payloads(events: &[(Cursor, String)]) -> Vec<String> {
    events.iter().map(|(_, payload)| payload.clone()).collect()
}

/// A line for each event.
struct Lines;

impl Encode for Lines {
    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        let line = |event: Event| {
            let value: serde_json::Value = serde_json::from_slice(&event.payload).expect("JSON");
            let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
            let words = match event.kind {
                Kind::Message => text(&value["messageView"]["id"]),
                Kind::Typing => text(&value["id"]),
                Kind::Reaction => {
                    let words = ["messageId", "actor", "reaction", "op"].map(|name| text(&value[name]));
                    Some(words.map(|word| word.expect("a word")).join(" "))
                }
            };
            format!("{} {}\n", event.cursor, words.expect("words"))
        };
        Bytes::from(batch.records.iter().filter_map(Event::of).map(line).collect::<String>()).into()
    }
}

pub struct Reader {
    subscription: Subscription,
    pub heard: Vec<(Cursor, String)>,
}

impl Reader {
    /// Takes the next frame. Returns whether that was all there is.
    async fn next(&mut self) -> bool {
        let (mut text, mut up_to_date) = (String::new(), false);
        let step = self.subscription.next(0, |frame| {
            text += std::str::from_utf8(&frame.bytes.clone().joined()).expect("text");
            up_to_date = frame.up_to_date;
        });
        assert_eq!(step.await, Step::Frames);
        for line in text.lines() {
            let (cursor, words) = line.split_once(' ').expect("two words");
            self.heard.push((Cursor::parse(cursor).expect("a cursor"), words.to_owned()));
        }
        up_to_date
    }

    /// Hears on until it has heard so many.
    pub async fn hear(&mut self, count: usize) -> Vec<String> {
        while self.heard.len() < count {
            self.next().await;
        }
        assert!(self.heard.is_sorted_by(|a, b| a.0 < b.0), "{:?}", self.heard);
        payloads(&self.heard)
    }
}
