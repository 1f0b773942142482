use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Wake, Waker};

use tidings_model::Position;

use super::channels::{Limits, Queue, Registration};
use super::{Encode, Frame, Lost, Source};
use crate::Bus;
use crate::bus::Attachment;

/// One log in one wire form: the frames of late, and who hears them.
pub struct Channel {
    pub(super) source: Arc<dyn Source>,
    pub(super) encode: Arc<dyn Encode>,
    pub(super) limits: Limits,
    state: Mutex<ChannelState>,
    queue: Queue,
    /// Something may be new since the pump looked.
    pub(super) stale: AtomicBool,
    /// The pump knows that it has to look.
    pub(super) queued: AtomicBool,
    _attachment: Attachment,
    _registration: Registration,
}

/// What is new, and where everybody is.
#[derive(Default)]
pub(super) struct ChannelState {
    /// Up to where records have become frames.
    pub(super) head: Position,
    /// Number of the first frame in the ring.
    first: u64,
    ring: VecDeque<Frame>,
    bytes: usize,
    /// Records that were ever in the ring.
    pub(super) told: u64,
    /// Nothing more will come.
    pub(super) ended: Option<End>,
    /// The pump is about to wake everybody and to look then what is still needed.
    waking: bool,
    readers: Vec<Option<Reader>>,
    vacant: Vec<usize>,
    /// The last frame that a reader read from the log for itself, and up to where it would have read.
    kept: Option<(Frame, Position)>,
}

/// Why nothing more comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The log was closed; the last frame says so.
    Closed,
    /// It cannot be read any more.
    Lost(Lost),
}

/// What a channel knows of a reader.
#[derive(Default)]
struct Reader {
    waker: Option<Waker>,
    /// The number of its next frame, when it reads from the ring.
    next: Option<u64>,
    /// The last it has taken.
    after: Position,
}

/// A reader that wants to be woken.
pub(super) struct ToWake {
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
            _attachment: bus.attach(registration.log(), Waker::from(Arc::new(Look(this.clone())))),
            _registration: registration,
        })
    }

    /// Has the pump look at the log again.
    pub(super) fn look(self: &Arc<Self>) {
        self.stale.store(true, Ordering::SeqCst);
        if !self.queued.swap(true, Ordering::SeqCst) {
            // Without pumps the server has stopped.
            let _ = self.queue.send(self.clone());
        }
    }

    /// How many listen.
    pub(super) fn readers(&self) -> usize {
        let state = self.lock();
        state.readers.len() - state.vacant.len()
    }

    /// Also after somebody has panicked while holding it: that one is lost, and those who leave must be able to.
    pub(super) fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the bus calls when the log has changed.
struct Look(Weak<Channel>);

impl Wake for Look {
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

    /// What is returned must be dropped without the lock: it may be the last to hold who knows whom.
    #[must_use]
    pub(super) fn leave(&mut self, slot: usize) -> Option<Waker> {
        let left = self.readers[slot].take();
        self.vacant.push(slot);
        if left.as_ref().is_some_and(|reader| reader.next == Some(self.first)) {
            self.forget_heard();
        }
        left.and_then(|reader| reader.waker)
    }

    /// Keeps a frame for others who come to the same registration. What is returned is to be dropped without the lock.
    pub(super) fn keep(&mut self, frame: Frame, through: Position) -> Option<(Frame, Position)> {
        self.kept.replace((frame, through))
    }

    /// The frame that was kept, if it is what a reader would read just after a position.
    pub(super) fn kept(&self, after: Position, through: Position, stamp: u64) -> Option<Frame> {
        let (frame, read_through) = self.kept.as_ref()?;
        // If it reached as far as could be read then, there may be more to read or to say now.
        let unchanged = *read_through == through && self.ended.is_none();
        let current = unchanged || frame.next < *read_through;
        (frame.after == after && frame.stamp == stamp && current).then(|| frame.clone())
    }

    /// Notes whom to wake when there is more.
    pub(super) fn wait(&mut self, slot: usize, waker: &Waker) {
        if let Some(reader) = &mut self.readers[slot] {
            match &reader.waker {
                Some(known) if known.will_wake(waker) => {}
                _ => reader.waker = Some(waker.clone()),
            }
        }
    }

    /// Notes where a reader is: after which position, and before which frame of the ring unless it reads the log.
    pub(super) fn note(&mut self, slot: usize, after: Position, next: Option<u64>) {
        let Some(reader) = &mut self.readers[slot] else { return };
        reader.after = after;
        let before = std::mem::replace(&mut reader.next, next);
        // It may have been the last that needed the oldest frames.
        if before == Some(self.first) && !self.waking {
            self.forget_heard();
        }
    }

    /// The number of the frame that begins just after a position; that of the next one if it is the head.
    pub(super) fn locate(&self, after: Position) -> Option<u64> {
        if let Some(at) = self.ring.iter().position(|frame| frame.after == after) {
            return Some(self.first + at as u64);
        }
        (after == self.head).then(|| self.end())
    }

    /// The frames from a number on; none if the first of them are gone.
    pub(super) fn frames(&self, next: u64) -> Option<impl Iterator<Item = &Frame>> {
        let skip = next.checked_sub(self.first)?;
        Some(self.ring.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)))
    }

    /// How many records had been told before the frame of this number.
    pub(super) fn told_before(&self, next: u64) -> u64 {
        let ahead = self.frames(next).into_iter().flatten().map(|frame| frame.records as u64);
        self.told - ahead.sum::<u64>()
    }

    /// The position of the reader that is furthest behind.
    pub(super) fn furthest_behind(&self) -> Option<Position> {
        self.readers.iter().flatten().map(|reader| reader.after).min()
    }

    /// The number that the next frame will have.
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
        self.told += frame.records as u64;
        self.ring.push_back(frame);
        // The newest stays, however large it is: most readers are about to take it.
        while (self.bytes > limits.ring_bytes || self.ring.len() > limits.ring_frames) && self.ring.len() > 1
        {
            self.drop_first();
        }
    }

    /// Ends the channel without a last word. All are to be woken.
    pub(super) fn lose(&mut self, lost: Lost) -> Vec<ToWake> {
        self.ended.get_or_insert(End::Lost(lost));
        self.to_wake()
    }

    /// Whether it has ended though its log may go on.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.ended, Some(End::Lost(_)))
    }

    /// All who want to be woken.
    pub(super) fn to_wake(&self) -> Vec<ToWake> {
        let waiting = self.readers.iter().enumerate();
        waiting
            .filter_map(|(slot, reader)| Some(ToWake { slot, waker: reader.as_ref()?.waker.clone()? }))
            .collect()
    }

    /// Does not wake a reader again until it asks for it. What is returned is to be dropped without the lock.
    #[must_use]
    pub(super) fn forget(&mut self, reader: &ToWake) -> Option<Waker> {
        let known = &mut self.readers.get_mut(reader.slot)?.as_mut()?.waker;
        // Another may have come to its registration.
        known.take_if(|waker| waker.will_wake(&reader.waker))
    }

    /// Everybody was woken.
    pub(super) fn woken(&mut self) {
        self.waking = false;
        self.forget_heard();
    }

    /// Lets go of frames that all readers of the ring have heard.
    fn forget_heard(&mut self) {
        if self.ring.is_empty() || self.ended.is_some() {
            // The last frame of a closed log is for those who come from history.
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
