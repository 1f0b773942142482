//! The state machine against a simple model: random operations, failures, cancellations, drops, revocations and a close, in
//! random interleavings.
//!
//! Every call of the driver waits until the test lets it succeed or fail. The model does one thing after the other on
//! plain lists; after each step both must agree on what is subscribed to, what is pending, what the driver is being asked,
//! and which operation has ended how.

mod reference;

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tidings_topics::{
    CancellationToken, Change, ErrorDetails, LocalStatus, MutateError, MutateOptions, PubSubErrorCode, Topics,
};

use self::reference::{Asked, Model, Outcome, TOPICS};
use crate::recorder::{Watched, watched};
use crate::support::{Client, message, now};

/// Topics that a connection may hold in these tests.
const LIMIT: usize = 3;

/// What is asked for. Topics are numbers in [`TOPICS`].
#[derive(Clone, Debug)]
pub enum Kind {
    Add(Vec<usize>),
    Remove(Vec<usize>),
    Set(Vec<usize>),
    /// Remove, then add.
    Update(Vec<usize>, Vec<usize>),
    Clear,
}

#[derive(Clone, Debug)]
enum Step {
    Begin(Kind),
    /// Lets one of the driver's waiting calls end.
    Release(usize, bool),
    Cancel(usize),
    Drop(usize),
    Revoke(usize),
    Close,
}

fn topics() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..TOPICS.len(), 0..4)
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => (0..TOPICS.len()).prop_map(|topic| Kind::Add(vec![topic])),
        4 => (0..TOPICS.len()).prop_map(|topic| Kind::Remove(vec![topic])),
        2 => topics().prop_map(Kind::Add),
        2 => topics().prop_map(Kind::Remove),
        3 => topics().prop_map(Kind::Set),
        2 => (topics(), topics()).prop_map(|(removed, added)| Kind::Update(removed, added)),
        1 => Just(Kind::Clear),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => kind().prop_map(Step::Begin),
        60 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(at, succeeds)| Step::Release(at, succeeds)),
        5 => any::<usize>().prop_map(Step::Cancel),
        5 => any::<usize>().prop_map(Step::Drop),
        5 => (0..TOPICS.len()).prop_map(Step::Revoke),
        1 => Just(Step::Close),
    ]
}

/// An operation that somebody waits for.
struct Running {
    id: usize,
    cancel: CancellationToken,
    future: BoxFuture<'static, Result<Change, MutateError>>,
}

struct Run {
    world: Watched,
    client: Client,
    model: Model,
    running: Vec<Running>,
    begun: usize,
}

fn named(topics: &[usize]) -> Vec<&'static str> {
    topics.iter().map(|topic| TOPICS[*topic]).collect()
}

fn begin(
    topics: Topics,
    kind: Kind,
    options: MutateOptions,
) -> BoxFuture<'static, Result<Change, MutateError>> {
    Box::pin(async move {
        match kind {
            Kind::Add(names) if names.len() == 1 => topics.subscribe(TOPICS[names[0]], &options).await,
            Kind::Add(names) => topics.subscribe_many(named(&names), &options).await,
            Kind::Remove(names) if names.len() == 1 => topics.unsubscribe(TOPICS[names[0]], &options).await,
            Kind::Remove(names) => topics.unsubscribe_many(named(&names), &options).await,
            Kind::Set(names) => topics.set(named(&names), &options).await,
            Kind::Clear => topics.clear(&options).await,
            Kind::Update(removed, added) => {
                let update = topics.update(
                    |draft| {
                        for topic in named(&removed) {
                            draft.remove(topic);
                        }
                        for topic in named(&added) {
                            draft.insert(topic);
                        }
                    },
                    &options,
                );
                update.await
            }
        }
    })
}

fn outcome(result: Result<Change, MutateError>) -> Outcome {
    match result {
        Ok(change) => Outcome::Done(change.added, change.removed, change.total),
        Err(MutateError::Aborted(aborted)) => {
            assert_eq!(aborted.changed, Some(false));
            Outcome::Cancelled
        }
        Err(MutateError::Unverified { .. }) => panic!("nothing is verified"),
        Err(MutateError::PubSub(error)) => match (error.code, error.details) {
            (PubSubErrorCode::AdapterError, ErrorDetails::Adapter { failed_rollback_topics, .. }) => {
                Outcome::Failed(failed_rollback_topics.iter().map(|topic| topic.to_string()).collect())
            }
            (PubSubErrorCode::TopicLimitExceeded, _) => Outcome::Limit,
            (PubSubErrorCode::AclSubscribe, _) => Outcome::Denied,
            (PubSubErrorCode::ConnectionClosed, _) => Outcome::Closed,
            (code, details) => panic!("{code:?} {details:?}"),
        },
    }
}

