//! Entities of real servers on a real PostgreSQL: from an SQL statement to the socket, and from the socket to the table.

mod authorizing;
mod away;
mod failover;
mod leaving;
mod logical;
mod nodes;
mod resuming;
mod rows;
mod watching;

use serde_json::{Value, json};
use tidings_testing::http::{self, StatusCode};
use tidings_testing::postgres::{TestDatabase, connect, database};
use tidings_testing::{Launch, Process, eventually};
use uuid::Uuid;

use crate::entities::Client;
use crate::entities_sql::{TODOS, install, log};

/// A database with the schema, and a connection to it.
struct Fixture {
    database: TestDatabase,
    sql: tokio_postgres::Client,
}

impl Fixture {
    async fn new() -> Self {
        let database = database().await;
        install(&database.url).await;
        let sql = database.client().await;
        Self { database, sql }
    }

    /// A server whose project `_default` hears the database.
    async fn server(&self) -> Process {
        self.server_with(&[]).await
    }

    /// The same with other settings.
    async fn server_with(&self, variables: &[(&str, &str)]) -> Process {
        server(&self.database.url, variables).await
    }

    /// A server, and a client of it.
    async fn client(&self) -> (Process, Client) {
        let server = self.server().await;
        let client = client(&server).await;
        (server, client)
    }

    /// Logs an action on a project.
    async fn log(&self, id: Uuid, action: i16) {
        log(&self.sql, id, action).await;
    }

    async fn run(&self, statements: &str) {
        self.sql.batch_execute(statements).await.expect("it is done");
    }

    /// The number that a query returns.
    async fn number(&self, query: &str) -> i64 {
        self.sql.query_one(query, &[]).await.expect("a number").get(0)
    }

    /// Waits until the table of subscriptions has so many rows.
    async fn until_rows(&self, count: i64) {
        let what = format!("there are {count} rows");
        eventually(&what, async || self.number("SELECT count(*) FROM app.rxdb_subscription").await == count)
            .await;
    }
}

/// A server in dev mode whose project `_default` hears a database.
async fn server(url: &str, variables: &[(&str, &str)]) -> Process {
    let all = [&[("TIDINGS_ENTITIES_DATABASE_URL", url)], variables].concat();
    Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0", "--data", "data"], &all)).await
}

/// A client of the project `_default`, which is the user `dev`.
async fn client(server: &Process) -> Client {
    client_of(server, "_default").await
}

async fn client_of(server: &Process, project: &str) -> Client {
    let url = server.url(&format!("/v1/{project}/sync"));
    Client::at(&url, None).await.expect("a WebSocket").admitted().await
}

/// Subscribes to entities; the payload of the answer.
async fn subscribe(client: &mut Client, code: &str, ids: &[Uuid]) -> Value {
    let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    client.subscribe(code, &ids.iter().map(|id| &**id).collect::<Vec<_>>()).await
}

/// Id and action of the one change that is told next.
async fn told(client: &mut Client, code: &str) -> (Uuid, String) {
    let mut changes = client.changes(code).await;
    assert_eq!(changes.len(), 1, "{changes:?}");
    let (id, action, _) = changes.remove(0);
    (Uuid::parse_str(&id).expect("a UUID"), action)
}

fn is(id: Uuid, action: &str) -> (Uuid, String) {
    (id, action.to_owned())
}
