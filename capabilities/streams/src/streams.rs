//! The handle of streams, and whether a stream can be used.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::deliver::{Channels, Limits};
use tidings_engine::journal::Journals;
use tidings_engine::log::StoreError;
use tidings_engine::{Bus, Clock};
use tidings_model::{ProjectId, Timestamp, limits};

use crate::retention::SweptThrough;
use crate::table::{Change, Expiry, Found, Store, StreamKey, StreamState};
use crate::{Hold, ReferenceRewriter, Stream, StreamError};

/// The streams of a server. Clones share the same streams.
#[derive(Clone)]
pub struct Streams {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) bus: Bus,
    pub(crate) channels: Channels,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) swept_through: SweptThrough,
    pub(crate) rewriter: Option<Arc<dyn ReferenceRewriter>>,
    pub(crate) hold: Option<Arc<dyn Hold>>,
    pub(crate) journals: Journals,
}

/// Settings of streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Maximum bytes of payload in one answer of a read.
    pub read_chunk_bytes: usize,
    /// Maximum bytes of the body of an append.
    pub max_append_bytes: usize,
    /// Maximum number of live readers of a stream.
    pub max_readers_per_stream: usize,
    /// Time that a long-poll waits for new records at the tail.
    pub long_poll_timeout: Duration,
    /// Time after which an SSE response ends, so that the client reconnects.
    pub sse_duration: Duration,
    /// Bytes of encoded records kept in memory for live readers of a stream that are behind.
    pub slow_reader_bytes: usize,
    /// Time after which a live reader that takes none of its pending data is disconnected.
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
    /// Opens the streams of a store, which wakes readers on the bus. Delivery runs on the current runtime.
    pub fn new(store: Arc<dyn Store>, bus: Bus, clock: Arc<dyn Clock>, options: Options) -> Self {
        let limits = Limits {
            ring_bytes: options.slow_reader_bytes,
            ring_frames: limits::RING_FRAMES,
            read_bytes: options.read_chunk_bytes,
            own_bytes: limits::OWN_READ_BYTES.min(options.read_chunk_bytes),
        };
        let channels = Channels::new(bus.clone(), limits);
        Self {
            store,
            bus,
            channels,
            clock,
            options,
            swept_through: SweptThrough::default(),
            rewriter: None,
            hold: None,
            journals: Journals::default(),
        }
    }

    /// Sets how references to records of other streams are shown to readers.
    #[must_use]
    pub fn with_rewriter(self, rewriter: Arc<dyn ReferenceRewriter>) -> Self {
        Self { rewriter: Some(rewriter), ..self }
    }

    /// Sets who may hold back the trimming of logs.
    #[must_use]
    pub fn held(self, hold: Arc<dyn Hold>) -> Self {
        Self { hold: Some(hold), ..self }
    }

    /// Sets the journals that messages are entered into as events.
    #[must_use]
    pub fn journaled(self, journals: Journals) -> Self {
        Self { journals, ..self }
    }

    /// The channels of live readers.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The clock by which streams expire.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether the store accepts writes now.
    pub fn accepting(&self) -> Result<(), StoreError> {
        self.store.accepting()
    }

    /// Number of sessions of a project. An expired session counts until it is removed.
    pub async fn sessions(&self, project: &ProjectId) -> Result<usize, StreamError> {
        Ok(self.store.sessions(project).await?)
    }

    /// Finds a stream that is neither deleted nor expired. Does not renew it.
    pub async fn describe(&self, key: &StreamKey) -> Result<Found, StreamError> {
        let found = self.store.find(key).await?.ok_or(StreamError::NotFound)?;
        match self.usable(&found.stream) {
            Usable::Yes => Ok(found),
            Usable::Retired => Err(StreamError::Gone),
            Usable::Expired => Err(StreamError::NotFound),
        }
    }

    /// Finds the stream that occupies a name. An expired one is removed first, which frees its name.
    pub async fn occupant(&self, key: &StreamKey) -> Result<Option<Found>, StreamError> {
        let Some(found) = self.store.find(key).await? else { return Ok(None) };
        match self.usable(&found.stream) {
            Usable::Yes => Ok(Some(found)),
            Usable::Retired => Err(StreamError::Gone),
            Usable::Expired => self.expire(key, &found.stream).await.map(|()| None),
        }
    }

    /// Whether a stream can be used now. A stream that expires when idle does not while it has live readers.
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

    /// The change that extends the life of a stream that expires when idle; `None` for others.
    pub fn touch(&self, key: &StreamKey, stream: &Stream) -> Option<Change> {
        let Expiry::Idle(ttl) = stream.expiry else { return None };
        let expires_at = self.clock.now() + ttl;
        Some(Change::Renew { key: key.clone(), log: stream.log, expires_at })
    }

    /// The same change as [`Streams::touch`], but only when it is worth a commit. So a stream may expire
    /// early by up to a second, or a tenth of its time to live if that is shorter.
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
    /// Deleted or expired, but kept for its forks.
    Retired,
    /// Expired, or its last fork is gone, and not removed yet.
    Expired,
}

impl Stream {
    pub(crate) fn usable(&self, now: Timestamp) -> Usable {
        match self.state {
            // Its last fork is gone; it only has not been removed yet.
            StreamState::Retired if self.is_unreferenced() => Usable::Expired,
            StreamState::Retired => Usable::Retired,
            StreamState::Active if !self.is_expired(now) => Usable::Yes,
            StreamState::Active if self.forks > 0 => Usable::Retired,
            StreamState::Active => Usable::Expired,
        }
    }
}
