//! Rings: the frames of one name that are on their way, and the bundles that receive them.
//!
//! The frames are ephemeral: one is kept until each member has taken it or is too slow. A ring behind which
//! nobody lags is empty.

use std::collections::VecDeque;
use std::sync::Arc;

use tidings_model::limits;

use super::bundle::Shared;
use super::published::{self, Copies, Published};
use super::pump::{Queue, Work};
use super::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};
use super::{Frame, FrameChunks};

/// The frames published under one name, or under the names that a pattern matches, and the bundles that subscribe to it.
pub(super) struct Ring {
    pub(super) name: Arc<str>,
    /// A number that no other ring has.
    pub(super) number: u64,
    queue: Queue,
    /// Set while the ring is in the queue of its pump.
    queued: AtomicBool,
    state: Mutex<RingState>,
}

/// What the lock of a ring guards. Byte counts are totals since the ring was made.
pub(super) struct RingState {
    /// Number of the first frame that is kept.
    first: u64,
    frames: VecDeque<Published>,
    /// Bytes of all frames that were pushed.
    pushed: u64,
    /// Bytes of all frames that were released.
    released: u64,
    /// Value of `pushed` when the members were last charged.
    charged: u64,
    /// Bytes of the largest frame since then.
    largest: u64,
    /// Number of kept bytes at which frames that all members have taken are looked for.
    review_at: u64,
    members: Vec<Option<Member>>,
    vacant: Vec<usize>,
    /// Number of members that are marked as lagging.
    lagging: usize,
    /// Whether frames that are sent together are joined.
    joins: bool,
}

/// A bundle that subscribes to the ring.
struct Member {
    bundle: Arc<Shared>,
    /// Number of its next frame.
    next: u64,
    /// Bytes of all frames before its next one.
    taken: u64,
    /// Bytes of all frames that the bundle was charged for or does not receive.
    charged: u64,
    /// Set when it was found to lag, until it has taken everything.
    lagging: bool,
    /// Set while the ring is among those that the bundle was told to read.
    told: bool,
    /// Set until its first frame may follow.
    held: bool,
}

/// A member that is to be told of new frames.
pub(super) struct PendingTell {
    pub(super) bundle: Arc<Shared>,
    pub(super) slot: usize,
}

impl Ring {
    pub(super) fn new(name: Arc<str>, number: u64, queue: Queue, joins: bool) -> Self {
        let state = Mutex::new(RingState { joins, ..RingState::default() });
        Self { name, number, queue, queued: AtomicBool::new(false), state }
    }

    /// Locks the state, ignoring poison: the members that did not panic must still be able to leave.
    pub(super) fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame for all members but one. Returns the number of members that are to receive it. If there are patterns,
    /// of which `patterns` is the number, does nothing and returns the frame.
    pub(super) fn publish(
        self: &Arc<Self>,
        bytes: FrameChunks,
        except: Option<&Shared>,
        patterns: Option<&AtomicUsize>,
    ) -> Result<usize, FrameChunks> {
        let excluded = except.is_some_and(|bundle| bundle.is_in(&self.name));
        let members = {
            let mut state = self.lock();
            // Under the lock: who subscribes to a pattern takes what is here after it is counted.
            if patterns.is_some_and(|patterns| patterns.load(Ordering::SeqCst) > 0) {
                return Err(bytes);
            }
            let members = state.len();
            if members == 0 {
                return Ok(0);
            }
            state.push(Frame::ephemeral(bytes), except.map(Shared::number), None);
            members
        };
        self.look();
        Ok(members - usize::from(excluded))
    }

    /// Adds a frame that other rings have too.
    pub(super) fn publish_copy(self: &Arc<Self>, bytes: FrameChunks, except: Option<u64>, copies: Copies) {
        {
            let mut state = self.lock();
            if state.len() == 0 {
                return;
            }
            state.push(Frame::ephemeral(bytes), except, Some(copies));
        }
        self.look();
    }

