//! The pool: how many connections are open, and those that wait for their next request.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tidings_engine::metrics::Gauge;

use crate::connection::Connection;
use crate::destination::Destination;
use crate::egress::EgressOptions;
use crate::error::{Scope, SendError};

/// All connections of an [`Egress`](crate::Egress).
pub(crate) struct Pool {
    options: EgressOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Open connections, idle or in use, and those that are being opened.
    open: usize,
    /// Shows `open`.
    sockets: Gauge,
    /// Destinations with open connections.
    places: HashMap<Destination, Place>,
    /// Idle connections in the order in which they became idle.
    idle: BTreeMap<u64, Idle>,
    /// Number of the next connection that becomes idle.
    next: u64,
}

/// The connections to one destination.
#[derive(Default)]
struct Place {
    open: usize,
    /// Idle ones, the one that became idle last at the end.
    idle: Vec<(u64, IpAddr)>,
}

struct Idle {
    connection: Connection,
    destination: Destination,
    /// When it became idle.
    since: Duration,
}

/// The right to have one connection open. Given back when dropped.
pub(crate) struct Slot {
    destination: Destination,
    /// `None` after it was taken away.
    pool: Weak<Pool>,
}

impl Pool {
    pub(crate) fn new(options: EgressOptions, sockets: Gauge) -> Self {
        Self { options, state: Mutex::new(State { sockets, ..State::default() }) }
    }

    /// Takes out the connection that became idle last, if it goes to one of these addresses.
    pub(crate) fn take(&self, destination: &Destination, addresses: &[IpAddr]) -> Option<Connection> {
        let mut state = self.lock();
        let place = state.places.get_mut(destination)?;
        let at = place.idle.iter().rposition(|(_, address)| addresses.contains(address))?;
        let (number, _) = place.idle.remove(at);
        Some(state.idle.remove(&number).expect("an idle connection of a place is in the list").connection)
    }

    /// Makes room for one more connection. At a limit it closes an idle one.
    pub(crate) fn open(self: &Arc<Self>, destination: &Destination) -> Result<Slot, SendError> {
        let mut state = self.lock();
        let evicted = state.make_room(destination, &self.options)?;
        state.open += 1;
        state.sockets.add(1);
        state.places.entry(destination.clone()).or_default().open += 1;
        drop(state);
        close(evicted);
        Ok(Slot { destination: destination.clone(), pool: Arc::downgrade(self) })
    }

    /// Keeps a connection for its next request, and closes others that are idle for too long or too many.
    pub(crate) fn park(&self, mut connection: Connection, now: Duration) {
        let mut state = self.lock();
        let mut evicted = state.expire(now, self.options.idle_timeout);
        let destination = connection.slot().destination.clone();
        let (address, number) = (connection.address(), state.next);
        state.next += 1;
        let place = state.places.get_mut(&destination).expect("a connection counts at its place");
        place.idle.push((number, address));
        let crowded = (place.idle.len() > self.options.idle_per_destination).then(|| place.idle[0].0);
        state.idle.insert(number, Idle { connection, destination, since: now });
        evicted.extend(crowded.and_then(|oldest| state.evict(oldest)));
        if state.idle.len() > self.options.idle {
            evicted.extend(state.evict_oldest());
        }
        drop(state);
        close(evicted);
    }

    /// Closes connections that have been idle for too long.
    pub(crate) fn expire(&self, now: Duration) {
        let evicted = self.lock().expire(now, self.options.idle_timeout);
        close(evicted);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding the pool")
    }
}

/// Closes connections whose slots were taken away. Not while the lock is held: it takes a system call each.
fn close(evicted: impl IntoIterator<Item = Connection>) {
    evicted.into_iter().for_each(drop);
}

impl State {
    /// Takes out an idle connection if there are as many connections as there may be.
    fn make_room(
        &mut self,
        destination: &Destination,
        options: &EgressOptions,
    ) -> Result<Option<Connection>, SendError> {
        let place = self.places.get(destination);
        if place.map_or(0, |place| place.open) >= options.sockets_per_destination {
            let oldest = place.and_then(|place| place.idle.first()).map(|&(oldest, _)| oldest);
            let evicted = oldest.and_then(|oldest| self.evict(oldest));
            return evicted.map(Some).ok_or(SendError::TooManySockets(Scope::Destination));
        }
        if self.open >= options.sockets {
            return self.evict_oldest().map(Some).ok_or(SendError::TooManySockets(Scope::All));
        }
        Ok(None)
    }

    fn expire(&mut self, now: Duration, timeout: Duration) -> Vec<Connection> {
        let mut expired = Vec::new();
        while let Some(oldest) = self.idle.first_entry()
            && oldest.get().since.saturating_add(timeout) <= now
        {
            let number = *oldest.key();
            expired.extend(self.evict(number));
        }
        expired
    }

    fn evict_oldest(&mut self) -> Option<Connection> {
        let oldest = *self.idle.first_key_value()?.0;
        self.evict(oldest)
    }

    /// Takes out an idle connection and its slot.
    fn evict(&mut self, number: u64) -> Option<Connection> {
        let Idle { mut connection, destination, .. } = self.idle.remove(&number)?;
        if let Some(place) = self.places.get_mut(&destination) {
            place.idle.retain(|(other, _)| *other != number);
        }
        connection.slot().pool = Weak::new();
        self.close(&destination);
        Some(connection)
    }

    /// Counts one connection less.
    fn close(&mut self, destination: &Destination) {
        self.open -= 1;
        self.sockets.add(-1);
        let place = self.places.get_mut(destination).expect("an open connection counts at its place");
        place.open -= 1;
        if place.open == 0 {
            self.places.remove(destination);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.upgrade() {
            pool.lock().close(&self.destination);
        }
    }
}
