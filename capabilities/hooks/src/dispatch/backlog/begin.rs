//! Which delivery of a hook begins next.

use std::collections::BTreeSet;

use tidings_model::Position;

use super::Backlog;
use super::read::{Purpose, Wanted};
use crate::delivery::DeathReason;
use crate::dispatch::attempt::Loaded;
use crate::dispatch::moment::Moment;

/// What a hook does with its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Turn {
    /// It begins an attempt.
    Begin(Loaded),
    /// It begins nothing now.
    Nothing,
}

impl Backlog {
    /// Whether an attempt could begin, now or once something was read, as far as this hook is concerned.
    pub(in crate::dispatch) fn is_ready(&self, moment: &Moment<'_>) -> bool {
        if !self.may_begin() || self.tokens_at > moment.elapsed {
            return false;
        }
        let loadable = !self.unloaded.is_empty() || self.can_read() && self.may_begin_fresh();
        self.next().is_some() || loadable && self.reading.is_none()
    }

    /// Begins an attempt. If the next event is not in memory, it is wanted instead. Reads ahead if it may.
    pub(in crate::dispatch) fn turn(&mut self, moment: &Moment<'_>, read_ahead: bool) -> Turn {
        while self.may_begin() {
            let Some(next) = self.next() else {
                self.want_next();
                break;
            };
            let (position, at) = (next.position, next.at);
            if moment.has_expired(at) {
                let loaded = self.take(position).expect("it is in memory");
                self.give_up(&loaded, DeathReason::Expired, moment);
                continue;
            }
            if !self.is_first(position) {
                self.fall_behind(position);
                continue;
            }
            if let Some(bucket) = &mut self.bucket
                && let Err(later) = bucket.take(moment.elapsed)
            {
                self.tokens_at = later;
                break;
            }
            let loaded = self.take(position).expect("it is in memory");
            self.begin(&loaded);
            if read_ahead {
                self.read_ahead();
            }
            return Turn::Begin(loaded);
        }
        Turn::Nothing
    }

    /// Bytes of the event that would begin next, if it is in memory.
    pub(in crate::dispatch) fn next_bytes(&self) -> Option<usize> {
        self.next().map(|loaded| loaded.record.len())
    }

    /// Takes the events that wait out of memory. They are read again when they are needed.
    pub(in crate::dispatch) fn unload(&mut self) {
        self.bytes = 0;
        for loaded in self.retries.drain(..).rev() {
            self.unloaded.push_front(loaded.position);
        }
        let unread: BTreeSet<Position> = self.window.unread().into_iter().collect();
        self.fresh.retain(|position, _| !unread.contains(position));
        self.unloaded.retain(|position| !unread.contains(position));
        // What is left lies before deliveries that have begun.
        self.unloaded.extend(std::mem::take(&mut self.fresh).into_keys());
        self.behind.clear();
    }

    fn may_begin(&self) -> bool {
        self.hook.is_active()
            && !self.is_stopped
            && self.running < self.hook.settings.concurrency.max(1) as usize
            && self.laneless.is_empty()
            && self.is_known()
    }

    /// The delivery in memory that begins next: fresh ones and retries in turn.
    fn next(&self) -> Option<&Loaded> {
        let fresh = self.fresh.first_key_value().map(|(_, loaded)| loaded).filter(|_| self.may_begin_fresh());
        let retry = self.retries.front();
        if self.retry_first { retry.or(fresh) } else { fresh.or(retry) }
    }

    fn begin(&mut self, loaded: &Loaded) {
        self.running += 1;
        self.retry_first = loaded.attempts == 0;
        if loaded.attempts == 0 {
            self.window.begin(loaded.position);
        } else {
            self.parked.begin(loaded.position);
        }
    }

    /// Takes a delivery out of memory.
    pub(super) fn take(&mut self, position: Position) -> Option<Loaded> {
        let loaded = match self.fresh.remove(&position) {
            Some(loaded) => loaded,
            None if self.retries.front().is_some_and(|retry| retry.position == position) => {
                self.retries.pop_front()?
            }
            None => self.behind.remove(&position)?,
        };
        self.bytes -= loaded.record.len();
        Some(loaded)
    }

    /// Lets a delivery wait for an earlier one that was found since.
    fn fall_behind(&mut self, position: Position) {
        let Some(loaded) = self.take(position) else { return };
        if loaded.attempts == 0 {
            self.bytes += loaded.record.len();
            self.behind.insert(position, loaded);
        }
        // A retry is read again when it is the first.
    }

    /// Wants what would begin next.
    fn want_next(&mut self) {
        if self.wanted.is_none() {
            self.wanted = match self.unloaded.pop_front() {
                Some(position) => Some(Wanted::One(position, Purpose::Begin)),
                None => (self.can_read() && self.may_begin_fresh()).then_some(Wanted::Page),
            };
        }
    }

    /// Wants what will begin soon, of the kind of which there is little in memory.
    fn read_ahead(&mut self) {
        if self.wanted.is_some() {
            return;
        }
        let few = self.fresh.len() + self.behind.len() < self.page_records() / 2;
        if self.retries.is_empty() && !self.unloaded.is_empty() {
            self.want_next();
        } else if few && self.can_read() && self.may_begin_fresh() {
            self.wanted = Some(Wanted::Page);
        }
    }
}
