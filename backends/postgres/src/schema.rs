//! The schema in the database, as the operator's commands see it: install, attach, detach, uninstall, status.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::Clock;
use tidings_entities::EntityCode;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::connect::{Target, TimeLimits};
use crate::error::DatabaseError;
use crate::logical;
use crate::logical::slot::{self, Slot};

/// The statements that install the schema, or bring it up to date. Running them again changes nothing.
pub const INSTALL: &str = concat!(include_str!("../sql/install.sql"), include_str!("../sql/logical.sql"));
/// The statements that remove everything but the log.
const UNINSTALL: &str = include_str!("../sql/uninstall.sql");
/// The statements that remove the log.
const DROP_LOG: &str = include_str!("../sql/drop_log.sql");

/// Tries to drop a slot whose reader was told to go, and the time between two.
const DROP_TRIES: usize = 50;
const DROP_INTERVAL: Duration = Duration::from_millis(100);
/// Time for a command.
const OPERATOR_TIME_LIMITS: TimeLimits =
    TimeLimits { connect: Duration::from_secs(10), statement: Duration::from_secs(120) };

/// What happens to `app.logging` when the schema is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// It stays, with its functions.
    Keep,
    /// It is removed, too.
    Drop,
}

/// A connection with which an operator works on the schema.
pub struct Operator {
    target: Target,
    client: Client,
    driver: AbortHandle,
}

/// What is installed, and how it goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Version of the schema.
    pub version: i32,
    /// Version of the server.
    pub server: String,
    /// Tables whose changes are captured.
    pub attachments: Vec<Attachment>,
    /// Entries in the outbox.
    pub outbox_rows: i64,
    /// Size of the outbox on disk, in bytes, with its indexes.
    pub outbox_bytes: i64,
    /// Age of its oldest entry, in seconds.
    pub outbox_oldest: Option<f64>,
    /// Subscriptions in the registry.
    pub subscriptions: i64,
    /// Entries of `app.logging` that are not marked yet.
    pub pending_logs: i64,
    /// The nodes with a lease.
    pub nodes: Vec<Node>,
    /// The replication slot; `None` if there is none.
    pub slot: Option<SlotStatus>,
}

/// The replication slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotStatus {
    /// Name of the slot.
    pub name: String,
    /// Bytes of the database's log that are kept for it.
    pub retained: i64,
    /// Bytes of the database's log that were not read.
    pub behind: i64,
    /// Whether the database has given it up.
    pub lost: bool,
    /// Whether a node reads it.
    pub active: bool,
}

/// A table whose changes are captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Name of the table; its number if it is gone.
    pub table: String,
    /// Code of its entities.
    pub code: String,
    /// Column of their ids.
    pub key: String,
    /// Triggers that are there and enabled, of four.
    pub triggers: i64,
    /// Whether it is captured by logical replication, and then whether it is in the publication.
    pub published: Option<bool>,
}

/// A tidings that works on the database.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Id of the node.
    pub id: String,
    /// Seconds until its lease runs out; negative if it has.
    pub lease: f64,
    /// Entries of the outbox that it had not read at its last heartbeat; `None` if it reads nothing.
    pub unread: Option<i64>,
    /// Its subscriptions in the registry.
    pub subscriptions: i64,
}

const STATUS: &str = "SELECT s.version, current_setting('server_version'),
       (SELECT count(*) FROM app.change_outbox), pg_total_relation_size('app.change_outbox'),
       (SELECT extract(epoch FROM clock_timestamp() - min(created_ts))::float8 FROM app.change_outbox),
       (SELECT count(*) FROM app.rxdb_subscription),
       (SELECT count(*) FROM app.logging WHERE sync_status = 'pending' AND action <> 0)
FROM app.tidings_schema AS s";

