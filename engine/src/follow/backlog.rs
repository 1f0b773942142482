//! Set of sources that may have records to deliver, with the state of each.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use tidings_model::LogId;
use tokio::sync::Notify;

/// Sources that may have records to deliver, each at most once. They are taken in FIFO order, and a source that is
/// taken cannot be taken again until it is given back.
#[derive(Default)]
pub(super) struct Backlog {
    sources: Mutex<Sources>,
    more: Notify,
}

#[derive(Default)]
struct Sources {
    /// Waiting sources, the next one first.
    order: VecDeque<LogId>,
    known: HashMap<LogId, SourceState>,
}

/// State of a source that may have records to deliver.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SourceState {
    /// The source is queued.
    Waiting,
    /// The source was taken.
    Taken,
    /// The source was taken and notified again since.
    TakenAndMore,
    /// The source failed and is not queued until its retry is due.
    Resting,
}

impl Sources {
    fn wait(&mut self, source: LogId) {
        self.known.insert(source, SourceState::Waiting);
        self.order.push_back(source);
    }
}

impl Backlog {
    /// Adds a source that may have records to deliver. Does nothing if it is queued or waits for its retry.
    pub(super) fn add(&self, source: LogId) {
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

    /// Takes the next source. The caller must report the outcome with `finish`, `put_back` or `rest`.
    pub(super) fn take(&self) -> Option<LogId> {
        let mut sources = self.sources();
        let source = sources.order.pop_front()?;
        sources.known.insert(source, SourceState::Taken);
        Some(source)
    }

    /// Removes a taken source that has nothing left to deliver. It is queued again if it was notified since.
    pub(super) fn finish(&self, source: LogId) {
        let mut sources = self.sources();
        match sources.known.remove(&source) {
            Some(SourceState::TakenAndMore) => sources.wait(source),
            Some(SourceState::Taken | SourceState::Waiting | SourceState::Resting) | None => {}
        }
    }

    /// Queues a source that was taken or waited for its retry.
    pub(super) fn put_back(&self, source: LogId) {
        self.sources().wait(source);
    }

    /// Takes a source out of the queue until it is put back. It must have been taken.
    pub(super) fn rest(&self, source: LogId) {
        self.sources().known.insert(source, SourceState::Resting);
    }

    /// Queues all sources that are taken or wait for a retry, because the run that took them was dropped.
    pub(super) fn put_all_back(&self) {
        let mut sources = self.sources();
        let left: Vec<LogId> = sources
            .known
            .iter()
            .filter(|(_, state)| **state != SourceState::Waiting)
            .map(|(source, _)| *source)
            .collect();
        left.into_iter().for_each(|source| sources.wait(source));
    }

    /// Resolves when a source was added since the last call resolved.
    pub(super) async fn more(&self) {
        self.more.notified().await;
    }

    /// Whether no source may have records to deliver.
    pub(super) fn is_empty(&self) -> bool {
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
        let backlog = Backlog::default();
        for source in [A, B, A] {
            backlog.add(source);
        }
        assert_eq!([backlog.take(), backlog.take(), backlog.take()], [Some(A), Some(B), None]);
        backlog.add(A);
        assert_eq!(backlog.take(), None, "somebody has it");
        backlog.finish(B);
        backlog.finish(A);
        assert_eq!(backlog.take(), Some(A), "it has got more meanwhile");
        backlog.finish(A);
        assert!(backlog.is_empty());
    }

    #[test]
    fn one_that_rests_is_not_taken_and_not_forgotten() {
        let backlog = Backlog::default();
        backlog.add(A);
        backlog.take();
        backlog.rest(A);
        backlog.add(A);
        assert_eq!(backlog.take(), None);
        assert!(!backlog.is_empty());
        backlog.put_back(A);
        assert_eq!([backlog.take(), backlog.take()], [Some(A), None]);
    }

    #[test]
    fn what_was_taken_or_rests_is_put_back_once_when_whoever_took_it_has_gone() {
        let backlog = Backlog::default();
        let sources: Vec<_> = (1..=4).map(LogId::new).collect();
        sources.iter().for_each(|source| backlog.add(*source));
        for source in &sources[..3] {
            assert_eq!(backlog.take(), Some(*source));
        }
        backlog.add(sources[1]);
        backlog.rest(sources[2]);
        backlog.put_all_back();
        let mut taken: Vec<_> = std::iter::from_fn(|| backlog.take()).collect();
        taken.sort();
        assert_eq!(taken, sources, "each once");
        sources.iter().for_each(|source| backlog.finish(*source));
        assert!(backlog.is_empty());
    }
}
