//! Wiring of topics: configuration keys and opening.

use std::ops::RangeInclusive;
use std::time::Duration;

use tidings_api::{Cluster, Normalize, TopicHubs, TopicOptions};
use tidings_engine::deliver::{Channels, Rings};
use tidings_model::{TopicPattern, limits};
use tidings_streams::Cleared;
use tidings_topics::{Histories, Keep, TopicRule, history};

use super::{Foundation, Wiring};
use crate::bus;
use crate::config::Config;
use crate::config::keys::{HOUR_MS, Key, MIB, Tables, key};
use crate::config::value::{Given, Wrong};
use crate::duties::Duty;

/// Most topics of a connection, and of a request.
const TOPICS_MAX: usize = 1_000_000;
/// Most subscriptions of a project.
const SUBSCRIPTIONS_MAX: usize = 1_000_000_000;
/// Longest time for which messages are kept, in seconds: ten years.
const HISTORY_SECONDS_MAX: u64 = 10 * 365 * 24 * 60 * 60;
/// Interval at which what is too old is removed.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);
/// Most frames per second.
const FRAMES_MAX: u64 = 1_000_000_000;

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[RULES],
    duties: |all| {
        let topics = all.topics.clone();
        let Some(histories) = topics.histories().cloned() else { return Vec::new() };
        let trim = move || {
            let (histories, rules) = (histories.clone(), topics.options().rules.clone());
            async move { history::maintain(histories, move |topic| rules.history(topic), TRIM_INTERVAL).await }
        };
        vec![Duty::lasting("topics-history", trim)]
    },
    // The connections of a project end when it is removed.
    clear: |all, project| {
        Box::pin(async move {
            let Some(histories) = all.topics.histories() else { return Ok(Cleared::Whole) };
            let cleared = histories.clear(project).await.map(|()| Cleared::Whole);
            cleared.map_err(|error| format!("could not remove the history of its topics: {error}"))
        })
    },
};

const KEYS: &[Key] = &[
    key("topics.max_topic_length", |config, given| {
        let length = given.count(1..=4096)?;
        change_rules(config, |rules| Ok(rules.with_max_length(length)))
    }),
    key("topics.topic_pattern", |config, given| {
        let pattern = given.text()?;
        change_rules(config, |rules| {
            rules.with_pattern(pattern).map_err(|error| format!("is not good: {error}"))
        })
    }),
    key("topics.max_topics_per_connection", |config, given| {
        let count = given.count(1..=TOPICS_MAX)?;
        change_rules(config, |rules| Ok(rules.with_max_per_connection(Some(count))))
    }),
    key("topics.max_subscriptions_per_project", |config, given| {
        let count = given.count(1..=SUBSCRIPTIONS_MAX)?;
        change_rules(config, |rules| Ok(rules.with_max_subscriptions(Some(count))))
    }),
    key("topics.max_topics_per_request", |config, given| {
        given.count(1..=TOPICS_MAX).map(|count| options(config).topics_per_request = count)
    }),
    key("topics.max_frame_bytes", |config, given| {
        given.count(1024..=64 * MIB).map(|bytes| options(config).frame_bytes = bytes)
    }),
    key("topics.max_payload_bytes", |config, given| {
        let bytes = given.count(1..=64 * MIB)?;
        change_rules(config, |rules| Ok(rules.with_max_payload_bytes(Some(bytes))))
    }),
    key("topics.normalize", |config, given| {
        let forms = [("none", Normalize::None), ("lowercase", Normalize::Lowercase)];
        given.choice(&forms).map(|form| options(config).normalize = form)
    }),
    key("topics.rate_capacity", |config, given| {
        frames(given).map(|frames| options(config).rate_capacity = frames)
    }),
    key("topics.rate_per_second", |config, given| {
        frames(given).map(|frames| options(config).rate_per_second = frames)
    }),
    key("topics.bad_frames_max", |config, given| {
        frames(given).map(|frames| options(config).bad_frames = frames)
    }),
    key("topics.slow_consumer_bytes", |config, given| {
        let bytes = given.number(1024..=1024 * 1024 * 1024)?;
        options(config).slow_consumer_bytes = bytes;
        Ok(())
    }),
    key("topics.slow_consumer_ms", |config, given| {
        millis(given, 1000..=HOUR_MS).map(|time| options(config).slow_consumer = time)
    }),
    key("topics.close_grace_ms", |config, given| {
        millis(given, 0..=60_000).map(|time| options(config).close_grace = time)
    }),
    key("topics.heartbeat_ms", |config, given| {
        millis(given, 1000..=HOUR_MS).map(|time| options(config).heartbeat = time)
    }),
    key("topics.heartbeat_timeout_ms", |config, given| {
        millis(given, 1000..=2 * HOUR_MS).map(|time| options(config).heartbeat_timeout = time)
    }),
    key("topics.presence_ttl_ms", |config, given| {
        millis(given, 1000..=HOUR_MS).map(|time| options(config).presence_ttl = time)
    }),
];

