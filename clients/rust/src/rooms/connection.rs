//! Connects to a target's server and sends the request.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::event::retry_after;
use super::retry::{End, RETRY_AFTER_MAX};
use super::{BackoffReason, MissedEvents, REFUSAL_BYTES, Refusal, Stopped, Target};

/// A connection to the server, with or without TLS.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A response, and the task that drives its connection.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    /// Drives the connection; aborted when dropped.
    pub(super) driver: JoinSet<()>,
}

/// Sends one request without a body on a new connection.
pub(super) async fn ask(target: &Target, path: &str, mut headers: HeaderMap) -> Result<Answer, End> {
    let host = HeaderValue::from_str(&target.authority).map_err(End::network)?;
    headers.insert(header::HOST, host);
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = path.parse().map_err(End::network)?;
    *request.headers_mut() = headers;
    let io = reach(target).await.map_err(End::network)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(End::network)?;
    let mut driver = JoinSet::new();
    driver.spawn(async move {
        // The reader of the response sees the error.
        let _ = connection.with_upgrades().await;
    });
    let response = sender.send_request(request).await.map_err(End::network)?;
    Ok(Answer { response, driver })
}

async fn reach(target: &Target) -> io::Result<Box<dyn Io>> {
    let socket = TcpStream::connect((&*target.host, target.port)).await?;
    socket.set_nodelay(true)?;
    if target.secure { tls::wrap(target, socket).await } else { Ok(Box::new(socket)) }
}

/// Without the feature `tls` no target that needs it can be constructed.
#[cfg(not(feature = "tls"))]
mod tls {
    pub(super) async fn wrap(_: &super::Target, _: super::TcpStream) -> std::io::Result<Box<dyn super::Io>> {
        Err(std::io::Error::other(super::super::BadTarget::Tls))
    }
}

#[cfg(feature = "tls")]
mod tls {
    use std::io;
    use std::sync::Arc;

    use rustls_platform_verifier::BuilderVerifierExt;
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, Error};

    use super::{Io, Target};

    pub(super) async fn wrap(target: &Target, socket: TcpStream) -> io::Result<Box<dyn Io>> {
        let config = match &target.tls {
            Some(config) => config.clone(),
            None => Arc::new(trusted_by_the_system().map_err(io::Error::other)?),
        };
        let name = ServerName::try_from(target.host.clone()).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(config).connect(name, socket).await?))
    }

    fn trusted_by_the_system() -> Result<ClientConfig, Error> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        Ok(builder.with_safe_default_protocol_versions()?.with_platform_verifier()?.with_no_client_auth())
    }
}

/// Decides what a response means that is not a stream.
pub(super) async fn refused(answer: Answer, had_cursor: bool) -> End {
    let (parts, body) = answer.response.into_parts();
    // If the body is missing or too large, the status and headers decide.
    let body =
        Limited::new(body, REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    let refusal = Refusal { status: parts.status.as_u16(), error: text("error"), message: text("message") };
    let retry_after = retry_after(&said).or_else(|| retry_after_header(&parts.headers));
    match parts.status {
        StatusCode::UNAUTHORIZED => End::Unauthorized(refusal),
        StatusCode::FORBIDDEN => End::Stop(Stopped::Forbidden(refusal)),
        StatusCode::CONFLICT => End::Again { why: BackoffReason::SlowConsumer, retry_after },
        StatusCode::GONE => {
            End::Gone { skip: MissedEvents::of(&refusal.error, &said["detail"]), had_cursor, retry_after }
        }
        // A success that is not a stream comes from something between, such as a proxy's page.
        status if status.is_server_error() || status.is_success() || passes(status) => {
            End::Again { why: BackoffReason::Unavailable(status.as_u16()), retry_after }
        }
        _ => End::Stop(Stopped::Refused(refusal)),
    }
}

/// Whether the same request may succeed later.
fn passes(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}
