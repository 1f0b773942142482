//! The connections of one listener: how many there may be, and which one makes room for another.
//!
//! A connection has a [`Slot`]: a regular one as long as there are some, otherwise one in the reserve. When there is no
//! regular one left, the connection that has been idle for longest is told to close and its place is free at once. A
//! connection is idle while no request is in progress on it; one that has not sent a request yet is idle, too. An answer that
//! stays (SSE, WebSocket, long-poll) is a request in progress.
//!
//! The reserve is for what must always get through. A request on a connection there first tries to get a regular slot; if
//! nobody makes room it is refused, unless it is one of those that always get through, and either way the connection
//! closes after it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tidings_engine::metrics::Held;
use tidings_model::limits::{self, Limit};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::connections::Counts;

/// Idle connections that are looked up at a time, so that not all are looked at for each that closes.
const CANDIDATES: usize = 64;

/// The connections of one listener.
pub struct Pool {
    /// Connections with a regular slot at most.
    limit: usize,
    /// Sockets: regular slots, the reserve, and those that were told to close and have not yet.
    sockets: Arc<Semaphore>,
    places: Mutex<Places>,
    /// Connections with a regular slot that are idle.
    idle: AtomicUsize,
    /// Connections that were told to close and have not yet.
    leaving: AtomicUsize,
    /// Whether a new connection waits for any socket to be closed.
    waiting: AtomicUsize,
    /// Numbers the moments at which connections became idle, in order.
    moments: AtomicU64,
    counts: Counts,
}

#[derive(Default)]
struct Places {
    /// Connections that have a regular slot.
    regular: usize,
    /// All connections that may be told to close; some are gone.
    slots: Vec<Weak<Slot>>,
    /// Some that were idle for longest when it was last looked, the longest last, each with the moment it became idle.
    candidates: Vec<(u64, Weak<Slot>)>,
    /// Those in the reserve; some are gone.
    reserve: Vec<Weak<Slot>>,
}

/// The place of one connection.
pub struct Slot {
    pool: Arc<Pool>,
    state: Mutex<State>,
    told_to_leave: Notify,
}

struct State {
    class: Class,
    /// Requests in progress.
    requests: usize,
    /// When it became idle.
    idle_since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Regular,
    Reserve,
    /// It has become something else than HTTP, which ends by its own rules. Has a regular slot.
    Upgraded,
    /// It was told to close. Its slot is free already.
    Leaving,
}

/// A connection that counts, for as long as anything of it is used.
pub struct Counted {
    slot: Arc<Slot>,
    _socket: OwnedSemaphorePermit,
    _open: Held,
}

impl Counted {
    /// Its slot.
    pub fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.slot.give_up();
    }
}