    /// Asks the pump to tell the members of new frames.
    pub(super) fn look(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst) {
            // The send fails only when the pumps have stopped, which means that the server has.
            let _ = self.queue.send(Work::Ring(self.clone()));
        }
    }

    /// Charges all members for what they have not taken, and returns those that are to be told of it.
    pub(super) fn to_tell(&self) -> Vec<PendingTell> {
        // Whoever publishes after this queues the ring again.
        self.queued.store(false, Ordering::SeqCst);
        let mut pending = Vec::new();
        let mut state = self.lock();
        state.charge();
        let RingState { members, lagging, .. } = &mut *state;
        for (slot, member) in members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            if member.told || member.held {
                continue;
            }
            // A bundle that is too slow is told as well: it has to end.
            if member.lagging || member.bundle.is_over() {
                member.told = true;
                pending.push(PendingTell { bundle: member.bundle.clone(), slot });
            }
        }
        debug_assert!(*lagging <= members.len(), "each member lags once");
        pending
    }

    /// Passes frames of a member to `take`, until they have at least `room` bytes. Returns their bytes, and
    /// whether there are more. Passes none if the bundle has moved frames since it had moved them `moved` times: those
    /// come first.
    pub(super) fn take(
        &self,
        slot: usize,
        bundle: &Arc<Shared>,
        moved: u64,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> (usize, bool) {
        let mut state = self.lock();
        if bundle.moved() != moved {
            return (0, true);
        }
        let RingState { first, frames, pushed, members, lagging, .. } = &mut *state;
        // The slot may have been given to another bundle meanwhile.
        let Some(member) = members.get_mut(slot).and_then(Option::as_mut) else { return (0, false) };
        if !Arc::ptr_eq(&member.bundle, bundle) || member.held {
            return (0, false);
        }
        let unpaid = member.unpaid();
        let mut bytes = 0;
        let mut at = usize::try_from(member.next.saturating_sub(*first)).unwrap_or(usize::MAX);
        while bytes < room
            && let Some(published) = frames.get(at)
        {
            let (frame, count, through) = match &published.run {
                Some(run) if run.is_for(bundle) => (Some(&run.frame), run.count, run.through),
                _ => (published.frame_for(bundle), 1, published.through),
            };
            if let Some(frame) = frame {
                bytes += frame.bytes.len();
                take(frame);
            }
            at += count;
            member.next += count as u64;
            member.taken = through;
        }
        bundle.credit(unpaid - member.unpaid());
        let more = member.taken < *pushed;
        if !more {
            member.told = false;
            if std::mem::take(&mut member.lagging) {
                *lagging -= 1;
            }
        }
        state.release_if_taken();
        (bytes, more)
    }
}

impl Default for RingState {
    fn default() -> Self {
        Self {
            first: 0,
            frames: VecDeque::new(),
            pushed: 0,
            released: 0,
            charged: 0,
            largest: 0,
            review_at: limits::BROADCAST_REVIEW_BYTES,
            members: Vec::new(),
            vacant: Vec::new(),
            lagging: 0,
            joins: true,
        }
    }
}

impl RingState {
    /// Number of members.
    pub(super) fn len(&self) -> usize {
        self.members.len() - self.vacant.len()
    }

    /// Numbers of the members' bundles.
    pub(super) fn numbers(&self) -> Vec<u64> {
        self.members.iter().flatten().map(|member| member.bundle.number()).collect()
    }

    /// Bytes of the frames that are kept.
    #[cfg(test)]
    pub(super) fn kept(&self) -> u64 {
        self.pushed - self.released
    }

    /// The members' bundles.
    pub(super) fn bundles(&self) -> impl Iterator<Item = &Arc<Shared>> {
        self.members.iter().flatten().map(|member| &member.bundle)
    }

    /// Whether the frames of a member are held back.
    pub(super) fn is_held(&self, slot: usize) -> bool {
        self.members.get(slot).and_then(Option::as_ref).is_some_and(|member| member.held)
    }

    /// Takes all frames of a member, also of one that is held. Returns whether it is.
    pub(super) fn take_all(&mut self, slot: usize, take: &mut impl FnMut(&Published)) -> bool {
        let Self { first, frames, pushed, members, lagging, .. } = self;
        let Some(member) = members.get_mut(slot).and_then(Option::as_mut) else { return false };
        let unpaid = member.unpaid();
        let at = usize::try_from(member.next.saturating_sub(*first)).unwrap_or(usize::MAX);
        for published in frames.iter().skip(at) {
            if published.frame_for(&member.bundle).is_some() {
                take(published);
            }
        }
        member.next = *first + frames.len() as u64;
        member.taken = *pushed;
        // What it was not charged for yet it never will be.
        member.charged = member.charged.max(*pushed);
        member.bundle.credit(unpaid);
        if std::mem::take(&mut member.lagging) {
            *lagging -= 1;
        }
        let held = member.held;
        self.release_if_taken();
        held
    }

