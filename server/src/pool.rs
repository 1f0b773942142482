//! The connection pool of one listener: it limits the number of connections and picks the one to evict when the limit
//! is reached.
//!
//! Each connection holds a [`Slot`]: a regular slot while any is free, otherwise a slot of the reserve. When no
//! regular slot is free, the connection that has been idle longest is asked to close, and its slot is reused at once.
//! A connection is idle while no request is in progress on it, including before its first request. A live
//! response (SSE, WebSocket, long-poll) counts as a request in progress.
//!
//! The reserve keeps health checks reachable when every regular slot is busy. A request on a reserve connection first
//! tries to obtain a regular slot by evicting an idle connection. If that fails, the request is refused with 503,
//! unless its path is always served; in both cases the connection closes after the response.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_engine::metrics::GaugeGuard;
use tidings_model::limits::{self, Limit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::connections::Counts;

/// Number of eviction candidates collected per scan, so that one eviction does not scan all connections.
const CANDIDATES: usize = 64;

/// Connection pool of one listener.
pub struct Pool {
    /// Maximum number of connections with a regular slot.
    limit: usize,
    /// Permits for open sockets: regular slots, the reserve, and connections that were asked to close but are still
    /// open.
    sockets: Arc<Semaphore>,
    table: Mutex<SlotTable>,
    /// Number of idle connections with a regular slot.
    idle: AtomicUsize,
    /// Number of connections that were asked to close but are still open.
    leaving: AtomicUsize,
    /// Number of callers of [`Pool::socket`] that wait for a socket to close.
    waiting: AtomicUsize,
    /// Logical clock: gives each transition to idle a unique, increasing number.
    moments: AtomicU64,
    counts: Counts,
}

#[derive(Default)]
struct SlotTable {
    /// Number of connections with a regular slot.
    regular: usize,
    /// Connections that have, or had, a regular slot. Entries of closed connections are removed lazily.
    slots: Vec<Weak<Slot>>,
    /// The longest-idle connections as of the last scan, each with the moment it became idle, the oldest last.
    candidates: Vec<(u64, Weak<Slot>)>,
    /// Connections that were accepted into the reserve. Entries of closed connections are removed lazily.
    reserve: Vec<Weak<Slot>>,
}

/// The pool's record of one connection.
pub struct Slot {
    pool: Arc<Pool>,
    state: Mutex<State>,
    close_requested: Notify,
}

struct State {
    class: Class,
    /// Number of requests in progress.
    requests: usize,
    /// Moment the connection last became idle, from `Pool::moments`.
    idle_since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Regular,
    Reserve,
    /// The connection switched to another protocol (WebSocket). It keeps a regular slot and is never evicted.
    Upgraded,
    /// The connection was asked to close. Its slot is already free.
    Leaving,
}

/// A connection as the pool counts it. Dropping it releases the slot and the socket permit.
pub struct Counted {
    slot: Arc<Slot>,
    _socket: OwnedSemaphorePermit,
    _open: GaugeGuard,
}

impl Counted {
    /// Returns the slot of this connection.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.slot.give_up();
    }
}

