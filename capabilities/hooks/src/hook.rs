//! Hooks: which events a subscription wants, where they go and how they are delivered.

use std::fmt;
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tidings_model::{LogId, Position, ProjectId, Timestamp, Ulid, limits};

use crate::delivery::{DeliveryId, IdMask};
use crate::filter::{self, Filter};
use crate::pattern;
use crate::signature::Secrets;

/// Id of a hook.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HookId(pub Ulid);

impl HookId {
    /// Parses a printed id. Returns `None` if no hook can have it.
    pub fn parse(text: &str) -> Option<Self> {
        Ulid::parse(text).ok().map(Self)
    }
}

impl fmt::Display for HookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for HookId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookId({self})")
    }
}

/// A hook as it is stored, apart from the state of its deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Id of the hook.
    pub id: HookId,
    /// The project whose events it hears.
    pub project: ProjectId,
    /// What the owner chose.
    pub settings: Settings,
    /// Keys that sign its deliveries.
    pub secrets: Secrets,
    /// Whether it receives events.
    pub state: HookState,
    /// Number that all hooks of the store have in common, for the ids of deliveries.
    pub id_mask: IdMask,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// Whether a hook receives events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookState {
    /// Events that match are delivered.
    Active,
    /// Nothing is delivered, and events that arrive are not queued.
    Inactive {
        /// Tail of the project's events when the hook was deactivated. Reactivation can replay what came after.
        since: Position,
    },
}

impl Hook {
    /// Whether the hook receives events.
    pub fn is_active(&self) -> bool {
        self.state == HookState::Active
    }

    /// Id of a delivery in the queue of the hook.
    pub fn delivery(&self, queue: LogId, position: Position) -> DeliveryId {
        DeliveryId { queue, position, mask: self.id_mask }
    }

    /// The hook once it was deactivated. `since` is the tail of the project's events.
    pub fn deactivated(&self, since: Position, at: Timestamp) -> Self {
        Self { state: HookState::Inactive { since }, updated_at: self.updated_after(at), ..self.clone() }
    }

    /// Time of a change made now. It is later than that of the last change, so that it tells the two apart.
    pub fn updated_after(&self, now: Timestamp) -> Timestamp {
        now.max(self.updated_at + Duration::from_millis(1))
    }
}

/// What the owner of a hook chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Pattern of the event types that are delivered.
    pub pattern: String,
    /// Name of the worker that is called by way of the target template, and under which hooks are listed.
    pub worker_id: Option<String>,
    /// Name of a handler in this process that is called instead of an endpoint, if one is bound.
    pub worker_binding: Option<String>,
    /// Method of the worker that is called.
    pub rpc_method: Option<String>,
    /// Endpoint that is called, instead of one made from the template.
    pub url: Option<String>,
    /// Attempts of a delivery in all. Zero means one.
    pub max_retries: u32,
    /// Time that an attempt may take, in milliseconds.
    pub timeout_ms: u32,
    /// Form of a delivery.
    pub format: Format,
    /// Delays after the first, second, … failed attempt, in milliseconds. Empty for the default schedule.
    pub retry_schedule: Vec<u64>,
    /// Which deliveries wait for earlier ones.
    pub ordering: Ordering,
    /// JSON pointer into the event to the key of [`Ordering::Key`].
    pub ordering_key: Option<String>,
    /// Deliveries per second, at most.
    pub rate_limit: Option<u32>,
    /// Attempts at a time, at most.
    pub concurrency: u32,
    /// Conditions on the event beside its type, as JSON.
    pub filter: Option<String>,
    /// Additional request headers.
    pub headers: Vec<(String, String)>,
}

/// Default number of attempts.
pub const MAX_RETRIES: u32 = 5;
/// Default time of an attempt, in milliseconds.
pub const TIMEOUT_MS: u32 = 30_000;
/// Default number of attempts at a time.
pub const CONCURRENCY: u32 = 32;

impl Settings {
    /// Default settings for a pattern, with no target yet.
    pub fn new(pattern: &str) -> Self {
        Self {
            pattern: pattern.to_owned(),
            worker_id: None,
            worker_binding: None,
            rpc_method: None,
            url: None,
            max_retries: MAX_RETRIES,
            timeout_ms: TIMEOUT_MS,
            format: Format::Envelope,
            retry_schedule: Vec::new(),
            ordering: Ordering::None,
            ordering_key: None,
            rate_limit: None,
            concurrency: CONCURRENCY,
            filter: None,
            headers: Vec::new(),
        }
    }

