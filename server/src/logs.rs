//! Logging and tracing: text logs in a terminal, JSON logs otherwise, and export of traces to a collector.

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

/// Default filter of the log.
const DEFAULT: &str = "info";

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The log filter is invalid.
    #[error("--log (TIDINGS_LOG) is a level such as `info` or `debug`, or levels by module: {0}")]
    Filter(#[from] ParseError),
    /// The trace exporter could not start.
    #[cfg(feature = "otlp")]
    #[error("log.otlp_endpoint: {0}")]
    Otlp(#[from] OtlpError),
    /// This binary was built without support for exporting traces.
    #[cfg(not(feature = "otlp"))]
    #[error("log.otlp_endpoint: this tidings was built without the feature `otlp`")]
    NoOtlp,
}

/// Active logging and trace export. Call [`Logs::end`] before the process exits.
#[must_use]
pub struct Logs {
    #[cfg(feature = "otlp")]
    traces: Option<Traces>,
}

impl Logs {
    /// Starts logging to stderr what the filter selects, and exporting traces if an endpoint is configured.
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

    /// Flushes traces that have not been exported yet.
    pub async fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(traces) = self.traces {
            // On a blocking thread, because the runtime has to stay free to send the requests.
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

/// Selects events of this project, and warnings and errors of dependencies. Lower levels of dependencies may log
/// headers and query strings, which contain credentials, so no filter can enable them.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target().starts_with("tidings") || *metadata.level() <= Level::WARN
}

/// Selects the spans of this project for export. Events within spans go to the log only.
#[cfg(feature = "otlp")]
fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("tidings")
}
