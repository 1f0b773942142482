//! Benchmark of publishing to sessions over HTTP: durable deliveries per second, bytes written to the device
//! per delivery, and latency of a publish, compared with an append to each of as many plain streams. Then the
//! cost of one live reader for each of 1,000 sessions. Prints tables in Markdown.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use tidings_bench::{
    Audience, Failed, Load, Outcome, Peer, Raw, Requests, Served, Setup, device_bytes, grouped, report,
    request,
};

/// Approximate number of deliveries per row.
const DELIVERIES: usize = 8_000_000;
const PUBLISHES: std::ops::RangeInclusive<usize> = 300..=40_000;
const CONNECTIONS: usize = 32;
/// Sessions with a live reader each.
const HEARD: usize = 1000;
/// Messages in flight: published and not yet received by all readers.
const WINDOW: usize = 4;
/// Duration of publishing to live readers.
const HEARING: Duration = Duration::from_secs(5);
/// Publishes of the part that counts device writes; so many that what is still in memory at the end is
/// negligible.
const WRITTEN_PUBLISHES: usize = 40_000;
/// Time without a delivery after which a run fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Publishing to sessions, compared with an append to each of as many plain streams.
#[derive(Debug, Parser)]
struct Arguments {
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Skip sources with more subscribers than this.
    #[arg(long, env = "SUBSCRIBERS", default_value_t = 100_000)]
    subscribers: usize,
    /// Run one part only: publishing, device, few, many or live.
    #[arg(long, env = "ONLY")]
    only: Option<String>,
}

/// Sends `count` requests; fails if one of them fails.
fn make(
    address: SocketAddr,
    connections: usize,
    count: usize,
    make: impl FnMut(usize) -> String,
) -> Result<Outcome, Failed> {
    let outcome = Requests::new(count, make).send(address, connections)?;
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

/// Counters of the server.
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

/// Waits until `count` more deliveries than before are durable, and returns the counters.
fn delivered(address: SocketAddr, before: Counted, count: usize) -> Result<Counted, Failed> {
    let begun = Instant::now();
    loop {
        let now = counted(address)?;
        if now.delivered - before.delivered >= count as f64 {
            return Ok(now);
        }
        if begun.elapsed() > TIMEOUT {
            let got = now.delivered - before.delivered;
            return Err(format!("only {got} of {count} deliveries were made").into());
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// Total bytes of the messages in a stream.
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

/// Results of one row.
struct Row {
    publishes: f64,
    deliveries: f64,
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
            return Err(format!("a session received {heard} of {published} bytes").into());
        }
    }
    let deliveries = (count * subscribers) as f64;
    let payloads = (count * bytes) as f64;
    let row = Row { publishes: outcome.rate(), deliveries: deliveries / elapsed };
    println!(
        "| {} | {} | {} | {} | {} | {:.1} | {:.1} |",
        grouped(subscribers),
        grouped(bytes),
        grouped(count),
        grouped(row.publishes as usize),
        grouped(row.deliveries as usize),
        (after.written - before.written) / deliveries,
        (after.written - before.written - payloads) / deliveries,
    );
    Ok(row)
}

/// Waits until no more deliveries are made.
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

/// Device bytes per delivery, including segments, merges and writes of other processes.
fn written(address: SocketAddr, data: &Path, subscribers: usize, bytes: usize) -> Result<f64, Failed> {
    let source = format!("written{bytes}x");
    create(address, &source, 1)?;
    let source = format!("{source}0");
    subscribe(address, &source, subscribers)?;
    quiet(data)?;
    let (before, device) = (counted(address)?, device_bytes(data)?);
    publish(address, CONNECTIONS, &source, WRITTEN_PUBLISHES, bytes)?;
    let deliveries = WRITTEN_PUBLISHES * subscribers;
    delivered(address, before, deliveries)?;
    Ok((quiet(data)? - device) / deliveries as f64)
}

/// Waits until the device is nearly idle, and returns the bytes written so far.
fn quiet(data: &Path) -> Result<f64, Failed> {
    const LITTLE: f64 = 1e6;
    let mut before = device_bytes(data)?;
    for _ in 0..30 {
        std::thread::sleep(Duration::from_secs(1));
        let now = device_bytes(data)?;
        if now - before < LITTLE {
            return Ok(now);
        }
        before = now;
    }
    Ok(before)
}

/// Milliseconds from a publish until all subscribers have it: median and minimum of many. Sessions are served
/// in the order of their creation, so the last one is listened to.
fn until_all_have_it(address: SocketAddr, subscribers: usize) -> Result<(f64, f64), Failed> {
    create(address, "many", 1)?;
    subscribe(address, "many0", subscribers - 1)?;
    let last = r#"{"sessionId":"last","streamId":"many0"}"#;
    make(address, 1, 1, |_| request("POST /v1/bench/subscribe", "application/json", last))?;
    let before = settled(address, counted(address)?)?;
    let mut listening = Listening::begin(address, "last")?;
    let (rounds, mut times) = (21, Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        publish(address, 1, "many0", 1, 100)?;
        listening.next_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(50));
    }
    let after = settled(address, counted(address)?)?;
    if after.delivered - before.delivered != (rounds * subscribers) as f64 {
        return Err(format!("{} deliveries were made", after.delivered - before.delivered).into());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[rounds / 2], times[0]))
}

/// A live reader of a session.
struct Listening {
    socket: TcpStream,
    got: Vec<u8>,
}

