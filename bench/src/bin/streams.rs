//! Benchmark of appends, creates and catch-up over HTTP, compared with the two servers of the protocol's
//! authors, one after the other on the same cores and the same disk. Prints tables in Markdown.

use std::time::Duration;

use clap::{Parser, ValueEnum};
use tidings_bench::{Done, Failed, Head, Load, Outcome, Peer, Raw, Scope, Served, Setup, Usage, Work};
use tidings_bench::{files_limit, grouped, ratio};

const PAYLOAD_BYTES: usize = 100;
const WARM_UP: Duration = Duration::from_secs(1);
const MANY_STREAMS: usize = 100_000;
/// Files that a server needs in addition to one per stream.
const FILES_TO_SPARE: usize = 5_000;
/// Messages of the stream that is read from its beginning, 2 MB in total.
const CATCH_UP_MESSAGES: usize = 20_000;

/// Appends, creates and catch-up over HTTP, compared with the servers of the protocol's authors.
#[derive(Debug, Parser)]
#[command(mut_arg("only", |only| only.help("Run only rows whose name contains this, such as \"append, 32\"")))]
struct Arguments {
    /// Seconds to measure each row.
    #[arg(long, env = "SECS", default_value_t = 4.0)]
    secs: f64,
    /// Server and client on both cores (shared), or the server on core 0 and the client on core 1.
    #[arg(long, env = "CORES", value_enum, default_value = "shared")]
    cores: Cores,
    #[command(flatten)]
    scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Cores {
    Shared,
    Apart,
}

/// Appends to random streams; the same sequence for every server.
struct Appends {
    request: Vec<u8>,
    streams: usize,
    random: fastrand::Rng,
}

/// Creates streams, each once.
struct Creates {
    next: usize,
    end: usize,
}

/// Reads a stream from its beginning to its tail, repeatedly, on each connection.
struct CatchUp {
    offsets: Vec<Option<String>>,
}

/// Offset of the digits of the stream's number in a request line.
const DIGITS_AT: usize = "POST /v1/stream/s".len();
const DIGITS: usize = 8;

fn path(number: usize) -> String {
    format!("/v1/stream/s{number:0DIGITS$}")
}

impl Appends {
    fn new(streams: usize) -> Self {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: {PAYLOAD_BYTES}\r\n\r\n",
            path(0)
        );
        let mut request = head.into_bytes();
        request.resize(request.len() + PAYLOAD_BYTES, b'x');
        Self { request, streams, random: fastrand::Rng::with_seed(7) }
    }
}

impl Work for Appends {
    fn request(&mut self, _: usize, into: &mut Vec<u8>) -> bool {
        let mut number = if self.streams == 1 { 0 } else { self.random.usize(..self.streams) };
        for digit in self.request[DIGITS_AT..DIGITS_AT + DIGITS].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        into.extend_from_slice(&self.request);
        true
    }

    fn answer(&mut self, _: usize, head: &Head) -> Done {
        if matches!(head.status, 200 | 204) { Done::Whole } else { Done::Failed }
    }
}

impl Work for Creates {
    fn request(&mut self, _: usize, into: &mut Vec<u8>) -> bool {
        if self.next == self.end {
            return false;
        }
        let head = "HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n";
        into.extend_from_slice(format!("PUT {} {head}", path(self.next)).as_bytes());
        self.next += 1;
        true
    }

    fn answer(&mut self, _: usize, head: &Head) -> Done {
        if head.status == 201 { Done::Whole } else { Done::Failed }
    }
}

impl Work for CatchUp {
    fn request(&mut self, connection: usize, into: &mut Vec<u8>) -> bool {
        let offset = self.offsets[connection].as_deref().unwrap_or("-1");
        let request = format!("GET {}?offset={offset} HTTP/1.1\r\nHost: localhost\r\n\r\n", path(0));
        into.extend_from_slice(request.as_bytes());
        true
    }

    fn answer(&mut self, connection: usize, head: &Head) -> Done {
        let offset = &mut self.offsets[connection];
        *offset = head.next_offset.clone().filter(|_| head.status == 200 && !head.up_to_date);
        match (head.status, &offset) {
            (200, Some(_)) => Done::Part,
            (200, None) => Done::Whole,
            _ => Done::Failed,
        }
    }
}

