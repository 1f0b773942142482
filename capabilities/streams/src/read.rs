//! Reading streams: stored records first, then new ones as they come.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{Encode, Join, Lost, Source, Subscription};
use tidings_engine::log::{Commit, Page, Record, Span, StoreError};
use tidings_model::{LogId, Position};

use crate::table::Store;
use crate::{Expiry, Stream, StreamError, StreamKey, Streams};

/// Attempts of a read from the start while the stream is being trimmed.
const ATTEMPTS: usize = 16;

/// Where a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the oldest record that is kept.
    Start,
    /// At the first record after a position.
    After(Position),
    /// At the current tail: only new records.
    Tail,
}

/// Consecutive records of a stream, and the state at their end.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The records, in order.
    pub records: Vec<Record>,
    /// Position of the reader before the records.
    pub after: Position,
    /// Position of the reader after the records.
    pub next: Position,
    /// Whether the chunk reaches the tail.
    pub up_to_date: bool,
    /// Whether the stream is closed and the chunk reaches its end.
    pub closed: bool,
}

/// The wire form that a live reader asks for.
pub struct ReaderFormat<E> {
    /// Name of the wire form. Readers of the same stream and form share encoded frames.
    pub form: &'static str,
    /// The encoder of this form.
    pub encode: E,
    /// The lowest stamp of frames that the reader accepts.
    pub stamp: u64,
}

/// Rewrites references to records of other streams for readers, for instance as envelopes.
pub trait ReferenceRewriter: Send + Sync + 'static {
    /// Rewrites the references of a log in place.
    fn rewrite<'a>(
        &'a self,
        log: LogId,
        records: &'a mut Vec<Record>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}

impl Streams {
    /// Reads stored records, up to the size of one answer; none at the tail. Renews the stream.
    pub async fn read(&self, key: &StreamKey, from: From) -> Result<(Arc<Stream>, Chunk), StreamError> {
        for _ in 0..ATTEMPTS {
            let (reading, after) = self.begin(key, from).await?;
            let span = Span { bytes: self.options.read_chunk_bytes, ..Span::after(after) };
            match reading.page(span).await {
                // Trimmed between look-up and read, so the start is somewhere else now.
                Err(StreamError::Trimmed { .. }) if from == From::Start => {}
                page => return Ok((reading.stream, Chunk::new(after, page?))),
            }
        }
        Err(StreamError::Contended)
    }

    /// Subscribes to a stream and renews it. The subscription reads the stored records, then new ones.
    pub async fn listen<E>(
        &self,
        key: &StreamKey,
        from: From,
        format: ReaderFormat<E>,
    ) -> Result<(Arc<Stream>, Subscription), StreamError>
    where
        E: FnOnce(&Stream) -> Arc<dyn Encode>,
    {
        let (reading, after) = self.begin(key, from).await?;
        let stream = reading.stream.clone();
        if self.channels.readers(stream.log) >= self.options.max_readers_per_stream {
            return Err(StreamError::TooManyReaders);
        }
        let tail = reading.tail;
        let subscription = self.channels.join(Join {
            log: stream.log,
            form: format.form,
            encode: (format.encode)(&stream),
            source: Arc::new(reading),
            tail,
            after,
            stamp: format.stamp,
        });
        Ok((stream, subscription))
    }

    async fn begin(&self, key: &StreamKey, from: From) -> Result<(Reading, Position), StreamError> {
        let found = self.describe(key).await?;
        let status = found.status;
        if let Some(renewal) = self.renewal(key, &found.stream) {
            match self.store.commit(Commit::new().changing(renewal)).await.map_err(StreamError::from) {
                // A full disk must not stop readers.
                Ok(_) | Err(StreamError::Store(StoreError::NoSpace)) => {}
                Err(error) => return Err(error),
            }
        }
        let tail = status.tail;
        let after = match from {
            From::Tail => tail,
            // An offset of an earlier incarnation, or an invented one, may lie beyond the tail. Its reader
            // gets all new records.
            From::After(position) if position >= tail => tail,
            From::Start | From::After(_) => {
                let floor = self.floor(key, &found).await?.position;
                match from {
                    From::After(position) if position < floor => {
                        return Err(StreamError::Trimmed { floor, tail });
                    }
                    From::After(position) => position,
                    From::Start | From::Tail => floor,
                }
            }
        };
        let stream = found.stream;
        Ok((Reading { streams: self.clone(), key: key.clone(), stream, tail }, after))
    }
}

impl Chunk {
    fn new(after: Position, page: Page) -> Self {
        let next = page.last(after);
        // An empty page is up to date, whatever the tail is.
        let up_to_date = next >= page.status.tail || page.records.is_empty();
        let closed = page.status.closed && up_to_date;
        Self { records: page.records, after, next, up_to_date, closed }
    }
}