/// There is no room for what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A request in progress.
pub struct InProgress(Arc<Slot>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl InProgress {
    /// Whether its connection closes after it.
    pub fn is_last(&self) -> bool {
        matches!(self.0.state().class, Class::Reserve | Class::Leaving)
    }
}

impl Pool {
    /// So many connections, and the reserve.
    pub fn new(limit: usize, counts: Counts) -> Arc<Self> {
        let limit = limit.min(Semaphore::MAX_PERMITS - limits::CONNECTIONS_RESERVED);
        Arc::new(Self {
            limit,
            sockets: Arc::new(Semaphore::new(limit + limits::CONNECTIONS_RESERVED)),
            places: Mutex::default(),
            idle: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            moments: AtomicU64::new(0),
            counts,
        })
    }

    /// Waits until one more socket may be open. May be given up and called again.
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

    /// Tells one idle connection to close, unless one has been told that and has not closed yet.
    pub fn make_room(&self) {
        if self.leaving.load(Ordering::SeqCst) > 0 {
            return;
        }
        let mut places = self.places();
        places.reserve.retain(|slot| slot.strong_count() > 0);
        let reserve: Vec<_> = places.reserve.iter().filter_map(Weak::upgrade).collect();
        let idle = reserve.iter().filter_map(|slot| Some((slot.idle_since(Class::Reserve)?, slot)));
        let told =
            idle.min_by_key(|(since, _)| *since).is_some_and(|(since, slot)| slot.tell_to_leave(since));
        if !told {
            self.evict(&mut places);
        }
    }

    /// Gives a connection its slot.
    pub fn slot(self: &Arc<Self>, socket: OwnedSemaphorePermit) -> Counted {
        let mut places = self.places();
        if places.regular >= self.limit {
            self.counts.limit_hits().count(Limit::Connections);
        }
        let class = self.regular(&mut places).map_or(Class::Reserve, |()| Class::Regular);
        let idle_since = self.moments.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(State { class, requests: 0, idle_since });
        let slot = Arc::new(Slot { pool: self.clone(), state, told_to_leave: Notify::new() });
        let list = match class {
            Class::Reserve => &mut places.reserve,
            _ => {
                self.idle.fetch_add(1, Ordering::SeqCst);
                &mut places.slots
            }
        };
        enlist(list, &slot);
        drop(places);
        Counted { slot, _socket: socket, _open: self.counts.hold_open() }
    }

    /// Takes a regular slot. If there is none, somebody idle gives up his.
    fn regular(&self, places: &mut Places) -> Result<(), Full> {
        if places.regular >= self.limit && !self.evict(places) {
            return Err(Full);
        }
        places.regular += 1;
        Ok(())
    }

    /// Tells the connection to close that has been idle for longest. False if none is idle.
    fn evict(&self, places: &mut Places) -> bool {
        while self.idle.load(Ordering::SeqCst) > 0 {
            // Whoever is still idle since then has been so for longer than all who are not among these.
            while let Some((since, slot)) = places.candidates.pop() {
                if slot.upgrade().is_some_and(|slot| slot.tell_to_leave(since)) {
                    places.regular -= 1;
                    return true;
                }
            }
            places.slots.retain(|slot| slot.strong_count() > 0);
            let idle = places
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
            places.candidates = idle;
        }
        false
    }

    /// Resolves when all sockets are closed.
    pub async fn is_empty(&self) {
        let all = u32::try_from(self.limit + limits::CONNECTIONS_RESERVED).unwrap_or(u32::MAX);
        let _ = self.sockets.acquire_many(all).await;
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().expect("nobody panics while holding the places")
    }
}

/// Puts a slot on a list, in the room of those who left before there is more: amortised, each is looked at once.
fn enlist(list: &mut Vec<Weak<Slot>>, slot: &Arc<Slot>) {
    if list.len() == list.capacity() {
        list.retain(|slot| slot.strong_count() > 0);
    }
    list.push(Arc::downgrade(slot));
}

/// A new connection waits for a socket to be closed, until this is dropped.
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
    /// A request begins. In the reserve there must be room for it, unless it always gets through.
    pub fn begin(self: &Arc<Self>, always: bool) -> Result<InProgress, Full> {
        // Before the state is locked: places come first.
        if self.state().class == Class::Reserve {
            let mut places = self.pool.places();
            let promoted = self.pool.regular(&mut places);
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
                        enlist(&mut places.slots, self);
                    }
                    // Somebody else was quicker.
                    Class::Regular | Class::Upgraded | Class::Leaving => places.regular -= 1,
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
            self.tell_to_leave(since);
        } else if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            self.pool.make_room();
        }
    }

    /// It is something else than HTTP from now on, and is not told to leave.
    pub fn upgrade(&self) {
        let mut state = self.state();
        if state.class == Class::Regular {
            if state.requests == 0 {
                self.pool.idle.fetch_sub(1, Ordering::SeqCst);
            }
            state.class = Class::Upgraded;
        }
    }

    /// Whether no request is in progress.
    pub fn is_idle(&self) -> bool {
        self.state().requests == 0
    }

    /// Resolves when it was told to close.
    pub async fn is_told_to_leave(&self) {
        self.told_to_leave.notified().await;
    }

    fn idle_since(&self, class: Class) -> Option<u64> {
        let state = self.state();
        (state.class == class && state.requests == 0).then_some(state.idle_since)
    }

    /// Tells it to close if it has been idle since then.
    fn tell_to_leave(&self, since: u64) -> bool {
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
        self.told_to_leave.notify_one();
        true
    }

    /// The connection is gone.
    fn give_up(&self) {
        let mut places = self.pool.places();
        let state = self.state();
        match state.class {
            Class::Regular | Class::Upgraded => places.regular -= 1,
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
        counted.slot().is_told_to_leave().now_or_never().is_some()
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
        assert_eq!(pool.places().regular, 0);
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
        assert_eq!((pool.places().regular, pool.idle.load(Ordering::SeqCst)), (0, 0));
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