/// One row of the report.
struct Row {
    peer: Peer,
    rate: f64,
    /// Median latency in microseconds.
    p50: f64,
    /// 99th percentile of the latency in microseconds.
    p99: f64,
    /// CPU time of the server per operation, in microseconds.
    cpu: f64,
    /// CPU time of the client, as a fraction of a core.
    client: f64,
    failed: usize,
    /// Bytes per second.
    bytes: f64,
}

struct Bench {
    setup: Setup,
    arguments: Arguments,
    peers: Vec<Peer>,
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let (folder, setup) = arguments.scope.setup("streams")?;
    let apart = arguments.cores == Cores::Apart;
    let setup = if apart { setup.apart()? } else { setup };
    let cores =
        if apart { "server on core 0, client on core 1" } else { "server and client share all cores" };
    println!(
        "- {cores}; {} s a row after {} s; {PAYLOAD_BYTES} bytes a message",
        arguments.secs,
        WARM_UP.as_secs()
    );
    Raw::measure(folder.path(), Duration::from_secs(1))?.print();
    let everybody = [Peer::Tidings, Peer::OfficialRust, Peer::OfficialNode];
    let peers = if arguments.scope.alone { vec![Peer::Tidings] } else { everybody.to_vec() };
    let bench = Bench { setup, arguments, peers };
    bench.appends()?;
    bench.creates()?;
    bench.catch_up()
}

impl Bench {
    fn wanted(&self, what: &str) -> bool {
        self.arguments.scope.has_row(what)
    }

    fn appends(&self) -> Result<(), Failed> {
        let reachable = MANY_STREAMS.min(files_limit().saturating_sub(FILES_TO_SPARE));
        let mut counts = vec![1, 1_000, reachable, MANY_STREAMS];
        counts.dedup();
        let name = |connections: usize, streams: usize| {
            format!(
                "append, {connections} connections, {} stream{}",
                grouped(streams),
                if streams == 1 { "" } else { "s" }
            )
        };
        println!("\n## Appends");
        if reachable < MANY_STREAMS {
            println!(
                "\nThe official Rust server needs an open file for each stream, and {} are allowed here: it is measured\n\
                 with {} streams and not with {}.",
                grouped(files_limit()),
                grouped(reachable),
                grouped(MANY_STREAMS)
            );
        }
        header("ops/s");
        for streams in counts {
            let connections: Vec<_> =
                [32, 256].into_iter().filter(|&c| self.wanted(&name(c, streams))).collect();
            let mut rows: Vec<Vec<Row>> = connections.iter().map(|_| Vec::new()).collect();
            for &peer in &self.peers {
                if connections.is_empty() || (peer == Peer::OfficialRust && streams > reachable) {
                    continue;
                }
                let served = self.filled(peer, streams)?;
                for (rows, &connections) in rows.iter_mut().zip(&connections) {
                    let mut load = Load::connect(served.address, connections)?;
                    let mut appends = Appends::new(streams);
                    load.run(&mut appends, Some(WARM_UP))?;
                    rows.push(self.measure(peer, &served, &mut load, &mut appends)?);
                }
            }
            for (rows, connections) in rows.iter().zip(connections) {
                print_rows(&name(connections, streams), rows, |row| row.rate);
            }
        }
        Ok(())
    }

