//! Bundles: many subscriptions to rings that one client receives as one sequence of frames.
//!
//! A bundle has a cursor in each ring that it subscribes to, a list of the rings that have frames for it, and
//! the replies that were not sent yet. It has no queue of frames: what it has not taken stays in the rings,
//! and a bundle that falls too far behind ends.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidings_model::Pattern;

use super::patterns::{Patterns, Refused};
use super::published::{Published, Route};
use super::ring::Ring;
use super::rings::Rings;
use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};
use super::{Frame, FrameChunks, Step};

/// A client's subscriptions to rings. Clones share them.
#[derive(Clone)]
pub struct Bundle {
    rings: Rings,
    shared: Arc<Shared>,
}

/// The receiving side of a [`Bundle`]. All subscriptions end when it is dropped.
pub struct BundleReader {
    rings: Rings,
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
    /// Number of times that frames were moved out of rings, to be sent before what follows there.
    moved: AtomicU64,
    /// Number of `groups`, to be read without a lock.
    group_count: AtomicUsize,
    /// Numbers of the patterns that the bundle subscribes to. Locked after all other locks.
    groups: Mutex<HashSet<u64>>,
    state: Mutex<BundleState>,
}

#[derive(Default)]
struct BundleState {
    /// Subscriptions by name.
    entries: HashMap<Arc<str>, Entry>,
    /// Subscriptions to patterns, if there are some.
    patterns: Option<Box<Matched>>,
    /// Frames that were moved out of rings whose frames are held back, with the number of the ring.
    kept: Vec<(u64, FrameChunks, Option<Arc<Route>>)>,
    /// Rings with frames to take, and the bundle's slot there. An entry may be stale.
    ready: VecDeque<(Arc<Ring>, usize)>,
    replies: VecDeque<FrameChunks>,
    reply_bytes: usize,
    waker: Option<Waker>,
    /// Called when all replies were taken.
    drained: Option<Waker>,
    /// Set when no name may be entered any more.
    sealed: bool,
    closed: bool,
}

struct Entry {
    ring: Arc<Ring>,
    slot: usize,
}

/// Subscriptions to patterns.
struct Matched {
    patterns: Patterns,
    /// By name of the pattern's ring.
    entries: HashMap<Arc<str>, (Entry, Pattern)>,
}

impl Bundle {
    pub(super) fn new(rings: Rings, number: u64, behind_max: u64) -> (Self, BundleReader) {
        let shared = Arc::new(Shared {
            number,
            behind: AtomicU64::new(0),
            behind_max,
            largest: AtomicU64::new(0),
            too_slow: AtomicBool::new(false),
            moved: AtomicU64::new(0),
            group_count: AtomicUsize::new(0),
            groups: Mutex::default(),
            state: Mutex::default(),
        });
        (Self { rings: rings.clone(), shared: shared.clone() }, BundleReader { rings, shared, dropped: None })
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
        let entry = {
            let mut state = self.shared.lock();
            let entry = state.entries.remove(name);
            if let Some(entry) = &entry {
                state.kept.retain(|(of, ..)| *of != entry.ring.number);
            }
            entry
        };
        entry.map(|entry| self.rings.leave(&entry.ring, entry.slot)).is_some()
    }

    /// Subscribes to the names that a pattern matches, those of a set of patterns. `name` identifies the pattern among all
    /// names and patterns of the bundle. As with [`Bundle::enter`], no frame comes before a reply lets it. What the bundle
    /// subscribes to otherwise it receives once. Returns whether the bundle did not subscribe to the pattern before.
    pub fn enter_pattern(&self, patterns: &Patterns, name: &str, pattern: &Pattern) -> Result<bool, Refused> {
        let mut table = patterns.write();
        let mut state = self.shared.lock();
        if state.closed || state.sealed {
            return Err(Refused::Closed);
        }
        if state.patterns.as_ref().is_some_and(|matched| matched.entries.contains_key(name)) {
            return Ok(false);
        }
        debug_assert!(state.patterns.as_ref().is_none_or(|matched| matched.patterns.is(patterns)));
        // Counted from here on, so that nobody publishes past it while frames are moved.
        let ring = patterns.ring(&mut table, name, pattern)?;
        let moved = state.move_all(&self.shared);
        let slot = ring.lock().enter(self.shared.clone());
        self.shared.change_groups(|groups| groups.insert(ring.number));
        let none = || Box::new(Matched { patterns: patterns.clone(), entries: HashMap::new() });
        let matched = state.patterns.get_or_insert_with(none);
        matched.entries.insert(ring.name.clone(), (Entry { ring, slot }, pattern.clone()));
        if moved {
            patterns.wake(&self.shared);
        }
        Ok(true)
    }

