//! The matcher: what is shared by readers and the writer.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;
use tidings_model::{Pattern, limits, pattern};

use super::arena::Arena;
use super::builder::Builder;
use super::dead::Dead;
use super::hash::Hasher;
use super::level::Level;
use super::merge::{Merged, first_due};
use super::path::paths;
use super::walk::Walk;

/// Keys that were added last and not yet moved into a level.
const RECENT_KEYS: usize = 256;
/// Nodes of those, without the root. They are copied with each change.
const RECENT_NODES: usize = 1024;

/// An index from patterns to keys that finds the keys whose patterns match a name.
///
/// Readers and writers share it. [`Self::matches`] never waits: it works on an immutable snapshot, which shows all
/// changes up to one moment. Changes are made by one thread at a time and take microseconds, however many patterns
/// there are. Whoever owns a matcher calls [`Self::compact`] in the background when [`Self::compact_due`] says so;
/// without it matching becomes slower with every few hundred changes, and the memory of removed patterns is not freed.
///
/// ```
/// use tidings_engine::matching::Matcher;
/// use tidings_model::Pattern;
///
/// let matcher = Matcher::new();
/// matcher.insert(&Pattern::parse("orders.*")?, 1);
/// matcher.insert(&Pattern::parse("**.paid")?, 2);
/// let mut keys = Vec::new();
/// matcher.matches("orders.paid", &mut keys);
/// assert_eq!(keys, [1, 2]);
/// # Ok::<_, tidings_model::InvalidPattern>(())
/// ```
#[derive(Debug)]
pub struct Matcher<K> {
    hasher: Hasher,
    published: ArcSwap<Snapshot<K>>,
    writer: Mutex<Writer<K>>,
    /// Held while levels are merged.
    compaction: Mutex<()>,
    pub(super) recent_keys: usize,
    /// Segments of the names that it is asked for.
    segments: u32,
}

/// The patterns at one moment.
#[derive(Debug)]
struct Snapshot<K> {
    /// Levels in the order in which they were made. Only compaction removes some.
    levels: Arc<[Level<K>]>,
    /// What was added since the last level was made.
    recent: Arc<Arena<K>>,
    /// Pairs of pattern and key.
    len: usize,
}

/// Levels that were merged and not yet replaced.
#[derive(Debug)]
pub(super) struct Merge<K> {
    then: Arc<Snapshot<K>>,
    /// The first of the levels; the others are all that were after it then.
    first: usize,
    merged: Merged<K>,
}

#[derive(Debug)]
struct Writer<K> {
    /// What `Snapshot::recent` is made from.
    recent: Builder<K>,
}

thread_local! {
    static WALK: RefCell<Walk> = RefCell::default();
}

impl<K: Copy + Ord> Default for Matcher<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Copy + Ord> Matcher<K> {
    /// Creates an empty matcher.
    pub fn new() -> Self {
        Self::from_iter::<[(&Pattern, K); 0]>([])
    }

    /// Creates an empty matcher whose [`Self::complexity`] holds for names of up to so many segments.
    pub fn for_names_of(segments: usize) -> Self {
        Self { segments: u32::try_from(segments).unwrap_or(u32::MAX), ..Self::new() }
    }

    /// Adds a key under a pattern. Returns false when the pair was present already.
    pub fn insert(&self, pattern: &Pattern, key: K) -> bool {
        let paths = paths(pattern, &self.hasher);
        let mut writer = self.writer();
        let now = self.published.load();
        let is_known = now.levels.iter().any(|level| level.find(&paths[0], key).is_some());
        if is_known || now.recent.find(&paths[0], key).is_some() {
            return false;
        }
        paths.iter().for_each(|path| writer.recent.insert(path, key));
        let recent = writer.recent.arena();
        let mut next = Snapshot { levels: now.levels.clone(), recent: Arc::new(recent), len: now.len + 1 };
        if writer.recent.len() >= self.recent_keys || writer.recent.nodes() > RECENT_NODES {
            writer.recent = Builder::new(self.hasher);
            let full = std::mem::replace(&mut next.recent, Arc::new(writer.recent.arena()));
            let level = Level { arena: full, dead: Dead::default() };
            next.levels = next.levels.iter().cloned().chain([level]).collect();
        }
        self.published.store(Arc::new(next));
        true
    }

