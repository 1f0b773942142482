//! HTTP client for requests that this process sends: from commands to a running server, and from the trace exporter
//! to a collector.
//!
//! It speaks HTTP/1.1, plain or over TLS with the certificates the system trusts. It follows no redirects and uses no
//! proxy, so a credential is sent only to the server that was named.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio_rustls::rustls::crypto::ring;

/// Timeout of a TCP connect, not including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP client with a connection pool. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Outgoing(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Outgoing {
    /// Creates a client. Fails if the system's root certificates cannot be loaded.
    pub fn new() -> io::Result<Self> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_platform_verifier(Arc::new(ring::default_provider()))
            .map_err(io::Error::other)?
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }

    /// Sends a request and reads the whole response. Fails if its body exceeds `body_bytes_max`.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        body_bytes_max: usize,
    ) -> Result<Response<Bytes>, OutgoingError> {
        let response = self.0.request(request.map(Full::new)).await.map_err(OutgoingError::of)?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, body_bytes_max).collect().await.map_err(OutgoingError::of)?;
        Ok(Response::from_parts(parts, body.to_bytes()))
    }
}

/// Why a request has no complete response.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OutgoingError(String);

impl OutgoingError {
    /// Keeps the message of the innermost cause, which is the most specific: "connection refused", not "client
    /// error".
    pub fn of(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        let mut cause: &dyn Error = &*error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        Self(cause.to_string())
    }

    /// The response did not arrive in time.
    pub fn timed_out(after: Duration) -> Self {
        Self(format!("timeout after {} s", after.as_secs_f64()))
    }
}
