use std::sync::Arc;
use std::time::Duration;

use tidings_engine::deliver::{Channels, Limits};
use tidings_engine::duty::Leadership;
use tidings_engine::log::StoreError;
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_model::{LogId, ProjectId, RoomId, limits};

use crate::Store;
use crate::caches::Caches;
use crate::clock_guard::ClockGuard;
use crate::counts::Counts;
use crate::idempotency::IdempotencyCache;
use crate::ownership::Ownership;
use crate::reader_limits::ReaderLimits;
use crate::seen::PendingReceipts;

/// The rooms of a server. Clones are the same rooms.
#[derive(Clone)]
pub struct Rooms {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) bus: Bus,
    pub(crate) channels: Channels,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) options: Options,
    pub(crate) ownership: Ownership,
    pub(crate) counts: Counts,
    pub(crate) guard: ClockGuard,
    pub(crate) caches: Arc<Caches>,
    pub(crate) idempotency: IdempotencyCache,
    pub(crate) pending_receipts: PendingReceipts,
    pub(crate) reader_limits: ReaderLimits,
}

/// A room that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Its events.
    pub log: LogId,
    /// The project it belongs to.
    pub project: ProjectId,
    /// Its name there.
    pub id: RoomId,
}

/// How rooms are set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long events are kept.
    pub retention: Duration,
    /// How often it is looked for what is not kept any longer.
    pub sweep_interval: Duration,
    /// Reactions younger than this are left as they are.
    pub reaction_min_lag: Duration,
    /// Encoded events of a room that are kept for live readers that are behind.
    pub ring: usize,
    /// A live reader that is more events behind than this, and takes nothing, is cut off.
    pub max_lag: u64,
    /// How long it may take nothing.
    pub stall: Duration,
    /// How often an idle reader is told that the server is there.
    pub heartbeat: Duration,
    /// Live readers that one user has in the rooms of a project.
    pub max_streams_per_user: usize,
    /// Bytes of the payload of an event.
    pub payload_bytes: usize,
    /// Members of a room.
    pub max_members: usize,
    /// Whether a new member may read what was written before it came.
    pub history_for_new_members: bool,
    /// How much is remembered in memory.
    pub capacity: Capacity,
}

/// How much is remembered in memory. No operator sets it; tests make it small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// See [`limits::ACTIVE_ROOMS`].
    pub active_rooms: usize,
    /// See [`limits::COLLAPSE_KEYS`].
    pub collapse_keys: usize,
    /// See [`limits::COLLAPSED_PER_ROOM`].
    pub collapsed_per_room: usize,
    /// See [`limits::PENDING_RECEIPTS`].
    pub noted_seen: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            active_rooms: limits::ACTIVE_ROOMS,
            collapse_keys: limits::COLLAPSE_KEYS,
            collapsed_per_room: limits::COLLAPSED_PER_ROOM,
            noted_seen: limits::PENDING_RECEIPTS,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(14 * 24 * 60 * 60),
            sweep_interval: Duration::from_secs(60 * 60),
            reaction_min_lag: Duration::from_secs(60),
            ring: 4096,
            max_lag: 5000,
            stall: Duration::from_secs(5),
            heartbeat: Duration::from_secs(15),
            max_streams_per_user: limits::ROOM_STREAMS_PER_USER,
            payload_bytes: limits::EVENT_PAYLOAD_BYTES,
            max_members: limits::MEMBERS_PER_ROOM,
            history_for_new_members: true,
            capacity: Capacity::default(),
        }
    }
}

impl Rooms {
    /// Rooms in the given store, which wakes readers on the given bus. If this node leads they are its own from now on:
    /// whoever had them before cannot write any more. If it does not, they can be read, and become its own before its
    /// first write when it leads. They are served on the runtime that this is called in.
    pub async fn open(
        store: Arc<dyn Store>,
        bus: Bus,
        clock: Arc<dyn Clock>,
        rng: Arc<Rng>,
        options: Options,
        metrics: &Metrics,
        leadership: Leadership,
    ) -> Result<Self, StoreError> {
        let caches = Caches::of(&*store);
        let ownership = Ownership::new(store.clone(), leadership, caches.clone());
        ownership.tenure().await?;
        let rings =
            Limits { ring_frames: options.ring, ring_bytes: limits::ROOM_RING_BYTES, ..Limits::default() };
        Ok(Self {
            inner: Arc::new(Inner {
                channels: Channels::new(bus.clone(), rings),
                store,
                bus,
                reader_limits: ReaderLimits::new(rng.clone(), options.max_streams_per_user),
                guard: ClockGuard::new(&*clock),
                clock,
                rng,
                options,
                ownership,
                counts: Counts::new(metrics),
                caches,
                idempotency: IdempotencyCache::default(),
                pending_receipts: PendingReceipts::default(),
            }),
        })
    }

    /// Counts the terms in which a node has had the rooms. That of this node while it leads, otherwise the last that it
    /// knows of.
    pub fn epoch(&self) -> u64 {
        self.inner.ownership.epoch()
    }

    /// What the operator set.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Rooms of which it is in memory where their next event lies.
    pub fn active(&self) -> usize {
        self.inner.caches.active.len()
    }

    /// Who listens to what.
    pub fn channels(&self) -> &Channels {
        &self.inner.channels
    }

    /// What is remembered of readers beside what they read.
    pub fn reader_limits(&self) -> &ReaderLimits {
        &self.inner.reader_limits
    }

    /// The room of that name, if there is one.
    pub async fn find(&self, project: &ProjectId, room: &RoomId) -> Result<Option<Room>, StoreError> {
        let log = self.inner.store.room(project, room).await?;
        Ok(log.map(|log| Room { log, project: project.clone(), id: room.clone() }))
    }
}