    /// Adds a member. It will receive all frames from now on, but none before it is let go.
    pub(super) fn enter(&mut self, bundle: Arc<Shared>) -> usize {
        let next = self.first + self.frames.len() as u64;
        let member = Member {
            bundle,
            next,
            taken: self.pushed,
            charged: self.pushed,
            lagging: false,
            told: false,
            held: true,
        };
        match self.vacant.pop() {
            Some(slot) => {
                self.members[slot] = Some(member);
                slot
            }
            None => {
                self.members.push(Some(member));
                self.members.len() - 1
            }
        }
    }

    /// Lets a member take frames. Returns whether there are some, of which it must be told.
    pub(super) fn let_go(&mut self, slot: usize) -> bool {
        let Some(member) = self.members.get_mut(slot).and_then(Option::as_mut) else { return false };
        member.held = false;
        member.told = member.taken < self.pushed;
        member.told
    }

    /// Removes a member. Drop the result after releasing the lock.
    #[must_use]
    pub(super) fn leave(&mut self, slot: usize) -> Option<Arc<Shared>> {
        let member = self.members.get_mut(slot)?.take()?;
        self.vacant.push(slot);
        member.bundle.credit(member.unpaid());
        self.lagging -= usize::from(member.lagging);
        self.release_if_taken();
        if self.len() == 0 {
            self.release_before(self.first + self.frames.len() as u64);
        }
        Some(member.bundle)
    }

    fn push(&mut self, frame: Frame, except: Option<u64>, copies: Option<Copies>) {
        let bytes = frame.bytes.len() as u64;
        self.pushed += bytes;
        self.largest = self.largest.max(bytes);
        self.frames.push_back(Published { frame, except, copies, through: self.pushed, run: None });
        if self.pushed - self.charged > limits::BROADCAST_UNCHARGED_BYTES {
            // The pump is late. Members must not fall behind further than they may.
            self.charge();
        }
    }

    /// Charges each bundle for what it has not taken, and releases what nobody needs any more.
    fn charge(&mut self) {
        let pushed = self.pushed;
        if self.charged < pushed {
            for member in self.members.iter_mut().flatten() {
                if member.taken < pushed {
                    let unpaid = member.unpaid();
                    member.charged = pushed;
                    member.bundle.charge(member.unpaid() - unpaid, self.largest);
                    self.lagging += usize::from(!std::mem::replace(&mut member.lagging, true));
                }
            }
            if self.joins {
                self.join();
            }
            self.charged = pushed;
            self.largest = 0;
        }
        self.release_if_taken();
        if pushed - self.released >= self.review_at {
            self.review();
        }
    }

    /// Joins the frames that members were not charged for yet, if several members take them.
    fn join(&mut self) {
        if self.len() > 1 {
            let from = self.frames.partition_point(|published| published.through <= self.charged);
            published::join(&mut self.frames.range_mut(from..).collect::<Vec<_>>());
        }
    }

    /// Releases all frames if no member lags.
    fn release_if_taken(&mut self) {
        if self.lagging == 0 && self.charged == self.pushed && !self.frames.is_empty() {
            self.release_before(self.first + self.frames.len() as u64);
        }
    }

    /// Releases the frames that no member needs. A bundle that is too slow needs none.
    fn review(&mut self) {
        let members = self.members.iter().flatten().filter(|member| !member.bundle.is_over());
        let end = self.first + self.frames.len() as u64;
        let needed = members.map(|member| member.next).min().unwrap_or(end);
        self.release_before(needed);
        let kept = self.pushed - self.released;
        // Looking at all members again is worth it only when there is much more to release.
        self.review_at = limits::BROADCAST_REVIEW_BYTES.max(kept * 2);
    }

    /// Releases the frames below a number.
    fn release_before(&mut self, number: u64) {
        while self.first < number
            && let Some(published) = self.frames.pop_front()
        {
            self.first += 1;
            self.released = published.through;
        }
        if self.frames.is_empty() {
            self.frames.shrink_to(1);
        }
    }
}

impl Member {
    /// Bytes that the bundle was charged for and has not taken.
    fn unpaid(&self) -> u64 {
        self.charged.saturating_sub(self.taken)
    }
}