/// The source of a stream's channel: inherited and own records, and whether the stream can still be used.
struct Reading {
    streams: Streams,
    key: StreamKey,
    stream: Arc<Stream>,
    /// Tail of the stream when reading began.
    tail: Position,
}

impl Source for Reading {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        let lost = |error| if matches!(error, StreamError::Store(_)) { Lost::Failed } else { Lost::Gone };
        async move { self.page(span).await.map_err(lost) }.boxed()
    }

    fn keep(&self) -> BoxFuture<'_, ()> {
        let Expiry::Idle(ttl) = self.stream.expiry else { return std::future::ready(()).boxed() };
        async move {
            let Ok(found) = self.streams.describe(&self.key).await else { return };
            let left = found.stream.expires_at.unwrap_or_default().since(self.streams.clock.now());
            // Not every time: a commit for each reader and look would be too many.
            if found.stream.log == self.stream.log && left <= ttl - ttl / 10 {
                // A failure is ignored; the next call tries again.
                let _ = self.streams.renew(&self.key, &found.stream).await;
            }
        }
        .boxed()
    }
}

impl Reading {
    /// Checks that a reader at this position has missed nothing and may read its next record. A live reader
    /// still gets records beyond the limits of bytes and messages while they exist.
    fn validate(&self, page: &Page, after: Position) -> Result<(), StreamError> {
        let Page { records, status } = page;
        let now = self.streams.clock.now();
        let retention = self.stream.retention();
        let outlived = records.iter().take_while(|record| retention.outlived(record, now)).last();
        match outlived.map(|record| record.position).or(Some(status.floor)).filter(|&floor| floor > after) {
            Some(floor) => Err(StreamError::Trimmed { floor, tail: status.tail }),
            None => Ok(()),
        }
    }

    async fn page(&self, span: Span) -> Result<Page, StreamError> {
        let mut page = match self.stream.read(&*self.streams.store, span).await {
            Err(StreamError::NotFound) => None,
            page => Some(page?),
        };
        if let (Some(page), Some(rewriter)) = (&mut page, &self.streams.rewriter)
            && page.records.iter().any(|record| record.origin.is_some())
        {
            self.rewrite(&**rewriter, page).await?;
        }
        if let Some(page) = page.as_ref().filter(|_| self.stream.retained.is_some()) {
            self.validate(page, span.after)?;
        }
        // At the tail, or without a log: the stream may have been removed, or created anew.
        match page {
            Some(page) if !page.records.is_empty() => Ok(page),
            ended => {
                let found = self.streams.describe(&self.key).await?;
                ended.filter(|_| found.stream.log == self.stream.log).ok_or(StreamError::NotFound)
            }
        }
    }
}

impl Reading {
    /// Rewrites the references of a page, each as the log that contains it wants.
    async fn rewrite(&self, rewriter: &dyn ReferenceRewriter, page: &mut Page) -> Result<(), StreamError> {
        let mut rest = std::mem::take(&mut page.records);
        for segment in self.stream.fork.iter().flat_map(|fork| &fork.lineage) {
            let count = rest.partition_point(|record| record.position <= segment.through);
            let mut range: Vec<Record> = rest.drain(..count).collect();
            rewriter.rewrite(segment.log, &mut range).await?;
            page.records.append(&mut range);
        }
        rewriter.rewrite(self.stream.log, &mut rest).await?;
        page.records.append(&mut rest);
        Ok(())
    }
}

impl Stream {
    /// Reads records in order: inherited ones first, segment by segment, then the stream's own.
    pub(crate) async fn read(&self, store: &dyn Store, span: Span) -> Result<Page, StreamError> {
        let mut rest = span;
        let mut records: Vec<Record> = Vec::new();
        for segment in self.fork.iter().flat_map(|fork| &fork.lineage) {
            while rest.after < segment.through && rest.records > 0 && rest.bytes > 0 {
                let range = Span { through: segment.through.min(span.through), ..rest };
                let page = store.read(segment.log, range).await?;
                if page.records.is_empty() {
                    break;
                }
                rest.after = page.last(rest.after);
                rest.records -= page.records.len();
                rest.bytes = rest.bytes.saturating_sub(page.bytes());
                records.extend(page.records);
            }
        }
        if !records.is_empty() && (rest.records == 0 || rest.bytes == 0) {
            return Ok(Page { records, status: store.status(self.log).await? });
        }
        let mut page = store.read(self.log, rest).await?;
        if !records.is_empty() {
            records.append(&mut page.records);
            page.records = records;
        }
        Ok(page)
    }
}
