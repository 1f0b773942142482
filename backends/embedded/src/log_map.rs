//! Logs by their numbers. Numbers count up, so they lie in pages, side by side: finding one takes no hashing, and going
//! through neighbours, as a fan-out does, goes through memory in order.

use tidings_model::LogId;

use crate::state::Slot;

const PAGE: usize = 256;

/// All logs of a store.
#[derive(Default)]
pub struct LogMap {
    pages: Vec<Option<Box<Page>>>,
    len: usize,
}

struct Page {
    slots: [Option<Slot>; PAGE],
    used: usize,
}

impl LogMap {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The log of that number.
    pub fn get(&self, log: LogId) -> Option<&Slot> {
        let (page, slot) = place(log)?;
        self.pages.get(page)?.as_ref()?.slots[slot].as_ref()
    }

    /// The log of that number, to be changed.
    pub fn get_mut(&mut self, log: LogId) -> Option<&mut Slot> {
        let (page, slot) = place(log)?;
        self.pages.get_mut(page)?.as_mut()?.slots[slot].as_mut()
    }

    /// Puts a log in its place. A number that no memory could hold is not one that a store gave out.
    pub fn insert(&mut self, log: LogId, new: Slot) {
        let Some((page, slot)) = place(log) else { return };
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

    /// Takes a log out.
    pub fn remove(&mut self, log: LogId) -> Option<Slot> {
        let (number, slot) = place(log)?;
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

    /// All logs, by number.
    pub fn iter(&self) -> impl Iterator<Item = (LogId, &Slot)> {
        let pages = self.pages.iter().enumerate().filter_map(|(number, page)| Some((number, page.as_ref()?)));
        pages.flat_map(|(number, page)| {
            let slots = page.slots.iter().enumerate();
            slots.filter_map(move |(n, slot)| Some((LogId::new((number * PAGE + n) as u64), slot.as_ref()?)))
        })
    }

    /// All logs, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.pages.iter_mut().flatten().flat_map(|page| page.slots.iter_mut().flatten())
    }
}

/// Page and place in it, for a number that could have been given out.
fn place(log: LogId) -> Option<(usize, usize)> {
    /// A million million logs: more than any memory holds, so that a wrong number cannot take it all.
    const MOST: u64 = 1 << 40;
    let number = Some(log.get()).filter(|&number| number < MOST)? as usize;
    Some((number / PAGE, number % PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::LogState;

    #[test]
    fn logs_come_and_go_and_leave_no_page_behind() {
        let mut map = LogMap::default();
        for number in [1, 255, 256, 100_000] {
            map.insert(LogId::new(number), Slot::new(LogState::default()));
        }
        assert_eq!(map.iter().map(|(log, _)| log.get()).collect::<Vec<_>>(), [1, 255, 256, 100_000]);
        assert!(map.get(LogId::new(2)).is_none() && map.get(LogId::new(u64::MAX)).is_none());
        for number in [100_000, 1, 256, 255] {
            assert!(map.remove(LogId::new(number)).is_some());
            assert!(map.remove(LogId::new(number)).is_none());
        }
        assert!(map.is_empty() && map.pages.iter().all(Option::is_none));
    }
}
