//! Runs the external load generator `liveload`, and parses its output.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::{Served, Wire};

/// Seconds after which a run is aborted.
const PATIENCE: &str = "100";

/// The load generator.
#[derive(Clone, Debug)]
pub struct Liveload {
    /// Path of the binary.
    pub binary: PathBuf,
}

/// Result of holding connections open.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Connections that were opened and not closed by the server.
    pub count: usize,
    /// Server memory per connection, in KB.
    pub kilobytes: f64,
}

impl Liveload {
    /// Opens `subscribers` connections to a path of the server with further arguments, and returns the
    /// output. `{topic}` in the path is replaced by the name of a topic.
    pub fn run(
        &self,
        served: &Served,
        wire: Wire,
        path: &str,
        subscribers: usize,
        more: &[String],
    ) -> io::Result<String> {
        let scheme = if wire == Wire::Sse { "http" } else { "ws" };
        let output = Command::new("timeout")
            .arg(PATIENCE)
            .arg(&self.binary)
            .args(["--subs", &subscribers.to_string(), "--pid", &served.process.pid().to_string()])
            .args(["--sub", &format!("{scheme}://{}{path}", served.address)])
            .args(more)
            .output()?;
        let (out, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Ok(if output.status.success() { out.into_owned() } else { format!("{out}{errors}") })
    }

    /// Parses the results of deliveries. Fails with a reason if there are none, or if not all subscribers
    /// connected.
    pub fn deliveries(printed: &str, subscribers: usize) -> Result<Value, String> {
        let line =
            printed.lines().find_map(|line| line.strip_prefix("JSON ")).ok_or_else(|| gave_up(printed))?;
        let result: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let joined = result["subs"].as_u64().unwrap_or(0) as usize;
        if joined == subscribers {
            Ok(result)
        } else {
            Err(format!("{joined} of {subscribers} could connect"))
        }
    }
}

impl Held {
    /// Parses the output of `liveload --hold`.
    pub fn parse(printed: &str) -> Result<Self, String> {
        let number_before = |line: &str, word: &str| -> Option<f64> {
            line.split_once(word)?.0.rsplit([' ', '(']).next()?.parse().ok()
        };
        let parsed = || {
            let head = printed.lines().find(|line| line.starts_with("== "))?;
            let memory = printed.lines().find(|line| line.starts_with("memory"))?;
            let joined = number_before(head, " subscribers")?;
            let closed = number_before(head, " closed early")?;
            Some(Self { count: (joined - closed) as usize, kilobytes: number_before(memory, " kB/conn;")? })
        };
        parsed().ok_or_else(|| gave_up(printed))
    }
}

fn gave_up(printed: &str) -> String {
    format!("the load generator gave up: {}", printed.lines().last().unwrap_or("it said nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_load_generator_says_of_held_connections_is_understood() {
        let printed = "== run: 9999 subscribers (1 failed, 9 closed early) on 1 topic(s), ws://localhost/\nconnect     0.50 s\n\
                       memory      rss 4000 -> 54000 kB (5.1 kB/conn; pss 5.0 kB/conn), peak under load 54000 kB\n";
        let held = Held::parse(printed).unwrap();
        assert_eq!((held.count, held.kilobytes), (9990, 5.1));
        assert_eq!(Held::parse("bad URL").unwrap_err(), "the load generator gave up: bad URL");
    }

    #[test]
    fn deliveries_count_only_when_all_have_connected() {
        let printed = "delivered 5\nJSON {\"subs\":3,\"deliv_s\":5}\n";
        assert_eq!(Liveload::deliveries(printed, 3).unwrap()["deliv_s"], 5);
        assert_eq!(Liveload::deliveries(printed, 4).unwrap_err(), "3 of 4 could connect");
        assert!(Liveload::deliveries("", 4).is_err());
    }
}
