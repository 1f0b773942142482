//! Wiring of hooks: configuration keys, duties and opening.

use std::sync::Arc;
use std::time::Duration;

use tidings_auth::Randomness;
use tidings_egress::{AllowList, Egress, EgressOptions, Guard, SystemResolver};
use tidings_hooks::{Hooks, Options, Parts, maintenance};
use tidings_model::limits;
use tidings_streams::Cleared;

use super::{Foundation, Wiring};
use crate::config::keys::{HOUR_MS, Key, key};
use crate::duties::Duty;
use crate::projects::SystemRandomness;

/// Interval at which idle connections to endpoints are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEARS: u64 = 10 * 365;

/// Options of hooks and of the requests they make.
#[derive(Clone, Debug, Default)]
pub struct HookOptions {
    /// Options of hooks.
    pub hooks: Options,
    /// Limits of connections to endpoints.
    pub egress: EgressOptions,
    /// Targets that are allowed although their addresses are not public. `None` if the configuration does not say.
    pub allow_targets: Option<AllowList>,
}

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[],
    duties: |all| {
        let hooks = &all.hooks;
        let (dispatching, matching, replaying) = (hooks.clone(), hooks.clone(), hooks.clone());
        let (seeking, looking, retaining) = (hooks.clone(), hooks.clone(), hooks.clone());
        let (compacting, sweeping) = (hooks.clone(), hooks.clone());
        vec![
            Duty::lasting("hook-dispatcher", move || dispatching.clone().dispatch()),
            Duty::lasting("hook-matcher", move || matching.clone().match_journals()),
            Duty::lasting("hook-replay", move || replaying.clone().replay_events()),
            Duty::every("hook-backlog", maintenance::BACKLOG_INTERVAL, move || {
                look_for_more(seeking.clone())
            }),
            Duty::every("hook-expiry", maintenance::HOOKS_INTERVAL, move || look_at_hooks(looking.clone())),
            Duty::every("hook-retention", maintenance::RETENTION_INTERVAL, move || retain(retaining.clone())),
            Duty::every("hook-patterns", maintenance::COMPACTION_INTERVAL, move || {
                let hooks = compacting.clone();
                async move { hooks.compact_matchers().await }
            })
            .on_each_node(),
            Duty::every("hook-connections", SWEEP_INTERVAL, move || {
                let hooks = sweeping.clone();
                async move { hooks.close_idle_connections() }
            }),
        ]
    },
    clear: |all, project| {
        Box::pin(async move {
            let cleared = all.hooks.clear(project).await;
            let cleared = cleared.map(|whole| if whole { Cleared::Whole } else { Cleared::InPart });
            cleared.map_err(|error| format!("could not remove its hooks: {error}"))
        })
    },
};

const KEYS: &[Key] = &[
    key("hooks.target_template", |config, given| {
        given.text().map(|template| config.capabilities.hooks.hooks.target_template = template.to_owned())
    }),
    key("hooks.allow_targets", |config, given| {
        let allow = AllowList::parse(&given.texts()?).map_err(|error| format!("is not good: {error}"))?;
        config.capabilities.hooks.allow_targets = Some(allow);
        Ok(())
    }),
    key("hooks.event_retention_days", |config, given| {
        let days = given.number(1..=YEARS)?;
        config.capabilities.hooks.hooks.event_retention = DAY * u32::try_from(days).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("hooks.record_retention_days", |config, given| {
        let days = given.number(1..=YEARS)?;
        config.capabilities.hooks.hooks.record_retention = DAY * u32::try_from(days).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("hooks.max_per_project", |config, given| {
        given.count(1..=100_000_000).map(|count| config.capabilities.hooks.hooks.max_per_project = count)
    }),
    key("hooks.max_queue", |config, given| {
        given.number(1..=1_000_000_000).map(|count| config.capabilities.hooks.hooks.max_queue = count)
    }),
    key("hooks.max_attempts", |config, given| {
        given.count(1..=65_536).map(|count| config.capabilities.hooks.hooks.max_attempts = count)
    }),
    key("hooks.max_attempts_per_destination", |config, given| {
        given
            .count(1..=limits::DESTINATION_ATTEMPTS)
            .map(|count| config.capabilities.hooks.hooks.max_attempts_per_destination = count)
    }),
    key("hooks.breaker_failures", |config, given| {
        let failures = given.number(1..=1_000_000)?;
        config.capabilities.hooks.hooks.breaker_failures = u32::try_from(failures).unwrap_or(u32::MAX);
        Ok(())
    }),
    key("hooks.breaker_open_ms", |config, given| {
        let open = given.number(1..=24 * HOUR_MS)?;
        config.capabilities.hooks.hooks.breaker_open = Duration::from_millis(open);
        Ok(())
    }),
    key("hooks.requests_per_minute", |config, given| {
        given
            .number(0..=1_000_000_000)
            .map(|count| config.capabilities.hooks.hooks.requests_per_minute = count)
    }),
    key("hooks.events_per_minute", |config, given| {
        given
            .number(0..=1_000_000_000_000)
            .map(|count| config.capabilities.hooks.hooks.events_per_minute = count)
    }),
    key("hooks.events_per_day", |config, given| {
        given
            .number(0..=1_000_000_000_000_000)
            .map(|count| config.capabilities.hooks.hooks.events_per_day = count)
    }),
    key("hooks.notices", |config, given| {
        given.truth().map(|notices| config.capabilities.hooks.hooks.notices = notices)
    }),
];

/// Opens what sends requests to endpoints.
pub fn egress(foundation: &Foundation, options: &HookOptions) -> Egress {
    let guard = Guard::new(options.allow_targets.clone().unwrap_or_default());
    let (clock, resolver) = (foundation.clock.clone(), Arc::new(SystemResolver));
    Egress::new(options.egress.clone(), guard, resolver, clock, &foundation.metrics)
}

/// Opens the hooks.
pub fn open(foundation: &Foundation, options: HookOptions, egress: Egress) -> Hooks {
    let Foundation { store, bus, clock, rng, metrics, projects, .. } = foundation.clone();
    let HookOptions { mut hooks, allow_targets, .. } = options;
    hooks.allow_targets = allow_targets.unwrap_or_default();
    Hooks::new(Parts {
        store,
        bus,
        clock,
        rng,
        randomness: Arc::new(|bytes| SystemRandomness.fill(bytes)),
        egress,
        sources: Arc::new(move |project, source| projects.hooks_hear(project, source)),
        options: hooks,
        metrics,
    })
}

async fn look_for_more(hooks: Hooks) {
    if let Err(error) = hooks.look_for_more().await {
        tracing::warn!(%error, "could not see what is left to match for hooks; trying again later");
    }
}

async fn look_at_hooks(hooks: Hooks) {
    if let Err(error) = hooks.look_at_hooks().await {
        tracing::warn!(%error, "could not see what hooks have left to deliver; trying again later");
    }
}

async fn retain(hooks: Hooks) {
    match hooks.retain().await {
        Ok(cleaned) if cleaned.deliveries + cleaned.dead_letters > 0 => {
            let maintenance::Cleaned { deliveries, dead_letters, .. } = cleaned;
            tracing::debug!(deliveries, dead_letters, "removed old records of hooks");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "could not remove old records of hooks; trying again later"),
    }
}
