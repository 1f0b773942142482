//! The statements about the replication slot, the publication, and the lease of reading it.

use tokio_postgres::types::PgLsn;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::error::DatabaseError;

/// Name of the publication of attached tables.
pub(crate) const PUBLICATION: &str = "tidings_changes";
/// First version in which a slot can be kept on a standby as well.
const FAILOVER_VERSION: i32 = 170_000;

/// What is known of the slot of a database, and of the server as far as it matters for it.
pub(crate) struct Slot {
    /// Name of the slot, whether or not it exists. It has the number of the database, as slots belong to the whole server.
    pub(crate) name: String,
    pub(crate) wal_level: String,
    /// Number of the server's version.
    server: i32,
    /// Tables that are attached by logical replication.
    pub(crate) tables: i64,
    /// Everything before this position is in the outbox; `None` if nothing was ever read.
    pub(crate) position: Option<u64>,
    /// Whether the slot was not lost since.
    pub(crate) is_whole: bool,
    /// The slot; `None` if it does not exist.
    pub(crate) found: Option<Found>,
}

/// A slot that exists.
pub(crate) struct Found {
    /// Whether it is a slot of this database with the right output plugin.
    pub(crate) ours: bool,
    /// Whether the server has given it up.
    pub(crate) lost: bool,
    pub(crate) active: Option<i32>,
    /// What was confirmed.
    pub(crate) confirmed: Option<u64>,
    /// Bytes of the server's log that are kept for it.
    pub(crate) retained: i64,
    /// Bytes of the server's log that were not confirmed.
    pub(crate) behind: i64,
}

const LOOK: &str = "SELECT 'tidings_' || d.oid, current_setting('wal_level'),
       current_setting('server_version_num')::integer,
       (SELECT count(*) FROM app.tidings_attachment AS a WHERE a.by_log), t.position,
       s.slot_name IS NOT NULL, coalesce(s.plugin = 'pgoutput' AND s.database = d.datname, false),
       coalesce(s.wal_status = 'lost', false), s.active_pid, s.confirmed_flush_lsn,
       coalesce((pg_current_wal_lsn() - s.restart_lsn)::bigint, 0),
       coalesce((pg_current_wal_lsn() - s.confirmed_flush_lsn)::bigint, 0), coalesce(t.is_whole, true)
FROM pg_database AS d LEFT JOIN app.tidings_slot AS t ON true
LEFT JOIN pg_replication_slots AS s ON s.slot_name = 'tidings_' || d.oid
WHERE d.datname = current_database()";

const CLAIM: &str = "UPDATE app.tidings_slot AS s
SET term = s.term + 1, holder = $1, held_until = clock_timestamp() + make_interval(secs => $2)
WHERE s.holder IS NULL OR s.holder = $1 OR s.held_until < clock_timestamp() RETURNING s.term";

const RENEW: &str =
    "UPDATE app.tidings_slot AS s SET held_until = clock_timestamp() + make_interval(secs => $3)
WHERE s.holder = $1 AND s.term = $2 RETURNING s.term";

const RELEASE: &str =
    "UPDATE app.tidings_slot SET holder = NULL, held_until = clock_timestamp() WHERE holder = $1";

/// Everything that was read or said before counts for nothing: whoever has a cursor is told to fetch everything again.
const RESET: &str = "WITH fence AS (
    UPDATE app.tidings_slot SET position = $1, is_whole = true WHERE holder = $2 AND term = $3 RETURNING 1
), anew AS (
    UPDATE app.tidings_schema SET installation = gen_random_uuid() WHERE EXISTS (SELECT FROM fence)
)
SELECT count(*), app.tidings_wake()::text FROM fence";

const LOSE: &str = "UPDATE app.tidings_slot SET is_whole = false WHERE holder = $1 AND term = $2";

const BEGIN: &str =
    "UPDATE app.tidings_slot SET position = $1 WHERE holder = $2 AND term = $3 AND position IS NULL";

/// Who reads the slot, and since which claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    pub(crate) holder: Uuid,
    pub(crate) number: i64,
}

