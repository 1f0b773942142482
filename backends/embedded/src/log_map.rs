//! A map from log number to log.
//!
//! Numbers are assigned in ascending order, so logs are stored in pages indexed by number: a lookup needs no
//! hashing, and a fan-out to consecutive logs walks through memory in order.

use tidings_engine::log::{BeforeImages, LogState};
use tidings_model::LogId;

use crate::state::Slot;

const PAGE: usize = 256;

/// All logs of a store.
#[derive(Default)]
pub struct LogMap {
    pages: Vec<Option<Box<Page>>>,
    len: usize,
    /// Logs that have changed since the current snapshot began, as they were then.
    before: BeforeImages<LogId, LogState>,
}

struct Page {
    slots: [Option<Slot>; PAGE],
    used: usize,
}

impl LogMap {
    /// Number of logs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no logs.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Looks up a log.
    pub fn get(&self, log: LogId) -> Option<&Slot> {
        let (page, slot) = place(log)?;
        self.pages.get(page)?.as_ref()?.slots[slot].as_ref()
    }

    /// Looks up a log to change it.
    pub fn get_mut(&mut self, log: LogId) -> Option<&mut Slot> {
        self.keep(log);
        self.records_mut(log)
    }

    /// Looks up a log to change only which records are in memory, which is not part of a snapshot.
    pub fn records_mut(&mut self, log: LogId) -> Option<&mut Slot> {
        let (page, slot) = place(log)?;
        self.pages.get_mut(page)?.as_mut()?.slots[slot].as_mut()
    }

    /// Inserts a log. Ignores numbers that are too large to have been assigned by a store.
    pub fn insert(&mut self, log: LogId, new: Slot) {
        let Some((page, slot)) = place(log) else { return };
        self.keep(log);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let empty = || Box::new(Page { slots: [const { None }; PAGE], used: 0 });
        let page = self.pages[page].get_or_insert_with(empty);
        if page.slots[slot].replace(new).is_none() {
            page.used += 1;
            self.len += 1;
        }
    }

    /// Removes a log.
    pub fn remove(&mut self, log: LogId) -> Option<Slot> {
        let (number, slot) = place(log)?;
        self.keep(log);
        let page = self.pages.get_mut(number)?;
        let slots = page.as_mut()?;
        let removed = slots.slots[slot].take()?;
        slots.used -= 1;
        if slots.used == 0 {
            *page = None;
        }
        self.len -= 1;
        Some(removed)
    }

    /// Iterates over all logs, by number.
    pub fn iter(&self) -> impl Iterator<Item = (LogId, &Slot)> {
        from(&self.pages, 0)
    }

    /// Begins a snapshot of all logs as they are now.
    pub fn begin_snapshot(&mut self) {
        self.before.begin();
    }

    /// Abandons the snapshot, if there is one.
    pub fn end_snapshot(&mut self) {
        self.before.end();
    }

    /// Returns the next logs of the snapshot, by number, or `None` at its end. Visits at most `most` logs.
    pub fn next_rows(&mut self, most: usize) -> Option<Vec<(LogId, LogState)>> {
        let Self { pages, before, .. } = self;
        before.next(most, |after| {
            let first = after.map_or(0, |log| log.get() as usize + 1);
            from(pages, first).map(|(log, slot)| (log, slot.state.clone()))
        })
    }

    fn keep(&mut self, log: LogId) {
        let Self { pages, before, .. } = self;
        before.keep(&log, || {
            let (page, slot) = place(log)?;
            Some(pages.get(page)?.as_ref()?.slots[slot].as_ref()?.state.clone())
        });
    }

    /// Iterates over all logs to change them.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.pages.iter_mut().flatten().flat_map(|page| page.slots.iter_mut().flatten())
    }
}

/// Iterates over logs from a number on.
fn from(pages: &[Option<Box<Page>>], first: usize) -> impl Iterator<Item = (LogId, &Slot)> {
    let pages = pages.iter().enumerate().skip(first / PAGE);
    let pages = pages.filter_map(|(number, page)| Some((number * PAGE, page.as_ref()?)));
    pages.flat_map(move |(start, page)| {
        let slots = page.slots.iter().enumerate().skip(first.saturating_sub(start));
        slots.filter_map(move |(n, slot)| Some((LogId::new((start + n) as u64), slot.as_ref()?)))
    })
}

/// Index of the page and index in the page; `None` for a number that no store assigns.
fn place(log: LogId) -> Option<(usize, usize)> {
    /// Bound of log numbers, about 10^12: more than fit any memory, so that a wrong number cannot exhaust it.
    const MOST: u64 = 1 << 40;
    let number = Some(log.get()).filter(|&number| number < MOST)? as usize;
    Some((number / PAGE, number % PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_come_and_go_and_leave_no_page_behind() {
        let mut map = LogMap::default();
        for number in [1, 255, 256, 100_000] {
            map.insert(LogId::new(number), Slot::new(LogState::default()));
        }
        assert_eq!(map.iter().map(|(log, _)| log.get()).collect::<Vec<_>>(), [1, 255, 256, 100_000]);
        assert!(map.get(LogId::new(2)).is_none() && map.get(LogId::new(u64::MAX)).is_none());
        map.begin_snapshot();
        let mut read = map.next_rows(2).expect("logs");
        map.insert(LogId::new(300), Slot::new(LogState::default()));
        for number in [100_000, 1, 300, 256, 255] {
            assert!(map.remove(LogId::new(number)).is_some());
            assert!(map.remove(LogId::new(number)).is_none());
        }
        assert!(map.is_empty() && map.pages.iter().all(Option::is_none));
        while let Some(rows) = map.next_rows(2) {
            read.extend(rows);
        }
        let read: Vec<u64> = read.into_iter().map(|(log, _)| log.get()).collect();
        assert_eq!(read, [1, 255, 256, 100_000], "the snapshot has those that were there when it began");
    }
}
