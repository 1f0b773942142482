//! Pumps: the tasks that read new records from logs into the rings of channels, and wake the readers of
//! channels and rings.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_model::Position;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::bundle::Shared;
use super::channel::{Channel, PendingWake};
use super::patterns::Patterns;
use super::ring::{PendingTell, Ring};
use super::{Batch, Frame, Lost};
use crate::log::{Boundary, Page, Span};

/// Readers woken before the pump yields. A wake-up may write to a socket, so other tasks must get their turn.
const WAKES_PER_TURN: usize = 64;

/// Queue of what a pump has to do.
pub(super) type Queue = mpsc::UnboundedSender<Work>;

/// What a pump has to do.
pub(super) enum Work {
    /// Read the log of a channel.
    Channel(Arc<Channel>),
    /// Tell the members of a ring of new frames.
    Ring(Arc<Ring>),
    /// Wake the reader of a bundle.
    Bundle(Arc<Shared>),
    /// Merge the patterns that were added and removed.
    Patterns(Patterns),
}

/// The pump tasks. A channel or ring is always served by the same one.
pub(super) struct Pumps {
    queues: Vec<Queue>,
    tasks: Vec<JoinHandle<()>>,
}

impl Pumps {
    /// The queue for the channels of a log, or for a ring, by number.
    pub(super) fn of(&self, number: u64) -> Queue {
        self.queues[number as usize % self.queues.len()].clone()
    }
}

/// A pump that nobody runs but the test.
#[cfg(all(test, shuttle))]
pub(super) fn by_hand() -> (Pumps, mpsc::UnboundedReceiver<Work>) {
    let (queue, work) = mpsc::unbounded_channel();
    (Pumps { queues: vec![queue], tasks: Vec::new() }, work)
}

impl Drop for Pumps {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Starts one pump per processor.
pub(super) fn start() -> Pumps {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let (queues, tasks) = (0..count)
        .map(|_| {
            let (queue, stale) = mpsc::unbounded_channel();
            (queue, tokio::spawn(run(stale)))
        })
        .unzip();
    Pumps { queues, tasks }
}

/// Serves the channels and rings of one queue. Each is queued at most once, so their number bounds the queue.
async fn run(mut queue: mpsc::UnboundedReceiver<Work>) {
    let mut working = FuturesUnordered::new();
    // Members told since other tasks had their turn.
    let mut told = 0;
    loop {
        tokio::select! {
            work = queue.recv() => match work {
                Some(Work::Ring(ring)) => {
                    let pending = ring.to_tell();
                    if pending.len() > WAKES_PER_TURN {
                        working.push(Either::Left(fan_out(ring, pending)));
                        continue;
                    }
                    // Most rings have few members. A future and a turn for each would cost as much as telling them.
                    tell(&ring, &pending);
                    told += pending.len();
                    if told >= WAKES_PER_TURN {
                        told = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Some(work) => working.push(Either::Right(serve(work))),
                None => return,
            },
            Some(()) = working.next() => {}
        }
    }
}

async fn serve(work: Work) {
    match work {
        Work::Channel(channel) => serve_channel(channel).await,
        Work::Ring(ring) => {
            let pending = ring.to_tell();
            fan_out(ring, pending).await;
        }
        Work::Bundle(bundle) => {
            if catch_unwind(AssertUnwindSafe(|| bundle.wake())).is_err() {
                bundle.forget_waker();
            }
        }
        Work::Patterns(patterns) => {
            // If it panics, patterns are matched as before.
            let _ = tokio::task::spawn_blocking(move || patterns.compact_now()).await;
        }
    }
}

/// Tells the members of a ring that it has frames for them. What is published meanwhile queues the ring again.
async fn fan_out(ring: Arc<Ring>, pending: Vec<PendingTell>) {
    for some in pending.chunks(WAKES_PER_TURN) {
        tell(&ring, some);
        tokio::task::yield_now().await;
    }
}

fn tell(ring: &Arc<Ring>, pending: &[PendingTell]) {
    for PendingTell { bundle, slot } in pending {
        if catch_unwind(AssertUnwindSafe(|| bundle.tell(ring, *slot))).is_err() {
            bundle.forget_waker();
        }
    }
}

/// Brings a channel up to date. If that panics, its readers are told that it is lost; other channels go on.
async fn serve_channel(channel: Arc<Channel>) {
    let bringing = AssertUnwindSafe(bring_up_to_date(&channel)).catch_unwind();
    if bringing.await.is_err() {
        let readers = channel.lock().lose(Lost::Failed);
        readers.iter().for_each(|reader| wake(&channel, reader));
    }
}

/// Wakes a reader, which may write to its socket on this task. A waker that panics is removed; other readers
/// are unaffected.
fn wake(channel: &Channel, reader: &PendingWake) {
    if catch_unwind(AssertUnwindSafe(|| reader.waker.wake_by_ref())).is_err() {
        // Dropped only after the lock is released.
        let _forgotten = channel.lock().forget(reader);
    }
}

/// Reads until nothing is new. Only one task does so at a time: the one that took the channel from the queue.
async fn bring_up_to_date(channel: &Arc<Channel>) {
    loop {
        channel.stale.store(false, Ordering::SeqCst);
        advance(channel).await;
        channel.queued.store(false, Ordering::SeqCst);
        // A change before this store did not queue the channel, so it must be handled here; a later one
        // queues it again.
        if !channel.stale.load(Ordering::SeqCst) || channel.queued.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

/// Reads all new records, pushes them as frames and wakes the readers.
async fn advance(channel: &Arc<Channel>) {
    loop {
        let head = {
            let state = channel.lock();
            if state.ended.is_some() {
                return;
            }
            state.head
        };
        let span = Span { bytes: channel.limits.read_bytes, ..Span::after(head) };
        let read = channel.source.fresh(span).await;
        let mut more = false;
        let readers = match read {
            Err(lost) => channel.lock().lose(lost),
            Ok(page) => {
                more = page.last(head) < page.status.tail && !page.records.is_empty();
                let frames = frames(channel, head, &page);
                if frames.is_empty() {
                    return;
                }
                let mut state = channel.lock();
                for frame in frames {
                    state.push(frame, &channel.limits);
                }
                state.to_wake()
            }
        };
        for some in readers.chunks(WAKES_PER_TURN) {
            some.iter().for_each(|reader| wake(channel, reader));
            tokio::task::yield_now().await;
        }
        channel.lock().woken();
        if !more {
            return;
        }
    }
}

/// Makes one frame per append, so that readers get it as a whole, and an empty one for a log that was only
/// closed.
fn frames(channel: &Channel, mut after: Position, page: &Page) -> Vec<Frame> {
    let (status, encode) = (page.status, &*channel.encode);
    let stamp = encode.stamp();
    let mut frames = Vec::new();
    for records in page.records.split_inclusive(|record| record.boundary == Boundary::Last) {
        let next = records.last().map_or(after, |record| record.position);
        let up_to_date = next >= status.tail;
        let batch = Batch { records, next, up_to_date, closed: status.closed && up_to_date };
        frames.push(Frame::of(&batch, after, encode, stamp));
        after = next;
    }
    if frames.is_empty() && status.closed {
        let batch = Batch { records: &[], next: after, up_to_date: true, closed: true };
        frames.push(Frame::of(&batch, after, encode, stamp));
    }
    frames
}
