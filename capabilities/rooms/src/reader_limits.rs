//! Limits of readers: streams per user, and cool-downs of readers that were too slow. All state is in memory
//! and bounded.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::Rng;
use tidings_model::{DeviceId, LogId, ProjectId, Timestamp, UserId, limits};

/// Shortest cool-down of a reader that was too slow.
const COOL_DOWN_MIN: Duration = Duration::from_millis(250);
/// Longest first cool-down.
const COOL_DOWN_FIRST_MAX: Duration = Duration::from_millis(1000);
/// Longest cool-down.
const COOL_DOWN_MAX: Duration = Duration::from_secs(30);
/// A reader that causes no trouble for this long after its cool-down starts again with a short one.
const FORGIVEN_AFTER: Duration = Duration::from_secs(60);

/// Minimum interval between two removals of expired cool-downs.
const CLEARED_EVERY: Duration = Duration::from_secs(1);

/// Identifies a reader: a device of a user in a room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReaderKey {
    /// Log of the room.
    pub room: LogId,
    /// The user.
    pub user: UserId,
    /// The device; `None` if the client sent no id.
    pub device: Option<DeviceId>,
}

/// The limits of all readers.
pub struct ReaderLimits {
    state: Arc<Mutex<Readers>>,
    rng: Arc<Rng>,
    streams_max: usize,
}

#[derive(Default)]
struct Readers {
    streams: HashMap<(ProjectId, UserId), usize>,
    cool_downs: HashMap<ReaderKey, CoolDown>,
    /// Time of the last removal of expired cool-downs.
    cleared: Timestamp,
    /// Marked readers, with the numbers of their marks, which grow.
    marked: HashMap<ReaderKey, u64>,
    marks: BTreeMap<u64, ReaderKey>,
}

#[derive(Clone, Copy)]
struct CoolDown {
    until: Timestamp,
    time: Duration,
}

impl CoolDown {
    /// Shortens a cool-down that would last too long because the clock was set back.
    fn seen_at(&mut self, now: Timestamp) -> &Self {
        self.until = self.until.min(now + self.time);
        self
    }

    fn is_forgiven(&self, now: Timestamp) -> bool {
        now >= self.until + FORGIVEN_AFTER
    }
}

impl ReaderLimits {
    /// Creates the limits. A user may have `streams_max` streams in the rooms of a project.
    pub fn new(rng: Arc<Rng>, streams_max: usize) -> Self {
        Self { state: Arc::default(), rng, streams_max }
    }

    /// Counts a stream of a user; `None` if the user has the maximum already.
    pub fn enter(&self, project: &ProjectId, user: &UserId) -> Option<ReaderPermit> {
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
        Some(ReaderPermit { state: self.state.clone(), who })
    }

    /// Starts a cool-down of a reader that was too slow. Its length is random and doubles each time.
    pub fn cut(&self, key: ReaderKey, now: Timestamp) -> Duration {
        let mut state = self.lock();
        let before = state.cool_downs.get_mut(&key).map(|before| before.seen_at(now));
        let time = match before.filter(|before| !before.is_forgiven(now)) {
            Some(before) => (before.time * 2).min(COOL_DOWN_MAX),
            None => {
                let [least, most] = [COOL_DOWN_MIN, COOL_DOWN_FIRST_MAX].map(|time| time.as_millis() as u64);
                Duration::from_millis(self.rng.within(least..=most))
            }
        };
        state.cleared = state.cleared.min(now);
        if state.cool_downs.len() >= limits::COOL_DOWNS && now.since(state.cleared) >= CLEARED_EVERY {
            state.cleared = now;
            state.cool_downs.retain(|_, before| !before.is_forgiven(now));
        }
        if state.cool_downs.len() < limits::COOL_DOWNS || state.cool_downs.contains_key(&key) {
            state.cool_downs.insert(key, CoolDown { until: now + time, time });
        }
        time
    }

    /// The rest of a reader's cool-down; `None` if it is over.
    pub fn cooling(&self, key: &ReaderKey, now: Timestamp) -> Option<Duration> {
        let until = self.lock().cool_downs.get_mut(key)?.seen_at(now).until;
        Some(until.since(now)).filter(|left| !left.is_zero())
    }

    /// Marks a reader that was refused because its events were trimmed. Its next stream begins with a notice
    /// of that.
    pub fn mark_compacted(&self, key: ReaderKey) {
        let mut state = self.lock();
        if state.marked.contains_key(&key) {
            return;
        }
        let number = state.marks.last_key_value().map_or(0, |(last, _)| last + 1);
        state.marked.insert(key.clone(), number);
        state.marks.insert(number, key);
        if state.marks.len() > limits::COMPACTED_MARKS
            && let Some((_, oldest)) = state.marks.pop_first()
        {
            state.marked.remove(&oldest);
        }
    }

