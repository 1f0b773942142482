//! Benchmark of live delivery and idle connections, compared with other servers, driven by the load generator
//! `liveload`. The server runs on core 0, the load generator on core 1. Prints tables in Markdown.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;
use tidings_bench::{Channel, Held, Liveload, Peer, Profile, Raw, Served, Setup, Wire};
use tidings_bench::{files_limit, grouped, pin_to, ratio};

type Failed = Box<dyn Error>;

/// Name of the first topic of `liveload`.
const TOPIC: &str = "t0";
const SUBSCRIBERS: [usize; 2] = [500, 2_000];
const IDLE: usize = 10_000;
/// Files that a process needs in addition to one per connection.
const FILES_TO_SPARE: usize = 1_000;
/// Seconds to connect, settle and warm up before the measurement.
const BEFORE: f64 = 2.5;

/// Live delivery compared with other servers.
#[derive(Debug, Parser)]
struct Arguments {
    /// Path of the load generator.
    #[arg(long, env = "LIVELOAD_BINARY", default_value = "target/liveload/release/liveload")]
    liveload: PathBuf,
    /// Seconds to measure each row.
    #[arg(long, env = "SECS", default_value_t = 4.0)]
    secs: f64,
    /// Run only rows whose name contains this, such as "500 subscribers, window 1, tidings".
    #[arg(long, env = "ONLY", default_value = "")]
    only: String,
    /// Measure only tidings.
    #[arg(long)]
    alone: bool,
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Closed loop with this many messages in flight.
    Window(u32),
    /// Fixed rate of messages per second.
    Rate(u32),
}

impl Pace {
    const ALL: [Self; 3] = [Self::Window(1), Self::Window(32), Self::Rate(50)];

    fn name(self) -> String {
        match self {
            Self::Window(window) => format!("window {window}"),
            Self::Rate(rate) => format!("{rate}/s"),
        }
    }

    /// Arguments of `liveload`. With many messages in flight the publisher must not be the bottleneck: HTTP
    /// uses a connection for each, a WebSocket is one connection, and the reader polls all its sockets in
    /// turn.
    fn arguments(self, channel: Channel, served: &Served) -> Vec<String> {
        let (address, path) = (served.address, channel.publish_path("{topic}"));
        let many = matches!(self, Self::Window(window) if window > 1);
        // Not Nchan: it drops messages in flight when a publisher's WebSocket ends, and they would count as
        // lost.
        let by_socket = channel.peer == Peer::Bun;
        let mut all = match self {
            Self::Window(window) => vec!["--window".to_owned(), window.to_string()],
            Self::Rate(rate) => vec!["--rate".to_owned(), rate.to_string()],
        };
        let mut add = |more: &[&str]| all.extend(more.iter().map(|&word| word.to_owned()));
        let scheme = if by_socket { "ws" } else { "http" };
        add(&["--pub", &format!("{scheme}://{address}{path}")]);
        if many {
            add(&["--reader", "sweep", "--sweep-us", "500"]);
        }
        if !by_socket {
            add(&["--pub-header", "Content-Type: text/plain"]);
        }
        if many && !by_socket {
            add(&["--pub-conns", "32"]);
        }
        all
    }

    /// Whether one connection published everything, so that there is an order.
    fn has_order(self, channel: Channel) -> bool {
        self != Self::Window(32) || channel.peer == Peer::Bun
    }
}

struct Bench {
    arguments: Arguments,
    setup: Setup,
}

/// Result of a run, or why there is none.
type Measured<T> = Result<T, String>;

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let bench_folder = arguments.root.join("target/bench");
    std::fs::create_dir_all(&bench_folder)?;
    let folder = tempfile::Builder::new().prefix("live-").tempdir_in(bench_folder)?;
    let setup = Setup {
        root: arguments.root.canonicalize()?,
        data: folder.path().to_owned(),
        cores: Some("0".to_owned()),
    };
    pin_to("1")?;
    Raw::measure(folder.path(), Duration::from_secs(1))?.print();
    let bench = Bench { arguments, setup };
    bench.fan_out()?;
    bench.idle()
}

impl Bench {
    fn channels(&self, row: impl Fn(Channel) -> String) -> Vec<Channel> {
        let ours = |channel: &Channel| !self.arguments.alone || channel.peer == Peer::Tidings;
        let wanted = |channel: &Channel| row(*channel).contains(&self.arguments.only);
        Channel::ALL.into_iter().filter(ours).filter(wanted).collect()
    }

    fn fan_out(&self) -> Result<(), Failed> {
        println!(
            "\n## Fan-out\n\nServer on core 0, client on core 1; {} s a row; 100 bytes a message.\n",
            self.arguments.secs
        );
        println!(
            "| subscribers | load | server | deliveries/s | per server-CPU-second | p50 / p99 ms | server's core | client's core \
             | RSS per connection | lost | out of order | tidings SSE is | tidings WebSocket is |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for subscribers in SUBSCRIBERS {
            for pace in Pace::ALL {
                let row = |channel: Channel| {
                    format!("{subscribers} subscribers, {}, {}", pace.name(), channel.name())
                };
                let mut rows = Vec::new();
                for channel in self.channels(row) {
                    rows.push((channel, self.deliver(channel, subscribers, pace)?));
                }
                print_fan_out(subscribers, pace, &rows);
            }
        }
        Ok(())
    }