    fn creates(&self) -> Result<(), Failed> {
        let all = [(32, "create, 32 connections"), (1, "create, one after another")];
        let wanted: Vec<_> = all.into_iter().filter(|(_, name)| self.wanted(name)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        println!("\n## Creates");
        header("ops/s");
        for (connections, name) in wanted {
            let mut rows = Vec::new();
            for &peer in &self.peers {
                let served = peer.start(&self.setup)?;
                let mut load = Load::connect(served.address, connections)?;
                // At most as many as the official Rust server can have open, and no warm-up, because streams
                // stay open.
                let end = files_limit().saturating_sub(FILES_TO_SPARE);
                let end = if peer == Peer::OfficialRust { end } else { usize::MAX };
                rows.push(self.measure(peer, &served, &mut load, &mut Creates { next: 0, end })?);
            }
            print_rows(name, &rows, |row| row.rate);
        }
        Ok(())
    }

    fn catch_up(&self) -> Result<(), Failed> {
        let (connections, name) = (4, "catch-up, 2 MB stream, 4 connections");
        if !self.wanted(name) {
            return Ok(());
        }
        println!("\n## Catch-up");
        header("MB/s");
        let mut rows = Vec::new();
        for &peer in &self.peers {
            let served = self.filled(peer, 1)?;
            self.fill(&served)?;
            let mut load = Load::connect(served.address, connections)?;
            let mut catch_up = CatchUp { offsets: vec![None; connections] };
            load.run(&mut catch_up, Some(WARM_UP))?;
            rows.push(self.measure(peer, &served, &mut load, &mut catch_up)?);
        }
        print_rows(name, &rows, |row| row.bytes / 1e6);
        Ok(())
    }

    /// Starts a server with `streams` empty streams.
    fn filled(&self, peer: Peer, streams: usize) -> Result<Served, Failed> {
        let served = peer.start(&self.setup)?;
        let mut load = Load::connect(served.address, 32)?;
        let outcome = load.run(&mut Creates { next: 0, end: streams }, None)?;
        if outcome.failed > 0 {
            return Err(format!("{}: {} of {streams} creates failed", peer.name(), outcome.failed).into());
        }
        Ok(served)
    }

    /// Appends the messages to the first stream that are then caught up with.
    fn fill(&self, served: &Served) -> Result<(), Failed> {
        struct Some(Appends, usize);
        impl Work for Some {
            fn request(&mut self, connection: usize, into: &mut Vec<u8>) -> bool {
                self.1 = self.1.saturating_sub(1);
                self.1 > 0 && self.0.request(connection, into)
            }
            fn answer(&mut self, connection: usize, head: &Head) -> Done {
                self.0.answer(connection, head)
            }
        }
        Load::connect(served.address, 32)?.run(&mut Some(Appends::new(1), CATCH_UP_MESSAGES + 1), None)?;
        Ok(())
    }

    fn measure(
        &self,
        peer: Peer,
        served: &Served,
        load: &mut Load,
        work: &mut impl Work,
    ) -> Result<Row, Failed> {
        let lasting = Duration::from_secs_f64(self.arguments.secs);
        let profile = peer.profile(served, Duration::ZERO, lasting)?;
        let (before, own) = (served.process.usage(), Usage::now());
        let mut outcome = load.run(work, Some(lasting))?;
        let (after, own_after) = (served.process.usage(), Usage::now());
        drop(profile);
        Ok(Row::new(peer, &mut outcome, after.cpu - before.cpu, own_after.cpu - own.cpu))
    }
}

impl Row {
    fn new(peer: Peer, outcome: &mut Outcome, server_cpu: f64, client_cpu: f64) -> Self {
        let (done, elapsed) = (outcome.times.count() as f64, outcome.elapsed.as_secs_f64());
        Self {
            peer,
            rate: outcome.rate(),
            p50: outcome.times.quantile(0.5),
            p99: outcome.times.quantile(0.99),
            cpu: server_cpu * 1e6 / done.max(1.0),
            client: client_cpu / elapsed,
            failed: outcome.failed,
            bytes: outcome.bytes as f64 / elapsed,
        }
    }
}

fn header(unit: &str) {
    println!(
        "\n| what | server | {unit} | p50 / p99 ms | server CPU us/op | client's core | tidings is | failed |"
    );
    println!("|---|---|---|---|---|---|---|---|");
}

fn print_rows(name: &str, rows: &[Row], figure: impl Fn(&Row) -> f64) {
    let ours = rows.iter().find(|row| row.peer == Peer::Tidings).map(&figure);
    for row in rows {
        let theirs = (row.peer != Peer::Tidings).then(|| figure(row));
        let ratio = ratio(ours, theirs);
        println!(
            "| {name} | {} | {} | {:.2} / {:.2} | {:.1} | {:.0} % | {ratio} | {} |",
            row.peer.name(),
            grouped(figure(row).round() as usize),
            row.p50 / 1000.0,
            row.p99 / 1000.0,
            row.cpu,
            row.client * 100.0,
            row.failed,
        );
    }
}
