//! Bundles: many subscriptions to rings that one client receives as one sequence of frames.
//!
//! A bundle has a cursor in each ring that it subscribes to, a list of the rings that have frames for it, and
//! the replies that were not sent yet. It has no queue of frames: what it has not taken stays in the rings,
//! and a bundle that falls too far behind ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::ring::Ring;
use super::rings::Rings;
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};
use super::{Frame, FrameChunks, Step};

/// A client's subscriptions to rings. Clones share them.
#[derive(Clone)]
pub struct Bundle {
    rings: Rings,
    shared: Arc<Shared>,
}

/// The receiving side of a [`Bundle`]. All subscriptions end when it is dropped.
pub struct BundleReader {
    shared: Arc<Shared>,
    /// Called after the reader was dropped and its subscriptions have ended.
    dropped: Option<Box<dyn FnOnce() + Send>>,
}

/// The client is gone, or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bundle is closed")]
pub struct Closed;

/// What rings, bundle and reader share.
pub(super) struct Shared {
    number: u64,
    /// Bytes of frames that were not taken yet, of all rings.
    behind: AtomicU64,
    /// Value of `behind` above which the bundle is too slow, unless it is just two of its largest frames.
    behind_max: u64,
    /// Bytes of the largest frame that was sent to it, if that is more than half of `behind_max`.
    largest: AtomicU64,
    too_slow: AtomicBool,
    state: Mutex<BundleState>,
}

#[derive(Default)]
struct BundleState {
    /// Subscriptions by name.
    entries: HashMap<Arc<str>, Entry>,
    /// Rings with frames to take, and the bundle's slot there. An entry may be stale.
    ready: VecDeque<(Arc<Ring>, usize)>,
    replies: VecDeque<FrameChunks>,
    reply_bytes: usize,
    waker: Option<Waker>,
    /// Set when no name may be entered any more.
    sealed: bool,
    closed: bool,
}

struct Entry {
    ring: Arc<Ring>,
    slot: usize,
}

impl Bundle {
    pub(super) fn new(rings: Rings, number: u64, behind_max: u64) -> (Self, BundleReader) {
        let shared = Arc::new(Shared {
            number,
            behind: AtomicU64::new(0),
            behind_max,
            largest: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
            state: Mutex::default(),
        });
        (Self { rings, shared: shared.clone() }, BundleReader { shared, dropped: None })
    }

    /// Subscribes to a name. Frames published from now on are received, but none before [`Bundle::reply`] lets
    /// them follow. Returns whether the bundle did not subscribe to it before.
    pub fn enter(&self, name: &str) -> Result<bool, Closed> {
        let mut state = self.shared.lock();
        if state.closed || state.sealed {
            return Err(Closed);
        }
        if state.entries.contains_key(name) {
            return Ok(false);
        }
        let (ring, slot) = self.rings.enter(name, &self.shared);
        state.entries.insert(ring.name.clone(), Entry { ring, slot });
        Ok(true)
    }

    /// Ends the subscription to a name. No frame of it follows. Returns whether there was one.
    pub fn leave(&self, name: &str) -> bool {
        let entry = self.shared.lock().entries.remove(name);
        entry.map(|entry| self.rings.leave(&entry.ring, entry.slot)).is_some()
    }

    /// Ends all subscriptions and refuses new ones. Replies are still sent.
    pub fn seal(&self) {
        let entries = {
            let mut state = self.shared.lock();
            state.sealed = true;
            std::mem::take(&mut state.entries)
        };
        for Entry { ring, slot } in entries.into_values() {
            self.rings.leave(&ring, slot);
        }
    }

    /// A number that no other bundle of these rings has.
    pub fn number(&self) -> u64 {
        self.shared.number
    }

    /// Sends a reply, which may write to the client's socket. Frames of the names that were entered before,
    /// and are given here, follow it.
    pub fn reply<'a>(&self, reply: impl Into<FrameChunks>, entered: impl IntoIterator<Item = &'a str>) {
        wake(self.queue_reply(reply, entered));
    }

    /// As [`Bundle::reply`], but the caller wakes the reader, or polls it. The result is its waker.
    pub fn queue_reply<'a>(
        &self,
        reply: impl Into<FrameChunks>,
        entered: impl IntoIterator<Item = &'a str>,
    ) -> Option<Waker> {
        let mut state = self.shared.lock();
        if state.closed {
            return None;
        }
        let reply = reply.into();
        if !reply.is_empty() {
            state.reply_bytes += reply.len();
            state.replies.push_back(reply);
        }
        for name in entered {
            let Some(Entry { ring, slot }) = state.entries.get(name) else { continue };
            let (ring, slot) = (ring.clone(), *slot);
            if ring.lock().let_go(slot) {
                state.add_ready(ring, slot);
            }
        }
        state.waker.clone()
    }

    /// Publishes a frame under a name to all other bundles that subscribe to it. Returns their number.
    pub fn publish_to_others(&self, name: &str, bytes: impl Into<FrameChunks>) -> usize {
        self.rings.publish_except(name, bytes.into(), Some(&self.shared))
    }

    /// Number of subscriptions.
    pub fn len(&self) -> usize {
        self.shared.lock().entries.len()
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bundle subscribes to a name.
    pub fn contains(&self, name: &str) -> bool {
        self.shared.is_in(name)
    }

    /// Bytes of replies that the client has not taken.
    pub fn reply_bytes(&self) -> usize {
        self.shared.lock().reply_bytes
    }

    /// Number of rings that the reader is to look at.
    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        self.shared.lock().ready.len()
    }

    /// Whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }
}

