use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tidings_engine::follow::Follower;
use tidings_engine::{Clock, Metrics};
use tidings_model::{LogId, ProjectId, limits};
use tidings_streams::Streams;

use crate::breaker::{Breaker, BreakerOptions};
use crate::events::Events;
use crate::{SessionError, Store};

/// Handle to the sessions of a server. Clones share the same state.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) streams: Streams,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Arc<Options>,
    pub(crate) events: Arc<Events>,
    pub(crate) follower: Follower,
    breakers: Arc<Mutex<HashMap<LogId, Breaker>>>,
    /// Number of sessions being created, by project.
    beginning: Arc<Mutex<HashMap<ProjectId, usize>>>,
}

/// Settings of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time after which an unused session expires. Default: 30 minutes.
    pub ttl: Duration,
    /// Sessions per unit of an inline fan-out. The setting is accepted but has no effect: an inline fan-out is one
    /// atomic commit. Default: 50.
    pub fanout_batch_size: usize,
    /// Number of subscribers above which a publish leaves delivery to the follower. Default: 200.
    pub fanout_queue_threshold: usize,
    /// Sessions per unit of the follower's deliveries. A commit contains whole units. Default: 50.
    pub fanout_queue_batch_size: usize,
    /// Maximum sessions the follower delivers to in one commit. Only tests lower it. Default:
    /// [`limits::TARGETS_PER_COMMIT`].
    pub targets_per_commit: usize,
    /// Number of subscribers above which nothing is delivered when `queue` is off. Default: 1000.
    pub max_inline_fanout: usize,
    /// Duration above which an inline fan-out counts as failed. Default: 10 seconds.
    pub fanout_timeout: Duration,
    /// Thresholds of the circuit breaker. Default: opens after 5 failures, recovers after 60 seconds.
    pub breaker: BreakerOptions,
    /// Interval between clean-ups of expired sessions. Default: 5 minutes.
    pub cleanup_interval: Duration,
    /// Whether a publish to many subscribers leaves delivery to the follower. Default: true.
    pub queue: bool,
    /// Whether a session id must be a UUID. Default: false.
    pub require_uuid: bool,
    /// How long a session keeps its records. Default: 24 hours.
    pub keep: Duration,
    /// Maximum sessions per project. Default: [`limits::SESSIONS_PER_PROJECT`].
    pub max_per_project: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(1800),
            fanout_batch_size: 50,
            fanout_queue_threshold: 200,
            fanout_queue_batch_size: 50,
            targets_per_commit: limits::TARGETS_PER_COMMIT,
            max_inline_fanout: 1000,
            fanout_timeout: Duration::from_millis(10_000),
            breaker: BreakerOptions { failures: 5, recovery: Duration::from_millis(60_000) },
            cleanup_interval: Duration::from_secs(300),
            queue: true,
            require_uuid: false,
            keep: Duration::from_secs(24 * 60 * 60),
            max_per_project: limits::SESSIONS_PER_PROJECT,
        }
    }
}

/// Reservation for a session that is being created. Dropping it releases the reservation.
pub(crate) struct SessionReservation {
    all: Arc<Mutex<HashMap<ProjectId, usize>>>,
    project: ProjectId,
    /// Other sessions of the project that were being created when this one began.
    before: usize,
}

impl Drop for SessionReservation {
    fn drop(&mut self) {
        let mut all = self.all.lock().expect("nobody panics while holding it");
        if let Some(count) = all.get_mut(&self.project) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.project);
            }
        }
    }
}

impl Sessions {
    /// Creates sessions on top of these streams, which must be in the same store.
    pub fn new(streams: Streams, store: Arc<dyn Store>, options: Options, metrics: &Metrics) -> Self {
        Self {
            clock: streams.clock().clone(),
            streams,
            store,
            options: Arc::new(options),
            events: Arc::new(Events::new(metrics)),
            follower: Follower::default(),
            breakers: Arc::default(),
            beginning: Arc::default(),
        }
    }

    /// Reserves one more session of a project until the returned guard is dropped, so that concurrent requests cannot
    /// exceed the limit.
    pub(crate) async fn begin_one(&self, project: &ProjectId) -> Result<SessionReservation, SessionError> {
        let beginning = {
            let mut all = self.beginning.lock().expect("nobody panics while holding it");
            let count = all.entry(project.clone()).or_default();
            *count += 1;
            SessionReservation { all: self.beginning.clone(), project: project.clone(), before: *count - 1 }
        };
        let most = self.options.max_per_project;
        let there = self.streams.sessions(project).await?;
        if there + beginning.before >= most {
            Err(SessionError::TooManySessions(most))
        } else {
            Ok(beginning)
        }
    }

    /// The streams that sessions are built on.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn breakers(&self) -> MutexGuard<'_, HashMap<LogId, Breaker>> {
        self.breakers.lock().expect("nobody panics while holding the breakers")
    }

    /// Runs `act` on the breaker of a source. Breakers in their default state are not stored.
    pub(crate) fn with_breaker<R>(&self, source: LogId, act: impl FnOnce(&mut Breaker) -> R) -> R {
        let mut breakers = self.breakers();
        let mut breaker = breakers.get(&source).copied().unwrap_or_default();
        let result = act(&mut breaker);
        if breaker.is_idle() {
            breakers.remove(&source);
        } else if breakers.len() < limits::BREAKERS || breakers.contains_key(&source) {
            breakers.insert(source, breaker);
        }
        result
    }
}
