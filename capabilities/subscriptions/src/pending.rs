//! What is pending: the streams of each subscription that have records nobody acknowledged. In memory, made anew from the store.
//!
//! An append writes nothing for subscriptions. The bus tells of it by calling a waker that was attached to the log of each
//! linked stream, and the waker notes the stream. What was noted is looked up in the store by whoever asks next, so nobody is
//! told of a state that is older than what they know of.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};

use tidings_engine::Bus;
use tidings_engine::bus::Attachment;
use tidings_engine::log::{Observer, StoreError};
use tidings_model::{LogId, ProjectId, StreamId};
use tidings_streams::{Change as StreamChange, StreamKey};
use tokio::sync::Notify;

use crate::Store;
use crate::subscription::Subscription;
use crate::table::{Change, Table};

/// Links that are read under one lock at the start.
const PAGE: usize = 1024;

/// What is pending, for all subscriptions.
pub(crate) struct Pending {
    bus: Bus,
    notes: Arc<Notes>,
    known: tokio::sync::Mutex<Known>,
}

/// What was told since it was last looked up.
#[derive(Default)]
pub(crate) struct Notes {
    noted: Mutex<Noted>,
    /// Whether there ever was a subscription. Until then, nothing is noted of streams.
    any: AtomicBool,
    /// Wakes the dispatcher.
    pub(crate) changed: Notify,
    /// Wakes whoever compacts patterns.
    pub(crate) patterns: Notify,
}

#[derive(Default)]
struct Noted {
    /// Streams that have more.
    appended: HashSet<StreamKey>,
    /// Streams that were created, or have ended, or are not known yet.
    streams: HashSet<StreamKey>,
    /// Links whose cursors have moved, or that were made or removed.
    links: HashSet<(LogId, StreamId)>,
    /// Subscriptions that have changed.
    subscriptions: HashSet<LogId>,
}

#[derive(Default)]
struct Known {
    loaded: bool,
    streams: HashMap<StreamKey, Followed>,
    /// Streams with something pending, by subscription.
    pending: HashMap<LogId, BTreeSet<StreamId>>,
    projects: HashMap<LogId, ProjectId>,
    /// Subscriptions for which something has changed, for the dispatcher.
    changed: HashSet<LogId>,
}

/// A stream that is linked to a subscription.
struct Followed {
    log: LogId,
    waker: Arc<Teller>,
    _attachment: Attachment,
    /// Number of subscriptions that it is linked to.
    links: usize,
    /// Subscriptions for which it is pending.
    pending: BTreeSet<LogId>,
}

/// Notes a stream whenever its log has changed.
struct Teller {
    key: StreamKey,
    notes: Arc<Notes>,
    /// Whether it was noted and not looked up yet.
    noted: AtomicBool,
}

impl Wake for Teller {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.noted.swap(true, Ordering::AcqRel) {
            self.notes.lock().appended.insert(self.key.clone());
            self.notes.changed.notify_one();
        }
    }
}

/// Notes that were taken to be looked up. What is left of them goes back.
struct Taken<'a> {
    notes: &'a Notes,
    left: Noted,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let Noted { appended, streams, links, subscriptions } = std::mem::take(&mut self.left);
        if appended.is_empty() && streams.is_empty() && links.is_empty() && subscriptions.is_empty() {
            return;
        }
        let mut noted = self.notes.lock();
        noted.appended.extend(appended);
        noted.streams.extend(streams);
        noted.links.extend(links);
        noted.subscriptions.extend(subscriptions);
        drop(noted);
        self.notes.changed.notify_one();
    }
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().expect("nobody panics while noting")
    }

    fn take(&self) -> Taken<'_> {
        let left = std::mem::take(&mut *self.lock());
        Taken { notes: self, left }
    }

    fn stream(&self, key: &StreamKey) {
        if self.any.load(Ordering::Relaxed) {
            self.lock().streams.insert(key.clone());
            self.changed.notify_one();
        }
    }

    fn subscription(&self, number: LogId, links: impl Iterator<Item = StreamId>) {
        let mut noted = self.lock();
        noted.subscriptions.insert(number);
        noted.links.extend(links.map(|stream| (number, stream)));
        drop(noted);
        self.changed.notify_one();
    }
}