impl Run {
    fn new() -> Self {
        let world = watched(Some(LIMIT));
        let client = world.client();
        world.driver.hold(true);
        Self { world, client, model: Model::new(LIMIT), running: Vec::new(), begun: 0 }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Begin(kind) => {
                let (id, cancel) = (self.begun, CancellationToken::new());
                self.begun += 1;
                self.model.begin(id, kind.clone());
                let options = MutateOptions::default().cancelled_by(cancel.clone());
                let future = begin(self.client.topics.clone(), kind, options);
                self.running.push(Running { id, cancel, future });
            }
            Step::Release(at, succeeds) => {
                let waiting = self.model.waiting();
                if waiting.is_empty() {
                    return;
                }
                let asked = waiting[at % waiting.len()].clone();
                self.model.release(&asked, succeeds);
                let index = self.waiting().iter().position(|other| *other == asked).expect("it waits");
                self.world.driver.release(index, succeeds);
            }
            Step::Cancel(at) if !self.running.is_empty() => {
                let running = &self.running[at % self.running.len()];
                running.cancel.cancel();
                self.model.cancel(running.id);
            }
            Step::Drop(at) if !self.running.is_empty() => {
                let running = self.running.swap_remove(at % self.running.len());
                self.model.leave(running.id);
            }
            Step::Cancel(_) | Step::Drop(_) => return,
            Step::Revoke(topic) => {
                let removed = self.client.topics.remove_where(|name| name == TOPICS[topic], "revoked");
                assert_eq!(removed.len(), usize::from(self.model.revoke(TOPICS[topic])));
            }
            Step::Close => {
                self.client.topics.close();
                self.model.close();
            }
        }
        self.compare().await;
    }

    fn waiting(&self) -> Vec<Asked> {
        self.world.driver.waiting().iter().map(|call| format!("{call:?}")).collect()
    }

    /// Lets everything run that can, and compares all that can be seen.
    async fn compare(&mut self) {
        for _ in 0..3 {
            // In the order of arrival, as an executor might do it.
            self.running.sort_by_key(|running| running.id);
            let mut ended = Vec::new();
            self.running.retain_mut(|running| match (&mut running.future).now_or_never() {
                Some(result) => {
                    ended.push((running.id, outcome(result)));
                    false
                }
                None => true,
            });
            for (id, outcome) in ended {
                assert_eq!(self.model.take_outcome(id), Some(outcome), "operation {id}");
            }
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
        let waited_for: BTreeSet<usize> = self.running.iter().map(|running| running.id).collect();
        let ended = self.model.untaken();
        assert!(ended.is_disjoint(&waited_for), "the model has ended {ended:?} of {waited_for:?}");
        let mut waiting = self.waiting();
        waiting.sort();
        assert_eq!(waiting, self.model.waiting());
        let topics = &self.client.topics;
        let held: Vec<Arc<str>> = topics.snapshot();
        assert_eq!(held.iter().map(|topic| &**topic).collect::<Vec<_>>(), self.model.held);
        assert!(self.world.hub.subscriptions() >= held.len(), "what is held has its place");
        for topic in TOPICS {
            assert_eq!(topics.local_status(topic), self.model.status(topic), "{topic}");
            assert_eq!(topics.member().is_in(topic), self.model.driver.contains(topic), "{topic}");
        }
        assert!(
            self.world.driver.most_topics() <= LIMIT || self.model.lost_control,
            "the limit holds at the driver"
        );
    }

    /// Lets everything end, and listens.
    async fn end(mut self) {
        while !self.model.waiting().is_empty() {
            self.step(Step::Release(0, true)).await;
        }
        assert!(self.running.is_empty(), "nobody waits for ever");
        assert_eq!(self.client.topics.in_flight(), 0);
        assert_eq!(self.world.hub.subscriptions(), self.model.held.len(), "no place is lost or left taken");
        self.world.driver.hold(false);
        for topic in TOPICS {
            let sent = now(self.world.hub.publish(message(topic, topic), Default::default()));
            assert_eq!(sent.matched(), Some(u64::from(self.model.driver.contains(topic))), "{topic}");
        }
        if !self.model.lost_control {
            let heard = self.client.hears_sorted(self.model.held.len()).await;
            let mut held = self.model.held.clone();
            held.sort_unstable();
            assert_eq!(heard, held, "nothing is held back");
            for topic in TOPICS {
                let expected = match self.model.driver.contains(topic) {
                    true => LocalStatus::Settled,
                    false => LocalStatus::Absent,
                };
                assert_eq!(self.client.topics.local_status(topic), expected);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn operations_in_any_interleaving_do_what_the_model_does(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async move {
            let mut run = Run::new();
            for step in steps {
                run.step(step).await;
            }
            run.end().await;
        });
    }
}
