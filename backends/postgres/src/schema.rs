//! The schema in the database, as the operator's commands see it: install, attach, detach, uninstall, status.

use std::sync::Arc;
use std::time::Duration;

use tidings_engine::Clock;
use tidings_entities::EntityCode;
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::connect::{Target, TimeLimits};
use crate::error::DatabaseError;

/// The statements that install the schema, or bring it up to date. Running them again changes nothing.
pub const INSTALL: &str = include_str!("../sql/install.sql");
/// The statements that remove everything but the log.
const UNINSTALL: &str = include_str!("../sql/uninstall.sql");
/// The statements that remove the log.
const DROP_LOG: &str = include_str!("../sql/drop_log.sql");

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
        WHERE t.tgrelid = a.relation AND t.tgname ~ '^tidings_(insert|update|delete|truncate)$' AND t.tgenabled <> 'D')
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

    /// Removes what was installed, and the capture of all tables.
    pub async fn uninstall(&self, log: Log) -> Result<(), DatabaseError> {
        self.run(UNINSTALL).await?;
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

    /// Ends the capture of a table. Returns whether there was one.
    pub async fn detach(&self, table: &str) -> Result<bool, DatabaseError> {
        self.table_exists(table).await?;
        let asked = "SELECT app.tidings_detach($1::text::regclass)";
        let rows = self.query(asked, &[(&table, Type::TEXT)]).await?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    /// Says what is installed, and how it goes.
    pub async fn status(&self) -> Result<Status, DatabaseError> {
        let attachments = self.query(ATTACHMENTS, &[]).await?;
        let nodes = self.query(NODES, &[]).await?;
        let rows = self.query(STATUS, &[]).await?;
        let Some(row) = rows.first() else {
            return Err(DatabaseError::NotInstalled("app.tidings_schema is empty".to_owned()));
        };
        let attachment = |row: &Row| Attachment {
            table: row.get(0),
            code: row.get(1),
            key: row.get(2),
            triggers: row.get(3),
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
