//! Live readers of many sessions, who share what they are sent and each go on where their own session does.

use bytes::Bytes;
use futures_util::StreamExt;
use tidings_engine::Clock;
use tidings_testing::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::*;
use crate::sockets::{let_pass, raw, to_the_end, used_before};

/// An answer in chunks, as its body.
struct Chunked {
    socket: TcpStream,
    unread: Vec<u8>,
    body: Vec<u8>,
}

impl Chunked {
    /// Asks for a path. On a connection that was used before, hyper answers.
    async fn ask(mut socket: TcpStream, path: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Self { socket, unread: Vec::new(), body: Vec::new() };
        loop {
            answer.more().await;
            if let Some(end) = answer.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8(answer.unread.drain(..end + 4).collect()).expect("a head");
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                return answer;
            }
        }
    }

    /// The next so many bytes of the body.
    async fn next(&mut self, count: usize) -> String {
        loop {
            while let Some(chunk) = chunk(&mut self.unread) {
                self.body.extend_from_slice(&chunk);
            }
            if self.body.len() >= count {
                return String::from_utf8(self.body.drain(..count).collect()).expect("text");
            }
            self.more().await;
        }
    }

    async fn more(&mut self) {
        assert!(self.socket.read_buf(&mut self.unread).await.expect("it goes on") > 0, "it goes on");
    }
}

/// Takes a chunk from the front, if a whole one is there.
fn chunk(bytes: &mut Vec<u8>) -> Option<Bytes> {
    let line = bytes.windows(2).position(|two| two == b"\r\n")?;
    let length = std::str::from_utf8(&bytes[..line]).expect("a number");
    let length = usize::from_str_radix(length, 16).expect("a number");
    let end = line + 2 + length;
    if bytes.len() < end + 2 {
        return None;
    }
    assert_eq!(&bytes[end..end + 2], b"\r\n", "a chunk ends where it says");
    let chunk = Bytes::copy_from_slice(&bytes[line + 2..end]);
    bytes.drain(..end + 2);
    Some(chunk)
}

/// Where a session goes on.
async fn tail(server: &Harness, session: &str) -> String {
    let answer = server.get(&format!("/v1/app/stream/{session}?offset=now")).await;
    header(&answer, "stream-next-offset").to_owned()
}

/// How a reader is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    Bare,
    Hyper,
}

impl Transport {
    async fn connect(self, server: &Harness) -> TcpStream {
        match self {
            Self::Bare => TcpStream::connect(server.address()).await.expect("a connection"),
            Self::Hyper => used_before(server).await,
        }
    }
}

enum Reader {
    Events(Chunked),
    Socket(Box<WebSocketStream<TcpStream>>),
}

impl Reader {
    async fn events(server: &Harness, transport: Transport, session: &str) -> Self {
        let path = format!("/v1/app/stream/{session}?offset=now&live=sse");
        Self::Events(Chunked::ask(transport.connect(server).await, &path).await)
    }

    async fn socket(server: &Harness, transport: Transport, session: &str) -> Self {
        let url = server.url(&format!("/v1/app/stream/{session}?offset=now&live=websocket"));
        let socket = transport.connect(server).await;
        let connected = tokio_tungstenite::client_async(url.replace("http://", "ws://"), socket).await;
        Self::Socket(Box::new(connected.expect("a WebSocket").0))
    }

