//! [`Changes`]: what was decoded, on its way into the outbox.

use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use super::slot::Term;
use crate::connect::Link;
use crate::error::DatabaseError;

/// Changes written by one statement, at most. A larger transaction is written in parts, and committed as a whole.
const PART: usize = 5000;

const WRITE: &str = "INSERT INTO app.change_outbox (entity_code, entity_id, action)
SELECT n.code, n.id, n.action
FROM unnest($1::text[], $2::uuid[], $3::smallint[]) WITH ORDINALITY AS n (code, id, action, place) ORDER BY n.place";

/// The position goes with the changes before it, and only while the lease is held.
const FINISH: &str = "WITH fence AS (
    UPDATE app.tidings_slot SET position = $4 WHERE holder = $5 AND term = $6 RETURNING 1
), added AS (
    INSERT INTO app.change_outbox (entity_code, entity_id, action)
    SELECT n.code, n.id, n.action
    FROM unnest($1::text[], $2::uuid[], $3::smallint[]) WITH ORDINALITY AS n (code, id, action, place)
    WHERE EXISTS (SELECT FROM fence) ORDER BY n.place
    RETURNING 1
)
SELECT count(*), app.tidings_wake()::text FROM fence";

/// Changes that were decoded and not stored. All that waits here is at most one part.
pub(crate) struct Changes {
    link: Link,
    term: Term,
    codes: Vec<String>,
    ids: Vec<Option<Uuid>>,
    actions: Vec<i16>,
    /// Whether parts were written and not committed.
    open: bool,
}

impl Changes {
    pub(crate) fn new(link: Link, term: Term) -> Self {
        Self { link, term, codes: Vec::new(), ids: Vec::new(), actions: Vec::new(), open: false }
    }

    /// A connection for questions beside.
    pub(crate) fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Adds a change. Writes a part when there are enough.
    pub(crate) async fn push(
        &mut self,
        code: &str,
        id: Option<Uuid>,
        action: i16,
    ) -> Result<(), DatabaseError> {
        self.codes.push(code.to_owned());
        self.ids.push(id);
        self.actions.push(action);
        if self.is_full() {
            self.write_part().await.map_err(|error| DatabaseError::of(&error))?;
        }
        Ok(())
    }

    /// Whether there is as much as one statement writes.
    pub(crate) fn is_full(&self) -> bool {
        self.codes.len() >= PART
    }

    /// Whether there is nothing to store.
    pub(crate) fn is_empty(&self) -> bool {
        self.codes.is_empty() && !self.open
    }

    async fn write_part(&mut self) -> Result<(), tokio_postgres::Error> {
        if !self.open {
            self.link.client.batch_execute("BEGIN").await?;
            self.open = true;
        }
        let statement = self.link.statement(WRITE).await?;
        self.link.client.execute(&statement, &[&self.codes, &self.ids, &self.actions]).await?;
        self.clear();
        Ok(())
    }

    /// Stores everything with the position after it. Durable when it returns. Fails if the lease is not held any more.
    pub(crate) async fn finish(&mut self, position: u64) -> Result<usize, DatabaseError> {
        let count = self.codes.len();
        let held = self.store(position).await.map_err(|error| DatabaseError::of(&error))?;
        self.clear();
        if held { Ok(count) } else { Err(DatabaseError::NotHeld) }
    }

    async fn store(&mut self, position: u64) -> Result<bool, tokio_postgres::Error> {
        let statement = self.link.statement(FINISH).await?;
        let (position, Term { holder, number }) = (PgLsn::from(position), self.term);
        let row = self
            .link
            .client
            .query_one(&statement, &[&self.codes, &self.ids, &self.actions, &position, &holder, &number])
            .await?;
        let held = row.get::<_, i64>(0) > 0;
        if std::mem::take(&mut self.open) {
            self.link.client.batch_execute(if held { "COMMIT" } else { "ROLLBACK" }).await?;
        }
        Ok(held)
    }

    fn clear(&mut self) {
        self.codes.clear();
        self.ids.clear();
        self.actions.clear();
    }
}
