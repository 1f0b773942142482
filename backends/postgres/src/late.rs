//! What is committed after a later change of the same entity.
//!
//! The number of a row in the outbox is the version that clients see, and they ignore a version that is not higher than
//! the last one. Numbers are given when a row is written. Whoever changes an entity under a lock on its row commits in
//! the order of numbers. Who writes into the log without a lock may not: then a change with a lower number becomes
//! visible after one with a higher. It is given a new number, in the database, so that every node reads it with that.

use std::collections::HashMap;

use tokio_postgres::Error;
use uuid::Uuid;

use crate::connect::Link;
use crate::error::DatabaseError;
use crate::pool::Borrowed;
use crate::position::Position;
use crate::reading::{Raw, signed};

const COMPARE: &str = "SELECT c.seq, bool_or(pg_visible_in_snapshot(o.xid, $4::text::pg_snapshot)) AS late,
       bool_or(NOT pg_visible_in_snapshot(o.xid, $4::text::pg_snapshot)) AS superseded
FROM unnest($1::bigint[], $2::text[], $3::uuid[]) AS c (seq, code, id)
JOIN app.change_outbox AS o ON o.entity_id = c.id AND o.entity_code = c.code AND o.seq > c.seq
WHERE o.seq > $5
GROUP BY c.seq";

/// Numbers are drawn in the order of the old ones. A row that another node has moved meanwhile is not there any more. Rows
/// are locked in order, so that two nodes do not wait for each other.
const MOVE: &str = "WITH held AS MATERIALIZED (
    SELECT o.seq FROM app.change_outbox AS o WHERE o.seq = ANY ($1::bigint[]) ORDER BY o.seq FOR UPDATE
), late AS MATERIALIZED (
    SELECT h.seq, nextval(pg_get_serial_sequence('app.change_outbox', 'seq')) AS fresh
    FROM (SELECT held.seq FROM held ORDER BY held.seq) AS h
)
UPDATE app.change_outbox AS o
SET seq = late.fresh, xid = pg_current_xact_id(), created_ts = clock_timestamp()
FROM late WHERE o.seq = late.seq";

/// How a row stands to other changes of its entity.
#[derive(Clone, Copy, Default)]
struct Standing {
    /// A row with a higher number had been read before.
    late: bool,
    /// A row with a higher number has not been read yet, and will be.
    superseded: bool,
}

/// What is known of a page beside its rows.
#[derive(Clone, Copy)]
pub(crate) struct Known {
    /// Whether it was read before the database recovered from a crash, and is read again.
    pub(crate) again: bool,
    /// Highest number that was removed from the outbox.
    pub(crate) trimmed: u64,
}

/// Takes out what is out of order: it is read again with a new number, or needs not be read because a later change of
/// the entity is still to come. What is read again would take versions back, except for the last change of each entity.
/// Returns how many rows were given a new number.
pub(crate) async fn put_in_order(
    link: &mut Borrowed,
    found: &mut Vec<Raw>,
    from: &Position,
    known: Known,
) -> Result<u64, DatabaseError> {
    let candidates: Vec<&Raw> = found
        .iter()
        .filter(|raw| raw.id.is_some() && raw.seq < from.highest.max(known.trimmed + 1))
        .collect();
    if candidates.is_empty() {
        return Ok(0);
    }
    let mut standings =
        link.ask(async |link| compare(link, &candidates, &from.read.to_string()).await).await?;
    for raw in candidates {
        if raw.seq <= known.trimmed {
            // What it would be compared with may have been removed.
            standings.entry(raw.seq).or_default().late = true;
        }
    }
    let mut late = Vec::new();
    found.retain(|raw| match standings.get(&raw.seq) {
        Some(standing) if standing.late || known.again && standing.superseded => {
            // Who may see an entity is asked again for each change of access, so none is left out.
            if !standing.superseded || raw.is_about_access() {
                late.push(signed(raw.seq));
            }
            false
        }
        _ => true,
    });
    if late.is_empty() {
        return Ok(0);
    }
    link.ask(async |link| give_new_numbers(link, &late).await).await?;
    Ok(late.len() as u64)
}

async fn compare(link: &mut Link, candidates: &[&Raw], read: &str) -> Result<HashMap<u64, Standing>, Error> {
    let statement = link.statement(COMPARE).await?;
    let seqs: Vec<i64> = candidates.iter().map(|raw| signed(raw.seq)).collect();
    let codes: Vec<&str> = candidates.iter().map(|raw| raw.code.as_str()).collect();
    let ids: Vec<Option<Uuid>> = candidates.iter().map(|raw| raw.id).collect();
    let first = seqs.iter().min().copied().unwrap_or(0);
    let rows = link.client.query(&statement, &[&seqs, &codes, &ids, &read, &first]).await?;
    let standing = |row: &tokio_postgres::Row| Standing { late: row.get(1), superseded: row.get(2) };
    Ok(rows.iter().map(|row| (row.get::<_, i64>(0).unsigned_abs(), standing(row))).collect())
}

async fn give_new_numbers(link: &mut Link, late: &[i64]) -> Result<(), Error> {
    let statement = link.statement(MOVE).await?;
    link.client.execute(&statement, &[&late]).await?;
    link.client.batch_execute("NOTIFY tidings_outbox").await
}
