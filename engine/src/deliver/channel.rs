//! Channels: the ring of recent frames of one log in one wire form, and the readers of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use tidings_model::Position;

use super::channels::{Limits, Registration};
use super::pump::{Queue, Work};
use super::{Encode, Frame, Lost, Source};
use crate::Bus;
use crate::bus::Attachment;

/// One log in one wire form: a ring of recent frames, and the readers of it.
pub struct Channel {
    pub(super) source: Arc<dyn Source>,
    pub(super) encode: Arc<dyn Encode>,
    pub(super) limits: Limits,
    state: Mutex<ChannelState>,
    queue: Queue,
    /// Set when the log may have changed since the pump last read it.
    pub(super) stale: AtomicBool,
    /// Set while the channel is in the queue of its pump, or served by it.
    pub(super) queued: AtomicBool,
    _attachment: Attachment,
    _registration: Registration,
}

/// The ring and the readers of a channel.
#[derive(Default)]
pub(super) struct ChannelState {
    /// Position up to which records have been encoded.
    pub(super) head: Position,
    /// Number of the first frame in the ring. Frames are numbered from the start of the channel.
    first: u64,
    ring: VecDeque<Frame>,
    bytes: usize,
    /// Number of records ever pushed into the ring.
    pub(super) pushed: u64,
    /// Set when no more frames will come.
    pub(super) ended: Option<End>,
    /// Set from a push until all readers are woken. Frames that all have read are released only after that.
    waking: bool,
    readers: Vec<Option<Reader>>,
    vacant: Vec<usize>,
    /// The last frame that a reader read from the log by itself, and the position up to which it wanted to
    /// read.
    kept: Option<(Frame, Position)>,
}

/// Why a channel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The log was closed. The last frame says so.
    Closed,
    /// The log cannot be read any more.
    Lost(Lost),
}

/// A reader of a channel.
#[derive(Default)]
struct Reader {
    waker: Option<Waker>,
    /// Number of its next frame; `None` while it reads the log.
    next: Option<u64>,
    /// Position of the last record it has taken.
    after: Position,
}

/// A reader that is to be woken.
pub(super) struct PendingWake {
    slot: usize,
    pub(super) waker: Waker,
}

impl Channel {
    pub(super) fn new(
        registration: Registration,
        bus: &Bus,
        queue: Queue,
        limits: Limits,
        source: Arc<dyn Source>,
        encode: Arc<dyn Encode>,
        head: Position,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            source,
            encode,
            limits,
            state: Mutex::new(ChannelState { head, ..ChannelState::default() }),
            queue,
            stale: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            _attachment: bus.attach(registration.log(), Waker::from(Arc::new(PumpWaker(this.clone())))),
            _registration: registration,
        })
    }

    /// Asks the pump to read the log again.
    pub(super) fn look(self: &Arc<Self>) {
        self.stale.store(true, Ordering::SeqCst);
        if !self.queued.swap(true, Ordering::SeqCst) {
            // The send fails only when the pumps have stopped, which means that the server has.
            let _ = self.queue.send(Work::Channel(self.clone()));
        }
    }

    /// Number of readers.
    pub(super) fn readers(&self) -> usize {
        let state = self.lock();
        state.readers.len() - state.vacant.len()
    }

    /// Locks the state, ignoring poison: a reader that panicked is lost, and the others must still be able to
    /// leave.
    pub(super) fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waker on the bus: called when the log has changed.
struct PumpWaker(Weak<Channel>);

impl Wake for PumpWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(channel) = self.0.upgrade() {
            channel.look();
        }
    }
}

impl ChannelState {
    pub(super) fn enter(&mut self, after: Position) -> usize {
        let reader = Reader { after, ..Reader::default() };
        match self.vacant.pop() {
            Some(slot) => {
                self.readers[slot] = Some(reader);
                slot
            }
            None => {
                self.readers.push(Some(reader));
                self.readers.len() - 1
            }
        }
    }

    /// Removes a reader. Drop the returned waker after releasing the lock: its drop may run code that takes
    /// the lock.
    #[must_use]
    pub(super) fn leave(&mut self, slot: usize) -> Option<Waker> {
        let left = self.readers[slot].take();
        self.vacant.push(slot);
        if left.as_ref().is_some_and(|reader| reader.next == Some(self.first)) {
            self.release_read();
        }
        left.and_then(|reader| reader.waker)
    }

    /// Keeps a frame for other readers that resume from the same position. Drop the result after releasing
    /// the lock.
    pub(super) fn keep(&mut self, frame: Frame, through: Position) -> Option<(Frame, Position)> {
        self.kept.replace((frame, through))
    }

