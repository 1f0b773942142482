//! The shared state of a connection, and the turns of its operations.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;

use bytes::Bytes;
use tidings_engine::{Clock, DetachOnDrop};
use tokio::sync::Notify;

use crate::answer::Answer;
use crate::crowd::Crowd;
use crate::driver::{PubSubDriver, Route};
use crate::envelope::PublishEnvelope;
use crate::history::{History, Outgoing};
use crate::local::{JsonText, Member};
use crate::places::Places;
use crate::policy::{Gate, Removal};
use crate::presence::{Announce, Present, PresentMember, Roster};
use crate::queue::{Queue, Scope};
use crate::result::{PublishFailure, Sent};
use crate::state::State;
use crate::topic::{Keep, TopicRules};

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
    /// History of the topics that have one.
    pub(crate) history: Option<History>,
    /// Members of topics.
    pub(crate) roster: Roster,
    pub(crate) announce: Arc<dyn Announce>,
    /// Subscriptions to topics that may have only so many.
    pub(crate) crowd: Crowd,
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
    /// Name of the client over several connections.
    session: OnceLock<Arc<str>>,
    /// What others see of the connection.
    seen_as: OnceLock<(Arc<str>, Option<Arc<str>>)>,
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
            session: OnceLock::new(),
            seen_as: OnceLock::new(),
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

    /// Name of the client over several connections, if it has one.
    pub(crate) fn session(&self) -> Option<Arc<str>> {
        self.session.get().cloned()
    }

    pub(crate) fn set_session(&self, session: &str) {
        // It has one already, which is documented.
        let _ = self.session.set(session.into());
    }

    /// Says what others see of the connection. Only the first time counts.
    pub(crate) fn set_seen_as(&self, id: &str, user: Option<&str>) {
        let _ = self.seen_as.set((id.into(), user.map(Into::into)));
    }

    /// Makes the connection a member of topics that it subscribes to.
    pub(crate) fn join_presence(&self, topics: &[Arc<str>], info: Option<&Bytes>) {
        let unnamed = || (self.member.client_id().as_str().into(), None);
        let (id, user) = self.seen_as.get().cloned().unwrap_or_else(unnamed);
        let since = self.settings.clock.now();
        for topic in topics {
            let joining = PresentMember {
                present: Present { id: id.clone(), user: user.clone(), info: info.cloned() },
                since,
            };
            // Under the lock, so that whoever ends the subscription ends the membership too.
            let state = self.lock();
            if !state.contains(topic) || state.closed {
                continue;
            }
            // An error means that the connection is about to close.
            let _ = self.settings.roster.join(&self.member, topic, joining, &*self.settings.announce);
        }
    }

    /// Ends the membership of topics that the connection does not subscribe to any more.
    pub(crate) fn leave_presence<'a>(&self, topics: impl IntoIterator<Item = &'a Arc<str>>) {
        if self.settings.roster.is_empty() {
            return;
        }
        for topic in topics {
            self.settings.roster.leave(&self.member, topic, &*self.settings.announce);
        }
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
        self.settings.give_back(&left);
        self.member.seal();
        self.settings.driver.remove(&self.member);
        self.leave_presence(&left);
        self.settings.connections().1.remove(&self.number);
        self.closing.notify_waiters();
    }

    /// Takes a subscription away that the driver has refused after it was made.
    pub(crate) async fn take_back(&self, topic: &Arc<str>) {
        if self.lock().remove(topic) {
            self.settings.give_back([topic]);
        }
        self.member.leave(topic);
        self.leave_presence([topic]);
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
        let left = self.lock().close();
        self.settings.give_back(&left);
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
            history: None,
            roster: Roster::default(),
            announce: Arc::new(JsonText),
            crowd: Crowd::default(),
            rules,
            clock,
            phase: AtomicU8::new(Phase::Ready as u8),
            failed_rollbacks: AtomicU64::new(0),
            connections: Mutex::default(),
        }
    }

    /// Forgets subscriptions that have ended.
    pub(crate) fn give_back<'a>(&self, topics: impl IntoIterator<Item = &'a Arc<str>, IntoIter: Clone>) {
        let topics = topics.into_iter();
        self.places.give_back(topics.clone().count());
        self.crowd.leave(&self.rules, topics);
    }

    /// The history of a topic and what it keeps, if it has one.
    pub(crate) fn history_of(&self, topic: &str) -> Option<(&History, Keep)> {
        self.history.as_ref().zip(self.rules.history(topic))
    }

    /// Hands a checked message to the driver, or to the history of its topic. `sender` names who does not hear it.
    pub(crate) fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
        sender: impl FnOnce() -> Option<Arc<str>>,
    ) -> Answer<'a, Result<Sent, PublishFailure>> {
        let Some((history, keep)) = self.history_of(&envelope.topic) else {
            return self.driver.publish(envelope, route);
        };
        let exclude = route.exclude.cloned();
        let sender = if exclude.is_some() { sender() } else { None };
        let outgoing = Outgoing { envelope: envelope.clone(), exclude, sender };
        // What is durable is delivered, whoever waits for the answer.
        let publish = history.clone().publish(keep, outgoing, self.driver.clone());
        Answer::later(DetachOnDrop::new(publish))
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
