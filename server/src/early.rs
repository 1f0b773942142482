//! The first request of a connection, if its answer stays: seen before hyper sees the connection, and answered on the bare
//! socket. All other connections go to hyper untouched, since what was looked at was not taken.

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

/// Headers that one request may have here; hyper serves those with more.
const HEADERS: usize = 64;
/// Bytes of a head that are looked at; hyper serves longer ones.
const HEAD_BYTES: usize = 4096;

/// What the first bytes of a connection are.
pub enum First {
    /// Something for hyper, who finds every byte in place.
    Other(TcpStream),
    /// A request whose answer stays, taken from the socket.
    Staying(TcpStream, Box<Request<Body>>),
    /// Nothing: the client has gone.
    Nothing,
}

/// Looks at the first request of a connection.
pub async fn look(mut socket: TcpStream) -> io::Result<First> {
    socket.readable().await?;
    // Not in the task, which lives as long as the connection does.
    let mut bytes = vec![0; HEAD_BYTES];
    let seen = socket.peek(&mut bytes).await?;
    if seen == 0 {
        return Ok(First::Nothing);
    }
    let Some((request, length)) = parse(&bytes[..seen]) else { return Ok(First::Other(socket)) };
    socket.read_exact(&mut bytes[..length]).await?;
    Ok(First::Staying(socket, Box::new(request)))
}

/// Answers a request whose answer stays. Gives what is to be fed to the socket from now on, unless the answer was no.
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

/// The request in these bytes, and how many it takes; none if it is not whole or not one whose answer stays.
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
        // A body is more than is done here.
        if [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::EXPECT].contains(&name) {
            return None;
        }
        request.headers_mut().append(name, HeaderValue::from_bytes(header.value).ok()?);
    }
    // Without one, or with two, it is not a proper request; hyper tells.
    (request.headers().get_all(header::HOST).iter().count() == 1).then_some((request, length))
}

/// An answer that does not stay: sent whole, and the connection ends.
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
    // What the client still says is read for a while: closing before that could cost it the answer.
    let mut said = vec![0; HEAD_BYTES];
    let mut rest = limits::REFUSED_BYTES;
    while let read @ 1.. = socket.read(&mut said).await? {
        rest = rest.checked_sub(read).ok_or(io::ErrorKind::ConnectionAborted)?;
    }
    Ok(())
}

/// How the body of an answer ends.
enum Ending {
    /// After so many bytes, and with it the connection.
    After(usize),
    /// With a last chunk, and with it the connection.
    Chunk,
    /// There is none: the connection goes on as something else.
    None,
}

impl Ending {
    /// Of an answer that stays.
    fn of(response: &Response<Body>) -> Self {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS { Self::None } else { Self::Chunk }
    }
}

/// The head of an answer.
fn head(response: &Response<Body>, ending: Ending) -> Bytes {
    let mut headers = response.headers().clone();
    // The routes see no body in an answer that stays, and may have said so.
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
