//! A project with hooks on a store in memory. Nothing is delivered, so queues can be looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tidings_egress::{Egress, EgressOptions, Guard, SystemResolver};
use tidings_engine::log::{Logs, Memory, Span};
use tidings_engine::{Bus, ManualClock, Metrics, Rng};
use tidings_hooks::history::{Delivery, Described};
use tidings_hooks::ingest::{Batch, Ingested, time_text};
use tidings_hooks::manage::Created;
use tidings_hooks::{Event, HookError, HookId, Hooks, Options, Parts, Settings, Table};
use tidings_model::{Position, ProjectId, Timestamp};
use tokio::task::JoinHandle;

/// 2026-01-15T10:30:00Z.
pub const NOW: Timestamp = Timestamp::from_millis(1_768_473_000_000);

pub struct Scene {
    pub store: Memory<Table>,
    pub clock: ManualClock,
    pub hooks: Hooks,
    duties: Vec<JoinHandle<()>>,
}

impl Scene {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let clock = ManualClock::at(NOW);
        let store = Memory::new(Bus::new(), Arc::new(clock.clone()));
        Self::on(store, clock, options)
    }

    /// As if the process had been started again on this store.
    pub fn on(store: Memory<Table>, clock: ManualClock, options: Options) -> Self {
        let metrics = Metrics::new();
        let shared = Arc::new(clock.clone());
        let egress = EgressOptions::default();
        let egress =
            Egress::new(egress, Guard::default(), Arc::new(SystemResolver), shared.clone(), &metrics);
        let drawn = AtomicU64::new(1);
        let hooks = Hooks::new(Parts {
            store: Arc::new(store.clone()),
            // Nobody reads a queue live here.
            bus: Bus::new(),
            clock: shared,
            rng: Arc::new(Rng::seeded(7)),
            randomness: Arc::new(move |bytes| {
                let number = drawn.fetch_add(1, Ordering::Relaxed).to_le_bytes();
                bytes.iter_mut().zip(number.into_iter().cycle()).for_each(|(byte, drawn)| *byte = drawn);
            }),
            egress,
            sources: Arc::new(|_, source| source != "topic"),
            options,
            metrics,
        });
        Self { store, clock, hooks, duties: Vec::new() }
    }

    /// Lets journals be matched and events be replayed.
    pub fn run_duties(&mut self) {
        self.duties.push(tokio::spawn(self.hooks.clone().match_journals()));
        self.duties.push(tokio::spawn(self.hooks.clone().replay_events()));
    }

    /// Lets deliveries be made. Only handlers in this process can be reached.
    pub fn dispatch(&mut self) {
        self.duties.push(tokio::spawn(self.hooks.clone().dispatch()));
    }

    /// Waits until a hook is as wanted. Nobody looks for more meanwhile.
    pub async fn comes_to(&self, id: HookId, wanted: impl Fn(&Described) -> bool) -> Described {
        let mut found = self.hooks.get(None, id).await.expect("a hook");
        for _ in 0..1_000_000 {
            if wanted(&found) {
                return found;
            }
            tokio::task::yield_now().await;
            found = self.hooks.get(None, id).await.expect("a hook");
        }
        panic!("it never came to this: {found:?}");
    }

    /// Waits until everything is queued. Its duties must run.
    pub async fn queued(&self) {
        self.hooks.look_for_more().await.expect("a store");
        for _ in 0..100_000 {
            if self.hooks.is_queued() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("something is never queued");
    }

    pub async fn hook(&self, pattern: &str) -> HookId {
        self.hook_with(pattern, |_| {}).await.hook.id
    }

    pub async fn hook_with(&self, pattern: &str, change: impl FnOnce(&mut Settings)) -> Created {
        let mut settings = Settings { url: Some("https://example.com/in".into()), ..Settings::new(pattern) };
        change(&mut settings);
        self.hooks.create(&shop(), settings).await.expect("a new hook")
    }

    pub async fn ingest(&self, body: Value) -> Result<Ingested, HookError> {
        let batch = Batch::parse(body.to_string().as_bytes(), self.clock_now()).expect("a valid batch");
        self.hooks.ingest(&shop(), batch).await
    }

    /// Ingests one event.
    pub async fn event(&self, event: Value) {
        self.ingest(json!({"events": [event]})).await.expect("accepted");
    }

    /// An event of a type.
    pub fn of_type(&self, event_type: &str) -> Value {
        json!({"type": event_type, "ts": time_text(self.clock_now())})
    }

    pub async fn deliveries(&self, id: HookId) -> Vec<Delivery> {
        let page = self.hooks.deliveries(Some(&shop()), id, None, Position::ZERO, 1000).await;
        page.expect("a hook").deliveries
    }

    /// The events in a hook's queue, with their content.
    pub async fn events(&self, id: HookId) -> Vec<Event> {
        let queue = self.store.look(|table, _| table.queue(id)).expect("a hook");
        let all = Span { records: usize::MAX, bytes: usize::MAX, ..Span::after(Position::ZERO) };
        let records = self.store.read(queue, all).await.expect("a queue").records;
        records.iter().map(|record| Event::from_record(&record.payload).expect("an event")).collect()
    }

    /// Types of the events in a hook's queue.
    pub async fn types(&self, id: HookId) -> Vec<String> {
        let event_type = |delivery: Delivery| delivery.event.expect("an event").event_type;
        self.deliveries(id).await.into_iter().map(event_type).collect()
    }

    pub fn clock_now(&self) -> Timestamp {
        tidings_engine::Clock::now(&self.clock)
    }

    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.duties.iter().for_each(JoinHandle::abort);
    }
}

pub fn shop() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}