/// Error: no slot is free and no connection is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A request in progress on a connection. Dropping it ends the request.
pub struct InProgress(Arc<Slot>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl InProgress {
    /// Returns whether the connection closes after this request.
    pub fn is_last(&self) -> bool {
        matches!(self.0.state().class, Class::Reserve | Class::Leaving)
    }
}

impl Pool {
    /// Creates a pool with `limit` regular slots, plus [`limits::CONNECTIONS_RESERVED`] in the reserve.
    pub fn new(limit: usize, counts: Counts) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS - limits::CONNECTIONS_RESERVED);
        Arc::new(Self {
            limit,
            sockets: Arc::new(Semaphore::new(limit + limits::CONNECTIONS_RESERVED)),
            table: Mutex::default(),
            idle: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            moments: AtomicU64::new(0),
            counts,
        })
    }

    /// Waits until one more socket may be open, asking an idle connection to close if none is free. Cancel-safe.
    pub async fn socket(self: &Arc<Self>) -> OwnedSemaphorePermit {
        if let Ok(socket) = self.sockets.clone().try_acquire_owned() {
            return socket;
        }
        let waiting = Waiting::new(self);
        self.make_room();
        let socket = self.sockets.clone().acquire_owned().await;
        drop(waiting);
        socket.expect("nobody closes it")
    }

    /// Asks one idle connection to close, reserve connections first. Does nothing while an earlier one is still
    /// closing.
    pub fn make_room(&self) {
        if self.leaving.load(Ordering::SeqCst) > 0 {
            return;
        }
        let mut table = self.table();
        table.reserve.retain(|slot| slot.strong_count() > 0);
        let reserve: Vec<_> = table.reserve.iter().filter_map(Weak::upgrade).collect();
        let idle = reserve.iter().filter_map(|slot| Some((slot.idle_since(Class::Reserve)?, slot)));
        let told = idle.min_by_key(|(since, _)| *since).is_some_and(|(since, slot)| slot.ask_to_close(since));
        if !told {
            self.evict(&mut table);
        }
    }

    /// Assigns a slot to a new connection: a regular one if possible, otherwise one of the reserve.
    pub fn slot(self: &Arc<Self>, socket: OwnedSemaphorePermit) -> Counted {
        let mut table = self.table();
        if table.regular >= self.limit {
            self.counts.limit_hits().count(Limit::Connections);
        }
        let class = self.regular(&mut table).map_or(Class::Reserve, |()| Class::Regular);
        let idle_since = self.moments.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State { class, requests: 0, idle_since });
        let slot = Arc::new(Slot { pool: self.clone(), state, close_requested: Notify::new() });
        let list = match class {
            Class::Reserve => &mut table.reserve,
            _ => {
                self.idle.fetch_add(1, Ordering::SeqCst);
                &mut table.slots
            }
        };
        enlist(list, &slot);
        drop(table);
        Counted { slot, _socket: socket, _open: self.counts.hold_open() }
    }

    /// Takes a regular slot, evicting the longest-idle connection if none is free.
    fn regular(&self, table: &mut SlotTable) -> Result<(), Full> {
        if table.regular >= self.limit && !self.evict(table) {
            return Err(Full);
        }
        table.regular += 1;
        Ok(())
    }

    /// Asks the longest-idle regular connection to close and frees its slot. Returns false if none is idle.
    fn evict(&self, table: &mut SlotTable) -> bool {
        while self.idle.load(Ordering::SeqCst) > 0 {
            // A candidate that is still idle since the recorded moment has been idle longer than any connection that
            // is not a candidate.
            while let Some((since, slot)) = table.candidates.pop() {
                if slot.upgrade().is_some_and(|slot| slot.ask_to_close(since)) {
                    table.regular -= 1;
                    return true;
                }
            }
            table.slots.retain(|slot| slot.strong_count() > 0);
            let idle = table
                .slots
                .iter()
                .filter_map(|slot| Some((slot.upgrade()?.idle_since(Class::Regular)?, slot.clone())));
            let mut idle: Vec<_> = idle.collect();
            if idle.is_empty() {
                return false;
            }
            if idle.len() > CANDIDATES {
                idle.select_nth_unstable_by_key(CANDIDATES, |(since, _)| *since);
                idle.truncate(CANDIDATES);
            }
            idle.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
            table.candidates = idle;
        }
        false
    }

    /// Waits until all sockets are closed.
    pub async fn is_empty(&self) {
        let all = u32::try_from(self.limit + limits::CONNECTIONS_RESERVED).unwrap_or(u32::MAX);
        let _ = self.sockets.acquire_many(all).await;
    }

    fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.table.lock().expect("nobody panics while holding the table of slots")
    }
}

/// Appends a slot to a list. Removes dead entries before the list would grow, so the amortised cost per entry is
/// constant.
fn enlist(list: &mut Vec<Weak<Slot>>, slot: &Arc<Slot>) {
    if list.len() == list.capacity() {
        list.retain(|slot| slot.strong_count() > 0);
    }
    list.push(Arc::downgrade(slot));
}

/// Counts one caller in `Pool::waiting` until dropped.
struct Waiting<'a>(&'a Pool);

