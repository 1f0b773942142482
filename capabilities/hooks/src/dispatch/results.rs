//! What came of deliveries, and how it is recorded: many results of many hooks in one commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tidings_engine::log::Commit;
use tidings_model::{LogId, Position, Timestamp};

use super::window::Window;
use crate::Change;
use crate::delivery::{Attempt, AttemptOutcome, DeadLetter, DeathReason};
use crate::hook::Hook;
use crate::journal::Notice;
use crate::rows::{attempts, dead_letters};
use crate::table::{self, Settled};

/// What came of a delivery.
#[derive(Clone, Debug)]
pub(super) struct Finished {
    /// Position of the delivery.
    pub(super) position: Position,
    /// Whether it waited for a retry before.
    pub(super) was_parked: bool,
    /// The attempt, for the delivery log. `None` if it was given up without one.
    pub(super) attempt: Option<Attempt>,
    /// What became of it.
    pub(super) end: End,
}

/// What became of a delivery.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// It was accepted.
    Delivered,
    /// It waits for a retry.
    Parked(table::Parked),
    /// It was given up.
    Dead {
        /// The dead letter.
        letter: Box<DeadLetter>,
        /// Whether its event is a notice. Its end raises none.
        is_notice: bool,
    },
}

/// Results to be recorded in one commit.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The results of each hook.
    pub(super) parts: Vec<Part>,
    /// What is left out of the commit.
    pub(super) leave_out: LeaveOut,
}

/// Results of one hook.
#[derive(Debug)]
pub(super) struct Part {
    /// Queue of the hook.
    pub(super) queue: LogId,
    /// Tells one life of the hook's state in memory from the next.
    pub(super) life: u64,
    /// The hook.
    pub(super) hook: Arc<Hook>,
    /// The results.
    pub(super) results: Vec<Finished>,
    /// How they change the state of the hook's deliveries.
    pub(super) settled: Settled,
}

/// What is left out of a commit so that it can be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaveOut {
    /// Attempts, dead letters and notices, for which there is no space.
    pub(super) rows: bool,
    /// Notices, which could not be appended.
    pub(super) notices: bool,
}

impl Batch {
    /// Number of results.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.results.len()).sum()
    }

    /// The commit. Deactivations are not in it, because they depend on the state of the store.
    pub(super) fn commit(&self) -> Commit<Change> {
        let mut commit = Commit::new();
        for part in &self.parts {
            let Part { queue, settled, .. } = part;
            commit.changes.push(Change::Settle { queue: *queue, settled: settled.clone() });
            if !self.leave_out.rows {
                part.rows(&mut commit);
            }
        }
        commit
    }

    /// What other hooks may hear of.
    pub(super) fn notices(&self) -> Vec<Notice> {
        match self.leave_out {
            LeaveOut { rows: false, notices: false } => self.parts.iter().flat_map(Part::notices).collect(),
            _ => Vec::new(),
        }
    }
}

impl Part {
    pub(super) fn new(
        (queue, life): (LogId, u64),
        hook: Arc<Hook>,
        results: Vec<Finished>,
        window: &mut Window,
    ) -> Self {
        let settled = settled(&results, window);
        Self { queue, life, hook, results, settled }
    }

    /// Bytes of rows, about.
    pub(super) fn bytes(&self) -> usize {
        const RESULT: usize = 128;
        let attempts = self.results.iter().filter_map(|result| result.attempt.as_ref());
        let texts = attempts.map(|attempt| match &attempt.outcome {
            AttemptOutcome::Success(text) | AttemptOutcome::Failed(text) => text.len(),
        });
        let errors = self.dead().map(|(letter, _)| letter.last_error.len());
        RESULT * self.results.len() + texts.chain(errors).sum::<usize>()
    }

    /// When the endpoint said that it is gone, if it did.
    pub(super) fn gone(&self) -> Option<Timestamp> {
        self.dead()
            .find(|(letter, _)| letter.reason == DeathReason::EndpointGone)
            .map(|(letter, _)| letter.at)
    }

    fn dead(&self) -> impl Iterator<Item = (&DeadLetter, bool)> {
        self.results.iter().filter_map(|result| match &result.end {
            End::Dead { letter, is_notice } => Some((&**letter, *is_notice)),
            End::Delivered | End::Parked(_) => None,
        })
    }

    fn rows(&self, commit: &mut Commit<Change>) {
        for result in &self.results {
            let id = self.hook.delivery(self.queue, result.position);
            commit.rows.extend(result.attempt.as_ref().map(|attempt| attempts::put(id, attempt)));
            if matches!(result.end, End::Dead { .. }) {
                commit.rows.push(attempts::put_given_up(id));
            }
        }
        commit.rows.extend(self.dead().map(|(letter, _)| dead_letters::put(self.queue, letter)));
    }

    /// At most one notice of each kind: it tells how many deliveries were given up, and about the last of them.
    fn notices(&self) -> Vec<Notice> {
        let dead: Vec<&DeadLetter> =
            self.dead().filter(|(_, is_notice)| !is_notice).map(|(letter, _)| letter).collect();
        let Some(last) = dead.last() else { return Vec::new() };
        let gone = dead.iter().find(|letter| letter.reason == DeathReason::EndpointGone);
        let notice = |kind, letter: &DeadLetter, count: Option<usize>| {
            let delivery = self.hook.delivery(self.queue, letter.position);
            let mut details = Map::new();
            details.insert("deliveryId".into(), delivery.to_string().into());
            details.insert("deadLetterId".into(), letter.id.to_string().into());
            details.insert("reason".into(), letter.reason.as_str().into());
            if !letter.last_error.is_empty() {
                details.insert("lastError".into(), letter.last_error.clone().into());
            }
            if let Some(count) = count {
                details.insert("count".into(), Value::from(count));
            }
            Notice { kind, hook: self.hook.clone(), queue: self.queue, details }
        };
        let disabled = gone.map(|letter| notice("endpoint.disabled", letter, None));
        disabled.into_iter().chain([notice("delivery.dead", last, Some(dead.len()))]).collect()
    }
}

/// How results change the state of a hook's deliveries. The window begins to record them.
fn settled(results: &[Finished], window: &mut Window) -> Settled {
    let (done, above) = window.record(results.iter().map(|result| result.position));
    let mut settled = Settled { done, above, ..Settled::default() };
    // The last thing that came of a delivery counts.
    let mut parked: BTreeMap<Position, Option<table::Parked>> = BTreeMap::new();
    for Finished { position, was_parked, attempt, end } in results {
        settled.attempts += u64::from(attempt.is_some());
        let waits = match end {
            End::Parked(parked) => Some(*parked),
            End::Delivered => {
                settled.delivered += 1;
                None
            }
            End::Dead { .. } => {
                settled.dead += 1;
                None
            }
        };
        if *was_parked || waits.is_some() {
            parked.insert(*position, waits);
        }
    }
    for (position, waits) in parked {
        match waits {
            Some(parked) => settled.parked.push((position, parked)),
            None => settled.unparked.push(position),
        }
    }
    settled
}

#[cfg(test)]
#[path = "results/tests.rs"]
mod tests;
