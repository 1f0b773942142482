//! Client for the hooks of one project, and how its answers are printed.

use std::io::{self, Write};
use std::time::Duration;

use hyper::Method;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tidings_engine::{Clock, WallClock};
use tidings_hooks::ingest::time_text;
use tidings_hooks::{DeliveryStatus, HookId};
use tidings_model::{ProjectId, Timestamp, Ulid};

use super::Members;
use super::printable::printable;
use super::settings::Settings;
use crate::client::{Answer, Ask, Client, percent_encoded};
use crate::command::CommandError;
use crate::greeting::TerminalStyle;

/// Entries that are asked for at a time.
const PAGE: usize = 1000;

/// Client for the hooks of one project.
pub struct ProjectHooks {
    client: Client,
    project: ProjectId,
    json: bool,
}

impl ProjectHooks {
    /// Uses a client. With `json` what is printed is the JSON that the server answers.
    pub fn new(client: Client, project: ProjectId, json: bool) -> Self {
        Self { client, project, json }
    }

    /// Creates a hook.
    pub fn create(&self, settings: &Settings) -> Result<(), CommandError> {
        let answer = self.ask(Method::POST, &self.path(""), Some(&settings.body()))?;
        self.print(&answer, |hook| {
            let style = TerminalStyle::of_stdout();
            vec![
                format!("id      {}", style.bold(&text(hook, "id"))),
                format!("secret  {}", style.bold(&text(hook, "secret"))),
                "The secret signs deliveries. It is not shown again.".to_owned(),
            ]
        })
    }

    /// Lists the hooks.
    pub fn list(&self) -> Result<(), CommandError> {
        self.pages(&self.path(&format!("?limit={PAGE}")), "hooks", &hook_line)
    }

    /// Prints a hook.
    pub fn show(&self, id: HookId) -> Result<(), CommandError> {
        let answer = self.ask(Method::GET, &self.path(&format!("/{id}")), None)?;
        self.print(&answer, |hook| {
            let members = hook.as_object().cloned().unwrap_or_default();
            let (stats, settings): (Vec<_>, Vec<_>) =
                members.into_iter().partition(|(name, _)| name == "stats");
            let stats = stats.into_iter().filter_map(|(_, stats)| stats.as_object().cloned()).flatten();
            settings.into_iter().chain(stats).map(|(name, value)| member_line(&name, &value)).collect()
        })
    }

    /// Lists the hooks that an event of a type would be delivered to.
    pub fn matching(&self, event_type: &str) -> Result<(), CommandError> {
        let path = self.path(&format!("/match?type={}", percent_encoded(event_type)));
        self.pages(&path, "hooks", &hook_line)
    }

    /// Sends an event.
    pub fn send(&self, event_type: &str, data: Members, id: Option<&str>) -> Result<(), CommandError> {
        let path = format!("/v1/{}/events", self.project);
        let answer = self.ask(Method::POST, &path, Some(&batch_of(event_type, data, id, WallClock.now())))?;
        self.print(&answer, |_| vec![format!("sent {event_type}")])
    }

    /// Sends a test event to a hook.
    pub fn test(&self, id: HookId) -> Result<(), CommandError> {
        let answer = self.ask(Method::POST, &self.path(&format!("/{id}/test")), Some("{}"))?;
        self.print(&answer, |sent| vec![format!("sent a test event, delivery {}", text(sent, "deliveryId"))])
    }

    /// Lists the deliveries of a hook, of those with a status, if one is given.
    pub fn deliveries(&self, id: HookId, status: Option<DeliveryStatus>) -> Result<(), CommandError> {
        let status = status.map(|status| format!("&status={}", status.as_str())).unwrap_or_default();
        let path = self.path(&format!("/{id}/deliveries?limit={PAGE}{status}"));
        self.pages(&path, "deliveries", &|delivery| {
            let attempts = delivery["attempts"].as_u64().unwrap_or_default();
            let plural = if attempts == 1 { "attempt " } else { "attempts" };
            format!(
                "{}  {}  {:<9}  {attempts:>3} {plural}  {}{}",
                time(delivery, "createdAt"),
                text(delivery, "id"),
                text(delivery, "status"),
                text(delivery, "type"),
                error_of(delivery, "lastError")
            )
        })
    }

    /// Lists the attempts of a delivery.
    pub fn attempts(&self, id: HookId, delivery: Ulid) -> Result<(), CommandError> {
        let path = self.path(&format!("/{id}/deliveries/{delivery}/attempts"));
        self.pages(&path, "attempts", &|attempt| {
            format!(
                "{}  {:>3}  {:<7}  {:>6} ms{}{}",
                time(attempt, "at"),
                attempt["number"].as_u64().unwrap_or_default(),
                text(attempt, "status"),
                attempt["durationMs"].as_u64().unwrap_or_default(),
                error_of(attempt, "error"),
                error_of(attempt, "response")
            )
        })
    }

