//! The settings of a hook as clients send them: members of a JSON object.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};
use tidings_hooks::{Format, HookError, Ordering, Settings};
use tidings_model::limits;

use crate::error::ApiError;

/// Settings that a client sent.
#[derive(Clone, Debug)]
pub struct Wanted {
    members: Map<String, Value>,
    face: Face,
}

/// The interface by which settings were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Face {
    /// `/subscriptions`: members that are not settings are ignored.
    Subscriptions,
    /// `/v1/{project}/hooks`: members that are not settings are refused.
    Project,
}

/// What is wrong with a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is required.
    Missing(&'static str),
    /// It has another type.
    Type {
        /// Name of the setting.
        field: &'static str,
        /// The expected type, with an article.
        expected: &'static str,
    },
    /// It has the type, but not a valid value.
    Value {
        /// Name of the setting.
        field: &'static str,
        /// What is wrong.
        why: String,
    },
    /// It cannot be changed.
    Fixed(&'static str),
    /// There is no such setting.
    Unknown(String),
}

/// Longest part of an unknown name that is shown.
const NAME_SHOWN: usize = 64;

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        Self::bad_request(
            "invalid_hook",
            match fault {
                Fault::Missing(field) => format!("`{field}` is required"),
                Fault::Type { field, expected } => format!("`{field}` must be {expected}"),
                Fault::Value { field, why } => format!("{field}: {why}"),
                Fault::Fixed(field) => format!("`{field}` cannot be changed; create another hook"),
                Fault::Unknown(name) => format!("`{name}` is not a setting of a hook"),
            },
        )
    }
}

impl From<Fault> for HookError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Missing(field) => Self::Invalid { field, why: "required".into() },
            Fault::Type { field, expected } => Self::Invalid { field, why: format!("must be {expected}") },
            Fault::Value { field, why } => Self::Invalid { field, why },
            Fault::Fixed(field) => Self::Invalid { field, why: "cannot be changed".into() },
            Fault::Unknown(name) => Self::Invalid { field: "settings", why: format!("no setting `{name}`") },
        }
    }
}

impl Wanted {
    /// Settings in the members of an object.
    pub fn new(members: Map<String, Value>, face: Face) -> Self {
        Self { members, face }
    }

    /// The settings of a new hook. A hook has a `url`, or a `workerId` and an `rpcMethod`.
    pub fn create(&self) -> Result<Settings, Fault> {
        let given = |name: &str| self.members.get(name).is_some_and(|value| !value.is_null());
        let is_text =
            |name: &str| matches!(self.members.get(name), Some(Value::String(text)) if !text.is_empty());
        let required = |name: &'static str| if is_text(name) { Ok(()) } else { Err(Fault::Missing(name)) };
        // In the order in which clients expect the errors.
        if !given("url") {
            required("workerId")?;
        }
        required("pattern")?;
        let pattern = self.members.get("pattern").and_then(Value::as_str).unwrap_or_default();
        if let Err(why) = tidings_hooks::pattern::parse(pattern) {
            return Err(Fault::Value { field: "pattern", why: why.to_string() });
        }
        if !given("url") {
            required("rpcMethod")?;
        }
        let mut settings = Settings::new(pattern);
        self.apply(&mut settings)?;
        Ok(settings)
    }

    /// Checks a change of any hook. What remains to be checked depends on the hook.
    pub fn check_change(&self) -> Result<(), Fault> {
        if self.members.contains_key("pattern") {
            return Err(Fault::Fixed("pattern"));
        }
        self.apply(&mut Settings::new("*"))
    }

    /// Changes the settings of a hook. `null` restores a default.
    pub fn change(&self, settings: &mut Settings) -> Result<(), Fault> {
        self.apply(settings)?;
        match settings {
            Settings { url: None, worker_id: None, .. } => Err(Fault::Missing("workerId")),
            Settings { url: None, rpc_method: None, .. } => Err(Fault::Missing("rpcMethod")),
            _ => Ok(()),
        }
    }

