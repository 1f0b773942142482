//! Relays: the changes of a database are told to hooks once, whichever node does it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::HeardByTests;
use tidings_engine::log::{Commit, Commits, Logs, Memory, Operation, Span};
use tidings_engine::{Bus, ManualClock, Metrics, Rng};
use tidings_entities::{Backing, Entities, NoRegistry, Options, Parts, Table};
use tidings_model::{LogId, Position, ProjectId};
use tokio::task::JoinHandle;

use crate::fake::{FakeRelay, FakeSource};
use crate::world::{START, settle, until};

/// Some nodes that read one source, on one store.
struct Nodes {
    source: Arc<FakeSource>,
    relay: FakeRelay,
    clock: ManualClock,
    bus: Bus,
    store: Arc<Memory<Table>>,
    hearer: Arc<HeardByTests>,
    journal: LogId,
    running: Vec<JoinHandle<()>>,
}

impl Nodes {
    async fn new() -> Self {
        let (bus, clock) = (Bus::new(), ManualClock::at(START));
        let store = Arc::new(Memory::new(bus.clone(), Arc::new(clock.clone())));
        let journal = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(journal))).await.expect("created");
        let hearer = Arc::<HeardByTests>::default();
        let (source, relay) = (Arc::default(), FakeRelay::default());
        Self { source, relay, clock, bus, store, hearer, journal, running: Vec::new() }
    }

    fn hear(&self) {
        self.hearer.hear(&ProjectId::default_project(), "collection", Some(self.journal));
    }

    /// Starts a node.
    fn start(&mut self, node: u64) {
        let backing = Backing {
            source: self.source.clone(),
            registry: Arc::new(NoRegistry),
            relay: Some(Arc::new(self.relay.of_node(node))),
            authorize: None,
        };
        let entities = Entities::new(Parts {
            store: self.store.clone(),
            bus: self.bus.clone(),
            clock: Arc::new(self.clock.clone()),
            rng: Arc::new(Rng::seeded(node)),
            journals: Journals::new(self.hearer.clone()),
            metrics: Metrics::new(),
            options: Options::default(),
            backings: HashMap::from([(ProjectId::default_project(), backing)]),
            authorize: None,
        });
        self.running.push(tokio::spawn(entities.relay()));
    }

    /// Lets time pass until the nodes have done what there is to do.
    async fn pass(&self) {
        for _ in 0..10 {
            settle().await;
            self.clock.advance(Duration::from_secs(5));
        }
        settle().await;
    }

    async fn relayed(&self) {
        let end = self.source.end();
        until(|| self.relay.relayed().as_ref() == Some(&end)).await;
    }

    /// The events in the journal: type and id of each.
    async fn events(&self) -> Vec<(String, String)> {
        let page = self.store.read(self.journal, Span::after(Position::ZERO)).await.expect("a page");
        let event = |payload: &[u8]| {
            let length = |at: usize| usize::from(u16::from_le_bytes([payload[at], payload[at + 1]]));
            assert_eq!(payload[..2], [1, 2], "a complete event that may come again");
            let (kind, id) = (length(2), length(4));
            let text = |from: usize, length: usize| {
                String::from_utf8(payload[from..from + length].to_vec()).expect("text")
            };
            (text(8, kind), text(8 + kind, id))
        };
        page.records.iter().map(|record| event(&record.payload)).collect()
    }

    async fn types(&self) -> Vec<String> {
        self.events().await.into_iter().map(|(kind, _)| kind).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.running.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test]
async fn of_two_nodes_one_tells_each_change_to_hooks() {
    let mut nodes = Nodes::new().await;
    nodes.hear();
    nodes.source.add("project:0 CREATE");
    nodes.start(1);
    nodes.start(2);
    nodes.pass().await;
    assert_eq!(nodes.types().await, [""; 0], "what was before the first node was no event");
    nodes.source.add_each(&["project:1 CREATE", "project:1 access", "task TRUNCATE", "task:2 DELETE"]);
    nodes.relayed().await;
    let expected = ["collection.project.insert", "collection.project.update", "collection.task.delete"];
    assert_eq!(nodes.types().await, expected);
    nodes.pass().await;
    assert_eq!(nodes.types().await, expected);
    assert!(nodes.hearer.appended().contains(&nodes.journal));
}

