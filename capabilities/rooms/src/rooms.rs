use std::sync::Arc;
use std::time::Duration;

use tidings_engine::deliver::{Channels, Limits};
use tidings_engine::duty::Leadership;
use tidings_engine::journal::Journals;
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

/// Handle to the rooms of a server. Clones share the same state.
#[derive(Clone)]
pub struct Rooms {
    pub(crate) inner: Arc<Inner>,
    pub(crate) journals: Journals,
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

/// An existing room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Log of the room's events.
    pub log: LogId,
    /// Project of the room.
    pub project: ProjectId,
    /// Id of the room in its project.
    pub id: RoomId,
}

/// Settings of rooms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long events are kept. Default: 14 days.
    pub retention: Duration,
    /// Interval between sweeps for events past their retention. Default: 1 hour.
    pub sweep_interval: Duration,
    /// Minimum age at which reactions are collapsed. Default: 60 seconds.
    pub reaction_min_lag: Duration,
    /// Number of encoded events per room kept in memory for live readers that lag. Default: 4096.
    pub ring: usize,
    /// Lag in events above which a stalled live reader is disconnected. Default: 5000.
    pub max_lag: u64,
    /// Time without progress after which a reader counts as stalled. Default: 5 seconds.
    pub stall: Duration,
    /// Interval of heartbeats to idle readers. Default: 15 seconds.
    pub heartbeat: Duration,
    /// Maximum live readers of one user in the rooms of a project. Default: [`limits::ROOM_STREAMS_PER_USER`].
    pub max_streams_per_user: usize,
    /// Maximum size of an event's payload in bytes. Default: [`limits::EVENT_PAYLOAD_BYTES`].
    pub payload_bytes: usize,
    /// Maximum members of a room. Default: [`limits::MEMBERS_PER_ROOM`].
    pub max_members: usize,
    /// Whether a new member may read events from before it joined. Default: true.
    pub history_for_new_members: bool,
    /// Sizes of the caches in memory.
    pub capacity: Capacity,
}

/// Sizes of the caches in memory. Operators cannot set them; tests make them small.
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
    /// Opens the rooms of a store, which wakes readers on the given bus. If this node leads, it takes the rooms over:
    /// the previous owner can no longer write. Otherwise the rooms can be read, and are taken over before the first
    /// write once this node leads. Background tasks run on the current Tokio runtime.
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
            journals: Journals::default(),
        })
    }

    /// Sets the journals that stored events are entered into.
    #[must_use]
    pub fn journaled(self, journals: Journals) -> Self {
        Self { journals, ..self }
    }

    /// Ownership epoch of the rooms: that of this node while it leads, otherwise the last one it has seen.
    pub fn epoch(&self) -> u64 {
        self.inner.ownership.epoch()
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Number of rooms whose state is in memory.
    pub fn active(&self) -> usize {
        self.inner.caches.active.len()
    }

    /// Live channels of the rooms.
    pub fn channels(&self) -> &Channels {
        &self.inner.channels
    }

    /// Limits of live readers: streams per user and cool-downs.
    pub fn reader_limits(&self) -> &ReaderLimits {
        &self.inner.reader_limits
    }

    /// Looks up a room by its id.
    pub async fn find(&self, project: &ProjectId, room: &RoomId) -> Result<Option<Room>, StoreError> {
        let log = self.inner.store.room(project, room).await?;
        Ok(log.map(|log| Room { log, project: project.clone(), id: room.clone() }))
    }
}