    fn apply(&self, settings: &mut Settings) -> Result<(), Fault> {
        for name in ORDER {
            if let Some(value) = self.members.get(name) {
                self.set(settings, name, value)?;
            }
        }
        let unknown = |name: &&String| *name != "pattern" && !ORDER.contains(&name.as_str());
        match self.members.keys().find(unknown) {
            Some(name) if self.face == Face::Project => {
                Err(Fault::Unknown(name.chars().take(NAME_SHOWN).collect()))
            }
            _ => Ok(()),
        }
    }

    fn set(&self, settings: &mut Settings, field: &'static str, value: &Value) -> Result<(), Fault> {
        let defaults = Settings::new("");
        // Clients of `/subscriptions` expect these to be refused, so that a forgotten value is noticed.
        let has_null = value.is_null()
            && !(self.face == Face::Subscriptions && matches!(field, "maxRetries" | "timeoutMs"));
        match field {
            "workerId" => settings.worker_id = text(field, value)?,
            "workerBinding" => settings.worker_binding = text(field, value)?,
            "rpcMethod" => settings.rpc_method = text(field, value)?,
            "url" => settings.url = text(field, value)?,
            "maxRetries" if has_null => settings.max_retries = defaults.max_retries,
            "maxRetries" => settings.max_retries = integer(field, value, 0..=limits::HOOK_RETRIES_MAX)?,
            "timeoutMs" if has_null => settings.timeout_ms = defaults.timeout_ms,
            "timeoutMs" => settings.timeout_ms = integer(field, value, 1..=limits::HOOK_TIMEOUT_MS_MAX)?,
            "concurrency" if has_null => settings.concurrency = defaults.concurrency,
            "concurrency" => settings.concurrency = integer(field, value, 1..=CONCURRENCY_MAX)?,
            "rateLimit" if has_null => settings.rate_limit = None,
            "rateLimit" => settings.rate_limit = Some(integer(field, value, 1..=limits::HOOK_RATE_MAX)?),
            "format" if has_null => settings.format = defaults.format,
            "format" => settings.format = one_of(field, value, Format::parse, FORMATS)?,
            "ordering" if has_null => settings.ordering = defaults.ordering,
            "ordering" => settings.ordering = one_of(field, value, Ordering::parse, ORDERINGS)?,
            "orderingKey" => settings.ordering_key = text(field, value)?,
            "retrySchedule" => settings.retry_schedule = if has_null { Vec::new() } else { schedule(value)? },
            "filter" => settings.filter = (!has_null).then(|| value.to_string()),
            "headers" => settings.headers = if has_null { Vec::new() } else { headers(value)? },
            _ => unreachable!("each name of the list has its case"),
        }
        Ok(())
    }
}

/// Names of the settings apart from the pattern, in the order in which they are checked.
const ORDER: [&str; 14] = [
    "workerId",
    "rpcMethod",
    "workerBinding",
    "maxRetries",
    "timeoutMs",
    "url",
    "format",
    "retrySchedule",
    "ordering",
    "orderingKey",
    "rateLimit",
    "concurrency",
    "filter",
    "headers",
];

const CONCURRENCY_MAX: u32 = limits::DESTINATION_ATTEMPTS as u32;
const FORMATS: &str = "`envelope`, `raw`, `cloudevents-structured` or `cloudevents-binary`";
const ORDERINGS: &str = "`none`, `subscription` or `key`";

fn text(field: &'static str, value: &Value) -> Result<Option<String>, Fault> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(Fault::Type { field, expected: "a string" }),
    }
}

fn integer(field: &'static str, value: &Value, range: RangeInclusive<u32>) -> Result<u32, Fault> {
    let number = whole(value).ok_or(Fault::Type { field, expected: "an integer" })?;
    let valid = u32::try_from(number).ok().filter(|number| range.contains(number));
    valid.ok_or_else(|| {
        let why = format!("expected {} to {}, got {value}", range.start(), range.end());
        Fault::Value { field, why }
    })
}