impl Listening {
    fn begin(address: SocketAddr, session: &str) -> Result<Self, Failed> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let path = format!("/v1/bench/stream/{session}?offset=now&live=sse");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut listening = Self { socket, got: Vec::new() };
        listening.until(b"event: control")?;
        Ok(listening)
    }

    /// Waits for the next message.
    fn next_data(&mut self) -> Result<(), Failed> {
        self.until(b"event: data")
    }

    fn until(&mut self, wanted: &[u8]) -> Result<(), Failed> {
        loop {
            if let Some(at) = self.got.windows(wanted.len()).position(|part| part == wanted) {
                self.got.drain(..at + wanted.len());
                return Ok(());
            }
            let mut more = [0; 4096];
            match self.socket.read(&mut more)? {
                0 => return Err("it was hung up on".into()),
                count => self.got.extend_from_slice(&more[..count]),
            }
        }
    }
}

/// Environment of one part.
struct Bench<'a> {
    address: SocketAddr,
    /// Data folder of the server.
    data: &'a Path,
    /// Folder in which the raw sync of the same disk is measured.
    beside: &'a Path,
}

impl Bench<'_> {
    fn publishing(&self, most: usize) -> Result<(), Failed> {
        println!(
            "\n| subscribers | bytes | publishes | publishes/s | deliveries/s | log bytes/delivery | without payload |"
        );
        println!("|---|---|---|---|---|---|---|");
        let mut thousand = None;
        for subscribers in [1, 100, 1000, 10_000].into_iter().filter(|&count| count <= most) {
            for bytes in [100, 1024] {
                let row = row(self.address, subscribers, bytes)?;
                if (subscribers, bytes) == (1000, 100) {
                    thousand = Some(row);
                }
            }
        }
        let naive = naive(self.address, 1000, 100)?;
        aims();
        let Some(row) = thousand else { return Ok(()) };
        let rate = grouped(row.deliveries as usize);
        report("durable deliveries/s, 1,000 subscribers", &rate, ">= 1,000,000", row.deliveries >= 1e6);
        let beside = format!("{:.0}x ({}/s)", row.deliveries / naive, grouped(naive as usize));
        let met = row.deliveries >= 50.0 * naive;
        report("beside an append to each of 1,000 plain streams", &beside, ">= 50x", met);
        Ok(())
    }

    fn device(&self) -> Result<(), Failed> {
        aims();
        for bytes in [100, 1024] {
            let written = written(self.address, self.data, 1000, bytes)?;
            let what = format!("device bytes per delivery, 1,000 subscribers, {} bytes", grouped(bytes));
            report(&what, &format!("{written:.1}"), "<= 30", written <= 30.0);
        }
        Ok(())
    }

    fn few(&self) -> Result<(), Failed> {
        quiet(self.data)?;
        // The load of the machine changes from minute to minute, so the disk is measured before and after.
        let before = Raw::measure(self.beside, Duration::from_secs(1))?.p50;
        let (p50, p99) = latency(self.address, 200)?;
        let raw = (before + Raw::measure(self.beside, Duration::from_secs(1))?.p50) / 2.0;
        aims();
        let told = format!("p50 {p50:.0} us, p99 {p99:.0} us; {:.1} raw syncs of {raw:.0} us", p50 / raw);
        report("publish to 200 subscribers, one connection", &told, "p50 <= 3 raw syncs", p50 <= 3.0 * raw);
        Ok(())
    }

    fn many(&self) -> Result<(), Failed> {
        let (middle, best) = until_all_have_it(self.address, 100_000)?;
        aims();
        let told = format!("p50 {middle:.1} ms, best {best:.1} ms");
        report("one publish durable in 100,000 sessions", &told, "<= 20 ms", middle <= 20.0);
        Ok(())
    }
}

fn aims() {
    println!("\n| what | measured | aim | |");
    println!("|---|---|---|---|");
}

/// Publishes to sessions with one live reader each, and checks that all receive everything.
fn hear(setup: &Setup, bytes: usize) -> Result<(), Failed> {
    const MARK: char = '~';
    // A server of its own, so that its memory does not include earlier parts.
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
        let outcome = publisher.run(&mut Requests::new(1, |_| text.clone()), None)?;
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

/// Measures live readers of many sessions for several message sizes.
fn live(setup: &Setup) -> Result<(), Failed> {
    println!("\n{} sessions with one live SSE reader each, {WINDOW} messages under way:\n", grouped(HEARD));
    println!("| bytes | deliveries/s | server's CPU, us per delivery | server's memory, MB |");
    println!("|---|---|---|---|");
    [100, 512, 1024, 4096, 16 << 10, 64 << 10].into_iter().try_for_each(|bytes| hear(setup, bytes))
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let beside = arguments.root.join("target");
    Raw::measure(&beside, Duration::from_secs(2))?.print();
    let data = arguments.root.join("target/bench/data");
    std::fs::create_dir_all(&data)?;
    let setup = Setup { root: arguments.root.clone(), data, cores: None, flags: Vec::new() };
    let served: Served = Peer::Tidings.start(&setup)?;
    let bench = Bench { address: served.address, data: &served.data, beside: &beside };
    let most = arguments.subscribers;
    for part in ["publishing", "device", "few", "many", "live"] {
        if arguments.only.as_ref().is_some_and(|only| only != part) {
            continue;
        }
        println!("\nPart `{part}`:");
        match part {
            "publishing" => bench.publishing(most)?,
            "device" if most >= 1000 => bench.device()?,
            "few" => bench.few()?,
            "many" if most >= 100_000 => bench.many()?,
            "live" => live(&setup)?,
            _ => println!("\nnot with so few subscribers"),
        }
    }
    Ok(())
}
