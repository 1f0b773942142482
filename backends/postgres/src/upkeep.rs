//! What is removed and marked in a database as time goes by, by whichever node comes first.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Error;
use uuid::Uuid;

use crate::connect::Link;
use crate::database::Shared;
use crate::error::DatabaseError;
use crate::snapshot::Snapshot;

/// Rows removed or marked in one transaction.
const BATCH: i64 = 5000;
/// Time between two looks for entries of the log to be marked.
const MARK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two removals of stale subscriptions.
const STALE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Nodes may be behind, and a relay may: neither loses what it has not read. One that nobody has held for as long as
/// the window holds nothing back.
const HELD_BACK: &str = "SELECT n.read_snapshot::text FROM app.tidings_node AS n
WHERE n.read_snapshot IS NOT NULL AND n.alive_until >= clock_timestamp()
UNION ALL
SELECT r.read_snapshot::text FROM app.tidings_relay AS r
WHERE r.read_snapshot IS NOT NULL AND r.held_until >= clock_timestamp() - make_interval(secs => $1)";

const TAKE_HORIZON: &str = "INSERT INTO app.tidings_horizon (snapshot)
SELECT pg_current_snapshot()
WHERE NOT EXISTS (SELECT FROM app.tidings_horizon WHERE taken_ts > clock_timestamp() - make_interval(secs => $1))";

const OLD_HORIZONS: &str = "SELECT h.snapshot::text FROM app.tidings_horizon AS h
WHERE h.taken_ts <= clock_timestamp() - make_interval(secs => $1) ORDER BY h.id DESC LIMIT 1000";

const FORGET_HORIZONS: &str = "DELETE FROM app.tidings_horizon
WHERE id < (SELECT max(h.id) FROM app.tidings_horizon AS h WHERE h.snapshot::text = $1)";

/// The last transaction whose changes are about to be removed.
const LAST_OLD: &str = "SELECT o.xid::text::bigint FROM app.change_outbox AS o
WHERE o.xid < pg_snapshot_xmax($1::text::pg_snapshot) AND pg_visible_in_snapshot(o.xid, $1::text::pg_snapshot)
ORDER BY o.xid DESC LIMIT 1";

const TRIMMED: &str = "SELECT coalesce(trimmed_snapshot::text, '1:1:') FROM app.tidings_schema";

/// Told before anything is removed, so that nobody reads on where something is missing.
const TELL_TRIMMED: &str = "UPDATE app.tidings_schema SET trimmed_snapshot = $1::text::pg_snapshot";

const TRIM: &str = "WITH gone AS (
    DELETE FROM app.change_outbox WHERE seq = ANY (ARRAY(
        SELECT o.seq FROM app.change_outbox AS o
        WHERE o.xid < pg_snapshot_xmax($1::text::pg_snapshot)
          AND pg_visible_in_snapshot(o.xid, $1::text::pg_snapshot)
        ORDER BY o.xid, o.seq LIMIT $2))
    RETURNING seq
), told AS (
    UPDATE app.tidings_schema SET trimmed_seq = greatest(trimmed_seq, (SELECT max(seq) FROM gone))
    WHERE EXISTS (SELECT FROM gone)
)
SELECT count(*) FROM gone";

/// One node at a time; the lock ends with the transaction.
const LOCK: &str = "SELECT pg_try_advisory_xact_lock(1953064041, 3)";

const ESTIMATE: &str =
    "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'app.change_outbox'::regclass";

const PENDING: &str = "SELECT l.id, pg_current_snapshot()::text FROM app.logging AS l
WHERE l.sync_status = 'pending' AND l.action <> 0 ORDER BY l.created_ts LIMIT $1";

const MARK: &str = "WITH read AS (
    SELECT l.id FROM app.logging AS l WHERE l.id = ANY ($1) AND l.sync_status = 'pending' FOR UPDATE SKIP LOCKED
)
UPDATE app.logging AS l SET sync_status = 'sent', sync_processed_ts = clock_timestamp()
FROM read WHERE l.id = read.id";

/// Does the upkeep, for as long as the server runs.
pub(crate) async fn upkeep(shared: Arc<Shared>) {
    tokio::join!(trim_always(&shared), mark_always(&shared), remove_stale_always(&shared));
}

async fn trim_always(shared: &Shared) {
    let window = shared.options.since_window;
    let interval = (window / 15).clamp(Duration::from_secs(1), Duration::from_secs(60));
    loop {
        if let Err(error) = trim(shared, interval).await {
            tracing::debug!(project = shared.options.project, %error, "cannot trim the outbox");
        }
        shared.clock.sleep(interval).await;
    }
}

