//! A driver that does what a test tells it: fail, wait, confirm later. And that knows how often it was called.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidings_engine::deliver::BundleReader;
use tokio::sync::oneshot;

use crate::answer::Answer;
use crate::driver::{Count, DriverError, Handover, PubSubDriver, Route, Verification};
use crate::envelope::PublishEnvelope;
use crate::local::Member;
use crate::policy::ClientId;
use crate::result::{Capability, PublishError, PublishFailure, Sent};

/// Wraps a driver and injects faults. Clones share the faults.
#[derive(Clone)]
pub struct Faulty {
    driver: Arc<dyn PubSubDriver>,
    state: Arc<Mutex<State>>,
}

/// A call of a driver.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// A member subscribes to a topic.
    Subscribe(Arc<str>),
    /// A member unsubscribes from a topic.
    Unsubscribe(Arc<str>),
    /// A subscription that was accepted is being confirmed.
    Confirm(Arc<str>),
    /// A message is sent.
    Publish(Arc<str>),
    /// A subscription is verified.
    Verify(Arc<str>),
    /// A member is removed.
    Remove(ClientId),
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// Numbers of the calls that fail, from the next one on.
    failing: BTreeSet<usize>,
    /// Calls that fail whenever they are made.
    broken: Vec<Call>,
    holds: bool,
    confirms: bool,
    verifies_not: bool,
    backpressure: bool,
    held: Vec<(Call, oneshot::Sender<bool>)>,
    most_topics: usize,
}

impl Faulty {
    /// Wraps a driver. Nothing fails until it is told to.
    pub fn new(driver: Arc<dyn PubSubDriver>) -> Self {
        Self { driver, state: Arc::default() }
    }

