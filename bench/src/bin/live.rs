//! Benchmark of live delivery and idle connections, compared with other servers, driven by the load generator
//! `liveload`. The server runs on core 0, the load generator on core 1. Prints tables in Markdown.

use std::time::Duration;

use clap::Parser;
use tidings_bench::{
    Channel, Deliveries, Failed, Held, Liveload, Measured, Pace, Peer, Raw, Scope, Served, Setup,
    Subscribers, Wire, connections_within, figure, grouped, ratio,
};

/// Name of the first topic of `liveload`.
const TOPIC: &str = "t0";
const SUBSCRIBERS: [usize; 2] = [500, 2_000];
const PACES: [Pace; 3] = [Pace::Window(1), Pace::Window(32), Pace::Rate(50)];
const IDLE: usize = 10_000;

/// Live delivery compared with other servers.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help(
    "Run only rows whose name contains this, such as \"500 subscribers, window 1, tidings\""
)))]
struct Arguments {
    #[command(flatten)]
    liveload: Liveload,
    #[command(flatten)]
    scope: Scope,
}

/// Arguments of `liveload` to publish. With many messages in flight the publisher must not be the bottleneck:
/// HTTP uses a connection for each, a WebSocket is one connection, and the reader polls all its sockets in
/// turn.
fn publishing(pace: Pace, channel: Channel, served: &Served) -> Vec<String> {
    let (address, path) = (served.address, channel.publish_path("{topic}"));
    // Not Nchan: it drops messages in flight when a publisher's WebSocket ends, and they would count as
    // lost.
    let by_socket = channel.peer == Peer::Bun;
    let mut all = pace.arguments();
    let mut add = |more: &[&str]| all.extend(more.iter().map(|&word| word.to_owned()));
    let scheme = if by_socket { "ws" } else { "http" };
    add(&["--pub", &format!("{scheme}://{address}{path}")]);
    if pace.is_many() {
        add(&["--reader", "sweep", "--sweep-us", "500"]);
    }
    if !by_socket {
        add(&["--pub-header", "Content-Type: text/plain"]);
    }
    if pace.is_many() && !by_socket {
        add(&["--pub-conns", "32"]);
    }
    all
}

/// Whether one connection published everything, so that there is an order.
fn has_order(pace: Pace, channel: Channel) -> bool {
    pace != Pace::Window(32) || channel.peer == Peer::Bun
}

struct Bench {
    arguments: Arguments,
    setup: Setup,
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (folder, setup) = arguments.scope.setup("live")?;
    let setup = setup.apart()?;
    Raw::measure(folder.path(), Duration::from_secs(1))?.print();
    let bench = Bench { arguments, setup };
    bench.fan_out()?;
    bench.idle()
}

impl Bench {
    fn channels(&self, row: &str) -> Vec<Channel> {
        self.arguments.scope.channels(&Channel::ALL, row)
    }

    fn fan_out(&self) -> Result<(), Failed> {
        println!(
            "\n## Fan-out\n\nServer on core 0, client on core 1; {} s a row; 100 bytes a message.\n",
            self.arguments.liveload.secs
        );
        println!(
            "| subscribers | load | server | deliveries/s | per server-CPU-second | p50 / p99 ms | server's core | client's core \
             | RSS per connection | lost | out of order | tidings SSE is | tidings WebSocket is |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        for subscribers in SUBSCRIBERS {
            for pace in PACES {
                let row = format!("{subscribers} subscribers, {}", pace.name());
                let mut rows = Vec::new();
                for channel in self.channels(&row) {
                    rows.push((channel, self.deliver(channel, subscribers, pace)?));
                }
                print_fan_out(subscribers, pace, &rows);
            }
        }
        Ok(())
    }

    fn deliver(&self, channel: Channel, count: usize, pace: Pace) -> Result<Measured<Deliveries>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        if let Err(refused) = channel.open(&served, TOPIC)? {
            return Ok(Err(refused));
        }
        let subscribers =
            Subscribers { served: &served, channel, path: &channel.subscribe_path("{topic}"), count };
        Ok(self.arguments.liveload.deliver(&subscribers, publishing(pace, channel, &served))?)
    }

    fn idle(&self) -> Result<(), Failed> {
        let connections = connections_within(IDLE);
        println!("\n## Idle connections\n");
        println!(
            "| server | connections | held | RSS per connection | tidings SSE takes | tidings WebSocket takes |"
        );
        println!("|---|---|---|---|---|---|");
        let mut rows = Vec::new();
        for channel in self.channels("idle") {
            rows.push((channel, self.hold(channel, connections)?));
        }
        let of =
            |wire| figure(&rows, Channel { peer: Peer::Tidings, wire }, |held: &Held| Some(held.kilobytes));
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

    fn hold(&self, channel: Channel, count: usize) -> Result<Measured<Held>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        if let Err(refused) = channel.open(&served, TOPIC)? {
            return Ok(Err(refused));
        }
        let subscribers =
            Subscribers { served: &served, channel, path: &channel.subscribe_path("{topic}"), count };
        Ok(self.arguments.liveload.hold(&subscribers, Vec::new())?)
    }
}

fn print_fan_out(subscribers: usize, pace: Pace, rows: &[(Channel, Measured<Deliveries>)]) {
    let per_cpu = |wire| figure(rows, Channel { peer: Peer::Tidings, wire }, Deliveries::per_cpu);
    let (sse, socket) = (per_cpu(Wire::Sse), per_cpu(Wire::WebSocket));
    for (channel, row) in rows {
        let start = format!("| {} | {} | {} |", grouped(subscribers), pace.name(), channel.name());
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                println!("{start} {why} | | | | | | | | | |");
                continue;
            }
        };
        let theirs = (channel.peer != Peer::Tidings).then(|| row.per_cpu().unwrap_or(0.0));
        // For our own rows the ratio compares the two protocols.
        let (sse, socket) = match (channel.peer, channel.wire) {
            (Peer::Tidings, Wire::WebSocket) => (ratio(sse, socket), String::new()),
            _ => (ratio(sse, theirs), ratio(socket, theirs)),
        };
        let order = if has_order(pace, *channel) { grouped(row.disorder()) } else { String::new() };
        println!("{start} {} | {order} | {sse} | {socket} |", row.columns());
    }
}
