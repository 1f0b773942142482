//! Publishing to sessions over HTTP: how many deliveries a second are durable, what each writes to the disk, and how long a
//! publish takes; beside the naive way, an append to each of as many plain streams. Then what it takes that a live reader of
//! each of 1,000 sessions hears them. Prints tables in Markdown.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tidings_bench::{Audience, Done, Head, Load, Outcome, Peer, Raw, Served, Setup, Work, grouped, report};

type Failed = Box<dyn Error>;

/// Deliveries of one row, about.
const DELIVERIES: usize = 8_000_000;
const PUBLISHES: std::ops::RangeInclusive<usize> = 300..=40_000;
const CONNECTIONS: usize = 32;
/// Sessions that are heard live, each by one reader.
const HEARD: usize = 1000;
/// Messages that not all of them have heard yet.
const WINDOW: usize = 4;
/// How long they are published to.
const HEARING: Duration = Duration::from_secs(5);
/// Nothing is delivered for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// Publishing to sessions, beside an append to each of as many plain streams.
#[derive(Debug, Parser)]
struct Arguments {
    /// The folder of the tree.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Only sources with at most so many subscribers.
    #[arg(long, env = "SUBSCRIBERS", default_value_t = 100_000)]
    subscribers: usize,
    /// Only what live readers hear.
    #[arg(long)]
    live: bool,
}

/// Requests from a list of texts, each once, on whichever connection is free.
struct Requests<F> {
    make: F,
    next: usize,
    end: usize,
}

impl<F: FnMut(usize) -> String> Work for Requests<F> {
    fn request(&mut self, _: usize, into: &mut Vec<u8>) -> bool {
        if self.next == self.end {
            return false;
        }
        into.extend_from_slice((self.make)(self.next).as_bytes());
        self.next += 1;
        true
    }

    fn answer(&mut self, _: usize, head: &Head) -> Done {
        if (200..300).contains(&head.status) { Done::Whole } else { Done::Failed }
    }
}

