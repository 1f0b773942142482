//! Creating streams, including forks. Idempotent: a repeated request finds the existing stream.

use std::sync::Arc;

use bytes::Bytes;
use tidings_engine::log::{
    Append, Boundary, Commit, CommitError, Committed, LogTotals, Operation, Outcome, Span, Status, Then,
};
use tidings_model::{Position, limits};

use crate::streams::Usable;
use crate::table::{Change, Declined};
use crate::{
    ContentType, Expiry, Floor, Fork, Found, Owner, Retained, Retention, Segment, Stream, StreamError,
    StreamState,
};
use crate::{StreamKey, Streams};

/// Attempts when a concurrent request creates or removes the same stream.
const ATTEMPTS: usize = 8;

/// A request to create a stream.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Content type. Default: that of the source for a fork, otherwise `application/octet-stream`.
    pub content_type: Option<ContentType>,
    /// Limits of retention. Default of each: that of the source for a fork, otherwise unlimited.
    pub retention: Retention,
    /// When the stream expires. Default: as the source for a fork, otherwise never.
    pub expiry: Option<Expiry>,
    /// Initial content; may be empty.
    pub body: Bytes,
    /// Whether the stream is created closed, with the body as its whole content.
    pub then: Then,
    /// The source, if the stream is a fork.
    pub fork: Option<ForkRequest>,
}

/// The source of a fork, and the point at which it branches off.
#[derive(Clone, Debug)]
pub struct ForkRequest {
    /// The source stream.
    pub source: StreamKey,
    /// Offset at which the fork branches off; `None` for the tail of the source.
    pub offset: Option<Position>,
    /// Number of messages (in JSON mode) or bytes of the append after that offset that the fork inherits as
    /// well.
    pub sub_offset: u64,
}

/// The result of a request to create a stream.
#[derive(Clone, Debug)]
pub enum Created {
    /// The stream was created by this request.
    New(Found),
    /// The stream existed with the same configuration.
    Existed(Found),
}

impl Streams {
    /// Creates a stream, or finds an existing one with the same configuration.
    pub async fn create(&self, key: &StreamKey, request: &CreateRequest) -> Result<Created, StreamError> {
        if request.fork.as_ref().is_some_and(|fork| fork.source.project != key.project) {
            return Err(StreamError::SourceForeign);
        }
        for _ in 0..ATTEMPTS {
            if let Some(found) = self.store.find(key).await? {
                match self.usable(&found.stream) {
                    Usable::Yes => {
                        request.same_configuration(&found)?;
                        return Ok(Created::Existed(found));
                    }
                    Usable::Retired => return Err(StreamError::Conflict("its state (it was deleted)")),
                    Usable::Expired => self.expire(key, &found.stream).await?,
                }
            }
            if let Some(found) = self.try_create(key, request).await? {
                return Ok(Created::New(found));
            }
        }
        Err(StreamError::Contended)
    }

