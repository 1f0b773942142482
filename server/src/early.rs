//! Handles the first request of a connection if it asks for a live response (SSE, WebSocket).
//!
//! Such a request is recognised before hyper sees the connection, and answered directly on the socket. The first
//! bytes are peeked at without consuming them, so all other connections reach hyper unchanged.

use std::io;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use tidings_api::live::{self, Feed, RawSocket};
use tidings_api::{FastPath, response_head};
use tidings_model::limits;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// Maximum number of headers of a request handled here. Requests with more go to hyper.
const HEADERS: usize = 64;
/// Maximum size of a request head handled here, in bytes. Longer requests go to hyper.
const HEAD_BYTES: usize = 4096;

/// Classification of the first bytes of a connection.
pub enum First {
    /// Any other request. No byte has been consumed, so hyper can read it from the start.
    Other(TcpStream),
    /// A request for a live response, already consumed from the socket.
    Staying(TcpStream, Box<Request<Body>>),
    /// The client closed the connection without sending anything.
    Nothing,
}

/// Peeks at the first request of a connection and classifies it.
pub async fn look(mut socket: TcpStream) -> io::Result<First> {
    socket.readable().await?;
    // On the heap, because the task's own memory is held as long as the connection lives.
    let mut bytes = vec![0; HEAD_BYTES];
    let seen = socket.peek(&mut bytes).await?;
    if seen == 0 {
        return Ok(First::Nothing);
    }
    let Some((request, length)) = parse(&bytes[..seen]) else { return Ok(First::Other(socket)) };
    socket.read_exact(&mut bytes[..length]).await?;
    Ok(First::Staying(socket, Box::new(request)))
}

/// Answers a request for a live response. Returns the socket and the feed to write to it, or `None` if the
/// request was refused and the connection is closed.
pub async fn answer(
    socket: TcpStream,
    request: Request<Body>,
    fast_path: &FastPath,
) -> io::Result<Option<(TcpStream, Box<Feed>)>> {
    let answering = fast_path.answer(request, |request| {
        request.extensions_mut().insert(RawSocket);
    });
    let Ok(mut response) = answering.await;
    match live::take_over(&mut response) {
        Some(mut feed) => {
            feed.begin_with(head(&response, Ending::of(&response)));
            Ok(Some((socket, Box::new(feed))))
        }
        None => {
            let refusing = refuse(socket, response);
            tokio::time::timeout(limits::HEAD_TIMEOUT, refusing).await.unwrap_or(Ok(()))?;
            Ok(None)
        }
    }
}

/// Parses a complete request for a live response. Returns it with the length of its head in bytes, or `None` if
/// the head is incomplete or the request is of another kind.
fn parse(bytes: &[u8]) -> Option<(Request<Body>, usize)> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes).ok()? else { return None };
    let path = head.path?;
    if head.method != Some("GET") || head.version != Some(1) || !live::stays_open(path) {
        return None;
    }
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = path.parse::<Uri>().ok()?;
    for header in head.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).ok()?;
        // Requests with a body go to hyper.
        if [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::EXPECT].contains(&name) {
            return None;
        }
        request.headers_mut().append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    // A request with no `Host` header, or with several, is malformed; hyper refuses it.
    (request.headers().get_all(header::HOST).iter().count() == 1).then_some((request, length))
}

/// Sends a complete response and closes the connection.
pub async fn refuse(
    mut socket: impl AsyncRead + AsyncWrite + Unpin,
    response: Response<Body>,
) -> io::Result<()> {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let response = Response::from_parts(parts, Body::empty());
    let mut out = BytesMut::from(&head(&response, Ending::After(body.len()))[..]);
    out.put_slice(&body);
    socket.write_all(&out).await?;
    socket.shutdown().await?;
    // Drain what the client still sends, up to a limit: closing with unread data would reset the connection, and the
    // client could lose the response.
    let mut said = vec![0; HEAD_BYTES];
    let mut rest = limits::REFUSED_BYTES;
    while let read @ 1.. = socket.read(&mut said).await? {
        rest = rest.checked_sub(read).ok_or(io::ErrorKind::ConnectionAborted)?;
    }
    Ok(())
}

/// How the end of a response body is signalled.
enum Ending {
    /// `Content-Length` with this many bytes. The connection closes afterwards.
    After(usize),
    /// Chunked encoding. The connection closes after the last chunk.
    Chunk,
    /// No HTTP body: the connection switches to another protocol.
    None,
}

impl Ending {
    /// Returns the ending of a live response.
    fn of(response: &Response<Body>) -> Self {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS { Self::None } else { Self::Chunk }
    }
}

/// Serialises the head of a response.
fn head(response: &Response<Body>, ending: Ending) -> Bytes {
    let mut headers = response.headers().clone();
    // The routes see an empty body in a live response and may have set its length to 0.
    headers.remove(header::CONTENT_LENGTH);
    match ending {
        Ending::After(bytes) => drop(headers.insert(header::CONTENT_LENGTH, bytes.into())),
        Ending::Chunk => drop(headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"))),
        Ending::None => {}
    }
    if !matches!(ending, Ending::None) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let date = httpdate::fmt_http_date(std::time::SystemTime::now());
    headers.insert(header::DATE, HeaderValue::from_str(&date).expect("a date is plain text"));
    response_head(response.status(), &headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(head: &str) -> bool {
        parse(head.as_bytes()).is_some()
    }

    #[test]
    fn only_a_whole_request_for_an_answer_that_stays_is_taken() {
        let get = "GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\nHost: a\r\n";
        assert!(taken(&format!("{get}\r\n")));
        assert!(taken(&format!("{get}Accept: text/event-stream\r\n\r\n")));
        assert!(taken("GET /s?live=websocket HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n"));
        assert!(!taken(get), "the head is not complete");
        assert!(!taken(&format!("{get}Content-Length: 1\r\n\r\nx")));
        assert!(!taken("GET /v1/stream/s?offset=-1&live=sse HTTP/1.1\r\n\r\n"), "no host");
        assert!(!taken(&format!("{get}Host: b\r\n\r\n")), "two hosts");
        assert!(!taken("GET /v1/stream/s?offset=-1&live=sse HTTP/1.0\r\nHost: a\r\n\r\n"));
        assert!(!taken("POST /v1/stream/s?live=sse HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(!taken("GET /v1/stream/s?live=sses HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(!taken("GET /v1/stream/live=sse HTTP/1.1\r\nHost: a\r\n\r\n"));
    }

    #[test]
    fn what_follows_the_head_is_left() {
        let head = "GET /s?live=sse HTTP/1.1\r\nHost: a\r\n\r\n";
        let (request, length) = parse(format!("{head}GET /").as_bytes()).expect("whole");
        assert_eq!((length, request.uri().path()), (head.len(), "/s"));
    }
}
