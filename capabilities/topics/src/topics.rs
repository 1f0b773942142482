//! The topics of one connection.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use futures_util::FutureExt;
use tidings_engine::deliver::FrameChunks;

use crate::abort::{Timer, within};
use crate::change::Change;
use crate::draft::Draft;
use crate::driver::Verification;
use crate::envelope::PublishEnvelope;
use crate::error::MutateError;
use crate::history::{HistoryError, HistoryPage, Since};
use crate::inner::{Inner, Line};
use crate::local::Member;
use crate::message::Message;
use crate::operation::{self, Request};
use crate::options::{MutateOptions, PublishOptions, SettleOptions, VerifyMode, VerifyOptions};
use crate::policy::{ClientId, Removal};
use crate::presence::Presence;
use crate::publish;
use crate::queue::Scope;
use crate::result::PublishResult;
use crate::state::{Changing, LocalStatus, State};

/// The topics that a connection subscribes to, and everything that changes them. Clones share the same set.
///
/// An operation takes its place among the others at the first poll of its future. Operations on the same topic are made
/// one after the other; what one of them comes to is nobody else's business. An operation that finds everything as
/// asked for does nothing at all: it checks nothing, asks nobody and cannot fail.
///
/// Dropping the future of an operation that has not called the driver yet cancels it; later it runs to its end in the
/// background.
#[derive(Clone)]
pub struct Topics {
    inner: Arc<Inner>,
}

/// What a driver says of a subscription.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The answer.
    pub verification: Verification,
    /// Whether it is from the state of the connection, because the driver cannot tell.
    pub local: bool,
}

