//! Benchmark of rooms compared with nginx and Nchan: fan-out in one room and in many, idle connections, and
//! catch-up after many missed events. The server runs on core 0, the client on core 1. Prints tables in
//! Markdown.
//!
//! Both deliver the same events, cursors included. But tidings has synced an event to disk when it answers,
//! while Nchan holds it in memory.

use std::io;
use std::time::{Duration, Instant};

use clap::Parser;
use tidings_bench::{
    Channel, Deliveries, Failed, Held, Liveload, Measured, Pace, Peer, Raw, Requests, Scope, Served, Setup,
    Stamps, Subscribers, Wire,
};
use tidings_bench::{connections_within, figure, grouped, ratio, report, request, stamped};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

const CHANNELS: [Channel; 4] = [
    Channel { peer: Peer::Tidings, wire: Wire::Sse },
    Channel { peer: Peer::Tidings, wire: Wire::WebSocket },
    Channel { peer: Peer::Nchan, wire: Wire::Sse },
    Channel { peer: Peer::Nchan, wire: Wire::WebSocket },
];
const PACES_IN_ONE_ROOM: [Pace; 3] = [Pace::Window(1), Pace::Window(32), Pace::Rate(50)];
const PACES_IN_MANY_ROOMS: [Pace; 2] = [Pace::Window(32), Pace::Rate(500)];
/// Name of the first topic of `liveload`.
const ROOM: &str = "t0";
/// Bytes of a message's text, without its envelope.
const MESSAGE_BYTES: usize = 100;
const EVENTS_PER_REQUEST: usize = 1000;
const PUBLISHERS: usize = 32;
/// Numbers of readers that catch up at the same time.
const RETURNING: [usize; 2] = [1, 10];
/// Time without missed events after which a run fails.
const TIMEOUT: Duration = Duration::from_secs(60);
/// First message on a WebSocket. tidings waits up to a second for a client to send its cursor; any message
/// ends the wait.
const FIRST_MESSAGE: &str = r#"{"type":"ping"}"#;

/// Rooms compared with nginx and Nchan.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help(
    "Run only rows whose name contains this, such as \"500 readers, window 1, tidings\", \"rooms\", \"idle\" or \
     \"missed\""
)))]
struct Arguments {
    #[command(flatten)]
    liveload: Liveload,
    #[command(flatten)]
    scope: Scope,
    /// Readers of one room.
    #[arg(long, env = "READERS", value_delimiter = ',', default_values_t = [500, 2_000])]
    readers: Vec<usize>,
    /// Number of rooms in the benchmark of many.
    #[arg(long, env = "ROOMS", default_value_t = 1_000)]
    rooms: usize,
    /// Readers of each room in the benchmark of many.
    #[arg(long, env = "READERS_PER_ROOM", default_value_t = 10)]
    readers_per_room: usize,
    /// Idle connections to hold.
    #[arg(long, env = "IDLE", default_value_t = 10_000)]
    idle: usize,
    /// Events that a reader has missed.
    #[arg(long, env = "MISSED", default_value_t = 50_000)]
    missed: usize,
}

/// Path and body to publish with; `{topic}` and `{payload}` are replaced by room and text.
fn publishing(peer: Peer) -> (&'static str, String) {
    let payload = r#"{"messageView":{"text":"{payload}"}}"#;
    match peer {
        Peer::Tidings => {
            ("/v1/bench/rooms/{topic}/events", format!(r#"{{"type":"messageEvent","payload":{payload}}}"#))
        }
        _ => (
            "/publish/{topic}",
            format!(
                r#"{{"cursor":"01J9ZK0S5V6ZB9WQ0ZP3S9WJ7H","convoId":"{{topic}}","emittedAt":"2025-10-22T22:00:00.000Z","payload":{payload}}}"#
            ),
        ),
    }
}

/// Path to subscribe to.
fn subscribing(peer: Peer) -> &'static str {
    match peer {
        Peer::Tidings => "/v1/bench/rooms/{topic}/events",
        _ => "/subscribe/{topic}",
    }
}

/// Arguments of `liveload` that send the first message, if the channel needs one.
fn first_message(channel: Channel) -> &'static [&'static str] {
    if channel == CHANNELS[1] { &["--sub-msg", FIRST_MESSAGE] } else { &[] }
}

