//! Benchmark of topics on two nodes over NATS and over Redis, beside these brokers alone and one node alone: how long a
//! message takes when it is alone, and how many pass. Servers and client share all cores. Prints tables in Markdown.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Parser;
use tidings_bench::{
    Failed, Flow, Outcome, Peer, Relay, Scope, Served, Setup, Wire, grouped, report, text_frame,
};

/// Topics on two nodes.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help("Run only rows whose name contains this, such as \"alone, two nodes\" or \"many, NATS\"")))]
struct Arguments {
    #[command(flatten)]
    scope: Scope,
    /// Seconds to measure each row.
    #[arg(long, env = "SECS", default_value_t = 4.0)]
    secs: f64,
    /// Connections that publish when many messages are on their way.
    #[arg(long, env = "PUBLISHERS", default_value_t = 32)]
    publishers: usize,
    /// Messages on their way when there are many.
    #[arg(long, env = "WINDOW", default_value_t = 2048)]
    window: usize,
}

/// Bytes of a message, without what it is wrapped in.
const MESSAGE_BYTES: usize = 100;
/// Topic that is published to.
const TOPIC: &str = "t0";
/// What a subscriber of a broker receives: as much as a subscriber of tidings.
const ENVELOPE: (&str, &str) = (r#"{"type":"HEARD","meta":{"topic":"t0"},"payload":{"m":""#, r#""}}"#);
/// Goals: milliseconds above the broker, and messages per second.
const MILLISECONDS_ABOVE: f64 = 2.0;
const MESSAGES: f64 = 100e3;
/// Time before the measurement, in which everything becomes warm.
const WARM_UP: Duration = Duration::from_secs(1);

/// What messages pass through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A broker alone.
    Broker(Peer),
    /// Two nodes of tidings and a broker.
    Nodes(Peer),
    /// One node of tidings.
    Node,
}

/// How many messages are on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Alone,
    Many,
}

const WAYS: [Way; 5] = [
    Way::Broker(Peer::Nats),
    Way::Nodes(Peer::Nats),
    Way::Broker(Peer::Redis),
    Way::Nodes(Peer::Redis),
    Way::Node,
];

/// The servers of a row.
struct Servers {
    broker: Option<Served>,
    /// The node that is published to, and the one that is subscribed to.
    nodes: Vec<Served>,
}