const RULES: Tables = Tables {
    name: "topics.rules",
    keys: &[
        key("topics.rules.pattern", |config, given| {
            let pattern =
                TopicPattern::parse(given.text()?).map_err(|error| format!("is not good: {error}"))?;
            change_rule(config, |rule| rule.pattern = pattern);
            Ok(())
        }),
        key("topics.rules.max_subscribers", |config, given| {
            let most = given.count(1..=SUBSCRIPTIONS_MAX)?;
            change_rule(config, |rule| rule.max_subscribers = Some(most));
            Ok(())
        }),
        key("topics.rules.history_messages", |config, given| {
            let messages = given.number(1..=limits::HISTORY_MESSAGES)?;
            change_rule(config, |rule| rule.history = Some(Keep { messages, ..kept(rule) }));
            Ok(())
        }),
        key("topics.rules.history_seconds", |config, given| {
            let age = Some(Duration::from_secs(given.number(1..=HISTORY_SECONDS_MAX)?));
            change_rule(config, |rule| rule.history = Some(Keep { age, ..kept(rule) }));
            Ok(())
        }),
    ],
    begin: |config| {
        let all = TopicPattern::parse("**").expect("it is a pattern");
        let rules = &mut options(config).rules;
        let more = rules.rules().iter().cloned().chain([TopicRule::new(all)]);
        *rules = rules.clone().with_rules(more);
    },
    check: |config| match config.capabilities.topics.rules.rules().len() {
        0..=limits::TOPIC_RULES => Ok(()),
        _ => Err(format!("is there more than {} times", limits::TOPIC_RULES)),
    },
};

/// What a rule keeps; with neither a number nor a time, all that may be kept.
fn kept(rule: &TopicRule) -> Keep {
    rule.history.unwrap_or(Keep { messages: limits::HISTORY_MESSAGES, age: None })
}

/// Changes the rule that was added last.
fn change_rule(config: &mut Config, change: impl FnOnce(&mut TopicRule)) {
    let rules = &mut options(config).rules;
    let mut list = rules.rules().to_vec();
    change(list.last_mut().expect("a table begins with a rule"));
    *rules = rules.clone().with_rules(list);
}

/// Opens the topics. Their messages go through rings that share the pumps of the channels.
pub fn open(channels: &Channels, foundation: &Foundation, options: TopicOptions) -> TopicHubs {
    let Foundation { clock, metrics, messages, store, rng, .. } = foundation;
    let cluster = messages.clone().map(|bus| Cluster { bus, node: bus::node_number() });
    // Always, so that what is left of a rule that is gone is trimmed.
    let histories = Histories::new(store.clone(), clock.clone(), rng.clone());
    TopicHubs::new(options, Rings::beside(channels), cluster, Some(histories), clock.clone(), metrics)
}

fn options(config: &mut Config) -> &mut TopicOptions {
    &mut config.capabilities.topics
}

fn change_rules(
    config: &mut Config,
    change: impl FnOnce(tidings_topics::TopicRules) -> Result<tidings_topics::TopicRules, Wrong>,
) -> Result<(), Wrong> {
    let rules = &mut options(config).rules;
    *rules = change(rules.clone())?;
    Ok(())
}

fn frames(given: &Given<'_>) -> Result<u32, Wrong> {
    given.number(1..=FRAMES_MAX).map(|frames| u32::try_from(frames).unwrap_or(u32::MAX))
}

fn millis(given: &Given<'_>, range: RangeInclusive<u64>) -> Result<Duration, Wrong> {
    given.number(range).map(Duration::from_millis)
}
