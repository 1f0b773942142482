//! The promise of a subscribe, with clients, publishers and the reader on several threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_engine::journal::Journals;
use tidings_engine::log::Memory;
use tidings_engine::{Bus, Metrics, Rng, WallClock};
use tidings_entities::{Action, Entities, NewChange, Options, Parts, Project, Table, Takeover};
use tidings_model::ProjectId;

use crate::world::{Client, code, connect_to, grants, id, subject};

const CLIENTS: usize = 8;
const ROUNDS: usize = 150;

/// Publishes a change. Returns its version.
async fn publish(project: &Project, entity: &str) -> u64 {
    let change = NewChange { code: code("p"), id: id(entity), action: Action::Update };
    let published = project.publish(vec![change]).await.expect("published");
    let position = published.cursor.as_str().split('-').nth(1).expect("a position");
    position.parse().expect("a number")
}

/// Waits until the client was told this version of an entity, or a higher one.
async fn hear(client: &mut Client, what: &str, version: u64, versions: &mut HashMap<String, u64>) {
    while versions.get(what).is_none_or(|told| *told < version) {
        for text in client.told() {
            let Some((entity, version)) = text.split_once(" UPDATE ") else { continue };
            let version = version.parse().expect("a number");
            let before = versions.insert(entity.to_owned(), version).unwrap_or_default();
            assert!(before <= version, "{entity} goes back from {before} to {version}");
        }
        tokio::task::yield_now().await;
    }
}

/// Subscribes, publishes a change as soon as that was answered, and waits until it is told of it; and again.
async fn client(project: Project, number: usize) {
    let granted = grants(&["p:*"]);
    let mut rng = fastrand::Rng::with_seed(number as u64);
    let mut versions = HashMap::new();
    let mut client =
        connect_to(&project, "ann", &format!("c{number}"), Takeover::No, granted.clone()).expect("few");
    for round in 0..ROUNDS {
        let entity = format!("{number}-{}", round % 7);
        let since = client.cursor.clone().filter(|_| rng.bool());
        let ids = [entity.as_str(), "shared"];
        let asked = if rng.u8(..4) == 0 { subject(&[]) } else { subject(&ids) };
        let answer = client.watch.subscribe(code("p"), asked, since).await.expect("subscribed");
        answer.send([Bytes::from_static(b"SUBSCRIBED|")]).await;
        let (own, shared) = (publish(&project, &entity).await, publish(&project, "shared").await);
        hear(&mut client, &format!("p:{entity}"), own, &mut versions).await;
        hear(&mut client, "p:shared", shared, &mut versions).await;
        if rng.u8(..5) == 0 {
            let watch = client.watch.clone();
            watch
                .unsubscribe(code("p"), subject(&[]))
                .await
                .send([Bytes::from_static(b"UNSUBSCRIBED|")])
                .await;
        }
        if rng.u8(..10) == 0 {
            let name = format!("c{number}-{round}");
            let cursor = client.cursor.take();
            drop(client);
            versions.clear();
            client = connect_to(&project, "ann", &name, Takeover::No, granted.clone()).expect("few");
            client.cursor = cursor;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_change_that_is_published_after_the_answer_is_told_whoever_else_is_busy() {
    let bus = Bus::new();
    let entities = Entities::new(Parts {
        store: Arc::new(Memory::<Table>::new(bus.clone(), Arc::new(WallClock))),
        bus,
        clock: Arc::new(WallClock),
        rng: Arc::new(Rng::seeded(1)),
        journals: Journals::default(),
        metrics: Metrics::new(),
        options: Options::default(),
        backings: HashMap::new(),
        authorize: None,
    });
    let serving = tokio::spawn(entities.clone().serve());
    let project = entities.project(&ProjectId::default_project());
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(client(project.clone(), number))).collect();
    for client in clients {
        let told = tokio::time::timeout(Duration::from_secs(60), client).await;
        told.expect("a change was missed").expect("no panic");
    }
    serving.abort();
}
