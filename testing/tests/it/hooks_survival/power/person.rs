//! Somebody who has hooks and publishes, and remembers what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::json;
use tidings_engine::Clock;
use tidings_engine::log::StoreError;
use tidings_hooks::history::LetterFilter;
use tidings_hooks::ingest::{Batch, time_text};
use tidings_hooks::manage::Missed;
use tidings_hooks::replay::Point;
use tidings_hooks::store::Found;
use tidings_hooks::{HookError, HookId, Ordering, Settings};
use tidings_model::{Pattern, Position};

use super::calls::HANDLERS;
use super::world::{World, shop};
use super::{PEOPLE, Tally};

const TYPES: [&str; 2] = ["a.x", "b.x"];
const PATTERNS: [&str; 3] = ["a.*", "b.*", "**"];
const HOOKS_MAX: usize = 4;

/// A hook of this person. Nobody else changes it.
#[derive(Clone, Debug)]
struct Own {
    id: HookId,
    pattern: &'static str,
    concurrency: u32,
    is_active: bool,
    /// Own events that it must have.
    expected: BTreeSet<String>,
    /// Own events that came while it was inactive.
    missed: BTreeSet<String>,
    /// Replays and retries of all dead letters that were asked for.
    replays: u32,
    retries: u32,
}

/// An event that was sent, with its type.
type Sent = (String, &'static str);

/// What was not answered when the power was cut.
#[derive(Clone, Debug, Default)]
enum Unanswered {
    #[default]
    Nothing,
    Create(&'static str, u32),
    Change(u32),
    Remove,
    Pause,
    Resume(Missed),
    Ingest(Vec<Sent>, Option<Batch>),
}

pub struct Person {
    number: u64,
    rng: fastrand::Rng,
    hooks: BTreeMap<String, Own>,
    made: u64,
    sent: u64,
    /// Events that were acknowledged.
    events: Vec<Sent>,
    /// The request that was not answered, and the hook that it was about.
    unanswered: (String, Unanswered),
    pub seen: Tally,
}

fn is_cut(error: &HookError) -> bool {
    matches!(error, HookError::Store(StoreError::Unavailable(_)))
}

fn matches(pattern: &str, event_type: &str) -> bool {
    Pattern::parse(pattern).expect("a pattern").matches(event_type)
}

fn name_of(found: &Found) -> &str {
    found.hook.settings.rpc_method.as_deref().expect("each has a name")
}

impl Own {
    /// An event was accepted.
    fn accepted(&mut self, (key, event_type): &Sent) {
        if matches(self.pattern, event_type) {
            let list = if self.is_active { &mut self.expected } else { &mut self.missed };
            list.insert(key.clone());
        }
    }

    /// Copies of an event in its queue, at most. What was sent again may lie in the log of events again, for hooks that had
    /// not heard it, and be replayed from both places.
    fn most(&self, in_log: usize) -> usize {
        (1 + self.replays as usize * in_log) << self.retries
    }
}

impl Person {
    pub fn new(seed: u64, number: u64) -> Self {
        Self {
            number,
            rng: fastrand::Rng::with_seed(seed * PEOPLE + number),
            hooks: BTreeMap::new(),
            made: 0,
            sent: 0,
            events: Vec::new(),
            unanswered: Default::default(),
            seen: Tally::default(),
        }
    }

    /// Works until the power is gone.
    pub async fn work(mut self, world: World) -> Self {
        for _ in 0..10_000 {
            let done = match self.rng.u8(..100) {
                0..50 => self.ingest(&world).await,
                50..58 => self.create(&world).await,
                58..62 => self.change(&world).await,
                62..64 => self.remove(&world).await,
                64..72 => self.pause_or_resume(&world).await,
                72..75 => self.replay(&world).await,
                75..79 => self.retry(&world).await,
                79..96 => {
                    world.clock.advance(Duration::from_millis(500));
                    world.look().await
                }
                _ => {
                    let (store, flush) = (world.store.clone(), self.rng.bool());
                    // Fails when the power is gone; the next step will too.
                    let work = move || if flush { store.flush() } else { store.merge_now() };
                    let _ = tokio::task::spawn_blocking(work).await;
                    Ok(())
                }
            };
            match done {
                Ok(()) => self.unanswered = Default::default(),
                Err(error) if is_cut(&error) => break,
                Err(HookError::Contended | HookError::TooManyReplays { .. }) => {}
                Err(error) => panic!("{:?}: {error}", self.unanswered),
            }
        }
        self
    }

    fn any(&mut self) -> Option<(String, HookId)> {
        let count = self.hooks.len();
        let any = (count > 0).then(|| self.rng.usize(..count))?;
        self.hooks.iter().nth(any).map(|(name, own)| (name.clone(), own.id))
    }

    fn own(&mut self, name: &str) -> &mut Own {
        self.hooks.get_mut(name).expect("one of them")
    }

    async fn ingest(&mut self, world: &World) -> Result<(), HookError> {
        let (mut events, mut sent) = (Vec::new(), Vec::new());
        let with_ids = self.rng.bool();
        for _ in 0..self.rng.usize(1..5) {
            self.sent += 1;
            let key = format!("{}.{}", self.number, self.sent);
            let event_type = TYPES[self.rng.usize(..TYPES.len())];
            let padding = "x".repeat(self.rng.usize(..400));
            let ts = time_text(world.clock.now());
            let mut event = json!({ "type": event_type, "ts": ts, "key": key, "padding": padding });
            if with_ids {
                event["id"] = key.as_str().into();
            }
            events.push(event);
            sent.push((key, event_type));
        }
        let mut body = json!({ "events": events });
        let has_id = self.rng.bool();
        if has_id {
            body["batchId"] = sent[0].0.as_str().into();
        }
        let batch = Batch::parse(body.to_string().as_bytes(), world.clock.now()).expect("a batch");
        let again = (with_ids || has_id).then(|| batch.clone());
        self.unanswered.1 = Unanswered::Ingest(sent.clone(), again.clone());
        let ingested = world.hooks.ingest(&shop(), batch).await?;
        assert!(!ingested.deduplicated && ingested.received == sent.len());
        self.accepted(sent);
        if let Some(again) = again.filter(|_| self.rng.u8(..4) == 0) {
            self.unanswered = Default::default();
            let is_known = again.id.is_some();
            let ingested = world.hooks.ingest(&shop(), again).await?;
            assert_eq!(ingested.deduplicated, is_known);
        }
        Ok(())
    }

    fn accepted(&mut self, sent: Vec<Sent>) {
        self.seen.events += sent.len() as u64;
        for event in &sent {
            self.hooks.values_mut().for_each(|own| own.accepted(event));
        }
        self.events.extend(sent);
    }

    async fn create(&mut self, world: &World) -> Result<(), HookError> {
        if self.hooks.len() >= HOOKS_MAX {
            return Ok(());
        }
        self.made += 1;
        let name = format!("p{}h{}", self.number, self.made);
        let (handler, _) = HANDLERS[self.rng.usize(..HANDLERS.len())];
        // Notices about what is given up go to `**`; there they must not be given up.
        let patterns = if handler == "bad" { 2 } else { 3 };
        let (pattern, concurrency) = (PATTERNS[self.rng.usize(..patterns)], self.rng.u32(1..5));
        let settings = Settings {
            url: Some("https://example.com/in".into()),
            worker_binding: Some(handler.into()),
            rpc_method: Some(name.clone()),
            max_retries: if handler == "bad" { 2 } else { 5 },
            retry_schedule: vec![1000],
            // Of those that fail always and keep an order, one would be given up at a time.
            ordering: if handler != "bad" && self.rng.bool() {
                Ordering::Subscription
            } else {
                Ordering::None
            },
            concurrency,
            ..Settings::new(pattern)
        };
        self.unanswered = (name.clone(), Unanswered::Create(pattern, concurrency));
        let created = world.hooks.create(&shop(), settings).await?;
        self.add(name, created.hook.id, pattern, concurrency);
        Ok(())
    }

    fn add(&mut self, name: String, id: HookId, pattern: &'static str, concurrency: u32) {
        let (expected, missed) = <_>::default();
        let own = Own { id, pattern, concurrency, is_active: true, expected, missed, replays: 0, retries: 0 };
        self.hooks.insert(name, own);
    }

    async fn change(&mut self, world: &World) -> Result<(), HookError> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let concurrency = self.rng.u32(1..50);
        self.unanswered = (name.clone(), Unanswered::Change(concurrency));
        let change = |settings: &mut Settings| {
            settings.concurrency = concurrency;
            Ok(())
        };
        world.hooks.update(Some(&shop()), id, change).await?;
        self.own(&name).concurrency = concurrency;
        self.seen.changed += 1;
        Ok(())
    }

    async fn remove(&mut self, world: &World) -> Result<(), HookError> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        self.unanswered = (name.clone(), Unanswered::Remove);
        world.hooks.remove(Some(&shop()), id).await?;
        self.hooks.remove(&name);
        self.seen.removed += 1;
        Ok(())
    }

    async fn pause_or_resume(&mut self, world: &World) -> Result<(), HookError> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        if self.own(&name).is_active {
            self.unanswered = (name.clone(), Unanswered::Pause);
            world.hooks.deactivate(Some(&shop()), id).await?;
            self.own(&name).is_active = false;
            self.seen.paused += 1;
            return Ok(());
        }
        let missed = if self.rng.bool() { Missed::Replayed } else { Missed::Skipped };
        self.unanswered = (name.clone(), Unanswered::Resume(missed));
        let own = self.own(&name);
        own.replays += u32::from(missed == Missed::Replayed);
        let resumed = world.hooks.reactivate(Some(&shop()), id, missed).await;
        if matches!(resumed, Err(HookError::TooManyReplays { .. })) {
            // It is as inactive as before.
            return Ok(());
        }
        resumed?;
        self.resumed(&name, missed == Missed::Replayed);
        Ok(())
    }

    fn resumed(&mut self, name: &str, is_replayed: bool) {
        let own = self.own(name);
        own.is_active = true;
        let missed = std::mem::take(&mut own.missed);
        if is_replayed {
            own.expected.extend(missed);
        }
    }

    async fn replay(&mut self, world: &World) -> Result<(), HookError> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        self.unanswered = (name.clone(), Unanswered::Nothing);
        let own = self.own(&name);
        // Each doubles what the next one has to look at.
        if own.replays > 3 {
            return Ok(());
        }
        own.replays += 1;
        let all = Point::Position(Position::ZERO);
        let count = world.hooks.replay(Some(&shop()), id, all, None).await?;
        let events = self.events.clone();
        let own = self.own(&name);
        let pattern = own.pattern;
        let heard = events.into_iter().filter(|(_, event_type)| matches(pattern, event_type));
        let heard: BTreeSet<String> = heard.map(|(key, _)| key).collect();
        assert!(count >= heard.len() as u64, "{name}: {count} are replayed of {}", heard.len());
        own.expected.extend(heard);
        self.seen.replayed += 1;
        Ok(())
    }

    async fn retry(&mut self, world: &World) -> Result<(), HookError> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        self.unanswered = (name.clone(), Unanswered::Nothing);
        let own = self.own(&name);
        if own.retries > 3 {
            return Ok(());
        }
        own.retries += 1;
        let retried = world.hooks.retry_dead_letters(Some(&shop()), id, &LetterFilter::default()).await?;
        self.seen.retried += retried;
        Ok(())
    }

    /// Finds what was acknowledged, and out what became of the request that was not answered. Nothing runs.
    pub async fn find(&mut self, world: &World, what: &str) {
        let stored: BTreeMap<String, Found> =
            world.found().into_iter().map(|found| (name_of(&found).to_owned(), found)).collect();
        let keys = world.keys().await;
        let (name, unanswered) = std::mem::take(&mut self.unanswered);
        let found = stored.get(&name);
        match unanswered {
            Unanswered::Nothing => {}
            Unanswered::Create(pattern, concurrency) => {
                if let Some(found) = found {
                    self.add(name.clone(), found.hook.id, pattern, concurrency);
                }
            }
            Unanswered::Change(concurrency) => {
                if found.expect("it is not lost").hook.settings.concurrency == concurrency {
                    self.own(&name).concurrency = concurrency;
                }
            }
            Unanswered::Remove => {
                if found.is_none() {
                    self.hooks.remove(&name);
                }
            }
            Unanswered::Pause => {
                self.own(&name).is_active = found.expect("it is not lost").hook.is_active();
            }
            Unanswered::Resume(missed) => {
                // If it is active the replay has begun.
                if found.expect("it is not lost").hook.is_active() {
                    self.resumed(&name, missed == Missed::Replayed);
                }
            }
            Unanswered::Ingest(sent, again) => {
                let there = sent.iter().filter(|(key, _)| keys.contains(key)).count();
                assert!(there == 0 || there == sent.len(), "{what}: {there} of {sent:?} are there");
                let mut is_stored = there > 0;
                if let Some(again) = again {
                    let expected = again.id.is_some() && is_stored;
                    let ingested = world.hooks.ingest(&shop(), again).await.expect("accepted");
                    assert_eq!(ingested.deduplicated, expected, "{what}: what is sent again");
                    is_stored = true;
                }
                if is_stored {
                    self.accepted(sent);
                }
            }
        }
        for (name, own) in &self.hooks {
            let found = stored.get(name).unwrap_or_else(|| panic!("{what}: {name} is lost"));
            let hook = &found.hook;
            assert_eq!(
                (hook.id, hook.is_active(), hook.settings.concurrency, &*hook.settings.pattern),
                (own.id, own.is_active, own.concurrency, own.pattern),
                "{what}: {name}"
            );
        }
        let mine = format!("p{}h", self.number);
        let other = stored.keys().find(|name| name.starts_with(&mine) && !self.hooks.contains_key(*name));
        assert_eq!(other, None, "{what}: it was removed");
        let keys = world.keys().await;
        for (key, _) in &self.events {
            assert!(keys.contains(key), "{what}: {key} was accepted and is lost");
        }
    }

    /// Compares the queues of hooks with what was acknowledged. All that was left to do is done.
    pub async fn compare(&mut self, world: &World, what: &str) {
        let stored = world.found();
        let mut in_log: BTreeMap<String, usize> = BTreeMap::new();
        for event in world.events().await {
            *in_log.entry(event.value()["key"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        for (name, own) in &self.hooks {
            let found = stored.iter().find(|found| name_of(found) == name).expect("it is there");
            let mut copies: BTreeMap<String, usize> = BTreeMap::new();
            for (_, event) in world.events_in(found.queue).await {
                assert!(matches(own.pattern, &event.event_type), "{what}: {name} has {event:?}");
                assert_ne!(event.about, Some(found.queue), "{what}: {name} hears of itself");
                if let Some(key) = event.value()["key"].as_str() {
                    *copies.entry(key.to_owned()).or_default() += 1;
                }
            }
            for key in &own.expected {
                assert!(copies.contains_key(key), "{what}: {name} never had {key}: {own:?}");
            }
            for (key, count) in &copies {
                assert!(*count <= own.most(in_log[key]), "{what}: {name} had {key} {count} times: {own:?}");
            }
            if own.replays == 0 {
                let mine = format!("{}.", self.number);
                let more = copies.keys().find(|key| key.starts_with(&mine) && !own.expected.contains(*key));
                assert_eq!(more, None, "{what}: {name} heard it before it was made, or inactive");
            }
        }
    }
}
