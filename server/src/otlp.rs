//! Traces to a collector of OpenTelemetry, by OTLP over HTTP.
//!
//! The exporter has a thread of its own and no runtime, so what it sends is sent by a task of ours.

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

/// How long the collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a collector's answer.
const ANSWER_BYTES: usize = 64 * 1024;

/// Why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// Not an address that can be used.
    #[error("`{0}` is not the address of a collector; it is like http://127.0.0.1:4318 or https://collector")]
    Endpoint(String),
    /// The exporter does not start.
    #[error("cannot export traces: {0}")]
    Exporter(String),
}

/// Exports traces until it is ended.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Begins to export to a collector. Needs the runtime.
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

    /// Makes spans of ours to be exported.
    pub fn tracer(&self) -> Tracer {
        self.0.tracer("tidings")
    }

    /// Sends what is left. Blocks for a while if the collector does not answer.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown() {
            tracing::warn!(%error, "the last traces may be lost");
        }
    }
}

/// The collector's address for traces; where only a host is named, the usual path is meant.
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
