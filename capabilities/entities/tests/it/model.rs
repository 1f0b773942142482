//! Random interleavings of everything that connections, sources and authorisers do.
//!
//! The clients behave as the protocol expects. They fetch what they subscribe to when that is answered, and everything that
//! they are told to fetch again. Between that they know only what they are told. When their connection ends, they come back
//! with their cursors and rely on the replay. Then must hold: versions never go back, nobody is told what it may not see,
//! and in the end everybody knows the latest version of what it watches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tidings_entities::{Cursor, Options, SubscribeError};
use tokio::sync::Semaphore;

use crate::world::{Client, World, code, settle, subject, until};

const CODES: [&str; 2] = ["p", "t"];
const IDS: [&str; 4] = ["1", "2", "3", "4"];
const USERS: [&str; 2] = ["ann", "bob"];

/// An entity, such as `p:1`, or a whole type, such as `p`.
type Item = String;

/// A client and what it knows.
struct Watcher {
    client: Client,
    connection: String,
    user: &'static str,
    /// What it watches, and from where it resumes that.
    watched: BTreeMap<Item, Cursor>,
    /// Latest version of each entity that it was told or has fetched.
    known: BTreeMap<Item, u64>,
    /// Last version of each entity that it was told on this connection.
    told: BTreeMap<Item, u64>,
}

