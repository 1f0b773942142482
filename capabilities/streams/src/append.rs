//! Appending: one request, validated and durable, or refused with the reason.

use bytes::Bytes;
use tidings_engine::log::{
    Append, Commit, CommitError, Committed, Conditions, LogTotals, Positions, Refusal, Then,
};
use tidings_model::{Position, Producer};

use crate::table::{Change, Declined};
use crate::{ContentType, Found, StreamError, StreamKey, Streams};

/// What a client wants appended.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// The content.
    pub body: Body,
    /// What must hold of the stream.
    pub conditions: Conditions,
    /// Whether the stream is closed with it.
    pub then: Then,
}

/// The content of an append.
#[derive(Clone, Debug)]
pub enum Body {
    /// None: the request only closes.
    Nothing,
    /// Bytes of a type.
    Content(ContentType, Bytes),
}

/// An append that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where to read on after it: the tail.
    pub next: Position,
    /// Whether the stream is closed now.
    pub closed: bool,
    /// Whether it was made by this request or before.
    pub freshness: Freshness,
}

/// Whether a request was made now or before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Records were appended now.
    New,
    /// Nothing was appended; the stream was closed now.
    ClosedNow,
    /// Made before, by the same producer with the same or a later stamp.
    Repeated {
        /// The producer's epoch.
        epoch: u64,
        /// The highest sequence number accepted from it.
        sequence: u64,
    },
    /// Only asked to close, and closed it was.
    WasClosed,
}

/// An append that is ready to be committed, alone or with more.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What it does. The append is its first operation.
    pub commit: Commit<Change>,
    closes_only: bool,
    stamped: bool,
    then: Then,
}

impl Streams {
    /// Appends what a client sent. Durable when it returns.
    pub async fn append(&self, key: &StreamKey, request: &AppendRequest) -> Result<Appended, StreamError> {
        let found = self.describe(key).await?;
        let prepared = self.prepare(key, &found, request).await?;
        let committed = match self.trimmed(key, &found, &prepared).await {
            Some(trimming) => match self.store.commit(trimming).await {
                // A fork has come meanwhile.
                Err(CommitError::Declined(Declined::HasForks)) => {
                    self.store.commit(prepared.commit.clone()).await
                }
                done => done,
            },
            None => self.store.commit(prepared.commit.clone()).await,
        };
        prepared.finish(committed)
    }

    /// Validates what a client sent by the stream that was found, and makes a commit of it.
    pub async fn prepare(
        &self,
        key: &StreamKey,
        found: &Found,
        request: &AppendRequest,
    ) -> Result<Prepared, StreamError> {
        let closes_only = matches!(request.body, Body::Nothing);
        let payloads = match payloads(found, &request.body) {
            // That the stream is closed counts for more than that the body would not fit it.
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
    /// Whether it adds records.
    pub fn adds(&self) -> bool {
        !self.closes_only
    }

    /// How much it adds.
    pub(crate) fn totals(&self) -> LogTotals {
        match self.commit.operations.first() {
            Some(tidings_engine::log::Operation::Append(append)) => LogTotals::of(&append.payloads),
            _ => LogTotals::default(),
        }
    }

    /// What came of it, for the client.
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

/// The records that a body makes in a stream.
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
    /// Epoch and sequence to tell a producer that sent this stamp.
    pub fn stamp(&self, sent: &Producer) -> (u64, u64) {
        match self.freshness {
            Freshness::Repeated { epoch, sequence } => (epoch, sequence),
            Freshness::New | Freshness::ClosedNow | Freshness::WasClosed => (sent.epoch, sent.sequence),
        }
    }
}