    /// Removes a key from a pattern. Returns false when the pair was not present. Memory is freed by
    /// [`Self::compact`].
    pub fn remove(&self, pattern: &Pattern, key: K) -> bool {
        let paths = paths(pattern, &self.hasher);
        let mut writer = self.writer();
        let now = self.published.load();
        let (mut levels, mut recent) = (now.levels.clone(), now.recent.clone());
        if recent.find(&paths[0], key).is_some() {
            paths.iter().for_each(|path| writer.recent.remove(path, key));
            if writer.recent.len() == 0 {
                writer.recent = Builder::new(self.hasher);
            }
            recent = Arc::new(writer.recent.arena());
        } else {
            let mut changed = levels.to_vec();
            let has = |level: &&mut Level<K>| level.find(&paths[0], key).is_some();
            let Some(level) = changed.iter_mut().find(has) else { return false };
            let slots: Vec<u32> = paths.iter().filter_map(|path| level.find(path, key)).collect();
            slots.into_iter().for_each(|slot| level.dead.insert(slot));
            levels = changed.into();
        }
        self.published.store(Arc::new(Snapshot { levels, recent, len: now.len - 1 }));
        true
    }

    /// Replaces the content of `keys` by the keys of all patterns that match the name, each once, in ascending order.
    pub fn matches(&self, name: &str, keys: &mut Vec<K>) {
        keys.clear();
        let now = self.published.load();
        let mut runs = 0;
        WALK.with_borrow_mut(|walk| {
            walk.begin(name, &self.hasher);
            for level in &*now.levels {
                for node in walk.follow(name, &level.arena) {
                    let before = keys.len();
                    level.keys_at(node, keys);
                    runs += usize::from(keys.len() > before);
                }
            }
            for node in walk.follow(name, &now.recent) {
                let found = &now.recent.keys()[now.recent.slots(node)];
                keys.extend_from_slice(found);
                runs += usize::from(!found.is_empty());
            }
        });
        if runs > 1 {
            keys.sort();
            keys.dedup();
        }
    }

    /// Pairs of pattern and key.
    pub fn len(&self) -> usize {
        self.published.load().len
    }

    /// Whether there are no patterns.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another pattern keeps the work that a name can cause within [`limits::PATTERN_COMPLEXITY`]. Patterns
    /// without wildcards always do. To be asked before a pattern is accepted; [`Self::insert`] takes any.
    ///
    /// The limit holds for names of up to [`limits::EVENT_TYPE_SEGMENTS`] segments, or as many as the matcher was made for.
    pub fn admits(&self, pattern: &Pattern) -> bool {
        let is_literal = |segment: &pattern::Segment| matches!(segment.matcher, pattern::Matcher::Literal(_));
        pattern.segments().iter().all(is_literal) || self.complexity() < limits::PATTERN_COMPLEXITY
    }

    /// An upper bound of the nodes that a name of up to [`limits::EVENT_TYPE_SEGMENTS`] segments, or as many as the matcher was
    /// made for, can lead to.
    /// What was removed counts until the next compaction.
    pub fn complexity(&self) -> u32 {
        let now = self.published.load();
        let levels = now.levels.iter().map(|level| level.arena.complexity(self.segments));
        levels.fold(now.recent.complexity(self.segments), u32::saturating_add)
    }

    /// Bytes of memory that the patterns take.
    pub fn bytes(&self) -> usize {
        let now = self.published.load();
        // What is recent is in memory twice: as the writer has it, and as readers do.
        now.levels.iter().map(Level::bytes).sum::<usize>() + 2 * now.recent.bytes()
    }

    /// Whether [`Self::compact`] would do something. Cheap.
    pub fn compact_due(&self) -> bool {
        first_due(&self.published.load().levels).is_some()
    }

