//! The registry of rings: frames are published here under a name, and bundles subscribe to names.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use super::FrameChunks;
use super::bundle::{Bundle, BundleReader, Shared};
use super::channels::Channels;
use super::patterns::Patterns;
use super::pump::{Pumps, Queue};
use super::ring::Ring;
use super::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError};

const SHARDS: usize = 64;

/// All rings of a server. Clones share the same rings.
///
/// A ring exists while a bundle subscribes to its name. Frames of a name that nobody subscribes to are dropped.
#[derive(Clone)]
pub struct Rings(Arc<Registry>);

pub(super) struct Registry {
    shards: Box<[Mutex<Names>]>,
    hasher: RandomState,
    pumps: Arc<Pumps>,
    /// Whether frames that are sent together are joined.
    joins: bool,
    /// Number of the next ring or bundle.
    number: AtomicU64,
}

type Names = HashMap<Arc<str>, Arc<Ring>>;

impl Rings {
    /// Creates an empty set that shares the pumps of some channels.
    pub fn beside(channels: &Channels) -> Self {
        Self::with(channels.pumps(), true)
    }

    /// As [`Rings::beside`], but each frame that is taken is one that was published. Without it, frames of a name that
    /// are sent together may be joined, so that receivers must be able to tell them apart by their bytes.
    pub fn unjoined(channels: &Channels) -> Self {
        Self::with(channels.pumps(), false)
    }

    pub(super) fn with(pumps: Arc<Pumps>, joins: bool) -> Self {
        Self(Arc::new(Registry {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            pumps,
            joins,
            number: AtomicU64::new(0),
        }))
    }

    /// Creates a bundle without subscriptions. It is too slow when it is more than `behind_max` bytes behind, and more
    /// than two of the largest frames that it was sent.
    pub fn bundle(&self, behind_max: u64) -> (Bundle, BundleReader) {
        Bundle::new(self.clone(), self.0.number(), behind_max)
    }

    /// Publishes a frame under a name to all bundles that subscribe to it. Returns their number. Bundles
    /// receive the frames of a name in the order of these calls.
    pub fn publish(&self, name: &str, bytes: impl Into<FrameChunks>) -> usize {
        self.publish_except(name, bytes.into(), None)
    }

    pub(super) fn publish_except(&self, name: &str, bytes: FrameChunks, except: Option<&Shared>) -> usize {
        // A frame comes back only if there are patterns.
        self.publish_unless(name, bytes, except, None).unwrap_or_default()
    }

    /// As [`Rings::publish_except`], unless there are patterns.
    pub(super) fn publish_unless(
        &self,
        name: &str,
        bytes: FrameChunks,
        except: Option<&Shared>,
        patterns: Option<&AtomicUsize>,
    ) -> Result<usize, FrameChunks> {
        match self.find(name) {
            Some(ring) => ring.publish(bytes, except, patterns),
            // The last member may have left for a pattern since it was looked whether there are some.
            None if patterns.is_some_and(|patterns| patterns.load(Ordering::SeqCst) > 0) => Err(bytes),
            None => Ok(0),
        }
    }

    /// The ring of a name.
    pub(super) fn find(&self, name: &str) -> Option<Arc<Ring>> {
        self.0.shard(name).get(name).cloned()
    }

    /// Creates an empty set of patterns on names.
    pub fn patterns(&self) -> Patterns {
        Patterns::new(self.clone())
    }

    /// A number that no other ring or bundle has, and the queue of the pump that serves a ring with it.
    pub(super) fn numbered(&self) -> (u64, Queue) {
        let number = self.0.number();
        (number, self.0.pumps.of(number))
    }

    /// Whether frames that are sent together are joined.
    pub(super) fn joins(&self) -> bool {
        self.0.joins
    }

    /// Number of bundles that subscribe to a name.
    pub fn subscribers(&self, name: &str) -> usize {
        self.find(name).map_or(0, |ring| ring.lock().len())
    }

    /// Numbers of the bundles that subscribe to a name, in no particular order.
    pub fn members(&self, name: &str) -> Vec<u64> {
        self.find(name).map_or_else(Vec::new, |ring| ring.lock().numbers())
    }

    /// Number of rings: of names that somebody subscribes to.
    pub fn len(&self) -> usize {
        self.0.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nobody subscribes to anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the frames that are kept under a name.
    #[cfg(test)]
    pub(super) fn kept(&self, name: &str) -> u64 {
        self.find(name).map_or(0, |ring| ring.lock().kept())
    }

    /// Adds a bundle to the ring of a name, which is created if needed. The lock of the bundle may be held.
    pub(super) fn enter(&self, name: &str, bundle: &Arc<Shared>) -> (Arc<Ring>, usize) {
        let mut names = self.0.shard(name);
        let ring = match names.get(name) {
            Some(ring) => ring.clone(),
            None => {
                let name: Arc<str> = name.into();
                let (number, queue) = self.numbered();
                let ring = Arc::new(Ring::new(name.clone(), number, queue, self.0.joins));
                names.insert(name, ring.clone());
                ring
            }
        };
        // Under the lock of the names, so that the ring is not removed as an empty one.
        let slot = ring.lock().enter(bundle.clone());
        (ring, slot)
    }

    pub(super) fn leave(&self, ring: &Arc<Ring>, slot: usize) {
        self.0.leave(ring, slot);
    }
}

impl Registry {
    /// Removes a bundle from a ring, and the ring if it was the last one.
    pub(super) fn leave(&self, ring: &Arc<Ring>, slot: usize) {
        let mut names = self.shard(&ring.name);
        let (left, empty) = {
            let mut state = ring.lock();
            (state.leave(slot), state.len() == 0)
        };
        let removed = if empty { names.remove(&ring.name) } else { None };
        drop(names);
        // Dropped without the locks: this may be the last owner.
        drop((left, removed));
    }

    fn shard(&self, name: &str) -> MutexGuard<'_, Names> {
        // The remainder is less than the number of shards.
        lock(&self.shards[(self.hasher.hash_one(name) % SHARDS as u64) as usize])
    }

    fn number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }
}

/// Locks a shard, ignoring poison: no operation on names is left half done.
fn lock(shard: &Mutex<Names>) -> MutexGuard<'_, Names> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