    /// Lists the dead letters of a hook.
    pub fn dead_letters(&self, id: HookId) -> Result<(), CommandError> {
        let path = self.path(&format!("/{id}/dead-letters?limit={PAGE}"));
        self.pages(&path, "deadLetters", &|letter| {
            format!(
                "{}  {}  {}  {}{}",
                time(letter, "createdAt"),
                text(letter, "id"),
                text(letter, "reason"),
                text(letter, "type"),
                error_of(letter, "lastError")
            )
        })
    }

    /// Delivers a dead letter again.
    pub fn retry(&self, id: HookId, letter: Ulid) -> Result<(), CommandError> {
        let path = self.path(&format!("/{id}/dead-letters/{letter}/retry"));
        let answer = self.ask(Method::POST, &path, Some("{}"))?;
        self.print(&answer, |retried| vec![format!("queued again, delivery {}", text(retried, "deliveryId"))])
    }

    /// Delivers the dead letters again that some conditions select.
    pub fn retry_many(&self, id: HookId, conditions: Map<String, Value>) -> Result<(), CommandError> {
        let path = self.path(&format!("/{id}/dead-letters/retry"));
        let answer = self.ask(Method::POST, &path, Some(&Value::from(conditions).to_string()))?;
        self.print(&answer, |retried| {
            vec![format!("queued {} dead letters again", count(retried, "retried"))]
        })
    }

    /// Delivers events of the past.
    pub fn replay(&self, id: HookId, from: &str, to: Option<&str>) -> Result<(), CommandError> {
        let range = json!({ "from": from, "to": to }).to_string();
        let answer = self.ask(Method::POST, &self.path(&format!("/{id}/replay")), Some(&range))?;
        self.print(&answer, |replayed| vec![format!("replaying {} events", count(replayed, "events"))])
    }

    /// Stops deliveries to a hook.
    pub fn pause(&self, id: HookId) -> Result<(), CommandError> {
        let answer = self.ask(Method::POST, &self.path(&format!("/{id}/pause")), Some("{}"))?;
        self.print(&answer, |_| vec![format!("paused {id}")])
    }

    /// Continues deliveries to a hook.
    pub fn resume(&self, id: HookId, replay: bool) -> Result<(), CommandError> {
        let wanted = json!({ "replay": replay }).to_string();
        let answer = self.ask(Method::POST, &self.path(&format!("/{id}/resume")), Some(&wanted))?;
        self.print(&answer, |resumed| {
            let replayed = resumed["events"].as_u64();
            vec![match replayed {
                Some(events) if replay => format!("resumed {id}, replaying {events} events"),
                _ => format!("resumed {id}"),
            }]
        })
    }

    /// Replaces the secret of a hook.
    pub fn rotate_secret(&self, id: HookId, overlap: Duration) -> Result<(), CommandError> {
        let overlap = json!({ "overlapSeconds": overlap.as_secs() }).to_string();
        let answer = self.ask(Method::POST, &self.path(&format!("/{id}/rotate-secret")), Some(&overlap))?;
        self.print(&answer, |rotated| {
            vec![
                format!("secret  {}", TerminalStyle::of_stdout().bold(&text(rotated, "secret"))),
                "It is not shown again.".to_owned(),
            ]
        })
    }

    /// Deletes a hook.
    pub fn delete(&self, id: HookId) -> Result<(), CommandError> {
        let answer = self.ask(Method::DELETE, &self.path(&format!("/{id}")), None)?;
        self.print(&answer, |_| vec![format!("deleted {id}")])
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/{}/hooks{rest}", self.project)
    }

    fn ask(&self, method: Method, path: &str, body: Option<&str>) -> Result<Answer, CommandError> {
        let headers = [("content-type", "application/json")];
        let headers = if body.is_some() { &headers[..] } else { &[] };
        Ok(self.client.ask(&Ask { headers, body: body.map(str::as_bytes), ..Ask::new(method, path) })?)
    }

    /// Prints an answer: as JSON, or the lines that are made of it.
    fn print(&self, answer: &Answer, lines: impl FnOnce(&Value) -> Vec<String>) -> Result<(), CommandError> {
        let value = if answer.body().is_empty() { json!({}) } else { self.client.json(answer)? };
        let mut out = io::stdout().lock();
        if self.json {
            return Ok(writeln!(out, "{value}")?);
        }
        for line in lines(&value) {
            writeln!(out, "{line}")?;
        }
        Ok(())
    }