    fn deliver(&self, channel: Channel, subscribers: usize, pace: Pace) -> Result<Measured<Value>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        if let Err(refused) = channel.open(&served, TOPIC)? {
            return Ok(Err(refused));
        }
        let secs = self.arguments.secs;
        let ours = channel.peer == Peer::Tidings;
        let (after, lasting) = (Duration::from_secs_f64(BEFORE), Duration::from_secs_f64(secs));
        let profile = ours.then(|| Profile::of(&served.process, after, lasting)).transpose()?;
        let mut more = pace.arguments(channel, &served);
        more.extend(["--secs", &secs.to_string(), "--warmup", "1"].map(str::to_owned));
        let printed = self.liveload(channel, &served, subscribers, &more)?;
        drop(profile);
        Ok(Liveload::deliveries(&printed, subscribers))
    }

    fn liveload(
        &self,
        channel: Channel,
        served: &Served,
        subscribers: usize,
        more: &[String],
    ) -> Result<String, Failed> {
        let liveload = Liveload { binary: self.arguments.liveload.clone() };
        Ok(liveload.run(served, channel.wire, &channel.subscribe_path("{topic}"), subscribers, more)?)
    }

    fn idle(&self) -> Result<(), Failed> {
        let connections = IDLE.min(files_limit().saturating_sub(FILES_TO_SPARE));
        println!("\n## Idle connections\n");
        println!(
            "| server | connections | held | RSS per connection | tidings SSE takes | tidings WebSocket takes |"
        );
        println!("|---|---|---|---|---|---|");
        let mut rows = Vec::new();
        for channel in self.channels(|channel| format!("idle, {}", channel.name())) {
            rows.push((channel, self.hold(channel, connections)?));
        }
        let of = |wire| ours(&rows, wire, |held: &Held| Some(held.kilobytes));
        for (channel, row) in &rows {
            let name = channel.name();
            match row {
                Err(why) => println!("| {name} | {} | {why} | | | |", grouped(connections)),
                Ok(held) => {
                    let theirs = (channel.peer != Peer::Tidings).then_some(held.kilobytes);
                    println!(
                        "| {name} | {} | {} | {:.1} KB | {} | {} |",
                        grouped(connections),
                        grouped(held.count),
                        held.kilobytes,
                        ratio(of(Wire::Sse), theirs),
                        ratio(of(Wire::WebSocket), theirs)
                    );
                }
            }
        }
        Ok(())
    }

    fn hold(&self, channel: Channel, connections: usize) -> Result<Measured<Held>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        if let Err(refused) = channel.open(&served, TOPIC)? {
            return Ok(Err(refused));
        }
        let more = ["--hold", "3", "--connect-par", "128"].map(str::to_owned);
        let printed = self.liveload(channel, &served, connections, &more)?;
        Ok(Held::parse(&printed))
    }
}

/// Figure of tidings on a protocol, if it was measured.
fn ours<T>(rows: &[(Channel, Measured<T>)], wire: Wire, figure: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    let wanted = Channel { peer: Peer::Tidings, wire };
    rows.iter()
        .find(|(channel, _)| *channel == wanted)
        .and_then(|(_, row)| row.as_ref().ok())
        .and_then(figure)
}

fn print_fan_out(subscribers: usize, pace: Pace, rows: &[(Channel, Measured<Value>)]) {
    let per_cpu = |row: &Value| row["deliv_per_cpu_s"].as_f64();
    let (sse, socket) = (ours(rows, Wire::Sse, per_cpu), ours(rows, Wire::WebSocket, per_cpu));
    for (channel, row) in rows {
        let start = format!("| {} | {} | {} |", grouped(subscribers), pace.name(), channel.name());
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                println!("{start} {why} | | | | | | | | | |");
                continue;
            }
        };
        let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
        let theirs = (channel.peer != Peer::Tidings).then(|| number("deliv_per_cpu_s"));
        // For our own rows the ratio compares the two protocols.
        let (sse, socket) = match (channel.peer, channel.wire) {
            (Peer::Tidings, Wire::WebSocket) => (ratio(sse, socket), String::new()),
            _ => (ratio(sse, theirs), ratio(socket, theirs)),
        };
        // Nothing that was published in the measured time arrived within it: the server lags that far behind.
        let latency = match (number("p50_ms"), number("p99_ms")) {
            (p50, p99) if p50 > 0.0 => format!("{p50:.1} / {p99:.1}"),
            _ => "none in time".to_owned(),
        };
        let order =
            if pace.has_order(*channel) { grouped(number("disorder") as usize) } else { String::new() };
        println!(
            "{start} {} | {} | {latency} | {:.0} % | {:.0} % | {:.1} KB | {} | {order} | {sse} | {socket} |",
            grouped(number("deliv_s") as usize),
            grouped(number("deliv_per_cpu_s") as usize),
            number("server_cpu") * 100.0,
            number("client_cpu") * 100.0,
            number("rss_per_conn_kb"),
            number("lost"),
        );
    }
}
