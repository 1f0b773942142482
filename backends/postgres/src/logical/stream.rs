//! Follows the stream of a slot, from the messages of the output plugin to the outbox.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use super::pgoutput::{self, Message, Relation, Row};
use super::slot::{PUBLICATION, Slot, Term};
use super::store::Changes;
use super::wire::{Event, Login, Wire, WireError};
use crate::connect::Link;
use crate::database::Shared;
use crate::error::DatabaseError;
use crate::outbox::TRUNCATED;

/// Longest time until the server hears from its reader, well within its own `wal_sender_timeout`.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

const ATTACHED: &str = "SELECT a.entity_code::text, a.key_column::text FROM app.tidings_attachment AS a
WHERE a.by_log AND a.relation::oid = $1";

/// What is told of a table.
struct Table {
    code: String,
    /// Column of the key among those that are sent.
    key: usize,
}

/// A stream that is followed.
struct Following {
    shared: Arc<Shared>,
    wire: Wire,
    changes: Changes,
    /// Tables by number; `None` if they are not attached.
    tables: HashMap<u32, Option<Table>>,
    /// Everything before it was in the outbox when the stream began.
    known: u64,
    /// Whether the transaction that is being read was in the outbox before.
    skip: bool,
    /// Whether a transaction is being read.
    inside: bool,
    /// End of the last transaction that was read whole.
    read: u64,
    /// Everything before it is stored.
    stored: u64,
    /// Reading of the clock when the server was last told.
    told: Duration,
}

/// Follows a slot for as long as that goes well.
pub(crate) async fn follow(
    shared: &Arc<Shared>,
    link: Link,
    term: Term,
    slot: &Slot,
) -> Result<Infallible, DatabaseError> {
    let row = link.client.query_one("SELECT session_user::text, current_database()::text", &[]).await;
    let row = row.map_err(|error| DatabaseError::of(&error))?;
    let login = Login { user: row.get(0), database: row.get(1) };
    let target = shared.pool.target();
    let known = slot.position.unwrap_or_default();
    let starting = async {
        let mut wire = target.wire(&login).await?;
        let (name, position) = (&slot.name, PgLsn::from(known));
        wire.start(&format!(
            "START_REPLICATION SLOT \"{name}\" LOGICAL {position} (proto_version '1', publication_names '{PUBLICATION}')"
        ))
        .await?;
        Ok(wire)
    };
    let wire = target.in_time(target.time_limits.connect, starting).await?.map_err(failed)?;
    shared.meters.slot_leading.set(1);
    let following = Following {
        shared: shared.clone(),
        wire,
        changes: Changes::new(link, term),
        tables: HashMap::new(),
        known,
        skip: false,
        inside: false,
        read: known,
        stored: known,
        told: shared.clock.elapsed(),
    };
    following.run().await
}

fn failed(error: WireError) -> DatabaseError {
    match error {
        WireError::Io(error) => DatabaseError::Connect(error.to_string()),
        WireError::Standby => DatabaseError::Standby,
        WireError::Refused { code, message } => match &*code {
            "42501" => DatabaseError::Misconfigured(super::MAY_NOT.to_owned()),
            // There is no such publication.
            "42704" => DatabaseError::PublicationMissing(message),
            // In use by the one before, ended by an operator, shutting down, starting, too many: it passes.
            "55006" => DatabaseError::Connect(message),
            code if ["57", "53", "08"].iter().any(|class| code.starts_with(class)) => {
                DatabaseError::Connect(message)
            }
            _ => DatabaseError::Refused(message),
        },
    }
}

