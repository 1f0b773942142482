//! Change logs: changes that come in by publishing, where there is no database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidings_engine::journal::Journals;
use tidings_engine::journal::fixture::HeardByTests;
use tidings_engine::log::{Commit, Commits, Logs, Memory, Operation, Span};
use tidings_engine::{Bus, ManualClock, Metrics, Rng};
use tidings_entities::{
    Action, Entities, NewChange, Options, Parts, Project, PublishError, ResyncReason, Store, Table, Takeover,
};
use tidings_model::{LogId, Position, ProjectId, limits};
use tokio::task::JoinHandle;

use crate::world::{Client, START, code, connect_to, grants, id, until};

/// A server without databases.
struct Server {
    store: Arc<Memory<Table>>,
    bus: Bus,
    clock: ManualClock,
    hearer: Arc<HeardByTests>,
    entities: Entities,
    serving: JoinHandle<()>,
}

impl Server {
    fn start() -> Self {
        let (bus, clock) = (Bus::new(), ManualClock::at(START));
        let store = Arc::new(Memory::new(bus.clone(), Arc::new(clock.clone())));
        let hearer = Arc::<HeardByTests>::default();
        let entities = open(&store, &bus, &clock, &hearer, 1);
        let serving = tokio::spawn(entities.clone().serve());
        Self { store, bus, clock, hearer, entities, serving }
    }

    /// Starts again on the same store.
    fn restart(&mut self) {
        self.serving.abort();
        self.entities = open(&self.store, &self.bus, &self.clock, &self.hearer, 2);
        self.serving = tokio::spawn(self.entities.clone().serve());
    }

    fn project(&self) -> Project {
        self.entities.project(&shop())
    }

    fn connect(&self, connection: &str) -> Client {
        let granted = grants(&["project:*", "task:*"]);
        connect_to(&self.project(), "ann", connection, Takeover::No, granted).expect("there are few")
    }

