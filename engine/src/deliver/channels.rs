use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_model::{LogId, Position, limits};
use tokio::sync::mpsc;

use super::channel::Channel;
use super::pump::{self, Pumps};
use super::subscription::Subscription;
use super::{Encode, Source};
use crate::Bus;

/// How much a channel keeps in memory, and takes at a time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of frames that a channel keeps for readers that are behind. Whoever is further behind reads the log.
    pub ring_bytes: usize,
    /// Frames that it keeps at most, however small.
    pub ring_frames: usize,
    /// Bytes of records that are read from the log at a time, to be shared by all.
    pub read_bytes: usize,
    /// Bytes of records that one reader reads from the log at a time for itself. It may take them as slowly as it is let.
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

/// What a reader joins, and where.
pub struct Join {
    /// The log in which new records come.
    pub log: LogId,
    /// The wire form. Readers of the same log and form share their frames, so a name must always mean the same encoding.
    pub form: &'static str,
    /// Where the records come from.
    pub source: Arc<dyn Source>,
    /// How they are written.
    pub encode: Arc<dyn Encode>,
    /// The log's tail, as it was a moment ago.
    pub tail: Position,
    /// The reader wants what comes after this.
    pub after: Position,
    /// The least stamp it may be shown.
    pub stamp: u64,
}

/// All channels of a server. Clones are the same.
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

/// The channels of one log, by their forms.
type Forms = Vec<(&'static str, Weak<Channel>)>;

impl Channels {
    /// Nobody has joined yet. The pumps run on the runtime this is called in, until the last clone is dropped.
    pub fn new(bus: Bus, limits: Limits) -> Self {
        Self { registry: Arc::default(), bus, limits, pumps: Arc::new(pump::start()) }
    }

    /// Begins to listen. Nothing is read before the subscription is polled.
    pub fn join(&self, join: Join) -> Subscription {
        let Join { log, form, source, encode, tail, after, stamp } = join;
        let mut logs = self.registry.lock();
        let forms = logs.entry(log).or_default();
        let known = forms.iter().find(|(known, _)| *known == form).and_then(|(_, channel)| channel.upgrade());
        // One that has lost its registration in the log is only there for those who have not heard it yet.
        let lost = match known {
            Some(channel) if !channel.lock().is_lost() => return Subscription::new(channel, after, stamp),
            lost => lost,
        };
        let registration = Registration { registry: Arc::downgrade(&self.registry), log, form };
        let channel =
            Channel::new(registration, &self.bus, self.pumps.of(log), self.limits, source, encode, tail);
        forms.retain(|(known, _)| *known != form);
        forms.push((form, Arc::downgrade(&channel)));
        drop(logs);
        // Not before: this may be its last owner, and it leaves the registry.
        drop(lost);
        // What was appended between the caller's look at the tail and now.
        channel.look();
        Subscription::new(channel, after, stamp)
    }

    /// How many listen to a log, in whatever form.
    pub fn readers(&self, log: LogId) -> usize {
        let channels: Vec<_> = match self.registry.lock().get(&log) {
            Some(forms) => forms.iter().filter_map(|(_, channel)| channel.upgrade()).collect(),
            None => return 0,
        };
        channels.iter().map(|channel| channel.readers()).sum()
    }

    /// Where the reader of a log is that is furthest behind; none when nobody listens.
    pub fn furthest_behind(&self, log: LogId) -> Option<Position> {
        let channels: Vec<_> = {
            let logs = self.registry.lock();
            logs.get(&log)?.iter().filter_map(|(_, channel)| channel.upgrade()).collect()
        };
        channels.iter().filter_map(|channel| channel.lock().furthest_behind()).min()
    }

    /// Where the channels of all logs that somebody listens to come from; of each log one.
    pub fn sources(&self) -> Vec<Arc<dyn Source>> {
        let living = |forms: &Forms| forms.iter().filter_map(|(_, channel)| channel.upgrade()).collect();
        // Not under the lock: this may become the last owner of one, and then it leaves the registry.
        let logs: Vec<Vec<_>> = self.registry.lock().values().map(living).collect();
        let heard = |channels: &Vec<Arc<Channel>>| {
            let channel = channels.iter().find(|channel| channel.readers() > 0)?;
            Some(channel.source.clone())
        };
        logs.iter().filter_map(heard).collect()
    }

    /// How many channels there are.
    pub fn len(&self) -> usize {
        let logs = self.registry.lock();
        logs.values().flatten().filter(|(_, channel)| channel.strong_count() > 0).count()
    }

    /// Whether nobody listens to anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Forms>> {
        self.logs.lock().expect("nobody panics while holding the registry")
    }
}

/// A channel's registration in the registry, which is free again when the channel is dropped.
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
        // Another channel may have been put here since the last reader left this one; it is alive.
        forms.retain(|(form, channel)| *form != self.form || channel.strong_count() > 0);
        if forms.is_empty() {
            logs.remove(&self.log);
        }
    }
}

/// Where a channel asks to be looked after.
pub(super) type Queue = mpsc::UnboundedSender<Arc<Channel>>;
