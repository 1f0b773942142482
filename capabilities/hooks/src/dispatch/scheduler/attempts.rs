//! Whose turn it is, and what came of attempts.

use tidings_model::{LogId, limits};

use super::{Now, Scheduler, Timer};
use crate::delivery::{Attempt, AttemptOutcome};
use crate::dispatch::attempt::{Ended, Job};
use crate::dispatch::backlog::{self, AttemptEnd};
use crate::dispatch::destinations::{DestinationId, Turn};
use crate::dispatch::outcome::Outcome;
use crate::retry::{JITTER_MS, RetryPolicy};

/// Whether the next hook may have its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Yes,
    No,
}

impl Scheduler {
    /// Begins as many attempts as may begin.
    pub(in crate::dispatch) fn begin(&mut self, now: Now) {
        while self.recording.keeps_up() {
            match self.destinations.turn(now.elapsed) {
                None => break,
                Some(Turn::Later(id, time)) => self.timers.set(Timer::Destination(id), Some(time)),
                Some(Turn::Hook(id, queue)) => {
                    if self.turn(id, queue, now) == Next::No {
                        break;
                    }
                }
            }
        }
        self.means.counters.running.set(self.destinations.running() as i64);
    }

    fn turn(&mut self, id: DestinationId, queue: LogId, now: Now) -> Next {
        let Some(entry) = self.hooks.get_mut(&queue).filter(|entry| entry.in_ring == Some(id)) else {
            return Next::Yes;
        };
        let backlog = &mut entry.backlog;
        let fits =
            |bytes| self.bytes_running == 0 || self.bytes_running + bytes <= limits::HOOK_BYTES_IN_FLIGHT;
        if backlog.next_bytes().is_some_and(|bytes| !fits(bytes)) {
            // It goes first when others have ended, so that smaller ones do not always overtake it.
            self.destinations.enter(id, queue, true);
            return Next::No;
        }
        entry.in_ring = None;
        let moment = self.means.moment(now);
        let before = (backlog.bytes(), backlog.results());
        let read_ahead = self.bytes_waiting < super::WAITING_BYTES;
        match backlog.turn(&moment, read_ahead) {
            backlog::Turn::Begin(loaded) => {
                self.bytes_running += loaded.record.len();
                let is_probe = self.destinations.begin(id, now.elapsed);
                let (life, prepared) = (entry.life, entry.prepared.clone());
                self.commands.jobs.push(Job { queue, life, prepared, loaded, destination: id, is_probe });
            }
            backlog::Turn::Nothing => entry.had_turn = true,
        }
        self.changed(queue, before);
        self.touch(queue, now);
        Next::Yes
    }

    /// An attempt ended.
    pub(in crate::dispatch) fn ended(&mut self, ended: Ended, now: Now) {
        let Ended { job, outcome, took } = ended;
        let Job { queue, life, loaded, destination, is_probe, .. } = job;
        self.bytes_running -= loaded.record.len();
        self.means.counters.ended(&outcome, took);
        if self.destinations.end(destination, &outcome, is_probe, now.elapsed) {
            self.means.counters.opened.count();
        }
        let Some(entry) = self.hooks.get_mut(&queue).filter(|entry| entry.life == life) else { return };
        let moment = self.means.moment(now);
        let backlog = &mut entry.backlog;
        let settings = &backlog.hook().settings;
        let policy = RetryPolicy { max_retries: settings.max_retries, schedule: &settings.retry_schedule };
        let number = loaded.attempts + 1;
        let fate = outcome.fate(number, &policy, self.means.rng.within(0..=JITTER_MS));
        let duration_ms = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        let attempt = |outcome| Some(Attempt { number, at: now.at, duration_ms, outcome });
        let (attempt, error) = match outcome {
            Outcome::Accepted(text) => (attempt(AttemptOutcome::Success(text)), String::new()),
            Outcome::Failed(failure) => {
                (attempt(AttemptOutcome::Failed(failure.error.clone())), failure.error)
            }
            Outcome::NotMade => (None, String::new()),
        };
        let before = (backlog.bytes(), backlog.results());
        backlog.settle(loaded, AttemptEnd { attempt, fate, error }, &moment);
        self.changed(queue, before);
        self.touch(queue, now);
    }
}