impl BundleReader {
    /// Calls a function once the reader was dropped and all subscriptions have ended.
    pub fn when_dropped(&mut self, call: impl FnOnce() + Send + 'static) {
        self.dropped = Some(Box::new(call));
    }

    /// Passes replies and then frames to `take`, until they have at least `room` bytes. Pending when there is
    /// nothing; the waker may also be called spuriously.
    pub fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Step> {
        let mut bytes = 0;
        loop {
            let (ring, slot) = {
                let mut state = self.shared.lock();
                while let Some(reply) = state.replies.pop_front() {
                    bytes += reply.len();
                    state.reply_bytes -= reply.len();
                    take(&Frame::ephemeral(reply));
                }
                if self.is_too_slow() {
                    return Poll::Ready(Step::TooSlow);
                }
                let next = if bytes < room { state.ready.pop_front() } else { None };
                let Some(next) = next else {
                    state.shrink();
                    if bytes > 0 {
                        return Poll::Ready(Step::Frames);
                    }
                    let before = state.wait(cx.waker());
                    drop(state);
                    drop(before);
                    return Poll::Pending;
                };
                next
            };
            let (taken, more) = ring.take(slot, &self.shared, room - bytes, take);
            bytes += taken;
            if more {
                // Other rings get their turn before this one has another.
                self.shared.lock().ready.push_back((ring, slot));
            }
        }
    }

    /// Whether the client has fallen too far behind.
    pub fn is_too_slow(&self) -> bool {
        self.shared.too_slow.load(Ordering::Relaxed)
    }

    /// Bytes of replies that were not taken yet.
    pub fn reply_bytes(&self) -> usize {
        self.shared.lock().reply_bytes
    }
}

impl Drop for BundleReader {
    fn drop(&mut self) {
        let (entries, _rest) = {
            let mut state = self.shared.lock();
            let closed = BundleState { closed: true, ..BundleState::default() };
            let mut rest = std::mem::replace(&mut *state, closed);
            (std::mem::take(&mut rest.entries), rest)
        };
        for Entry { ring, slot } in entries.into_values() {
            match ring.registry.upgrade() {
                Some(registry) => registry.leave(&ring, slot),
                None => drop(ring.lock().leave(slot)),
            }
        }
        if let Some(call) = self.dropped.take() {
            call();
        }
    }
}

impl Shared {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the bundle subscribes to a name.
    pub(super) fn is_in(&self, name: &str) -> bool {
        self.lock().entries.contains_key(name)
    }

    /// Whether the bundle needs no frames any more.
    pub(super) fn is_over(&self) -> bool {
        self.too_slow.load(Ordering::Relaxed)
    }

    /// Counts bytes that the bundle is behind, in addition. The largest frame among them has `largest` bytes: however
    /// large it is, a client that takes what it is given can take it.
    pub(super) fn charge(&self, bytes: u64, largest: u64) {
        if largest > self.behind_max / 2 {
            self.largest.fetch_max(largest, Ordering::Relaxed);
        }
        let behind = self.behind.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if behind > self.behind_max && behind > self.largest.load(Ordering::Relaxed).saturating_mul(2) {
            self.too_slow.store(true, Ordering::Relaxed);
        }
    }

    /// Counts bytes that the bundle is not behind any more.
    pub(super) fn credit(&self, bytes: u64) {
        self.behind.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Notes that a ring has frames for the bundle, and wakes the reader.
    pub(super) fn tell(&self, ring: &Arc<Ring>, slot: usize) {
        let waker = {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.add_ready(ring.clone(), slot);
            state.waker.clone()
        };
        wake(waker);
    }

    /// Removes the waker until the reader registers another, because it has panicked.
    pub(super) fn forget_waker(&self) {
        let waker = self.lock().waker.take();
        drop(waker);
    }

    /// Locks the state, ignoring poison: other clients must still be able to publish.
    fn lock(&self) -> MutexGuard<'_, BundleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BundleState {
    /// Notes that a ring has frames to take. Whoever leaves and enters without taking anything leaves stale entries
    /// behind, which are forgotten before they outnumber the others.
    fn add_ready(&mut self, ring: Arc<Ring>, slot: usize) {
        if self.ready.len() >= READY_MIN.max(2 * self.entries.len()) {
            let Self { entries, ready, .. } = self;
            let mut seen = HashSet::new();
            ready.retain(|(ring, slot)| {
                let entry = entries.get(&ring.name);
                entry.is_some_and(|entry| entry.slot == *slot && Arc::ptr_eq(&entry.ring, ring))
                    && seen.insert(Arc::as_ptr(ring))
            });
        }
        self.ready.push_back((ring, slot));
    }

    /// Registers the waker to call when there is something to take. Drop the result after releasing the lock.
    #[must_use]
    fn wait(&mut self, waker: &Waker) -> Option<Waker> {
        match &self.waker {
            Some(known) if known.will_wake(waker) => None,
            _ => self.waker.replace(waker.clone()),
        }
    }

    /// Gives back memory when nothing is pending.
    fn shrink(&mut self) {
        if self.ready.is_empty() {
            self.ready.shrink_to(READY_IDLE);
        }
        if self.replies.is_empty() {
            self.replies.shrink_to(0);
        }
    }
}

/// Length of the list of ready rings from which on stale entries are looked for.
const READY_MIN: usize = 64;

/// Capacity of the list of ready rings that is kept while it is empty.
const READY_IDLE: usize = 4;

/// Calls a waker, which may write to a socket; no lock may be held.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}