    /// Ends the subscription to a pattern. What the bundle receives because of it alone does not follow. Returns whether there
    /// was one.
    pub fn leave_pattern(&self, name: &str) -> bool {
        let Some(patterns) = self.shared.patterns() else { return false };
        let mut table = patterns.write();
        let mut state = self.shared.lock();
        let Some(matched) = &mut state.patterns else { return false };
        let Some((Entry { ring, slot }, pattern)) = matched.entries.remove(name) else { return false };
        let number = ring.number;
        let is_last = matched.entries.is_empty();
        // Before the group is left, so that everything is where it has been.
        let mut rest = Vec::new();
        ring.lock().take_all(slot, &mut |published: &Published| {
            if let Some(copies) = &published.copies {
                rest.push((published.frame.bytes.clone(), copies.route.clone()));
            }
        });
        let mut moved = state.move_all(&self.shared);
        let kept = std::mem::take(&mut state.kept);
        let rest = rest.into_iter().map(|(bytes, route)| (number, bytes, Some(route)));
        for (of, bytes, route) in kept.into_iter().chain(rest) {
            if of != number {
                state.kept.push((of, bytes, route));
                continue;
            }
            // What is heard otherwise goes there.
            match route.as_ref().and_then(|route| state.carrier(route)) {
                Some((carrier, true)) => state.kept.push((carrier, bytes, route)),
                Some((_, false)) => {
                    state.add_reply(bytes);
                    moved = true;
                }
                None => {}
            }
        }
        self.shared.change_groups(|groups| groups.remove(&number));
        patterns.leave(&mut table, &ring, &pattern, slot);
        if is_last {
            state.patterns = None;
        }
        if moved {
            patterns.wake(&self.shared);
        }
        true
    }

