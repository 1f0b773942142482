//! From a target to the answer of its server.

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
use super::{REFUSAL_BYTES, Refusal, Skip, Stopped, Target, Why};

/// A way to the server.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// An answer, and what keeps it coming.
pub(super) struct Answer {
    pub(super) response: Response<Incoming>,
    /// Moves the bytes. It ends when this goes.
    pub(super) driver: JoinSet<()>,
}

/// Sends one request, without a body, on a connection of its own.
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
        // What goes wrong is seen by whoever reads the answer.
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

/// No target that needs TLS can be made.
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

/// What an answer means that is no stream.
pub(super) async fn refused(answer: Answer, had_cursor: bool) -> End {
    let (parts, body) = answer.response.into_parts();
    // A body that does not come, or is too large, leaves what the head says.
    let body =
        Limited::new(body, REFUSAL_BYTES).collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let said: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
    let refusal = Refusal { status: parts.status.as_u16(), error: text("error"), message: text("message") };
    let retry_after = retry_after(&said).or_else(|| retry_after_header(&parts.headers));
    match parts.status {
        StatusCode::UNAUTHORIZED => End::Unauthorized(refusal),
        StatusCode::FORBIDDEN => End::Stop(Stopped::Forbidden(refusal)),
        StatusCode::CONFLICT => End::Again { why: Why::SlowConsumer, retry_after },
        StatusCode::GONE => {
            End::Gone { skip: Skip::of(&refusal.error, &said["detail"]), had_cursor, retry_after }
        }
        // A stream that is no stream is another server that stands in for ours, a proxy's page for example.
        status if status.is_server_error() || status.is_success() || passes(status) => {
            End::Again { why: Why::Unavailable(status.as_u16()), retry_after }
        }
        _ => End::Stop(Stopped::Refused(refusal)),
    }
}

/// Whether the same request can be taken later.
fn passes(status: StatusCode) -> bool {
    matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS)
}

fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}
