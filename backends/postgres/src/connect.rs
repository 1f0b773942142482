//! [`Link`]: one connection to the database, and what is known of the server behind it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::poll_fn;
use tidings_engine::Clock;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::{AsyncMessage, Client, Config, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{DatabaseError, OLDEST_VERSION, message};
use crate::logical::{Login, Wire, WireError};
use crate::tls;

/// Where the database is, and how long to wait for it.
pub(crate) struct Target {
    config: Config,
    tls: MakeRustlsConnect,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time_limits: TimeLimits,
}

/// How long to wait for the database.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// Time to connect, including the first questions.
    pub connect: Duration,
    /// Time for a statement.
    pub statement: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), statement: Duration::from_secs(10) }
    }
}

/// A server, as far as it matters for numbers of transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerLife {
    pub(crate) system: i64,
    /// Hexadecimal number of the timeline, which changes with a failover.
    pub(crate) timeline: String,
    pub(crate) database: u32,
    /// When the server last recovered from a crash, in microseconds since 1970.
    pub(crate) recovered: i64,
}

/// An open connection. Closed when dropped.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) life: ServerLife,
    prepared: HashMap<&'static str, Statement>,
    driver: AbortHandle,
    /// Closed when the driver has ended.
    open: watch::Receiver<()>,
}

/// Statistics are reset by a recovery from a crash and not by an orderly restart, which tells the two apart.
const LIFE: &str = "SELECT system.system_identifier,
       CASE WHEN pg_is_in_recovery() THEN NULL ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END,
       (SELECT oid FROM pg_database WHERE datname = current_database()),
       coalesce((extract(epoch FROM wal.stats_reset) * 1000000)::bigint, 0)
FROM pg_control_system() AS system, pg_stat_wal AS wal";

impl Target {
    pub(crate) fn new(
        url: &str,
        clock: Arc<dyn Clock>,
        time_limits: TimeLimits,
    ) -> Result<Self, DatabaseError> {
        let (mut config, tls) = tls::parse(url)?;
        config.connect_timeout(time_limits.connect);
        config.keepalives_idle(Duration::from_secs(30));
        config.tcp_user_timeout(Duration::from_secs(30));
        if config.get_application_name().is_none() {
            config.application_name("tidings");
        }
        Ok(Self { config, tls, clock, time_limits })
    }

    /// Connects, for the operator's commands: with the settings of the role, and without asking what server it is.
    pub(crate) async fn connect_plainly(&self) -> Result<(Client, AbortHandle), DatabaseError> {
        let (client, driver, _) = self.in_time(self.time_limits.connect, self.open(None)).await??;
        Ok((client, driver))
    }

    /// Connects. Notifications are counted in `woken`.
    pub(crate) async fn connect(&self, woken: Option<watch::Sender<u64>>) -> Result<Link, DatabaseError> {
        self.in_time(self.time_limits.connect, self.connect_and_ask(woken)).await?
    }

    async fn connect_and_ask(&self, woken: Option<watch::Sender<u64>>) -> Result<Link, DatabaseError> {
        let (client, driver, open) = self.open(woken).await?;
        // The driver ends with the link, also when the connection turns out to be of no use.
        let mut link = Link {
            client,
            life: ServerLife { system: 0, timeline: String::new(), database: 0, recovered: 0 },
            prepared: HashMap::new(),
            driver,
            open,
        };
        let failed = |error: tokio_postgres::Error| DatabaseError::Connect(message(&error));
        let millis = self.time_limits.statement.as_millis();
        // An acknowledged change has to be durable, whatever is usual in this database. Every statement on the outbox has an
        // index to go by, also before the first statistics of the table, when the planner would rather read all of it.
        let settings = format!(
            "SET search_path = pg_catalog; SET statement_timeout = {millis};
             SET idle_in_transaction_session_timeout = {millis}; SET lock_timeout = {millis};
             SET default_transaction_isolation = 'read committed'; SET jit = off;
             SET max_parallel_workers_per_gather = 0; SET enable_seqscan = off;
             SELECT set_config('synchronous_commit', 'on', false)
             WHERE current_setting('synchronous_commit') = 'off';"
        );
        link.client.batch_execute(&settings).await.map_err(failed)?;
        let row = link.client.query_typed_one(LIFE, &[]).await.map_err(failed)?;
        let timeline: Option<String> = row.get(1);
        link.life = ServerLife {
            system: row.get(0),
            timeline: timeline.ok_or(DatabaseError::Standby)?,
            database: row.get(2),
            recovered: row.get(3),
        };
        Ok(link)
    }

    async fn open(
        &self,
        woken: Option<watch::Sender<u64>>,
    ) -> Result<(Client, AbortHandle, watch::Receiver<()>), DatabaseError> {
        let failed = |error: tokio_postgres::Error| DatabaseError::Connect(message(&error));
        let (client, mut connection) = self.config.connect(self.tls.clone()).await.map_err(failed)?;
        let (ends, open) = watch::channel(());
        let driver = tokio::spawn(async move {
            let _ends = ends;
            while let Some(Ok(received)) = poll_fn(|context| connection.poll_message(context)).await {
                if let (AsyncMessage::Notification(_), Some(woken)) = (received, &woken) {
                    woken.send_modify(|count| *count += 1);
                }
            }
        });
        let driver = driver.abort_handle();
        if let Err(error) = check_version(&client).await {
            driver.abort();
            return Err(error);
        }
        Ok((client, driver, open))
    }

    /// Connects to read the stream of a replication slot.
    pub(crate) async fn wire(&self, login: &Login) -> Result<Wire, WireError> {
        Wire::connect(&self.config, &self.tls, login).await
    }

    /// Waits for work, but not for ever.
    pub(crate) async fn in_time<T>(
        &self,
        most: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, DatabaseError> {
        let timer = self.clock.sleep(most);
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = timer => Err(DatabaseError::Timeout(most)),
        }
    }
}

async fn check_version(client: &Client) -> Result<(), DatabaseError> {
    let asked = "SELECT current_setting('server_version_num')::integer, current_setting('server_version')";
    let row =
        client.query_typed_one(asked, &[]).await.map_err(|error| DatabaseError::Connect(message(&error)))?;
    version_is_supported(row.get(0), row.get(1))
}

/// Refuses what is too old.
pub(crate) fn version_is_supported(number: i32, name: &str) -> Result<(), DatabaseError> {
    if number < OLDEST_VERSION { Err(DatabaseError::TooOld(name.to_owned())) } else { Ok(()) }
}

impl Link {
    /// Prepares a statement, once for each connection.
    pub(crate) async fn statement(&mut self, sql: &'static str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.prepared.insert(sql, statement.clone());
        Ok(statement)
    }

    /// Resolves when the connection is lost.
    pub(crate) async fn closed(&self) {
        let mut open = self.open.clone();
        while open.changed().await.is_ok() {}
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_before_15_is_refused_with_its_version() {
        let error = version_is_supported(140_012, "14.12").expect_err("too old").to_string();
        assert_eq!(error, "the database is PostgreSQL 14.12; tidings needs version 15 or later");
        assert!(version_is_supported(150_000, "15.0").is_ok());
    }
}
