//! The shared state of a connection, and the turns of its operations.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;

use tidings_engine::Clock;
use tokio::sync::Notify;

use crate::driver::PubSubDriver;
use crate::local::Member;
use crate::places::Places;
use crate::policy::{Gate, Removal};
use crate::queue::{Queue, Scope};
use crate::state::State;
use crate::topic::TopicRules;

/// What all connections of a hub share.
pub(crate) struct Settings {
    pub(crate) driver: Arc<dyn PubSubDriver>,
    pub(crate) rules: TopicRules,
    pub(crate) clock: Arc<dyn Clock>,
    /// A [`Phase`].
    phase: AtomicU8,
    pub(crate) failed_rollbacks: AtomicU64,
    /// Subscriptions of all connections.
    pub(crate) places: Places,
    /// The connections that are open, each with a number.
    connections: Mutex<(u64, HashMap<u64, Weak<Inner>>)>,
}

/// What a hub can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing can be published: it was not started, or it is about to stop.
    NotReady = 0,
    Ready = 1,
    /// It was shut down.
    Disposed = 2,
}

/// One connection.
pub(crate) struct Inner {
    pub(crate) settings: Arc<Settings>,
    pub(crate) member: Member,
    pub(crate) gate: Box<dyn Gate>,
    pub(crate) closing: Notify,
    /// Hears of subscriptions that the driver refused later.
    pub(crate) taken_back: OnceLock<TakenBack>,
    /// Number among the hub's connections.
    number: u64,
    state: Mutex<State>,
}

/// Called with a topic whose subscription was taken back.
pub(crate) type TakenBack = Box<dyn Fn(&Arc<str>) + Send + Sync>;

/// Which of a connection's queues.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// Changes of subscriptions.
    Changes,
    /// Messages.
    Messages,
}

/// A place in a queue, given up when it is dropped.
pub(crate) struct Turn {
    inner: Arc<Inner>,
    line: Line,
    number: u64,
}

impl Inner {
    /// Adds a connection. It is closed already if the hub was shut down.
    pub(crate) fn open(settings: &Arc<Settings>, member: Member, gate: Box<dyn Gate>) -> Arc<Self> {
        let mut connections = settings.connections();
        connections.0 += 1;
        let number = connections.0;
        let inner = Arc::new(Self {
            settings: settings.clone(),
            member,
            gate,
            closing: Notify::new(),
            taken_back: OnceLock::new(),
            number,
            state: Mutex::default(),
        });
        connections.1.insert(number, Arc::downgrade(&inner));
        drop(connections);
        // After the insertion: a shutdown closes it, or is seen here.
        if settings.phase() == Phase::Disposed {
            inner.close();
        }
        inner
    }

    /// Locks the state, ignoring poison: a connection can always be closed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The normal form of a topic.
    pub(crate) fn normal(&self, topic: &str) -> Arc<str> {
        Arc::from(&*self.gate.normalize(topic))
    }

    /// Takes the next place in the queue.
    pub(crate) fn arrive(self: &Arc<Self>, line: Line, scope: Scope) -> Turn {
        let number = line.of(&mut self.lock()).arrive(scope);
        Turn { inner: self.clone(), line, number }
    }

    /// Takes a place that nobody waits for.
    pub(crate) fn observe(self: &Arc<Self>, topic: Option<Arc<str>>) -> Turn {
        let number = self.lock().queue.observe(topic);
        Turn { inner: self.clone(), line: Line::Changes, number }
    }

    /// Ends all subscriptions. Those who wait fail.
    pub(crate) fn close(&self) {
        if std::mem::replace(&mut self.lock().closed, true) {
            return;
        }
        let left = self.lock().close();
        self.settings.places.give_back(left);
        self.member.seal();
        self.settings.driver.remove(&self.member);
        self.settings.connections().1.remove(&self.number);
        self.closing.notify_waiters();
    }

    /// Takes a subscription away that the driver has refused after it was made.
    pub(crate) async fn take_back(&self, topic: &Arc<str>) {
        if self.lock().remove(topic) {
            self.settings.places.give_back(1);
        }
        self.member.leave(topic);
        if let Err(error) = self.settings.driver.unsubscribe(&self.member, topic).await {
            tracing::warn!(%topic, %error, "a refused subscription was not forgotten by the driver");
        }
        self.gate.unsubscribed(topic, Removal::Refused);
        if let Some(taken_back) = self.taken_back.get() {
            taken_back(topic);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // None if it was closed.
        let left = self.lock().len();
        self.settings.places.give_back(left);
    }
}

impl Turn {
    /// Resolves when all that has to come before has ended.
    pub(crate) async fn comes(&self) {
        poll_fn(|cx| {
            if self.line.of(&mut self.inner.lock()).is_turn(self.number, cx.waker()) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let wakers = self.line.of(&mut self.inner.lock()).leave(self.number);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Line {
    fn of(self, state: &mut State) -> &mut Queue {
        match self {
            Self::Changes => &mut state.queue,
            Self::Messages => &mut state.publishing,
        }
    }
}

impl Settings {
    pub(crate) fn new(driver: Arc<dyn PubSubDriver>, rules: TopicRules, clock: Arc<dyn Clock>) -> Self {
        Self {
            driver,
            places: Places::new(rules.max_subscriptions()),
            rules,
            clock,
            phase: AtomicU8::new(Phase::Ready as u8),
            failed_rollbacks: AtomicU64::new(0),
            connections: Mutex::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::NotReady,
            1 => Phase::Ready,
            _ => Phase::Disposed,
        }
    }

    /// Changes the phase. What is disposed stays so.
    pub(crate) fn enter(&self, phase: Phase) {
        let _ = self.phase.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
            (now != Phase::Disposed as u8).then_some(phase as u8)
        });
    }

    /// The connections that are open.
    pub(crate) fn open_connections(&self) -> Vec<Arc<Inner>> {
        self.connections().1.values().filter_map(Weak::upgrade).collect()
    }

    /// Locks the connections, ignoring poison: no operation is left half done.
    fn connections(&self) -> MutexGuard<'_, (u64, HashMap<u64, Weak<Inner>>)> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
