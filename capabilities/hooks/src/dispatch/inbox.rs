//! What others tell the dispatcher, and what it tells them. Nobody waits here: the dispatcher is woken and takes what came.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tidings_engine::Clock;
use tidings_model::LogId;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::attempt::Ended;

/// What others tell the dispatcher.
#[derive(Default)]
pub(super) struct Inbox {
    news: Mutex<News>,
    ended: Mutex<Vec<Ended>>,
    waker: AtomicWaker,
    /// Locked by whoever dispatches, and by its last commit until that has ended.
    alone: Arc<tokio::sync::Mutex<()>>,
}

/// The right to dispatch alone.
pub(super) struct Alone {
    inbox: Arc<Inbox>,
    _lock: OwnedMutexGuard<()>,
}

#[derive(Default)]
struct News {
    /// Somebody dispatches.
    is_running: bool,
    /// Somebody dispatches, or a commit of it is still under way.
    is_held: bool,
    /// Queues to be looked at. While nobody dispatches it is enough to know that there are some.
    notified: HashSet<LogId>,
    was_notified: bool,
    forgotten: Vec<Forgotten>,
    rest: Option<Rest>,
}

/// Nothing is to be done apart from what comes.
struct Rest {
    /// Time on the monotonic clock at which there may be something.
    until: Option<Duration>,
    clock: Arc<dyn Clock>,
}

/// A hook that was removed.
pub(super) struct Forgotten {
    /// Its queue.
    pub(super) queue: LogId,
    /// Dropped when nothing of it will be committed any more.
    pub(super) _until: oneshot::Sender<()>,
}

/// What came since the dispatcher last looked.
#[derive(Default)]
pub(super) struct Taken {
    /// Queues to be looked at.
    pub(super) notified: HashSet<LogId>,
    /// Hooks that were removed.
    pub(super) forgotten: Vec<Forgotten>,
    /// Attempts that ended.
    pub(super) ended: Vec<Ended>,
}

impl Inbox {
    /// The deliveries of a queue may have changed.
    pub(super) fn notify(&self, queue: LogId) {
        let mut news = self.news();
        news.was_notified = true;
        let first = news.is_running && news.notified.insert(queue) && news.notified.len() == 1;
        drop(news);
        if first {
            self.waker.wake();
        }
    }

    /// A hook was removed. What is returned is resolved, or an error, when nothing of it will be committed any more.
    /// `None` if that is so already.
    pub(super) fn forget(&self, queue: LogId) -> Option<oneshot::Receiver<()>> {
        let mut news = self.news();
        if !news.is_held {
            return None;
        }
        let (_until, forgotten) = oneshot::channel();
        news.notified.remove(&queue);
        news.forgotten.push(Forgotten { queue, _until });
        drop(news);
        self.waker.wake();
        Some(forgotten)
    }

    /// Attempts ended. Leaves the list empty.
    pub(super) fn ended(&self, ended: &mut Vec<Ended>) {
        let mut all = self.ended.lock().expect("nobody panics while adding");
        let was_empty = all.is_empty();
        all.append(ended);
        drop(all);
        if was_empty {
            self.waker.wake();
        }
    }

    /// Waits until nobody else dispatches and no commit of it is under way.
    pub(super) async fn alone(self: &Arc<Self>) -> Alone {
        let _lock = self.alone.clone().lock_owned().await;
        self.news().is_held = true;
        Alone { inbox: self.clone(), _lock }
    }

    /// The dispatcher begins. It must look at all queues at first.
    pub(super) fn begin(&self) {
        self.ended.lock().expect("nobody panics while adding").clear();
        *self.news() = News { is_running: true, is_held: true, ..News::default() };
    }

    /// The dispatcher ends. A commit of it may still be under way, for which those wait who want hooks to be forgotten.
    pub(super) fn end(&self, forgotten: Vec<Forgotten>) {
        let mut news = self.news();
        news.is_running = false;
        news.was_notified = true;
        news.rest = None;
        news.notified.clear();
        news.forgotten.extend(forgotten);
    }

    /// Takes what came. The waker is woken when more comes.
    pub(super) fn take(&self, waker: &Waker) -> Taken {
        self.waker.register(waker);
        let mut news = self.news();
        let notified = std::mem::take(&mut news.notified);
        let forgotten = std::mem::take(&mut news.forgotten);
        drop(news);
        let ended = std::mem::take(&mut *self.ended.lock().expect("nobody panics while adding"));
        Taken { notified, forgotten, ended }
    }

    /// There is something to do, apart from what comes.
    pub(super) fn work(&self) {
        self.news().rest = None;
    }

    /// There is nothing to do, apart from what comes, until a time on the monotonic clock.
    pub(super) fn rest(&self, until: Option<Duration>, clock: &Arc<dyn Clock>) {
        self.news().rest = Some(Rest { until, clock: clock.clone() });
    }

    /// Whether there is nothing to do.
    pub(super) fn is_at_rest(&self) -> bool {
        let news = self.news();
        if !news.is_running {
            return !news.was_notified;
        }
        let rests = |rest: &Rest| rest.until.is_none_or(|until| rest.clock.elapsed() < until);
        news.rest.as_ref().is_some_and(rests) && news.notified.is_empty() && news.forgotten.is_empty()
    }

    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().expect("nobody panics while holding it")
    }
}

impl Taken {
    /// Whether nothing came.
    pub(super) fn is_empty(&self) -> bool {
        self.notified.is_empty() && self.forgotten.is_empty() && self.ended.is_empty()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let mut news = self.inbox.news();
        news.is_held = false;
        news.forgotten.clear();
    }
}
