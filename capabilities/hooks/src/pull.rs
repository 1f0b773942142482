//! Pull: the queue of a hook as a stream, for a consumer that no webhook can reach.
//!
//! A message is what a delivery would be, with the id of the delivery. Reading changes nothing: deliveries are made to the
//! endpoint all the same, and what is finished can be read until clean-up removes it. Who pulls remembers how far it read.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{Encode, Join, Lost, Source, Subscription};
use tidings_engine::log::{Page, ReadError, Record, Span};
use tidings_model::{LogId, Position, ProjectId, limits};

use crate::hook::{Format, HookId};
use crate::{Event, Hook, HookError, Hooks};

/// Attempts of a read from the start while the queue is being trimmed.
const ATTEMPTS: usize = 16;

/// Where a reader begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At the oldest delivery that is kept.
    Oldest,
    /// After a position of the queue.
    After(Position),
    /// At the tail: only deliveries that are queued from now on.
    Tail,
}

/// Consecutive messages of a queue.
#[derive(Clone, Debug)]
pub struct Pulled {
    /// The messages, each a record whose payload is JSON.
    pub records: Vec<Record>,
    /// Position of the reader before them.
    pub after: Position,
    /// Position of the reader after them.
    pub next: Position,
    /// Whether they reach the tail.
    pub up_to_date: bool,
}

impl Hooks {
    /// Reads messages of a hook's queue, as many as one response holds; none at the tail.
    pub async fn pull(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        begin: Begin,
    ) -> Result<Pulled, HookError> {
        for _ in 0..ATTEMPTS {
            let (queue, after) = self.begin_pull(project, id, begin).await?;
            let span = Span { bytes: limits::READ_CHUNK_BYTES, ..Span::after(after) };
            match queue.page(span).await {
                Ok(page) => {
                    let next = page.last(after);
                    let up_to_date = next >= page.status.tail || page.records.is_empty();
                    return Ok(Pulled { records: page.records, after, next, up_to_date });
                }
                // Trimmed between look-up and read: the start is somewhere else now, or what was to follow is gone.
                Err(ReadError::Trimmed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(HookError::Contended)
    }

    /// Subscribes to the queue of a hook: what is there, then what comes. `form` names what `encode` writes.
    pub async fn listen(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        begin: Begin,
        form: &'static str,
        encode: Arc<dyn Encode>,
        stamp: u64,
    ) -> Result<Subscription, HookError> {
        let (queue, after) = self.begin_pull(project, id, begin).await?;
        let (log, tail) = (queue.log, queue.tail);
        if self.0.channels.readers(log) >= limits::HOOK_READERS {
            return Err(HookError::TooManyReaders { most: limits::HOOK_READERS });
        }
        Ok(self.0.channels.join(Join { log, form, source: Arc::new(queue), encode, tail, after, stamp }))
    }

    async fn begin_pull(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        begin: Begin,
    ) -> Result<(Queue, Position), HookError> {
        let found = self.find(project, id).await?;
        let (floor, tail) = (found.status.floor, found.status.tail);
        let after = match begin {
            Begin::Oldest => floor,
            Begin::Tail => tail,
            // Of another hook, or invented: the reader gets what comes.
            Begin::After(position) if position >= tail => tail,
            Begin::After(position) if position < floor => return Err(HookError::Trimmed { floor, tail }),
            Begin::After(position) => position,
        };
        Ok((Queue { hooks: self.clone(), log: found.queue, hook: found.hook, tail }, after))
    }
}

/// The source of a queue's channel.
struct Queue {
    hooks: Hooks,
    log: LogId,
    hook: Arc<Hook>,
    /// Tail when reading began.
    tail: Position,
}

impl Queue {
    async fn page(&self, span: Span) -> Result<Page, ReadError> {
        let mut page = self.hooks.0.store.read(self.log, span).await?;
        for record in &mut page.records {
            record.payload = self.message(record);
            // The message is of this hook alone, whatever else refers to the same event.
            record.origin = None;
        }
        Ok(page)
    }

    /// The message of a delivery.
    fn message(&self, record: &Record) -> Bytes {
        let id = self.hook.delivery(self.log, record.position);
        let mut out = format!("{{\"deliveryId\":\"{id}\"").into_bytes();
        match Event::from_record(&record.payload) {
            Some(event) => {
                let body = event.body(Format::Envelope, &self.hook.project);
                out.push(b',');
                // An envelope has members.
                out.extend_from_slice(&body[1..]);
            }
            None => out.push(b'}'),
        }
        out.into()
    }
}

impl Source for Queue {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        async move { self.page(span).await.map_err(Lost::from) }.boxed()
    }
}
