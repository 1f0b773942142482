//! Wake-ups: who wants to know that a log has changed.
//!
//! A wake-up carries nothing and promises nothing but that the log is worth another look. Followers read
//! the log itself, so a lost wake-up only delays, and several may melt into one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tidings_model::LogId;
use tokio::sync::watch;

const SHARDS: usize = 64;

/// Wake-ups within this process. Clones are the same bus.
#[derive(Clone, Debug)]
pub struct Bus {
    shards: Arc<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Only logs that somebody listens to have an entry.
    logs: Mutex<HashMap<LogId, watch::Sender<()>>>,
    /// How many entries there are, to be asked without the lock: a fan-out wakes thousands of logs, of which few are
    /// listened to.
    len: AtomicUsize,
}

impl Default for Bus {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }
}

impl Bus {
    /// A bus nobody listens to yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens to a log. What happens from now on is heard, also before the first [`Listener::woken`].
    pub fn listen(&self, log: LogId) -> Listener {
        let shard = self.shard(log);
        let mut logs = shard.lock();
        let changes = logs.entry(log).or_insert_with(|| watch::Sender::new(())).subscribe();
        // Before the caller reads: whoever makes something visible after that read sees it.
        shard.len.store(logs.len(), Ordering::SeqCst);
        drop(logs);
        Listener { bus: self.clone(), log, changes: Some(changes) }
    }

    /// Tells all listeners of a log to look again.
    pub fn wake(&self, log: LogId) {
        let shard = self.shard(log);
        if shard.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        if let Some(listeners) = shard.lock().get(&log) {
            listeners.send_replace(());
        }
    }

    /// How many listen to a log.
    pub fn listeners(&self, log: LogId) -> usize {
        self.shard(log).lock().get(&log).map_or(0, watch::Sender::receiver_count)
    }

    /// How many logs are listened to.
    pub fn listened(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    fn shard(&self, log: LogId) -> &Shard {
        &self.shards[log.get() as usize % SHARDS]
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, watch::Sender<()>>> {
        self.logs.lock().expect("nobody panics while holding a shard")
    }
}

/// Hears when a log has changed; leaves the bus when dropped.
#[derive(Debug)]
pub struct Listener {
    bus: Bus,
    log: LogId,
    /// Taken only by `drop`, which must leave before it counts who is left.
    changes: Option<watch::Receiver<()>>,
}

impl Listener {
    /// Resolves when the log was woken since the last call, or since `listen`.
    pub async fn woken(&mut self) {
        let changes = self.changes.as_mut().expect("only drop takes it");
        // The sender lives as long as somebody listens, and we do.
        let _ = changes.changed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let shard = self.bus.shard(self.log);
        let mut logs = shard.lock();
        self.changes.take();
        if logs.get(&self.log).is_some_and(|listeners| listeners.receiver_count() == 0) {
            logs.remove(&self.log);
            shard.len.store(logs.len(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[test]
    fn a_wake_between_listening_and_waiting_is_not_lost() {
        let bus = Bus::new();
        let mut listener = bus.listen(LogId::new(1));
        bus.wake(LogId::new(1));
        assert!(listener.woken().now_or_never().is_some());
        assert!(listener.woken().now_or_never().is_none(), "one wake is heard once");
    }

    #[test]
    fn a_wake_is_heard_by_all_listeners_of_that_log_only() {
        let bus = Bus::new();
        let mut first = bus.listen(LogId::new(1));
        let mut second = bus.listen(LogId::new(1));
        let mut other = bus.listen(LogId::new(65));
        bus.wake(LogId::new(1));
        assert!(first.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
        assert!(other.woken().now_or_never().is_none());
    }

    #[test]
    fn nothing_is_left_of_listeners_that_went_away() {
        let bus = Bus::new();
        let first = bus.listen(LogId::new(1));
        let second = bus.listen(LogId::new(1));
        drop(first);
        assert_eq!(bus.listened(), 1);
        drop(second);
        assert_eq!(bus.listened(), 0);
    }
}
