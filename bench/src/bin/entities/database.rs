//! The private PostgreSQL, its tables, and who writes into them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_bench::Failed;
use tidings_testing::postgres::{Fsync, Postgres, Stop};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls, Statement};
use uuid::Uuid;

/// Name of the database.
const NAME: &str = "postgres";
/// A server as one would run it, rather than the small one of the tests. Commits are synced.
const SETTINGS: [&str; 4] = [
    "shared_buffers = '256MB'",
    "max_wal_size = '4GB'",
    "autovacuum_naptime = '10s'",
    "checkpoint_timeout = '15min'",
];

/// A running PostgreSQL with the tables `bare`, `notified` and `captured`, which have the same rows.
pub struct Database {
    server: Postgres,
    /// Ids of the rows.
    pub ids: Arc<Vec<Uuid>>,
}

/// A connection that updates single rows of a table.
pub struct Writer {
    client: Client,
    update: Statement,
}

/// What several writers did.
pub struct Commits {
    /// Number of commits.
    pub count: u64,
    /// Commits per second.
    pub rate: f64,
}

impl Database {
    /// Starts it and makes the tables.
    pub async fn start(entities: usize) -> Result<Self, Failed> {
        let server = Postgres::start(Fsync::On).await;
        let database = Self { server, ids: Arc::new((0..entities).map(|_| Uuid::new_v4()).collect()) };
        let client = database.client().await?;
        for setting in SETTINGS {
            client.batch_execute(&format!("ALTER SYSTEM SET {setting}")).await?;
        }
        drop(client);
        database.server.restart(Stop::Fast).await;
        let client = database.client().await?;
        for table in ["bare", "notified", "captured"] {
            client
                .batch_execute(&format!(
                    "CREATE TABLE {table} (id uuid PRIMARY KEY, n bigint NOT NULL DEFAULT 0, text text NOT NULL) \
                     WITH (fillfactor = 50)"
                ))
                .await?;
            let insert = format!(
                "INSERT INTO {table} (id, text) SELECT id, repeat('x', 100) FROM unnest($1::uuid[]) AS id"
            );
            client.execute(&insert, &[&*database.ids]).await?;
        }
        client
            .batch_execute(
                "CREATE FUNCTION notify_bare() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                 PERFORM pg_notify('bare', NEW.id::text); RETURN NULL; END $$; \
                 CREATE TRIGGER notify AFTER UPDATE ON notified FOR EACH ROW EXECUTE FUNCTION notify_bare()",
            )
            .await?;
        Ok(database)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.url(NAME)
    }

    /// A new connection.
    pub async fn client(&self) -> Result<Client, Failed> {
        let (client, connection) = tokio_postgres::connect(&self.url(), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Connections that update rows of a table.
    pub async fn writers(&self, table: &str, count: usize) -> Result<Vec<Writer>, Failed> {
        let mut writers = Vec::new();
        for _ in 0..count {
            let client = self.client().await?;
            let update =
                client.prepare(&format!("UPDATE {table} SET n = n + 1 WHERE id = ANY ($1::uuid[])")).await?;
            writers.push(Writer { client, update });
        }
        Ok(writers)
    }

    /// Commits one after the other on each of so many connections, for a time. Each commit updates so many rows that no other
    /// connection updates, so that none waits for a row.
    pub async fn commits(
        &self,
        table: &str,
        writers: usize,
        rows: usize,
        lasting: Duration,
    ) -> Result<Commits, Failed> {
        let mut running = JoinSet::new();
        for (number, writer) in self.writers(table, writers).await?.into_iter().enumerate() {
            let own: Vec<Uuid> = self.ids.iter().skip(number).step_by(writers).copied().collect();
            if own.len() < rows {
                return Err(format!("{writers} writers of {rows} rows need more entities").into());
            }
            running.spawn(async move {
                let (mut count, mut at, from) = (0_u64, 0, Instant::now());
                while from.elapsed() < lasting {
                    let some: Vec<Uuid> = own.iter().cycle().skip(at).take(rows).copied().collect();
                    at = (at + rows) % own.len();
                    writer.update(&some).await?;
                    count += 1;
                }
                Ok::<_, tokio_postgres::Error>((count, from.elapsed()))
            });
        }
        let mut commits = Commits { count: 0, rate: 0.0 };
        while let Some(ended) = running.join_next().await {
            let (count, time) = ended??;
            commits.count += count;
            commits.rate += count as f64 / time.as_secs_f64();
        }
        Ok(commits)
    }
}

impl Writer {
    /// Updates rows in a transaction of its own.
    pub async fn update(&self, ids: &[Uuid]) -> Result<(), tokio_postgres::Error> {
        self.client.execute(&self.update, &[&ids]).await.map(|_| ())
    }
}