    /// The parsed filter, if there is one.
    pub fn parsed_filter(&self) -> Option<Filter> {
        let filter = self.filter.as_deref()?;
        let value: Value = serde_json::from_str(filter).ok()?;
        Filter::parse(&value).ok()
    }

    /// Digest of what makes a hook unique in its project: target, pattern and method.
    pub fn identity(&self, project: &ProjectId) -> Identity {
        let target = self.url.as_deref().map(|url| ("url", url));
        let (kind, target) = target.unwrap_or(("worker", self.worker_id.as_deref().unwrap_or_default()));
        let method = self.rpc_method.as_deref().unwrap_or_default();
        let mut hash = Sha256::new();
        for part in [project.as_str(), kind, target, &self.pattern, method] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        Identity(digest[..16].try_into().expect("16 of 32 bytes"))
    }

    /// Checks the settings, apart from the target and the headers, which depend on the configuration.
    pub fn check(&self) -> Result<(), InvalidSettings> {
        let invalid = |field, why: String| Err(InvalidSettings { field, why });
        if let Err(error) = pattern::parse(&self.pattern) {
            return invalid("pattern", error.to_string());
        }
        if let Some(worker) = &self.worker_id {
            check_worker_id(worker)?;
        }
        if let Some(method) = &self.rpc_method {
            check_method(method)?;
        }
        if let Some(binding) = &self.worker_binding
            && (binding.is_empty() || binding.len() > limits::HOOK_NAME_BYTES)
        {
            return invalid("workerBinding", format!("expected 1 to {} characters", limits::HOOK_NAME_BYTES));
        }
        let ranges = [
            ("maxRetries", u64::from(self.max_retries), 0, u64::from(limits::HOOK_RETRIES_MAX)),
            ("timeoutMs", u64::from(self.timeout_ms), 1, u64::from(limits::HOOK_TIMEOUT_MS_MAX)),
            ("concurrency", u64::from(self.concurrency), 1, limits::DESTINATION_ATTEMPTS as u64),
            ("rateLimit", u64::from(self.rate_limit.unwrap_or(1)), 1, u64::from(limits::HOOK_RATE_MAX)),
        ];
        for (field, value, least, most) in ranges {
            if !(least..=most).contains(&value) {
                return invalid(field, format!("expected {least} to {most}, got {value}"));
            }
        }
        if self.retry_schedule.len() > limits::HOOK_SCHEDULE {
            return invalid("retrySchedule", format!("at most {} delays", limits::HOOK_SCHEDULE));
        }
        if let Some(long) = self.retry_schedule.iter().find(|&&delay| delay > limits::HOOK_DELAY_MS_MAX) {
            return invalid("retrySchedule", format!("at most {} ms, got {long}", limits::HOOK_DELAY_MS_MAX));
        }
        match (&self.ordering, &self.ordering_key) {
            (Ordering::Key, None) => return invalid("orderingKey", "required with ordering `key`".into()),
            (_, Some(key)) if !filter::is_pointer(key) => {
                return invalid("orderingKey", format!("`{key}` is not a JSON pointer"));
            }
            _ => {}
        }
        if let Some(text) = &self.filter {
            let value = serde_json::from_str(text).unwrap_or(Value::Null);
            if let Err(error) = Filter::parse(&value) {
                return invalid("filter", error.to_string());
            }
        }
        Ok(())
    }
}

/// Checks the name of a worker: a DNS label, because it becomes part of a host name.
fn check_worker_id(text: &str) -> Result<(), InvalidSettings> {
    let invalid = |why: &str| Err(InvalidSettings { field: "workerId", why: why.into() });
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if text.is_empty() || text.len() > 63 {
        return invalid("expected 1 to 63 characters");
    }
    if !text.bytes().all(allowed) {
        return invalid("expected lower-case letters, digits and `-`");
    }
    if text.starts_with('-') || text.ends_with('-') {
        return invalid("must not begin or end with `-`");
    }
    if text.contains("--") {
        return invalid("must not contain `--`");
    }
    Ok(())
}

/// Checks the name of a method: it becomes part of a path.
fn check_method(text: &str) -> Result<(), InvalidSettings> {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    if text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.len() <= limits::HOOK_NAME_BYTES
        && text.bytes().all(letters)
    {
        return Ok(());
    }
    let most = limits::HOOK_NAME_BYTES;
    let why = format!("expected a letter, then letters, digits and `_`, at most {most} characters");
    Err(InvalidSettings { field: "rpcMethod", why })
}

/// Why settings are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidSettings {
    /// Name of the field on the wire.
    pub field: &'static str,
    /// What is wrong. May be shown to the client.
    pub why: String,
}

