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

/// The sessions of a server. Clones are the same sessions.
#[derive(Clone)]
pub struct Sessions {
    pub(crate) streams: Streams,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Arc<Options>,
    pub(crate) events: Arc<Events>,
    pub(crate) follower: Follower,
    breakers: Arc<Mutex<HashMap<LogId, Breaker>>>,
    /// Sessions of each project that are being created.
    beginning: Arc<Mutex<HashMap<ProjectId, usize>>>,
}

/// What an operator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a session lives that nobody uses.
    pub ttl: Duration,
    /// Sessions in one unit when a publish delivers by itself. All that it delivers is one commit, which holds whole or not
    /// at all, so that there is nothing to divide: it is known, and changes nothing.
    pub fanout_batch_size: usize,
    /// With more subscribers than this a publish leaves the delivery to the follower.
    pub fanout_queue_threshold: usize,
    /// Sessions that the follower delivers to in one unit of acknowledgement and retry. A commit has whole units.
    pub fanout_queue_batch_size: usize,
    /// Sessions that the follower delivers to in one commit at most. Only tests have a reason for fewer than can be.
    pub targets_per_commit: usize,
    /// Without the follower: with more subscribers than this there is no delivery.
    pub max_inline_fanout: usize,
    /// A delivery during a publish that takes longer counts as failed.
    pub fanout_timeout: Duration,
    /// When publishes leave the delivery to the follower because it fails.
    pub breaker: BreakerOptions,
    /// How often sessions that have expired are cleaned up.
    pub cleanup_interval: Duration,
    /// Whether a publish to many leaves the delivery to the follower.
    pub queue: bool,
    /// Whether the id of a session must be a UUID.
    pub require_uuid: bool,
    /// How long records are kept in a session.
    pub keep: Duration,
    /// Sessions that a project has at most.
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

/// A session that is being created.
pub(crate) struct Beginning {
    all: Arc<Mutex<HashMap<ProjectId, usize>>>,
    project: ProjectId,
    /// How many others were being created when it began.
    before: usize,
}

impl Drop for Beginning {
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
    /// Sessions on these streams, which are in the same store.
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

    /// Makes room for one more session of a project, which is there or not when this is dropped. So many requests at a time
    /// do not make more of them than there may be.
    pub(crate) async fn begin_one(&self, project: &ProjectId) -> Result<Beginning, SessionError> {
        let beginning = {
            let mut all = self.beginning.lock().expect("nobody panics while holding it");
            let count = all.entry(project.clone()).or_default();
            *count += 1;
            Beginning { all: self.beginning.clone(), project: project.clone(), before: *count - 1 }
        };
        let most = self.options.max_per_project;
        let there = self.streams.sessions(project).await?;
        if there + beginning.before >= most {
            Err(SessionError::TooManySessions(most))
        } else {
            Ok(beginning)
        }
    }

    /// The streams they stand on.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// What the operator set.
    pub fn options(&self) -> &Options {
        &self.options
    }

    fn breakers(&self) -> MutexGuard<'_, HashMap<LogId, Breaker>> {
        self.breakers.lock().expect("nobody panics while holding the breakers")
    }

    /// Does something with the breaker of a source. Most have nothing to remember and are not kept.
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
