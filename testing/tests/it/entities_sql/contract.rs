//! The suite that every source of changes runs.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_entities::contract::SourceFixture;
use tidings_entities::{Action, EntityId, IdForm, NewChange, Source};
use tidings_postgres::Outbox;
use tidings_testing::postgres::{Fsync, Postgres, TestDatabase, connect};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use uuid::Uuid;

use super::{install, node};

/// A source on a server that nobody else uses meanwhile, not even the upkeep of its node: a transaction that is open at
/// the wrong moment makes a cursor expire that would still be good.
struct OutboxFixture {
    database: TestDatabase,
    outbox: Outbox,
    _alone: MutexGuard<'static, ()>,
}

static SERVER: OnceCell<Postgres> = OnceCell::const_new();
static ALONE: Mutex<()> = Mutex::const_new(());

async fn empty() -> OutboxFixture {
    let alone = ALONE.lock().await;
    let database = database().await;
    OutboxFixture { outbox: node(&database.url).outbox(), database, _alone: alone }
}

async fn database() -> TestDatabase {
    let server = SERVER.get_or_init(|| async { Postgres::start(Fsync::Off).await }).await;
    let database = server.database().await;
    install(&database.url).await;
    database
}

impl OutboxFixture {
    fn open(&mut self) {
        self.outbox = node(&self.database.url).outbox();
    }
}

impl SourceFixture for OutboxFixture {
    fn source(&self) -> &dyn Source {
        &self.outbox
    }

    fn id(&self, number: u64) -> EntityId {
        IdForm::Uuid.parse(&Uuid::from_u128(number.into()).to_string()).expect("a UUID")
    }

    fn reopen(&mut self) -> BoxFuture<'_, ()> {
        async { self.open() }.boxed()
    }

    fn expire(&mut self) -> BoxFuture<'_, ()> {
        async {
            super::expire(&self.database.url).await;
            self.open();
        }
        .boxed()
    }

    fn replace(&mut self) -> BoxFuture<'_, ()> {
        async {
            self.database = database().await;
            self.open();
        }
        .boxed()
    }

    fn begin(&self, changes: Vec<NewChange>) -> BoxFuture<'_, Option<BoxFuture<'static, ()>>> {
        async move {
            let sql = connect(&self.database.url).await;
            sql.batch_execute("BEGIN").await.expect("begun");
            for change in changes {
                let id = Uuid::parse_str(change.id.as_str()).expect("a UUID");
                let action: i16 = match change.action {
                    Action::Update => 1,
                    Action::Delete => 3,
                    Action::Create => 4,
                };
                let insert = "INSERT INTO app.logging (entity_code, entity_id, action) VALUES ($1, $2, $3)";
                sql.execute(insert, &[&change.code.as_str(), &id, &action]).await.expect("logged");
            }
            Some(async move { sql.batch_execute("COMMIT").await.expect("committed") }.boxed())
        }
        .boxed()
    }
}

tidings_entities::source_contract!(empty);