/// Digest of what makes a hook unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity([u8; 16]);

/// Form of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `{id, type, ts, payload}`.
    Envelope,
    /// The event alone.
    Raw,
    /// CloudEvents 1.0, structured mode.
    CloudEventsStructured,
    /// CloudEvents 1.0, binary mode.
    CloudEventsBinary,
}

impl Format {
    /// The format of this name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Envelope, Self::Raw, Self::CloudEventsStructured, Self::CloudEventsBinary]
            .into_iter()
            .find(|format| format.as_str() == text)
    }

    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Raw => "raw",
            Self::CloudEventsStructured => "cloudevents-structured",
            Self::CloudEventsBinary => "cloudevents-binary",
        }
    }
}

/// Which deliveries of a hook wait for earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordering {
    /// None.
    None,
    /// All: one delivery at a time, in the order of the queue, each until it is delivered or given up.
    Subscription,
    /// Those with the same key.
    Key,
}

impl Ordering {
    /// The ordering of this name on the wire.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Subscription, Self::Key].into_iter().find(|ordering| ordering.as_str() == text)
    }

    /// Name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Subscription => "subscription",
            Self::Key => "key",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::new("orders.*");
        change(&mut settings);
        settings
    }

    #[test]
    fn each_rule_of_the_settings_is_checked() {
        assert_eq!(with(|_| {}).check(), Ok(()));
        let field = |change: &dyn Fn(&mut Settings)| {
            with(|settings| change(settings)).check().expect_err("invalid").field
        };
        for worker in ["", "A", "a--b", "-a", "a-", "a.b", &"x".repeat(64)] {
            assert_eq!(field(&|s| s.worker_id = Some(worker.into())), "workerId", "{worker}");
        }
        for method in ["", "1a", "a-b", "a.b", "ä", &"x".repeat(129)] {
            assert_eq!(field(&|s| s.rpc_method = Some(method.into())), "rpcMethod", "{method}");
        }
        assert_eq!(field(&|s| s.worker_binding = Some(String::new())), "workerBinding");
        assert_eq!(field(&|s| s.pattern = "a..b".into()), "pattern");
        assert_eq!(field(&|s| s.max_retries = 101), "maxRetries");
        assert_eq!(field(&|s| s.timeout_ms = 0), "timeoutMs");
        assert_eq!(field(&|s| s.timeout_ms = 300_001), "timeoutMs");
        assert_eq!(field(&|s| s.concurrency = 0), "concurrency");
        assert_eq!(field(&|s| s.concurrency = 257), "concurrency");
        assert_eq!(field(&|s| s.rate_limit = Some(0)), "rateLimit");
        assert_eq!(field(&|s| s.retry_schedule = vec![1; 101]), "retrySchedule");
        assert_eq!(field(&|s| s.retry_schedule = vec![u64::MAX]), "retrySchedule");
        assert_eq!(field(&|s| s.ordering = Ordering::Key), "orderingKey");
        assert_eq!(field(&|s| s.ordering_key = Some("a".into())), "orderingKey");
        assert_eq!(field(&|s| s.filter = Some("[]".into())), "filter");
        for good in ["a", "my-worker", "a1-2b", &"x".repeat(63)] {
            assert_eq!(with(|s| s.worker_id = Some(good.into())).check(), Ok(()), "{good}");
        }
    }

    #[test]
    fn a_hook_is_unique_by_target_pattern_and_method() {
        let project = ProjectId::parse("shop").expect("an id");
        let base = with(|s| s.worker_id = Some("w".into()));
        let same = with(|s| {
            s.worker_id = Some("w".into());
            s.max_retries = 1;
        });
        assert_eq!(base.identity(&project), same.identity(&project));
        for other in [
            with(|s| s.worker_id = Some("v".into())),
            with(|s| s.url = Some("w".into())),
            with(|s| {
                s.worker_id = Some("w".into());
                s.rpc_method = Some("m".into());
            }),
            with(|s| {
                s.worker_id = Some("w".into());
                s.pattern = "orders.**".into();
            }),
        ] {
            assert_ne!(base.identity(&project), other.identity(&project), "{other:?}");
        }
        assert_ne!(base.identity(&project), base.identity(&ProjectId::default_project()));
        let url = |worker: &str| {
            with(|s| {
                s.url = Some("https://a/".into());
                s.worker_id = Some(worker.into());
            })
        };
        assert_eq!(
            url("v").identity(&project),
            url("w").identity(&project),
            "the URL counts, if there is one"
        );
    }
}
