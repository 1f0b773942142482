//! What host names resolve to, remembered for a short time, and checked.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::Clock;
use tidings_model::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::error::SendError;
use crate::guard::Guard;
use crate::resolver::Resolver;

/// Shortest time for which a result is remembered.
const TTL_MIN: Duration = Duration::from_secs(1);

/// Resolves names, one lookup at a time for each, and refuses those that may not be reached.
pub(crate) struct Names {
    resolver: Arc<dyn Resolver>,
    guard: Guard,
    clock: Arc<dyn Clock>,
    ttl: Duration,
    state: Mutex<HashMap<Box<str>, Name>>,
    /// Lookups that may be under way, of names that were resolved before and of others. They are apart because a lookup
    /// takes long where a name server is silent, and anybody can make up such names.
    known: Arc<Semaphore>,
    unknown: Arc<Semaphore>,
    lookups: Mutex<JoinSet<()>>,
}

#[derive(Default)]
struct Name {
    /// The last result, and when it is too old, in the clock's elapsed time.
    last: Option<(Found, Duration)>,
    /// The lookup that is under way. Its end is told by dropping the other side.
    lookup: Option<watch::Receiver<()>>,
}

/// Addresses that may be reached, at least one.
pub(crate) type Found = Result<Arc<[IpAddr]>, SendError>;

/// What to do to learn the addresses of a name.
enum Step {
    Done(Found),
    Wait(watch::Receiver<()>),
    Resolve { known: bool },
}

impl Names {
    pub(crate) fn new(
        resolver: Arc<dyn Resolver>,
        guard: Guard,
        clock: Arc<dyn Clock>,
        ttl: Duration,
    ) -> Self {
        Self {
            resolver,
            guard,
            clock,
            ttl,
            state: Mutex::default(),
            known: Arc::new(Semaphore::new(limits::RESOLVING)),
            unknown: Arc::new(Semaphore::new(limits::RESOLVING)),
            lookups: Mutex::default(),
        }
    }

    /// Addresses of a name, unless it cannot be resolved or may not be reached. A lookup that has begun goes on when the
    /// future is dropped.
    pub(crate) async fn addresses(self: &Arc<Self>, name: &str) -> Found {
        loop {
            match self.step(name) {
                Step::Done(found) => return found,
                // An error is the end of the lookup.
                Step::Wait(mut lookup) => {
                    let _ = lookup.changed().await;
                }
                Step::Resolve { known } => {
                    let places = if known { &self.known } else { &self.unknown };
                    let place = places.clone().acquire_owned().await.expect("it is never closed");
                    self.resolve(name, place);
                }
            }
        }
    }

    /// Addresses of a name if they are remembered.
    pub(crate) fn remembered(&self, name: &str) -> Option<Found> {
        match self.step(name) {
            Step::Done(found) => Some(found),
            Step::Wait(_) | Step::Resolve { .. } => None,
        }
    }

    fn step(&self, name: &str) -> Step {
        Name::step(self.lock().get(name), self.clock.elapsed())
    }

    /// Begins a lookup, unless one is under way or has just ended.
    fn resolve(self: &Arc<Self>, name: &str, place: OwnedSemaphorePermit) {
        let (ends, lookup) = watch::channel(());
        let began = self.clock.elapsed();
        {
            let mut names = self.lock();
            if !matches!(Name::step(names.get(name), began), Step::Resolve { .. }) {
                return;
            }
            make_room(&mut names, began);
            names.entry(name.into()).or_default().lookup = Some(lookup);
        }
        let (this, name, resolving) = (Arc::downgrade(self), Box::from(name), self.resolver.resolve(name));
        let mut lookups = self.lookups.lock().expect("nobody panics while holding it");
        while lookups.try_join_next().is_some() {}
        lookups.spawn(async move {
            let resolved = resolving.await;
            if let Some(this) = this.upgrade() {
                this.remember(name, resolved, began);
            }
            drop((place, ends));
        });
    }

    fn remember(&self, name: Box<str>, resolved: io::Result<Vec<IpAddr>>, began: Duration) {
        let now = self.clock.elapsed();
        let (found, ttl) = match resolved {
            Ok(addresses) => (self.vetted(&name, addresses), self.ttl),
            // As long as it took, so that a name whose name server is silent takes a place half of the time at most.
            Err(error) => (Err(SendError::Resolve(error.to_string())), (now - began).min(self.ttl)),
        };
        let last = Some((found, now + ttl.max(TTL_MIN)));
        self.lock().insert(name, Name { last, lookup: None });
    }

    fn vetted(&self, name: &str, mut addresses: Vec<IpAddr>) -> Found {
        self.guard.check_name(name, &addresses)?;
        for address in &mut addresses {
            *address = address.to_canonical();
        }
        let mut seen = HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        addresses.truncate(limits::RESOLVED_ADDRESSES);
        if addresses.is_empty() {
            Err(SendError::Resolve("no address".to_owned()))
        } else {
            Ok(addresses.into())
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Name>> {
        self.state.lock().expect("nobody panics while holding the names")
    }
}

impl Name {
    fn step(name: Option<&Self>, now: Duration) -> Step {
        let Some(name) = name else { return Step::Resolve { known: false } };
        match (&name.last, &name.lookup) {
            (Some((found, until)), _) if now < *until => Step::Done(found.clone()),
            // After a panic of the resolver the lookup is still there, but closed.
            (_, Some(lookup)) if lookup.has_changed().is_ok() => Step::Wait(lookup.clone()),
            (last, _) => Step::Resolve { known: last.as_ref().is_some_and(|(found, _)| found.is_ok()) },
        }
    }
}

/// Forgets names when there are too many: those that are too old, or all, except those that are being resolved.
fn make_room(names: &mut HashMap<Box<str>, Name>, now: Duration) {
    if names.len() < limits::RESOLVED_NAMES {
        return;
    }
    names.retain(|_, name| !matches!(Name::step(Some(name), now), Step::Resolve { .. }));
    // Otherwise the next new name would have all of them looked through again.
    if names.len() > limits::RESOLVED_NAMES / 2 {
        names.retain(|_, name| matches!(Name::step(Some(name), now), Step::Wait(_)));
    }
}