impl Observer<Table> for Notes {
    fn begin(&self, table: &Table) {
        let numbers = table.numbers(None, usize::MAX);
        self.any.store(!numbers.is_empty(), Ordering::Relaxed);
        self.lock().subscriptions.extend(numbers);
    }

    fn applied(&self, change: &Change) {
        let none = std::iter::empty;
        match change {
            Change::Streams(_) | Change::Key { .. } | Change::Forget { .. } | Change::Restore { .. } => {}
            Change::Create { number, .. } => {
                self.any.store(true, Ordering::Relaxed);
                self.subscription(*number, none());
                self.patterns.notify_one();
            }
            Change::Link { number, links, .. } => {
                self.subscription(*number, links.iter().map(|link| link.stream.clone()));
            }
            Change::Unlink { number, stream } => {
                self.subscription(*number, std::iter::once(stream.clone()));
            }
            Change::Update { number, acks, .. } => {
                self.subscription(*number, acks.iter().map(|(stream, _)| stream.clone()));
            }
            Change::End { number } => {
                self.subscription(*number, none());
                self.patterns.notify_one();
            }
            Change::Clear { number, streams } => self.subscription(*number, streams.iter().cloned()),
        }
    }
}

impl Observer<tidings_streams::Table> for Notes {
    fn begin(&self, _: &tidings_streams::Table) {}

    fn applied(&self, change: &StreamChange) {
        match change {
            StreamChange::Create { key, .. }
            | StreamChange::Retire { key, .. }
            | StreamChange::Remove { key, .. } => self.stream(key),
            StreamChange::Expect { .. }
            | StreamChange::Renew { .. }
            | StreamChange::Trim { .. }
            | StreamChange::Restore { .. } => {}
        }
    }
}

impl Pending {
    pub(crate) fn new(bus: Bus, notes: Arc<Notes>) -> Self {
        Self { bus, notes, known: tokio::sync::Mutex::default() }
    }

    /// Up to `most` streams of a subscription with something pending, in order.
    pub(crate) async fn streams(
        &self,
        store: &dyn Store,
        number: LogId,
        most: usize,
    ) -> Result<Vec<StreamId>, StoreError> {
        let mut known = self.known.lock().await;
        self.look(&mut known, store).await?;
        Ok(known.pending.get(&number).into_iter().flatten().take(most).cloned().collect())
    }

    /// Subscriptions for which something may have changed since the last call.
    pub(crate) async fn changed(&self, store: &dyn Store) -> Result<HashSet<LogId>, StoreError> {
        let mut known = self.known.lock().await;
        self.look(&mut known, store).await?;
        Ok(std::mem::take(&mut known.changed))
    }

    /// Looks up what was noted.
    async fn look(&self, known: &mut Known, store: &dyn Store) -> Result<(), StoreError> {
        if !known.loaded {
            self.load(store).await?;
            known.loaded = true;
        }
        let mut taken = self.notes.take();
        let left = &mut taken.left;
        while let Some(key) = left.appended.iter().next().cloned() {
            // If it is pending for all, more changes nothing.
            let known_to_all = known.streams.get(&key).is_some_and(|followed| {
                followed.waker.noted.store(false, Ordering::Release);
                followed.pending.len() >= followed.links
            });
            if !known_to_all {
                self.look_at_stream(known, store, &key).await?;
            }
            left.appended.remove(&key);
        }
        while let Some(key) = left.streams.iter().next().cloned() {
            self.look_at_stream(known, store, &key).await?;
            left.streams.remove(&key);
        }
        while let Some((number, stream)) = left.links.iter().next().cloned() {
            self.look_at_link(known, store, number, &stream).await?;
            left.links.remove(&(number, stream));
        }
        // Last, because a subscription that is gone takes with it what is known of its project.
        while let Some(number) = left.subscriptions.iter().next().copied() {
            if store.subscription(number).await?.is_none() {
                known.projects.remove(&number);
                known.pending.remove(&number);
            }
            known.changed.insert(number);
            left.subscriptions.remove(&number);
        }
        Ok(())
    }