/// What a row measured.
struct Row {
    way: Way,
    outcome: Outcome,
    /// CPU seconds of the nodes, in their order, and of the broker.
    cpu: Vec<f64>,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Broker(broker) => format!("{} alone", broker.name()),
            Self::Nodes(broker) => format!("two nodes over {}", broker.name()),
            Self::Node => "one node".to_owned(),
        }
    }

    fn start(self, setup: &Setup) -> io::Result<Servers> {
        let broker = match self {
            Self::Broker(broker) | Self::Nodes(broker) => Some((broker, broker.start(setup)?)),
            Self::Node => None,
        };
        let count = match self {
            Self::Broker(_) => 0,
            Self::Node => 1,
            Self::Nodes(_) => 2,
        };
        let bus = broker.as_ref().map(|(broker, served)| {
            let scheme = if *broker == Peer::Nats { "nats" } else { "redis" };
            format!("[bus]\nurl = '{scheme}://{}'\n", served.address)
        });
        let nodes = (0..count).map(|number| node(setup, number, bus.as_deref().unwrap_or_default()));
        let nodes = nodes.collect::<io::Result<_>>()?;
        Ok(Servers { broker: broker.map(|(_, served)| served), nodes })
    }

    /// A connection that has subscribed, and connections to publish on.
    fn connect(self, servers: &Servers, publishers: usize) -> io::Result<Relay> {
        let (from, to) = match (servers.nodes.as_slice(), &servers.broker) {
            ([], Some(broker)) => (broker.address, broker.address),
            ([node], _) => (node.address, node.address),
            ([first, .., last], _) => (first.address, last.address),
            ([], None) => return Err(io::Error::other("nothing was started")),
        };
        let receiver = self.subscriber(to)?;
        let senders = (0..publishers).map(|_| self.opened(from)).collect::<io::Result<_>>()?;
        Ok(Relay::new(senders, receiver))
    }

    fn opened(self, address: SocketAddr) -> io::Result<TcpStream> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        match self {
            Self::Broker(Peer::Nats) => socket.write_all(Wire::Nats.request(address, "").as_bytes())?,
            Self::Broker(_) => {}
            Self::Nodes(_) | Self::Node => {
                let request = Wire::WebSocket.request(address, "/v1/bench/topics");
                socket.write_all(request.as_bytes())?;
                read_until(&mut socket, "\"$hello\"")?;
            }
        }
        Ok(socket)
    }

    fn subscriber(self, address: SocketAddr) -> io::Result<TcpStream> {
        let mut socket = self.opened(address)?;
        let (request, answer) = match self {
            Self::Broker(Peer::Nats) => (format!("SUB {TOPIC} 1\r\nPING\r\n").into_bytes(), "PONG"),
            Self::Broker(_) => (redis(&["SUBSCRIBE", TOPIC]), ":1\r\n"),
            Self::Nodes(_) | Self::Node => {
                let request = format!(
                    r#"{{"type":"$subscribe","meta":{{"correlationId":"s"}},"payload":{{"topic":"{TOPIC}","options":{{"waitFor":"settled"}}}}}}"#
                );
                (text_frame(&request), r#""total":1"#)
            }
        };
        socket.write_all(&request)?;
        read_until(&mut socket, answer)?;
        Ok(socket)
    }

    /// The bytes that publish a message.
    fn publish(self, message: &str) -> Vec<u8> {
        let forwarded = || format!("{}{message}{}", ENVELOPE.0, ENVELOPE.1);
        match self {
            Self::Broker(Peer::Nats) => {
                let message = forwarded();
                format!("PUB {TOPIC} {}\r\n{message}\r\n", message.len()).into_bytes()
            }
            Self::Broker(_) => redis(&["PUBLISH", TOPIC, &forwarded()]),
            Self::Nodes(_) | Self::Node => text_frame(&format!(
                r#"{{"type":"$publish","payload":{{"topic":"{TOPIC}","message":{{"type":"HEARD","payload":{{"m":"{message}"}}}}}}}}"#
            )),
        }
    }
}

/// Starts a node with a configuration of its own.
fn node(setup: &Setup, number: usize, bus: &str) -> io::Result<Served> {
    let data = setup.data.join(format!("node-{number}"));
    std::fs::create_dir_all(&data)?;
    let file = data.join("tidings.toml");
    let rates = "[topics]\nrate_capacity = 1000000000\nrate_per_second = 1000000000\n";
    std::fs::write(&file, format!("{bus}{rates}"))?;
    let flags = vec!["--config".to_owned(), file.display().to_string()];
    Peer::Tidings.start(&Setup { data, flags, ..setup.clone() })
}

/// A command of Redis.
fn redis(words: &[&str]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    command.into_bytes()
}

