use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tidings_engine::bus::messages::LocalMessages;
use tidings_engine::log::{Memory, StateMachine};
use tidings_engine::{Bus, ManualClock};
use tidings_model::{Pattern, ProjectId, Timestamp};
use tokio::task::JoinHandle;

use super::*;
use crate::revocation::Key;
use crate::{Given, Randomness, Subject, Table};

const NOW: Timestamp = Timestamp::from_millis(50_000_000_000);

struct NoRandomness;

impl Randomness for NoRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}

/// A bus that can be away for one node.
#[derive(Clone, Default)]
struct Wire {
    bus: LocalMessages,
    is_cut: Arc<AtomicBool>,
}

impl MessageBus for Wire {
    fn publish<'a>(&'a self, channel: &'a str, message: Bytes) -> BoxFuture<'a, Result<(), BusError>> {
        if self.is_cut.load(Ordering::SeqCst) {
            return std::future::ready(Err(BusError::Failed("it is cut".to_owned()))).boxed();
        }
        self.bus.publish(channel, message)
    }

    fn join(&self, bytes_max: usize) -> Joined {
        self.bus.join(bytes_max)
    }
}

struct Node {
    projects: Projects,
    wire: Wire,
    metrics: Metrics,
    clock: ManualClock,
    running: Option<JoinHandle<()>>,
}

impl Node {
    async fn new(bus: &LocalMessages, projects: &[&str]) -> Self {
        let clock = ManualClock::at(NOW);
        let store = Arc::new(Memory::<Table>::new(Bus::new(), Arc::new(clock.clone())));
        let all = Projects::open(store, Arc::new(NoRandomness), Given::default());
        for project in projects {
            all.create(&id(project), None).await.expect("a new project");
        }
        let wire = Wire { bus: bus.clone(), ..Wire::default() };
        Self { projects: all, wire, metrics: Metrics::new(), clock, running: None }
    }

    async fn started(bus: &LocalMessages, number: u64, projects: &[&str]) -> Self {
        Self::new(bus, projects).await.start(number).await
    }

    async fn start(mut self, number: u64) -> Self {
        let (bus, clock) = (Arc::new(self.wire.clone()), Arc::new(self.clock.clone()));
        let exchange = Exchange::new(self.projects.clone(), bus, number, clock, &self.metrics);
        self.running = Some(tokio::spawn(async move { exchange.run().await }));
        settle().await;
        self
    }

    async fn revoke(&self, subject: Subject, topics: Option<&[&str]>, at: Timestamp) {
        let pattern = |text: &&str| Pattern::parse(text).expect("a pattern");
        let topics = topics.map(|topics| topics.iter().map(pattern).collect());
        let revocation = Revocation { project: id("app"), subject, topics, at };
        self.projects.revoke(revocation).await.expect("it is revoked");
    }

    fn has(&self, subject: &Subject, topic: Option<&str>, at: Timestamp) -> bool {
        let topic = topic.map(|text| Pattern::parse(text).expect("a pattern"));
        self.projects.revoked_up_to(&(id("app"), subject.clone(), topic)) == Some(at)
    }

    fn exchanged(&self, outcome: &str) -> u64 {
        self.metrics.counter(EXCHANGED, &[("outcome", outcome)]).get()
    }

    fn all(&self) -> Vec<(Key, Timestamp)> {
        let everything = self.projects.revocation_digests().differing(&all_differ(&self.projects));
        self.projects.revocations_of(&everything, None, usize::MAX).rows
    }

    /// Says something on the bus as another node.
    async fn hears_rows(&self, mut rows: Vec<Row>) {
        let message = message::pack_rows(99, &mut rows).expect("there are some");
        self.wire.bus.publish(CHANNEL, message).await.expect("it is published");
        settle().await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.abort();
        }
    }
}

/// Digests that differ in every bucket from those of some projects.
fn all_differ(projects: &Projects) -> crate::revocation::digests::Digests {
    let digests = projects.revocation_digests().as_array().map(|digest| digest.wrapping_add(1));
    crate::revocation::digests::Digests::new(Box::new(digests))
}

