//! Entities in PostgreSQL: the outbox as a source, the registry, the functions, and the operator's commands.

mod attaching;
mod authorizing;
mod commands;
mod contract;
mod faults;
mod functions;
mod late_commits;
mod logging;
pub mod logical;
mod publishing;
mod reading;
mod registry;
mod relay;
mod tls;
mod two_nodes;
mod upkeep;
mod waking;

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::{Metrics, Rng, WallClock};
use tidings_entities::{Change, Cursor, Entry, Read, ResyncReason, Source};
use tidings_postgres::schema::Operator;
use tidings_postgres::{Database, Options, Outbox};
use tidings_testing::postgres::{TestDatabase, database};
use tokio_postgres::Client;
use uuid::Uuid;

/// A database with the schema, and a connection to it.
pub struct Fixture {
    pub database: TestDatabase,
    pub sql: Client,
}

impl Fixture {
    pub async fn new() -> Self {
        let database = database().await;
        install(&database.url).await;
        let sql = database.client().await;
        Self { database, sql }
    }

    /// A node that works on the database.
    pub fn node(&self) -> Database {
        node(&self.database.url)
    }

    /// Logs a change, as an application does.
    pub async fn log(&self, id: Uuid, action: i16) {
        log(&self.sql, id, action).await;
    }

    /// A table that is attached as `todo`.
    pub async fn todos(&self) {
        self.sql.batch_execute(TODOS).await.expect("a table is created and attached");
    }
}

pub const TODOS: &str = "CREATE TABLE public.todos (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), text text NOT NULL DEFAULT '');
    SELECT app.tidings_attach('public.todos', 'todo', 'id')";

pub async fn install(url: &str) {
    operator(url).await.install().await.expect("it is installed");
}

pub async fn operator(url: &str) -> Operator {
    Operator::connect(url, Arc::new(WallClock))
        .await
        .map_err(|error| error.to_string())
        .expect("the database answers")
}

pub fn options(url: &str) -> Options {
    Options::new(url, "_default", Uuid::new_v4())
}

pub fn node(url: &str) -> Database {
    node_with(options(url))
}

pub fn node_with(options: Options) -> Database {
    let seed = options.node.as_u64_pair().0;
    Database::new(options, Arc::new(WallClock), Arc::new(Rng::seeded(seed)), &Metrics::new())
        .map_err(|error| error.to_string())
        .expect("a valid URL")
}

/// Makes everything that is visible now older than the window.
pub const AGE: &str = "INSERT INTO app.tidings_horizon (snapshot, taken_ts) VALUES (pg_current_snapshot(), now() - interval '16 min')";

/// Removes everything that is in the outbox, as if more time than the window had passed.
pub async fn expire(url: &str) {
    let sql = tidings_testing::postgres::connect(url).await;
    sql.batch_execute(AGE).await.expect("time has passed");
    let _running = Running::start(&node(url));
    let left = "SELECT count(*) FROM app.change_outbox";
    let removed = async {
        while sql.query_one(left, &[]).await.expect("a number").get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), removed).await.expect("everything is removed");
}

/// The work of a node in the background, until it is dropped.
pub struct Running(tokio::task::JoinHandle<()>);

impl Running {
    pub fn start(database: &Database) -> Self {
        Self(tokio::spawn(database.clone().run()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub async fn log(sql: &Client, id: Uuid, action: i16) {
    sql.execute(
        "INSERT INTO app.logging (entity_code, entity_id, action) VALUES ('project', $1, $2)",
        &[&id, &action],
    )
    .await
    .expect("it is logged");
}

/// Reads a source as a client does that keeps its cursor.
pub struct Follower {
    pub outbox: Outbox,
    pub cursor: Cursor,
    pub page: usize,
}

impl Follower {
    pub async fn new(database: &Database) -> Self {
        let outbox = database.outbox();
        let cursor = outbox.now().await.expect("the database answers");
        Self { outbox, cursor, page: 1000 }
    }

    /// One read, which must not be lost. Returns what was read, and whether there is more.
    pub async fn read(&mut self) -> (Vec<Entry>, bool) {
        match self.outbox.read(&self.cursor, self.page).await.expect("the database answers") {
            Read::Entries { entries, cursor, more } => {
                self.cursor = cursor;
                (entries, more)
            }
            Read::Lost { reason, .. } => panic!("lost: {reason:?}"),
        }
    }

    /// Everything that can be read now.
    pub async fn drain(&mut self) -> Vec<Change> {
        let mut all = Vec::new();
        loop {
            let (entries, more) = self.read().await;
            all.extend(entries.into_iter().map(changed));
            if !more {
                return all;
            }
        }
    }

    /// Reads until there have been so many changes, and waits between the reads as the reader of a node does.
    pub async fn await_changes(&mut self, count: usize) -> Vec<Change> {
        let mut all = Vec::new();
        let waiting = async {
            while all.len() < count {
                all.extend(self.drain().await);
                if all.len() < count {
                    self.outbox.changed(&self.cursor).await;
                }
            }
        };
        if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
            panic!("{} of {count} changes have come", all.len());
        }
        all
    }

    /// One read, which has to be lost.
    pub async fn lost(&mut self) -> ResyncReason {
        match self.outbox.read(&self.cursor, self.page).await.expect("the database answers") {
            Read::Entries { entries, .. } => panic!("not lost: {entries:?}"),
            Read::Lost { reason, cursor } => {
                self.cursor = cursor;
                reason
            }
        }
    }
}

pub fn changed(entry: Entry) -> Change {
    match entry {
        Entry::Changed(change) => change,
        Entry::Truncated(code) => panic!("{code} was truncated"),
    }
}

/// The ids of changes, in order.
pub fn ids(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| change.id.to_string()).collect()
}
