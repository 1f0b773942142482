//! [`Directory`]: the table that shows who is subscribed to what, written behind the answers.
//!
//! What the connections of this node are subscribed to is kept here, so that the table can be made right again after the
//! database was away. A change is noted as an id that was touched; the writer looks at what is wanted now, and writes
//! what many connections have touched in one transaction.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use tidings_entities::{
    ConnectionId, EntityCode, EntityId, Noted, Registry, SourceError, Subject, TypeStats,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::database::Shared;
use crate::directory_sql::{self, Batch};
use crate::error::DatabaseError;
use crate::pool::Backoff;
use crate::users::user_id;

/// Changes that wait to be written, at most, while the database answers. Whoever notes one more waits.
const PENDING_MOST: usize = 100_000;
/// Closed connections that wait to be removed, at most. Beyond, everything of this node is written again.
const GONE_MOST: usize = 10_000;
/// Closed connections that are remembered, so that what is noted of one a moment after it was closed counts for nothing.
const CLOSED_KEPT: usize = 10_000;
/// Rows written in one transaction, about.
const BATCH_ROWS: usize = 10_000;

/// The registry in a database.
pub struct Directory {
    shared: Arc<Shared>,
    state: Mutex<State>,
    /// Wakes the writer.
    work: Notify,
    /// Wakes who waits for room.
    room: Notify,
}

#[derive(Default)]
struct State {
    connections: HashMap<ConnectionId, Connection>,
    /// Connections with something to write, each once.
    dirty: Vec<ConnectionId>,
    /// Connections that were closed, whose rows are to be removed.
    gone: Vec<ConnectionId>,
    /// Connections that were closed last, the oldest first, and the same as a set.
    closed: (VecDeque<ConnectionId>, HashSet<ConnectionId>),
    /// Ids that were touched and not written.
    pending: usize,
    /// Whether the last write has failed.
    failing: bool,
    /// Whether everything of this node is to be removed first.
    rewrite: bool,
    /// Whether this node has its lease, without which others would remove what it writes.
    leased: bool,
}

#[derive(Default)]
struct Connection {
    user: Uuid,
    /// Subscriptions by type; `None` is the whole type.
    wanted: HashMap<EntityCode, HashSet<Option<Uuid>>>,
    touched: HashMap<EntityCode, Touched>,
    /// Whether all rows are to be removed before what is wanted is written.
    rewrite: bool,
    dirty: bool,
}

/// What of a type is to be written.
enum Touched {
    Ids(HashSet<Option<Uuid>>),
    /// Everything: what there was is removed first.
    Type,
}

