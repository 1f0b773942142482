//! Wake-ups within the process: tells listeners that a log has changed.
//!
//! A wake-up carries no data; it only says that the log is worth reading again. Listeners read the log
//! itself, so a lost wake-up only delays them, and several wake-ups may be coalesced into one.
//!
//! [`messages`] is for what is not stored and has to reach other nodes.

#[cfg(feature = "contract-suite")]
pub mod contract;
pub mod messages;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use tidings_model::LogId;
use tokio::sync::watch;

const SHARDS: usize = 64;

/// The wake-up bus of this process. Clones share the same listeners.
#[derive(Clone, Debug)]
pub struct Bus {
    shards: Arc<[Shard]>,
}

#[derive(Debug, Default)]
struct Shard {
    /// Listeners by log. A log without listeners has no entry.
    logs: Mutex<HashMap<LogId, Listeners>>,
    /// Number of entries in `logs`, readable without the lock: a fan-out wakes thousands of logs, few of
    /// which have listeners.
    len: AtomicUsize,
}

/// The listeners of one log.
#[derive(Debug)]
struct Listeners {
    /// Wakes the tasks that await [`Listener::woken`].
    waiting: watch::Sender<()>,
    /// Wakers that are called directly. In an `Arc`, so that they can be called after the lock is released.
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
    /// Creates a bus without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Subscribes to a log. Changes from now on are noticed, including those before the first
    /// [`Listener::woken`].
    pub fn listen(&self, log: LogId) -> Listener {
        let changes = self.enter(log, |listeners| listeners.waiting.subscribe());
        Listener { bus: self.clone(), log, changes: Some(changes) }
    }

    /// Calls the waker on every change of the log until the returned attachment is dropped; one late call is
    /// possible. The waker runs on the thread that made the change visible, so it must be quick.
    pub fn attach(&self, log: LogId, waker: Waker) -> Attachment {
        self.enter(log, |listeners| Arc::make_mut(&mut listeners.called).push(waker.clone()));
        Attachment { bus: self.clone(), log, waker }
    }

    fn enter<R>(&self, log: LogId, enter: impl FnOnce(&mut Listeners) -> R) -> R {
        let shard = self.shard(log);
        let mut logs = shard.lock();
        let entered = enter(logs.entry(log).or_default());
        // Stored before the caller reads the log, so whoever commits after that read sees that there is a
        // listener.
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

    /// Tells all listeners of a log to read it again.
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
        // Called without the lock: a waker may drop the last handle of a listener, which takes this lock to
        // leave.
        called.iter().for_each(Waker::wake_by_ref);
    }

    /// Number of listeners of a log.
    pub fn listeners(&self, log: LogId) -> usize {
        self.shard(log).lock().get(&log).map_or(0, Listeners::count)
    }

    /// Number of logs that have at least one listener.
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

/// Waits for changes of a log. Leaves the bus when dropped.
#[derive(Debug)]
pub struct Listener {
    bus: Bus,
    log: LogId,
    /// `None` only inside `drop`, which must drop the receiver before it counts the remaining listeners.
    changes: Option<watch::Receiver<()>>,
}

impl Listener {
    /// Resolves when the log was woken since the last call, or since [`Bus::listen`] on the first call.
    pub async fn woken(&mut self) {
        let changes = self.changes.as_mut().expect("only drop takes it");
        // Never an error: the sender lives as long as the log has a listener, and this is one.
        let _ = changes.changed().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let changes = self.changes.take();
        self.bus.leave(self.log, |_| drop(changes));
    }
}

/// Keeps a waker attached to a log. Dropping it detaches the waker.
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
