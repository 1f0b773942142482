//! [`Hooks`], the handle of the capability.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};

use futures_util::future::BoxFuture;
use tidings_egress::{Egress, Guard, Target};
use tidings_engine::deliver::{Channels, Limits};
use tidings_engine::follow::Follower;
use tidings_engine::log::Observer;
use tidings_engine::{Bus, Clock, Metrics, Rng};
use tidings_model::{LogId, ProjectId, Timestamp, Ulid};

use crate::counts::Counts;
use crate::delivery::DeliveryId;
use crate::dispatch::Dispatcher;
use crate::follow::Journals;
use crate::hook::Settings;
use crate::in_flight_ids::InFlightIds;
use crate::ingest_limits::IngestLimits;
use crate::matchers::Matchers;
use crate::options::Options;
use crate::paused::PausedReplays;
use crate::replay::Replays;
use crate::{Hook, HookError, Store, Table};

/// The hooks of a server. Clones share the same state.
#[derive(Clone)]
pub struct Hooks(pub(crate) Arc<Inner>);

/// What hooks are made of.
pub struct Parts {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The store's bus.
    pub bus: Bus,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Random numbers for jitter.
    pub rng: Arc<Rng>,
    /// Random bytes for secrets and ids.
    pub randomness: Randomness,
    /// Sends deliveries to endpoints.
    pub egress: Egress,
    /// Which sources of events a project's hooks listen to.
    pub sources: Sources,
    /// Options.
    pub options: Options,
    /// Registry of metrics.
    pub metrics: Metrics,
}

/// Fills bytes with unpredictable ones.
pub type Randomness = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// Tells whether the hooks of a project listen to a source, such as `stream`. Asked for each append, so it must be cheap.
pub type Sources = Arc<dyn Fn(&ProjectId, &str) -> bool + Send + Sync>;

/// A handler in this process that receives deliveries instead of an endpoint. It is called with the method and the payload
/// of the event, and its result or error goes into the delivery log.
pub type Handler = Arc<dyn Fn(Call) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// A call of a [`Handler`].
#[derive(Clone, Debug)]
pub struct Call {
    /// Method that the hook names. Empty if it names none.
    pub method: String,
    /// Id of the delivery, constant over its attempts.
    pub delivery: String,
    /// Id of the event.
    pub event: String,
    /// Payload: the event as a JSON object.
    pub payload: bytes::Bytes,
}

pub(crate) struct Inner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<Rng>,
    pub(crate) randomness: Randomness,
    pub(crate) egress: Egress,
    pub(crate) guard: Guard,
    pub(crate) sources: Sources,
    pub(crate) options: Options,
    pub(crate) matchers: Arc<Matchers>,
    /// Matches what is in the journals.
    pub(crate) matching: Follower,
    /// Puts events into queues once more.
    pub(crate) replaying: Follower,
    /// Wakes it when a queue has got shorter.
    pub(crate) paused_replays: Arc<PausedReplays>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) handlers: RwLock<HashMap<String, Handler>>,
    /// The newest id that was made.
    last_id: Mutex<Ulid>,
    /// Ids of events and batches that are being ingested.
    pub(crate) ids: InFlightIds,
    pub(crate) ingest_limits: IngestLimits,
    /// Held for writing by an ingest that keeps losing against changes of hooks, and for reading by these.
    pub(crate) changing: Arc<tokio::sync::RwLock<()>>,
    /// Serializes changes of dead letters of one hook.
    pub(crate) letters: InFlightIds,
    /// Journals that hold ingested events, and how many. Later events of such a project go there, too.
    pub(crate) deferred: crate::ingest::Deferred,
    /// Live readers of queues.
    pub(crate) channels: Channels,
    pub(crate) counts: Counts,
    pub(crate) metrics: Metrics,
}

impl Hooks {
    /// Creates the handle. Nothing is delivered until its duties run: [`Hooks::dispatch`], [`Hooks::match_journals`],
    /// [`Hooks::replay_events`] and those of [`maintenance`](crate::maintenance).
    pub fn new(parts: Parts) -> Self {
        let Parts { store, bus, clock, rng, randomness, egress, sources, options, metrics } = parts;
        let matchers = Arc::new(Matchers::default());
        let observer: Arc<dyn Observer<Table>> = matchers.clone();
        store.observe(&observer);
        let replaying = Follower::default();
        let paused_replays = Arc::new(PausedReplays::new(replaying.clone()));
        let observer: Arc<dyn Observer<Table>> = paused_replays.clone();
        store.observe(&observer);
        Self(Arc::new(Inner {
            guard: Guard::new(options.allow_targets.clone()),
            dispatcher: Dispatcher::default(),
            channels: Channels::new(bus, Limits::default()),
            counts: Counts::new(&metrics),
            metrics,
            matching: Follower::default(),
            replaying,
            paused_replays,
            handlers: RwLock::default(),
            last_id: Mutex::default(),
            ids: InFlightIds::default(),
            letters: InFlightIds::default(),
            ingest_limits: IngestLimits::default(),
            changing: Arc::default(),
            deferred: crate::ingest::Deferred::default(),
            store,
            clock,
            rng,
            randomness,
            egress,
            sources,
            options,
            matchers,
        }))
    }

