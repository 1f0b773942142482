//! The order of operations of one connection: those on the same topic one after the other, in the order of arrival.
//!
//! An operation on some topics waits for all earlier ones on these topics; an operation on the whole set waits for all
//! earlier ones, and all later ones wait for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

/// Operations that have arrived and not ended.
#[derive(Default)]
pub(crate) struct Queue {
    /// Number of the next operation.
    next: u64,
    operations: BTreeMap<u64, Operation>,
    /// Operations on each topic, in order.
    lines: HashMap<Arc<str>, VecDeque<u64>>,
    /// Operations on the whole set.
    barriers: BTreeSet<u64>,
    /// Those who only wait for what came before.
    observers: BTreeMap<u64, Observer>,
}

struct Operation {
    scope: Scope,
    waker: Option<Waker>,
}

struct Observer {
    topic: Option<Arc<str>>,
    waker: Option<Waker>,
}

/// What an operation may change.
pub(crate) enum Scope {
    /// Some topics, each once.
    Topics(Vec<Arc<str>>),
    /// The whole set.
    All,
}

impl Queue {
    /// Whether nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Adds an operation at the end. Returns its number.
    pub(crate) fn arrive(&mut self, scope: Scope) -> u64 {
        let number = self.number();
        match &scope {
            Scope::Topics(topics) => {
                for topic in topics {
                    self.lines.entry(topic.clone()).or_default().push_back(number);
                }
            }
            Scope::All => {
                self.barriers.insert(number);
            }
        }
        self.operations.insert(number, Operation { scope, waker: None });
        number
    }

    /// Adds one who waits for what is in flight now, on one topic or on all.
    pub(crate) fn observe(&mut self, topic: Option<Arc<str>>) -> u64 {
        let number = self.number();
        self.observers.insert(number, Observer { topic, waker: None });
        number
    }

    /// Whether it is an operation's or an observer's turn. If not, the waker is called when it may be.
    pub(crate) fn is_turn(&mut self, number: u64, waker: &Waker) -> bool {
        if self.may_go(number) {
            return true;
        }
        let place = match self.operations.get_mut(&number) {
            Some(operation) => &mut operation.waker,
            None => match self.observers.get_mut(&number) {
                Some(observer) => &mut observer.waker,
                None => return true,
            },
        };
        match place {
            Some(known) if known.will_wake(waker) => {}
            _ => *place = Some(waker.clone()),
        }
        false
    }

    /// Removes an operation or an observer. The wakers are those of the ones whose turn has come; call them without
    /// the lock.
    pub(crate) fn leave(&mut self, number: u64) -> Vec<Waker> {
        let Some(operation) = self.operations.remove(&number) else {
            self.observers.remove(&number);
            return Vec::new();
        };
        let mut candidates = Vec::new();
        match operation.scope {
            Scope::Topics(topics) => {
                for topic in topics {
                    let Some(line) = self.lines.get_mut(&topic) else { continue };
                    line.retain(|other| *other != number);
                    match line.front() {
                        Some(first) => candidates.push(*first),
                        None => drop(self.lines.remove(&topic)),
                    }
                }
                candidates.extend(self.barriers.first());
            }
            Scope::All => {
                self.barriers.remove(&number);
                let end = self.barriers.first().copied().unwrap_or(u64::MAX);
                candidates.extend(self.operations.range(..=end).map(|(number, _)| *number));
            }
        }
        candidates.extend(self.observers.keys());
        candidates.sort_unstable();
        candidates.dedup();
        candidates.retain(|number| self.may_go(*number));
        let wakers = candidates.iter().filter_map(|number| self.take_waker(*number)).collect();
        self.release();
        wakers
    }

    /// Gives back memory when nothing is in flight: most connections are idle most of the time.
    fn release(&mut self) {
        if self.operations.is_empty() && self.observers.is_empty() {
            *self = Self { next: self.next, ..Self::default() };
        }
    }

    /// Number of operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.operations.len()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn may_go(&self, number: u64) -> bool {
        let earlier_barrier = || self.barriers.first().is_some_and(|barrier| *barrier < number);
        let is_first = || self.operations.keys().next().is_none_or(|first| *first >= number);
        if let Some(operation) = self.operations.get(&number) {
            return match &operation.scope {
                Scope::Topics(topics) => {
                    let leads = |topic| self.lines.get(topic).and_then(VecDeque::front) == Some(&number);
                    !earlier_barrier() && topics.iter().all(leads)
                }
                Scope::All => is_first(),
            };
        }
        match self.observers.get(&number).map(|observer| &observer.topic) {
            Some(Some(topic)) => {
                let ahead =
                    self.lines.get(topic).and_then(VecDeque::front).is_some_and(|first| *first < number);
                !earlier_barrier() && !ahead
            }
            Some(None) => is_first(),
            None => true,
        }
    }

    fn take_waker(&mut self, number: u64) -> Option<Waker> {
        match self.operations.get_mut(&number) {
            Some(operation) => operation.waker.take(),
            None => self.observers.get_mut(&number)?.waker.take(),
        }
    }
}
