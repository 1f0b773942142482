//! What is to be looked at again at some time. Pure.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

/// One time for each key, on the monotonic clock.
#[derive(Debug)]
pub(super) struct Timers<K> {
    times: HashMap<K, Duration>,
    order: BTreeSet<(Duration, K)>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { times: HashMap::new(), order: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash> Timers<K> {
    /// Sets the time of a key, or removes it.
    pub(super) fn set(&mut self, key: K, time: Option<Duration>) {
        let before = match time {
            Some(time) => self.times.insert(key, time),
            None => self.times.remove(&key),
        };
        if before == time {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&(before, key));
        }
        if let Some(time) = time {
            self.order.insert((time, key));
        }
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Duration> {
        self.order.first().map(|(time, _)| *time)
    }

    /// Removes the earliest key whose time has come.
    pub(super) fn pop(&mut self, now: Duration) -> Option<K> {
        let &(time, key) = self.order.first()?;
        if time > now {
            return None;
        }
        self.order.pop_first();
        self.times.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_at_the_time_that_was_set_last() {
        let at = Duration::from_secs;
        let mut timers = Timers::default();
        timers.set('a', Some(at(5)));
        timers.set('b', Some(at(3)));
        timers.set('c', Some(at(4)));
        timers.set('a', Some(at(1)));
        timers.set('c', None);
        assert_eq!(timers.next(), Some(at(1)));
        assert_eq!(timers.pop(at(0)), None);
        assert_eq!([timers.pop(at(9)), timers.pop(at(9)), timers.pop(at(9))], [Some('a'), Some('b'), None]);
        assert_eq!((timers.next(), timers.times.len()), (None, 0));
    }
}
