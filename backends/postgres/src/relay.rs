//! [`DatabaseRelay`]: which node tells the changes to hooks, and how far it has got.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidings_entities::relay::{Claim, Relay};
use tidings_entities::{Cursor, SourceError};
use tokio_postgres::Error;
use uuid::Uuid;

use crate::connect::Link;
use crate::database::Shared;
use crate::error::DatabaseError;
use crate::position::Position;

/// Time after which the lease has run out, unless it is renewed.
const LASTS: Duration = Duration::from_secs(30);

const CLAIM: &str = "INSERT INTO app.tidings_relay AS r (name, holder, term, held_until)
VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
ON CONFLICT (name) DO UPDATE SET
    holder = EXCLUDED.holder,
    term = CASE WHEN r.holder = EXCLUDED.holder THEN r.term ELSE r.term + 1 END,
    held_until = EXCLUDED.held_until
WHERE r.holder IS NULL OR r.holder = EXCLUDED.holder OR r.held_until < clock_timestamp()
RETURNING r.term, r.position";

const ADVANCE: &str = "UPDATE app.tidings_relay SET position = $4, read_snapshot = $5::text::pg_snapshot
WHERE name = $1 AND holder = $2 AND term = $3 AND held_until >= clock_timestamp()";

const RELEASE: &str = "UPDATE app.tidings_relay SET holder = NULL, held_until = clock_timestamp()
WHERE name = $1 AND holder = $2 AND term = $3";

/// The lease of telling the changes of a database to hooks.
pub struct DatabaseRelay {
    shared: Arc<Shared>,
}

impl DatabaseRelay {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    async fn ask<T>(
        &self,
        work: impl AsyncFnOnce(&mut Link, &str, Uuid) -> Result<T, Error>,
    ) -> Result<T, DatabaseError> {
        let options = &self.shared.options;
        let link = &mut self.shared.pool.borrow().await?;
        link.ask(async |link| work(link, &options.project, options.node).await).await
    }
}

impl Relay for DatabaseRelay {
    fn claim(&self) -> BoxFuture<'_, Result<Option<Claim>, SourceError>> {
        Box::pin(async {
            let claimed = self.ask(async |link, name, node| claim(link, name, node).await).await?;
            Ok(claimed.map(|(term, relayed)| Claim { term, relayed: relayed.map(Cursor::new), lasts: LASTS }))
        })
    }

    fn advance<'a>(&'a self, term: u64, relayed: &'a Cursor) -> BoxFuture<'a, Result<bool, SourceError>> {
        Box::pin(async move {
            let read = Position::of(relayed)?.read.to_string();
            let stored = self
                .ask(async |link, name, node| {
                    let statement = link.statement(ADVANCE).await?;
                    let term = i64::try_from(term).unwrap_or(i64::MAX);
                    link.client.execute(&statement, &[&name, &node, &term, &relayed.as_str(), &read]).await
                })
                .await?;
            Ok(stored > 0)
        })
    }

    fn release(&self, term: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let released = self
                .ask(async |link, name, node| {
                    let statement = link.statement(RELEASE).await?;
                    let term = i64::try_from(term).unwrap_or(i64::MAX);
                    link.client.execute(&statement, &[&name, &node, &term]).await
                })
                .await;
            if let Err(error) = released {
                // It runs out by itself.
                tracing::debug!(%error, "cannot give back the lease of the relay");
            }
        })
    }
}

async fn claim(link: &mut Link, name: &str, node: Uuid) -> Result<Option<(u64, Option<String>)>, Error> {
    let statement = link.statement(CLAIM).await?;
    let row = link.client.query_opt(&statement, &[&name, &node, &LASTS.as_secs_f64()]).await?;
    Ok(row.map(|row| (row.get::<_, i64>(0).unsigned_abs(), row.get(1))))
}
