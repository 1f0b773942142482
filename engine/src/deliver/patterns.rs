//! Patterns on names: a bundle that subscribes to one receives what is published under every name that it matches.
//!
//! Each pattern has one ring, whatever names there are, and a frame is pushed into the ring of its name and into those of
//! the patterns that match. A bundle may be in several of them. It receives the frame from the first pattern that it has,
//! in the order of their numbers, and from the ring of the name if it has none ([`Route`]).
//!
//! Invariant: while a bundle subscribes to a pattern or ends that, nothing is published that patterns match, and all that
//! the bundle has not taken moves out of the rings, in front of what follows. So the frames of a name that it has not taken
//! are in one ring, and none is lost or doubled.

use std::cell::RefCell;
use std::sync::Arc;

use std::collections::HashMap;

use tidings_model::{Pattern, limits};

use super::FrameChunks;
use super::bundle::{Bundle, Shared};
use super::published::{Copies, Route};
use super::pump::{Queue, Work};
use super::ring::Ring;
use super::rings::Rings;
use super::sync::{AtomicUsize, Ordering, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::matching::Matcher;

/// The patterns on some names. Clones share them. What is published through it reaches the members of patterns too.
#[derive(Clone)]
pub struct Patterns(Arc<Inner>);

struct Inner {
    rings: Rings,
    /// Number of patterns, to be read without a lock.
    count: AtomicUsize,
    table: RwLock<Table>,
    matcher: Matcher<u64>,
    queue: Queue,
}

/// The rings of patterns that have members.
#[derive(Default)]
pub(super) struct Table {
    by_text: HashMap<Arc<str>, Arc<Ring>>,
    by_number: HashMap<u64, Arc<Ring>>,
}

/// A pattern that is not subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The client is gone, or too slow.
    #[error("the bundle is closed")]
    Closed,
    /// Together with the others it would make publishing too expensive.
    #[error("there are too many patterns that one name can match")]
    TooComplex,
}

thread_local! {
    static KEYS: RefCell<Vec<u64>> = RefCell::default();
}

impl Patterns {
    pub(super) fn new(rings: Rings) -> Self {
        let (_, queue) = rings.numbered();
        let matcher = Matcher::for_names_of(limits::TOPIC_SEGMENTS);
        Self(Arc::new(Inner { rings, count: AtomicUsize::new(0), table: RwLock::default(), matcher, queue }))
    }

    /// Publishes a frame to all bundles that subscribe to a name or to a pattern that matches it, but for one. `path` is the
    /// name as patterns see it, which the name ends with. Returns their number. Bundles receive the frames of a name in the order of these calls.
    pub fn publish(
        &self,
        path: &str,
        name: &str,
        bytes: impl Into<FrameChunks>,
        except: Option<&Bundle>,
    ) -> usize {
        debug_assert!(name.ends_with(path), "{name} {path}");
        let except = except.map(Bundle::shared);
        let mut bytes = bytes.into();
        let inner = &*self.0;
        if inner.count.load(Ordering::SeqCst) == 0 {
            match inner.rings.publish_unless(name, bytes, except, Some(&inner.count)) {
                Ok(members) => return members,
                Err(back) => bytes = back,
            }
        }
        // Held until the frame is in all rings.
        let table = self.read();
        let Some(groups) = self.find(path) else { return inner.rings.publish_except(name, bytes, except) };
        let ring = inner.rings.find(name);
        let mut members = self.audience(&table, &groups, name, ring.as_ref());
        if except.is_some_and(|bundle| bundle.has_any(&groups) || bundle.is_in(name)) {
            members = members.saturating_sub(1);
        }
        let name = ring.as_ref().map_or_else(|| name.into(), |ring| ring.name.clone());
        let route = Arc::new(Route { name, path_bytes: path.len(), groups });
        let except = except.map(Shared::number);
        for (before, group) in route.groups.iter().enumerate() {
            let Some(ring) = table.by_number.get(group) else { continue };
            ring.publish_copy(bytes.clone(), except, Copies { route: route.clone(), before });
        }
        if let Some(ring) = ring {
            let before = route.groups.len();
            ring.publish_copy(bytes, except, Copies { route, before });
        }
        members
    }

    /// Number of bundles that a frame under a name would reach.
    pub fn subscribers(&self, path: &str, name: &str) -> usize {
        if self.is_empty() {
            return self.0.rings.subscribers(name);
        }
        let table = self.read();
        match self.find(path) {
            Some(groups) => {
                let ring = self.0.rings.find(name);
                self.audience(&table, &groups, name, ring.as_ref())
            }
            None => self.0.rings.subscribers(name),
        }
    }