impl Following {
    async fn run(mut self) -> Result<Infallible, DatabaseError> {
        loop {
            if !self.inside && (!self.wire.has_next() || self.changes.is_full()) {
                self.settle().await?;
            }
            let timer = self.shared.clock.sleep(STATUS_INTERVAL);
            let event = tokio::select! {
                biased;
                event = self.wire.next() => Some(event.map_err(failed)?),
                () = timer => None,
            };
            match event {
                Some(Event::Data(body)) => {
                    let message = pgoutput::parse(body).ok_or_else(|| {
                        DatabaseError::Connect(
                            "the output plugin has sent something that is no message".to_owned(),
                        )
                    })?;
                    self.take(message).await?;
                }
                Some(Event::Keepalive { end, answer }) => {
                    if !self.inside && self.changes.is_empty() {
                        // Nothing before it concerns anybody, and the server need not keep it.
                        self.read = self.read.max(end);
                        self.stored = self.read;
                    }
                    if answer {
                        self.tell().await?;
                    }
                }
                None => self.tell().await?,
            }
            if self.shared.clock.elapsed() >= self.told + STATUS_INTERVAL {
                self.tell().await?;
            }
        }
    }

    /// Stores what was read, and tells the server so.
    async fn settle(&mut self) -> Result<(), DatabaseError> {
        if self.read <= self.stored {
            return Ok(());
        }
        if !self.changes.is_empty() {
            self.changes.finish(self.read).await?;
        }
        self.stored = self.read;
        self.tell().await
    }

    async fn tell(&mut self) -> Result<(), DatabaseError> {
        self.told = self.shared.clock.elapsed();
        let now = Duration::from_millis(self.shared.clock.now().as_millis());
        self.wire.confirm(self.stored, now).await.map_err(failed)
    }

    async fn take(&mut self, message: Message) -> Result<(), DatabaseError> {
        match message {
            Message::Begin { commit } => {
                self.inside = true;
                self.skip = commit < self.known;
            }
            Message::Commit { end } => {
                self.inside = false;
                self.read = self.read.max(end);
            }
            Message::Relation(relation) => {
                let table = self.attached(&relation).await?;
                self.tables.insert(relation.id, table);
            }
            _ if self.skip => {}
            Message::Insert { relation, new } => {
                let id = self.id(relation, &new);
                self.change(relation, id, 4).await?;
            }
            Message::Update { relation, old, new } => {
                let new = self.id(relation, &new);
                let old = old.and_then(|old| self.id(relation, &old));
                match old.filter(|old| Some(*old) != new) {
                    Some(old) => {
                        self.change(relation, Some(old), 3).await?;
                        self.change(relation, new, 4).await?;
                    }
                    None => self.change(relation, new, 1).await?,
                }
            }
            Message::Delete { relation, old } => {
                let id = self.id(relation, &old);
                self.change(relation, id, 3).await?;
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    if let Some(Some(table)) = self.tables.get(&relation) {
                        self.changes.push(&table.code, None, TRUNCATED).await?;
                    }
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    /// Whether and how a table is attached.
    async fn attached(&mut self, relation: &Relation) -> Result<Option<Table>, DatabaseError> {
        let client = &self.changes.link().client;
        let found = client.query_opt(ATTACHED, &[&relation.id]).await;
        let Some(row) = found.map_err(|error| DatabaseError::of(&error))? else { return Ok(None) };
        let (code, column): (String, String) = (row.get(0), row.get(1));
        let key = relation.columns.iter().position(|name| *name == column);
        if key.is_none() {
            tracing::error!(code, column, "the key of an attached table is gone; its changes are not told");
        }
        Ok(key.map(|key| Table { code, key }))
    }

    /// Id of the entity of a row, if it has one.
    fn id(&self, relation: u32, row: &Row) -> Option<Uuid> {
        let table = self.tables.get(&relation)?.as_ref()?;
        Uuid::try_parse_ascii(row.get(table.key)?.as_ref()?).ok()
    }

    async fn change(&mut self, relation: u32, id: Option<Uuid>, action: i16) -> Result<(), DatabaseError> {
        match (self.tables.get(&relation), id) {
            (Some(Some(table)), Some(_)) => {
                self.shared.meters.slot_decoded.count();
                self.changes.push(&table.code, id, action).await
            }
            _ => Ok(()),
        }
    }
}