    /// Whether a reader is marked. Removes the mark.
    pub fn take_mark(&self, key: &ReaderKey) -> bool {
        let mut state = self.lock();
        let Some(number) = state.marked.remove(key) else { return false };
        state.marks.remove(&number);
        true
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<Readers>) -> MutexGuard<'_, Readers> {
    state.lock().expect("nobody panics while holding the reader_limits")
}

/// Counts as one stream of a user until it is dropped.
pub struct ReaderPermit {
    state: Arc<Mutex<Readers>>,
    who: (ProjectId, UserId),
}

impl Drop for ReaderPermit {
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

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_763_294_400_000);

    fn reader_limits() -> ReaderLimits {
        ReaderLimits::new(Arc::new(Rng::seeded(3)), 2)
    }

    fn key(user: &str) -> ReaderKey {
        ReaderKey { room: LogId::new(1), user: UserId::parse(user).expect("an id"), device: None }
    }

    #[test]
    fn a_user_has_so_many_streams_at_a_time_in_each_project() {
        let reader_limits = reader_limits();
        let [shop, other] = ["shop", "other"].map(|id| ProjectId::parse(id).expect("an id"));
        let ann = UserId::parse("ann").expect("an id");
        let both = [reader_limits.enter(&shop, &ann), reader_limits.enter(&shop, &ann)];
        assert!(both.iter().all(Option::is_some));
        assert!(reader_limits.enter(&shop, &ann).is_none());
        assert!(reader_limits.enter(&other, &ann).is_some());
        assert!(reader_limits.enter(&shop, &UserId::parse("bob").expect("an id")).is_some());
        drop(both);
        assert!(reader_limits.enter(&shop, &ann).is_some());
        assert!(reader_limits.lock().streams.is_empty(), "nothing is left of those who went away");
    }

    #[test]
    fn who_is_cut_again_and_again_stays_away_twice_as_long_each_time() {
        let reader_limits = reader_limits();
        let ann = key("ann");
        assert_eq!(reader_limits.cooling(&ann, NOW), None);
        let mut now = NOW;
        let first = reader_limits.cut(ann.clone(), now);
        assert!((COOL_DOWN_MIN..=COOL_DOWN_FIRST_MAX).contains(&first), "{first:?}");
        assert_eq!(reader_limits.cooling(&ann, now), Some(first));
        assert_eq!(reader_limits.cooling(&key("bob"), now), None);
        assert_eq!(reader_limits.cooling(&ann, now + first), None, "it is over");
        let mut expected = first;
        for _ in 0..8 {
            now = now + expected;
            expected = (expected * 2).min(COOL_DOWN_MAX);
            assert_eq!(reader_limits.cut(ann.clone(), now), expected);
        }
        assert_eq!(expected, COOL_DOWN_MAX);
        let forgiven = now + COOL_DOWN_MAX + FORGIVEN_AFTER;
        assert!(reader_limits.cut(ann, forgiven) <= COOL_DOWN_FIRST_MAX);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nobody_stay_away_for_longer() {
        let reader_limits = reader_limits();
        let (ann, hour) = (key("ann"), Duration::from_secs(60 * 60));
        let first = reader_limits.cut(ann.clone(), NOW);
        let back = NOW - hour;
        assert_eq!(reader_limits.cooling(&ann, back), Some(first));
        assert_eq!(reader_limits.cooling(&ann, back + first), None, "it is over");
        let bob = key("bob");
        reader_limits.cut(bob.clone(), NOW);
        assert_eq!(
            reader_limits.cut(bob.clone(), back),
            reader_limits.cooling(&bob, back).expect("it was cut again")
        );
        assert!(
            reader_limits.cut(bob, back + COOL_DOWN_MAX + FORGIVEN_AFTER) <= COOL_DOWN_FIRST_MAX,
            "forgiven"
        );
    }

    #[test]
    fn a_mark_is_taken_once() {
        let reader_limits = reader_limits();
        reader_limits.mark_compacted(key("ann"));
        reader_limits.mark_compacted(key("ann"));
        assert!(!reader_limits.take_mark(&key("bob")));
        assert!(reader_limits.take_mark(&key("ann")) && !reader_limits.take_mark(&key("ann")));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let reader_limits = reader_limits();
        for n in 0..limits::COMPACTED_MARKS + 10 {
            reader_limits.mark_compacted(key(&n.to_string()));
        }
        for n in 0..limits::COOL_DOWNS + 10 {
            reader_limits.cut(key(&n.to_string()), NOW);
        }
        assert_eq!(reader_limits.lock().marked.len(), limits::COMPACTED_MARKS);
        assert_eq!(reader_limits.lock().cool_downs.len(), limits::COOL_DOWNS);
        assert!(
            !reader_limits.take_mark(&key("9")) && reader_limits.take_mark(&key("10")),
            "the oldest make room"
        );
        let later = NOW + COOL_DOWN_MAX + FORGIVEN_AFTER;
        reader_limits.cut(key("one more"), later);
        assert_eq!(reader_limits.lock().cool_downs.len(), 1, "those that are forgiven make room");
    }
}
