//! What is known of hooks, and for how long.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::log::{Page, ReadError, StoreError};
use tidings_model::LogId;

use super::{Entry, Finding, Forgotten, Now, RESTING, Read, Scheduler, Timer, WAITING_BYTES};
use crate::dispatch::attempt::Prepared;
use crate::dispatch::backlog::{Backlog, Want};
use crate::dispatch::destinations::Place;
use crate::dispatch::sender::Route;
use crate::store::Found;

/// Time after which something is read again that could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl Scheduler {
    /// The deliveries of a queue may have changed.
    pub(in crate::dispatch) fn notified(&mut self, queue: LogId) {
        match self.finding.get_mut(&queue) {
            Some(finding @ Finding::Once) => *finding = Finding::Again,
            Some(Finding::Again | Finding::Stale) => {}
            None => {
                self.finding.insert(queue, Finding::Once);
                self.commands.finds.push(queue);
            }
        }
    }

    /// A hook was looked up by its queue.
    pub(in crate::dispatch) fn found(
        &mut self,
        queue: LogId,
        found: Result<Option<Found>, StoreError>,
        now: Now,
    ) {
        let finding = self.finding.remove(&queue).unwrap_or(Finding::Once);
        if finding != Finding::Once {
            self.notified(queue);
        }
        match found {
            _ if finding == Finding::Stale => {}
            Ok(Some(found)) => self.known(&found, now),
            Ok(None) => self.remove(queue),
            Err(error) => {
                tracing::warn!(%queue, %error, "cannot look up a hook");
                self.timers.set(Timer::Find(queue), Some(now.elapsed + READ_AGAIN));
            }
        }
        self.touch(queue, now);
    }

    /// A hook was removed: nothing of it will be recorded from now on, except what is being recorded.
    pub(in crate::dispatch) fn forget(&mut self, forgotten: Forgotten) {
        let queue = forgotten.queue;
        self.remove(queue);
        if let Some(finding) = self.finding.get_mut(&queue) {
            *finding = Finding::Stale;
        }
        self.recording.forget(forgotten);
    }

    /// What was to be read was read, or could not be.
    pub(in crate::dispatch) fn read(&mut self, read: Read, page: Result<Page, ReadError>, now: Now) {
        let Read { queue, life, want } = read;
        let Some(entry) = self.hooks.get_mut(&queue).filter(|entry| entry.life == life) else { return };
        let backlog = &mut entry.backlog;
        let moment = self.means.moment(now);
        let before = (backlog.bytes(), backlog.results());
        match (want, page) {
            (Want::Page { after, .. }, Ok(page)) => {
                backlog.read_page(after, page.records, page.status, &moment);
            }
            (Want::One(position, purpose), Ok(page)) => {
                let record = page.records.into_iter().next().filter(|record| record.position == position);
                backlog.read_one(position, purpose, record, &moment);
            }
            (Want::Page { .. }, Err(ReadError::Trimmed { floor, .. })) => backlog.trimmed(floor),
            (Want::One(position, purpose), Err(ReadError::Trimmed { .. })) => {
                backlog.read_one(position, purpose, None, &moment);
            }
            (_, Err(error)) => {
                backlog.not_read();
                entry.read_after = now.elapsed + READ_AGAIN;
                if !matches!(error, ReadError::NoSuchLog(_)) {
                    tracing::warn!(%queue, %error, "cannot read the deliveries of a hook");
                }
                // It may have been removed.
                self.notified(queue);
            }
        }
        self.changed(queue, before);
        self.touch(queue, now);
        self.unload();
    }

    /// Looks at a hook again: what it wants to read, whether it has its place in the ring, what is to be recorded, and when
    /// to look again.
    pub(super) fn touch(&mut self, queue: LogId, now: Now) {
        let Some(entry) = self.hooks.get_mut(&queue) else { return };
        let moment = self.means.moment(now);
        let backlog = &mut entry.backlog;
        let before = (backlog.bytes(), backlog.results());
        let mut wakes_at = backlog.look(&moment);
        if entry.read_after > now.elapsed {
            wakes_at = Some(entry.read_after);
        } else {
            let read = backlog.take_want().map(|want| Read { queue, life: entry.life, want });
            self.commands.reads.extend(read);
            if entry.in_ring.is_none() && backlog.is_ready(&moment) {
                let front = std::mem::take(&mut entry.had_turn);
                entry.in_ring = Some(entry.destination);
                self.destinations.enter(entry.destination, queue, front);
            }
        }
        let is_done = !backlog.has_work();
        if is_done {
            wakes_at = Some(backlog.rested_at(now.elapsed)).filter(|rested| *rested > now.elapsed);
        }
        match is_done && wakes_at.is_none() {
            false => entry.rest = None,
            true if entry.rest.is_some() => {}
            true => {
                self.rests += 1;
                entry.rest = Some(self.rests);
                self.resting.push_back((queue, self.rests));
            }
        }
        let is_replaced = entry.is_outdated && backlog.is_quiet();
        self.timers.set(Timer::Hook(queue), wakes_at);
        self.changed(queue, before);
        if is_replaced {
            self.remove(queue);
            self.notified(queue);
        }
        self.let_go();
    }

    /// Takes account of what changed in a hook's backlog: bytes in memory, and results.
    pub(super) fn changed(&mut self, queue: LogId, (bytes, results): (usize, usize)) {
        let Some(entry) = self.hooks.get_mut(&queue) else { return };
        let backlog = &entry.backlog;
        self.recording.grown(backlog.results(), results);
        if backlog.is_dirty() && !std::mem::replace(&mut entry.is_dirty, true) {
            self.recording.dirty.push_back(queue);
        }
        self.bytes_waiting = self.bytes_waiting + backlog.bytes() - bytes;
        if backlog.bytes() > 0 && !std::mem::replace(&mut entry.is_holder, true) {
            self.holders.push_back(queue);
            self.forget_holders();
        }
    }

    /// Takes over what is known of a hook.
    fn known(&mut self, found: &Found, now: Now) {
        let queue = found.queue;
        if !self.hooks.contains_key(&queue) {
            if found.has_work() {
                self.enter(found, now);
            }
            return;
        }
        let moment = self.means.moment(now);
        let Some(entry) = self.hooks.get_mut(&queue) else { return };
        let is_same = Arc::ptr_eq(entry.backlog.hook(), &found.hook);
        if !entry.backlog.refresh(found, &moment) {
            entry.is_outdated = true;
            entry.backlog.stop();
        }
        // A name may have been bound to a handler since.
        if !is_same || found.hook.settings.worker_binding.is_some() {
            let prepared = Prepared::new(found.hook.clone(), &*self.means.sender);
            let destination = self.destinations.join(place(queue, &prepared.route));
            self.destinations.leave(entry.destination);
            if destination != entry.destination {
                entry.in_ring = None;
            }
            entry.destination = destination;
            entry.prepared = Arc::new(prepared);
        }
        entry.backlog.look_for_expired(now.elapsed);
    }

    fn enter(&mut self, found: &Found, now: Now) {
        let moment = self.means.moment(now);
        let prepared = Prepared::new(found.hook.clone(), &*self.means.sender);
        self.lives += 1;
        let entry = Entry {
            backlog: Backlog::new(found, &moment),
            destination: self.destinations.join(place(found.queue, &prepared.route)),
            prepared: Arc::new(prepared),
            life: self.lives,
            in_ring: None,
            had_turn: false,
            is_outdated: false,
            read_after: Duration::ZERO,
            is_holder: false,
            rest: None,
            is_dirty: false,
        };
        self.hooks.insert(found.queue, entry);
    }

    /// Forgets the state of a hook.
    fn remove(&mut self, queue: LogId) {
        let Some(entry) = self.hooks.remove(&queue) else { return };
        self.timers.set(Timer::Hook(queue), None);
        self.destinations.leave(entry.destination);
        self.bytes_waiting -= entry.backlog.bytes();
        self.recording.grown(0, entry.backlog.results());
    }

    /// Takes events out of memory if they are too many, those first that wait the longest.
    fn unload(&mut self) {
        while self.bytes_waiting > WAITING_BYTES && self.holders.len() > 1 {
            let Some(queue) = self.holders.pop_front() else { return };
            let Some(entry) = self.hooks.get_mut(&queue) else { continue };
            entry.is_holder = false;
            self.bytes_waiting -= entry.backlog.bytes();
            entry.backlog.unload();
        }
    }

    /// Keeps the list of hooks with events in memory from growing by those that have none any more.
    fn forget_holders(&mut self) {
        if self.holders.len() <= 2 * self.hooks.len() + RESTING {
            return;
        }
        let hooks = &mut self.hooks;
        self.holders.retain(|queue| {
            let Some(entry) = hooks.get_mut(queue) else { return false };
            entry.is_holder = entry.backlog.bytes() > 0;
            entry.is_holder
        });
    }

    /// Lets go of hooks without work if they are too many, those first that have had none the longest.
    fn let_go(&mut self) {
        while self.resting.len() > RESTING {
            let Some((queue, rest)) = self.resting.pop_front() else { return };
            if self.hooks.get(&queue).is_some_and(|entry| entry.rest == Some(rest)) {
                self.remove(queue);
            }
        }
    }
}

/// What makes two hooks share a destination.
fn place(queue: LogId, route: &Route) -> Place {
    match route {
        Route::Endpoint(target) => Place::Endpoint(target.destination().clone()),
        Route::Handler { name, .. } => Place::Handler(name.clone()),
        Route::Nowhere(_) => Place::Nowhere(queue),
    }
}
