//! Runs the external load generator `liveload`, and parses its output.

use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::{Channel, Measured, Served, files_limit, grouped};

/// Seconds after which a run is aborted.
const SECONDS_MAX: &str = "100";
/// Files that a process needs in addition to one per connection.
const FILES_TO_SPARE: usize = 1_000;
/// Time to connect, settle and warm up before the measurement.
const BEFORE: Duration = Duration::from_millis(2500);

/// The load generator.
#[derive(Clone, Debug, Args)]
pub struct Liveload {
    /// Path of the load generator.
    #[arg(
        long = "liveload",
        value_name = "LIVELOAD",
        env = "LIVELOAD_BINARY",
        default_value = "target/liveload/release/liveload"
    )]
    pub binary: PathBuf,
    /// Seconds to measure each row.
    #[arg(long, env = "SECS", default_value_t = 4.0)]
    pub secs: f64,
}

/// Connections to open to a server.
#[derive(Clone, Copy, Debug)]
pub struct Subscribers<'a> {
    /// The server.
    pub served: &'a Served,
    /// How to subscribe.
    pub channel: Channel,
    /// Path to subscribe to; `{topic}` is replaced by the name of a topic.
    pub path: &'a str,
    /// Number of connections.
    pub count: usize,
}

/// Result of publishing to subscribers.
#[derive(Clone, Debug)]
pub struct Deliveries(Value);

/// Result of holding connections open.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// Connections that were opened and not closed by the server.
    pub count: usize,
    /// Server memory per connection, in KB.
    pub kilobytes: f64,
}

/// The number of connections, limited by the number of open files.
pub fn connections_within(wanted: usize) -> usize {
    wanted.min(files_limit().saturating_sub(FILES_TO_SPARE))
}

impl Liveload {
    /// Publishes to subscribers as further arguments say.
    pub fn deliver(
        &self,
        subscribers: &Subscribers<'_>,
        mut more: Vec<String>,
    ) -> io::Result<Measured<Deliveries>> {
        let (peer, lasting) = (subscribers.channel.peer, Duration::from_secs_f64(self.secs));
        let profile = peer.profile(subscribers.served, BEFORE, lasting)?;
        more.extend(["--secs", &self.secs.to_string(), "--warmup", "1"].map(str::to_owned));
        let printed = self.run(subscribers, &more)?;
        drop(profile);
        Ok(Deliveries::parse(&printed, subscribers.count))
    }

    /// Holds idle connections open, with further arguments.
    pub fn hold(&self, subscribers: &Subscribers<'_>, mut more: Vec<String>) -> io::Result<Measured<Held>> {
        more.extend(["--hold", "3", "--connect-par", "128"].map(str::to_owned));
        Ok(Held::parse(&self.run(subscribers, &more)?))
    }

    /// Runs it with further arguments, and returns its output.
    fn run(&self, subscribers: &Subscribers<'_>, more: &[String]) -> io::Result<String> {
        let Subscribers { served, channel, path, count } = subscribers;
        let output = Command::new("timeout")
            .arg(SECONDS_MAX)
            .arg(&self.binary)
            .args(["--subs", &count.to_string(), "--pid", &served.process.pid().to_string()])
            .args(["--sub", &format!("{}://{}{path}", channel.wire.scheme(), served.address)])
            .args(more)
            .output()?;
        let (out, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        Ok(if output.status.success() { out.into_owned() } else { format!("{out}{errors}") })
    }
}

impl Deliveries {
    /// Parses the output of `liveload`. Fails with a reason if there are no results, or if not all
    /// subscribers connected.
    pub fn parse(printed: &str, subscribers: usize) -> Measured<Self> {
        let line =
            printed.lines().find_map(|line| line.strip_prefix("JSON ")).ok_or_else(|| gave_up(printed))?;
        let result: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let joined = result["subs"].as_u64().unwrap_or(0) as usize;
        if joined == subscribers {
            Ok(Self(result))
        } else {
            Err(format!("{joined} of {subscribers} could connect"))
        }
    }

    /// Deliveries per second.
    pub fn rate(&self) -> f64 {
        self.number("deliv_s")
    }

    /// Deliveries per second of the server's CPU time, if they are known.
    pub fn per_cpu(&self) -> Option<f64> {
        self.0["deliv_per_cpu_s"].as_f64()
    }

    /// Number of messages that arrived out of order.
    pub fn disorder(&self) -> usize {
        self.number("disorder") as usize
    }

    /// Columns of a report: deliveries per second, the same per CPU-second of the server, latency, CPU of
    /// server and client, memory per connection, and messages lost.
    pub fn columns(&self) -> String {
        // Nothing that was published in the measured time arrived within it: the server lags that far behind.
        let latency = match (self.number("p50_ms"), self.number("p99_ms")) {
            (p50, p99) if p50 > 0.0 => format!("{p50:.1} / {p99:.1}"),
            _ => "none in time".to_owned(),
        };
        format!(
            "{} | {} | {latency} | {:.0} % | {:.0} % | {:.1} KB | {}",
            grouped(self.rate() as usize),
            grouped(self.number("deliv_per_cpu_s") as usize),
            self.number("server_cpu") * 100.0,
            self.number("client_cpu") * 100.0,
            self.number("rss_per_conn_kb"),
            self.number("lost"),
        )
    }

    /// Messages published per second.
    pub fn published(&self) -> f64 {
        self.number("msgs_s")
    }

    /// Latency in milliseconds: the median and the 99th percentile.
    pub fn latency(&self) -> (f64, f64) {
        (self.number("p50_ms"), self.number("p99_ms"))
    }

    /// Number of messages that were published and did not arrive.
    pub fn lost(&self) -> i64 {
        self.number("lost") as i64
    }

    fn number(&self, name: &str) -> f64 {
        self.0[name].as_f64().unwrap_or(0.0)
    }
}

impl Held {
    /// Parses the output of `liveload --hold`.
    pub fn parse(printed: &str) -> Measured<Self> {
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
        assert_eq!(Deliveries::parse(printed, 3).unwrap().rate(), 5.0);
        assert_eq!(Deliveries::parse(printed, 4).unwrap_err(), "3 of 4 could connect");
        assert!(Deliveries::parse("", 4).is_err());
    }
}
