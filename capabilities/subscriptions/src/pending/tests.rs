use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use tidings_engine::WallClock;
use tidings_engine::log::{Append, ChangeFeed, Commit, Commits, Logs, Memory, Operation};
use tidings_model::{Position, Timestamp};
use tidings_streams::table::Cause;
use tidings_streams::{ContentType, Expiry, Owner, Stream, StreamState};

use super::*;
use crate::Glob;
use crate::contract::StreamsAndSubscriptions;
use crate::subscription::{Config, Delivery, Phase, State, SubscriptionId};
use crate::table::{LinkKind, NewLink};

/// What happens to streams `s0` and `s1` and subscriptions 0 to 2. Even subscriptions have the pattern `*`.
#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    Append(usize),
    Delete(usize),
    Subscribe(usize),
    Name(usize, usize),
    Unname(usize, usize),
    Acknowledge(usize, usize),
    End(usize),
    Clear(usize),
    /// Look up what was noted so far.
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, subscription) = (0..2usize, 0..3usize);
    prop_oneof![
        stream.clone().prop_map(Step::Create),
        stream.clone().prop_map(Step::Append),
        stream.clone().prop_map(Step::Append),
        stream.clone().prop_map(Step::Delete),
        subscription.clone().prop_map(Step::Subscribe),
        (subscription.clone(), stream.clone()).prop_map(|(of, stream)| Step::Name(of, stream)),
        (subscription.clone(), stream.clone()).prop_map(|(of, stream)| Step::Unname(of, stream)),
        (subscription.clone(), stream).prop_map(|(of, stream)| Step::Acknowledge(of, stream)),
        subscription.clone().prop_map(Step::End),
        subscription.prop_map(Step::Clear),
        Just(Step::Look),
    ]
}

/// A store, and what is known to be in it.
struct Scene {
    store: Memory<StreamsAndSubscriptions>,
    pending: Pending,
    _notes: Arc<Notes>,
    streams: BTreeMap<usize, LogId>,
    /// Number of each subscription, and whether it has ended.
    subscriptions: BTreeMap<usize, (LogId, bool)>,
}

fn key(stream: usize) -> StreamKey {
    let id = StreamId::parse(&format!("s{stream}")).expect("an id");
    StreamKey { project: ProjectId::default_project(), id }
}

fn subscription(of: usize) -> Subscription {
    let wake = StreamId::parse("wake").expect("an id");
    let config = Config {
        delivery: Delivery::PullWake { stream: wake },
        pattern: of.is_multiple_of(2).then(|| Glob::parse("*").expect("a glob")),
        lease_ms: 1000,
        description: None,
        payload: false,
        max_attempts: 1,
    };
    Subscription {
        project: ProjectId::default_project(),
        id: SubscriptionId::parse(&of.to_string()).expect("an id"),
        config: Arc::new(config),
        digest: "".into(),
        root: "".into(),
        created_at: Timestamp::from_millis(0),
        phase: Phase::Active,
        state: State::default(),
        unlinked: 0,
    }
}

impl Scene {
    fn new() -> Self {
        let bus = Bus::new();
        let store = Memory::<StreamsAndSubscriptions>::new(bus.clone(), Arc::new(WallClock));
        let notes = Arc::new(Notes::default());
        let observer: Arc<dyn Observer<Table>> = notes.clone();
        ChangeFeed::<Table>::observe(&store, &observer);
        let observer: Arc<dyn Observer<tidings_streams::Table>> = notes.clone();
        ChangeFeed::<tidings_streams::Table>::observe(&store, &observer);
        let pending = Pending::new(bus, notes.clone());
        Self { store, pending, _notes: notes, streams: BTreeMap::new(), subscriptions: BTreeMap::new() }
    }

    async fn commit(&self, commit: Commit<Change>) {
        Commits::<Table>::commit(&self.store, commit).await.expect("the commit is good");
    }

    async fn change(&self, change: Change) {
        self.commit(Commit::new().changing(change)).await;
    }

