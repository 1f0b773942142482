//! Whose turn it is: destinations in a ring, and in each the hooks that have something to deliver to it. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tidings_model::LogId;

use super::destination::{Admission, AttemptLimits, Destination, Shares, Standing};
use super::outcome::Outcome;

/// Attempts that a destination begins in one turn, at most.
const QUANTUM: u32 = 8;
/// Destinations without hooks that are remembered because they fail or are throttled.
const REMEMBERED: usize = 4096;
/// Turns after which those that wait for a share of the attempts are asked, although others are ready.
const STARVED_EVERY: u32 = 8;

/// Number of a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DestinationId(u64);

/// What makes two hooks share a destination.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// Scheme, host and port.
    Endpoint(tidings_egress::Destination),
    /// Name of a handler in this process.
    Handler(String),
    /// The hook itself, since its deliveries go nowhere.
    Nowhere(LogId),
}

/// All destinations that are in use.
pub(super) struct Destinations {
    limits: AttemptLimits,
    shares: Shares,
    places: HashMap<Place, DestinationId>,
    members: HashMap<DestinationId, Member>,
    last: u64,
    /// Destinations that may have something to begin.
    ring: VecDeque<DestinationId>,
    /// Destinations without an attempt that wait until others of their standing take less: if the first of a list may not
    /// begin, none of it may.
    new: VecDeque<DestinationId>,
    silent: VecDeque<DestinationId>,
    /// Attempts that the first destination of the ring may begin before the next one has its turn.
    quantum: u32,
    turns: u32,
    /// Destinations without hooks, in the order in which they lost the last one.
    remembered: VecDeque<DestinationId>,
}

struct Member {
    destination: Destination,
    place: Place,
    /// Hooks that use it.
    users: usize,
    /// Hooks that have something to begin, in turn.
    ready: VecDeque<LogId>,
    waits: Waits,
}

/// What a destination waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// For its turn.
    InRing,
    /// For a share of the attempts.
    Starved,
    /// For a hook, a time, or the end of an attempt.
    Elsewhere,
}

/// A list of destinations that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Ring,
    New,
    Silent,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This hook may begin an attempt to this destination.
    Hook(DestinationId, LogId),
    /// This destination is to be [woken](Destinations::wake) at this time.
    Later(DestinationId, Duration),
}

impl Destinations {
    pub(super) fn new(limits: AttemptLimits) -> Self {
        Self {
            limits,
            shares: Shares::default(),
            places: HashMap::new(),
            members: HashMap::new(),
            last: 0,
            ring: VecDeque::new(),
            new: VecDeque::new(),
            silent: VecDeque::new(),
            quantum: QUANTUM,
            turns: 0,
            remembered: VecDeque::new(),
        }
    }

    /// Attempts that are running.
    pub(super) fn running(&self) -> usize {
        self.shares.total()
    }

    /// A hook begins to use a destination.
    pub(super) fn join(&mut self, place: Place) -> DestinationId {
        let (members, last) = (&mut self.members, &mut self.last);
        let id = *self.places.entry(place.clone()).or_insert_with(|| {
            *last += 1;
            let id = DestinationId(*last);
            let (destination, ready) = (Destination::default(), VecDeque::new());
            members.insert(id, Member { destination, place, users: 0, ready, waits: Waits::Elsewhere });
            id
        });
        if let Some(member) = members.get_mut(&id) {
            member.users += 1;
        }
        id
    }

    /// A hook no longer uses a destination.
    pub(super) fn leave(&mut self, id: DestinationId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.users -= 1;
        if member.users == 0 && !self.forget(id) {
            self.remembered.push_back(id);
            if self.remembered.len() > REMEMBERED
                && let Some(oldest) = self.remembered.pop_front()
                && !self.remove(oldest)
            {
                self.remembered.push_back(oldest);
            }
        }
    }