    /// The kept frame, if a reader at this position would read the same.
    pub(super) fn kept(&self, after: Position, through: Position, stamp: u64) -> Option<Frame> {
        let (frame, read_through) = self.kept.as_ref()?;
        // A frame that reached the end of what could be read may be longer now, or the log may have been
        // closed.
        let unchanged = *read_through == through && self.ended.is_none();
        let current = unchanged || frame.next < *read_through;
        (frame.after == after && frame.stamp == stamp && current).then(|| frame.clone())
    }

    /// Registers the waker to call when there is more to read.
    pub(super) fn wait(&mut self, slot: usize, waker: &Waker) {
        if let Some(reader) = &mut self.readers[slot] {
            match &reader.waker {
                Some(known) if known.will_wake(waker) => {}
                _ => reader.waker = Some(waker.clone()),
            }
        }
    }

    /// Records a reader's position, and the number of its next frame in the ring (`None` while it reads the
    /// log).
    pub(super) fn note(&mut self, slot: usize, after: Position, next: Option<u64>) {
        let Some(reader) = &mut self.readers[slot] else { return };
        reader.after = after;
        let before = std::mem::replace(&mut reader.next, next);
        // It may have been the last reader that needed the oldest frames.
        if before == Some(self.first) && !self.waking {
            self.release_read();
        }
    }

    /// Number of the frame that begins right after a position; at the head, that of the frame to come.
    pub(super) fn locate(&self, after: Position) -> Option<u64> {
        if let Some(at) = self.ring.iter().position(|frame| frame.after == after) {
            return Some(self.first + at as u64);
        }
        (after == self.head).then(|| self.end())
    }

    /// The frames from a number on; `None` if the first of them was dropped from the ring.
    pub(super) fn frames(&self, next: u64) -> Option<impl Iterator<Item = &Frame>> {
        let skip = next.checked_sub(self.first)?;
        Some(self.ring.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)))
    }

    /// Number of records in all frames before the one with this number.
    pub(super) fn records_before(&self, next: u64) -> u64 {
        let ahead = self.frames(next).into_iter().flatten().map(|frame| frame.records as u64);
        self.pushed - ahead.sum::<u64>()
    }

    /// Position of the slowest reader.
    pub(super) fn furthest_behind(&self) -> Option<Position> {
        self.readers.iter().flatten().map(|reader| reader.after).min()
    }

    /// Number of the frame that is pushed next.
    pub(super) fn end(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    pub(super) fn push(&mut self, frame: Frame, limits: &Limits) {
        self.head = frame.next;
        self.waking = true;
        if frame.closed {
            self.ended = Some(End::Closed);
        }
        self.bytes += frame.bytes.len();
        self.pushed += frame.records as u64;
        self.ring.push_back(frame);
        // The newest frame stays, however large: most readers are about to take it.
        while (self.bytes > limits.ring_bytes || self.ring.len() > limits.ring_frames) && self.ring.len() > 1
        {
            self.drop_first();
        }
    }

    /// Ends the channel without a last frame. Returns the readers to wake.
    pub(super) fn lose(&mut self, lost: Lost) -> Vec<PendingWake> {
        self.ended.get_or_insert(End::Lost(lost));
        self.to_wake()
    }

    /// Whether the channel ended although its log may go on.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.ended, Some(End::Lost(_)))
    }

    /// All readers that wait to be woken.
    pub(super) fn to_wake(&self) -> Vec<PendingWake> {
        let waiting = self.readers.iter().enumerate();
        waiting
            .filter_map(|(slot, reader)| Some(PendingWake { slot, waker: reader.as_ref()?.waker.clone()? }))
            .collect()
    }

    /// Removes a reader's waker until it registers another. Drop the result after releasing the lock.
    #[must_use]
    pub(super) fn forget(&mut self, reader: &PendingWake) -> Option<Waker> {
        let known = &mut self.readers.get_mut(reader.slot)?.as_mut()?.waker;
        // The slot may have been given to another reader.
        known.take_if(|waker| waker.will_wake(&reader.waker))
    }

    /// Called when all readers have been woken.
    pub(super) fn woken(&mut self) {
        self.waking = false;
        self.release_read();
    }

    /// Drops the frames that all readers of the ring have taken.
    fn release_read(&mut self) {
        if self.ring.is_empty() || self.ended.is_some() {
            // The last frame of a closed log is kept for readers that still come from the log.
            return;
        }
        let needed = self.readers.iter().flatten().filter_map(|reader| reader.next).min();
        let needed = needed.unwrap_or(self.end());
        while self.first < needed && !self.ring.is_empty() {
            self.drop_first();
        }
        if self.ring.is_empty() {
            self.ring.shrink_to(1);
        }
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.ring.pop_front() {
            self.bytes -= frame.bytes.len();
            self.first += 1;
        }
    }
}