    fn living(&self, of: usize) -> Option<LogId> {
        self.subscriptions.get(&of).filter(|(_, ended)| !ended).map(|(number, _)| *number)
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Create(stream) if !self.streams.contains_key(&stream) => {
                let log = self.store.reserve().await.expect("a number");
                let row = Stream {
                    log,
                    content_type: ContentType::octet_stream(),
                    expiry: Expiry::Never,
                    expires_at: None,
                    created_at: Timestamp::from_millis(0),
                    fork: None,
                    forks: 0,
                    state: StreamState::Active,
                    owner: Owner::Clients,
                    retained: None,
                };
                let create = StreamChange::Create { key: key(stream), stream: row };
                let commit = Commit::new().with(Operation::create(log)).changing(Change::Streams(create));
                self.commit(commit).await;
                self.streams.insert(stream, log);
            }
            Step::Append(stream) => {
                if let Some(log) = self.streams.get(&stream) {
                    let append = Append::new(*log, vec![Bytes::from_static(b"m")]);
                    self.commit(Commit::new().with(append)).await;
                }
            }
            Step::Delete(stream) => {
                if let Some(log) = self.streams.remove(&stream) {
                    let remove = StreamChange::Remove { key: key(stream), log, cause: Cause::Deleted };
                    let commit = Commit::new().with(Operation::Delete(log));
                    self.commit(commit.changing(Change::Streams(remove))).await;
                }
            }
            Step::Subscribe(of) if !self.subscriptions.contains_key(&of) => {
                let number = self.store.reserve().await.expect("a number");
                let subscription = Arc::new(subscription(of));
                self.change(Change::Create { number, subscription, most: 10 }).await;
                self.subscriptions.insert(of, (number, false));
            }
            Step::Name(of, stream) => {
                if let Some(number) = self.living(of) {
                    let (stream, log) = (key(stream).id, self.streams.get(&stream).copied());
                    let link = NewLink { stream, log, acked: Position::ZERO, kind: LinkKind::Explicit };
                    self.change(Change::Link { number, links: vec![link], phase: None }).await;
                }
            }
            Step::Unname(of, stream) => {
                if let Some(number) = self.living(of) {
                    self.change(Change::Unlink { number, stream: key(stream).id }).await;
                }
            }
            Step::Acknowledge(of, stream) => {
                let Some(number) = self.living(of) else { return };
                let Some(linked) = self.store.link(number, &key(stream).id).await.expect("it answers") else {
                    return;
                };
                let now = self.store.subscription(number).await.expect("it answers").expect("it is there");
                let (was, state) = (now.state.version, now.state.expired());
                let acks = vec![(linked.stream.clone(), linked.tail)];
                self.change(Change::Update { number, was, state, acks }).await;
            }
            Step::End(of) => {
                if let Some(number) = self.living(of) {
                    self.change(Change::End { number }).await;
                    self.subscriptions.insert(of, (number, true));
                }
            }
            Step::Clear(of) => {
                if let Some((number, true)) = self.subscriptions.get(&of).copied() {
                    let links = self.store.links(number, None, 10).await.expect("it answers");
                    let streams = links.into_iter().map(|linked| linked.stream).collect();
                    self.change(Change::Clear { number, streams }).await;
                    self.subscriptions.remove(&of);
                }
            }
            Step::Look => {
                self.pending.changed(&self.store).await.expect("it answers");
            }
            Step::Create(_) | Step::Subscribe(_) => {}
        }
    }

    /// What is pending is what a scan of all links finds.
    async fn check(&self) {
        self.pending.changed(&self.store).await.expect("it answers");
        for (number, _) in self.subscriptions.values() {
            let links = self.store.links(*number, None, 10).await.expect("it answers");
            let scanned: Vec<_> =
                links.into_iter().filter(|one| one.is_pending()).map(|one| one.stream).collect();
            let known = self.pending.streams(&self.store, *number, 10).await.expect("it answers");
            assert_eq!(known, scanned);
        }
        let known = self.pending.known.lock().await;
        let linked: BTreeSet<_> = self.streams.keys().copied().map(key).collect();
        assert!(known.streams.keys().all(|key| linked.contains(key)), "streams that are gone are let go");
        for (key, followed) in &known.streams {
            let links = self.store.of_stream(key).await.expect("it answers");
            let pending = links.iter().filter(|(_, linked)| linked.is_pending()).map(|(number, _)| *number);
            assert_eq!((followed.links, &followed.pending), (links.len(), &pending.collect()), "{}", key.id);
            assert!(followed.links > 0, "streams that nobody is linked to are let go");
        }
    }
}

#[tokio::test]
async fn a_stream_that_was_pending_for_a_subscription_that_is_gone_is_pending_for_the_next() {
    let mut scene = Scene::new();
    let before =
        [Step::Subscribe(0), Step::Create(0), Step::Append(0), Step::Look, Step::End(0), Step::Clear(0)];
    let after = [Step::Subscribe(1), Step::Name(1, 0), Step::Acknowledge(1, 0), Step::Look, Step::Append(0)];
    for step in before.into_iter().chain(after) {
        scene.take(step).await;
    }
    scene.check().await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_is_pending_is_what_a_scan_finds(steps in prop::collection::vec(step(), 0..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut scene = Scene::new();
            for step in steps {
                scene.take(step).await;
            }
            scene.check().await;
            // Also for who begins with what is stored.
            scene.pending = Pending::new(scene.pending.bus.clone(), Arc::default());
            scene.check().await;
        });
    }
}
