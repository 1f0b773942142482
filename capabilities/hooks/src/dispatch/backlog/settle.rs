//! What came of the deliveries of a hook.

use tidings_model::Position;

use super::Backlog;
use crate::delivery::{Attempt, DeadLetter, DeathReason};
use crate::dispatch::attempt::Loaded;
use crate::dispatch::moment::Moment;
use crate::dispatch::outcome::Fate;
use crate::dispatch::results::{End, Finished};
use crate::dispatch::window::Window;
use crate::event::Event;
use crate::table;

/// The end of an attempt.
#[derive(Clone, Debug)]
pub(in crate::dispatch) struct AttemptEnd {
    /// The attempt, for the delivery log. `None` if it was not made.
    pub(in crate::dispatch) attempt: Option<Attempt>,
    /// What becomes of the delivery.
    pub(in crate::dispatch) fate: Fate,
    /// Error of the attempt. Empty if it succeeded.
    pub(in crate::dispatch) error: String,
}

impl Backlog {
    /// An attempt ended.
    pub(in crate::dispatch) fn settle(&mut self, loaded: Loaded, end: AttemptEnd, moment: &Moment<'_>) {
        self.running -= 1;
        let AttemptEnd { attempt, fate, error } = end;
        let (position, was_parked) = (loaded.position, loaded.attempts > 0);
        match fate {
            Fate::Unchanged => self.put_back(loaded),
            Fate::Delivered => {
                self.finish(position);
                self.results.push(Finished { position, was_parked, attempt, end: End::Delivered });
            }
            Fate::Retried(delay) => {
                let attempts = loaded.attempts + 1;
                let delay_ms = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX);
                let parked = table::Parked { attempts, due: moment.at + delay, delay_ms };
                self.window.settle(position);
                self.parked.park(position, attempts, moment.elapsed + delay, loaded.at);
                self.results.push(Finished { position, was_parked, attempt, end: End::Parked(parked) });
            }
            Fate::Dead(reason) => {
                self.is_stopped |= reason == DeathReason::EndpointGone;
                self.bury(&loaded, attempt, reason, error, moment);
            }
        }
    }

    /// What came of deliveries, up to `most` of them, to be recorded. Without those that were given up unless they are
    /// asked for.
    pub(in crate::dispatch) fn take_results(&mut self, most: usize, with_dead: bool) -> Vec<Finished> {
        let mut taken = std::mem::take(&mut self.results);
        if !with_dead {
            let is_dead = |result: &Finished| matches!(result.end, End::Dead { .. });
            (self.results, taken) = taken.into_iter().partition(is_dead);
        }
        if taken.len() > most {
            let rest = taken.split_off(most);
            // All that came of one delivery stays in its order: the dead are its last.
            self.results.splice(..0, rest);
        }
        self.recording += taken.len();
        taken
    }

    /// What was taken could not be recorded.
    pub(in crate::dispatch) fn not_recorded(&mut self, mut results: Vec<Finished>) {
        self.recording -= results.len();
        self.window.not_recorded();
        results.append(&mut self.results);
        self.results = results;
    }

    /// What was taken is recorded.
    pub(in crate::dispatch) fn recorded(&mut self, count: usize) {
        self.recording -= count;
        self.window.recorded();
    }

    /// The window of deliveries, to record what was taken.
    pub(in crate::dispatch) fn window(&mut self) -> &mut Window {
        &mut self.window
    }

    /// Results that are not recorded, apart from those that are being recorded.
    pub(in crate::dispatch) fn results(&self) -> usize {
        self.results.len()
    }

    /// Gives up a delivery without an attempt.
    pub(super) fn give_up(&mut self, loaded: &Loaded, reason: DeathReason, moment: &Moment<'_>) {
        self.bury(loaded, None, reason, String::new(), moment);
    }

    fn bury(
        &mut self,
        loaded: &Loaded,
        attempt: Option<Attempt>,
        reason: DeathReason,
        last_error: String,
        moment: &Moment<'_>,
    ) {
        let position = loaded.position;
        let was_parked = self.parked.attempts(position).is_some();
        self.finish(position);
        let letter =
            Box::new(DeadLetter { id: (moment.fresh_id)(), position, reason, last_error, at: moment.at });
        let about = Event::from_record(&loaded.record).and_then(|event| event.about);
        let end = End::Dead { letter, is_notice: about.is_some() };
        self.results.push(Finished { position, was_parked, attempt, end });
    }

    /// A delivery is finished: the next one of its lane may begin.
    fn finish(&mut self, position: Position) {
        self.finished += 1;
        if !self.parked.remove(position) {
            self.window.settle(position);
        }
        let Some(next) = self.lanes.as_mut().and_then(|lanes| lanes.leave(position)) else { return };
        if self.fresh.contains_key(&next) {
            // It was read before the lane of the one that has left was known.
            return;
        }
        let waits_unread = || self.parked.attempts(next).is_none() && next <= self.window.read();
        if let Some(loaded) = self.behind.remove(&next) {
            self.fresh.insert(next, loaded);
        } else if self.parked.is_due(next) || waits_unread() {
            self.unloaded.push_back(next);
        }
    }

    fn put_back(&mut self, loaded: Loaded) {
        if let Some(bucket) = &mut self.bucket {
            bucket.put_back();
        }
        self.bytes += loaded.record.len();
        if loaded.attempts == 0 {
            self.window.put_back(loaded.position);
            self.fresh.insert(loaded.position, loaded);
        } else {
            self.parked.put_back(loaded.position);
            self.retries.push_front(loaded);
        }
    }
}