    /// Ends all subscriptions and refuses new ones. Replies are still sent.
    pub fn seal(&self) {
        let (entries, matched) = {
            let mut state = self.shared.lock();
            state.sealed = true;
            state.kept = Vec::new();
            (std::mem::take(&mut state.entries), state.patterns.take())
        };
        self.shared.leave_all(&self.rings, entries, matched);
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.shared
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
            state.add_reply(reply);
        }
        for name in entered {
            let Some(Entry { ring, slot }) = state.entry(name) else { continue };
            let (ring, slot) = (ring.clone(), *slot);
            state.let_kept_go(ring.number);
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

    /// Number of subscriptions, also those to patterns.
    pub fn len(&self) -> usize {
        let state = self.shared.lock();
        state.entries.len() + state.patterns.as_ref().map_or(0, |matched| matched.entries.len())
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the bundle subscribes to a name or pattern.
    pub fn contains(&self, name: &str) -> bool {
        self.shared.lock().entry(name).is_some()
    }

    /// Bytes of replies that the client has not taken.
    pub fn reply_bytes(&self) -> usize {
        self.shared.lock().reply_bytes
    }

    /// Ready when the client has taken all replies, or is gone. One task at a time is told.
    pub fn poll_drained(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.closed || state.replies.is_empty() {
            return Poll::Ready(());
        }
        let before = state.drained.replace(cx.waker().clone());
        drop(state);
        if let Some(other) = before {
            // Another task of this client: it looks again.
            other.wake();
        }
        Poll::Pending
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
            let ((ring, slot), moved) = {
                let mut state = self.shared.lock();
                while let Some(reply) = state.replies.pop_front() {
                    bytes += reply.len();
                    state.reply_bytes -= reply.len();
                    take(&Frame::ephemeral(reply));
                }
                if let Some(drained) = state.drained.take() {
                    drop(state);
                    // It may queue more.
                    drained.wake();
                    state = self.shared.lock();
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
                (next, self.shared.moved())
            };
            let (taken, more) = ring.take(slot, &self.shared, moved, room - bytes, take);
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
        let (entries, matched, mut rest) = {
            let mut state = self.shared.lock();
            let closed = BundleState { closed: true, ..BundleState::default() };
            let mut rest = std::mem::replace(&mut *state, closed);
            (std::mem::take(&mut rest.entries), rest.patterns.take(), rest)
        };
        wake(rest.drained.take());
        self.shared.leave_all(&self.rings, entries, matched);
        if let Some(call) = self.dropped.take() {
            call();
        }
    }
}

impl Shared {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Number of times that frames were moved out of rings.
    pub(super) fn moved(&self) -> u64 {
        self.moved.load(Ordering::SeqCst)
    }

    /// Whether the bundle subscribes to one of some patterns.
    pub(super) fn has_any(&self, groups: &[u64]) -> bool {
        if groups.is_empty() || self.group_count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let own = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.iter().any(|group| own.contains(group))
    }

    fn change_groups<T>(&self, change: impl FnOnce(&mut HashSet<u64>) -> T) {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut groups);
        self.group_count.store(groups.len(), Ordering::SeqCst);
    }

    /// The patterns of which the bundle subscribes to some.
    fn patterns(&self) -> Option<Patterns> {
        self.lock().patterns.as_ref().map(|matched| matched.patterns.clone())
    }

    /// Ends subscriptions that the bundle has none of any more.
    fn leave_all(&self, rings: &Rings, entries: HashMap<Arc<str>, Entry>, matched: Option<Box<Matched>>) {
        for Entry { ring, slot } in entries.into_values() {
            rings.leave(&ring, slot);
        }
        let Some(matched) = matched else { return };
        let Matched { patterns, entries } = *matched;
        let mut table = patterns.write();
        self.change_groups(HashSet::clear);
        for (Entry { ring, slot }, pattern) in entries.into_values() {
            patterns.leave(&mut table, &ring, &pattern, slot);
        }
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

    /// Wakes the reader.
    pub(super) fn wake(&self) {
        let waker = self.lock().waker.clone();
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
    fn add_reply(&mut self, reply: FrameChunks) {
        self.reply_bytes += reply.len();
        self.replies.push_back(reply);
    }

    /// The subscription to a name or a pattern.
    fn entry(&self, name: &str) -> Option<&Entry> {
        let of_pattern = || self.patterns.as_ref()?.entries.get(name).map(|(entry, _)| entry);
        self.entries.get(name).or_else(of_pattern)
    }

    /// Number of the ring from which the bundle receives a frame, and whether its frames are held back.
    fn carrier(&self, route: &Route) -> Option<(u64, bool)> {
        let of = |entry: &Entry| (entry.ring.number, entry.ring.lock().is_held(entry.slot));
        let of_patterns = self.patterns.iter().flat_map(|matched| matched.entries.values());
        // As it is now: it may have been published before the bundle subscribed to the pattern.
        let matching = of_patterns.filter(|(_, pattern)| pattern.matches(route.path()));
        let first = matching.min_by_key(|(entry, _)| entry.ring.number);
        first.map(|(entry, _)| of(entry)).or_else(|| self.entries.get(&route.name).map(of))
    }

    /// Moves all frames out of the rings, so that they come before what is published from now on. Frames that are held back
    /// stay so. Returns whether there were some to send.
    fn move_all(&mut self, shared: &Shared) -> bool {
        let Self { entries, patterns, kept, replies, reply_bytes, .. } = self;
        let of_patterns =
            patterns.iter().flat_map(|matched| matched.entries.values().map(|(entry, _)| entry));
        let mut moved = false;
        for Entry { ring, slot } in entries.values().chain(of_patterns) {
            let mut frames = Vec::new();
            let held = ring.lock().take_all(*slot, &mut |published: &Published| {
                let route = published.copies.as_ref().map(|copies| copies.route.clone());
                frames.push((published.frame.bytes.clone(), route));
            });
            for (bytes, route) in frames {
                if held {
                    kept.push((ring.number, bytes, route));
                } else {
                    *reply_bytes += bytes.len();
                    replies.push_back(bytes);
                    moved = true;
                }
            }
        }
        shared.moved.fetch_add(1, Ordering::SeqCst);
        moved
    }

    /// Sends what was kept of a ring whose frames are not held back any more.
    fn let_kept_go(&mut self, ring: u64) {
        if self.kept.is_empty() {
            return;
        }
        let kept = std::mem::take(&mut self.kept);
        for (of, bytes, route) in kept {
            if of == ring { self.add_reply(bytes) } else { self.kept.push((of, bytes, route)) }
        }
    }

    /// Notes that a ring has frames to take. Whoever leaves and enters without taking anything leaves stale entries
    /// behind, which are forgotten before they outnumber the others.
    fn add_ready(&mut self, ring: Arc<Ring>, slot: usize) {
        let subscribed =
            self.entries.len() + self.patterns.as_ref().map_or(0, |matched| matched.entries.len());
        if self.ready.len() >= READY_MIN.max(2 * subscribed) {
            let mut ready = std::mem::take(&mut self.ready);
            let mut seen = HashSet::new();
            ready.retain(|(ring, slot)| {
                let entry = self.entry(&ring.name);
                entry.is_some_and(|entry| entry.slot == *slot && Arc::ptr_eq(&entry.ring, ring))
                    && seen.insert(Arc::as_ptr(ring))
            });
            self.ready = ready;
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
