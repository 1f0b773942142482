//! Appending to streams: a request is validated and made durable, or refused with the reason.

use bytes::Bytes;
use tidings_engine::log::{
    Append, Commit, CommitError, Committed, Conditions, LogTotals, Positions, Refusal, Then,
};
use tidings_model::{Position, Producer};

use crate::table::{Change, Declined};
use crate::{ContentType, Found, StreamError, StreamKey, Streams};

/// A request to append to a stream.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// The content to append.
    pub body: Body,
    /// Conditions that the stream must meet.
    pub conditions: Conditions,
    /// Whether the append closes the stream.
    pub then: Then,
}

/// The content of an append.
#[derive(Clone, Debug)]
pub enum Body {
    /// No content: the request only closes the stream.
    Nothing,
    /// Content of a type.
    Content(ContentType, Bytes),
}

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The tail after the append: where a reader continues.
    pub next: Position,
    /// Whether the stream is closed.
    pub closed: bool,
    /// Whether this request or an earlier one made the append.
    pub freshness: Freshness,
}

/// Whether a request had an effect, or repeats an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The request appended records.
    New,
    /// The request appended nothing, but closed the stream.
    ClosedNow,
    /// The producer had made the same request, or a later one, before.
    Repeated {
        /// Current epoch of the producer.
        epoch: u64,
        /// Highest sequence number accepted from the producer.
        sequence: u64,
    },
    /// The request only closes the stream, which was closed already.
    WasClosed,
}

/// A validated append, ready to be committed alone or together with other changes.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The commit. The append is its operation number [`APPEND`](Self::APPEND).
    pub commit: Commit<Change>,
    closes_only: bool,
    stamped: bool,
    then: Then,
}

impl Streams {
    /// Appends to a stream. Durable when it returns.
    pub async fn append(&self, key: &StreamKey, request: &AppendRequest) -> Result<Appended, StreamError> {
        let found = self.describe(key).await?;
        let prepared = self.prepare(key, &found, request).await?;
        let commit = |commit| {
            let make = |commit| self.store.commit(commit);
            self.commit_append(key, &found.stream, commit, Prepared::APPEND, make)
        };
        let committed = match self.trimmed(key, &found, &prepared).await {
            Some(trimming) => match commit(trimming).await {
                // The stream was forked meanwhile, so it must not be trimmed in the same commit.
                Err(CommitError::Declined(Declined::HasForks)) => commit(prepared.commit.clone()).await,
                done => done,
            },
            None => commit(prepared.commit.clone()).await,
        };
        prepared.finish(committed)
    }

    /// Validates a request against the stream and prepares its commit.
    pub async fn prepare(
        &self,
        key: &StreamKey,
        found: &Found,
        request: &AppendRequest,
    ) -> Result<Prepared, StreamError> {
        let closes_only = matches!(request.body, Body::Nothing);
        let payloads = match payloads(found, &request.body) {
            // A closed stream is reported as such, even if the body would be invalid, too.
            Err(_) if found.status.closed => return Err(StreamError::Closed { tail: found.status.tail }),
            payloads => payloads?,
        };
        if closes_only && request.then == Then::StayOpen {
            return Err(StreamError::EmptyAppend);
        }
        let append = Append {
            log: found.stream.log,
            payloads,
            positions: Positions::ByStore,
            conditions: request.conditions.clone(),
            then: request.then,
        };
        let stamped = append.conditions.producer.is_some();
        let mut commit = Commit::new().with(append);
        commit.changes.extend(self.renewal(key, &found.stream));
        Ok(Prepared { commit, closes_only, stamped, then: request.then })
    }
}

impl Prepared {
    /// Index of the append among the operations of the commit.
    pub const APPEND: usize = 0;

    /// Whether the append adds records.
    pub fn adds(&self) -> bool {
        !self.closes_only
    }

    /// Number of records and bytes that the append adds.
    pub(crate) fn totals(&self) -> LogTotals {
        match self.commit.operations.first() {
            Some(tidings_engine::log::Operation::Append(append)) => LogTotals::of(&append.payloads),
            _ => LogTotals::default(),
        }
    }

    /// Translates the result of the commit into that of the append.
    pub fn finish(
        &self,
        committed: Result<Committed, CommitError<Declined>>,
    ) -> Result<Appended, StreamError> {
        match committed {
            Ok(committed) => {
                let next = committed.appended().last;
                let freshness = if self.closes_only { Freshness::ClosedNow } else { Freshness::New };
                Ok(Appended { next, closed: self.then == Then::Close, freshness })
            }
            Err(CommitError::Refused(Refusal::Duplicate { epoch, sequence, status })) => {
                let freshness = Freshness::Repeated { epoch, sequence };
                Ok(Appended { next: status.tail, closed: status.closed, freshness })
            }
            Err(CommitError::Refused(Refusal::Closed { tail })) if self.closes_only && !self.stamped => {
                Ok(Appended { next: tail, closed: true, freshness: Freshness::WasClosed })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Splits the body of an append into the records of the stream.
fn payloads(found: &Found, body: &Body) -> Result<Vec<Bytes>, StreamError> {
    let Body::Content(received, bytes) = body else { return Ok(Vec::new()) };
    let expected = &found.stream.content_type;
    if !expected.same_media_type(received) {
        let (expected, received) = (expected.clone(), received.clone());
        return Err(StreamError::ContentTypeMismatch { expected, received });
    }
    if bytes.is_empty() {
        return Err(StreamError::EmptyAppend);
    }
    let messages = expected.messages(bytes.clone())?;
    if messages.is_empty() { Err(StreamError::EmptyArray) } else { Ok(messages) }
}

impl Appended {
    /// The epoch and sequence number to report to a producer that sent this stamp.
    pub fn stamp(&self, sent: &Producer) -> (u64, u64) {
        match self.freshness {
            Freshness::Repeated { epoch, sequence } => (epoch, sequence),
            Freshness::New | Freshness::ClosedNow | Freshness::WasClosed => (sent.epoch, sent.sequence),
        }
    }
}
