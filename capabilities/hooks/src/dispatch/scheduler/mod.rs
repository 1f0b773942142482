//! Decides what is read, begun and recorded next, for all hooks. It waits for nothing and owns all state: whoever drives it
//! carries out its [`Commands`] and tells it what came of them.
//!
//! Read `hooks` (what is known of hooks, and when), `attempts` (whose turn it is, and what came of attempts) and `recording`
//! (which results go into the next commit, and what if that fails).

mod attempts;
mod hooks;
mod recording;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidings_engine::Rng;
use tidings_model::{LogId, Timestamp, Ulid};

pub(super) use recording::Trouble;

use super::attempt::{Job, Prepared};
use super::backlog::{Backlog, Want};
use super::counters::Counters;
use super::destination::AttemptLimits;
use super::destinations::{DestinationId, Destinations};
use super::inbox::Forgotten;
use super::moment::{Moment, Rules};
use super::sender::Sender;
use super::timers::Timers;
use recording::Recording;

/// Bytes of events in memory that wait to be delivered. Above it they are read again when it is their turn.
const WAITING_BYTES: usize = 32 * 1024 * 1024;
/// Hooks without work that are kept in memory, because they are likely to have some soon.
const RESTING: usize = 2048;

/// What a scheduler needs.
pub(super) struct Means {
    pub(super) sender: Arc<dyn Sender>,
    pub(super) rng: Arc<Rng>,
    pub(super) fresh_id: Arc<dyn Fn() -> Ulid + Send + Sync>,
    pub(super) counters: Counters,
    pub(super) rules: Rules,
    pub(super) limits: AttemptLimits,
}

/// Decides what is done next.
pub(super) struct Scheduler {
    means: Means,
    hooks: HashMap<LogId, Entry>,
    destinations: Destinations,
    timers: Timers<Timer>,
    recording: Recording,
    /// Hooks that are being looked up, by their queues.
    finding: HashMap<LogId, Finding>,
    commands: Commands,
    /// Bytes of the events that are being delivered.
    bytes_running: usize,
    /// Bytes of the events that wait in memory.
    bytes_waiting: usize,
    /// Hooks with events that wait in memory, in the order in which they got the first one.
    holders: VecDeque<LogId>,
    /// Hooks without work, in the order in which they lost it, each with the number of its rest.
    resting: VecDeque<(LogId, u64)>,
    rests: u64,
    lives: u64,
}

/// A hook in memory.
struct Entry {
    backlog: Backlog,
    prepared: Arc<Prepared>,
    destination: DestinationId,
    /// Tells this life of the hook's state in memory from the next.
    life: u64,
    /// The destination in whose ring it is.
    in_ring: Option<DestinationId>,
    /// It had its turn, and was kept from using it.
    had_turn: bool,
    /// Its state will be made anew once it is quiet.
    is_outdated: bool,
    /// Nothing is read before this time, because reading failed.
    read_after: Duration,
    is_holder: bool,
    /// Number of its rest, if it has no work.
    rest: Option<u64>,
    /// It is among those whose results are to be recorded.
    is_dirty: bool,
}

/// What is to be looked at again at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    Recording,
    Destination(DestinationId),
    /// A hook that could not be looked up.
    Find(LogId),
    Hook(LogId),
}

/// What is done once a hook was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// The answer is taken over.
    Once,
    /// So it is, and the hook is looked up again, because it may have changed since.
    Again,
    /// The hook is looked up again, because the answer may be from before it was removed.
    Stale,
}

/// What is to be done.
#[derive(Default)]
pub(super) struct Commands {
    /// Hooks to look up, by their queues.
    pub(super) finds: Vec<LogId>,
    /// What to read from queues.
    pub(super) reads: Vec<Read>,
    /// Attempts to make.
    pub(super) jobs: Vec<Job>,
}

/// What to read from a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    /// The queue.
    pub(super) queue: LogId,
    /// Tells one life of the hook's state in memory from the next.
    pub(super) life: u64,
    /// What to read.
    pub(super) want: Want,
}

/// The time, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Wall clock.
    pub(super) at: Timestamp,
    /// Monotonic clock.
    pub(super) elapsed: Duration,
}

impl Commands {
    /// Whether there is nothing to do.
    pub(super) fn is_empty(&self) -> bool {
        self.finds.is_empty() && self.reads.is_empty() && self.jobs.is_empty()
    }
}

impl Means {
    fn moment(&self, now: Now) -> Moment<'_> {
        Moment { at: now.at, elapsed: now.elapsed, rules: &self.rules, fresh_id: &*self.fresh_id }
    }
}

impl Scheduler {
    pub(super) fn new(means: Means) -> Self {
        Self {
            destinations: Destinations::new(means.limits),
            means,
            hooks: HashMap::new(),
            timers: Timers::default(),
            recording: Recording::default(),
            finding: HashMap::new(),
            commands: Commands::default(),
            bytes_running: 0,
            bytes_waiting: 0,
            holders: VecDeque::new(),
            resting: VecDeque::new(),
            rests: 0,
            lives: 0,
        }
    }

    /// What is to be done now.
    pub(super) fn take_commands(&mut self) -> Commands {
        std::mem::take(&mut self.commands)
    }

    /// Looks at everything whose time has come.
    pub(super) fn tick(&mut self, now: Now) {
        while let Some(timer) = self.timers.pop(now.elapsed) {
            match timer {
                Timer::Recording => {}
                Timer::Destination(id) => self.destinations.wake(id),
                Timer::Find(queue) => self.notified(queue),
                Timer::Hook(queue) => self.touch(queue, now),
            }
        }
    }

    /// Time on the monotonic clock at which something is to be looked at.
    pub(super) fn wakes_at(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Whether nothing is running, nothing is due, and everything is recorded.
    pub(super) fn is_at_rest(&self) -> bool {
        self.destinations.running() == 0
            && self.finding.is_empty()
            && self.commands.is_empty()
            && self.recording.is_at_rest()
    }
}
