//! The lease of a node: without it, others remove its subscriptions.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Error;
use uuid::Uuid;

use crate::connect::Link;
use crate::database::Shared;
use crate::directory::Directory;
use crate::directory_sql;
use crate::error::DatabaseError;
use crate::pool::Backoff;

/// Time between two renewals.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Time after a renewal until the lease has run out, in seconds.
const LEASE_SECONDS: f64 = 30.0;

/// Renews the lease. What has been read holds back the removal from the outbox.
const RENEW: &str = "INSERT INTO app.tidings_node AS n (node_id, alive_until, read_snapshot)
VALUES ($1, clock_timestamp() + make_interval(secs => $3), $2::text::pg_snapshot)
ON CONFLICT (node_id) DO UPDATE SET alive_until = EXCLUDED.alive_until, read_snapshot = EXCLUDED.read_snapshot
RETURNING n.xmax::text = '0'";

const REMOVE_DEAD: &str = "DELETE FROM app.tidings_node WHERE alive_until < clock_timestamp()";

/// Nodes that have subscriptions and no lease, found by going from one to the next in the index.
const ORPHANED: &str = "WITH RECURSIVE nodes AS (
    (SELECT s.node_id FROM app.rxdb_subscription AS s WHERE s.node_id IS NOT NULL ORDER BY s.node_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.node_id FROM app.rxdb_subscription AS s WHERE s.node_id > nodes.node_id
            ORDER BY s.node_id LIMIT 1)
    FROM nodes WHERE nodes.node_id IS NOT NULL
)
SELECT nodes.node_id FROM nodes
WHERE nodes.node_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM app.tidings_node AS n WHERE n.node_id = nodes.node_id)";

/// Keeps the lease, and removes what dead nodes have left, for as long as the server runs.
pub(crate) async fn keep(shared: Arc<Shared>, directory: Arc<Directory>) {
    let mut backoff = Backoff::default();
    loop {
        let wait = match beat(&shared, &directory).await {
            Ok(()) => {
                backoff.reset();
                HEARTBEAT
            }
            Err(error) => {
                tracing::debug!(project = shared.options.project, %error, "cannot renew the lease in the database");
                backoff.next(&shared.rng)
            }
        };
        shared.clock.sleep(wait).await;
    }
}

async fn beat(shared: &Shared, directory: &Directory) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    let node = shared.options.node;
    let read = shared.read().map(|read| read.to_string());
    if link.ask(async |link| renew(link, node, read).await).await? {
        directory.leased_anew();
    }
    link.ask(async |link| link.client.batch_execute(REMOVE_DEAD).await).await?;
    let orphaned = link.ask(async |link| orphaned(link).await).await?;
    if !orphaned.is_empty() {
        while link.ask(async |link| directory_sql::remove_of_nodes(link, &orphaned).await).await? > 0 {}
    }
    Ok(())
}

/// Renews the lease. Returns whether there was none.
async fn renew(link: &mut Link, node: Uuid, read: Option<String>) -> Result<bool, Error> {
    let statement = link.statement(RENEW).await?;
    Ok(link.client.query_one(&statement, &[&node, &read, &LEASE_SECONDS]).await?.get(0))
}

async fn orphaned(link: &mut Link) -> Result<Vec<Uuid>, Error> {
    let statement = link.statement(ORPHANED).await?;
    Ok(link.client.query(&statement, &[]).await?.iter().map(|row| row.get(0)).collect())
}

/// Gives the lease back and removes the subscriptions.
pub(crate) async fn leave(shared: &Shared) -> Result<(), DatabaseError> {
    let link = &mut shared.pool.borrow().await?;
    let node = shared.options.node;
    while link.ask(async |link| directory_sql::remove_of_nodes(link, &[node]).await).await? > 0 {}
    link.ask(async |link| {
        link.client.execute("DELETE FROM app.tidings_node WHERE node_id = $1", &[&node]).await
    })
    .await?;
    Ok(())
}