/// Lets all tasks do what they can.
async fn settle() {
    for _ in 0..500 {
        tokio::task::yield_now().await;
    }
}

fn id(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

fn user(name: &str) -> Subject {
    Subject::User(name.into())
}

fn token(name: &str) -> Subject {
    Subject::Token(name.into())
}

fn later(millis: u64) -> Timestamp {
    NOW + Duration::from_millis(millis)
}

#[tokio::test]
async fn what_is_revoked_on_one_node_is_revoked_on_all_and_stored_once() {
    let bus = LocalMessages::new();
    let mut nodes = Vec::new();
    for number in 0..3 {
        nodes.push(Node::started(&bus, number, &["app"]).await);
    }
    nodes[0].revoke(user("alice"), None, later(1)).await;
    nodes[1].revoke(token("t"), Some(&["room:*", "news"]), later(2)).await;
    settle().await;
    for node in &nodes {
        assert!(node.has(&user("alice"), None, later(1)));
        assert!(
            node.has(&token("t"), Some("room:*"), later(2)) && node.has(&token("t"), Some("news"), later(2))
        );
        assert_eq!(node.all().len(), 3);
    }
    assert_eq!([0, 1, 2].map(|n: usize| nodes[n].exchanged("taken")), [2, 1, 3]);
    // A repetition with an earlier moment changes nothing.
    let before = nodes[2].projects.generation();
    nodes[2].hears_rows(vec![((id("app"), user("alice"), None), NOW)]).await;
    assert_eq!(nodes[2].projects.generation(), before);
}

#[tokio::test]
async fn a_node_that_was_not_there_learns_what_it_missed_and_tells_what_it_alone_has() {
    const EACH: u64 = 400;
    let bus = LocalMessages::new();
    let one = Node::started(&bus, 1, &["app"]).await;
    let two = Node::started(&bus, 2, &["app"]).await;
    let late = Node::new(&bus, &["app"]).await;
    for number in 0..EACH {
        one.revoke(user(&format!("of one {number}")), None, later(number)).await;
        late.revoke(token(&format!("of the late one {number}")), Some(&["a"]), later(number)).await;
    }
    // Both have it, with different moments.
    one.revoke(user("both"), None, later(5)).await;
    late.revoke(user("both"), None, later(7)).await;
    settle().await;
    let late = late.start(3).await;
    while one.all().len() + two.all().len() + late.all().len() < 3 * (2 * EACH as usize + 1) {
        settle().await;
    }
    settle().await;
    assert_eq!(one.all(), late.all());
    assert_eq!(two.all(), late.all());
    assert!(one.has(&user("both"), None, later(7)) && late.has(&user("both"), None, later(7)));
    assert_eq!(one.projects.revocation_digests(), late.projects.revocation_digests());
    assert_eq!((late.exchanged("taken"), late.exchanged("refused")), (EACH, 0));
}

#[tokio::test]
async fn what_the_bus_did_not_take_is_told_when_it_is_back() {
    let bus = LocalMessages::new();
    let one = Node::started(&bus, 1, &["app"]).await;
    let two = Node::started(&bus, 2, &["app"]).await;
    one.wire.is_cut.store(true, Ordering::SeqCst);
    one.revoke(user("alice"), None, later(1)).await;
    // More than are told one by one.
    for number in 0..3 * limits::REVOCATIONS_UNSENT {
        one.revoke(user(&number.to_string()), None, later(1)).await;
    }
    settle().await;
    assert!(two.all().is_empty());
    two.revoke(user("bob"), None, later(2)).await;
    settle().await;
    assert!(one.has(&user("bob"), None, later(2)), "it hears although it cannot speak");
    one.wire.is_cut.store(false, Ordering::SeqCst);
    assert_eq!(one.clock.sleepers(), 1);
    one.clock.advance(limits::REVOCATIONS_RETRY);
    settle().await;
    assert_eq!(one.all(), two.all());
    assert!(two.has(&user("alice"), None, later(1)));
}

#[tokio::test]
async fn revocations_of_a_project_that_a_node_does_not_have_come_with_the_project() {
    let bus = LocalMessages::new();
    let one = Node::started(&bus, 1, &["app"]).await;
    let two = Node::started(&bus, 2, &[]).await;
    one.revoke(user("alice"), None, later(1)).await;
    settle().await;
    assert!(two.all().is_empty());
    two.projects.create(&id("app"), None).await.expect("a new project");
    settle().await;
    assert!(two.has(&user("alice"), None, later(1)));
}

#[tokio::test]
async fn a_moment_far_ahead_or_expired_is_not_taken_over() {
    let bus = LocalMessages::new();
    let node = Node::started(&bus, 1, &["app"]).await;
    node.revoke(user("kept"), None, NOW).await;
    let ahead = NOW + limits::REVOCATION_AHEAD;
    let expired = Timestamp::from_millis(NOW.as_millis() - limits::REVOCATION_LIFETIME.as_millis() as u64);
    node.hears_rows(vec![
        ((id("app"), user("far"), None), Timestamp::from_millis(u64::MAX)),
        ((id("app"), user("too far"), None), ahead + Duration::from_millis(1)),
        ((id("app"), user("just"), None), ahead),
        ((id("app"), user("expired"), None), expired),
        ((id("app"), user("old"), None), expired + 2 * limits::REVOCATION_AHEAD),
    ])
    .await;
    let names: Vec<_> = node.all().into_iter().map(|((_, subject, _), _)| subject).collect();
    assert_eq!(names, [user("just"), user("kept"), user("old")]);
    assert_eq!((node.exchanged("taken"), node.exchanged("refused")), (2, 2));
}

#[tokio::test]
async fn nodes_that_have_the_same_say_nothing_but_their_digests() {
    let bus = LocalMessages::new();
    let one = Node::started(&bus, 1, &["app"]).await;
    let two = Node::started(&bus, 2, &["app"]).await;
    one.revoke(user("alice"), None, later(1)).await;
    settle().await;
    assert_eq!(one.all(), two.all());
    let Joined { interest, mut arrivals } = bus.join(1 << 20);
    interest.subscribe(CHANNEL).await.expect("a subscription");
    let _three = Node::new(&bus, &["app"]).await;
    let question = message::pack_summary(3, &one.projects.revocation_digests(), true);
    bus.publish(CHANNEL, question).await.expect("it is published");
    settle().await;
    let Some(Some(Arrival::Message { .. })) = arrivals.next().now_or_never() else { panic!("the question") };
    assert_eq!(arrivals.next().now_or_never(), None, "nobody answers");
}

#[test]
fn digests_are_those_of_the_rows_whatever_happened_before() {
    let mut table = Table::default();
    let revoke = |name: String, at| {
        crate::Change::Revoke(Revocation { project: id("app"), subject: user(&name), topics: None, at })
    };
    for number in 0..300 {
        table.apply(revoke(number.to_string(), later(number)));
    }
    for number in (0..300).step_by(3) {
        table.apply(revoke(number.to_string(), later(1000 + number)));
    }
    let mut again = Table::default();
    for number in (0..300u64).rev() {
        let at = if number.is_multiple_of(3) { 1000 + number } else { number };
        again.apply(revoke(number.to_string(), later(at)));
    }
    assert_eq!(table.all_revocations().digests(), again.all_revocations().digests());
    assert_eq!(table.copied().all_revocations().digests(), again.all_revocations().digests());
    // All but one expire.
    let last = later(2000) + limits::REVOCATION_LIFETIME;
    table.apply(revoke("last".to_owned(), last));
    let mut only = Table::default();
    only.apply(revoke("last".to_owned(), last));
    assert_eq!(table.all_revocations().digests(), only.all_revocations().digests());
    table.apply(crate::Change::Create { project: id("app"), key: crate::Key::draw(&NoRandomness) });
    table.apply(crate::Change::Remove { project: id("app") });
    assert_eq!(table.all_revocations().digests(), Table::default().all_revocations().digests());
}
