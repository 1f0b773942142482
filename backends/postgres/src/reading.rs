//! The statements that read the outbox.

use sha2::{Digest, Sha256};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use crate::connect::{Link, ServerLife};
use crate::error::DatabaseError;
use crate::position::Scan;
use crate::snapshot::Snapshot;

/// What a statement says of the database beside what it finds, at the same moment.
pub(crate) struct Header {
    /// What was visible to the statement.
    pub(crate) now: Snapshot,
    /// Identifies the installation of the schema; `None` if its row was removed.
    installation: Option<Uuid>,
    /// Everything visible in it may have been removed.
    pub(crate) trimmed: Option<Snapshot>,
    /// Highest number that was removed.
    pub(crate) trimmed_seq: u64,
}

/// A row of the outbox.
pub(crate) struct Raw {
    pub(crate) seq: u64,
    pub(crate) code: String,
    pub(crate) id: Option<Uuid>,
    pub(crate) action: i16,
    pub(crate) age_micros: i64,
}

/// A page of a scan.
pub(crate) struct Scanned {
    pub(crate) found: Vec<Raw>,
    /// Rows that were looked at, whether or not they belong to what is read.
    pub(crate) count: usize,
    /// The last of them.
    pub(crate) last: Option<u64>,
}

const END: &str =
    "SELECT pg_current_snapshot()::text, s.installation, s.trimmed_snapshot::text, s.trimmed_seq,
       (SELECT max(o.seq) FROM app.change_outbox AS o)
FROM (VALUES (1)) AS one (row) LEFT JOIN app.tidings_schema AS s ON true";

// The first row is the header; `o.xid` is qualified so that it is the column that is sorted by, and not its text.
const DIFFERENCE: &str = "SELECT 0::bigint, pg_current_snapshot()::text, s.installation, 0::smallint, 0::bigint,
       s.trimmed_snapshot::text, s.trimmed_seq
FROM (VALUES (1)) AS one (row) LEFT JOIN app.tidings_schema AS s ON true
UNION ALL
(SELECT o.seq, o.entity_code::text, o.entity_id, o.action,
        (extract(epoch FROM clock_timestamp() - o.created_ts) * 1000000)::bigint, NULL, NULL
 FROM app.change_outbox AS o WHERE o.xid >= pg_snapshot_xmax($1::text::pg_snapshot) ORDER BY o.xid, o.seq LIMIT $2)
UNION ALL
(SELECT o.seq, o.entity_code::text, o.entity_id, o.action,
        (extract(epoch FROM clock_timestamp() - o.created_ts) * 1000000)::bigint, NULL, NULL
 FROM app.change_outbox AS o WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot))) LIMIT $2)";

const EXTENT: &str =
    "SELECT pg_current_snapshot()::text, s.installation, s.trimmed_snapshot::text, s.trimmed_seq,
       d.first, d.last
FROM (VALUES (1)) AS one (row) LEFT JOIN app.tidings_schema AS s ON true, (
    SELECT min(new.seq) AS first, max(new.seq) AS last FROM (
        SELECT o.seq FROM app.change_outbox AS o WHERE o.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
        UNION ALL
        SELECT o.seq FROM app.change_outbox AS o
        WHERE o.xid = ANY (ARRAY(SELECT pg_snapshot_xip($1::text::pg_snapshot)))
    ) AS new
) AS d";

const PAGE: &str = "WITH page AS MATERIALIZED (
    SELECT o.seq, o.xid, o.entity_code::text AS code, o.entity_id, o.action, o.created_ts
    FROM app.change_outbox AS o WHERE o.seq > $1 AND o.seq <= $2 ORDER BY o.seq LIMIT $3
)
SELECT coalesce((SELECT max(p.seq) FROM page AS p), 0), pg_current_snapshot()::text, s.installation, 0::smallint,
       (SELECT count(*) FROM page), s.trimmed_snapshot::text, s.trimmed_seq
FROM (VALUES (1)) AS one (row) LEFT JOIN app.tidings_schema AS s ON true
UNION ALL
SELECT p.seq, p.code, p.entity_id, p.action,
       (extract(epoch FROM clock_timestamp() - p.created_ts) * 1000000)::bigint, NULL, NULL
FROM page AS p
WHERE NOT pg_visible_in_snapshot(p.xid, $4::text::pg_snapshot)
  AND pg_visible_in_snapshot(p.xid, $5::text::pg_snapshot)";

const INSERT: &str = "WITH added AS (
    INSERT INTO app.change_outbox (entity_code, entity_id, action)
    SELECT n.code, n.id, n.action
    FROM unnest($1::text[], $2::uuid[], $3::smallint[]) WITH ORDINALITY AS n (code, id, action, place)
    ORDER BY n.place
    RETURNING 1
)
SELECT count(*), app.tidings_wake()::text FROM added";

/// Where the outbox ends now, with the highest number that is visible.
pub(crate) async fn end(link: &mut Link) -> Result<(Header, u64), Error> {
    let statement = link.statement(END).await?;
    let row = link.client.query_one(&statement, &[]).await?;
    let highest: Option<i64> = row.get(4);
    Ok((Header::of(&row, [0, 1, 2, 3]), unsigned(highest.unwrap_or(0))))
}

