//! Who comes too often or reads too slowly. All of it is in memory, and bounded.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::Chance;
use tidings_model::{DeviceId, LogId, ProjectId, Timestamp, UserId, limits};

/// The shortest time that a reader that was too slow stays away.
const COOL_DOWN_MIN: Duration = Duration::from_millis(250);
/// The longest the first time.
const COOL_DOWN_FIRST_MAX: Duration = Duration::from_millis(1000);
/// The longest ever.
const COOL_DOWN_MAX: Duration = Duration::from_secs(30);
/// Who stays out of trouble so long after it is over begins anew.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// A reader: one of a user's devices in a room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VisitKey {
    /// The room's log.
    pub room: LogId,
    /// Who.
    pub user: UserId,
    /// On which device; none if it did not say.
    pub device: Option<DeviceId>,
}

/// What is remembered of readers beside what they read.
pub struct Visits {
    state: Arc<Mutex<State>>,
    chance: Arc<Chance>,
    streams_max: usize,
}

#[derive(Default)]
struct State {
    streams: HashMap<(ProjectId, UserId), usize>,
    cool_downs: HashMap<VisitKey, CoolDown>,
    marked: HashSet<VisitKey>,
    /// In the order in which they came. May hold some that are not marked any more.
    marks: VecDeque<VisitKey>,
}

#[derive(Clone, Copy)]
struct CoolDown {
    until: Timestamp,
    time: Duration,
}

impl CoolDown {
    fn is_forgiven(&self, now: Timestamp) -> bool {
        now >= self.until + FORGIVEN_AFTER
    }
}

impl Visits {
    /// Nobody has come yet. A user has at most so many streams in the rooms of a project.
    pub fn new(chance: Arc<Chance>, streams_max: usize) -> Self {
        Self { state: Arc::default(), chance, streams_max }
    }

    /// One more stream of a user; none if it has as many as it may.
    pub fn enter(&self, project: &ProjectId, user: &UserId) -> Option<Visit> {
        let who = (project.clone(), user.clone());
        let mut state = self.lock();
        let streams = state.streams.entry(who.clone()).or_default();
        if *streams >= self.streams_max {
            if *streams == 0 {
                state.streams.remove(&who);
            }
            return None;
        }
        *streams += 1;
        Some(Visit { state: self.state.clone(), who })
    }

    /// A reader was cut off because it was too slow. Returns how long it is to stay away: chance, and twice as long each
    /// time.
    pub fn cut(&self, key: VisitKey, now: Timestamp) -> Duration {
        let mut state = self.lock();
        let before = state.cool_downs.get(&key).filter(|before| !before.is_forgiven(now));
        let time = match before {
            Some(before) => (before.time * 2).min(COOL_DOWN_MAX),
            None => {
                let [least, most] = [COOL_DOWN_MIN, COOL_DOWN_FIRST_MAX].map(|time| time.as_millis() as u64);
                Duration::from_millis(self.chance.within(least..=most))
            }
        };
        if state.cool_downs.len() >= limits::COOL_DOWNS {
            state.cool_downs.retain(|_, before| !before.is_forgiven(now));
        }
        if state.cool_downs.len() < limits::COOL_DOWNS || state.cool_downs.contains_key(&key) {
            state.cool_downs.insert(key, CoolDown { until: now + time, time });
        }
        time
    }

    /// How long a reader is still to stay away.
    pub fn cooling(&self, key: &VisitKey, now: Timestamp) -> Option<Duration> {
        let until = self.lock().cool_downs.get(key)?.until;
        Some(until.since(now)).filter(|left| !left.is_zero())
    }

    /// A reader was refused because what it missed is gone. When it comes again it is to be told so in the stream.
    pub fn mark_compacted(&self, key: VisitKey) {
        let mut state = self.lock();
        if !state.marked.insert(key.clone()) {
            return;
        }
        state.marks.push_back(key);
        if state.marks.len() > limits::COMPACTED_MARKS {
            let State { marked, marks, .. } = &mut *state;
            if let Some(oldest) = marks.pop_front() {
                marked.remove(&oldest);
            }
        }
    }

    /// Whether a reader is to be told so, which it then was.
    pub fn take_mark(&self, key: &VisitKey) -> bool {
        let mut state = self.lock();
        if !state.marked.remove(key) {
            return false;
        }
        state.marks.retain(|marked| marked != key);
        true
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().expect("nobody panics while holding the visits")
}

/// One stream of a user, until it is dropped.
pub struct Visit {
    state: Arc<Mutex<State>>,
    who: (ProjectId, UserId),
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if let Some(streams) = state.streams.get_mut(&self.who) {
            *streams -= 1;
            if *streams == 0 {
                state.streams.remove(&self.who);
            }
        }
    }
}