struct Model {
    world: World,
    watchers: Vec<Watcher>,
    /// Latest version of each entity.
    versions: BTreeMap<Item, u64>,
    made: u64,
    /// Entities that a user may not see, and the version from which on it is not told of them.
    denied: BTreeMap<(&'static str, Item), u64>,
    /// Entities that a user could once not see.
    ever_denied: BTreeSet<(&'static str, Item)>,
    connections: usize,
    /// Entries that the reader may still read, if it lags behind replays.
    entries: Option<Arc<Semaphore>>,
}

#[derive(Clone, Debug)]
enum Step {
    Connect { user: usize },
    Reconnect { watcher: usize },
    Change { entity: (usize, usize), action: usize },
    Truncate { code: usize },
    Revoke { user: usize, entity: (usize, usize) },
    Allow,
    Expire,
    Subscribe { watcher: usize, code: usize, ids: Vec<usize>, meanwhile: Option<(usize, usize)> },
    Unsubscribe { watcher: usize, code: usize, id: Option<usize> },
    UnsubscribeAll { watcher: usize },
    Take { watcher: usize, all: bool },
    LetRun { entries: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let entity = || (0..CODES.len(), 0..IDS.len());
    let ids = prop::collection::vec(0..IDS.len(), 0..4);
    prop_oneof![
        2 => (0..USERS.len()).prop_map(|user| Step::Connect { user }),
        2 => (0..4usize).prop_map(|watcher| Step::Reconnect { watcher }),
        12 => (entity(), 0..3usize).prop_map(|(entity, action)| Step::Change { entity, action }),
        1 => (0..CODES.len()).prop_map(|code| Step::Truncate { code }),
        2 => (0..USERS.len(), entity()).prop_map(|(user, entity)| Step::Revoke { user, entity }),
        1 => Just(Step::Allow),
        1 => Just(Step::Expire),
        6 => (0..4usize, 0..CODES.len(), ids, prop::option::of(entity()))
            .prop_map(|(watcher, code, ids, meanwhile)| Step::Subscribe { watcher, code, ids, meanwhile }),
        2 => (0..4usize, 0..CODES.len(), prop::option::of(0..IDS.len()))
            .prop_map(|(watcher, code, id)| Step::Unsubscribe { watcher, code, id }),
        1 => (0..4usize).prop_map(|watcher| Step::UnsubscribeAll { watcher }),
        6 => (0..4usize, any::<bool>()).prop_map(|(watcher, all)| Step::Take { watcher, all }),
        5 => (0..4usize).prop_map(|entries| Step::LetRun { entries }),
    ]
}

fn named((code, id): (usize, usize)) -> Item {
    format!("{}:{}", CODES[code], IDS[id])
}

impl Model {
    fn new(lags: bool) -> Self {
        // So few that a client that watches both types can have too much pending.
        let options = Options { max_subscriptions_per_connection: 6, ..Options::default() };
        let world = World::with(options, true);
        let entries = lags.then(|| world.source.slow_readers());
        Self {
            world,
            watchers: Vec::new(),
            versions: BTreeMap::new(),
            made: 0,
            denied: BTreeMap::new(),
            ever_denied: BTreeSet::new(),
            connections: 0,
            entries,
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Connect { user } if self.watchers.len() < 4 => {
                let watcher = self.connect(USERS[user]);
                self.watchers.push(watcher);
            }
            Step::Reconnect { watcher } => self.reconnect(watcher).await,
            Step::Change { entity, action } => {
                self.make(&named(entity), ["CREATE", "UPDATE", "DELETE"][action]);
            }
            Step::Truncate { code } => self.world.source.add(&format!("{} TRUNCATE", CODES[code])),
            Step::Revoke { user, entity } => {
                let (user, entity) = (USERS[user], named(entity));
                self.world.authorize.refuse(user, &entity);
                self.make(&entity, "access");
                self.denied.entry((user, entity.clone())).or_insert(self.made);
                self.ever_denied.insert((user, entity));
            }
            Step::Allow => {
                if let Some(((user, entity), _)) = self.denied.pop_first() {
                    self.world.authorize.allow(user, &entity);
                    self.make(&entity, "access");
                }
            }
            Step::Expire => self.world.source.expire(),
            Step::Subscribe { watcher, code, ids, meanwhile } if watcher < self.watchers.len() => {
                let items = match ids.is_empty() {
                    true => BTreeSet::from([CODES[code].to_owned()]),
                    false => ids.into_iter().map(|id| named((code, id))).collect(),
                };
                self.subscribe(watcher, CODES[code], &items, None, meanwhile).await;
            }
            Step::Unsubscribe { watcher, code, id } => {
                let Some(watcher) = self.watchers.get_mut(watcher) else { return };
                match id {
                    None => {
                        watcher.client.unsubscribe(CODES[code], &[]).await;
                        watcher.watched.retain(|item, _| !item.starts_with(CODES[code]));
                    }
                    Some(id) => {
                        watcher.client.unsubscribe(CODES[code], &[IDS[id]]).await;
                        watcher.watched.remove(&named((code, id)));
                    }
                }
            }
            Step::UnsubscribeAll { watcher } => {
                let Some(watcher) = self.watchers.get_mut(watcher) else { return };
                watcher
                    .client
                    .watch
                    .unsubscribe_all()
                    .await
                    .send([Bytes::from_static(b"UNSUBSCRIBED|")])
                    .await;
                watcher.watched.clear();
            }
            Step::Take { watcher, all } => self.take(watcher, if all { usize::MAX } else { 1 }),
            Step::LetRun { entries } => {
                if let Some(readable) = &self.entries {
                    readable.add_permits(entries);
                }
                settle().await;
            }
            Step::Connect { .. } | Step::Subscribe { .. } => {}
        }
    }

    fn make(&mut self, entity: &str, action: &str) {
        self.world.source.add(&format!("{entity} {action}"));
        self.made += 1;
        self.versions.insert(entity.to_owned(), self.made);
    }

    fn connect(&mut self, user: &'static str) -> Watcher {
        self.connections += 1;
        let connection = format!("c{}", self.connections);
        let client = self.world.connect(user, &connection);
        let (watched, known, told) = Default::default();
        Watcher { client, connection, user, watched, known, told }
    }

    /// A client loses its connection, with everything that it has not taken, and comes back with its cursors.
    async fn reconnect(&mut self, at: usize) {
        if at >= self.watchers.len() {
            return;
        }
        let user = self.watchers[at].user;
        let fresh = self.connect(user);
        let before = std::mem::replace(&mut self.watchers[at], fresh);
        self.watchers[at].known = before.known;
        drop(before.client);
        for (item, cursor) in before.watched {
            let of = item[..1].to_owned();
            self.subscribe(at, &of, &BTreeSet::from([item]), Some(cursor), None).await;
        }
    }

    async fn subscribe(
        &mut self,
        at: usize,
        of: &str,
        items: &BTreeSet<Item>,
        since: Option<Cursor>,
        meanwhile: Option<(usize, usize)>,
    ) {
        let whole = items.contains(of);
        let ids: Vec<&str> = if whole { Vec::new() } else { items.iter().map(|item| &item[2..]).collect() };
        let watch = self.watchers[at].client.watch.clone();
        let resumes = since.is_some();
        let answer = match watch.subscribe(code(of), subject(&ids), since).await {
            Ok(answer) => answer,
            // Also when it comes back: it may not know yet that it has lost something that it watches now.
            Err(SubscribeError::TooManySubscriptions { most: 6 }) => return,
            Err(error) => panic!("{error}"),
        };
        if let Some(entity) = meanwhile {
            self.make(&named(entity), "UPDATE");
            settle().await;
        }
        let denied: BTreeSet<Item> = answer.denied.iter().map(|id| format!("{of}:{id}")).collect();
        let allowed: Vec<Item> = items.difference(&denied).cloned().collect();
        assert_eq!(answer.count, allowed.len());
        for item in &denied {
            assert!(self.ever_denied.contains(&(self.watchers[at].user, item.clone())));
        }
        let (cursor, must_fetch) = (answer.cursor.clone(), !resumes || answer.resync.is_some());
        answer.send([Bytes::from_static(b"SUBSCRIBED|")]).await;
        let Self { watchers, versions, .. } = self;
        let watcher = &mut watchers[at];
        if must_fetch {
            watcher
                .fetch(versions, |entity| allowed.iter().any(|item| *item == entity || *item == entity[..1]));
        }
        for item in denied {
            watcher.watched.remove(&item);
        }
        watcher.watched.extend(allowed.into_iter().map(|item| (item, cursor.clone())));
    }

    fn take(&mut self, at: usize, room: usize) {
        let Self { watchers, versions, denied, .. } = self;
        let Some(watcher) = watchers.get_mut(at) else { return };
        for text in watcher.client.take(room) {
            let words: Vec<&str> = text.split(' ').collect();
            match words[..] {
                ["RESYNC", of, _] => watcher.fetch(versions, |entity| of == "*" || entity.starts_with(of)),
                [entity, "CREATE" | "UPDATE" | "DELETE", version, ..] => {
                    let version: u64 = version.parse().expect("a number");
                    let told = watcher.told.insert(entity.to_owned(), version).unwrap_or_default();
                    assert!(told <= version, "{entity} goes back from {told} to {version}");
                    let known = watcher.known.entry(entity.to_owned()).or_default();
                    *known = version.max(*known);
                    let whole = watcher.watched.contains_key(&entity[..1]);
                    if let Some(from) = denied.get(&(watcher.user, entity.to_owned())) {
                        // If that change of access was lost, it is a later one that is told as the last.
                        let is_last = words.len() > 3 && told <= *from;
                        let may_hear = whole || version <= *from || is_last;
                        assert!(may_hear, "{} hears {text}, not since {from}", watcher.user);
                    }
                    if words.len() > 3 {
                        // It does not know whether it still watches it.
                        watcher.watched.remove(entity);
                    }
                }
                _ => {}
            }
        }
        if let Some(cursor) = watcher.client.cursor.take() {
            watcher.watched.values_mut().for_each(|known| *known = cursor.clone());
        }
    }

    /// Lets everything come to rest, and compares what the clients know with what there is.
    async fn finish(mut self) {
        if let Some(entries) = &self.entries {
            entries.add_permits(1_000_000);
        }
        let end = self.world.source.end();
        until(|| self.watchers.iter().all(|watcher| watcher.client.watch.cursor().as_ref() == Some(&end)))
            .await;
        settle().await;
        (0..self.watchers.len()).for_each(|at| self.take(at, usize::MAX));
        let rows = self.world.registry.rows();
        for watcher in &self.watchers {
            assert_eq!(watcher.client.watch.pending(), 0);
            let row = |item: &str| {
                let item = if item.len() == 1 { format!("{item}:*") } else { item.to_owned() };
                rows.contains(&format!("{} {} {item}", watcher.user, watcher.connection))
            };
            for item in watcher.watched.keys() {
                let was_denied = self.ever_denied.contains(&(watcher.user, item.clone()));
                assert!(row(item) || was_denied, "{item} was dropped");
            }
            for (entity, latest) in &self.versions {
                if row(entity) || row(&entity[..1]) {
                    let known = watcher.known.get(entity).copied().unwrap_or_default();
                    assert_eq!(known, *latest, "{} does not know {entity}", watcher.user);
                }
                if row(entity) && !row(&entity[..1]) {
                    assert!(
                        !self.denied.contains_key(&(watcher.user, entity.clone())),
                        "{entity} is watched still"
                    );
                }
            }
        }
        let count: usize = self.watchers.iter().map(|watcher| watcher.client.watch.subscriptions()).sum();
        assert_eq!(count, rows.len(), "the registry knows what is watched");
        assert!(self.watchers.iter().all(|watcher| watcher.client.watch.subscriptions() <= 6));
    }
}

impl Watcher {
    /// Learns the latest version of some entities.
    fn fetch(&mut self, versions: &BTreeMap<Item, u64>, which: impl Fn(&str) -> bool) {
        for (entity, version) in versions.iter().filter(|(entity, _)| which(entity)) {
            self.known.insert(entity.clone(), *version);
        }
    }
}

proptest! {
    #[test]
    fn everybody_knows_the_latest_of_what_it_watches_and_nothing_of_what_it_may_not_see(
        lags in any::<bool>(), steps in prop::collection::vec(step(), 0..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut model = Model::new(lags);
            for step in steps {
                model.step(step).await;
            }
            model.finish().await;
        });
    }
}