    /// Merges small levels, and frees the memory of what was removed. Takes up to a second for a million patterns, so
    /// it is not for a thread that others wait for; readers and writers go on meanwhile. Does nothing if nothing is
    /// due, or if it is running already.
    pub fn compact(&self) {
        let Ok(_running) = self.compaction.try_lock() else { return };
        if let Some(merge) = self.merge() {
            self.replace(merge);
        }
    }

    /// Merges the levels that are due, beside changes.
    pub(super) fn merge(&self) -> Option<Merge<K>> {
        let then = self.published.load_full();
        let first = first_due(&then.levels)?;
        let merged = Merged::of(&then.levels[first..], self.hasher);
        merged.arena.complexity(self.segments);
        Some(Merge { then, first, merged })
    }

    /// Replaces levels by what they were merged into. Only one merge at a time may be under way.
    pub(super) fn replace(&self, merge: Merge<K>) {
        let Merge { then, first, merged } = merge;
        // Meanwhile levels may have been added at the end, and more may have been removed from these. What was removed
        // until now is carried over before the writer has to wait.
        let mut known = then.clone();
        let mut dead = Dead::default();
        let mut carry_over = |now: Arc<Snapshot<K>>| {
            for (index, level) in then.levels[first..].iter().enumerate() {
                let at = first + index;
                let slots = now.levels[at].dead.since(&known.levels[at].dead);
                let slots = slots.into_iter().filter_map(|slot| merged.slot(index, level, slot));
                slots.for_each(|slot| dead.insert(slot));
            }
            known = now;
        };
        carry_over(self.published.load_full());
        carry_over(self.published.load_full());

        let writer = self.writer();
        let now = self.published.load_full();
        carry_over(now.clone());
        let level = Level { arena: Arc::new(merged.arena), dead };
        let level = Some(level).filter(|level| level.slots() > 0);
        let (before, after) = (&now.levels[..first], &now.levels[then.levels.len()..]);
        let levels = before.iter().cloned().chain(level).chain(after.iter().cloned()).collect();
        self.published.store(Arc::new(Snapshot { levels, recent: now.recent.clone(), len: now.len }));
        // The merged levels are freed after this, on this thread, unless a reader still uses them.
        drop(writer);
    }

    fn writer(&self) -> MutexGuard<'_, Writer<K>> {
        self.writer.lock().expect("nobody panics while changing patterns")
    }
}

impl<K: Copy + Ord, P: Borrow<Pattern>> FromIterator<(P, K)> for Matcher<K> {
    /// Creates a matcher with many patterns at once, much faster than by adding one after the other.
    fn from_iter<I: IntoIterator<Item = (P, K)>>(pairs: I) -> Self {
        let hasher = Hasher::random();
        let pairs = pairs.into_iter();
        let mut levels: Vec<Level<K>> = Vec::new();
        let mut builder = Builder::with_capacity(pairs.size_hint().0, hasher);
        for (pattern, key) in pairs {
            if builder.is_full() {
                let full = std::mem::replace(&mut builder, Builder::new(hasher));
                levels.push(Level::new(full.finish()));
            }
            let paths = paths(pattern.borrow(), &hasher);
            if levels.iter().all(|level| level.find(&paths[0], key).is_none()) {
                paths.iter().for_each(|path| builder.insert(path, key));
            }
        }
        if builder.len() > 0 {
            levels.push(Level::new(builder.finish()));
        }
        let segments = limits::EVENT_TYPE_SEGMENTS as u32;
        // Computed when it is asked for otherwise, which somebody would wait for.
        for level in &levels {
            level.arena.complexity(segments);
        }
        let mut recent = Builder::new(hasher);
        let snapshot = Snapshot {
            len: levels.iter().map(|level| level.arena.pairs()).sum(),
            levels: levels.into(),
            recent: Arc::new(recent.arena()),
        };
        Self {
            hasher,
            published: ArcSwap::from_pointee(snapshot),
            writer: Mutex::new(Writer { recent }),
            compaction: Mutex::default(),
            recent_keys: RECENT_KEYS,
            segments,
        }
    }
}