    /// Returns the calls since the last time, in order.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.lock().calls)
    }

    /// Lets the n-th call from now on fail; the next one is number 0. Verifications and removals do not count.
    pub fn fail(&self, n: usize) {
        self.lock().failing.insert(n);
    }

    /// Lets a call fail whenever it is made.
    pub fn breaks(&self, call: Call) {
        self.lock().broken.push(call);
    }

    /// Ends all faults. Calls that wait keep waiting.
    pub fn heal(&self) {
        let mut state = self.lock();
        state.failing.clear();
        state.broken.clear();
        state.holds = false;
        state.confirms = false;
    }

    /// Sets whether calls wait for [`Faulty::release`].
    pub fn hold(&self, holds: bool) {
        self.lock().holds = holds;
    }

    /// Sets whether subscriptions are accepted at once and confirmed by [`Faulty::release`].
    pub fn confirm_later(&self, confirms: bool) {
        self.lock().confirms = confirms;
    }

    /// Lets the driver be unable to verify.
    pub fn cannot_verify(&self) {
        self.lock().verifies_not = true;
    }

    /// Sets whether publishing fails because a queue is full.
    pub fn push_back(&self, backpressure: bool) {
        self.lock().backpressure = backpressure;
    }

    /// The calls that wait, in the order in which they were made.
    pub fn waiting(&self) -> Vec<Call> {
        let mut state = self.lock();
        state.held.retain(|(_, held)| !held.is_closed());
        state.held.iter().map(|(call, _)| call.clone()).collect()
    }

    /// Lets a call that waits go on, and succeed or fail.
    pub fn release(&self, at: usize, succeeds: bool) {
        let (_, held) = {
            let mut state = self.lock();
            state.held.retain(|(_, held)| !held.is_closed());
            state.held.remove(at)
        };
        // Whoever has dropped the call is not interested.
        let _ = held.send(succeeds);
    }

    /// The most topics that a member has had at the wrapped driver.
    pub fn most_topics(&self) -> usize {
        self.lock().most_topics
    }

    /// Notes a call. Tells whether it is to succeed, at once or later.
    fn begin(&self, call: Call) -> Answer<'static, bool> {
        let mut state = self.lock();
        let fails = state.failing.remove(&0) || state.broken.contains(&call);
        state.failing = state.failing.iter().map(|n| n - 1).collect();
        state.calls.push(call.clone());
        if !state.holds {
            return Answer::now(!fails);
        }
        let (held, released) = oneshot::channel();
        state.held.push((call, held));
        drop(state);
        Answer::later(async move {
            match released.await {
                Ok(succeeds) => succeeds && !fails,
                // The test is over.
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn note(&self, member: &Member) {
        let mut state = self.lock();
        state.most_topics = state.most_topics.max(member.len());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The failure that is injected.
fn injected() -> DriverError {
    DriverError::new("an injected failure").transient(true)
}

/// Goes on at once if the answer is there, so that a driver that never waits stays one.
fn then<'a, T: Send + 'a>(
    begun: Answer<'static, bool>,
    next: impl FnOnce(bool) -> Answer<'a, T> + Send + 'a,
) -> Answer<'a, T> {
    match begun {
        Answer::Now(Some(succeeds)) => next(succeeds),
        later => Answer::later(async move {
            let succeeds = later.await;
            next(succeeds).await
        }),
    }
}

impl PubSubDriver for Faulty {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn capability(&self) -> Capability {
        self.driver.capability()
    }

    fn connect(&self, client_id: ClientId) -> (Member, BundleReader) {
        self.driver.connect(client_id)
    }

    fn subscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<Handover, DriverError>> {
        let confirms = self.lock().confirms;
        let begun = if confirms {
            self.lock().calls.push(Call::Subscribe(topic.clone()));
            Answer::now(true)
        } else {
            self.begin(Call::Subscribe(topic.clone()))
        };
        then(begun, move |succeeds| {
            if !succeeds {
                return Answer::now(Err(injected()));
            }
            Answer::later(async move {
                let handover = self.driver.subscribe(member, topic).await;
                self.note(member);
                if !confirms || handover.is_err() {
                    return handover;
                }
                let was_held = std::mem::replace(&mut self.lock().holds, true);
                let confirmation = self.begin(Call::Confirm(topic.clone()));
                self.lock().holds = was_held;
                Ok(Handover::Confirming(Box::pin(async move {
                    if confirmation.await { Ok(()) } else { Err(injected()) }
                })))
            })
        })
    }

    fn unsubscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<(), DriverError>> {
        then(self.begin(Call::Unsubscribe(topic.clone())), move |succeeds| {
            if succeeds { self.driver.unsubscribe(member, topic) } else { Answer::now(Err(injected())) }
        })
    }

    fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
    ) -> Answer<'a, Result<Sent, PublishFailure>> {
        if self.lock().backpressure {
            return Answer::now(Err(PublishFailure::new(PublishError::Backpressure).by(self.name())));
        }
        then(self.begin(Call::Publish(Arc::from(envelope.topic.as_str()))), move |succeeds| {
            if succeeds {
                return self.driver.publish(envelope, route);
            }
            let failure = PublishFailure::new(PublishError::AdapterError).by(self.name());
            Answer::now(Err(failure.with("transient", true).because(injected())))
        })
    }

    fn is_subscribed<'a>(&'a self, member: &'a Member, topic: &'a str) -> Answer<'a, Verification> {
        if self.lock().verifies_not {
            return Answer::now(Verification::Unsupported);
        }
        let call = Call::Verify(Arc::from(topic));
        if !self.lock().holds {
            let broken = self.lock().broken.contains(&call);
            self.lock().calls.push(call);
            if broken {
                return Answer::now(Verification::Error(injected()));
            }
            return self.driver.is_subscribed(member, topic);
        }
        then(self.begin(call), move |succeeds| {
            if succeeds {
                self.driver.is_subscribed(member, topic)
            } else {
                Answer::now(Verification::Error(injected()))
            }
        })
    }

    fn local_subscribers(&self, topic: &str) -> Vec<ClientId> {
        self.driver.local_subscribers(topic)
    }

    fn deliver_local(&self, envelope: &PublishEnvelope) -> usize {
        self.driver.deliver_local(envelope)
    }

    fn count<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<Count, DriverError>> {
        self.driver.count(topic)
    }

    fn remove(&self, member: &Member) {
        self.lock().calls.push(Call::Remove(member.client_id().clone()));
        self.driver.remove(member);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Subscribe(topic) => write!(f, "+{topic}"),
            Self::Unsubscribe(topic) => write!(f, "-{topic}"),
            Self::Confirm(topic) => write!(f, "?{topic}"),
            Self::Publish(topic) => write!(f, ">{topic}"),
            Self::Verify(topic) => write!(f, "={topic}"),
            Self::Remove(client_id) => write!(f, "x{client_id}"),
        }
    }
}