const ATTACHMENTS: &str = "SELECT a.relation::text, a.entity_code::text, a.key_column::text,
       (SELECT count(*) FROM pg_trigger AS t
        WHERE t.tgrelid = a.relation AND t.tgname ~ '^tidings_(insert|update|delete|truncate)$' AND t.tgenabled <> 'D'),
       CASE WHEN a.by_log THEN EXISTS (
           SELECT FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
           WHERE p.pubname = 'tidings_changes' AND r.prrelid = a.relation) END
FROM app.tidings_attachment AS a ORDER BY 1";

const NODES: &str = "SELECT n.node_id::text, extract(epoch FROM n.alive_until - clock_timestamp())::float8,
       CASE WHEN n.read_snapshot IS NOT NULL THEN
           (SELECT count(*) FROM app.change_outbox AS o WHERE NOT pg_visible_in_snapshot(o.xid, n.read_snapshot)) END,
       (SELECT count(*) FROM app.rxdb_subscription AS r WHERE r.node_id = n.node_id)
FROM app.tidings_node AS n ORDER BY n.started_ts";

impl Operator {
    /// Connects to a database.
    pub async fn connect(url: &str, clock: Arc<dyn Clock>) -> Result<Self, DatabaseError> {
        let target = Target::new(url, clock, OPERATOR_TIME_LIMITS)?;
        let (client, driver) = target.connect_plainly().await?;
        Ok(Self { target, client, driver })
    }

    /// Installs the schema, or brings it up to date.
    pub async fn install(&self) -> Result<(), DatabaseError> {
        self.run(INSTALL).await
    }

    /// Removes what was installed, and the capture of all tables, with the replication slot.
    pub async fn uninstall(&self, log: Log) -> Result<(), DatabaseError> {
        // Nodes that find the schema gone do not make the slot anew.
        let slot = self.slot(async |client| slot::look(client).await).await;
        self.run(UNINSTALL).await?;
        if let Ok(slot) = slot {
            self.drop_slot(&slot).await?;
        }
        match log {
            Log::Keep => Ok(()),
            Log::Drop => self.run(DROP_LOG).await,
        }
    }

    /// Captures the changes of a table under a code, by a key of type uuid.
    pub async fn attach(&self, table: &str, code: &EntityCode, key: &str) -> Result<(), DatabaseError> {
        self.table_exists(table).await?;
        let code = code.as_str();
        let asked = "SELECT app.tidings_attach($1::text::regclass, $2, $3::text::name)";
        let given: [(&(dyn ToSql + Sync), Type); 3] =
            [(&table, Type::TEXT), (&code, Type::VARCHAR), (&key, Type::TEXT)];
        self.query(asked, &given).await.map(|_| ())
    }