#[tokio::test]
async fn another_node_goes_on_where_the_one_that_died_has_stopped() {
    let mut nodes = Nodes::new().await;
    nodes.hear();
    nodes.start(1);
    nodes.pass().await;
    nodes.source.add("project:1 CREATE");
    nodes.relayed().await;
    let before = nodes.relay.relayed().expect("stored");
    nodes.source.add("project:1 UPDATE");
    nodes.relayed().await;
    // It dies after it has entered the second change, and before that was stored.
    nodes.running.remove(0).abort();
    settle().await;
    nodes.relay.forget(before);
    nodes.source.add("project:1 DELETE");
    nodes.start(2);
    nodes.pass().await;
    assert_eq!(nodes.relay.holder(), Some(1), "its lease has not run out");
    assert_eq!(nodes.types().await.len(), 2);
    nodes.relay.run_out();
    nodes.pass().await;
    assert_eq!(nodes.relay.holder(), Some(2));
    let events = nodes.events().await;
    let kinds: Vec<_> = events.iter().map(|(kind, _)| kind.rsplit('.').next().expect("an action")).collect();
    assert_eq!(kinds, ["insert", "update", "update", "delete"]);
    assert_eq!(events[1].1, events[2].1, "the same change has the same id, so hooks hear it once");
    assert_eq!(events.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), 3);
}

#[tokio::test]
async fn a_node_that_has_lost_the_lease_stops() {
    let mut nodes = Nodes::new().await;
    nodes.hear();
    nodes.start(1);
    nodes.pass().await;
    nodes.relay.run_out();
    let other = nodes.relay.of_node(7);
    assert!(tidings_entities::Relay::claim(&other).await.expect("an answer").is_some());
    nodes.source.add("project:1 CREATE");
    nodes.pass().await;
    assert!(nodes.types().await.len() <= 1, "it may notice only when it has entered one");
    nodes.source.add_each(&["project:2 CREATE", "project:3 CREATE"]);
    nodes.pass().await;
    assert!(nodes.types().await.len() <= 1);
    nodes.relay.run_out();
    nodes.pass().await;
    assert_eq!(nodes.relay.holder(), Some(1));
    let ids: BTreeSet<_> = nodes.events().await.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids.len(), 3, "nothing was skipped");
}

#[tokio::test]
async fn whoever_begins_to_hear_does_not_hear_what_was_before() {
    let mut nodes = Nodes::new().await;
    nodes.start(1);
    nodes.source.add("project:1 CREATE");
    nodes.pass().await;
    assert_eq!(nodes.relay.relayed(), Some(nodes.source.end()));
    nodes.hear();
    nodes.source.add("project:2 CREATE");
    nodes.pass().await;
    nodes.source.add("project:3 CREATE");
    nodes.pass().await;
    assert_eq!(nodes.types().await, ["collection.project.insert", "collection.project.insert"]);
}

#[tokio::test]
async fn a_source_that_is_away_or_was_replaced_does_not_end_the_relay() {
    let mut nodes = Nodes::new().await;
    nodes.hear();
    nodes.source.fail(true);
    nodes.start(1);
    nodes.pass().await;
    nodes.source.fail(false);
    nodes.pass().await;
    nodes.source.add("project:1 CREATE");
    nodes.relayed().await;
    nodes.source.fail(true);
    nodes.source.add("project:1 UPDATE");
    nodes.pass().await;
    nodes.source.fail(false);
    nodes.pass().await;
    assert_eq!(nodes.types().await, ["collection.project.insert", "collection.project.update"]);
    nodes.source.replace();
    nodes.pass().await;
    nodes.source.add("project:1 DELETE");
    nodes.relayed().await;
    assert_eq!(nodes.types().await.len(), 3);
}