/// Looks at the slot.
pub(crate) async fn look(client: &Client) -> Result<Slot, Error> {
    let row = client.query_one(LOOK, &[]).await?;
    let position = |column: usize| row.get::<_, Option<PgLsn>>(column).map(u64::from);
    let found = row.get::<_, bool>(5).then(|| Found {
        ours: row.get(6),
        lost: row.get(7),
        active: row.get(8),
        confirmed: position(9),
        retained: row.get(10),
        behind: row.get(11),
    });
    Ok(Slot {
        name: row.get(0),
        wal_level: row.get(1),
        server: row.get(2),
        tables: row.get(3),
        position: position(4),
        is_whole: row.get(12),
        found,
    })
}

impl Slot {
    /// Refuses a server that cannot do logical replication, and a slot that belongs to somebody else.
    pub(crate) fn check(&self) -> Result<(), DatabaseError> {
        if self.wal_level != "logical" {
            return Err(DatabaseError::Misconfigured(format!(
                "mode \"logical\" needs a database with wal_level = logical, and wal_level is {}",
                self.wal_level
            )));
        }
        if self.found.as_ref().is_some_and(|found| !found.ours) {
            let name = &self.name;
            return Err(DatabaseError::Misconfigured(format!(
                "the replication slot {name} is not one of tidings: drop or rename it"
            )));
        }
        Ok(())
    }

    /// Creates the slot. Waits for the transactions that are open. Returns the position where it begins.
    pub(crate) async fn create(&self, client: &Client) -> Result<u64, Error> {
        let failover = if self.server >= FAILOVER_VERSION { ", false, false, true" } else { "" };
        let sql = format!("SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput'{failover})");
        Ok(client.query_one(&sql, &[&self.name]).await?.get::<_, PgLsn>(0).into())
    }

    /// Ends whoever reads the slot. Returns whether there was somebody.
    pub(crate) async fn end_reader(&self, client: &Client) -> Result<bool, Error> {
        let sql = "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots
            WHERE slot_name = $1 AND active_pid IS NOT NULL";
        Ok(client.query_one(sql, &[&self.name]).await?.get::<_, i64>(0) > 0)
    }

    /// Drops the slot, unless somebody reads it.
    pub(crate) async fn drop(&self, client: &Client) -> Result<(), Error> {
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1";
        client.query_opt(sql, &[&self.name]).await.map(|_| ())
    }
}

/// Takes the lease, if nobody else has it.
pub(crate) async fn claim(client: &Client, holder: Uuid, seconds: f64) -> Result<Option<Term>, Error> {
    let row = client.query_opt(CLAIM, &[&holder, &seconds]).await?;
    Ok(row.map(|row| Term { holder, number: row.get(0) }))
}

impl Term {
    /// Renews the lease. Returns whether it is still held.
    pub(crate) async fn renew(self, client: &Client, seconds: f64) -> Result<bool, Error> {
        Ok(client.query_opt(RENEW, &[&self.holder, &self.number, &seconds]).await?.is_some())
    }

    /// Notes that the slot is lost, before another is made. Returns whether the lease is still held.
    pub(crate) async fn lose(self, client: &Client) -> Result<bool, Error> {
        Ok(client.execute(LOSE, &[&self.holder, &self.number]).await? > 0)
    }

    /// Lets a slot that was made anew begin at a position, and tells everybody to fetch everything again.
    pub(crate) async fn reset(self, client: &Client, position: u64) -> Result<bool, Error> {
        let row = client.query_one(RESET, &[&PgLsn::from(position), &self.holder, &self.number]).await?;
        Ok(row.get::<_, i64>(0) > 0)
    }

    /// Lets a slot that was never read begin at a position.
    pub(crate) async fn begin(self, client: &Client, position: u64) -> Result<(), Error> {
        client.execute(BEGIN, &[&PgLsn::from(position), &self.holder, &self.number]).await.map(|_| ())
    }
}

/// Gives the lease back.
pub(crate) async fn release(client: &Client, holder: Uuid) -> Result<(), Error> {
    client.execute(RELEASE, &[&holder]).await.map(|_| ())
}
