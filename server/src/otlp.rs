//! Exports traces to an OpenTelemetry collector by OTLP over HTTP.
//!
//! The exporter runs in its own thread without a runtime, so its requests are sent by a task on the server's runtime.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::{Request, Response, Uri};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use tokio::runtime::Handle;

use crate::outgoing::Outgoing;

/// Timeout of a request to the collector.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the collector's response, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The endpoint is not a usable URL.
    #[error("`{0}` is not the address of a collector; it is like http://127.0.0.1:4318 or https://collector")]
    Endpoint(String),
    /// The exporter could not start.
    #[error("cannot export traces: {0}")]
    Exporter(String),
}

/// A running trace exporter. Call [`Traces::end`] to flush it.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts exporting to a collector. Must be called within a Tokio runtime.
    pub fn to(endpoint: &str) -> Result<Self, OtlpError> {
        let http = Outgoing::new().map_err(|error| OtlpError::Exporter(error.to_string()))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client { http, runtime: Handle::current() })
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(address(endpoint)?)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| OtlpError::Exporter(error.to_string()))?;
        let resource = Resource::builder().with_service_name("tidings").build();
        Ok(Self(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build()))
    }

    /// Returns the tracer whose spans are exported.
    pub fn tracer(&self) -> Tracer {
        self.0.tracer("tidings")
    }

    /// Flushes remaining spans. Blocks until the collector has answered or the timeout expires.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces may be lost");
        }
    }
}

/// Returns the URL to send traces to. An endpoint without a path gets the standard path `/v1/traces`.
fn address(endpoint: &str) -> Result<String, OtlpError> {
    let wrong = || OtlpError::Endpoint(endpoint.to_owned());
    let uri: Uri = endpoint.parse().map_err(|_| wrong())?;
    match (uri.scheme_str(), uri.host(), uri.path()) {
        (Some("http" | "https"), Some(_), "/" | "") => {
            Ok(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
        }
        (Some("http" | "https"), Some(_), _) => Ok(endpoint.to_owned()),
        _ => Err(wrong()),
    }
}

#[derive(Debug)]
struct Client {
    http: Outgoing,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let sending = async move { tokio::time::timeout(TIMEOUT, http.send(request, ANSWER_BYTES)).await };
        Ok(self.runtime.spawn(sending).await???)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_collector_is_named_by_its_host_or_in_full() {
        let good = |text| address(text).expect("an address");
        assert_eq!(good("http://collector:4318"), "http://collector:4318/v1/traces");
        assert_eq!(good("http://collector:4318/"), "http://collector:4318/v1/traces");
        assert_eq!(good("http://collector/otel/traces"), "http://collector/otel/traces");
        assert_eq!(good("https://collector"), "https://collector/v1/traces");
        for bad in ["", "collector:4318", "ftp://collector", "http://"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