    /// Creates a stream under a free name; `None` when the name was taken, or the source was changed,
    /// meanwhile.
    async fn try_create(
        &self,
        key: &StreamKey,
        request: &CreateRequest,
    ) -> Result<Option<Found>, StreamError> {
        let inherited = match &request.fork {
            Some(fork) => self.inherit(fork, request).await?,
            None => Inherited::nothing(request),
        };
        let log = self.store.reserve().await?;
        let now = self.clock.now();
        let expiry = request.expiry.unwrap_or(inherited.expiry);
        let stream = Stream {
            log,
            content_type: inherited.content_type,
            expiry,
            expires_at: expiry.from(now),
            created_at: now,
            fork: inherited.fork.map(Arc::new),
            forks: 0,
            state: StreamState::Active,
            owner: Owner::Clients,
            retained: inherited.retained.map(Box::new),
        };
        let mut commit = Commit::new()
            .with(Operation::Create { log, tail: inherited.tail })
            .changing(Change::Create { key: key.clone(), stream: stream.clone() });
        let payloads = match request.body.is_empty() {
            true => Vec::new(),
            false => stream.content_type.messages(request.body.clone())?,
        };
        // The status right after this commit, not after later ones of other writers.
        let total = LogTotals::of(inherited.prefix.iter().chain(&payloads));
        let begun = Status { closed: request.then == Then::Close, total, ..Status::default() };
        if let Some(prefix) = inherited.prefix {
            commit = commit.with(Append::new(log, vec![prefix]));
        }
        // What is inherited is no new message, only this append has some.
        let append = commit.operations.len();
        if !payloads.is_empty() || request.then == Then::Close {
            commit = commit.with(Append { then: request.then, ..Append::new(log, payloads) });
        }
        let make = |commit| self.store.commit(commit);
        match self.commit_append(key, &stream, commit, append, make).await {
            Ok(committed) => {
                let status = Status { tail: last_position(&committed).unwrap_or(inherited.tail), ..begun };
                Ok(Some(Found { stream: Arc::new(stream), status }))
            }
            Err(CommitError::Declined(Declined::Exists | Declined::SourceGone | Declined::SourceTrimmed)) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Determines what a fork inherits from its source.
    async fn inherit(&self, request: &ForkRequest, wanted: &CreateRequest) -> Result<Inherited, StreamError> {
        let source = match self.describe(&request.source).await {
            Err(StreamError::NotFound) => return Err(StreamError::SourceNotFound),
            Err(StreamError::Gone) => return Err(StreamError::SourceGone),
            source => source?,
        };
        let expected = &source.stream.content_type;
        if let Some(received) =
            wanted.content_type.as_ref().filter(|received| !expected.same_media_type(received))
        {
            let (expected, received) = (expected.clone(), received.clone());
            return Err(StreamError::ContentTypeMismatch { expected, received });
        }
        let anchor = request.offset.unwrap_or(source.status.tail);
        if anchor > source.status.tail {
            return Err(StreamError::ForkBeyondTail);
        }
        let floor = self.floor(&request.source, &source).await?;
        if anchor < floor.position {
            return Err(StreamError::Trimmed { floor: floor.position, tail: source.status.tail });
        }
        if !self.is_offset(&source, floor, anchor).await? {
            return Err(StreamError::ForkBetweenRecords);
        }
        let (tail, prefix) = self.fork_point(&source, anchor, request.sub_offset).await?;
        let lineage = lineage(&source.stream, tail);
        if lineage.len() > limits::FORK_DEPTH {
            return Err(StreamError::ForkTooDeep);
        }
        let retained = self.inherit_retention(&source, wanted.retention, floor, tail).await?;
        let fork = Some(Fork {
            source: request.source.clone(),
            source_log: source.stream.log,
            offset: request.offset,
            sub_offset: request.sub_offset,
            lineage,
        });
        let Stream { content_type, expiry, .. } = &*source.stream;
        Ok(Inherited { content_type: content_type.clone(), expiry: *expiry, retained, tail, prefix, fork })
    }

    /// The retention of a fork: it inherits what its source keeps now, and then applies its own limits.
    async fn inherit_retention(
        &self,
        source: &Found,
        wanted: Retention,
        floor: Floor,
        through: Position,
    ) -> Result<Option<Retained>, StreamError> {
        let limits = wanted.or(source.stream.retention());
        if limits.is_unlimited() {
            return Ok(None);
        }
        let inherited = match limits.counts() {
            true => self.inheritance(source, floor, through).await?,
            false => LogTotals::default(),
        };
        let floor = Floor { gone: LogTotals::default(), ..floor };
        Ok(Some(Retained { limits, inherited, floor }))
    }

    /// Whether a position is a valid offset of the stream: its start, its end, or that of a record.
    async fn is_offset(&self, found: &Found, floor: Floor, position: Position) -> Result<bool, StreamError> {
        if position == floor.position || position == found.status.tail {
            return Ok(true);
        }
        let before = Position::new(position.get() - 1);
        let span = Span { through: position, records: 1, ..Span::after(before) };
        Ok(!found.stream.read(&*self.store, span).await?.records.is_empty())
    }

    /// The position at which a fork branches off, and the part it inherits of a record that is split by the
    /// sub-offset.
    async fn fork_point(
        &self,
        source: &Found,
        anchor: Position,
        sub_offset: u64,
    ) -> Result<(Position, Option<Bytes>), StreamError> {
        if sub_offset == 0 {
            return Ok((anchor, None));
        }
        let beyond = StreamError::SubOffsetBeyondAppend;
        let count = if source.stream.content_type.is_json() { sub_offset } else { 1 };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > limits::MESSAGES_PER_APPEND {
            return Err(beyond);
        }
        // As much as one append can contain, so the sub-offset cannot lie further on.
        let span = Span { bytes: self.options.max_append_bytes, records: count, ..Span::after(anchor) };
        let records = source.stream.read(&*self.store, span).await?.records;
        let [inside @ .., last] = &records[..] else { return Err(beyond) };
        if records.len() < count || inside.iter().any(|record| record.boundary == Boundary::Last) {
            return Err(beyond);
        }
        let length = last.payload.len() as u64;
        if source.stream.content_type.is_json() || sub_offset == length {
            return Ok((last.position, None));
        }
        if sub_offset > length {
            return Err(beyond);
        }
        // A slice would keep all of the record in memory.
        Ok((anchor, Some(Bytes::copy_from_slice(&last.payload[..sub_offset as usize]))))
    }
}

/// Position of the last record of a commit, if it has any.
fn last_position(committed: &Committed) -> Option<Position> {
    let appended = committed.outcomes.iter().rev().find_map(|outcome| match outcome {
        Outcome::Appended(appended) => Some(appended.last),
        Outcome::Done | Outcome::Referred(_) => None,
    });
    appended.filter(|last| !last.is_zero())
}

/// The properties of a new stream that come from its source, or the defaults.
struct Inherited {
    content_type: ContentType,
    expiry: Expiry,
    retained: Option<Retained>,
    tail: Position,
    prefix: Option<Bytes>,
    fork: Option<Fork>,
}

impl Inherited {
    fn nothing(request: &CreateRequest) -> Self {
        let (limits, content_type) = (request.retention, request.content_type.clone());
        let retained = Retained { limits, inherited: LogTotals::default(), floor: Floor::default() };
        Self {
            content_type: content_type.unwrap_or_else(ContentType::octet_stream),
            expiry: Expiry::Never,
            retained: (!limits.is_unlimited()).then_some(retained),
            tail: Position::ZERO,
            prefix: None,
            fork: None,
        }
    }
}

/// The segments that a fork of `source` at `point` inherits: those of the source up to there, and the
/// source's own records.
fn lineage(source: &Stream, point: Position) -> Vec<Segment> {
    let own = Segment { log: source.log, through: point };
    let mut lineage = Vec::new();
    for segment in source.fork.iter().flat_map(|fork| &fork.lineage).chain([&own]) {
        lineage.push(Segment { log: segment.log, through: segment.through.min(point) });
        if segment.through >= point {
            break;
        }
    }
    lineage
}

impl CreateRequest {
    /// Whether an existing stream matches this request. Properties that the request of a fork omits come from
    /// the source and therefore match.
    fn same_configuration(&self, found: &Found) -> Result<(), StreamError> {
        let Found { stream, status: Status { closed, .. } } = found;
        let is_fork = self.fork.is_some();
        let content_type = match &self.content_type {
            Some(content_type) => content_type.same_media_type(&stream.content_type),
            None => is_fork || ContentType::octet_stream().same_media_type(&stream.content_type),
        };
        let expiry = match self.expiry {
            Some(expiry) => expiry == stream.expiry,
            None => is_fork || stream.expiry == Expiry::Never,
        };
        let asked = if is_fork { self.retention.or(stream.retention()) } else { self.retention };
        let differs = if !content_type {
            "the content type"
        } else if !expiry {
            "the expiry"
        } else if asked != stream.retention() {
            "the retention"
        } else if *closed != (self.then == Then::Close) {
            "whether it is closed"
        } else if !same_fork(self.fork.as_ref(), stream.fork.as_deref()) {
            "what it is forked from"
        } else {
            return Ok(());
        };
        Err(StreamError::Conflict(differs))
    }
}

fn same_fork(asked: Option<&ForkRequest>, known: Option<&Fork>) -> bool {
    match (asked, known) {
        (None, None) => true,
        (Some(asked), Some(known)) => {
            asked.source == known.source
                && asked.offset == known.offset
                && asked.sub_offset == known.sub_offset
        }
        _ => false,
    }
}
