//! Writing events: durable ones are committed, ephemeral ones are passed to the connected readers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tidings_engine::DetachOnDrop;
use tidings_engine::journal::Journals;
use tidings_engine::log::{
    Append, Appended, Boundary, Commit, CommitError, Conditions, Positions, Record, Refusal,
};
use tidings_model::{CommitNumber, LogId, Position, Producer, ProducerId, Timestamp, UserId, limits};

use crate::active::{Active, InFlight, Marks};
use crate::idempotency::Answer;
use crate::journal::{self, EventInfo};
use crate::ownership::Tenure;
use crate::rooms::Inner;
use crate::{Change, Cursor, Kind, NewEvent, Room, RoomError, Rooms};

/// Ephemeral cursors are reserved for this time ahead, so that most ephemeral events need no commit.
const RESERVED_AHEAD: Duration = Duration::from_secs(4);
/// Reserved cursors must last this long for an event that is written now.
const FOR_THIS_MOMENT: Duration = Duration::from_millis(1);
/// Reserved cursors must last this long for an event that is written after a commit.
const FOR_A_WHILE: Duration = Duration::from_secs(2);
/// Attempts when other writers use up the reserved cursors.
const ATTEMPTS: usize = 16;

/// The result of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Cursor and time of each event, in the order of the request.
    pub events: Vec<(Cursor, Timestamp)>,
    /// Whether the request is a repetition. The events are those of the first answer.
    pub duplicate: bool,
}

impl Rooms {
    /// Writes events, all or none. Durable events are stored when it returns, and are consecutive in the log.
    /// Ephemeral events get higher cursors; if they cannot be delivered after the durable ones were stored,
    /// they share the cursor of the last durable one. Producer ids are scoped to the user: another user may
    /// have a producer with the same id.
    pub async fn write(
        &self,
        room: &Room,
        user: &UserId,
        events: Vec<NewEvent>,
        producer: Option<Producer>,
    ) -> Result<Written, RoomError> {
        let inner = &self.inner;
        check(&events, producer.as_ref(), inner.options.payload_bytes)?;
        let producer = producer.map(|producer| of_user(user, producer));
        // Before the room is looked at: who begins to lead reads it anew.
        let tenure = inner.writing().await?;
        let active = inner.active(room.log).await?;
        let now = inner.now();
        let (kept, ephemeral): (Vec<_>, Vec<_>) = events.iter().partition(|event| event.kind.is_durable());
        if !kept.is_empty() && !ephemeral.is_empty() {
            // Reserved before the commit, so that nothing can fail after it.
            inner.reserve(room.log, &active, FOR_A_WHILE).await?;
        }
        let mut kept_at = Vec::new();
        if !kept.is_empty() {
            let stamp = |n: usize| producer.as_ref().filter(|_| n == 0);
            let payloads = kept.iter().enumerate().map(|(n, event)| event.stored(now, stamp(n))).collect();
            let (room, journals, active) = (room.clone(), self.journals.clone(), active.clone());
            let events = kept.iter().map(|&event| EventInfo::of(event)).collect();
            let appending = Appending { tenure, room, journals, active, events, payloads, producer, now };
            match appending.run(inner).await? {
                AppendOutcome::New(appended) => kept_at = places(appended.first, kept.len()),
                AppendOutcome::Repeated(events) => return Ok(Written { events, duplicate: true }),
            }
        }
        let mut ephemeral_at = Vec::new();
        if !ephemeral.is_empty() {
            ephemeral_at =
                match (inner.add_ephemeral(room.log, &active, &ephemeral, now).await, kept_at.last()) {
                    (Ok(first), _) => places(first, ephemeral.len()),
                    // An error would make the client repeat the whole write, though the durable events are
                    // stored.
                    (Err(error), Some(&last)) => {
                        tracing::debug!(%error, "could not deliver a typing event");
                        inner.counts.typing_dropped.add(ephemeral.len() as u64);
                        vec![last; ephemeral.len()]
                    }
                    (Err(error), None) => return Err(error),
                };
        }
        inner.counts.written(ephemeral.iter().map(|event| event.kind));
        let (mut kept_at, mut ephemeral_at) = (kept_at.into_iter(), ephemeral_at.into_iter());
        let place = |event: &NewEvent| {
            let places = if event.kind.is_durable() { &mut kept_at } else { &mut ephemeral_at };
            (places.next().expect("each event has a place"), now)
        };
        Ok(Written { events: events.iter().map(place).collect(), duplicate: false })
    }
}

fn check(events: &[NewEvent], producer: Option<&Producer>, most: usize) -> Result<(), RoomError> {
    if events.is_empty() {
        return Err(RoomError::NoEvents);
    }
    if events.len() > limits::EVENTS_PER_WRITE {
        return Err(RoomError::TooManyEvents);
    }
    if events.iter().any(|event| event.payload.len() > most) {
        return Err(RoomError::PayloadTooLarge { most });
    }
    if producer.is_some() && events.iter().any(|event| !event.kind.is_durable()) {
        return Err(RoomError::TypingByProducer);
    }
    Ok(())
}

