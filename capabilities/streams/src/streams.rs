use std::sync::Arc;
use std::time::Duration;

use tidings_engine::deliver::{Channels, Limits};
use tidings_engine::log::StoreError;
use tidings_engine::{Bus, Clock};
use tidings_model::{ProjectId, Timestamp, limits};

use crate::retention::SweptThrough;
use crate::table::{Change, Expiry, Found, Store, StreamKey, StreamState};
use crate::{Hold, Shape, Stream, StreamError};

/// The streams of a server. Clones are the same streams.
#[derive(Clone)]
pub struct Streams {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) bus: Bus,
    pub(crate) channels: Channels,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) swept_through: SweptThrough,
    pub(crate) shape: Option<Arc<dyn Shape>>,
    pub(crate) hold: Option<Arc<dyn Hold>>,
}

/// What an operator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of payload in one answer of a read.
    pub read_chunk_bytes: usize,
    /// Bytes of one append's body.
    pub max_append_bytes: usize,
    /// Live readers of one stream.
    pub max_readers_per_stream: usize,
    /// How long a long-poll waits at the tail.
    pub long_poll_timeout: Duration,
    /// How long one SSE answer lasts.
    pub sse_duration: Duration,
    /// Bytes of encoded records that are kept for live readers of a stream that are behind.
    pub slow_reader_bytes: usize,
    /// How long a live reader may take nothing of what waits for it.
    pub slow_reader_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_chunk_bytes: limits::READ_CHUNK_BYTES,
            max_append_bytes: limits::APPEND_BYTES,
            max_readers_per_stream: limits::READERS_PER_STREAM,
            long_poll_timeout: limits::LONG_POLL_TIMEOUT,
            sse_duration: limits::SSE_DURATION,
            slow_reader_bytes: limits::RING_BYTES,
            slow_reader_timeout: limits::SLOW_READER_TIMEOUT,
        }
    }
}

impl Streams {
    /// Streams in the given store, which wakes readers on the given bus. They are served on the runtime that this is
    /// called in.
    pub fn new(store: Arc<dyn Store>, bus: Bus, clock: Arc<dyn Clock>, options: Options) -> Self {
        let limits = Limits {
            ring_bytes: options.slow_reader_bytes,
            ring_frames: limits::RING_FRAMES,
            read_bytes: options.read_chunk_bytes,
            own_bytes: limits::OWN_READ_BYTES.min(options.read_chunk_bytes),
        };
        let channels = Channels::new(bus.clone(), limits);
        let swept_through = SweptThrough::default();
        Self { store, bus, channels, clock, options, swept_through, shape: None, hold: None }
    }

    /// The same streams, in which what refers to records of others is shown in a shape of its own.
    #[must_use]
    pub fn shaped(self, shape: Arc<dyn Shape>) -> Self {
        Self { shape: Some(shape), ..self }
    }

    /// The same streams, whose logs keep what somebody still needs when the streams do not.
    #[must_use]
    pub fn held(self, hold: Arc<dyn Hold>) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Who listens to what.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// What the operator set.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The clock by which streams expire.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether writes would be taken now.
    pub fn accepting(&self) -> Result<(), StoreError> {
        self.store.accepting()
    }

    /// How many sessions a project has. Those that have expired count until they have gone.
    pub async fn sessions(&self, project: &ProjectId) -> Result<usize, StreamError> {
        Ok(self.store.sessions(project).await?)
    }

    /// The stream of that name, if it can be used. Does not renew it.
    pub async fn describe(&self, key: &StreamKey) -> Result<Found, StreamError> {
        let found = self.store.find(key).await?.ok_or(StreamError::NotFound)?;
        match self.usable(&found.stream) {
            Usable::Yes => Ok(found),
            Usable::Retired => Err(StreamError::Gone),
            Usable::Expired => Err(StreamError::NotFound),
        }
    }

    /// The stream of that name, if there is one that can be used. One whose time is over is ended, so that its name is
    /// free.
    pub async fn occupant(&self, key: &StreamKey) -> Result<Option<Found>, StreamError> {
        let Some(found) = self.store.find(key).await? else { return Ok(None) };
        match self.usable(&found.stream) {
            Usable::Yes => Ok(Some(found)),
            Usable::Retired => Err(StreamError::Gone),
            Usable::Expired => self.expire(key, &found.stream).await.map(|()| None),
        }
    }

    /// Whether a stream can be used now. One that expires when it is idle does not while somebody listens.
    pub(crate) fn usable(&self, stream: &Stream) -> Usable {
        match stream.usable(self.clock.now()) {
            Usable::Expired | Usable::Retired
                if stream.state == StreamState::Active && self.is_heard(stream) =>
            {
                Usable::Yes
            }
            usable => usable,
        }
    }

    pub(crate) fn is_heard(&self, stream: &Stream) -> bool {
        matches!(stream.expiry, Expiry::Idle(_)) && self.channels.readers(stream.log) > 0
    }

    /// The change that lets a stream that expires when it is idle live as long as it can.
    pub fn touch(&self, key: &StreamKey, stream: &Stream) -> Option<Change> {
        let Expiry::Idle(ttl) = stream.expiry else { return None };
        let expires_at = self.clock.now() + ttl;
        Some(Change::Renew { key: key.clone(), log: stream.log, expires_at })
    }

    /// The change that keeps a used stream from expiring, when that is worth a commit. A stream may go early by
    /// the grain at most: a second, or a tenth of its time to live if that is shorter.
    pub(crate) fn renewal(&self, key: &StreamKey, stream: &Stream) -> Option<Change> {
        const GRAIN_MAX: Duration = Duration::from_secs(1);
        let Expiry::Idle(ttl) = stream.expiry else { return None };
        let expires_at = self.clock.now() + ttl;
        let gained = expires_at.since(stream.expires_at.unwrap_or_default());
        let worth = gained > Duration::ZERO && gained >= GRAIN_MAX.min(ttl / 10);
        worth.then(|| Change::Renew { key: key.clone(), log: stream.log, expires_at })
    }
}

/// Whether a stream can be used at a moment.
pub(crate) enum Usable {
    Yes,
    /// Deleted or expired, kept for its forks.
    Retired,
    /// Expired, or without the forks it was kept for, and not yet swept up.
    Expired,
}

impl Stream {
    pub(crate) fn usable(&self, now: Timestamp) -> Usable {
        match self.state {
            // Its last fork has gone, and it has only not been removed yet.
            StreamState::Retired if self.is_unreferenced() => Usable::Expired,
            StreamState::Retired => Usable::Retired,
            StreamState::Active if !self.is_expired(now) => Usable::Yes,
            StreamState::Active if self.forks > 0 => Usable::Retired,
            StreamState::Active => Usable::Expired,
        }
    }
}