/// Reads what a server says until a text has come.
fn read_until(socket: &mut TcpStream, text: &str) -> io::Result<()> {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    while memchr::memmem::find(&heard, text.as_bytes()).is_none() {
        match socket.read(&mut buffer)? {
            0 => {
                let said = String::from_utf8_lossy(&heard).into_owned();
                return Err(io::Error::other(format!("{text} was expected of {said:?}")));
            }
            count => heard.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (_folder, setup) = arguments.scope.setup("topics-cluster")?;
    println!(
        "\nOne topic, one subscriber; {MESSAGE_BYTES} bytes a message, in an envelope of about 60; {} s a row; two nodes are two processes, \
         and the subscriber is on the other one.",
        arguments.secs
    );
    let alone = arguments.measure(&setup, Pace::Alone)?;
    let many = arguments.measure(&setup, Pace::Many)?;
    print_goals(alone, &many);
    Ok(())
}

impl Arguments {
    fn measure(&self, setup: &Setup, pace: Pace) -> Result<Vec<Row>, Failed> {
        let (publishers, window) = match pace {
            Pace::Alone => (1, 1),
            Pace::Many => (self.publishers, self.window),
        };
        let (title, name) = match pace {
            Pace::Alone => ("One message at a time", "alone"),
            Pace::Many => ("Many messages", "many"),
        };
        println!("\n## {title}\n\nOn {publishers} connections, {window} on their way at most.\n");
        println!("| | messages/s | p50 / p99 ms | us of CPU per message: first node, second node, broker |");
        println!("|---|---|---|---|");
        let mut rows = Vec::new();
        for way in WAYS {
            if !self.scope.has_row(&format!("{name}, {}", way.name())) {
                continue;
            }
            match self.row(setup, way, publishers, window) {
                Ok(mut row) => {
                    print(&mut row);
                    rows.push(row);
                }
                Err(error) => println!("| {} | {error} | | |", way.name()),
            }
        }
        Ok(rows)
    }

    fn row(&self, setup: &Setup, way: Way, publishers: usize, window: usize) -> io::Result<Row> {
        let servers = way.start(setup)?;
        let flow = |lasting| Flow { window, bytes: MESSAGE_BYTES, lasting };
        let publish = |message: &str| way.publish(message);
        way.connect(&servers, publishers)?.run(flow(WARM_UP), publish)?;
        let relay = way.connect(&servers, publishers)?;
        let processes =
            || servers.nodes.iter().chain(&servers.broker).map(|served| served.process.usage().cpu);
        let before: Vec<f64> = processes().collect();
        let outcome = relay.run(flow(Duration::from_secs_f64(self.secs)), publish)?;
        let cpu = processes().zip(before).map(|(after, before)| after - before).collect();
        Ok(Row { way, outcome, cpu })
    }
}

fn print(row: &mut Row) {
    let count = row.outcome.times.count() as f64;
    let micros: Vec<String> = row.cpu.iter().map(|cpu| format!("{:.1}", cpu * 1e6 / count)).collect();
    let cpu = match row.way {
        Way::Broker(_) => format!("–, –, {}", micros.join(", ")),
        Way::Node => format!("{}, –, –", micros.join(", ")),
        Way::Nodes(_) => micros.join(", "),
    };
    println!(
        "| {} | {} | {:.2} / {:.2} | {cpu} |",
        row.way.name(),
        grouped(row.outcome.rate() as usize),
        row.outcome.times.quantile(0.5) / 1e3,
        row.outcome.times.quantile(0.99) / 1e3,
    );
}

fn print_goals(mut alone: Vec<Row>, many: &[Row]) {
    println!("\n## Goals\n\n| | measured | goal | |\n|---|---|---|---|");
    let mut median = |way: Way| {
        let row = alone.iter_mut().find(|row| row.way == way)?;
        Some(row.outcome.times.quantile(0.5) / 1e3)
    };
    for broker in [Peer::Nats, Peer::Redis] {
        let (Some(ours), Some(theirs)) = (median(Way::Nodes(broker)), median(Way::Broker(broker))) else {
            continue;
        };
        let what = format!("two nodes over {}: p50 above the broker's own", broker.name());
        let above = ours - theirs;
        report(&what, &format!("{above:.2} ms"), "<= 2 ms", above <= MILLISECONDS_ABOVE);
    }
    if let Some(row) = many.iter().find(|row| row.way == Way::Nodes(Peer::Nats)) {
        let rate = row.outcome.rate();
        let measured = format!("{}/s", grouped(rate as usize));
        report("two nodes over NATS", &measured, ">= 100,000/s", rate >= MESSAGES);
    }
}
