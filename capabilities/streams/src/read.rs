//! Reading: what is there, then what comes.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{Encode, Join, Lost, Source, Subscription};
use tidings_engine::log::{Commit, Page, Record, Span, StoreError};
use tidings_model::{LogId, Position};

use crate::table::Store;
use crate::{Expiry, Stream, StreamError, StreamKey, Streams};

/// How often a read from the start that met a trim looks again.
const ATTEMPTS: usize = 16;

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the oldest record that is kept.
    Start,
    /// At the first record after a position.
    After(Position),
    /// At the tail as it is now.
    Tail,
}

/// Consecutive records of a stream, and what there is to know at their end.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The records.
    pub records: Vec<Record>,
    /// Where the reader was before them.
    pub after: Position,
    /// Where to read on.
    pub next: Position,
    /// Whether the tail was reached.
    pub up_to_date: bool,
    /// Whether the stream is closed and all of it was read.
    pub closed: bool,
}

/// How a live reader wants to hear a stream.
pub struct Wish<E> {
    /// The wire form. Readers of the same stream and form share what is encoded.
    pub form: &'static str,
    /// How records of the stream are written in this form.
    pub encode: E,
    /// The least stamp that the reader may be shown.
    pub stamp: u64,
}

/// How records that refer to records of other streams are shown to readers of a stream.
pub trait Shape: Send + Sync + 'static {
    /// Shows those of a log so, in place.
    fn shape<'a>(&'a self, log: LogId, records: &'a mut Vec<Record>)
    -> BoxFuture<'a, Result<(), StoreError>>;
}

impl Streams {
    /// Reads what is there, up to the size of one answer; no records at the tail. Renews the stream.
    pub async fn read(&self, key: &StreamKey, from: From) -> Result<(Arc<Stream>, Chunk), StreamError> {
        for _ in 0..ATTEMPTS {
            let (reading, after) = self.begin(key, from).await?;
            let span = Span { bytes: self.options.read_chunk_bytes, ..Span::after(after) };
            match reading.page(span).await {
                // Trimmed between looking and reading: the oldest that is kept is another one now.
                Err(StreamError::Trimmed { .. }) if from == From::Start => {}
                page => return Ok((reading.stream, Chunk::new(after, page?))),
            }
        }
        Err(StreamError::Contended)
    }

    /// Begins to listen to a stream, which renews it. The subscription reads what is there, then what comes.
    pub async fn listen<E>(
        &self,
        key: &StreamKey,
        from: From,
        wish: Wish<E>,
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
            form: wish.form,
            encode: (wish.encode)(&stream),
            source: Arc::new(reading),
            tail,
            after,
            stamp: wish.stamp,
        });
        Ok((stream, subscription))
    }

    async fn begin(&self, key: &StreamKey, from: From) -> Result<(Reading, Position), StreamError> {
        let found = self.describe(key).await?;
        let status = found.status;
        if let Some(renewal) = self.renewal(key, &found.stream) {
            match self.store.commit(Commit::new().changing(renewal)).await.map_err(StreamError::from) {
                // Reading goes on where nothing can be written.
                Ok(_) | Err(StreamError::Store(StoreError::NoSpace)) => {}
                Err(error) => return Err(error),
            }
        }
        let tail = status.tail;
        let after = match from {
            From::Tail => tail,
            // An offset from an earlier life, or from nowhere, may lie beyond the tail: whoever brings it hears
            // all that is new.
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
        // Nothing left to read is up to date, whatever the tail says.
        let up_to_date = next >= page.status.tail || page.records.is_empty();
        let closed = page.status.closed && up_to_date;
        Self { records: page.records, after, next, up_to_date, closed }
    }
}

/// A stream that is being read: its inherited records, its own, and whether it can still be used.
struct Reading {
    streams: Streams,
    key: StreamKey,
    stream: Arc<Stream>,
    /// Its tail when reading began.
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
            // Not each time: a commit for each reader would be many.
            if found.stream.log == self.stream.log && left <= ttl - ttl / 10 {
                // If it cannot be done now, the next time will do.
                let _ = self.streams.renew(&self.key, &found.stream).await;
            }
        }
        .boxed()
    }
}

impl Reading {
    /// Whether a reader at this position has missed nothing, and its next record may still be read. Whoever follows
    /// hears records beyond the limits of bytes and messages as long as they are there.
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
        if let (Some(page), Some(shape)) = (&mut page, &self.streams.shape)
            && page.records.iter().any(|record| record.origin.is_some())
        {
            self.shape(&**shape, page).await?;
        }
        if let Some(page) = page.as_ref().filter(|_| self.stream.retained.is_some()) {
            self.validate(page, span.after)?;
        }
        // At the tail, and when the log is gone: the stream may have ended, or begun another life.
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
    /// Shows references as each of the logs in which they lie shows them.
    async fn shape(&self, shape: &dyn Shape, page: &mut Page) -> Result<(), StreamError> {
        let mut rest = std::mem::take(&mut page.records);
        for segment in self.stream.fork.iter().flat_map(|fork| &fork.lineage) {
            let count = rest.partition_point(|record| record.position <= segment.through);
            let mut stretch: Vec<Record> = rest.drain(..count).collect();
            shape.shape(segment.log, &mut stretch).await?;
            page.records.append(&mut stretch);
        }
        shape.shape(self.stream.log, &mut rest).await?;
        page.records.append(&mut rest);
        Ok(())
    }
}

impl Stream {
    /// Records in order: inherited ones first, stretch by stretch, then the stream's own.
    pub(crate) async fn read(&self, store: &dyn Store, span: Span) -> Result<Page, StreamError> {
        let mut rest = span;
        let mut records: Vec<Record> = Vec::new();
        for segment in self.fork.iter().flat_map(|fork| &fork.lineage) {
            while rest.after < segment.through && rest.records > 0 && rest.bytes > 0 {
                let stretch = Span { through: segment.through.min(span.through), ..rest };
                let page = store.read(segment.log, stretch).await?;
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
