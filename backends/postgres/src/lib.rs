//! PostgreSQL. Entities: changes of rows, the registry of subscriptions, and who may watch what. And a bus between nodes.
//!
//! Applications write into `app.logging`, or have triggers put on their tables ([`schema`]). Both feed one table, the
//! outbox; or the log of the database is read by logical replication (`logical`), into the same table. [`Outbox`] is the source of changes: its cursor is a snapshot, so it never misses what is committed late.
//! [`Directory`] writes the registry, [`SqlAuthorizer`] asks a query, [`DatabaseRelay`] is the lease of telling changes to
//! hooks. [`Database`] holds the connections and does the upkeep. [`schema::Operator`] is for the operator's commands.
//!
//! Invariant: no text of a client is ever part of SQL text.
//! Not here: who is connected and what they hear (`tidings-entities`).

mod authorizer;
mod bus;
mod connect;
mod database;
mod directory;
mod directory_sql;
mod error;
mod late;
mod lease;
mod listen;
mod logical;
mod meters;
mod outbox;
mod pool;
mod position;
mod reading;
mod relay;
pub mod schema;
mod snapshot;
mod tls;
mod upkeep;
mod users;

pub use authorizer::SqlAuthorizer;
pub use bus::PostgresBus;
pub use connect::TimeLimits;
pub use database::{Capture, Database, Options};
pub use directory::Directory;
pub use error::DatabaseError;
pub use outbox::Outbox;
pub use relay::DatabaseRelay;