/// Scopes a producer id to its user: the log gets an id that no other user can produce.
fn of_user(user: &UserId, producer: Producer) -> Producer {
    let mut digest = Sha256::new();
    // The length comes first, so that another split of the same text into user and id has another digest.
    digest.update((user.as_str().len() as u64).to_le_bytes());
    digest.update(user.as_str());
    digest.update(producer.id.as_str());
    let name: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Producer { id: ProducerId::parse(&name).expect("64 characters"), ..producer }
}

fn places(first: Position, count: usize) -> Vec<Cursor> {
    let place = |n: usize| first.further(n as u64).expect("positions that were given");
    (0..count).map(|n| Cursor::at(place(n))).collect()
}

/// An append to a room.
struct Appending {
    tenure: Arc<Tenure>,
    room: Room,
    journals: Journals,
    active: Arc<Active>,
    events: Vec<EventInfo>,
    /// Stored forms of the events.
    payloads: Vec<Bytes>,
    producer: Option<Producer>,
    now: Timestamp,
}

/// The result of an append.
enum AppendOutcome {
    New(Appended),
    /// The request is a repetition; these are the events of the first one.
    Repeated(Vec<(Cursor, Timestamp)>),
}

impl Appending {
    async fn run(self, inner: &Arc<Inner>) -> Result<AppendOutcome, RoomError> {
        let (log, producer) = (self.room.log, self.producer.clone());
        // If the caller goes away, the commit may still be made. Then the work after it must be done as well,
        // and until its outcome is known no later ephemeral event may be shown.
        match (DetachOnDrop::new(self.commit(inner.clone())).await, producer) {
            (Ok(appended), _) => Ok(AppendOutcome::New(appended)),
            (Err(CommitError::Refused(Refusal::Duplicate { .. })), Some(producer)) => {
                inner.repeated(log, &producer).await.map(AppendOutcome::Repeated)
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    async fn commit(self, inner: Arc<Inner>) -> Result<Appended, CommitError<crate::Declined>> {
        let Self { tenure, room, journals, active, events, payloads, producer, now } = self;
        let log = room.log;
        let _appending = active.appending.read().await;
        let count = payloads.len();
        let (least, in_flight) = InFlight::begin_append(&inner, log, active.clone(), count as u64, now);
        let append = Append {
            positions: Positions::AtLeast(least),
            conditions: Conditions { producer: producer.clone(), ..Conditions::default() },
            ..Append::new(log, payloads)
        };
        let marks = Marks { kept: true, reacted: events.iter().any(|event| event.kind == Kind::Reaction) };
        let commit = marking(Commit::new().with(append), log, active.marks(), marks, now);
        let entry = |stored: &[Bytes]| journal::entry(&room, &events, stored);
        let make = |commit| inner.commit_in(&tenure, commit);
        let committed = journals.commit(&room.project, journal::SOURCE, commit, 0, entry, make).await?;
        let appended = committed.appended();
        in_flight.committed(appended.last);
        active.marked(marks);
        inner.counts.written(events.iter().map(|event| event.kind));
        if let Some(producer) = producer {
            inner.idempotency.remember(log, &producer, Answer { first: appended.first, count, at: now });
        }
        Ok(appended)
    }
}

/// Adds the marks that the sweep needs to find the room, unless they are stored already. They are part of the
/// same commit, because a restarted server examines only marked rooms.
fn marking(
    mut commit: Commit<Change>,
    log: LogId,
    stored: Marks,
    needed: Marks,
    now: Timestamp,
) -> Commit<Change> {
    if needed.kept && !stored.kept {
        commit = commit.changing(Change::Kept { log, since: Some(now) });
    }
    if needed.reacted && !stored.reacted {
        commit = commit.changing(Change::Reacted { log, waiting: true });
    }
    commit
}

impl Inner {
    /// Passes events to the connected readers. Returns the first cursor, once nothing below it is in flight.
    async fn add_ephemeral(
        &self,
        log: LogId,
        active: &Arc<Active>,
        events: &[&NewEvent],
        emitted_at: Timestamp,
    ) -> Result<Position, RoomError> {
        for _ in 0..ATTEMPTS {
            let now = self.now();
            let record = |n: usize, position: Position| Record {
                position,
                // Ephemeral: not made by a commit.
                commit: CommitNumber::ZERO,
                at: now,
                payload: events[n].stored(emitted_at, None),
                head: None,
                origin: None,
                boundary: Boundary::Last,
            };
            if let Some(first) = active.add_ephemeral(self, log, now, events.len(), record) {
                let last = first.further(events.len() as u64 - 1).unwrap_or(Position::MAX);
                active.until_told(last).await;
                return Ok(first);
            }
            self.reserve(log, active, FOR_THIS_MOMENT).await?;
        }
        Err(RoomError::Contended)
    }

    /// Reserves cursors for ephemeral events, unless those that are reserved last for `must`.
    async fn reserve(&self, log: LogId, active: &Active, must: Duration) -> Result<(), RoomError> {
        let _reserving = active.reserving.lock().await;
        let Some(through) = active.to_reserve(self.now(), RESERVED_AHEAD, must) else { return Ok(()) };
        self.commit(Commit::new().changing(Change::Reserve { log, through })).await?;
        active.reserved(through);
        Ok(())
    }
}
