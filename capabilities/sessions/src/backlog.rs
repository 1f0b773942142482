//! Sources that may have something left to deliver, and who looks after them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use tidings_model::LogId;
use tokio::sync::Notify;

/// Sources that may have something left to deliver, each once. They are taken in turn, and each by one at a time.
#[derive(Default)]
pub(crate) struct Backlog {
    sources: Mutex<Sources>,
    more: Notify,
}

#[derive(Default)]
struct Sources {
    order: VecDeque<LogId>,
    known: HashMap<LogId, SourceState>,
}

/// How a source stands that may have something left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// It waits for its turn.
    Waiting,
    /// It was taken.
    Taken,
    /// It was taken, and may have got more since.
    TakenAndMore,
    /// It failed, and waits until it is tried again.
    Resting,
}

impl Sources {
    fn wait(&mut self, source: LogId) {
        self.known.insert(source, SourceState::Waiting);
        self.order.push_back(source);
    }
}

impl Backlog {
    /// A source may have something left.
    pub(crate) fn add(&self, source: LogId) {
        let mut sources = self.sources();
        match sources.known.get(&source) {
            None => {
                sources.wait(source);
                self.more.notify_one();
            }
            Some(SourceState::Taken) => {
                sources.known.insert(source, SourceState::TakenAndMore);
            }
            Some(SourceState::Waiting | SourceState::TakenAndMore | SourceState::Resting) => {}
        }
    }

    /// The next one, to be looked after. Whoever takes it says what became of it.
    pub(crate) fn take(&self) -> Option<LogId> {
        let mut sources = self.sources();
        let source = sources.order.pop_front()?;
        sources.known.insert(source, SourceState::Taken);
        Some(source)
    }

    /// One that was taken has nothing left, unless it has got more since.
    pub(crate) fn finish(&self, source: LogId) {
        let mut sources = self.sources();
        match sources.known.remove(&source) {
            Some(SourceState::TakenAndMore) => sources.wait(source),
            Some(SourceState::Taken | SourceState::Waiting | SourceState::Resting) | None => {}
        }
    }

    /// One that was taken, or that has rested, waits for its turn again.
    pub(crate) fn put_back(&self, source: LogId) {
        self.sources().wait(source);
    }

    /// One that was taken rests until it is put back.
    pub(crate) fn rest(&self, source: LogId) {
        self.sources().known.insert(source, SourceState::Resting);
    }

    /// Whoever looked after them has gone: those that were taken, and those that rest, wait for their turn again.
    pub(crate) fn put_all_back(&self) {
        let mut sources = self.sources();
        let left: Vec<LogId> = sources
            .known
            .iter()
            .filter(|(_, state)| **state != SourceState::Waiting)
            .map(|(source, _)| *source)
            .collect();
        left.into_iter().for_each(|source| sources.wait(source));
    }

    /// Resolves when one was added since the last that was waited for.
    pub(crate) async fn more(&self) {
        self.more.notified().await;
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sources().known.is_empty()
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().expect("nobody panics while holding it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LogId = LogId::new(1);
    const B: LogId = LogId::new(2);

    #[test]
    fn each_is_taken_in_turn_and_by_one_at_a_time() {
        let behind = Backlog::default();
        for source in [A, B, A] {
            behind.add(source);
        }
        assert_eq!([behind.take(), behind.take(), behind.take()], [Some(A), Some(B), None]);
        behind.add(A);
        assert_eq!(behind.take(), None, "somebody has it");
        behind.finish(B);
        behind.finish(A);
        assert_eq!(behind.take(), Some(A), "it has got more meanwhile");
        behind.finish(A);
        assert!(behind.is_empty());
    }

    #[test]
    fn one_that_rests_is_not_taken_and_not_forgotten() {
        let behind = Backlog::default();
        behind.add(A);
        behind.take();
        behind.rest(A);
        behind.add(A);
        assert_eq!(behind.take(), None);
        assert!(!behind.is_empty());
        behind.put_back(A);
        assert_eq!([behind.take(), behind.take()], [Some(A), None]);
    }

    #[test]
    fn what_was_taken_or_rests_is_put_back_once_when_whoever_took_it_has_gone() {
        let behind = Backlog::default();
        let sources: Vec<_> = (1..=4).map(LogId::new).collect();
        sources.iter().for_each(|source| behind.add(*source));
        for source in &sources[..3] {
            assert_eq!(behind.take(), Some(*source));
        }
        behind.add(sources[1]);
        behind.rest(sources[2]);
        behind.put_all_back();
        let mut taken: Vec<_> = std::iter::from_fn(|| behind.take()).collect();
        taken.sort();
        assert_eq!(taken, sources, "each once");
        sources.iter().for_each(|source| behind.finish(*source));
        assert!(behind.is_empty());
    }
}