    /// A hook has something to begin. At the front if it has had its turn and was kept from using it.
    pub(super) fn enter(&mut self, id: DestinationId, queue: LogId, front: bool) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if front {
            member.ready.push_front(queue);
        } else {
            member.ready.push_back(queue);
        }
        self.wake(id);
    }

    /// A destination may be able to begin something.
    pub(super) fn wake(&mut self, id: DestinationId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        if member.waits == Waits::Elsewhere && !member.ready.is_empty() {
            member.waits = Waits::InRing;
            self.ring.push_back(id);
        }
    }

    /// The next hook that may begin an attempt. It has left the ring; if it has more, let it [enter](Self::enter) again.
    pub(super) fn turn(&mut self, now: Duration) -> Option<Turn> {
        self.turns = self.turns.wrapping_add(1);
        let starved_first = self.turns.is_multiple_of(STARVED_EVERY);
        let starved = [List::New, List::Silent];
        let order = if starved_first {
            [starved[0], starved[1], List::Ring]
        } else {
            [List::Ring, starved[0], starved[1]]
        };
        order.into_iter().find_map(|list| self.turn_of(list, now))
    }

    fn turn_of(&mut self, list: List, now: Duration) -> Option<Turn> {
        while self.running() < self.limits.all {
            let id = *self.list(list).front()?;
            let (shares, limits) = (&self.shares, &self.limits);
            let Some(member) = self.members.get_mut(&id) else {
                self.rotate(list, Waits::Elsewhere);
                continue;
            };
            let admission = match member.ready.is_empty() {
                true => Admission::AfterOwn,
                false => member.destination.admission(now, shares, limits),
            };
            match admission {
                Admission::Now => {
                    let queue = member.ready.pop_front()?;
                    self.quantum -= 1;
                    if list != List::Ring || self.quantum == 0 {
                        self.rotate(list, Waits::InRing);
                    }
                    return Some(Turn::Hook(id, queue));
                }
                Admission::At(time) => {
                    self.rotate(list, Waits::Elsewhere);
                    return Some(Turn::Later(id, time));
                }
                Admission::AfterOwn => self.rotate(list, Waits::Elsewhere),
                Admission::AfterAny if list == List::Ring => self.rotate(list, Waits::Starved),
                Admission::AfterAny => return None,
            }
        }
        None
    }

    /// An attempt begins. Returns whether the circuit breaker decides by it.
    pub(super) fn begin(&mut self, id: DestinationId, now: Duration) -> bool {
        let member = self.members.get_mut(&id);
        member.is_some_and(|member| member.destination.begin(now, &mut self.shares))
    }

    /// An attempt ended. Returns whether the circuit breaker has opened by it.
    pub(super) fn end(
        &mut self,
        id: DestinationId,
        outcome: &Outcome,
        was_probe: bool,
        now: Duration,
    ) -> bool {
        let Some(member) = self.members.get_mut(&id) else { return false };
        let opened = member.destination.end(outcome, was_probe, now, &mut self.shares, &self.limits);
        if member.users == 0 {
            self.forget(id);
        } else {
            self.wake(id);
        }
        opened
    }

    fn list(&mut self, list: List) -> &mut VecDeque<DestinationId> {
        match list {
            List::Ring => &mut self.ring,
            List::New => &mut self.new,
            List::Silent => &mut self.silent,
        }
    }

    /// Takes the first destination out of a list, and puts it where it waits now.
    fn rotate(&mut self, list: List, waits: Waits) {
        // With many destinations each takes few attempts at a time: several to one need several connections, which are closed
        // for those of others before its next turn.
        let share = self.limits.all / self.ring.len().max(1);
        self.quantum = u32::try_from(share).unwrap_or(QUANTUM).clamp(1, QUANTUM);
        let Some(id) = self.list(list).pop_front() else { return };
        let Some(member) = self.members.get_mut(&id) else { return };
        member.waits = waits;
        match waits {
            Waits::InRing => self.ring.push_back(id),
            Waits::Starved if member.destination.standing() == Standing::Silent => self.silent.push_back(id),
            Waits::Starved => self.new.push_back(id),
            Waits::Elsewhere => {}
        }
    }

    /// Removes a destination without hooks if nothing of it must be remembered.
    fn forget(&mut self, id: DestinationId) -> bool {
        let ordinary = self.members.get(&id).is_some_and(|member| member.destination.is_ordinary());
        if ordinary {
            self.remove(id);
        }
        ordinary
    }

    /// Removes a destination without hooks. Returns false if it cannot be removed yet.
    fn remove(&mut self, id: DestinationId) -> bool {
        let Some(member) = self.members.get(&id).filter(|member| member.users == 0) else { return true };
        if member.destination.running() > 0 {
            return false;
        }
        if let Some(member) = self.members.remove(&id) {
            self.places.remove(&member.place);
        }
        true
    }
}

#[cfg(test)]
#[path = "destinations/tests.rs"]
mod tests;
