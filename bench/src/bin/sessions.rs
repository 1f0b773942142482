//! Publishing to sessions over HTTP: how many deliveries a second are durable, what each writes to the disk, and how long a
//! publish takes; beside the naive way, an append to each of as many plain streams. Prints tables in Markdown.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use tidings_bench::{Done, Head, Load, Outcome, Peer, Raw, Served, Setup, Work, grouped, report};

type Failed = Box<dyn Error>;

/// Deliveries of one row, about.
const DELIVERIES: usize = 8_000_000;
const PUBLISHES: std::ops::RangeInclusive<usize> = 300..=40_000;
const CONNECTIONS: usize = 32;
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

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let raw = Raw::measure(&arguments.root.join("target"), Duration::from_secs(2))?;
    raw.print();
    let data = arguments.root.join("target/bench/data");
    std::fs::create_dir_all(&data)?;
    let served: Served = Peer::Tidings.start(&Setup { root: arguments.root.clone(), data, cores: None })?;
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