struct Bench {
    arguments: Arguments,
    setup: Setup,
    runtime: tokio::runtime::Runtime,
    /// Rows that have a goal: name, our rate, and the rate to reach.
    aims: Vec<(String, f64, f64)>,
}

/// Number of rooms and readers, and the pace of publishing.
#[derive(Clone, Copy, Debug)]
struct Crowd {
    rooms: usize,
    readers: usize,
    pace: Pace,
}

impl Crowd {
    fn name(self) -> String {
        if self.rooms == 1 {
            format!("{} readers, {}", self.readers, self.pace.name())
        } else {
            format!("{} rooms, {} readers, {}", self.rooms, self.readers, self.pace.name())
        }
    }
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (folder, setup) = arguments.scope.setup("rooms")?;
    let setup = setup.apart()?;
    Raw::measure(folder.path(), Duration::from_secs(1))?.print();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut bench = Bench { arguments, setup, runtime, aims: Vec::new() };
    bench.fan_out()?;
    bench.idle()?;
    bench.missed()?;
    bench.print_aims();
    Ok(())
}

impl Bench {
    fn channels(&self, row: &str) -> Vec<Channel> {
        self.arguments.scope.channels(&CHANNELS, row)
    }

    /// Starts a server with these rooms, and checks that one can be subscribed to.
    fn start(&self, channel: Channel, rooms: usize) -> Result<Measured<Served>, Failed> {
        let served = channel.peer.start(&self.setup)?;
        if channel.peer == Peer::Tidings {
            let body = r#"{"add":["dev"],"remove":[]}"#;
            let requests =
                Requests::new(rooms, |number| post(&format!("/v1/bench/rooms/t{number}/members"), body));
            let failed = requests.send(served.address, PUBLISHERS.min(rooms))?.failed;
            if failed > 0 {
                return Ok(Err(format!("{failed} of {rooms} rooms could not be made")));
            }
        }
        let path = subscribing(channel.peer).replace("{topic}", ROOM);
        Ok(channel.wire.subscribe(served.address, &path)?.map(|()| served))
    }