/// Removes from the outbox what was visible longer ago than the window and has been read by every node.
async fn trim(shared: &Shared, interval: Duration) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    let window = shared.options.since_window.as_secs_f64();
    let old = link.ask(async |link| old_horizon(link, window, interval.as_secs_f64()).await).await?;
    if let Some(old) = old {
        while link.ask(async |link| trim_batch(link, &old).await).await? {}
    }
    let rows: i64 = link.ask(async |link| Ok(link.client.query_one(ESTIMATE, &[]).await?.get(0))).await?;
    shared.meters.rows.set(rows);
    Ok(())
}

/// Notes what is visible now, and returns the newest such note beyond the window that everybody has read.
async fn old_horizon(link: &mut Link, window: f64, interval: f64) -> Result<Option<Snapshot>, Error> {
    let snapshot =
        |row: &tokio_postgres::Row| Snapshot::parse(row.get(0)).expect("PostgreSQL prints snapshots");
    let transaction = link.client.transaction().await?;
    if !transaction.query_one(LOCK, &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    transaction.execute(TAKE_HORIZON, &[&interval]).await?;
    let held: Vec<Snapshot> = transaction.query(HELD_BACK, &[&window]).await?.iter().map(snapshot).collect();
    let horizons = transaction.query(OLD_HORIZONS, &[&window]).await?;
    let read_by_all = |horizon: &Snapshot| held.iter().all(|read| read.covers(horizon));
    let Some(old) = horizons.iter().map(snapshot).find(read_by_all) else {
        transaction.commit().await?;
        return Ok(None);
    };
    let text = old.to_string();
    transaction.execute(FORGET_HORIZONS, &[&text]).await?;
    let last = transaction.query_opt(LAST_OLD, &[&text]).await?;
    if let Some(last) = &last {
        // No more than what is removed: a client that has read all of that need not fetch everything again.
        let before = snapshot(&transaction.query_one(TRIMMED, &[]).await?).xmax();
        let last = last.get::<_, i64>(0).unsigned_abs().max(before.saturating_sub(1));
        transaction.execute(TELL_TRIMMED, &[&old.up_to(last).to_string()]).await?;
    }
    transaction.commit().await?;
    Ok(last.map(|_| old))
}

/// Removes a batch. Returns whether there may be more.
async fn trim_batch(link: &mut Link, old: &Snapshot) -> Result<bool, Error> {
    let statement = link.statement(TRIM).await?;
    let transaction = link.client.transaction().await?;
    if !transaction.query_one(LOCK, &[]).await?.get::<_, bool>(0) {
        return Ok(false);
    }
    let removed: i64 = transaction.query_one(&statement, &[&old.to_string(), &BATCH]).await?.get(0);
    transaction.commit().await?;
    Ok(removed >= BATCH)
}

async fn mark_always(shared: &Shared) {
    if !shared.options.mark_status {
        return;
    }
    let mut seen = Seen::default();
    loop {
        if let Err(error) = mark(shared, &mut seen).await {
            tracing::debug!(project = shared.options.project, %error, "cannot mark entries of the log as sent");
        }
        shared.clock.sleep(MARK_INTERVAL).await;
    }
}

/// Entries that were pending at a moment.
#[derive(Default)]
struct Seen {
    ids: Vec<Uuid>,
    at: Option<Snapshot>,
}

/// Marks the entries that were seen before and have been read since, then looks for others.
async fn mark(shared: &Shared, seen: &mut Seen) -> Result<(), DatabaseError> {
    let Some(read) = shared.read() else { return Ok(()) };
    let link = &mut shared.pool.borrow().await?;
    loop {
        if seen.at.as_ref().is_some_and(|at| !read.covers(at)) {
            return Ok(());
        }
        if !seen.ids.is_empty() {
            let ids = std::mem::take(&mut seen.ids);
            link.ask(async |link| {
                let statement = link.statement(MARK).await?;
                link.client.execute(&statement, &[&ids]).await
            })
            .await?;
        }
        let rows = link
            .ask(async |link| {
                let statement = link.statement(PENDING).await?;
                link.client.query(&statement, &[&BATCH]).await
            })
            .await?;
        seen.ids = rows.iter().map(|row| row.get(0)).collect();
        seen.at = rows.first().and_then(|row| Snapshot::parse(row.get(1)));
        if rows.is_empty() {
            return Ok(());
        }
    }
}

async fn remove_stale_always(shared: &Shared) {
    loop {
        if let Err(error) = remove_stale(shared).await {
            tracing::debug!(project = shared.options.project, %error, "cannot remove stale subscriptions");
        }
        shared.clock.sleep(STALE_INTERVAL).await;
    }
}

async fn remove_stale(shared: &Shared) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    let asked = "SELECT app.cleanup_stale_subscriptions()";
    let removed: i32 = link.ask(async |link| Ok(link.client.query_one(asked, &[]).await?.get(0))).await?;
    if removed > 0 {
        tracing::info!(project = shared.options.project, removed, "stale subscriptions were removed");
    }
    Ok(())
}
