//! What time brings: retries that are due, deliveries that expire, queues that are too long.

use std::time::Duration;

use super::Backlog;
use super::read::{Purpose, Wanted};
use crate::delivery::DeathReason;
use crate::dispatch::moment::{Moment, Rules};

/// Time between two looks for deliveries that have expired, at most: the wall clock may be set.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60 * 60);

impl Backlog {
    /// Looks at what the time and the queue have brought. Returns when to look again.
    pub(in crate::dispatch) fn look(&mut self, moment: &Moment<'_>) -> Option<Duration> {
        while let Some(position) = self.parked.pop_due(moment.elapsed) {
            if self.is_first(position) {
                self.unloaded.push_back(position);
            }
        }
        self.shed(moment);
        self.expire(moment);
        if self.wanted.is_none() {
            self.wanted = match self.laneless.first() {
                Some(first) => Some(Wanted::One(*first, Purpose::Lane)),
                None => (!self.is_known() && self.can_read()).then_some(Wanted::Page),
            };
        }
        let due = self.parked.next_due();
        let tokens = Some(self.tokens_at).filter(|tokens| *tokens > moment.elapsed);
        // Whatever is read is followed by another look.
        let expiry =
            (self.wanted.is_none() && self.reading.is_none() && self.has_work()).then_some(self.expiry_at);
        [due, tokens, expiry].into_iter().flatten().min()
    }

    /// Lets the next look see whether deliveries have expired.
    pub(in crate::dispatch) fn look_for_expired(&mut self, elapsed: Duration) {
        self.expiry_at = self.expiry_at.min(elapsed);
    }

    /// Deliveries that wait beyond those that may.
    pub(super) fn surplus(&self, rules: &Rules) -> u64 {
        let pending = self.queued.saturating_sub(self.finished + self.parked.len() as u64);
        pending.saturating_sub(rules.max_queue)
    }

    /// Gives up the oldest deliveries beyond those that may wait.
    fn shed(&mut self, moment: &Moment<'_>) {
        while self.surplus(moment.rules) > 0 {
            let firsts = [self.fresh.first_key_value(), self.behind.first_key_value()];
            let oldest = firsts.into_iter().flatten().map(|(position, _)| *position).min();
            let Some(loaded) = oldest.and_then(|position| self.take(position)) else {
                if self.wanted.is_none() && self.can_read() {
                    self.wanted = Some(Wanted::Page);
                }
                return;
            };
            self.give_up(&loaded, DeathReason::QueueFull, moment);
        }
    }

    /// Gives up deliveries that have expired, and sees to it that the others are looked at in time. Retries in memory are
    /// left to their turn, which is soon.
    fn expire(&mut self, moment: &Moment<'_>) {
        if moment.elapsed < self.expiry_at || self.reading.is_some() || self.wanted.is_some() {
            return;
        }
        let mut oldest = moment.at;
        loop {
            let firsts = [self.fresh.values().next(), self.behind.values().next()];
            let Some(first) = firsts.into_iter().flatten().min_by_key(|loaded| loaded.position) else {
                break;
            };
            let (position, at) = (first.position, first.at);
            if !moment.has_expired(at) {
                oldest = at;
                break;
            }
            if let Some(loaded) = self.take(position) {
                self.give_up(&loaded, DeathReason::Expired, moment);
            }
        }
        if let Some(parked) = self.parked.oldest().filter(|parked| !parked.is_running) {
            match parked.at {
                Some(at) if !moment.has_expired(at) => oldest = oldest.min(at),
                _ => self.wanted = Some(Wanted::One(parked.position, Purpose::Age)),
            }
        }
        let nothing_read = self.fresh.is_empty() && self.behind.is_empty();
        if self.wanted.is_none() && nothing_read && self.can_read() {
            self.wanted = Some(Wanted::Page);
        }
        if self.wanted.is_none() {
            let left = moment.rules.retention.saturating_sub(moment.at.since(oldest));
            self.expiry_at = moment.elapsed + left.clamp(Duration::from_millis(1), EXPIRY_INTERVAL);
        }
    }
}