    /// Prints the entries of a list, page by page.
    fn pages(&self, first: &str, member: &str, line: &dyn Fn(&Value) -> String) -> Result<(), CommandError> {
        let mut out = io::stdout().lock();
        let mut path = first.to_owned();
        loop {
            let page = self.client.json(&self.ask(Method::GET, &path, None)?)?;
            let entries = page[member].as_array().ok_or_else(|| self.client.unexpected_answer())?;
            for entry in entries {
                match self.json {
                    true => writeln!(out, "{entry}")?,
                    false => writeln!(out, "{}", line(entry))?,
                }
            }
            let Some(cursor) = page["nextCursor"].as_str() else { return Ok(()) };
            path = format!("{first}&cursor={}", percent_encoded(cursor));
        }
    }
}

/// The body that ingests one event.
fn batch_of(event_type: &str, data: Members, id: Option<&str>, now: Timestamp) -> String {
    let written = |text: &str| {
        let text = Value::from(text).to_string();
        RawValue::from_string(text).expect("text is written as JSON")
    };
    let mut event = data;
    event.entry("ts".to_owned()).or_insert_with(|| written(&time_text(now)));
    event.insert("type".to_owned(), written(event_type));
    if let Some(id) = id {
        event.insert("id".to_owned(), written(id));
    }
    let event = serde_json::to_string(&event).expect("raw JSON can be written");
    format!("{{\"events\":[{event}]}}")
}

fn hook_line(hook: &Value) -> String {
    let state = if hook["active"] == Value::Bool(true) { "active" } else { "paused" };
    let target = match (hook["url"].as_str(), hook["workerId"].as_str()) {
        (Some(url), _) => printable(url),
        (None, Some(worker)) => format!("{}/{}", printable(worker), text(hook, "rpcMethod")),
        (None, None) => String::new(),
    };
    let stats = &hook["stats"];
    let waiting = [("pending", "pending"), ("failed", "failed"), ("deadLetters", "dead letters")];
    let waiting = waiting.map(|(name, words)| (count(stats, name), words));
    let waiting =
        waiting.iter().filter(|(count, _)| *count > 0).map(|(count, words)| format!("  {count} {words}"));
    format!(
        "{}  {state}  {}  {target}{}",
        text(hook, "id"),
        text(hook, "pattern"),
        waiting.collect::<String>()
    )
}

fn member_line(name: &str, value: &Value) -> String {
    let shown = match value {
        Value::String(text) => printable(text),
        Value::Number(number) if name.ends_with("At") => {
            number.as_u64().map(|at| time_text(Timestamp::from_millis(at))).unwrap_or_default()
        }
        other => printable(&other.to_string()),
    };
    format!("{name:<16}  {shown}")
}

fn text(value: &Value, name: &str) -> String {
    printable(value[name].as_str().unwrap_or_default())
}

fn time(value: &Value, name: &str) -> String {
    time_text(Timestamp::from_millis(value[name].as_u64().unwrap_or_default()))
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

/// An error, or a response, at the end of a line. It may come from an endpoint and have several lines.
fn error_of(value: &Value, name: &str) -> String {
    match value[name].as_str() {
        Some(error) if !error.is_empty() => format!("  {}", printable(error).trim_end().replace('\n', " ")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_768_473_000_000);

    fn batch(data: &str, id: Option<&str>) -> String {
        batch_of("orders.paid", serde_json::from_str(data).expect("members"), id, NOW)
    }

    #[test]
    fn an_event_has_its_type_a_time_and_what_was_given() {
        let plain = r#"{"events":[{"ts":"2026-01-15T10:30:00.000Z","type":"orders.paid"}]}"#;
        assert_eq!(batch("{}", None), plain);
        let given = batch(r#"{"big":12345678901234567890123,"ts":"x","type":"y","id":"a"}"#, Some("e\"1"));
        let expected =
            r#"{"events":[{"big":12345678901234567890123,"id":"e\"1","ts":"x","type":"orders.paid"}]}"#;
        assert_eq!(given, expected);
    }

    #[test]
    fn a_line_has_no_breaks_and_controls_no_terminal() {
        let value = json!({"lastError": "HTTP 500: a\n\u{1b}[2Jb\n"});
        assert_eq!(error_of(&value, "lastError"), "  HTTP 500: a \\u{1b}[2Jb");
        assert_eq!(error_of(&value, "none"), "");
        let hook = json!({"id": "H", "active": false, "pattern": "a.*", "workerId": "w", "rpcMethod": "m"});
        assert_eq!(hook_line(&hook), "H  paused  a.*  w/m");
        let stats = json!({"pending": 2, "failed": 0, "deadLetters": 1});
        let hook = json!({"id": "H", "active": true, "pattern": "a.*", "url": "http://x/", "stats": stats});
        assert_eq!(hook_line(&hook), "H  active  a.*  http://x/  2 pending  1 dead letters");
        assert_eq!(
            member_line("createdAt", &json!(1_768_473_000_000u64)),
            "createdAt         2026-01-15T10:30:00.000Z"
        );
        assert_eq!(member_line("filter", &json!({"/a": {"eq": 1}})), "filter            {\"/a\":{\"eq\":1}}");
    }
}
