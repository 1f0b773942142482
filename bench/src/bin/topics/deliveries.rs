//! Fan-out of one topic, and many topics with a subscriber each.

use tidings_bench::{
    Channel, Deliveries, Failed, Measured, Pace, Peer, Subscribers, connections_within, figure, grouped,
    ratio,
};

use crate::speech::{Publishing, subscribing};
use crate::{Bench, beside, figure_of};

const PACES: [Pace; 3] = [Pace::Window(1), Pace::Window(32), Pace::Rate(50)];
/// Messages in flight when each goes to one subscriber.
const IN_FLIGHT: Pace = Pace::Window(64);
/// Bytes of a message, without its envelope.
const MESSAGE_BYTES: usize = 100;

/// Who receives, and how fast it is published.
#[derive(Clone, Copy, Debug)]
struct Load {
    topics: usize,
    subscribers: usize,
    pace: Pace,
}

impl Load {
    fn name(self) -> String {
        let Self { topics, subscribers, pace } = self;
        match topics {
            1 => format!("{subscribers} subscribers, {}", pace.name()),
            _ => format!("{topics} topics, {}", pace.name()),
        }
    }

    fn publishing(self) -> Publishing {
        if self.topics == 1 { Publishing::InOrder } else { Publishing::ToMany }
    }
}

type Rows = Vec<(Channel, Measured<Deliveries>)>;

impl Bench {
    pub fn fan_out(&mut self) -> Result<(), Failed> {
        println!(
            "\n## Fan-out\n\nServer on core 0, client on core 1; {} s a row; {MESSAGE_BYTES} bytes a message, in an envelope of about 60.\n",
            self.arguments.liveload.secs
        );
        print_head();
        for subscribers in self.arguments.subscribers.clone() {
            for pace in PACES {
                let load = Load { topics: 1, subscribers, pace };
                let rows = self.rows(load)?;
                print_rows(load, &rows);
                self.compare(load, &rows);
            }
        }
        Ok(())
    }

    pub fn many_topics(&mut self) -> Result<(), Failed> {
        let subscribers = connections_within(self.arguments.topics);
        let load = Load { topics: subscribers, subscribers, pace: IN_FLIGHT };
        println!(
            "\n## {} topics, a subscriber each\n\nPublished by HTTP with 32 connections; to ws-kit and NATS by as many of their own.\n",
            grouped(subscribers)
        );
        print_head();
        let rows = self.rows(load)?;
        print_rows(load, &rows);
        if let Some(rate) = figure_of(&rows, Peer::Tidings, |row| Some(row.published())) {
            let measured = format!("{}/s", grouped(rate as usize));
            self.goal("POST to one subscriber".to_owned(), measured, ">= 40,000/s".to_owned(), rate >= 40e3);
        }
        Ok(())
    }

    fn rows(&self, load: Load) -> Result<Rows, Failed> {
        let mut rows = Vec::new();
        for channel in self.channels(&load.name()) {
            rows.push((channel, self.deliver(channel, load)?));
        }
        Ok(rows)
    }

    fn deliver(&self, channel: Channel, load: Load) -> Result<Measured<Deliveries>, Failed> {
        let served = match self.start(channel)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let subscribing = subscribing(channel.peer);
        let mut more = load.pace.arguments();
        more.extend(subscribing.arguments());
        more.extend(load.publishing().arguments(channel.peer, &served));
        more.extend(["--size".to_owned(), MESSAGE_BYTES.to_string()]);
        more.extend(["--topics".to_owned(), load.topics.to_string()]);
        more.extend(["--connect-par", "128"].map(str::to_owned));
        // Polling all sockets in turn pays off when most of them have data.
        if load.pace.is_many() && load.topics == 1 {
            more.extend(["--reader", "sweep", "--sweep-us", "500"].map(str::to_owned));
        }
        let subscribers =
            Subscribers { served: &served, channel, path: subscribing.path, count: load.subscribers };
        Ok(self.arguments.liveload.deliver(&subscribers, more)?)
    }

    /// Records what the figures of a fan-out are to be.
    fn compare(&mut self, load: Load, rows: &Rows) {
        let Some((ours, Ok(row))) = rows.iter().find(|(channel, _)| channel.peer == Peer::Tidings) else {
            return;
        };
        let (name, per_cpu) = (load.name(), figure(rows, *ours, Deliveries::per_cpu));
        let rates = || grouped(per_cpu.unwrap_or(0.0) as usize);
        match (load.subscribers, load.pace) {
            (500, Pace::Window(1)) => self.goal(
                format!("{name}: per server-CPU-second"),
                rates(),
                ">= 200,000".to_owned(),
                per_cpu >= Some(200e3),
            ),
            (2_000, Pace::Window(32)) => self.goal(
                format!("{name}: deliveries/s"),
                grouped(row.rate() as usize),
                ">= 2,000,000".to_owned(),
                row.rate() >= 2e6,
            ),
            (2_000, Pace::Rate(_)) => {
                let (p50, p99) = row.latency();
                let met = p50 > 0.0 && p50 <= 10.0 && p99 <= 20.0;
                let measured = format!("{p50:.1} / {p99:.1}");
                self.goal(format!("{name}: p50 / p99 ms"), measured, "<= 10 / 20".to_owned(), met);
            }
            _ => {}
        }
        let at_least = [(Peer::Bun, true, 1.0), (Peer::WsKit, load.pace.is_many(), 10.0)];
        for (peer, applies, factor) in at_least {
            let theirs = figure_of(rows, peer, Deliveries::per_cpu);
            let (Some(ours), Some(theirs), true, Pace::Window(_)) = (per_cpu, theirs, applies, load.pace)
            else {
                continue;
            };
            self.goal(
                format!("{name}: per server-CPU-second beside {}", peer.name()),
                ratio(Some(ours), Some(theirs)),
                format!(">= {factor:.1}x"),
                ours >= factor * theirs,
            );
        }
        let (lost, disorder) = (row.lost(), row.disorder());
        self.goal(
            format!("{name}: lost, out of order"),
            format!("{lost}, {disorder}"),
            "0, 0".to_owned(),
            lost == 0 && disorder == 0,
        );
    }
}

fn print_head() {
    println!(
        "| topics | subscribers | load | server | deliveries/s | per server-CPU-second | p50 / p99 ms | server's core \
         | client's core | RSS per connection | lost | out of order | tidings is | per CPU-second |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
}

fn print_rows(load: Load, rows: &Rows) {
    for (channel, row) in rows {
        let start = format!(
            "| {} | {} | {} | {} |",
            grouped(load.topics),
            grouped(load.subscribers),
            load.pace.name(),
            channel.name()
        );
        let row = match row {
            Ok(row) => row,
            Err(why) => {
                println!("{start} {why} | | | | | | | | | |");
                continue;
            }
        };
        // Several publishing connections have no order among them.
        let has_order = load.topics == 1 && (channel.peer != Peer::Nchan || !load.pace.is_many());
        let order = if has_order { grouped(row.disorder()) } else { String::new() };
        println!(
            "{start} {} | {order} | {} | {} |",
            row.columns(),
            beside(rows, *channel, |row| Some(row.rate())),
            beside(rows, *channel, Deliveries::per_cpu),
        );
    }
}
