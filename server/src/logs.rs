//! Logs: for people in a terminal, for programs elsewhere. And traces, for those who collect them.

use std::io::{self, IsTerminal};

use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterExt, FilterFn, ParseError};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use tidings_server::options::{LogFormat, LogOptions};

#[cfg(feature = "otlp")]
use crate::otlp::{OtlpError, Traces};

/// What is logged unless somebody asks for more.
const DEFAULT: &str = "info";

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// What is to be logged cannot be understood.
    #[error("--log (TIDINGS_LOG) is a level such as `info` or `debug`, or levels by module: {0}")]
    Filter(#[from] ParseError),
    /// Traces cannot be exported.
    #[cfg(feature = "otlp")]
    #[error("log.otlp_endpoint: {0}")]
    Otlp(#[from] OtlpError),
    /// Traces cannot be exported by this binary.
    #[cfg(not(feature = "otlp"))]
    #[error("log.otlp_endpoint: this tidings was built without the feature `otlp`")]
    NoOtlp,
}

/// Logs that are being written.
#[must_use]
pub struct Logs {
    #[cfg(feature = "otlp")]
    traces: Option<Traces>,
}

impl Logs {
    /// Logs to stderr what the filter lets through, and exports traces if that is set.
    pub fn begin(filter: Option<&str>, options: &LogOptions) -> Result<Self, LogError> {
        let filter = EnvFilter::builder().parse(filter.unwrap_or(DEFAULT))?;
        #[cfg(feature = "otlp")]
        let (logs, spans) = {
            let traces = options.otlp_endpoint.as_deref().map(Traces::to).transpose()?;
            let spans = traces.as_ref().map(|traces| {
                tracing_opentelemetry::layer()
                    .with_tracer(traces.tracer())
                    .with_filter(FilterFn::new(is_traced))
            });
            (Self { traces }, spans)
        };
        #[cfg(not(feature = "otlp"))]
        let (logs, spans) = match options.otlp_endpoint {
            Some(_) => return Err(LogError::NoOtlp),
            None => (Self {}, None::<tracing_subscriber::layer::Identity>),
        };
        let filter = filter.and(FilterFn::new(is_ours));
        tracing_subscriber::registry().with(spans).with(stderr(options.format).with_filter(filter)).init();
        Ok(logs)
    }

    /// Sends what is left to be sent.
    pub async fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            // A thread that may block: the runtime has to do the sending.
            let _ = tokio::task::spawn_blocking(|| traces.end()).await;
        }
    }
}

fn stderr<S: Subscriber + for<'a> LookupSpan<'a>>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync> {
    let terminal = io::stderr().is_terminal();
    let logs = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(terminal);
    let text = match format {
        LogFormat::Auto => terminal,
        LogFormat::Text => true,
        LogFormat::Json => false,
    };
    if text { logs.boxed() } else { logs.json().boxed() }
}

/// Others log what they see, and some see headers and query strings, where credentials are. No filter lets that through.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("tidings") || *metadata.level() <= Level::WARN
}

/// Spans of ours; what is logged in them is in the log.
#[cfg(feature = "otlp")]
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("tidings")
}