    /// Must hear this data, if any, and then where it goes on.
    async fn hears(&mut self, data: Option<&str>, next: &str, cursor: u64) {
        match self {
            Self::Events(body) => {
                let control =
                    format!(r#"{{"streamNextOffset":"{next}","streamCursor":"{cursor}","upToDate":true}}"#);
                let mut expected = String::new();
                if let Some(data) = data {
                    let lines: String = data.split('\n').map(|line| format!("data:{line}\n")).collect();
                    expected += &format!("event: data\n{lines}id: {next}\n\n");
                }
                expected += &format!("event: control\ndata:{control}\nid: {next}\n\n");
                assert_eq!(body.next(expected.len()).await, expected);
            }
            Self::Socket(client) => {
                if let Some(data) = data {
                    let heard = client.next().await.expect("it goes on").expect("a message");
                    assert_eq!(heard, Message::text(data));
                }
                let control = format!(r#"{{"streamNextOffset":"{next}","upToDate":true}}"#);
                let heard = client.next().await.expect("it goes on").expect("a message");
                assert_eq!(heard, Message::text(control));
            }
        }
    }
}

#[tokio::test]
async fn readers_of_many_sessions_hear_the_same_byte_for_byte_however_they_are_connected() {
    for server in both_stores().await {
        // Intervals of 20 seconds since the protocol's beginning of time.
        let cursor = (server.clock.now().as_millis() - 1_728_432_000_000) / 20_000;
        create(&server, "text", "text/plain").await;
        create(&server, "json", "application/json").await;
        let mut readers = Vec::new();
        for (source, envelope) in [("text", false), ("json", false), ("json", true)] {
            for transport in [Transport::Bare, Transport::Hyper] {
                for n in 0..3 {
                    let session = format!("{source}-{envelope}-{transport:?}-{n}");
                    let wanted = json!({ "sessionId": session, "streamId": source, "envelope": envelope });
                    let subscribed = answer(server.post("/v1/app/subscribe").json(&wanted)).await;
                    assert_eq!(subscribed.status(), 201);
                    let events = Reader::events(&server, transport, &session).await;
                    let socket = Reader::socket(&server, transport, &session).await;
                    let start = tail(&server, &session).await;
                    for mut reader in [events, socket] {
                        reader.hears(None, &start, cursor).await;
                        readers.push((source, envelope, session.clone(), reader));
                    }
                }
            }
        }
        let long = "0123456789abcdef".repeat(80);
        let large = format!("{long}\n\nevent: control\n{long}");
        let messages = [r#"{"a":""#.to_owned() + &long + r#""}"#, format!("\"{}\"", "é".repeat(600))];
        for (text, json) in [(large.as_str(), &messages[..]), ("small", &[json!(1).to_string()])] {
            publish(&server, "text", text).await;
            let published = server.post("/v1/app/publish/json").header("content-type", "application/json");
            let published = answer(published.body(format!("[{}]", json.join(",")))).await;
            assert_eq!(published.status(), 204);
            for (source, envelope, session, reader) in &mut readers {
                let next = tail(&server, session).await;
                let data = match (*source, *envelope) {
                    ("text", _) => text.to_owned(),
                    (_, false) => format!("[{}]", json.join(",")),
                    (_, true) => enveloped(&server, session, json).await,
                };
                reader.hears(Some(&data), &next, cursor).await;
            }
        }
    }
}

/// The newest messages of a session in their envelopes, as a read of it shows them; these must be in them.
async fn enveloped(server: &Harness, session: &str, payloads: &[String]) -> String {
    let all = content(server, session).await;
    let start = all.rmatch_indices(r#"{"stream":"json","#).nth(payloads.len() - 1).expect("as many").0;
    let newest = format!("[{}", &all[start..]);
    let seen: Vec<Value> = serde_json::from_str(&newest).expect("JSON");
    for (seen, payload) in seen.iter().zip(payloads) {
        assert_eq!(seen["payload"].to_string(), *payload);
    }
    newest
}

#[tokio::test]
async fn long_polls_of_many_sessions_are_answered_with_the_same() {
    let server = Harness::start().await;
    create(&server, "json", "application/json").await;
    let mut polls = Vec::new();
    for n in 0..5 {
        subscribe(&server, &format!("session-{n}"), "json").await;
        let path = format!("/v1/app/stream/session-{n}?offset=now&live=long-poll");
        let request = server.request(Method::GET, &path);
        polls.push(tokio::spawn(answer(request)));
    }
    until("all wait", || server.server().channels().len() == 5).await;
    let body = format!("[\"{}\",{{}}]", "long".repeat(1000));
    let published = server.post("/v1/app/publish/json").header("content-type", "application/json");
    assert_eq!(answer(published.body(body.clone())).await.status(), 204);
    for (n, poll) in polls.into_iter().enumerate() {
        let answered = poll.await.expect("an answer");
        assert_eq!(header(&answered, "stream-next-offset"), tail(&server, &format!("session-{n}")).await);
        assert_eq!(answered.text().await.expect("text"), body);
    }
}

#[tokio::test]
async fn a_session_that_is_read_too_slowly_ends_behind_what_tells_where_to_go_on() {
    let server = Harness::start().await;
    create(&server, "text", "text/plain").await;
    subscribe(&server, "alice", "text").await;
    subscribe(&server, "bob", "text").await;
    let slow = raw(&server, "/v1/app/stream/alice?offset=now&live=sse").await;
    let mut bob = Reader::events(&server, Transport::Bare, "bob").await;
    until("both are there", || server.server().live_connections().len() == 2).await;
    let (block, count) = ("x".repeat(256 * 1024), 48);
    let hearing = tokio::spawn(async move {
        let Reader::Events(body) = &mut bob else { unreachable!("it reads events") };
        let mut heard = 0;
        while heard < count * 256 * 1024 {
            heard += body.next(1024).await.matches('x').count();
        }
    });
    for _ in 0..count {
        publish(&server, "text", &block).await;
    }
    hearing.await.expect("whoever reads hears all of it");
    let_pass(&server, 12).await;
    let heard = to_the_end(slow).await.into_bytes();
    let head = heard.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let (mut rest, mut body) = (heard[head..].to_vec(), Vec::new());
    while let Some(chunk) = chunk(&mut rest) {
        body.extend_from_slice(&chunk);
    }
    assert!(rest.is_empty(), "it ends as an answer in chunks does");
    let body = String::from_utf8(body).expect("text");
    let events = body.strip_suffix(": slow-consumer\n\n").expect("it is told");
    let mut names = Vec::new();
    for event in events.split_terminator("\n\n") {
        let name = event.lines().next().expect("a name");
        names.push(name);
        if name == "event: data" {
            assert_eq!(event.lines().nth(1), Some(format!("data:{block}").as_str()), "whole");
        }
    }
    assert!(names.len() > 2 && names.len() < 2 * count, "it was not sent everything: {}", names.len());
    assert!(names.iter().rev().step_by(2).all(|name| *name == "event: control"), "each tells where to go on");
}