impl Directory {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, state: Mutex::default(), work: Notify::new(), room: Notify::new() }
    }

    /// Writes everything of this node again, after its lease was lost or when it is new.
    pub(crate) fn leased_anew(&self) {
        let mut state = self.lock();
        state.leased = true;
        state.rewrite_all();
        drop(state);
        self.work.notify_one();
    }

    /// Writes, for as long as the server runs.
    pub(crate) async fn write(&self) {
        let mut backoff = Backoff::default();
        loop {
            let Some(batch) = self.next_batch() else {
                self.work.notified().await;
                continue;
            };
            let written = self.write_batch(&batch).await;
            let failed = written.is_err();
            self.settle(batch, failed);
            self.room.notify_waiters();
            match written {
                Ok(()) => backoff.reset(),
                Err(error) => {
                    self.shared.meters.registry_failures.count();
                    tracing::debug!(project = self.shared.options.project, %error, "cannot write subscriptions");
                    let wait = backoff.next(&self.shared.rng);
                    self.shared.clock.sleep(wait).await;
                }
            }
        }
    }

    async fn write_batch(&self, batch: &Batch) -> Result<(), DatabaseError> {
        let link = &mut self.shared.pool.borrow().await?;
        let node = self.shared.options.node;
        if batch.everything {
            while link.ask(async |link| directory_sql::remove_of_nodes(link, &[node]).await).await? > 0 {}
        }
        link.ask(async |link| directory_sql::write(link, node, batch).await).await
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut state = self.lock();
        if !state.leased || state.dirty.is_empty() && state.gone.is_empty() && !state.rewrite {
            return None;
        }
        let mut batch = Batch::default();
        batch.everything = std::mem::take(&mut state.rewrite);
        batch.connections = std::mem::take(&mut state.gone);
        while batch.rows() < BATCH_ROWS {
            let Some(id) = state.dirty.pop() else { break };
            let Some(connection) = state.connections.get_mut(&id) else { continue };
            let touched = connection.take(&id, &mut batch);
            batch.touched.push(id);
            state.pending -= touched;
        }
        self.shared.meters.registry_pending.set(i64::try_from(state.pending).unwrap_or(i64::MAX));
        Some(batch)
    }

    /// Notes how a batch has ended. After a failure, its connections are written again whole.
    fn settle(&self, batch: Batch, failed: bool) {
        let mut state = self.lock();
        state.failing = failed;
        if !failed {
            return;
        }
        state.rewrite |= batch.everything;
        for id in batch.touched {
            state.rewrite_connection(&id);
        }
        for id in batch.connections {
            state.gone(id);
        }
    }

    fn apply(&self, noted: Noted) {
        let mut state = self.lock();
        if state.closed.1.contains(connection_of(&noted)) {
            return;
        }
        match noted {
            Noted::Subscribed { connection, user, code, subject } => {
                let user = user_id(&self.shared.options.project, &user);
                state.change(&connection, |entry| {
                    entry.user = user;
                    let ids = ids(&subject);
                    entry.wanted.entry(code.clone()).or_default().extend(ids.iter().copied());
                    entry.touch(code, ids)
                });
            }
            Noted::Unsubscribed { connection, code, subject: Subject::WholeType } => {
                state.change(&connection, |entry| {
                    entry.wanted.remove(&code);
                    match entry.touched.insert(code, Touched::Type) {
                        Some(Touched::Ids(ids)) => 1 - ids.len() as isize,
                        Some(Touched::Type) => 0,
                        None => 1,
                    }
                });
            }
            Noted::Unsubscribed { connection, code, subject } => {
                state.change(&connection, |entry| {
                    let ids = ids(&subject);
                    if let Some(wanted) = entry.wanted.get_mut(&code) {
                        ids.iter().for_each(|id| {
                            wanted.remove(id);
                        });
                        if wanted.is_empty() {
                            entry.wanted.remove(&code);
                        }
                    }
                    entry.touch(code, ids)
                });
            }
            Noted::UnsubscribedAll { connection } => {
                if let Some(entry) = state.connections.get_mut(&connection) {
                    entry.wanted.clear();
                }
                state.rewrite_connection(&connection);
            }
        }
        // While the database is away, what was touched is worth less than its memory.
        if state.failing && state.pending > PENDING_MOST {
            state.rewrite_all();
        }
        drop(state);
        self.work.notify_one();
    }

    /// Waits until there is room, unless the database is away: then nothing would make room.
    async fn room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            {
                let state = self.lock();
                if state.pending < PENDING_MOST || state.failing || !state.leased {
                    return;
                }
            }
            room.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Changes a connection, and counts what it touches.
    fn change(&mut self, id: &ConnectionId, change: impl FnOnce(&mut Connection) -> isize) {
        let entry = self.connections.entry(id.clone()).or_default();
        let touched = change(entry);
        self.pending = self.pending.saturating_add_signed(touched);
        if entry.rewrite {
            // Everything is written anyway.
            self.pending = self.pending.saturating_sub(entry.forget_touched());
        }
        if !std::mem::replace(&mut entry.dirty, true) {
            self.dirty.push(id.clone());
        }
    }

    fn rewrite_connection(&mut self, id: &ConnectionId) {
        if self.connections.contains_key(id) {
            self.change(id, |entry| {
                entry.rewrite = true;
                0
            });
        }
    }

    fn rewrite_all(&mut self) {
        self.rewrite = true;
        self.gone.clear();
        let ids: Vec<ConnectionId> = self.connections.keys().cloned().collect();
        for id in &ids {
            self.rewrite_connection(id);
        }
    }

    /// Remembers that a connection was closed.
    fn close(&mut self, id: ConnectionId) {
        let (order, all) = &mut self.closed;
        if all.insert(id.clone()) {
            order.push_back(id);
        }
        if order.len() > CLOSED_KEPT {
            let oldest = order.pop_front().expect("there are many");
            all.remove(&oldest);
        }
    }

    fn gone(&mut self, id: ConnectionId) {
        self.gone.push(id);
        if self.gone.len() > GONE_MOST {
            self.rewrite_all();
        }
    }
}

