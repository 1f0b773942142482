//! Connections that subscribe and unsubscribe all the time.

use std::time::Duration;

use tidings_bench::{Channel, Failed, Measured, Outcome, Talk, connections_within, grouped};

use crate::speech::{self, Change, subscribing};
use crate::{Bench, beside};

/// To which topics the connections subscribe.
#[derive(Clone, Copy, Debug)]
enum Topics {
    /// All to the same one.
    One,
    /// Each to one of its own.
    Own,
}

/// Changes of subscriptions, and what they cost.
struct Changes {
    outcome: Outcome,
    /// CPU time of the server in seconds.
    cpu: f64,
}

impl Changes {
    fn per_cpu(&self) -> Option<f64> {
        (self.cpu > 0.0).then(|| self.outcome.times.count() as f64 / self.cpu)
    }
}

impl Bench {
    pub fn changes(&self) -> Result<(), Failed> {
        let connections = connections_within(self.arguments.changing);
        println!(
            "\n## Changes of subscriptions\n\n{connections} connections subscribe and unsubscribe in turn; each waits for the answer before it asks again.\n"
        );
        println!(
            "| topics | server | requests/s | per server-CPU-second | p50 / p99 ms | server's core | tidings is | per CPU-second |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        for topics in [Topics::Own, Topics::One] {
            let name = match topics {
                Topics::Own => "own",
                Topics::One => "the same",
            };
            let mut rows = Vec::new();
            for channel in self.channels(&format!("changes, {name}")) {
                // Where a connection is a subscription there are none.
                if let Some(mark) = speech::changed(channel.peer) {
                    rows.push((channel, self.change(channel, topics, mark, connections)?));
                }
            }
            print(name, rows);
        }
        Ok(())
    }

    fn change(
        &self,
        channel: Channel,
        topics: Topics,
        mark: &'static str,
        connections: usize,
    ) -> Result<Measured<Changes>, Failed> {
        let served = match self.start(channel)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let path = subscribing(channel.peer).path.replace("{topic}", "t0");
        let mut talk = Talk::open(served.address, channel.wire, &path, connections, mark)?;
        let request = |connection: usize, asked: usize| {
            let topic = match topics {
                Topics::One => "changed".to_owned(),
                Topics::Own => format!("changed-{connection}"),
            };
            let change =
                if asked.is_multiple_of(2) { Change::Subscribe(&topic) } else { Change::Unsubscribe(&topic) };
            speech::change(channel.peer, change)
        };
        // The first second is not measured. Each connection may have changed any number of times before it.
        if let Err(why) = talk.run(Duration::from_secs(1), request) {
            return Ok(Err(why.to_string()));
        }
        let lasting = Duration::from_secs_f64(self.arguments.liveload.secs);
        let profile = channel.peer.profile(&served, Duration::ZERO, lasting)?;
        let before = served.process.usage().cpu;
        let outcome = talk.run(lasting, request);
        let cpu = served.process.usage().cpu - before;
        drop(profile);
        Ok(outcome.map(|outcome| Changes { outcome, cpu }).map_err(|why| why.to_string()))
    }
}

fn print(topics: &str, mut rows: Vec<(Channel, Measured<Changes>)>) {
    for at in 0..rows.len() {
        let channel = rows[at].0;
        let start = format!("| {topics} | {} |", channel.name());
        let rate = beside(&rows, channel, |row| Some(row.outcome.rate()));
        let per_cpu = beside(&rows, channel, Changes::per_cpu);
        match &mut rows[at].1 {
            Err(why) => println!("{start} {why} | | | | | |"),
            Ok(row) => println!(
                "{start} {} | {} | {:.2} / {:.2} | {:.0} % | {rate} | {per_cpu} |",
                grouped(row.outcome.rate() as usize),
                grouped(row.per_cpu().unwrap_or(0.0) as usize),
                row.outcome.times.quantile(0.5) / 1e3,
                row.outcome.times.quantile(0.99) / 1e3,
                row.cpu / row.outcome.elapsed.as_secs_f64() * 100.0,
            ),
        }
    }
}