impl<'a> Waiting<'a> {
    fn new(pool: &'a Pool) -> Self {
        pool.waiting.fetch_add(1, Ordering::SeqCst);
        Self(pool)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Slot {
    /// Starts a request. On a reserve connection this needs a regular slot; without one, only a request with `always`
    /// set is let through.
    pub fn begin(self: &Arc<Self>, always: bool) -> Result<InProgress, Full> {
        // Lock order: table before state.
        if self.state().class == Class::Reserve {
            let mut table = self.pool.table();
            let promoted = self.pool.regular(&mut table);
            if promoted.is_err() && !always {
                return Err(Full);
            }
            let mut state = self.state();
            if promoted.is_ok() {
                match state.class {
                    Class::Reserve => {
                        state.class = Class::Regular;
                        if state.requests == 0 {
                            self.pool.idle.fetch_add(1, Ordering::SeqCst);
                        }
                        enlist(&mut table.slots, self);
                    }
                    // A concurrent request changed the class first, so the slot taken above is returned.
                    Class::Regular | Class::Upgraded | Class::Leaving => table.regular -= 1,
                }
            }
        }
        let mut state = self.state();
        if state.requests == 0 && state.class == Class::Regular {
            self.pool.idle.fetch_sub(1, Ordering::SeqCst);
        }
        state.requests += 1;
        drop(state);
        Ok(InProgress(self.clone()))
    }

    fn end(self: &Arc<Self>) {
        let mut state = self.state();
        state.requests -= 1;
        if state.requests > 0 {
            return;
        }
        state.idle_since = self.pool.moments.fetch_add(1, Ordering::Relaxed);
        let (class, since) = (state.class, state.idle_since);
        if class == Class::Regular {
            self.pool.idle.fetch_add(1, Ordering::SeqCst);
        }
        drop(state);
        if class == Class::Reserve {
            self.ask_to_close(since);
        } else if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            self.pool.make_room();
        }
    }

    /// Marks the connection as upgraded to another protocol, so that it is never evicted.
    pub fn upgrade(&self) {
        let mut state = self.state();
        if state.class == Class::Regular {
            if state.requests == 0 {
                self.pool.idle.fetch_sub(1, Ordering::SeqCst);
            }
            state.class = Class::Upgraded;
        }
    }

    /// Returns whether no request is in progress.
    pub fn is_idle(&self) -> bool {
        self.state().requests == 0
    }

    /// Waits until the connection is asked to close.
    pub async fn asked_to_close(&self) {
        self.close_requested.notified().await;
    }

    fn idle_since(&self, class: Class) -> Option<u64> {
        let state = self.state();
        (state.class == class && state.requests == 0).then_some(state.idle_since)
    }

    /// Asks the connection to close if it has been idle since the moment `since`. Returns whether it was asked.
    fn ask_to_close(&self, since: u64) -> bool {
        let mut state = self.state();
        if state.requests > 0 || state.idle_since != since {
            return false;
        }
        match state.class {
            Class::Regular => drop(self.pool.idle.fetch_sub(1, Ordering::SeqCst)),
            Class::Reserve => {}
            Class::Upgraded | Class::Leaving => return false,
        }
        state.class = Class::Leaving;
        drop(state);
        self.pool.leaving.fetch_add(1, Ordering::SeqCst);
        self.pool.counts.evicted().count();
        self.close_requested.notify_one();
        true
    }

    /// Releases the slot when the connection has closed.
    fn give_up(&self) {
        let mut table = self.pool.table();
        let state = self.state();
        match state.class {
            Class::Regular | Class::Upgraded => table.regular -= 1,
            Class::Leaving => drop(self.pool.leaving.fetch_sub(1, Ordering::SeqCst)),
            Class::Reserve => {}
        }
        if state.class == Class::Regular && state.requests == 0 {
            self.pool.idle.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding a slot")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tidings_engine::Metrics;

    fn pool(limit: usize) -> Arc<Pool> {
        Pool::new(limit, Counts::new(&Metrics::new()))
    }

    fn taken(pool: &Arc<Pool>) -> Counted {
        pool.slot(pool.socket().now_or_never().expect("there is a socket"))
    }

    fn has_left(counted: &Counted) -> bool {
        counted.slot().asked_to_close().now_or_never().is_some()
    }

    #[test]
    fn the_longest_idle_makes_room_and_the_busy_do_not() {
        let pool = pool(3);
        let (first, second, third) = (taken(&pool), taken(&pool), taken(&pool));
        let busy = first.slot().begin(false).expect("it has a slot");
        drop(second.slot().begin(false).expect("it has a slot"));
        let fourth = taken(&pool);
        assert!(has_left(&third), "idle from the beginning");
        let fifth = taken(&pool);
        assert!(has_left(&second), "idle since its answer");
        drop(busy);
        let sixth = taken(&pool);
        assert!(has_left(&fourth) && !has_left(&first), "the one was idle before the other");
        drop((first, second, third, fourth, fifth, sixth));
        assert_eq!(pool.table().regular, 0);
        assert_eq!((pool.idle.load(Ordering::SeqCst), pool.leaving.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn when_all_are_busy_only_what_always_gets_through_does() {
        let pool = pool(1);
        let first = taken(&pool);
        let busy = first.slot().begin(false).expect("it has a slot");
        let second = taken(&pool);
        assert_eq!(second.slot().begin(false).err(), Some(Full));
        let health = second.slot().begin(true).expect("it always gets through");
        assert!(health.is_last() && !busy.is_last());
        drop(health);
        assert!(has_left(&second), "the reserve is free again");
        let third = taken(&pool);
        drop(busy);
        let promoted = third.slot().begin(false).expect("the first makes room");
        assert!(has_left(&first) && !promoted.is_last());
        drop((promoted, first, second, third));
        assert_eq!((pool.table().regular, pool.idle.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn silent_connections_in_the_reserve_make_room_for_each_other() {
        let pool = pool(1);
        let first = taken(&pool);
        let _busy = first.slot().begin(false).expect("it has a slot");
        let mut silent: Vec<_> = (0..limits::CONNECTIONS_RESERVED).map(|_| taken(&pool)).collect();
        assert!(pool.socket().now_or_never().is_none(), "there is none left");
        assert!(has_left(&silent[0]) && !has_left(&silent[1]));
        assert!(pool.socket().now_or_never().is_none());
        assert!(!has_left(&silent[1]), "one is about to close already");
        drop(silent.remove(0));
        let another = taken(&pool);
        assert!(another.slot().begin(true).is_ok());
    }

    #[test]
    fn what_has_become_a_websocket_keeps_its_seat() {
        let pool = pool(1);
        let first = taken(&pool);
        drop(first.slot().begin(false).expect("it has a slot"));
        first.slot().upgrade();
        let second = taken(&pool);
        assert!(!has_left(&first));
        assert_eq!(second.slot().begin(false).err(), Some(Full));
        drop(first);
        assert!(second.slot().begin(false).is_ok());
    }
}