    /// Notes all links.
    async fn load(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let numbers = store.numbers(after, PAGE).await?;
            for number in &numbers {
                let Some(subscription) = store.subscription(*number).await? else { continue };
                self.load_links(store, *number, &subscription).await?;
            }
            after = numbers.last().copied();
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn load_links(
        &self,
        store: &dyn Store,
        number: LogId,
        of: &Subscription,
    ) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let links = store.links(number, after.as_ref(), PAGE).await?;
            let keys =
                links.iter().map(|one| StreamKey { project: of.project.clone(), id: one.stream.clone() });
            self.notes.lock().streams.extend(keys);
            after = links.last().map(|one| one.stream.clone());
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn look_at_stream(
        &self,
        known: &mut Known,
        store: &dyn Store,
        key: &StreamKey,
    ) -> Result<(), StoreError> {
        if let Some(followed) = known.streams.get(key) {
            // Before the look-up, so that a change during it is noted again.
            followed.waker.noted.store(false, Ordering::Release);
        }
        let mut links = store.of_stream(key).await?;
        let log = links.iter().find_map(|(_, linked)| linked.link.log);
        let before = known.streams.get(key).map(|followed| followed.log);
        let mut was = BTreeSet::new();
        if before != log {
            was = known.streams.remove(key).map(|followed| followed.pending).unwrap_or_default();
            if let Some(log) = log {
                let teller =
                    Teller { key: key.clone(), notes: self.notes.clone(), noted: AtomicBool::new(false) };
                let waker = Arc::new(teller);
                let attachment = self.bus.attach(log, Waker::from(waker.clone()));
                let followed =
                    Followed { log, waker, _attachment: attachment, links: 0, pending: BTreeSet::new() };
                known.streams.insert(key.clone(), followed);
                // What was appended before somebody listened.
                links = store.of_stream(key).await?;
            }
        } else if let Some(followed) = known.streams.get_mut(key) {
            was = std::mem::take(&mut followed.pending);
        }
        for (number, _) in &links {
            // So that the link can be let go when its subscription is gone.
            known.projects.entry(*number).or_insert_with(|| key.project.clone());
        }
        let now: BTreeSet<_> =
            links.iter().filter(|(_, linked)| linked.is_pending()).map(|(number, _)| *number).collect();
        for number in was.difference(&now) {
            known.set(*number, &key.id, false);
        }
        for number in now.difference(&was) {
            known.set(*number, &key.id, true);
        }
        if let Some(followed) = known.streams.get_mut(key) {
            followed.pending = now;
            followed.links = links.len();
        }
        Ok(())
    }

    async fn look_at_link(
        &self,
        known: &mut Known,
        store: &dyn Store,
        number: LogId,
        stream: &StreamId,
    ) -> Result<(), StoreError> {
        let project = match known.projects.get(&number) {
            Some(project) => project.clone(),
            None => match store.subscription(number).await? {
                Some(one) => known.projects.entry(number).or_insert(one.project.clone()).clone(),
                None => return Ok(()),
            },
        };
        let key = StreamKey { project, id: stream.clone() };
        let linked = store.link(number, stream).await?;
        let links = store.linked_to(&key).await?;
        let Some(linked) = linked else {
            if let Some(followed) = known.streams.get_mut(&key) {
                followed.pending.remove(&number);
                followed.links = links;
            }
            known.set(number, stream, false);
            if links == 0 {
                known.streams.remove(&key);
            }
            return Ok(());
        };
        match known.streams.get_mut(&key) {
            Some(followed) if Some(followed.log) == linked.link.log => {
                followed.links = links;
                let pending = linked.is_pending();
                let changed =
                    if pending { followed.pending.insert(number) } else { followed.pending.remove(&number) };
                if changed {
                    known.set(number, stream, pending);
                }
                Ok(())
            }
            _ => self.look_at_stream(known, store, &key).await,
        }
    }
}

impl Known {
    fn set(&mut self, number: LogId, stream: &StreamId, pending: bool) {
        if pending {
            self.pending.entry(number).or_default().insert(stream.clone());
            self.changed.insert(number);
        } else if let Some(streams) = self.pending.get_mut(&number) {
            streams.remove(stream);
            if streams.is_empty() {
                self.pending.remove(&number);
                self.changed.insert(number);
            }
        }
    }
}

#[cfg(test)]
mod tests;