    /// Options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Binds a handler under a name. Hooks with this name as their `workerBinding` are delivered to it, in this process,
    /// instead of to their endpoint.
    pub fn bind(&self, name: &str, handler: Handler) {
        self.0.handlers.write().expect("nobody panics while writing").insert(name.to_owned(), handler);
    }

    /// Delivers what is in the queues. Never returns.
    pub async fn dispatch(self) {
        self.0.dispatcher.run(&self).await;
    }

    /// Looks for entries of journals and for replays that nobody announced: call it every few seconds. A writer that is
    /// cancelled while its commit is made does not announce it.
    pub async fn look_for_more(&self) -> Result<(), HookError> {
        self.0.matching.look_for_more(&Journals(self)).await?;
        self.0.replaying.look_for_more(&Replays(self)).await
    }

    /// Lets the dispatcher look at every hook with deliveries: at those that nobody announced, and for those that expired,
    /// also of inactive hooks. Call it every minute: it looks at all hooks.
    pub async fn look_at_hooks(&self) -> Result<(), HookError> {
        let mut after = None;
        loop {
            let examined = self.0.store.examine(after, EXAMINED).await?;
            examined.with_work.iter().for_each(|queue| self.0.dispatcher.notify(*queue));
            after = examined.last;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Whether everything that came in is queued, and replays have queued what they were to.
    pub fn is_queued(&self) -> bool {
        self.0.matching.is_at_rest() && self.0.replaying.is_at_rest()
    }

    /// Whether everything is queued, and all deliveries are made that are due.
    pub fn is_at_rest(&self) -> bool {
        self.is_queued() && self.0.dispatcher.is_at_rest()
    }

    /// Parses the printed id of a delivery. Returns `None` if no delivery of this store can have it.
    pub fn delivery_id(&self, text: &str) -> Option<DeliveryId> {
        DeliveryId::parse(text, self.0.matchers.id_mask()?)
    }

    /// Closes connections to endpoints that have been idle for too long. Call it every few seconds.
    pub fn close_idle_connections(&self) {
        self.0.egress.sweep();
    }

    /// The handler that a hook is bound to, if there is one in this process.
    pub(crate) fn handler(&self, settings: &Settings) -> Option<Handler> {
        let name = settings.worker_binding.as_ref()?;
        self.0.handlers.read().expect("nobody panics while writing").get(name).cloned()
    }

    /// The endpoint of a hook: its URL, or the one that the template makes of its worker and method.
    pub(crate) fn target(&self, settings: &Settings) -> Result<Target, HookError> {
        let invalid = |field, why: String| HookError::Invalid { field, why };
        let (field, url) = match (&settings.url, &settings.worker_id) {
            (Some(url), _) => ("url", url.clone()),
            (None, _) if self.0.options.target_template.is_empty() => {
                return Err(invalid("url", "required: this server has no target template".into()));
            }
            (None, Some(worker)) => {
                let method = settings.rpc_method.as_deref().unwrap_or_default();
                let template = self.0.options.target_template.replace("{workerId}", worker);
                ("workerId", template.replace("{rpcMethod}", method))
            }
            (None, None) => return Err(invalid("workerId", "required without a url".into())),
        };
        Target::parse(&url).map_err(|error| invalid(field, error.to_string()))
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// A new id: a ULID of this moment, above those of the same millisecond before it, so that ids tell what came first.
    pub(crate) fn fresh_id(&self) -> Ulid {
        let now = self.now();
        let (least, drawn, most) = (Ulid::at(now, 0), Ulid::at(now, self.random()), Ulid::at(now, u128::MAX));
        let mut last = self.0.last_id.lock().expect("nobody panics while holding it");
        *last = if (least..most).contains(&*last) { Ulid::new(last.get() + 1) } else { drawn };
        *last
    }

    /// An unpredictable number.
    pub(crate) fn random(&self) -> u128 {
        let mut bytes = [0; 16];
        (self.0.randomness)(&mut bytes);
        u128::from_le_bytes(bytes)
    }

    /// The deliveries of a queue may have changed.
    pub(crate) fn notify(&self, queues: impl IntoIterator<Item = LogId>) {
        queues.into_iter().for_each(|queue| self.0.dispatcher.notify(queue));
    }
}

/// Hooks that are examined under one lock.
const EXAMINED: usize = 1024;

/// Whether a hook is one of a project; `None` is for whoever may act in all.
pub(crate) fn is_within(hook: &Hook, project: Option<&ProjectId>) -> bool {
    project.is_none_or(|project| hook.project == *project)
}
