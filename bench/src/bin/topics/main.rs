//! Benchmark of topics compared with Bun, ws-kit, nginx with Nchan, and NATS: fan-out of one topic, 10,000
//! topics with a subscriber each, idle connections, and changes of subscriptions. The server runs on core 0,
//! the client on core 1. Prints tables in Markdown.
//!
//! Nothing that is measured here is stored, by none of the servers.

mod changes;
mod deliveries;
mod idle;
mod speech;

use clap::Parser;
use tidings_bench::{Channel, Failed, Liveload, Measured, Peer, Scope, Served, Setup, figure, report};

/// Topics compared with other servers.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help(
    "Run only rows whose name contains this, such as \"500 subscribers, window 1, tidings\", \"10000 topics\", \
     \"idle\" or \"changes\""
)))]
struct Arguments {
    #[command(flatten)]
    liveload: Liveload,
    #[command(flatten)]
    scope: Scope,
    /// Subscribers of one topic.
    #[arg(long, env = "SUBSCRIBERS", value_delimiter = ',', default_values_t = [500, 2_000])]
    subscribers: Vec<usize>,
    /// Topics with a subscriber each.
    #[arg(long, env = "TOPICS", default_value_t = 10_000)]
    topics: usize,
    /// Idle connections to hold.
    #[arg(long, env = "IDLE", default_value_t = 10_000)]
    idle: usize,
    /// Connections that change their subscriptions.
    #[arg(long, env = "CHANGING", default_value_t = 256)]
    changing: usize,
}

/// The benchmark.
struct Bench {
    arguments: Arguments,
    setup: Setup,
    goals: Vec<Goal>,
}

/// A figure that has to reach another.
struct Goal {
    what: String,
    measured: String,
    wanted: String,
    met: bool,
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (_folder, setup) = arguments.scope.setup("topics")?;
    let setup = setup.apart()?;
    let mut bench = Bench { arguments, setup, goals: Vec::new() };
    bench.fan_out()?;
    bench.many_topics()?;
    bench.idle()?;
    bench.changes()?;
    bench.print_goals();
    Ok(())
}

impl Bench {
    fn channels(&self, row: &str) -> Vec<Channel> {
        self.arguments.scope.channels(&speech::CHANNELS, row)
    }

    /// Starts a server, and checks that a connection for topics can be opened.
    fn start(&self, channel: Channel) -> Result<Measured<Served>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        let path = speech::subscribing(channel.peer).path.replace("{topic}", "t0");
        Ok(channel.wire.subscribe(served.address, &path)?.map(|()| served))
    }

    fn goal(&mut self, what: String, measured: String, wanted: String, met: bool) {
        self.goals.push(Goal { what, measured, wanted, met });
    }

    fn print_goals(&self) {
        if self.goals.is_empty() {
            return;
        }
        println!("\n## Goals\n\n| | measured | goal | |\n|---|---|---|---|");
        for Goal { what, measured, wanted, met } in &self.goals {
            report(what, measured, wanted, *met);
        }
    }
}

/// Figure of a server's row, if it was measured.
fn figure_of<T>(rows: &[(Channel, Measured<T>)], peer: Peer, of: impl Fn(&T) -> Option<f64>) -> Option<f64> {
    let (channel, _) = rows.iter().find(|(channel, _)| channel.peer == peer)?;
    figure(rows, *channel, of)
}

/// Ratio of tidings' figure to another server's; empty for tidings itself.
fn beside<T>(rows: &[(Channel, Measured<T>)], channel: Channel, of: impl Fn(&T) -> Option<f64>) -> String {
    if channel.peer == Peer::Tidings {
        return String::new();
    }
    tidings_bench::ratio(figure_of(rows, Peer::Tidings, &of), figure_of(rows, channel.peer, &of))
}
