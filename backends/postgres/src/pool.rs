//! [`Pool`]: a bounded number of connections to one database, kept for the next who needs one.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidings_engine::Rng;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connect::{Link, Target};
use crate::error::DatabaseError;

/// Shortest time between two tries to connect, after a failed one.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// Longest time between two tries to connect.
const RETRY_LAST: Duration = Duration::from_secs(5);

/// Connections to one database. Clones share them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    target: Arc<Target>,
    most: usize,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Link>>,
    retry: Mutex<Backoff>,
    rng: Arc<Rng>,
}

/// A connection that is in use by one at a time. It goes back to the others only when it is known to be good.
pub(crate) struct Borrowed {
    link: Option<Link>,
    good: bool,
    pool: Pool,
    _permit: OwnedSemaphorePermit,
}

/// When to try again to connect. The time grows with each failure, and is drawn so that nodes do not try together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Reading of the clock before which nobody tries.
    not_before: Duration,
    why: String,
}

impl Pool {
    pub(crate) fn new(target: Arc<Target>, most: usize, rng: Arc<Rng>) -> Self {
        let most = most.max(1);
        Self(Arc::new(Shared {
            target,
            most,
            permits: Arc::new(Semaphore::new(most)),
            idle: Mutex::default(),
            retry: Mutex::default(),
            rng,
        }))
    }

    pub(crate) fn target(&self) -> &Target {
        &self.0.target
    }

    /// Borrows a connection, or opens one. After a failed try, fails at once until it is time to try again.
    pub(crate) async fn borrow(&self) -> Result<Borrowed, DatabaseError> {
        let wait = self.0.target.time_limits.statement;
        let permit = match self.0.target.in_time(wait, self.0.permits.clone().acquire_owned()).await {
            Ok(permit) => permit.expect("the semaphore is never closed"),
            Err(_) => return Err(DatabaseError::Busy(self.0.most)),
        };
        let mut link = None;
        while let Some(idle) = self.pop() {
            if !idle.client.is_closed() {
                link = Some(idle);
                break;
            }
        }
        let link = match link {
            Some(link) => link,
            None => self.open().await?,
        };
        Ok(Borrowed { link: Some(link), good: true, pool: self.clone(), _permit: permit })
    }

    async fn open(&self) -> Result<Link, DatabaseError> {
        let now = self.0.target.clock.elapsed();
        {
            let retry = self.0.retry.lock().unwrap_or_else(PoisonError::into_inner);
            if now < retry.not_before {
                return Err(DatabaseError::Waiting { why: retry.why.clone(), wait: retry.not_before - now });
            }
        }
        let opened = self.0.target.connect(None).await;
        let now = self.0.target.clock.elapsed();
        let mut retry = self.0.retry.lock().unwrap_or_else(PoisonError::into_inner);
        match &opened {
            Ok(_) => *retry = Backoff::default(),
            Err(error) => {
                retry.not_before = now + retry.next(&self.0.rng);
                retry.why = error.to_string();
            }
        }
        opened
    }

    fn pop(&self) -> Option<Link> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}

impl Backoff {
    /// Counts a failure and returns the time until the next try.
    pub(crate) fn next(&mut self, rng: &Rng) -> Duration {
        let longest = RETRY_FIRST.saturating_mul(1 << self.failures.min(16)).min(RETRY_LAST);
        self.failures = self.failures.saturating_add(1);
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(rng.within(millis / 2..=millis))
    }

    /// Starts anew after a success.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

impl Borrowed {
    /// Runs statements, which have to end in time. Until this has returned well, or with an error that the database
    /// sent, the connection is not given to anybody else. Statements in it that begin a transaction also end it.
    pub(crate) async fn ask<T>(
        &mut self,
        work: impl AsyncFnOnce(&mut Link) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, DatabaseError> {
        let pool = self.pool.clone();
        let most = pool.target().time_limits.statement;
        self.good = false;
        let done = pool.target().in_time(most, work(&mut **self)).await?;
        self.good = match &done {
            Ok(_) => true,
            Err(error) => error.as_db_error().is_some() && !self.client.is_closed(),
        };
        done.map_err(|error| DatabaseError::of(&error))
    }
}

impl Deref for Borrowed {
    type Target = Link;

    fn deref(&self) -> &Link {
        self.link.as_ref().expect("a connection is there until it is dropped")
    }
}

impl DerefMut for Borrowed {
    fn deref_mut(&mut self) -> &mut Link {
        self.link.as_mut().expect("a connection is there until it is dropped")
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(link) = self.link.take().filter(|link| self.good && !link.client.is_closed()) {
            self.pool.0.idle.lock().unwrap_or_else(PoisonError::into_inner).push(link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_drawn_apart_and_never_further_than_five_seconds() {
        let rng = Rng::seeded(7);
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..100).map(|_| backoff.next(&rng)).collect();
        assert!(waits[0] >= RETRY_FIRST / 2 && waits[0] <= RETRY_FIRST, "{waits:?}");
        assert!(waits.iter().all(|wait| *wait <= RETRY_LAST), "{waits:?}");
        assert!(waits[20..].iter().all(|wait| *wait >= RETRY_LAST / 2), "{waits:?}");
        let others: Vec<Duration> = (0..100).map(|_| backoff.next(&rng)).collect();
        assert_ne!(waits[20..], others[20..]);
        backoff.reset();
        assert!(backoff.next(&rng) <= RETRY_FIRST);
    }
}
