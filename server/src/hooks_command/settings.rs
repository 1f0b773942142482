//! The settings of a new hook as arguments, and as the JSON that the server takes.

use std::time::Duration;

use clap::Args;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tidings_server::duration;

use super::{Members, json_object};

/// Settings of a new hook. What is not given has the server's default.
#[derive(Debug, Args)]
pub struct Settings {
    /// Pattern of the event types to deliver: * matches one segment, ** any number of them.
    pattern: String,
    /// URL of the endpoint.
    #[arg(required_unless_present = "worker")]
    url: Option<String>,
    /// Worker to call instead of a URL, by the target template of the server; needs --method.
    #[arg(long, value_name = "ID", requires = "method", conflicts_with = "url")]
    worker: Option<String>,
    /// Method of the worker.
    #[arg(long, value_name = "NAME")]
    method: Option<String>,
    /// Form of a delivery [default: envelope].
    #[arg(long, value_name = "envelope|raw|cloudevents-structured|cloudevents-binary")]
    format: Option<String>,
    /// Conditions on the event, by JSON pointers, such as {"/amount":{"gt":100}}.
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    filter: Option<Members>,
    /// Attempts of a delivery in all [default: 5].
    #[arg(long, value_name = "COUNT")]
    max_retries: Option<u32>,
    /// Delays after the first, second, … failed attempt; the last one repeats. Such as 5s,1m,1h.
    #[arg(long, value_name = "DELAYS", value_delimiter = ',', value_parser = duration::parse)]
    retry_schedule: Vec<Duration>,
    /// Time that an attempt may take [default: 30s].
    #[arg(long, value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Which deliveries wait for earlier ones: none, all, or those with the same key [default: none].
    #[arg(long, value_name = "none|subscription|key")]
    ordering: Option<String>,
    /// JSON pointer into the event to the key, such as /user/id; with --ordering key.
    #[arg(long, value_name = "POINTER")]
    ordering_key: Option<String>,
    /// Deliveries per second, at most [default: no limit].
    #[arg(long, value_name = "COUNT")]
    rate_limit: Option<u32>,
    /// Attempts at a time, at most [default: 32].
    #[arg(long, value_name = "COUNT")]
    concurrency: Option<u32>,
    /// Header to send with each delivery. Can be repeated.
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
}

fn header(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once(':').ok_or("a header is a name, a colon and a value")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn millis(duration: &Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Settings {
    /// The body of the request that creates the hook.
    pub fn body(&self) -> String {
        let headers: Map<String, Value> =
            self.header.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let schedule: Vec<u64> = self.retry_schedule.iter().map(millis).collect();
        let given: [(&str, Option<Value>); 13] = [
            ("pattern", Some(self.pattern.clone().into())),
            ("url", self.url.clone().map(Value::from)),
            ("workerId", self.worker.clone().map(Value::from)),
            ("rpcMethod", self.method.clone().map(Value::from)),
            ("format", self.format.clone().map(Value::from)),
            ("maxRetries", self.max_retries.map(Value::from)),
            ("retrySchedule", (!schedule.is_empty()).then(|| schedule.into())),
            ("timeoutMs", self.timeout.as_ref().map(millis).map(Value::from)),
            ("ordering", self.ordering.clone().map(Value::from)),
            ("orderingKey", self.ordering_key.clone().map(Value::from)),
            ("rateLimit", self.rate_limit.map(Value::from)),
            ("concurrency", self.concurrency.map(Value::from)),
            ("headers", (!headers.is_empty()).then(|| headers.into())),
        ];
        let written =
            |value: &str| RawValue::from_string(value.to_owned()).expect("a value is written as JSON");
        let mut members: Members = given
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), written(&value?.to_string()))))
            .collect();
        if let Some(filter) = &self.filter {
            let filter = serde_json::to_string(filter).expect("raw JSON can be written");
            members.insert("filter".to_owned(), written(&filter));
        }
        serde_json::to_string(&members).expect("raw JSON can be written")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::json;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    fn body(arguments: &[&str]) -> Result<Value, String> {
        let line =
            Line::try_parse_from([&["create"], arguments].concat()).map_err(|error| error.to_string())?;
        Ok(serde_json::from_str(&line.settings.body()).expect("JSON"))
    }

    #[test]
    fn only_what_is_given_is_sent() {
        assert_eq!(body(&["a.*", "http://x/"]), Ok(json!({"pattern": "a.*", "url": "http://x/"})));
        let worker = body(&["a.*", "--worker", "w", "--method", "m"]);
        assert_eq!(worker, Ok(json!({"pattern": "a.*", "workerId": "w", "rpcMethod": "m"})));
        let all = body(&[
            "a.*",
            "http://x/",
            "--method",
            "m",
            "--format",
            "raw",
            "--filter",
            r#"{"/n":{"eq":12345678901234567890}}"#,
            "--max-retries",
            "3",
            "--retry-schedule",
            "5s,1m,250ms",
            "--timeout",
            "2s",
            "--ordering",
            "key",
            "--ordering-key",
            "/user/id",
            "--rate-limit",
            "9",
            "--concurrency",
            "8",
            "--header",
            "X-A: b:c",
            "--header",
            "x-d:",
        ]);
        let expected = json!({
            "pattern": "a.*", "url": "http://x/", "rpcMethod": "m", "format": "raw",
            "filter": {"/n": {"eq": 12345678901234567890u64}}, "maxRetries": 3, "retrySchedule": [5000, 60000, 250],
            "timeoutMs": 2000, "ordering": "key", "orderingKey": "/user/id", "rateLimit": 9, "concurrency": 8,
            "headers": {"X-A": "b:c", "x-d": ""},
        });
        assert_eq!(all, Ok(expected));
    }

    #[test]
    fn a_hook_has_a_url_or_a_worker_with_a_method() {
        for bad in [
            &["a.*"][..],
            &["a.*", "--worker", "w"],
            &["a.*", "http://x/", "--worker", "w", "--method", "m"],
            &["a.*", "http://x/", "--filter", "[]"],
            &["a.*", "http://x/", "--header", "x"],
            &["a.*", "http://x/", "--retry-schedule", "5"],
        ] {
            assert!(body(bad).is_err(), "{bad:?}");
        }
    }
}
