//! Benchmark of entities: rows that change in a private PostgreSQL, told by a real server to sockets on the same machine, beside a
//! bare `LISTEN` on the same database and commits without capture, in the same run. Prints tables in Markdown.

mod capture;
mod changes;
mod database;
mod registry;
mod server;
mod watchers;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tidings_bench::Failed;

use database::Database;

/// Changes of rows, from the commit to the socket.
#[derive(Debug, Parser)]
struct Arguments {
    /// Root of the repository.
    #[arg(long, default_value = ".")]
    root: PathBuf,
    /// The server's binary.
    #[arg(long, env = "TIDINGS_BINARY", default_value = "target/release/tidings")]
    binary: PathBuf,
    /// Seconds of each row about time.
    #[arg(long, env = "SECS", default_value_t = 10)]
    secs: u64,
    /// Connections that watch.
    #[arg(long, env = "CONNECTIONS", default_value_t = 200)]
    connections: usize,
    /// Subscriptions of each connection.
    #[arg(long, env = "SUBSCRIPTIONS", default_value_t = 50)]
    subscriptions: usize,
    /// Rows that change. Subscriptions are spread over them evenly.
    #[arg(long, env = "ENTITIES", default_value_t = 2_000)]
    entities: usize,
    /// Changes per second of the part about latency.
    #[arg(long, env = "RATE", default_value_t = 1_000)]
    rate: u64,
    /// Writers of the parts about throughput and capture.
    #[arg(long, env = "WRITERS", default_value_t = 32)]
    writers: usize,
    /// Rows of the registry of subscriptions.
    #[arg(long, env = "ROWS", default_value_t = 1_000_000)]
    rows: usize,
    /// Run one part only: latency, throughput, capture or registry.
    #[arg(long, env = "ONLY")]
    only: Option<String>,
}

impl Arguments {
    fn runs(&self, part: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == part)
    }

    fn lasting(&self) -> Duration {
        Duration::from_secs(self.secs)
    }
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let arguments = Arguments::parse();
    let zero = [arguments.connections, arguments.subscriptions, arguments.entities, arguments.writers];
    if zero.contains(&0) || arguments.secs == 0 || arguments.rate == 0 {
        return Err("every size is at least 1".into());
    }
    if arguments.subscriptions > arguments.entities {
        return Err("a connection cannot have more subscriptions than there are entities".into());
    }
    let database = Database::start(arguments.entities).await?;
    if arguments.runs("latency") {
        changes::latency(&arguments, &database).await?;
    }
    if arguments.runs("throughput") {
        changes::throughput(&arguments, &database).await?;
    }
    if arguments.runs("capture") {
        capture::measure(&arguments, &database).await?;
    }
    if arguments.runs("registry") {
        registry::measure(&arguments, &database).await?;
    }
    Ok(())
}