    async fn publish(&self, changes: &[&str]) -> tidings_entities::Cursor {
        let changes = changes.iter().map(|text| change(text)).collect();
        self.project().publish(changes).await.expect("published").cursor
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn open(
    store: &Arc<Memory<Table>>,
    bus: &Bus,
    clock: &ManualClock,
    hearer: &Arc<HeardByTests>,
    seed: u64,
) -> Entities {
    Entities::new(Parts {
        store: store.clone(),
        bus: bus.clone(),
        clock: Arc::new(clock.clone()),
        rng: Arc::new(Rng::seeded(seed)),
        journals: Journals::new(hearer.clone()),
        metrics: Metrics::new(),
        options: Options::default(),
        backings: HashMap::new(),
        authorize: None,
    })
}

fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

/// A change such as `project:1 CREATE`.
fn change(text: &str) -> NewChange {
    let (entity, action) = text.rsplit_once(' ').expect("an entity and an action");
    let (of, entity) = entity.split_once(':').expect("a code and an id");
    NewChange { code: code(of), id: id(entity), action: Action::parse(action).expect("an action") }
}

async fn new_log(store: &Memory<Table>) -> LogId {
    let log = store.reserve().await.expect("a number");
    store.commit(Commit::new().with(Operation::create(log))).await.expect("created");
    log
}

#[tokio::test]
async fn what_is_published_is_told_with_versions_that_go_on_after_a_restart() {
    let mut server = Server::start();
    let mut ann = server.connect("a");
    let subscribed = ann.subscribe("project", &["1"]).await;
    server.publish(&["project:1 CREATE", "project:2 CREATE", "project:1 UPDATE"]).await;
    until(|| ann.watch.pending() == 1).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 3"]);
    let resumed = ann.cursor.clone().expect("nothing is pending");
    drop(ann);
    server.restart();
    server.publish(&["project:1 DELETE"]).await;
    for since in [subscribed.cursor, resumed] {
        let mut again = server.connect("b");
        again.subscribe_since("project", &["1"], &since).await;
        assert_eq!(again.heard(), ["project:1 DELETE 4"]);
    }
}

#[tokio::test]
async fn two_projects_do_not_hear_each_other() {
    let server = Server::start();
    let mut ann = server.connect("a");
    ann.subscribe("project", &[]).await;
    let other = server.entities.project(&ProjectId::parse("other").expect("an id"));
    other.publish(vec![change("project:1 CREATE")]).await.expect("published");
    server.publish(&["project:2 CREATE"]).await;
    until(|| ann.watch.pending() == 1).await;
    assert_eq!(ann.heard(), ["project:2 CREATE 1"]);
}

#[tokio::test]
async fn too_many_changes_are_refused_whole() {
    let server = Server::start();
    let most = limits::ENTITY_CHANGES_PER_POST;
    let refused = server.project().publish(vec![change("project:1 UPDATE"); most + 1]).await;
    assert_eq!(refused, Err(PublishError::TooMany { most }));
    let accepted = server.project().publish(vec![change("project:1 UPDATE"); most]).await.expect("published");
    assert_eq!(accepted.accepted, most);
}

#[tokio::test]
async fn changes_are_kept_for_as_long_as_clients_may_come_back() {
    let server = Server::start();
    let mut cursors = vec![server.publish(&["project:1 CREATE"]).await];
    for number in 2..40 {
        server.clock.advance(Duration::from_secs(60));
        let cursor = server.publish(&[&format!("project:{number} CREATE"), "task:1 UPDATE"]).await;
        cursors.push(cursor);
    }
    // The window is 15 minutes: of two changes a minute, those of 15 minutes and of now are left.
    assert_eq!(server.entities.trim().await, Ok(1 + 22 * 2));
    assert_eq!(server.entities.trim().await, Ok(0));
    for (at, cursor) in cursors.iter().enumerate() {
        let ann = server.connect("a");
        let resync = ann.subscribe_since("project", &[], cursor).await.resync;
        assert_eq!(resync, (at < 22).then_some(ResyncReason::CursorExpired), "{at}");
    }
    server.clock.advance(Duration::from_secs(60 * 60));
    assert_eq!(server.entities.trim().await, Ok(32));
    let ann = server.connect("a");
    assert_eq!(ann.subscribe_since("project", &[], cursors.last().expect("some")).await.resync, None);
    let mut ann = ann;
    server.publish(&["project:1 UPDATE"]).await;
    until(|| ann.watch.pending() == 1).await;
    assert_eq!(ann.heard(), ["project:1 UPDATE 78"]);
}

#[tokio::test]
async fn the_duty_trims_now_and_then() {
    let server = Server::start();
    server.publish(&["project:1 CREATE"]).await;
    let maintaining = tokio::spawn(server.entities.clone().maintain());
    for _ in 0..17 {
        until(|| server.clock.sleepers() == 1).await;
        server.clock.advance(Duration::from_secs(60));
    }
    until(|| server.clock.sleepers() == 1).await;
    let found = server.store.change_log(&shop()).await.expect("an answer").expect("there");
    assert_eq!(found.status.floor, found.status.tail);
    maintaining.abort();
}

#[tokio::test]
async fn a_project_that_is_removed_leaves_nothing_and_its_cursors_are_of_another_life() {
    let server = Server::start();
    let mut ann = server.connect("a");
    let early = ann.subscribe("project", &["1"]).await.cursor;
    let since = server.publish(&["project:1 CREATE", "project:1 UPDATE"]).await;
    until(|| ann.watch.pending() == 1).await;
    server.entities.clear(&shop()).await.expect("cleared");
    server.entities.clear(&shop()).await.expect("there is nothing left");
    server.publish(&["project:1 CREATE"]).await;
    until(|| ann.heard().contains(&"RESYNC * source-reset".to_owned())).await;
    let bob = server.connect("b");
    assert_eq!(bob.subscribe_since("project", &["1"], &since).await.resync, Some(ResyncReason::SourceReset));
    // A cursor of before the first change is before the first change of any life.
    let mut cid = server.connect("c");
    assert_eq!(cid.subscribe_since("project", &["1"], &early).await.resync, None);
    assert_eq!(cid.heard(), ["project:1 CREATE 1"]);
}

#[tokio::test]
async fn a_change_is_an_event_of_the_project_in_the_same_commit() {
    let server = Server::start();
    let journal = new_log(&server.store).await;
    server.publish(&["project:0 CREATE"]).await;
    server.hearer.hear(&shop(), "collection", Some(journal));
    server.publish(&["project:1 CREATE", "my tasks/a:\"2\" UPDATE", "project:1 DELETE"]).await;
    assert_eq!(server.hearer.appended(), [journal]);
    let page = server.store.read(journal, Span::after(Position::ZERO)).await.expect("a page");
    let texts: Vec<String> =
        page.records.iter().map(|record| String::from_utf8_lossy(&record.payload).into_owned()).collect();
    assert_eq!(texts.len(), 3);
    let ts = "2025-11-16T12:00:00.000Z";
    for (text, (kind, collection, doc)) in texts.iter().zip([
        ("collection.project.insert", "project", r#""1""#),
        ("collection.my_tasks.a.update", "my tasks/a", r#""\"2\"""#),
        ("collection.project.delete", "project", r#""1""#),
    ]) {
        assert!(text.starts_with('\u{1}'), "{text}");
        let json = &text[text.find('{').expect("JSON")..];
        let expected =
            format!(r#"{{"collection":"{collection}","docId":{doc},"ts":"{ts}","type":"{kind}"}}"#);
        assert_eq!(json, expected);
        assert!(text.contains(kind) && text.contains(ts));
    }
    let changes: Vec<_> = page.records.iter().map(|record| record.commit).collect();
    assert!(changes.windows(2).all(|two| two[0] == two[1]));
}