    /// Whether a frame under a name would reach anybody.
    pub fn has_subscribers(&self, path: &str, name: &str) -> bool {
        self.0.rings.subscribers(name) > 0 || (!self.is_empty() && self.find(path).is_some())
    }

    /// Numbers of the bundles that a frame under a name would reach, each once, in ascending order.
    pub fn members(&self, path: &str, name: &str) -> Vec<u64> {
        let mut members = self.0.rings.members(name);
        let table = self.read();
        for group in self.find(path).iter().flatten() {
            let Some(ring) = table.by_number.get(group) else { continue };
            members.extend(ring.lock().numbers());
        }
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Number of patterns that somebody subscribes to.
    pub fn len(&self) -> usize {
        self.0.count.load(Ordering::SeqCst)
    }

    /// Whether nobody subscribes to a pattern.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The patterns that match a name; `None` if there are none.
    fn find(&self, path: &str) -> Option<Box<[u64]>> {
        KEYS.with_borrow_mut(|keys| {
            self.0.matcher.matches(path, keys);
            (!keys.is_empty()).then(|| keys.as_slice().into())
        })
    }

    /// Number of bundles in some groups or in the ring of a name.
    fn audience(&self, table: &Table, groups: &[u64], name: &str, ring: Option<&Arc<Ring>>) -> usize {
        let rings: Vec<&Arc<Ring>> = groups.iter().filter_map(|group| table.by_number.get(group)).collect();
        let in_groups: usize = rings
            .iter()
            .enumerate()
            .map(|(at, ring)| match at {
                0 => ring.lock().len(),
                _ => ring.lock().bundles().filter(|bundle| !bundle.has_any(&groups[..at])).count(),
            })
            .sum();
        let Some(ring) = ring else { return in_groups };
        let exact = ring.lock().len();
        // Those who are in both are looked for among the fewer ones.
        if in_groups >= exact {
            return in_groups + ring.lock().bundles().filter(|bundle| !bundle.has_any(groups)).count();
        }
        let mut both = 0;
        for (at, ring) in rings.iter().enumerate() {
            let bundles: Vec<Arc<Shared>> = ring.lock().bundles().cloned().collect();
            let firsts = bundles.iter().filter(|bundle| !bundle.has_any(&groups[..at]));
            both += firsts.filter(|bundle| bundle.is_in(name)).count();
        }
        in_groups + exact - both
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps everybody from publishing what patterns match. Taken before the lock of a bundle.
    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ring of a pattern, which is created if needed, without members.
    pub(super) fn ring(
        &self,
        table: &mut Table,
        name: &str,
        pattern: &Pattern,
    ) -> Result<Arc<Ring>, Refused> {
        if let Some(ring) = table.by_text.get(name) {
            return Ok(ring.clone());
        }
        if !self.0.matcher.admits(pattern) {
            return Err(Refused::TooComplex);
        }
        let (number, queue) = self.0.rings.numbered();
        let ring = Arc::new(Ring::new(name.into(), number, queue, self.0.rings.joins()));
        self.0.count.fetch_add(1, Ordering::SeqCst);
        self.0.matcher.insert(pattern, number);
        table.by_text.insert(ring.name.clone(), ring.clone());
        table.by_number.insert(number, ring.clone());
        self.compact();
        Ok(ring)
    }

    /// Removes a bundle from the ring of a pattern, and the ring if it was the last one.
    pub(super) fn leave(&self, table: &mut Table, ring: &Arc<Ring>, pattern: &Pattern, slot: usize) {
        let (left, empty) = {
            let mut state = ring.lock();
            (state.leave(slot), state.len() == 0)
        };
        drop(left);
        if empty && table.by_number.remove(&ring.number).is_some() {
            table.by_text.remove(&ring.name);
            self.0.matcher.remove(pattern, ring.number);
            self.0.count.fetch_sub(1, Ordering::SeqCst);
            self.compact();
        }
    }

    /// Has the pump wake the reader of a bundle.
    pub(super) fn wake(&self, bundle: &Arc<Shared>) {
        // The send fails only when the pumps have stopped, which means that the server has.
        let _ = self.0.queue.send(Work::Bundle(bundle.clone()));
    }

    /// Has the pump's runtime merge what was added and removed, if that is due.
    fn compact(&self) {
        if self.0.matcher.compact_due() {
            // The send fails only when the pumps have stopped, which means that the server has.
            let _ = self.0.queue.send(Work::Patterns(self.clone()));
        }
    }

    /// Merges what was added and removed. May take long.
    pub(super) fn compact_now(&self) {
        self.0.matcher.compact();
    }

    /// Whether both are the same set.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
