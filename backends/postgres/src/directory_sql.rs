//! The statements of the registry.

use std::collections::BTreeMap;

use tidings_entities::{ConnectionId, EntityCode, TypeStats};
use tokio_postgres::Error;
use uuid::Uuid;

use crate::connect::Link;

/// What is written in one transaction, in this order.
#[derive(Default)]
pub(crate) struct Batch {
    /// Whether everything of this node is removed first.
    pub(crate) everything: bool,
    /// Connections whose rows are all removed.
    pub(crate) connections: Vec<ConnectionId>,
    /// Connections that the batch has something of.
    pub(crate) touched: Vec<ConnectionId>,
    types: (Vec<String>, Vec<String>),
    removed: (Vec<String>, Vec<String>, Vec<Uuid>),
    added: (Vec<Uuid>, Vec<String>, Vec<String>, Vec<Option<Uuid>>),
}

impl Batch {
    pub(crate) fn rows(&self) -> usize {
        self.connections.len() + self.types.0.len() + self.removed.0.len() + self.added.0.len()
    }

    pub(crate) fn remove_type(&mut self, connection: &ConnectionId, code: &EntityCode) {
        self.types.0.push(connection.to_string());
        self.types.1.push(code.to_string());
    }

    pub(crate) fn remove(&mut self, connection: &ConnectionId, code: &EntityCode, id: Uuid) {
        self.removed.0.push(connection.to_string());
        self.removed.1.push(code.to_string());
        self.removed.2.push(id);
    }

    pub(crate) fn add(&mut self, user: Uuid, connection: &ConnectionId, code: &EntityCode, id: Option<Uuid>) {
        self.added.0.push(user);
        self.added.1.push(connection.to_string());
        self.added.2.push(code.to_string());
        self.added.3.push(id);
    }
}

/// Rows removed by one statement, at most.
const REMOVED_MOST: i64 = 10_000;

const REMOVE_CONNECTIONS: &str = "DELETE FROM app.rxdb_subscription WHERE connection_id = ANY ($1::text[])";

const REMOVE_TYPES: &str = "DELETE FROM app.rxdb_subscription AS s
USING unnest($1::text[], $2::text[]) AS g (connection_id, code)
WHERE s.connection_id = g.connection_id AND s.entity_code = g.code";

const REMOVE: &str = "DELETE FROM app.rxdb_subscription AS s
USING unnest($1::text[], $2::text[], $3::uuid[]) AS g (connection_id, code, id)
WHERE s.connection_id = g.connection_id AND s.entity_code = g.code AND s.entity_id = g.id";

const ADD: &str =
    "INSERT INTO app.rxdb_subscription (user_id, connection_id, entity_code, entity_id, node_id)
SELECT n.user_id, n.connection_id, n.code, n.id, $5
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) AS n (user_id, connection_id, code, id)
ON CONFLICT ON CONSTRAINT rxdb_subscription_unique DO NOTHING";

const REMOVE_OF_NODES: &str = "DELETE FROM app.rxdb_subscription WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM app.rxdb_subscription AS s WHERE s.node_id = ANY ($1) LIMIT $2))";

const STATS: &str = "SELECT entity_code::text, unique_entities, unique_users, total_subscriptions
FROM app.get_subscription_stats()";

const USER_STATS: &str = "SELECT entity_code::text, count(*) FROM app.rxdb_subscription WHERE user_id = $1
GROUP BY entity_code";

/// Writes a batch in one transaction.
pub(crate) async fn write(link: &mut Link, node: Uuid, batch: &Batch) -> Result<(), Error> {
    let (remove_connections, remove_types) =
        (link.statement(REMOVE_CONNECTIONS).await?, link.statement(REMOVE_TYPES).await?);
    let (remove, add) = (link.statement(REMOVE).await?, link.statement(ADD).await?);
    let transaction = link.client.transaction().await?;
    if !batch.connections.is_empty() {
        let connections: Vec<&str> = batch.connections.iter().map(ConnectionId::as_str).collect();
        transaction.execute(&remove_connections, &[&connections]).await?;
    }
    if !batch.types.0.is_empty() {
        transaction.execute(&remove_types, &[&batch.types.0, &batch.types.1]).await?;
    }
    if !batch.removed.0.is_empty() {
        let (connections, codes, ids) = &batch.removed;
        transaction.execute(&remove, &[connections, codes, ids]).await?;
    }
    if !batch.added.0.is_empty() {
        let (users, connections, codes, ids) = &batch.added;
        transaction.execute(&add, &[users, connections, codes, ids, &node]).await?;
    }
    transaction.commit().await
}

/// Removes rows of nodes, so many at most, and returns how many.
pub(crate) async fn remove_of_nodes(link: &mut Link, nodes: &[Uuid]) -> Result<u64, Error> {
    let statement = link.statement(REMOVE_OF_NODES).await?;
    link.client.execute(&statement, &[&nodes, &REMOVED_MOST]).await
}

pub(crate) async fn stats(link: &mut Link) -> Result<BTreeMap<EntityCode, TypeStats>, Error> {
    let statement = link.statement(STATS).await?;
    let rows = link.client.query(&statement, &[]).await?;
    let stats = rows.iter().filter_map(|row| {
        let number = |at| u64::try_from(row.get::<_, i64>(at)).unwrap_or(0);
        let code = EntityCode::parse(row.get(0)).ok()?;
        Some((code, TypeStats { entities: number(1), users: number(2), subscriptions: number(3) }))
    });
    Ok(stats.collect())
}

pub(crate) async fn user_stats(link: &mut Link, user: Uuid) -> Result<BTreeMap<EntityCode, u64>, Error> {
    let statement = link.statement(USER_STATS).await?;
    let rows = link.client.query(&statement, &[&user]).await?;
    let stats = rows.iter().filter_map(|row| {
        let code = EntityCode::parse(row.get(0)).ok()?;
        Some((code, u64::try_from(row.get::<_, i64>(1)).unwrap_or(0)))
    });
    Ok(stats.collect())
}