/// The value of a whole number. `5.0` and `5e0` are whole, as they are for JavaScript.
fn whole(value: &Value) -> Option<i128> {
    let number = value.as_number()?;
    let exact = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
    exact.or_else(|| number.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128))
}

fn one_of<T>(
    field: &'static str,
    value: &Value,
    parse: fn(&str) -> Option<T>,
    expected: &'static str,
) -> Result<T, Fault> {
    value.as_str().and_then(parse).ok_or(Fault::Type { field, expected })
}

fn schedule(value: &Value) -> Result<Vec<u64>, Fault> {
    let expected = Fault::Type { field: "retrySchedule", expected: "an array of milliseconds" };
    let delay = |value: &Value| whole(value).and_then(|delay| u64::try_from(delay).ok());
    let delays = value.as_array().and_then(|delays| delays.iter().map(delay).collect());
    delays.ok_or(expected)
}

fn headers(value: &Value) -> Result<Vec<(String, String)>, Fault> {
    let expected = Fault::Type { field: "headers", expected: "an object of strings" };
    let header = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    let headers = value.as_object().and_then(|headers| headers.iter().map(header).collect());
    headers.ok_or(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wanted(value: Value, face: Face) -> Wanted {
        let Value::Object(members) = value else { panic!("an object") };
        Wanted::new(members, face)
    }

    fn created(value: Value) -> Result<Settings, Fault> {
        wanted(value, Face::Subscriptions).create()
    }

    fn with(name: &str, value: Value) -> Value {
        let mut body = json!({"workerId": "w", "pattern": "a.*", "rpcMethod": "m"});
        body[name] = value;
        body
    }

    #[test]
    fn a_new_hook_has_what_was_sent_and_defaults() {
        let plain = created(json!({"workerId": "w", "pattern": "a.*", "rpcMethod": "m", "more": 1}));
        let expected =
            Settings { worker_id: Some("w".into()), rpc_method: Some("m".into()), ..Settings::new("a.*") };
        assert_eq!(plain, Ok(expected));
        let all = created(json!({
            "url": "https://example.com/in", "pattern": "**", "workerBinding": "B", "maxRetries": 0, "timeoutMs": 1.0,
            "format": "raw", "retrySchedule": [1, 20], "ordering": "key", "orderingKey": "/user/id",
            "rateLimit": 5, "concurrency": 256, "filter": {"/a": {"eq": 1}}, "headers": {"x-a": "b"},
        }));
        let expected = Settings {
            url: Some("https://example.com/in".into()),
            worker_binding: Some("B".into()),
            max_retries: 0,
            timeout_ms: 1,
            format: Format::Raw,
            retry_schedule: vec![1, 20],
            ordering: Ordering::Key,
            ordering_key: Some("/user/id".into()),
            rate_limit: Some(5),
            concurrency: 256,
            filter: Some(r#"{"/a":{"eq":1}}"#.into()),
            headers: vec![("x-a".into(), "b".into())],
            ..Settings::new("**")
        };
        assert_eq!(all, Ok(expected));
    }

    #[test]
    fn what_is_missing_is_told_in_order_and_a_url_stands_in_for_worker_and_method() {
        for (body, missing) in [
            (json!({}), "workerId"),
            (json!({"workerId": ""}), "workerId"),
            (json!({"workerId": 7, "pattern": "a", "rpcMethod": "m"}), "workerId"),
            (json!({"url": null, "pattern": "a", "rpcMethod": "m"}), "workerId"),
            (json!({"workerId": "w"}), "pattern"),
            (json!({"url": "https://a.example/"}), "pattern"),
            (json!({"workerId": "w", "pattern": ["a"]}), "pattern"),
            (json!({"workerId": "w", "pattern": "a"}), "rpcMethod"),
        ] {
            assert_eq!(created(body.clone()), Err(Fault::Missing(missing)), "{body}");
        }
        assert!(created(json!({"url": "https://a.example/", "pattern": "a"})).is_ok());
        let first = created(json!({"workerId": "w", "pattern": "a..b"}));
        assert!(matches!(first, Err(Fault::Value { field: "pattern", .. })), "{first:?}");
    }

    #[test]
    fn values_of_another_type_or_out_of_range_are_refused() {
        for (field, value, expected) in [
            ("maxRetries", json!("5"), "an integer"),
            ("maxRetries", json!(1.5), "an integer"),
            ("maxRetries", json!(null), "an integer"),
            ("timeoutMs", json!([]), "an integer"),
            ("timeoutMs", json!(null), "an integer"),
            ("workerBinding", json!(1), "a string"),
            ("url", json!(1), "a string"),
            ("format", json!("xml"), FORMATS),
            ("format", json!(1), FORMATS),
            ("ordering", json!("key "), ORDERINGS),
            ("orderingKey", json!({}), "a string"),
            ("rateLimit", json!(true), "an integer"),
            ("concurrency", json!("1"), "an integer"),
            ("retrySchedule", json!([1, -1]), "an array of milliseconds"),
            ("retrySchedule", json!("1"), "an array of milliseconds"),
            ("headers", json!(["x"]), "an object of strings"),
            ("headers", json!({"x": 1}), "an object of strings"),
        ] {
            let refused = created(with(field, value.clone()));
            assert_eq!(refused, Err(Fault::Type { field, expected }), "{field} {value}");
        }
        for (field, value, range) in [
            ("maxRetries", json!(-1), "0 to 100"),
            ("maxRetries", json!(101), "0 to 100"),
            ("maxRetries", json!(1e300), "0 to 100"),
            ("timeoutMs", json!(0), "1 to 300000"),
            ("timeoutMs", json!(u64::MAX), "1 to 300000"),
            ("concurrency", json!(257), "1 to 256"),
            ("rateLimit", json!(0), "1 to 1000000"),
        ] {
            let why = format!("expected {range}, got {value}");
            assert_eq!(created(with(field, value)), Err(Fault::Value { field, why }));
        }
    }

    #[test]
    fn a_change_leaves_the_rest_as_it_is_and_null_restores_a_default() {
        let before = created(json!({
            "url": "https://a.example/", "pattern": "a", "rateLimit": 1, "filter": {}, "headers": {"x": "y"},
            "concurrency": 1, "retrySchedule": [1], "format": "raw", "ordering": "key", "orderingKey": "/a",
        }));
        let before = before.expect("valid");
        let changed = |value: Value, face: Face| {
            let wanted = wanted(value, face);
            wanted.check_change()?;
            let mut settings = before.clone();
            wanted.change(&mut settings).map(|()| settings)
        };
        let one = changed(json!({"maxRetries": 9}), Face::Subscriptions);
        assert_eq!(one, Ok(Settings { max_retries: 9, ..before.clone() }));
        let restored = changed(
            json!({
                "rateLimit": null, "filter": null, "headers": null, "concurrency": null, "retrySchedule": null,
                "format": null, "ordering": null, "orderingKey": null, "workerBinding": null,
            }),
            Face::Subscriptions,
        );
        assert_eq!(restored, Ok(Settings { url: before.url.clone(), ..Settings::new("a") }));
        let unreachable = changed(json!({"url": null}), Face::Project);
        assert_eq!(unreachable, Err(Fault::Missing("workerId")));
        let half = changed(json!({"url": null, "workerId": "w"}), Face::Project);
        assert_eq!(half, Err(Fault::Missing("rpcMethod")));
        for face in [Face::Subscriptions, Face::Project] {
            assert_eq!(changed(json!({"pattern": "a"}), face), Err(Fault::Fixed("pattern")));
        }
    }

    #[test]
    fn unknown_members_are_ignored_on_one_face_and_refused_on_the_other() {
        let body = || with("retryShedule", json!([1]));
        assert!(wanted(body(), Face::Subscriptions).create().is_ok());
        let refused = wanted(body(), Face::Project).create();
        assert_eq!(refused, Err(Fault::Unknown("retryShedule".into())));
    }
}
