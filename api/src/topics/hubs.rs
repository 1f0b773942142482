//! The hubs of all projects: each has the topics of one.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::FutureExt;
use tidings_engine::bus::messages::MessageBus;
use tidings_engine::deliver::Rings;
use tidings_engine::{Clock, Metrics};
use tidings_model::{ProjectId, limits};
use tidings_topics::{BusDriver, BusOptions, Histories, Hub, Local, MemoryDriver};

use super::encode::Broadcasts;
use super::metrics::TopicMetrics;
use super::options::TopicOptions;
use super::policy::GrantPolicy;
use crate::live::PassHandle;

/// The topics of all projects. Clones share them.
#[derive(Clone)]
pub struct TopicHubs(Arc<Shared>);

struct Shared {
    options: TopicOptions,
    rings: Rings,
    cluster: Option<Cluster>,
    histories: Option<Histories>,
    policy: Arc<GrantPolicy>,
    clock: Arc<dyn Clock>,
    metrics: TopicMetrics,
    /// Number of the next connection.
    number: AtomicU64,
    hubs: Mutex<Hubs>,
}

#[derive(Default)]
struct Hubs {
    /// Hubs that are in use.
    all: HashMap<ProjectId, Weak<ProjectHub>>,
    /// The latest ones. Who publishes without a connection does not hold a hub, and would make one each time.
    latest: VecDeque<Arc<ProjectHub>>,
}

/// The nodes whose topics are connected by a bus.
#[derive(Clone)]
pub struct Cluster {
    /// The bus.
    pub bus: Arc<dyn MessageBus>,
    /// A number that no other node on the bus has.
    pub node: u64,
}

/// The hub of a project, for as long as somebody holds it.
pub type ProjectHub = Hub<PassHandle>;

impl TopicHubs {
    /// Creates hubs whose messages go through these rings, and to the other nodes of a cluster. Without histories no topic has
    /// one.
    pub fn new(
        options: TopicOptions,
        rings: Rings,
        cluster: Option<Cluster>,
        histories: Option<Histories>,
        clock: Arc<dyn Clock>,
        metrics: &Metrics,
    ) -> Self {
        let policy = Arc::new(GrantPolicy(options.normalize));
        let metrics = TopicMetrics::new(metrics, &rings);
        Self(Arc::new(Shared {
            options,
            rings,
            cluster,
            histories,
            policy,
            clock,
            metrics,
            number: AtomicU64::new(1),
            hubs: Mutex::default(),
        }))
    }

    /// The options.
    pub fn options(&self) -> &TopicOptions {
        &self.0.options
    }

    /// Number of topics with subscribers, of all projects.
    pub fn subscribed(&self) -> usize {
        self.0.rings.len()
    }

    /// The histories of topics, if there are some.
    pub fn histories(&self) -> Option<&Histories> {
        self.0.histories.as_ref()
    }

    /// The metrics.
    pub(super) fn metrics(&self) -> &TopicMetrics {
        &self.0.metrics
    }

    /// A number that no other connection has.
    pub(super) fn next_number(&self) -> u64 {
        self.0.number.fetch_add(1, Ordering::Relaxed)
    }

    /// The hub of a project, which is created if nobody has it.
    pub(super) fn of(&self, project: &ProjectId) -> Arc<ProjectHub> {
        let mut hubs = self.0.hubs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = hubs.all.get(project).and_then(Weak::upgrade) {
            return hub;
        }
        // Hubs that nobody has are removed before the map grows, so the cost is amortised.
        if hubs.all.len() == hubs.all.capacity() {
            hubs.all.retain(|_, hub| hub.strong_count() > 0);
        }
        let hub = Arc::new(self.create(project));
        hubs.all.insert(project.clone(), Arc::downgrade(&hub));
        hubs.latest.push_back(hub.clone());
        let oldest = if hubs.latest.len() > limits::TOPIC_HUBS_KEPT { hubs.latest.pop_front() } else { None };
        drop(hubs);
        // Dropped without the lock: this may be the last owner.
        drop(oldest);
        hub
    }

    fn create(&self, project: &ProjectId) -> ProjectHub {
        let Shared { options, rings, cluster, policy, clock, .. } = &*self.0;
        let (scope, behind_max) = (project.as_str(), options.slow_consumer_bytes);
        let local = Local::new(rings.clone(), scope, Arc::new(Broadcasts), behind_max);
        let hub = |driver| {
            let hub = Hub::new(driver, options.rules.clone(), policy.clone(), clock.clone());
            hub.with_announce(Arc::new(Broadcasts))
        };
        let history = self.0.histories.as_ref().map(|histories| histories.of(project));
        let Some(Cluster { bus, node }) = cluster else {
            let hub = hub(Arc::new(MemoryDriver::new(local)));
            return match history {
                Some(history) => hub.with_history(history),
                None => hub,
            };
        };
        let bus_options = BusOptions {
            node: *node,
            prefix: format!("topics/{scope}/").into(),
            arrivals_bytes: limits::BUS_ARRIVALS_BYTES,
            clock: clock.clone(),
            lease: options.presence_ttl,
        };
        let (driver, consumer) = BusDriver::join(local, bus.clone(), bus_options);
        let hub = hub(Arc::new(driver)).with_consumers(vec![Arc::new(consumer)]);
        // Nobody else starts this hub or has started its consumer, so nothing is waited for.
        match hub.start().now_or_never() {
            Some(Ok(())) => {}
            failed => tracing::error!(project = scope, ?failed, "topics do not hear other nodes"),
        }
        hub
    }
}