    fn fan_out(&mut self) -> Result<(), Failed> {
        println!(
            "\n## Fan-out\n\nServer on core 0, client on core 1; {} s a row; {MESSAGE_BYTES} bytes a message, in an event of about 260.\n",
            self.arguments.liveload.secs
        );
        println!(
            "| rooms | readers | load | server | deliveries/s | per server-CPU-second | p50 / p99 ms | server's core \
             | client's core | RSS per connection | lost | out of order | tidings is | per CPU-second |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
        let one = self.arguments.readers.iter().flat_map(|&readers| {
            PACES_IN_ONE_ROOM.into_iter().map(move |pace| Crowd { rooms: 1, readers, pace })
        });
        let rooms = self.arguments.rooms;
        let readers = connections_within(rooms * self.arguments.readers_per_room);
        let many = PACES_IN_MANY_ROOMS.into_iter().map(|pace| Crowd { rooms, readers, pace });
        let crowds: Vec<Crowd> = one.chain(many).collect();
        for crowd in crowds {
            let mut rows = Vec::new();
            for channel in self.channels(&crowd.name()) {
                rows.push((channel, self.deliver(channel, crowd)?));
            }
            print_fan_out(crowd, &rows);
            self.aim(crowd, &rows);
        }
        Ok(())
    }

    fn deliver(&self, channel: Channel, crowd: Crowd) -> Result<Measured<Deliveries>, Failed> {
        let served = match self.start(channel, crowd.rooms)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let (path, body) = publishing(channel.peer);
        let mut more = crowd.pace.arguments();
        let mut add = |words: &[&str]| more.extend(words.iter().map(|&word| word.to_owned()));
        add(&["--size", &MESSAGE_BYTES.to_string()]);
        add(&["--topics", &crowd.rooms.to_string(), "--connect-par", "128"]);
        add(&["--pub", &format!("http://{}{path}", served.address), "--pub-body", &body]);
        add(&["--pub-header", "Content-Type: application/json"]);
        if crowd.pace.is_many() {
            add(&["--pub-conns", &PUBLISHERS.to_string()]);
        }
        // Polling all sockets in turn pays off when most of them have data.
        if crowd.pace.is_many() && crowd.rooms == 1 {
            add(&["--reader", "sweep", "--sweep-us", "500"]);
        }
        add(first_message(channel));
        let readers =
            Subscribers { served: &served, channel, path: subscribing(channel.peer), count: crowd.readers };
        Ok(self.arguments.liveload.deliver(&readers, more)?)
    }

    fn idle(&self) -> Result<(), Failed> {
        let connections = connections_within(self.arguments.idle);
        println!("\n## Idle connections\n");
        println!("| server | connections | held | RSS per connection | tidings takes |");
        println!("|---|---|---|---|---|");
        let mut rows = Vec::new();
        for channel in self.channels("idle") {
            rows.push((channel, self.hold(channel, connections)?));
        }
        for (channel, row) in &rows {
            let (name, connections) = (channel.name(), grouped(connections));
            match row {
                Err(why) => println!("| {name} | {connections} | {why} | | |"),
                Ok(held) => println!(
                    "| {name} | {connections} | {} | {:.1} KB | {} |",
                    grouped(held.count),
                    held.kilobytes,
                    // Few connections may fit into memory that the server had already; the difference then
                    // counts as zero.
                    beside(&rows, *channel, |held: &Held| held.kilobytes.max(0.0)),
                ),
            }
        }
        Ok(())
    }

    fn hold(&self, channel: Channel, count: usize) -> Result<Measured<Held>, Failed> {
        let served = match self.start(channel, 1)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let more = first_message(channel).iter().map(|&word| word.to_owned()).collect();
        let readers = Subscribers { served: &served, channel, path: subscribing(channel.peer), count };
        Ok(self.arguments.liveload.hold(&readers, more)?)
    }

    fn missed(&self) -> Result<(), Failed> {
        let missed = self.arguments.missed;
        println!(
            "\n## Missed events\n\n{} events were written while nobody listened; readers get all of them, all at the same time.\n",
            grouped(missed)
        );
        println!("| readers | server | all have all after | events/s | server CPU us/event | tidings is |");
        println!("|---|---|---|---|---|---|");
        for readers in RETURNING {
            let mut rows = Vec::new();
            for channel in self.channels(&format!("{readers} missed")) {
                rows.push((channel, self.come_back(channel, readers)?));
            }
            for (channel, row) in &rows {
                let name = channel.name();
                match row {
                    Err(why) => println!("| {readers} | {name} | {why} | | | |"),
                    Ok(back) => println!(
                        "| {readers} | {name} | {:.3} s | {} | {:.2} | {} |",
                        back.elapsed,
                        grouped(back.rate() as usize),
                        back.cpu * 1e6 / back.events as f64,
                        beside(&rows, *channel, Back::rate),
                    ),
                }
            }
        }
        Ok(())
    }

    fn come_back(&self, channel: Channel, readers: usize) -> Result<Measured<Back>, Failed> {
        let served = match self.start(channel, 1)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let missed = self.arguments.missed;
        let failed = write(&served, channel.peer, missed)?;
        if failed > 0 {
            return Ok(Err(format!("{failed} requests to write events failed")));
        }
        let path = match channel.peer {
            Peer::Tidings => format!("{}?cursor=oldest", subscribing(channel.peer).replace("{topic}", ROOM)),
            _ => format!("/kept/subscribe/{ROOM}"),
        };
        let (before, began) = (served.process.usage().cpu, Instant::now());
        let reading = async {
            let all: Vec<_> = (0..readers)
                .map(|_| spawn_local(read(channel, served.address, path.clone(), missed)))
                .collect();
            for one in all {
                one.await??;
            }
            Ok::<(), Failed>(())
        };
        if let Err(why) = LocalSet::new().block_on(&self.runtime, reading) {
            return Ok(Err(why.to_string()));
        }
        let (elapsed, after) = (began.elapsed().as_secs_f64(), served.process.usage().cpu);
        Ok(Ok(Back { events: missed * readers, elapsed, cpu: after - before }))
    }

    /// Records the goal of a closed loop: at least as many deliveries per second as Nchan.
    fn aim(&mut self, crowd: Crowd, rows: &[(Channel, Measured<Deliveries>)]) {
        let rate = |channel| figure(rows, channel, |row: &Deliveries| Some(row.rate()));
        for (ours, theirs) in [(CHANNELS[0], CHANNELS[2]), (CHANNELS[1], CHANNELS[3])] {
            if let (Pace::Window(_), Some(our), Some(their)) = (crowd.pace, rate(ours), rate(theirs)) {
                self.aims.push((format!("{}, {}", crowd.name(), ours.name()), our, their));
            }
        }
    }

    fn print_aims(&self) {
        if self.aims.is_empty() {
            return;
        }
        println!("\n## Aim\n\n| deliveries/s | measured | aim | |\n|---|---|---|---|");
        for (what, ours, theirs) in &self.aims {
            let measured = format!("{} ({})", grouped(*ours as usize), ratio(Some(*ours), Some(*theirs)));
            report(what, &measured, &format!(">= {} of Nchan", grouped(*theirs as usize)), ours >= theirs);
        }
    }
}

/// Result of catching up.
struct Back {
    /// Events received by all readers together.
    events: usize,
    elapsed: f64,
    /// CPU time of the server in seconds.
    cpu: f64,
}

impl Back {
    fn rate(&self) -> f64 {
        self.events as f64 / self.elapsed
    }
}

fn post(path: &str, body: &str) -> String {
    request(&format!("POST {path}"), "application/json", body)
}

/// Writes events in order, in batches as large as the server accepts; returns how many requests failed.
fn write(served: &Served, peer: Peer, events: usize) -> io::Result<usize> {
    let (path, body) = publishing(peer);
    let (path, body) = (path.replace("{topic}", ROOM), body.replace("{topic}", ROOM));
    let event = body.replace("{payload}", &stamped(Duration::ZERO, MESSAGE_BYTES));
    if peer != Peer::Tidings {
        let requests = Requests::new(events, |_| post(&format!("/kept{path}"), &event));
        return Ok(requests.send(served.address, 1)?.failed);
    }
    let requests = Requests::new(events.div_ceil(EVENTS_PER_REQUEST), |number| {
        let count = EVENTS_PER_REQUEST.min(events - number * EVENTS_PER_REQUEST);
        post(&path, &format!("[{}]", vec![&*event; count].join(",")))
    });
    Ok(requests.send(served.address, 1)?.failed)
}

/// Reads from a path until all events have arrived.
async fn read(
    channel: Channel,
    address: std::net::SocketAddr,
    path: String,
    events: usize,
) -> io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(channel.wire.request(address, &path).as_bytes()).await?;
    if channel == CHANNELS[1] {
        // A text frame with a mask of zeros.
        let mut frame = vec![0x81, 0x80 | FIRST_MESSAGE.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(FIRST_MESSAGE.as_bytes());
        socket.write_all(&frame).await?;
    }
    let (mut stamps, mut came, began) = (Stamps::default(), 0, Instant::now());
    let mut buffer = vec![0; 256 << 10];
    while came < events {
        let count = timeout(TIMEOUT, socket.read(&mut buffer)).await;
        match count {
            Ok(Ok(0)) => {
                return Err(io::Error::other(format!(
                    "the server closed the connection after {came} events"
                )));
            }
            Ok(count) => stamps.feed(&buffer[..count?], began, |_| came += 1),
            Err(_) => return Err(io::Error::other(format!("only {came} of {events} events arrived"))),
        }
    }
    Ok(())
}

/// Ratio of our figure to another server's, on the same protocol.
fn beside<T>(rows: &[(Channel, Measured<T>)], channel: Channel, of: impl Fn(&T) -> f64) -> String {
    if channel.peer == Peer::Tidings {
        return String::new();
    }
    let ours = Channel { peer: Peer::Tidings, wire: channel.wire };
    let figure = |channel| figure(rows, channel, |row| Some(of(row)));
    ratio(figure(ours), figure(channel))
}

fn print_fan_out(crowd: Crowd, rows: &[(Channel, Measured<Deliveries>)]) {
    for (channel, row) in rows {
        let start = format!(
            "| {} | {} | {} | {} |",
            grouped(crowd.rooms),
            grouped(crowd.readers),
            crowd.pace.name(),
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
        let order = if crowd.pace.is_many() { String::new() } else { grouped(row.disorder()) };
        println!(
            "{start} {} | {order} | {} | {} |",
            row.columns(),
            beside(rows, *channel, Deliveries::rate),
            beside(rows, *channel, |row| row.per_cpu().unwrap_or(0.0)),
        );
    }
}