impl Connection {
    fn touch(&mut self, code: EntityCode, ids: Vec<Option<Uuid>>) -> isize {
        match self.touched.entry(code).or_insert_with(|| Touched::Ids(HashSet::new())) {
            Touched::Type => 0,
            Touched::Ids(touched) => {
                let before = touched.len();
                touched.extend(ids);
                (touched.len() - before) as isize
            }
        }
    }

    fn forget_touched(&mut self) -> usize {
        let touched = self.touched.drain();
        touched.map(|(_, touched)| if let Touched::Ids(ids) = touched { ids.len() } else { 1 }).sum()
    }

    /// Puts what is to be written into a batch. Returns the number of what was touched.
    fn take(&mut self, id: &ConnectionId, batch: &mut Batch) -> usize {
        self.dirty = false;
        if std::mem::take(&mut self.rewrite) {
            batch.connections.push(id.clone());
            for (code, ids) in &self.wanted {
                ids.iter().for_each(|entity| batch.add(self.user, id, code, *entity));
            }
            return self.forget_touched();
        }
        let mut count = 0;
        for (code, touched) in std::mem::take(&mut self.touched) {
            let wanted = self.wanted.get(&code);
            match touched {
                Touched::Type => {
                    count += 1;
                    batch.remove_type(id, &code);
                    wanted.into_iter().flatten().for_each(|entity| batch.add(self.user, id, &code, *entity));
                }
                Touched::Ids(ids) => {
                    count += ids.len();
                    for entity in ids {
                        match (wanted.is_some_and(|wanted| wanted.contains(&entity)), entity) {
                            (true, entity) => batch.add(self.user, id, &code, entity),
                            (false, Some(entity)) => batch.remove(id, &code, entity),
                            (false, None) => {}
                        }
                    }
                }
            }
        }
        count
    }
}

fn connection_of(noted: &Noted) -> &ConnectionId {
    match noted {
        Noted::Subscribed { connection, .. }
        | Noted::Unsubscribed { connection, .. }
        | Noted::UnsubscribedAll { connection } => connection,
    }
}

/// The entities as the table has them: `NULL` is the whole type.
fn ids(subject: &Subject) -> Vec<Option<Uuid>> {
    match subject {
        Subject::WholeType => vec![None],
        Subject::Ids(ids) => ids.iter().filter_map(uuid).map(Some).collect(),
    }
}

fn uuid(id: &EntityId) -> Option<Uuid> {
    Uuid::parse_str(id.as_str()).ok()
}

impl Registry for Directory {
    fn note(&self, noted: Noted) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.room().await;
            self.apply(noted);
        })
    }

    fn forget(&self, connection: ConnectionId) {
        let mut state = self.lock();
        state.close(connection.clone());
        if let Some(mut entry) = state.connections.remove(&connection) {
            state.pending = state.pending.saturating_sub(entry.forget_touched());
            state.gone(connection);
        }
        drop(state);
        self.work.notify_one();
    }

    fn stats(&self) -> BoxFuture<'_, Result<Option<BTreeMap<EntityCode, TypeStats>>, SourceError>> {
        Box::pin(async {
            let link = &mut self.shared.pool.borrow().await?;
            Ok(Some(link.ask(async |link| directory_sql::stats(link).await).await?))
        })
    }

    fn user_stats<'a>(
        &'a self,
        user: &'a str,
    ) -> BoxFuture<'a, Result<Option<BTreeMap<EntityCode, u64>>, SourceError>> {
        Box::pin(async move {
            let user = user_id(&self.shared.options.project, user);
            let link = &mut self.shared.pool.borrow().await?;
            Ok(Some(link.ask(async |link| directory_sql::user_stats(link, user).await).await?))
        })
    }
}
