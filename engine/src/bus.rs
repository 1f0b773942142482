//! Wake-ups: who wants to know that a log has changed.
//!
//! A wake-up carries nothing and promises nothing but that the log is worth another look. Followers read
//! the log itself, so a lost wake-up only delays, and several may melt into one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

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
    logs: Mutex<HashMap<LogId, Listeners>>,
    /// How many entries there are, to be asked without the lock: a fan-out wakes thousands of logs, of which few are
    /// listened to.
    len: AtomicUsize,
}

/// Who listens to one log.
#[derive(Debug)]
struct Listeners {
    /// Those that wait.
    waiting: watch::Sender<()>,
    /// Those that are called. Shared with whoever is calling them.
    called: Arc<Vec<Waker>>,
}

impl Default for Listeners {
    fn default() -> Self {
        Self { waiting: watch::Sender::new(()), called: Arc::default() }
    }
}

impl Listeners {
    fn count(&self) -> usize {
        self.waiting.receiver_count() + self.called.len()
    }
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
        let changes = self.enter(log, |listeners| listeners.waiting.subscribe());
        Listener { bus: self.clone(), log, changes: Some(changes) }
    }

    /// Has a waker called, again and again, until what is returned is dropped, and perhaps once more. It is called by
    /// whoever makes something visible, so it must be quick.
    pub fn attach(&self, log: LogId, waker: Waker) -> Attachment {
        self.enter(log, |listeners| Arc::make_mut(&mut listeners.called).push(waker.clone()));
        Attachment { bus: self.clone(), log, waker }
    }

    fn enter<R>(&self, log: LogId, enter: impl FnOnce(&mut Listeners) -> R) -> R {
        let shard = self.shard(log);
        let mut logs = shard.lock();
        let entered = enter(logs.entry(log).or_default());
        // Before the caller reads: whoever makes something visible after that read sees it.
        shard.len.store(logs.len(), Ordering::SeqCst);
        entered
    }

    fn leave(&self, log: LogId, leave: impl FnOnce(&mut Listeners)) {
        let shard = self.shard(log);
        let mut logs = shard.lock();
        let Some(listeners) = logs.get_mut(&log) else { return };
        leave(listeners);
        if listeners.count() == 0 {
            logs.remove(&log);
            shard.len.store(logs.len(), Ordering::SeqCst);
        }
    }

    /// Tells all listeners of a log to look again.
    pub fn wake(&self, log: LogId) {
        let shard = self.shard(log);
        if shard.len.load(Ordering::SeqCst) == 0 {
            return;
        }
        let called = match shard.lock().get(&log) {
            Some(listeners) => {
                listeners.waiting.send_replace(());
                listeners.called.clone()
            }
            None => return,
        };
        // Without the lock: whoever is called may be the last to hold somebody who then leaves.
        called.iter().for_each(Waker::wake_by_ref);
    }

    /// How many listen to a log.
    pub fn listeners(&self, log: LogId) -> usize {
        self.shard(log).lock().get(&log).map_or(0, Listeners::count)
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
    fn lock(&self) -> MutexGuard<'_, HashMap<LogId, Listeners>> {
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
        let changes = self.changes.take();
        self.bus.leave(self.log, |_| drop(changes));
    }
}

/// A waker that is called when a log has changed, until this is dropped.
#[derive(Debug)]
pub struct Attachment {
    bus: Bus,
    log: LogId,
    waker: Waker,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.bus.leave(self.log, |listeners| {
            if let Some(at) = listeners.called.iter().position(|waker| waker.will_wake(&self.waker)) {
                Arc::make_mut(&mut listeners.called).swap_remove(at);
            }
        });
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
        let second = bus.attach(LogId::new(1), Waker::from(Arc::new(Calls::default())));
        assert_eq!(bus.listeners(LogId::new(1)), 2);
        drop(first);
        assert_eq!(bus.listened(), 1);
        drop(second);
        assert_eq!(bus.listened(), 0);
    }

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl std::task::Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_attached_waker_is_called_each_time_until_it_is_let_go() {
        let bus = Bus::new();
        let calls = Arc::new(Calls::default());
        let attachment = bus.attach(LogId::new(1), Waker::from(calls.clone()));
        let other = bus.attach(LogId::new(1), Waker::from(Arc::new(Calls::default())));
        bus.wake(LogId::new(1));
        bus.wake(LogId::new(2));
        bus.wake(LogId::new(1));
        assert_eq!(calls.0.load(Ordering::SeqCst), 2);
        drop(attachment);
        bus.wake(LogId::new(1));
        assert_eq!(calls.0.load(Ordering::SeqCst), 2);
        drop(other);
        assert_eq!(bus.listened(), 0);
    }
}
