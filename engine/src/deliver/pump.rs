//! Pumps: the tasks that read new records from logs into rings and wake the waiting readers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_model::{LogId, Position};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::channel::{Channel, ToWake};
use super::channels::Queue;
use super::{Batch, Frame, Lost};
use crate::log::{Boundary, Page, Span};

/// Readers woken before the pump yields. A wake-up may write to a socket, so other tasks must get their turn.
const WAKES_PER_TURN: usize = 64;

/// The pump tasks. A channel is always served by the same one.
pub(super) struct Pumps {
    queues: Vec<Queue>,
    tasks: Vec<JoinHandle<()>>,
}

impl Pumps {
    pub(super) fn of(&self, log: LogId) -> Queue {
        self.queues[log.get() as usize % self.queues.len()].clone()
    }
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

/// Serves the channels of one queue. A channel is queued at most once, so the number of channels bounds the
/// queue.
async fn run(mut stale: mpsc::UnboundedReceiver<Arc<Channel>>) {
    let mut working = FuturesUnordered::new();
    loop {
        tokio::select! {
            channel = stale.recv() => match channel {
                Some(channel) => working.push(serve(channel)),
                None => return,
            },
            Some(()) = working.next() => {}
        }
    }
}

/// Brings a channel up to date. If that panics, its readers are told that it is lost; other channels go on.
async fn serve(channel: Arc<Channel>) {
    let bringing = AssertUnwindSafe(bring_up_to_date(&channel)).catch_unwind();
    if bringing.await.is_err() {
        let readers = channel.lock().lose(Lost::Failed);
        readers.iter().for_each(|reader| wake(&channel, reader));
    }
}

/// Wakes a reader, which may write to its socket on this task. A waker that panics is removed; other readers
/// are unaffected.
fn wake(channel: &Channel, reader: &ToWake) {
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