fn request(line: &str, kind: &str, body: &str) -> String {
    format!(
        "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Makes so many requests on some connections; all must succeed.
fn make(
    address: SocketAddr,
    connections: usize,
    count: usize,
    make: impl FnMut(usize) -> String,
) -> Result<Outcome, Failed> {
    let mut load = Load::connect(address, connections)?;
    let outcome = load.run(&mut Requests { make, next: 0, end: count }, None)?;
    if outcome.failed > 0 {
        return Err(format!("{} of {count} requests failed", outcome.failed).into());
    }
    Ok(outcome)
}

fn create(address: SocketAddr, prefix: &str, count: usize) -> Result<Outcome, Failed> {
    make(address, CONNECTIONS, count, |n| {
        request(&format!("PUT /v1/bench/stream/{prefix}{n}"), "text/plain", "")
    })
}

fn subscribe(address: SocketAddr, source: &str, count: usize) -> Result<Outcome, Failed> {
    make(address, 64, count, |n| {
        let body = format!("{{\"sessionId\":\"{source}-{n}\",\"streamId\":\"{source}\"}}");
        request("POST /v1/bench/subscribe", "application/json", &body)
    })
}

fn publish(
    address: SocketAddr,
    connections: usize,
    source: &str,
    count: usize,
    bytes: usize,
) -> Result<Outcome, Failed> {
    let text = request(&format!("POST /v1/bench/publish/{source}"), "text/plain", &"x".repeat(bytes));
    make(address, connections, count, |_| text.clone())
}

/// What the server counts.
#[derive(Clone, Copy, Debug)]
struct Counted {
    delivered: f64,
    written: f64,
}

fn counted(address: SocketAddr) -> Result<Counted, Failed> {
    let mut socket = TcpStream::connect(address)?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let sum = |name: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    Ok(Counted {
        delivered: sum("tidings_session_deliveries_total"),
        written: sum("tidings_frame_bytes_total"),
    })
}

/// Waits until so many deliveries more than before are durable, and tells what was counted then.
fn delivered(address: SocketAddr, before: Counted, count: usize) -> Result<Counted, Failed> {
    let begun = Instant::now();
    loop {
        let now = counted(address)?;
        if now.delivered - before.delivered >= count as f64 {
            return Ok(now);
        }
        if begun.elapsed() > PATIENCE {
            let got = now.delivered - before.delivered;
            return Err(format!("only {got} of {count} deliveries were made").into());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Bytes of all messages that a stream has.
fn length(address: SocketAddr, id: &str) -> Result<usize, Failed> {
    let (mut length, mut offset) = (0, "-1".to_owned());
    loop {
        let mut socket = TcpStream::connect(address)?;
        let path = format!("/v1/bench/stream/{id}?offset={offset}");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer)?;
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no head")? + 4;
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        length += answer.len() - end;
        if head.contains("\nstream-up-to-date:") {
            return Ok(length);
        }
        let next = head.lines().find_map(|line| line.strip_prefix("stream-next-offset: "));
        offset = next.ok_or("no offset")?.to_owned();
    }
}

/// What one row found.
struct Row {
    publishes: f64,
    deliveries: f64,
    bytes: f64,
}

fn row(address: SocketAddr, subscribers: usize, bytes: usize) -> Result<Row, Failed> {
    let source = format!("n{subscribers}b{bytes}");
    create(address, &format!("{source}x"), 1)?;
    let source = format!("{source}x0");
    subscribe(address, &source, subscribers)?;
    publish(address, 1, &source, 20, bytes)?;
    let before = delivered(address, Counted { delivered: 0.0, written: 0.0 }, 0)?;
    let before = settled(address, before)?;
    let count = (DELIVERIES / subscribers).clamp(*PUBLISHES.start(), *PUBLISHES.end());
    let begun = Instant::now();
    let outcome = publish(address, CONNECTIONS, &source, count, bytes)?;
    let after = delivered(address, before, count * subscribers)?;
    let elapsed = begun.elapsed().as_secs_f64();
    for session in [0, subscribers - 1] {
        let (heard, published) =
            (length(address, &format!("{source}-{session}"))?, length(address, &source)?);
        if heard != published || heard != (count + 20) * bytes {
            return Err(format!("a session has {heard} bytes of {published}").into());
        }
    }
    let deliveries = (count * subscribers) as f64;
    let payloads = (count * bytes) as f64;
    let row = Row {
        publishes: outcome.rate(),
        deliveries: deliveries / elapsed,
        bytes: (after.written - before.written) / deliveries,
    };
    println!(
        "| {} | {} | {} | {} | {} | {:.1} | {:.1} |",
        grouped(subscribers),
        grouped(bytes),
        grouped(count),
        grouped(row.publishes as usize),
        grouped(row.deliveries as usize),
        row.bytes,
        (after.written - before.written - payloads) / deliveries,
    );
    Ok(row)
}

/// Waits until nothing is delivered any more.
fn settled(address: SocketAddr, mut before: Counted) -> Result<Counted, Failed> {
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let now = counted(address)?;
        if now.delivered == before.delivered {
            return Ok(now);
        }
        before = now;
    }
}

fn naive(address: SocketAddr, streams: usize, bytes: usize) -> Result<f64, Failed> {
    create(address, "plain", streams)?;
    let body = "x".repeat(bytes);
    let outcome = make(address, CONNECTIONS, 40_000, |n| {
        request(&format!("POST /v1/bench/stream/plain{}", n % streams), "text/plain", &body)
    })?;
    Ok(outcome.rate())
}

fn latency(address: SocketAddr, subscribers: usize) -> Result<(f64, f64), Failed> {
    create(address, "latency", 1)?;
    subscribe(address, "latency0", subscribers)?;
    publish(address, 1, "latency0", 200, 100)?;
    let mut outcome = publish(address, 1, "latency0", 3000, 100)?;
    Ok((outcome.times.quantile(0.5), outcome.times.quantile(0.99)))
}

/// How long it takes from a publish until so many have it.
fn until_all_have_it(address: SocketAddr, subscribers: usize) -> Result<f64, Failed> {
    create(address, "many", 1)?;
    subscribe(address, "many0", subscribers)?;
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let before = settled(address, counted(address)?)?;
        let begun = Instant::now();
        publish(address, 1, "many0", 1, 100)?;
        delivered(address, before, subscribers)?;
        best = best.min(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(best)
}

/// Publishes to sessions, each of which has one live reader, and sees that all of them hear it.
fn hear(setup: &Setup, bytes: usize) -> Result<(), Failed> {
    const MARK: char = '~';
    // One of its own, so that its memory is not that of what was before.
    let served = Peer::Tidings.start(setup)?;
    let (address, source) = (served.address, format!("live{bytes}x0"));
    create(address, &format!("live{bytes}x"), 1)?;
    subscribe(address, &source, HEARD)?;
    let paths = (0..HEARD).map(|n| format!("/v1/bench/stream/{source}-{n}?offset=now&live=sse"));
    let mut audience = Audience::of(address, paths, MARK as u8)?;
    let message = MARK.to_string().repeat(bytes);
    let mut publisher = Load::connect(address, 1)?;
    let text = request(&format!("POST /v1/bench/publish/{source}"), "text/plain", &message);
    let mut publish = |audience: &mut Audience, published: usize| -> Result<(), Failed> {
        while audience.heard + WINDOW * HEARD * bytes <= published * HEARD * bytes {
            audience.listen()?;
        }
        let outcome = publisher.run(&mut Requests { make: |_| text.clone(), next: 0, end: 1 }, None)?;
        if outcome.failed > 0 { Err("a publish failed".into()) } else { Ok(()) }
    };
    let mut published = 0;
    while published < 20 {
        publish(&mut audience, published)?;
        published += 1;
    }
    let (begun, cpu, before) = (Instant::now(), served.process.usage().cpu, audience.heard);
    while begun.elapsed() < HEARING {
        publish(&mut audience, published)?;
        published += 1;
    }
    while audience.heard < published * HEARD * bytes {
        audience.listen()?;
    }
    let (elapsed, cpu) = (begun.elapsed().as_secs_f64(), served.process.usage().cpu - cpu);
    if audience.heard != published * HEARD * bytes {
        return Err("somebody has heard more than was published".into());
    }
    let deliveries = (audience.heard - before) as f64 / bytes as f64;
    println!(
        "| {} | {} | {:.1} | {:.0} |",
        grouped(bytes),
        grouped((deliveries / elapsed) as usize),
        cpu * 1e6 / deliveries,
        served.process.usage().resident / 1e6,
    );
    Ok(())
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let raw = Raw::measure(&arguments.root.join("target"), Duration::from_secs(2))?;
    raw.print();
    let data = arguments.root.join("target/bench/data");
    std::fs::create_dir_all(&data)?;
    let setup = Setup { root: arguments.root.clone(), data, cores: None };
    if !arguments.live {
        fan_out(&setup, &arguments, &raw)?;
    }
    println!("\n{} sessions with one live SSE reader each, {WINDOW} messages under way:\n", grouped(HEARD));
    println!("| bytes | deliveries/s | server's CPU, us per delivery | server's memory, MB |");
    println!("|---|---|---|---|");
    for bytes in [100, 512, 1024, 4096, 16 << 10, 64 << 10] {
        hear(&setup, bytes)?;
    }
    Ok(())
}

fn fan_out(setup: &Setup, arguments: &Arguments, raw: &Raw) -> Result<(), Failed> {
    let served: Served = Peer::Tidings.start(setup)?;
    let address = served.address;
    println!(
        "\n| subscribers | bytes | publishes | publishes/s | deliveries/s | log bytes/delivery | without payload |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut thousand = None;
    for subscribers in [1, 100, 1000, 10_000].into_iter().filter(|&count| count <= arguments.subscribers) {
        for bytes in [100, 1024] {
            let row = row(address, subscribers, bytes)?;
            if (subscribers, bytes) == (1000, 100) {
                thousand = Some(row);
            }
        }
    }
    println!("\n| what | measured | aim | |");
    println!("|---|---|---|---|");
    let naive = naive(address, 1000, 100)?;
    if let Some(row) = thousand {
        let rate = grouped(row.deliveries as usize);
        report("durable deliveries/s, 1,000 subscribers", &rate, ">= 1,000,000", row.deliveries >= 1e6);
        let beside = format!("{:.0}x ({}/s)", row.deliveries / naive, grouped(naive as usize));
        report(
            "beside an append to each of 1,000 plain streams",
            &beside,
            ">= 50x",
            row.deliveries >= 50.0 * naive,
        );
        report(
            "log bytes per delivery, 100-byte payload",
            &format!("{:.1}", row.bytes),
            "<= 30",
            row.bytes <= 30.0,
        );
    }
    let (p50, p99) = latency(address, 200)?;
    let told = format!("p50 {p50:.0} us, p99 {p99:.0} us; {:.1} raw syncs", p50 / raw.p50);
    report("publish to 200 subscribers, one connection", &told, "p50 <= 3 raw syncs", p50 <= 3.0 * raw.p50);
    if arguments.subscribers >= 100_000 {
        let millis = until_all_have_it(address, 100_000)?;
        report(
            "one publish durable in 100,000 sessions",
            &format!("{millis:.1} ms"),
            "<= 20 ms",
            millis <= 20.0,
        );
    }
    Ok(())
}
