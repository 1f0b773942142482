//! Benchmark of the index from patterns to subscribers: time to load it, memory, distinct names matched per second on
//! one core, latency of changes, and sets of patterns that were chosen to be slow. Beside it, in the same run, asking
//! every pattern. Prints tables in Markdown.

mod changes;
mod crafted;
mod workload;

use std::hint::black_box;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use tidings_bench::{Failed, Usage, grouped, report};
use tidings_engine::matching::Matcher;
use tidings_model::Pattern;

use crate::workload::Workload;

// As in the server, so that memory is what it would be there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Names that are matched before measuring.
const WARM_UP: usize = 20_000;
/// Duration of matching.
const MATCHING: Duration = Duration::from_secs(3);
/// Duration of loading, if one time takes less.
const LOADING: Duration = Duration::from_millis(500);
/// Duration of asking every pattern.
const SCANNING: Duration = Duration::from_secs(1);
/// Patterns that matchers of a process have together when their memory is measured.
const MEASURED_PATTERNS: usize = 1_000_000;

/// The index from patterns to subscribers.
#[derive(Debug, Parser)]
struct Arguments {
    /// Run one part only: matching, changes or crafted.
    #[arg(long, env = "ONLY")]
    only: Option<String>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Prints the bytes of resident memory that a pattern takes, for patterns on standard input, which are so many bytes. Needs
    /// a process of its own.
    #[command(hide = true)]
    Memory { bytes: usize },
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    if let Some(Part::Memory { bytes }) = arguments.part {
        // Read in one piece: pieces that are freed would count as memory that was there before.
        let mut texts = String::with_capacity(bytes + 1);
        std::io::stdin().read_to_string(&mut texts)?;
        println!("{}", resident_bytes(&texts));
        return Ok(());
    }
    let wanted = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    if wanted("matching") {
        matching()?;
    }
    if wanted("changes") {
        changes::run();
    }
    if wanted("crafted") {
        crafted::run();
    }
    Ok(())
}

/// Processor time that this thread has taken.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or_default())
}

/// Processor time of an operation that is repeated on names in turn.
fn repeated<'a>(names: &'a [String], duration: Duration, mut run: impl FnMut(&'a str)) -> Duration {
    let (begun, before) = (Instant::now(), processor_time());
    let (mut done, mut batch) = (0usize, 1);
    for name in names.iter().cycle() {
        run(name);
        done += 1;
        // The clock is read seldom enough to cost nothing, also where an operation is short.
        if done % batch == 0 && begun.elapsed() > duration {
            break;
        }
        batch = (done / 16).clamp(1, 1024);
    }
    Duration::from_secs_f64((processor_time() - before).as_secs_f64() / done as f64)
}

fn matching() -> Result<(), Failed> {
    println!("#### Matching\n");
    println!(
        "| patterns | workload | bytes of text | loaded/s | bytes/pattern, resident | counted | names/s | us/name | \
         keys/name | every pattern asked, us/name | ratio |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut rows = Vec::new();
    for workload in [Workload::Mixed, Workload::Entities] {
        for count in [1_000, 100_000, 1_000_000] {
            rows.push((workload, count, row(workload, count)?));
        }
    }
    println!("\n| what | measured | goal | |");
    println!("|---|---|---|---|");
    for (workload, _, row) in rows.iter().filter(|(_, count, _)| *count == 1_000_000) {
        let what = |figure: &str| format!("{figure}, {} patterns, {}", grouped(1_000_000), workload.name());
        let rate = 1.0 / row.matched.as_secs_f64();
        report(&what("names/s"), &grouped(rate as usize), ">= 500,000", rate >= 500_000.0);
        report(&what("bytes/pattern"), &format!("{:.0}", row.resident), "<= 130", row.resident <= 130.0);
        let load = row.load.as_secs_f64();
        report(&what("load, patterns parsed"), &format!("{load:.2} s"), "< 2 s", load < 2.0);
        let load = row.load_with_parsing.as_secs_f64();
        report(&what("load, patterns parsed meanwhile"), &format!("{load:.2} s"), "< 2 s", load < 2.0);
    }
    println!();
    Ok(())
}

struct Row {
    load: Duration,
    load_with_parsing: Duration,
    resident: f64,
    matched: Duration,
}

fn row(workload: Workload, count: usize) -> Result<Row, Failed> {
    let texts = workload.patterns(count);
    let input = texts.join("\n");
    let mut child = Command::new(std::env::current_exe()?)
        .args(["memory", &input.len().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no standard input")?.write_all(input.as_bytes())?;
    let resident: f64 = String::from_utf8(child.wait_with_output()?.stdout)?.trim().parse()?;

    let patterns: Vec<Pattern> = texts.iter().map(|text| workload::parsed(text)).collect();
    let load_with_parsing = loading(|| {
        let parsed = texts.iter().zip(0u64..).map(|(text, key)| (workload::parsed(text), key));
        drop(black_box(Matcher::from_iter(parsed)));
    });
    let load = loading(|| drop(black_box(Matcher::from_iter(patterns.iter().zip(0u64..)))));
    let matcher = Matcher::from_iter(patterns.iter().zip(0u64..));

    let names = workload.names(&texts);
    let mut keys = Vec::new();
    let mut found = 0;
    for name in names.iter().take(WARM_UP) {
        matcher.matches(name, &mut keys);
        found += keys.len();
    }
    let found = found as f64 / names.len().min(WARM_UP) as f64;
    let matched = repeated(&names, MATCHING, |name| {
        matcher.matches(name, &mut keys);
        black_box(&keys);
    });
    let scanned = repeated(&names, SCANNING, |name| {
        let scanned = patterns.iter().zip(0u64..).filter(|(pattern, _)| pattern.matches(name));
        black_box(scanned.map(|(_, key)| key).collect::<Vec<_>>());
    });
    println!(
        "| {} | {} | {:.0} | {} | {resident:.0} | {:.0} | {} | {:.2} | {found:.1} | {:.0} | {}x |",
        grouped(count),
        workload.name(),
        texts.iter().map(String::len).sum::<usize>() as f64 / count as f64,
        grouped((count as f64 / load.as_secs_f64()) as usize),
        matcher.bytes() as f64 / count as f64,
        grouped((1.0 / matched.as_secs_f64()) as usize),
        matched.as_secs_f64() * 1e6,
        scanned.as_secs_f64() * 1e6,
        grouped((scanned.as_secs_f64() / matched.as_secs_f64()) as usize),
    );
    Ok(Row { load, load_with_parsing, resident, matched })
}

/// Processor time of loading, with freeing what was loaded.
fn loading(load: impl Fn()) -> Duration {
    repeated(&[String::new()], LOADING, |_| load())
}

/// Bytes of resident memory that a pattern takes, by matchers with these patterns, one in a line.
fn resident_bytes(texts: &str) -> f64 {
    let count = texts.lines().count();
    let matchers = (MEASURED_PATTERNS / count).max(1);
    let load =
        || Matcher::from_iter(texts.lines().zip(0u64..).map(|(text, key)| (workload::parsed(text), key)));
    let mut all = Vec::with_capacity(matchers);
    let before = settled();
    all.extend((0..matchers).map(|_| load()));
    (settled() - before) / (matchers * count) as f64
}

/// Bytes of resident memory, when the allocator has given back what was freed. It does so later, when it is called.
fn settled() -> f64 {
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(100));
        drop(black_box(vec![0u8; 1 << 20]));
    }
    Usage::now().resident
}
