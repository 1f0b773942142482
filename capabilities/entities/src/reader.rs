//! The reader of a source: delivers what it has to tell to the connections of its project, in order.

use std::pin::pin;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::cursor::Cursor;
use crate::hub::{Hub, Reader};
use crate::source::{Read, ResyncReason, SourceError};

/// Entries read at a time.
const AT_A_TIME: usize = 1024;
/// Entries delivered, and connections woken, before other tasks get their turn.
const PER_TURN: usize = 256;
/// Delays after failures: the first, and the longest. Each is up to twice as long as the one before.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Marks a hub as not read when its reader ends.
struct Running<'a> {
    hub: &'a Hub,
    /// Whether nobody needs it any more. Somebody else may have begun to read by then.
    is_over: bool,
}

/// The delay before the next attempt.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Hub {
    /// Reads the source for as long as somebody needs it. Returns at once if it is being read already.
    pub(crate) async fn run(self: Arc<Self>) {
        {
            let mut state = self.lock();
            if state.reader != Reader::Wanted {
                return;
            }
            state.reader = Reader::Running;
        }
        let mut running = Running { hub: &self, is_over: false };
        if self.head.borrow().is_some() {
            // The reader before this one has not ended well. What it has delivered after the head would be told again, and
            // take versions back.
            wake(self.lose(ResyncReason::Overflow)).await;
        }
        self.review_again();
        let mut reviewing = pin!(self.review());
        let mut reading = pin!(self.read_on());
        loop {
            tokio::select! {
                () = &mut reading => return,
                () = &mut reviewing => return,
                () = self.idle.notified() => if self.stop_if_idle() {
                    running.is_over = true;
                    return;
                },
            }
        }
    }

    /// Whether nobody needs the source any more. Then it is not read until somebody does again.
    fn stop_if_idle(&self) -> bool {
        let mut state = self.lock();
        let is_idle = state.connections.is_empty() && !self.permanent;
        if is_idle {
            state.reader = Reader::Stopped;
            self.head.send_replace(None);
        }
        is_idle
    }

    /// Reads and delivers. Never returns.
    async fn read_on(&self) {
        let mut backoff = Backoff::default();
        loop {
            let head = self.head.borrow().clone();
            let outcome = match &head {
                None => self.source.now().await.map(|now| self.set_head(&now)),
                Some(head) => self.read_once(head).await,
            };
            match outcome {
                Ok(()) => {
                    backoff.failures = 0;
                    self.note_source(None);
                }
                Err(error) => {
                    self.counts.failures.count();
                    if self.failing().is_none() {
                        tracing::warn!(%error, project = %self.project, "could not read changes of entities; trying again");
                    }
                    self.note_source(Some(&error));
                    if let SourceError::InvalidCursor(_) = error {
                        // The source does not know its own cursor any more.
                        wake(self.lose(ResyncReason::SourceReset)).await;
                        self.head.send_replace(None);
                    }
                    self.clock.sleep(backoff.next(&self.rng)).await;
                }
            }
        }
    }

    async fn read_once(&self, head: &Cursor) -> Result<(), SourceError> {
        let replays = self.lock().replays;
        match self.source.read(head, AT_A_TIME).await? {
            Read::Entries { entries, cursor, more } => {
                self.note_source(None);
                let mut chunks = entries.chunks(PER_TURN).peekable();
                while let Some(some) = chunks.next() {
                    let wakers = self.deliver(some);
                    // Before anybody is woken, who may send at once: so the last changes come with the cursor after them.
                    if chunks.peek().is_none() {
                        self.set_head(&cursor);
                    }
                    wake(wakers).await;
                    tokio::task::yield_now().await;
                }
                self.set_head(&cursor);
                if !more {
                    self.forget_floors(replays);
                    self.source.changed(&cursor).await;
                }
            }
            Read::Lost { reason, cursor } => {
                tracing::warn!(project = %self.project, reason = reason.as_str(), "changes of entities were lost");
                let wakers = self.lose(reason);
                self.set_head(&cursor);
                wake(wakers).await;
            }
        }
        Ok(())
    }
}

/// Wakes connections, some at a time: a waker may write to a socket.
async fn wake(wakers: Vec<Waker>) {
    let mut wakers = wakers.into_iter();
    loop {
        let mut some = wakers.by_ref().take(PER_TURN).peekable();
        if some.peek().is_none() {
            return;
        }
        some.for_each(Waker::wake);
        tokio::task::yield_now().await;
    }
}

impl Backoff {
    fn next(&mut self, rng: &tidings_engine::Rng) -> Duration {
        let (first, longest) = RETRY;
        let most = first.saturating_mul(1 << self.failures.min(16)).min(longest);
        self.failures += 1;
        let millis = u64::try_from(most.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(rng.within(millis / 2..=millis))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.hub.lock().reader = Reader::Wanted;
        }
    }
}