/// What became visible since a snapshot, unless it is more than `most`.
pub(crate) async fn difference(
    link: &mut Link,
    read: &Snapshot,
    most: usize,
) -> Result<(Header, Option<Vec<Raw>>), Error> {
    let statement = link.statement(DIFFERENCE).await?;
    let limit = i64::try_from(most).unwrap_or(i64::MAX).saturating_add(1);
    let rows = link.client.query(&statement, &[&read.to_string(), &limit]).await?;
    let (header, rows) = split(&rows);
    Ok((header, (rows.len() <= most).then(|| rows.iter().map(Raw::of).collect())))
}

/// First and last number of what became visible since a snapshot.
pub(crate) async fn extent(link: &mut Link, read: &Snapshot) -> Result<(Header, Option<(u64, u64)>), Error> {
    let statement = link.statement(EXTENT).await?;
    let row = link.client.query_one(&statement, &[&read.to_string()]).await?;
    let ends: (Option<i64>, Option<i64>) = (row.get(4), row.get(5));
    let ends = ends.0.zip(ends.1).map(|(first, last)| (unsigned(first), unsigned(last)));
    Ok((Header::of(&row, [0, 1, 2, 3]), ends))
}

/// The next page of a scan.
pub(crate) async fn page(
    link: &mut Link,
    read: &Snapshot,
    scan: &Scan,
    most: usize,
) -> Result<(Header, Scanned), Error> {
    let statement = link.statement(PAGE).await?;
    let limit = i64::try_from(most).unwrap_or(i64::MAX);
    let (read, target) = (read.to_string(), scan.target.to_string());
    let rows =
        link.client.query(&statement, &[&signed(scan.at), &signed(scan.end), &limit, &read, &target]).await?;
    let (header, found) = split(&rows);
    let (last, count): (i64, i64) = (rows[0].get(0), rows[0].get(4));
    let scanned = Scanned {
        found: found.iter().map(Raw::of).collect(),
        count: usize::try_from(count).unwrap_or(0),
        last: (last > 0).then(|| unsigned(last)),
    };
    Ok((header, scanned))
}

/// Adds rows to the outbox, in order, and wakes the readers.
pub(crate) async fn insert(
    link: &mut Link,
    codes: &[&str],
    ids: &[Uuid],
    actions: &[i16],
) -> Result<(), Error> {
    let statement = link.statement(INSERT).await?;
    link.client.query_one(&statement, &[&codes, &ids, &actions]).await?;
    Ok(())
}

/// What changes when the database recovers from a crash.
pub(crate) fn recovery(life: &ServerLife) -> u32 {
    let digest = Sha256::digest(life.recovered.to_be_bytes());
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// A number in the outbox as PostgreSQL has it.
pub(crate) fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

fn unsigned(seq: i64) -> u64 {
    u64::try_from(seq).unwrap_or(0)
}

/// The header, which is the first row, and the others. Without parallel workers, PostgreSQL appends in the order of the
/// statement.
fn split(rows: &[Row]) -> (Header, &[Row]) {
    let (first, rest) = rows.split_first().expect("the header is always there");
    (Header::of(first, [1, 2, 5, 6]), rest)
}

impl Header {
    /// Reads snapshot, installation, trimmed snapshot and trimmed number from these columns.
    fn of(row: &Row, [now, installation, trimmed, trimmed_seq]: [usize; 4]) -> Self {
        let snapshot = |text: &str| Snapshot::parse(text).expect("PostgreSQL prints snapshots");
        let (now, trimmed): (&str, Option<&str>) = (row.get(now), row.get(trimmed));
        Self {
            now: snapshot(now),
            installation: row.get(installation),
            trimmed: trimmed.map(snapshot),
            trimmed_seq: unsigned(row.get::<_, Option<i64>>(trimmed_seq).unwrap_or(0)),
        }
    }

    /// What a position is bound to: the server, its timeline, the database and the installation in it.
    pub(crate) fn life(&self, life: &ServerLife) -> Result<u64, DatabaseError> {
        let missing = || DatabaseError::NotInstalled("app.tidings_schema has no row".to_owned());
        let installation = self.installation.ok_or_else(missing)?;
        let mut digest = Sha256::new();
        digest.update(life.system.to_be_bytes());
        digest.update(life.database.to_be_bytes());
        digest.update(installation.as_bytes());
        digest.update(&life.timeline);
        let digest = digest.finalize();
        Ok(u64::from_be_bytes(std::array::from_fn(|at| digest[at])))
    }
}

impl Raw {
    fn of(row: &Row) -> Self {
        Self {
            seq: unsigned(row.get(0)),
            code: row.get(1),
            id: row.get(2),
            action: row.get(3),
            age_micros: row.get(4),
        }
    }

    /// Whether it says that somebody else may see the entity now.
    pub(crate) fn is_about_access(&self) -> bool {
        matches!(self.action, 2 | 5)
    }
}
