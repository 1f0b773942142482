//! Benchmark of hooks: deliveries of a real server to endpoints in another process on the same machine, beside a bare loop
//! of signed POSTs over connections of the same HTTP library in the same run. Prints tables in Markdown.

mod bare;
mod journal;
mod parts;
mod server;
mod sink;
mod subscriptions;

use std::path::PathBuf;

use clap::Parser;
use tidings_bench::Failed;

/// Deliveries of hooks, beside a bare loop.
#[derive(Debug, Parser)]
struct Arguments {
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// Deliveries of each row about throughput.
    #[arg(long, env = "DELIVERIES", default_value_t = 400_000)]
    deliveries: usize,
    /// Retries that wait.
    #[arg(long, env = "PARKED", default_value_t = 1_000_000)]
    parked: usize,
    /// Seconds of each row about time.
    #[arg(long, env = "SECS", default_value_t = 15)]
    secs: u64,
    /// Run one part only: throughput, latency, holes, parked, journal or subscriptions.
    #[arg(long, env = "ONLY")]
    only: Option<String>,
    /// Be the endpoints.
    #[arg(long, hide = true)]
    sink: bool,
}

impl Arguments {
    fn runs(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }
}

fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    if arguments.sink {
        return Ok(sink::run()?);
    }
    if arguments.runs("throughput") {
        parts::throughput(&arguments)?;
    }
    if arguments.runs("latency") {
        parts::latency(&arguments)?;
    }
    if arguments.runs("holes") {
        parts::holes(&arguments)?;
    }
    if arguments.runs("parked") {
        parts::parked(&arguments)?;
    }
    if arguments.runs("journal") {
        journal::measure()?;
    }
    if arguments.runs("subscriptions") {
        subscriptions::measure()?;
    }
    Ok(())
}