impl Topics {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Subscribes to a topic.
    pub async fn subscribe(&self, topic: &str, options: &MutateOptions) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Add(vec![self.inner.normal(topic)]), options).await
    }

    /// Unsubscribes from a topic.
    pub async fn unsubscribe(&self, topic: &str, options: &MutateOptions) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Remove(vec![self.inner.normal(topic)]), options).await
    }

    /// Subscribes to all of some topics, or to none if one fails.
    pub async fn subscribe_many<T: AsRef<str>>(
        &self,
        topics: impl IntoIterator<Item = T>,
        options: &MutateOptions,
    ) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Add(self.normal_once(topics)), options).await
    }

    /// Unsubscribes from all of some topics, or from none if one fails.
    pub async fn unsubscribe_many<T: AsRef<str>>(
        &self,
        topics: impl IntoIterator<Item = T>,
        options: &MutateOptions,
    ) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Remove(self.normal_once(topics)), options).await
    }

    /// Unsubscribes from everything.
    pub async fn clear(&self, options: &MutateOptions) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Set(Vec::new()), options).await
    }

    /// Replaces the set: unsubscribes from what is not among some topics and subscribes to what is missing. All or
    /// nothing.
    pub async fn set<T: AsRef<str>>(
        &self,
        topics: impl IntoIterator<Item = T>,
        options: &MutateOptions,
    ) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Set(self.normal_once(topics)), options).await
    }

    /// Replaces the set by what a function makes of it. The function is called when all earlier operations have ended.
    pub async fn update(
        &self,
        change: impl FnOnce(&mut Draft<'_>) + Send,
        options: &MutateOptions,
    ) -> Result<Change, MutateError> {
        operation::run(&self.inner, Request::Update(Box::new(change)), options).await
    }

    /// Waits for the operations that are in flight now, on one topic or on all. How they end does not matter.
    pub async fn settle(&self, topic: Option<&str>, options: &SettleOptions) -> Result<(), MutateError> {
        let turn = self.inner.observe(topic.map(|topic| self.inner.normal(topic)));
        let mut timer = Timer::new(&*self.inner.settings.clock, options.timeout);
        let settled = within(&self.inner, turn.comes(), options.cancel.as_ref(), &mut timer).await;
        settled.map_err(|stop| stop.into_error(Some(false)))
    }

    /// Asks the driver whether the connection subscribes to a topic.
    pub async fn verify(&self, topic: &str, options: &VerifyOptions) -> Result<Verified, MutateError> {
        let topic = self.inner.normal(topic);
        if options.cancel.as_ref().is_some_and(|cancel| cancel.is_cancelled()) {
            let reason = crate::error::AbortReason::Cancelled;
            return Err(crate::error::Aborted { reason, changed: Some(false) }.into());
        }
        let mut timer = Timer::new(&*self.inner.settings.clock, options.timeout);
        let answer = self.inner.settings.driver.is_subscribed(&self.inner.member, &topic);
        let verification = match within(&self.inner, answer, options.cancel.as_ref(), &mut timer).await {
            Ok(verification) => verification,
            Err(crate::abort::Stop::Aborted(crate::error::AbortReason::TimedOut)) => Verification::Timeout,
            Err(stop) => return Err(stop.into_error(Some(false))),
        };
        if matches!(verification, Verification::Unsupported) && options.mode == VerifyMode::BestEffort {
            let verification = if self.inner.lock().contains(&topic) {
                Verification::Subscribed
            } else {
                Verification::Unsubscribed
            };
            return Ok(Verified { verification, local: true });
        }
        Ok(Verified { verification, local: false })
    }

    /// Publishes a message. All failures are values.
    pub async fn publish(&self, envelope: PublishEnvelope, options: PublishOptions) -> PublishResult {
        publish::run(&self.inner, envelope, options).await
    }

    /// Publishes a message with a type. A payload that is not valid is a failure of the publish.
    pub async fn publish_message<M: Message>(
        &self,
        topic: &str,
        payload: &M::Payload,
        options: PublishOptions,
    ) -> PublishResult {
        let envelope = M::envelope(topic, payload);
        match envelope {
            Ok(envelope) => self.publish(envelope, options).await,
            Err(failure) => failure.into(),
        }
    }

    /// A part of the history of a topic: at most so many messages, the oldest ones after a place, or the newest ones. `None` if the
    /// topic has no history. The policy is not asked.
    pub async fn history(
        &self,
        topic: &str,
        since: Option<&Since>,
        most: usize,
    ) -> Result<Option<HistoryPage>, HistoryError> {
        let topic = self.inner.normal(topic);
        match self.inner.settings.history_of(&topic) {
            Some((history, keep)) => history.page(&topic, since, most, keep).await.map(Some),
            None => Ok(None),
        }
    }

    /// The members of a topic on this node. The policy is not asked.
    pub fn presence(&self, topic: &str) -> Presence {
        self.inner.settings.roster.of(&self.inner.normal(topic))
    }

    /// Says what other members see of the connection: an id, and a user. Only the first time counts; without it, members see the
    /// id of the connection.
    pub fn set_seen_as(&self, id: &str, user: Option<&str>) {
        self.inner.set_seen_as(id, user);
    }

    /// Names the client over several connections. What it published without hearing it itself it does not hear in a replay
    /// either. Only the first name counts.
    pub fn set_session(&self, session: &str) {
        self.inner.set_session(session);
    }

    /// Lets the policy forget what it remembers of the connection, because its rights have changed.
    pub fn invalidate_auth(&self) {
        self.inner.gate.invalidate();
    }

    /// Status of a topic, with what is in flight.
    pub fn local_status(&self, topic: &str) -> LocalStatus {
        let topic = self.inner.gate.normalize(topic);
        self.inner.lock().status(&topic)
    }

    /// Whether the connection subscribes to a topic: the driver has accepted it.
    pub fn contains(&self, topic: &str) -> bool {
        let topic = self.inner.gate.normalize(topic);
        self.inner.lock().contains(&topic)
    }

    /// The normal form of a topic.
    pub fn normal(&self, topic: &str) -> Arc<str> {
        self.inner.normal(topic)
    }

    /// Number of topics that the connection subscribes to.
    pub fn len(&self) -> usize {
        self.inner.lock().len()
    }

    /// Whether the connection subscribes to nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The topics that the connection subscribes to now, in the order in which it subscribed to them.
    pub fn snapshot(&self) -> Vec<Arc<str>> {
        self.inner.lock().snapshot()
    }

    /// Iterates over a snapshot.
    pub fn iter(&self) -> std::vec::IntoIter<Arc<str>> {
        self.snapshot().into_iter()
    }

    /// Number of changes of subscriptions that are in flight.
    pub fn in_flight(&self) -> usize {
        self.inner.lock().queue.len()
    }

    /// Takes away the topics for which `matches` holds. The policy is not asked, and no frame of them follows. What is
    /// being subscribed to and matches fails with `ACL_SUBSCRIBE` and the reason. Returns what was taken away, in the
    /// order in which it was subscribed to.
    pub fn remove_where(&self, mut matches: impl FnMut(&str) -> bool, reason: &str) -> Vec<Arc<str>> {
        let mut state = self.inner.lock();
        for (topic, changing) in &mut state.changing {
            if let Changing::Adding { refused } = changing
                && refused.is_none()
                && matches(topic)
            {
                *refused = Some(reason.into());
            }
        }
        let mut topics = state.snapshot();
        topics.retain(|topic| matches(topic));
        self.take_away(state, topics, Removal::Removed)
    }

    /// Ends the subscriptions whose time is over ([`MutateOptions::ttl`]). To be called from time to time. Returns what has
    /// ended.
    pub fn expire(&self) -> Vec<Arc<str>> {
        let state = self.inner.lock();
        let topics = state.expired(self.inner.settings.clock.now());
        self.take_away(state, topics, Removal::Expired)
    }

    /// Ends subscriptions. The policy is not asked, and no frame of them follows.
    fn take_away(
        &self,
        mut state: MutexGuard<'_, State>,
        mut topics: Vec<Arc<str>>,
        why: Removal,
    ) -> Vec<Arc<str>> {
        topics.retain(|topic| state.remove(topic));
        for topic in &topics {
            // Under the lock, so that whoever subscribes to it again does so afterwards.
            self.inner.member.leave(topic);
        }
        drop(state);
        if topics.is_empty() {
            return topics;
        }
        self.inner.settings.give_back(&topics);
        self.inner.leave_presence(&topics);
        self.forget(topics.clone());
        for topic in &topics {
            self.inner.gate.unsubscribed(topic, why);
        }
        topics
    }

    /// Has a function called with each topic whose subscription the driver takes back after it had accepted it. Only the
    /// first function counts.
    pub fn when_taken_back(&self, call: impl Fn(&Arc<str>) + Send + Sync + 'static) {
        // The connection has a function already, which is documented.
        let _ = self.inner.taken_back.set(Box::new(call));
    }

    /// Ends all subscriptions. Operations in flight and later ones fail; nobody is told of the topics. Dropping the
    /// reader of the connection does the same.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Whether the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// The connection.
    pub fn client_id(&self) -> &ClientId {
        self.inner.member.client_id()
    }

    /// The connection as drivers see it.
    pub fn member(&self) -> &Member {
        &self.inner.member
    }

    /// Sends a reply to the connection, before all frames that it has not taken.
    pub fn reply(&self, reply: impl Into<FrameChunks>) {
        self.inner.member.reply(reply, []);
    }

    /// As [`Topics::reply`], but the caller wakes the reader, or polls it. The result is its waker.
    pub fn queue_reply(&self, reply: impl Into<FrameChunks>) -> Option<Waker> {
        self.inner.member.queue_reply(reply, [])
    }

    /// Tells the driver of topics that were taken away, after what is in flight.
    fn forget(&self, topics: Vec<Arc<str>>) {
        let turn = self.inner.arrive(Line::Changes, Scope::Topics(topics.clone()));
        let inner = self.inner.clone();
        let mut work = Box::pin(async move {
            turn.comes().await;
            for topic in &topics {
                // Somebody may have subscribed to it again since.
                if inner.lock().contains(topic) {
                    continue;
                }
                if let Err(error) = inner.settings.driver.unsubscribe(&inner.member, topic).await {
                    tracing::warn!(%topic, %error, "the driver did not forget a topic that was taken away");
                }
            }
        });
        if work.as_mut().now_or_never().is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(work);
        }
    }

    /// Topics in their normal form, each once, in order.
    fn normal_once<T: AsRef<str>>(&self, topics: impl IntoIterator<Item = T>) -> Vec<Arc<str>> {
        let mut seen = HashSet::new();
        let mut normal = Vec::new();
        for topic in topics {
            let topic = self.inner.normal(topic.as_ref());
            if seen.insert(topic.clone()) {
                normal.push(topic);
            }
        }
        normal
    }
}

impl IntoIterator for &Topics {
    type Item = Arc<str>;
    type IntoIter = std::vec::IntoIter<Arc<str>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for Topics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topics")
            .field("client_id", self.client_id())
            .field("topics", &self.snapshot())
            .finish_non_exhaustive()
    }
}
