//! Logs: for people in a terminal, for programs elsewhere.

use std::io::{self, IsTerminal};

use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt, FilterFn, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// What is logged unless somebody asks for more.
const DEFAULT: &str = "info";

/// Logs to stderr what the filter lets through.
pub fn to_stderr(filter: Option<&str>) -> Result<(), ParseError> {
    let filter = EnvFilter::builder().parse(filter.unwrap_or(DEFAULT))?;
    let logs = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let logs = if io::stderr().is_terminal() { logs.boxed() } else { logs.json().boxed() };
    tracing_subscriber::registry().with(logs.with_filter(filter.and(FilterFn::new(is_ours)))).init();
    Ok(())
}

/// Others log what they see, and some see headers and query strings, where credentials are. No filter lets that through.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("tidings") || *metadata.level() <= Level::WARN
}
