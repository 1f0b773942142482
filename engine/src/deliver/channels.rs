//! The registry of channels: readers join here, and the last one to leave removes a channel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_model::{LogId, Position, limits};

use super::channel::Channel;
use super::pump::{self, Pumps};
use super::subscription::Subscription;
use super::{Encode, Source};
use crate::Bus;

/// Memory limits of a channel.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of frames kept in the ring. A reader that is further behind reads the log.
    pub ring_bytes: usize,
    /// Number of frames kept in the ring, however small.
    pub ring_frames: usize,
    /// Bytes of records that a pump reads from the log at a time, for all readers.
    pub read_bytes: usize,
    /// Bytes of records that a reader behind the ring reads from the log at a time. They stay in memory until
    /// it took them.
    pub own_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            ring_bytes: limits::RING_BYTES,
            ring_frames: limits::RING_FRAMES,
            read_bytes: limits::READ_CHUNK_BYTES,
            own_bytes: limits::OWN_READ_BYTES,
        }
    }
}

/// A request to join a channel.
pub struct Join {
    /// The log to which new records are appended.
    pub log: LogId,
    /// Name of the wire form. Readers of the same log and form share frames, so a name must always mean the
    /// same encoding.
    pub form: &'static str,
    /// Source of the records.
    pub source: Arc<dyn Source>,
    /// Encoder of the records.
    pub encode: Arc<dyn Encode>,
    /// A recent tail of the log, where a new channel begins.
    pub tail: Position,
    /// The reader gets the records after this position.
    pub after: Position,
    /// The lowest stamp of frames that the reader accepts.
    pub stamp: u64,
}

/// All channels of a server. Clones share the same channels.
#[derive(Clone)]
pub struct Channels {
    registry: Arc<Registry>,
    bus: Bus,
    limits: Limits,
    pumps: Arc<Pumps>,
}

#[derive(Default)]
pub(super) struct Registry {
    logs: Mutex<HashMap<LogId, Forms>>,
}

/// The channels of one log, by wire form.
type Forms = Vec<(&'static str, Weak<Channel>)>;

impl Channels {
    /// Creates an empty set. The pumps run on the current runtime until the last clone is dropped.
    pub fn new(bus: Bus, limits: Limits) -> Self {
        Self { registry: Arc::default(), bus, limits, pumps: Arc::new(pump::start()) }
    }

    /// Joins a channel, creating it if needed. Nothing is read before the subscription is polled.
    pub fn join(&self, join: Join) -> Subscription {
        let Join { log, form, source, encode, tail, after, stamp } = join;
        let mut logs = self.registry.lock();
        let forms = logs.entry(log).or_default();
        let known = forms.iter().find(|(known, _)| *known == form).and_then(|(_, channel)| channel.upgrade());
        // A lost channel stays only for the readers that have not noticed yet; new readers get a new channel.
        let lost = match known {
            Some(channel) if !channel.lock().is_lost() => return Subscription::new(channel, after, stamp),
            lost => lost,
        };
        let registration = Registration { registry: Arc::downgrade(&self.registry), log, form };
        let channel = Channel::new(
            registration,
            &self.bus,
            self.pumps.of(log.get()),
            self.limits,
            source,
            encode,
            tail,
        );
        forms.retain(|(known, _)| *known != form);
        forms.push((form, Arc::downgrade(&channel)));
        drop(logs);
        // Dropped after the lock: this may be its last owner, and dropping it takes the lock to deregister.
        drop(lost);
        // Records may have been appended since the caller read the tail.
        channel.look();
        Subscription::new(channel, after, stamp)
    }

    /// The pumps, for rings that share them.
    pub(super) fn pumps(&self) -> Arc<Pumps> {
        self.pumps.clone()
    }

    /// Number of readers of a log, in all forms.
    pub fn readers(&self, log: LogId) -> usize {
        let channels: Vec<_> = match self.registry.lock().get(&log) {
            Some(forms) => forms.iter().filter_map(|(_, channel)| channel.upgrade()).collect(),
            None => return 0,
        };
        channels.iter().map(|channel| channel.readers()).sum()
    }

    /// Position of the slowest reader of a log; `None` when it has no readers.
    pub fn furthest_behind(&self, log: LogId) -> Option<Position> {
        let channels: Vec<_> = {
            let logs = self.registry.lock();
            logs.get(&log)?.iter().filter_map(|(_, channel)| channel.upgrade()).collect()
        };
        channels.iter().filter_map(|channel| channel.lock().furthest_behind()).min()
    }

    /// The sources of all logs that have readers, one per log.
    pub fn sources(&self) -> Vec<Arc<dyn Source>> {
        let living = |forms: &Forms| forms.iter().filter_map(|(_, channel)| channel.upgrade()).collect();
        // Dropped after the lock: this may become the last owner of a channel, and dropping it takes the lock.
        let logs: Vec<Vec<_>> = self.registry.lock().values().map(living).collect();
        let with_readers = |channels: &Vec<Arc<Channel>>| {
            let channel = channels.iter().find(|channel| channel.readers() > 0)?;
            Some(channel.source.clone())
        };
        logs.iter().filter_map(with_readers).collect()
    }

    /// Number of channels.
    pub fn len(&self) -> usize {
        let logs = self.registry.lock();
        logs.values().flatten().filter(|(_, channel)| channel.strong_count() > 0).count()
    }

    /// Whether there are no channels.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Forms>> {
        self.logs.lock().expect("nobody panics while holding the registry")
    }
}

/// A channel's entry in the registry. Removed when the channel is dropped.
pub(super) struct Registration {
    registry: Weak<Registry>,
    log: LogId,
    form: &'static str,
}

impl Registration {
    pub(super) fn log(&self) -> LogId {
        self.log
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut logs = registry.lock();
        let Some(forms) = logs.get_mut(&self.log) else { return };
        // A new channel may have taken this entry since the last reader left; that one is alive and stays.
        forms.retain(|(form, channel)| *form != self.form || channel.strong_count() > 0);
        if forms.is_empty() {
            logs.remove(&self.log);
        }
    }
}
