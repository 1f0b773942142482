//! What the head of a request must say, whichever way the request comes in.

use std::pin::Pin;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tidings_api::Spans;
use tidings_server::ObserveOptions;
use tidings_testing::{Harness, Setup};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::sockets::used_before;
use crate::tls::Files;

trait Io: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Io for T {}

/// A server and a way to connect to it.
enum Way {
    /// The first request of a connection.
    First(Harness),
    /// A request on a connection that was used before.
    Later(Harness),
    /// Above TLS.
    Tls(Harness, Files),
}

impl Way {
    /// All of them, and one where no append goes straight to its handler.
    async fn all() -> [(&'static str, Self); 4] {
        let files = Files::new();
        let tls = Harness::with(Setup { tls: Some(files.options()), ..Setup::default() }).await;
        let observe = ObserveOptions { spans: Spans::EachRequest, ..ObserveOptions::default() };
        let routed = Harness::with(Setup { observe, ..Setup::default() }).await;
        [
            ("first", Self::First(Harness::start().await)),
            ("later", Self::Later(Harness::start().await)),
            ("TLS", Self::Tls(tls, files)),
            ("routed", Self::First(routed)),
        ]
    }

    async fn connect(&self) -> Pin<Box<dyn Io>> {
        match self {
            Self::First(server) => Box::pin(TcpStream::connect(server.address()).await.expect("connected")),
            Self::Later(server) => Box::pin(used_before(server).await),
            Self::Tls(server, files) => {
                let address = server.address().to_string();
                Box::pin(files.connect(&address, &["http/1.1"]).await.expect("shaken hands"))
            }
        }
    }

    /// Sends a request and returns its answer.
    async fn ask(&self, request: &str) -> String {
        let mut io = self.connect().await;
        io.write_all(request.as_bytes()).await.expect("written");
        let mut answer = Vec::new();
        // Above TLS an end may come without a word.
        let _ = io.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }
}

const SIZED: &str = "content-length: 1\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";
const HOST: &str = "host: 127.0.0.1\r\n";

/// What is wrong with a head, and what is told.
const WRONG: &[(&[&str], u16, &str)] = &[
    (&[HOST, SIZED, "content-encoding: gzip\r\n"], 415, "content_encoding_unsupported"),
    (&[HOST, SIZED, "Content-Encoding: br\r\n"], 415, "content_encoding_unsupported"),
    (&[HOST, SIZED, "content-encoding: identity, gzip\r\n"], 415, "content_encoding_unsupported"),
    (
        &[HOST, SIZED, "content-encoding: identity\r\n", "content-encoding: gzip\r\n"],
        415,
        "content_encoding_unsupported",
    ),
    (&[HOST, CHUNKED, "content-encoding: gzip\r\n"], 415, "content_encoding_unsupported"),
    (&[HOST, "transfer-encoding: gzip, chunked\r\n"], 501, "transfer_encoding_unknown"),
    (&[HOST, "transfer-encoding: gzip\r\n", CHUNKED], 501, "transfer_encoding_unknown"),
    (&[HOST, "transfer-encoding: gzip\r\n"], 501, "transfer_encoding_unknown"),
    (&[HOST, "transfer-encoding: identity\r\n"], 501, "transfer_encoding_unknown"),
    (&[HOST, "transfer-encoding: chunked, gzip\r\n"], 501, "transfer_encoding_unknown"),
    (&[HOST, "transfer-encoding: chunked, chunked\r\n"], 501, "transfer_encoding_unknown"),
    (&[SIZED], 400, "invalid_host"),
    (&[HOST, HOST, SIZED], 400, "invalid_host"),
    (&[HOST, SIZED, "host: localhost\r\n"], 400, "invalid_host"),
    (&[HOST, "content-length: one\r\n"], 400, "malformed_request"),
];

/// What is asked: an append, which goes straight to its handler, what goes through the routes, and what is seen before hyper
/// sees it.
const ASKED: &[&str] = &[
    "POST /v1/stream/s",
    "PUT /v1/stream/new",
    "POST /v1/app/publish/s",
    "POST /v1/app/rooms/r/events",
    "POST /v1/app/subscribe",
    "PUT /v1/config/app",
    "GET /v1/stream/s?offset=-1&live=sse",
];

#[tokio::test]
async fn a_head_that_breaks_the_rules_is_refused_whichever_way_it_comes_in() {
    for (way, server) in Way::all().await {
        for asked in ASKED {
            for (headers, status, code) in WRONG {
                let body = if headers.iter().any(|line| line.starts_with("transfer")) {
                    "1\r\nx\r\n0\r\n\r\n"
                } else {
                    "x"
                };
                let request = format!(
                    "{asked} HTTP/1.1\r\n{}content-type: text/plain\r\nconnection: close\r\n\r\n{body}",
                    headers.concat()
                );
                let answer = server.ask(&request).await;
                let expected = format!("HTTP/1.1 {status} ");
                assert!(answer.starts_with(&expected), "{way}: {request}: {answer}");
                let (_, told) = answer.split_once("\r\n\r\n").expect("a head");
                let told: Value = serde_json::from_str(told).expect("errors are JSON");
                assert_eq!(told["error"]["code"], *code, "{way}: {request}: {told}");
            }
        }
    }
}

#[tokio::test]
async fn a_head_that_keeps_to_the_rules_is_served_whichever_way_it_comes_in() {
    for (way, server) in Way::all().await {
        let cases: &[(&str, &[&str], &str, &str)] = &[
            ("PUT /v1/stream/s HTTP/1.1", &[HOST, SIZED, "content-encoding: identity\r\n"], "x", "201"),
            ("POST /v1/stream/s HTTP/1.1", &[HOST, SIZED, "content-encoding: Identity\r\n"], "x", "204"),
            (
                "POST /v1/stream/s HTTP/1.1",
                &[HOST, "Transfer-Encoding: Chunked\r\n"],
                "1\r\nx\r\n0\r\n\r\n",
                "204",
            ),
            ("POST /v1/stream/s HTTP/1.0", &[SIZED], "x", "204"),
            ("GET /v1/stream/s HTTP/1.0", &[], "", "200"),
            // Nothing is sent, so nothing is encoded.
            ("GET /v1/stream/s HTTP/1.1", &[HOST, "content-encoding: gzip\r\n"], "", "200"),
        ];
        for (line, headers, body, status) in cases {
            let request = format!(
                "{line}\r\n{}content-type: text/plain\r\nconnection: close\r\n\r\n{body}",
                headers.concat()
            );
            let answer = server.ask(&request).await;
            assert_eq!(answer.split(' ').nth(1), Some(*status), "{way}: {request}: {answer}");
        }
    }
}

#[tokio::test]
async fn http2_keeps_to_the_same_rules() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/s").await;
    let socket = TcpStream::connect(server.address()).await.expect("connected");
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    for (method, path, header, status) in [
        (Method::POST, "/v1/stream/s", ("content-encoding", "gzip"), 415),
        (Method::PUT, "/v1/stream/new", ("content-encoding", "gzip"), 415),
        (Method::POST, "/v1/stream/s", ("content-encoding", "identity"), 204),
    ] {
        let request = Request::builder().method(method).uri(server.url(path)).header(header.0, header.1);
        let request = request.header("content-type", "text/plain").body(Full::new(Bytes::from("x")));
        let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), status, "{path} {header:?}");
        answer.into_body().collect().await.expect("whole");
    }
}