    /// Captures the changes of a table under a code by logical replication, and creates the slot if there is none.
    pub async fn publish(&self, table: &str, code: &EntityCode, key: &str) -> Result<(), DatabaseError> {
        self.table_exists(table).await?;
        let code = code.as_str();
        let asked = "SELECT app.tidings_publish($1::text::regclass, $2, $3::text::name)";
        let given: [(&(dyn ToSql + Sync), Type); 3] =
            [(&table, Type::TEXT), (&code, Type::VARCHAR), (&key, Type::TEXT)];
        self.query(asked, &given).await?;
        let slot = self.slot(async |client| slot::look(client).await).await?;
        slot.check()?;
        if slot.found.is_some() || slot.position.is_some() {
            // One that was lost is made anew by whoever reads it, and tells the clients so.
            return Ok(());
        }
        let created = self.target.in_time(OPERATOR_TIME_LIMITS.statement, slot.create(&self.client)).await?;
        match created {
            // A node was quicker.
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_OBJECT) => Ok(()),
            created => created.map(|_| ()).map_err(|error| logical::may_not(&error)),
        }
    }

    /// Ends the capture of a table. Returns whether there was one.
    pub async fn detach(&self, table: &str) -> Result<bool, DatabaseError> {
        self.table_exists(table).await?;
        let asked = "SELECT app.tidings_detach($1::text::regclass)";
        let rows = self.query(asked, &[(&table, Type::TEXT)]).await?;
        let slot = self.slot(async |client| slot::look(client).await).await?;
        if slot.tables == 0 && slot.found.is_some() {
            self.drop_slot(&slot).await?;
            // A slot that is created later begins where it is.
            self.run("UPDATE app.tidings_slot SET position = NULL, is_whole = true").await?;
        }
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Says what is installed, and how it goes.
    pub async fn status(&self) -> Result<Status, DatabaseError> {
        let attachments = self.query(ATTACHMENTS, &[]).await?;
        let nodes = self.query(NODES, &[]).await?;
        let rows = self.query(STATUS, &[]).await?;
        let slot = self.slot(async |client| slot::look(client).await).await?;
        let Some(row) = rows.first() else {
            return Err(DatabaseError::NotInstalled("app.tidings_schema is empty".to_owned()));
        };
        let attachment = |row: &Row| Attachment {
            table: row.get(0),
            code: row.get(1),
            key: row.get(2),
            triggers: row.get(3),
            published: row.get(4),
        };
        let node = |row: &Row| Node {
            id: row.get(0),
            lease: row.get(1),
            unread: row.get(2),
            subscriptions: row.get(3),
        };
        Ok(Status {
            version: row.get(0),
            server: row.get(1),
            attachments: attachments.iter().map(attachment).collect(),
            outbox_rows: row.get(2),
            outbox_bytes: row.get(3),
            outbox_oldest: row.get(4),
            subscriptions: row.get(5),
            pending_logs: row.get(6),
            nodes: nodes.iter().map(node).collect(),
            slot: slot.found.map(|found| SlotStatus {
                name: slot.name,
                retained: found.retained,
                behind: found.behind,
                lost: found.lost,
                active: found.active.is_some(),
            }),
        })
    }

    async fn table_exists(&self, table: &str) -> Result<(), DatabaseError> {
        let rows = self.query("SELECT to_regclass($1) IS NOT NULL", &[(&table, Type::TEXT)]).await?;
        match rows.first().is_some_and(|row| row.get(0)) {
            true => Ok(()),
            false => Err(DatabaseError::Refused(format!(
                "there is no table {table}; a name that is not in lower case needs double quotes, as in SQL"
            ))),
        }
    }

    async fn slot<T>(
        &self,
        work: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, DatabaseError> {
        let done = self.target.in_time(OPERATOR_TIME_LIMITS.statement, work(&self.client)).await?;
        done.map_err(|error| DatabaseError::of(&error))
    }

    /// Drops the slot for good, and ends who reads it.
    async fn drop_slot(&self, slot: &Slot) -> Result<(), DatabaseError> {
        if slot.found.as_ref().is_some_and(|found| !found.ours) {
            return Ok(());
        }
        for _ in 0..DROP_TRIES {
            self.slot(async |client| slot.end_reader(client).await).await?;
            let dropping = self.slot(async |client| match slot.drop(client).await {
                Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => Ok(false),
                done => done.map(|()| true),
            });
            if dropping.await? {
                return Ok(());
            }
            self.target.clock.sleep(DROP_INTERVAL).await;
        }
        Err(DatabaseError::Refused(format!(
            "the replication slot {} is in use and cannot be dropped",
            slot.name
        )))
    }

    async fn run(&self, script: &str) -> Result<(), DatabaseError> {
        let done =
            self.target.in_time(OPERATOR_TIME_LIMITS.statement, self.client.batch_execute(script)).await?;
        done.map_err(|error| DatabaseError::of(&error))
    }

    async fn query(
        &self,
        sql: &str,
        given: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, DatabaseError> {
        let done =
            self.target.in_time(OPERATOR_TIME_LIMITS.statement, self.client.query_typed(sql, given)).await?;
        done.map_err(|error| DatabaseError::of(&error))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
