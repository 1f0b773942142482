//! A reader of a room, by whatever wire, who sees what a client sees.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::HeaderMap;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

/// Time without data after which a reader counts as starved.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How a room is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events, as the first request of a connection.
    Sse,
    /// Server-sent events on a connection that was used before.
    SseLater,
    /// A WebSocket.
    WebSocket,
}

/// All of them.
pub const WIRES: [Wire; 3] = [Wire::Sse, Wire::SseLater, Wire::WebSocket];

/// Somebody who is about to follow a room.
#[derive(Clone, Debug)]
pub struct Guest {
    pub wire: Wire,
    address: SocketAddr,
    path: String,
    headers: Vec<(&'static str, String)>,
    /// What it says first on a WebSocket. The server waits for that.
    first: Option<Value>,
    receive_buffer: Option<u32>,
}

/// A connection broke before there was an answer.
pub type Broken = Box<dyn std::error::Error + Send + Sync>;

/// An answer that says no.
#[derive(Debug)]
pub struct Refused {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Refused {
    /// Its status and its name.
    pub fn what(&self) -> (u16, &str) {
        (self.status, self.body["error"].as_str().unwrap_or_default())
    }
}

impl Guest {
    /// Somebody who goes to a path of a server without saying who it is.
    pub fn at(address: SocketAddr, wire: Wire, path: &str) -> Self {
        let first = Some(json!({ "type": "ping" }));
        Self { wire, address, path: path.to_owned(), headers: Vec::new(), first, receive_buffer: None }
    }

    /// The same with a token.
    pub fn with_token(mut self, token: &str) -> Self {
        self.headers.push(("authorization", format!("Bearer {token}")));
        self
    }

    /// The same asking for more.
    pub fn asking(mut self, pairs: &str) -> Self {
        if !pairs.is_empty() {
            self.path.push(if self.path.contains('?') { '&' } else { '?' });
            self.path.push_str(pairs);
        }
        self
    }

    /// The same with one more header.
    pub fn with_header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The same as a browser that comes again.
    pub fn having_heard(self, cursor: &str) -> Self {
        self.with_header("last-event-id", cursor)
    }

    /// The same saying first, on a WebSocket, where it wants to begin.
    pub fn resuming(mut self, cursor: &str) -> Self {
        self.first = Some(json!({ "type": "resume", "cursor": cursor }));
        self
    }

    /// The same going through another address.
    pub fn through(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// The same saying nothing on a WebSocket.
    pub fn silent(mut self) -> Self {
        self.first = None;
        self
    }

    /// The same with little room for what it has not read.
    pub fn narrow(mut self) -> Self {
        self.receive_buffer = Some(16 * 1024);
        self
    }

    /// Comes, and is let in.
    pub async fn comes(&self) -> Reader {
        self.tries().await.unwrap_or_else(|refused| panic!("{self:?} was refused: {refused:?}"))
    }

    /// Comes, and is not let in.
    pub async fn is_refused(&self) -> Refused {
        match self.tries().await {
            Ok(_) => panic!("{self:?} was let in"),
            Err(refused) => refused,
        }
    }

    /// Comes.
    pub async fn tries(&self) -> Result<Reader, Refused> {
        self.attempts().await.expect("a connection that holds")
    }

    /// Comes, on a connection that may break.
    pub async fn attempts(&self) -> Result<Result<Reader, Refused>, Broken> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        let socket = socket.connect(self.address).await?;
        match self.wire {
            Wire::Sse | Wire::SseLater => self.events(socket).await,
            Wire::WebSocket => self.messages(socket).await,
        }
    }

    async fn events(&self, socket: TcpStream) -> Result<Result<Reader, Refused>, Broken> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let connection = Connection(tokio::spawn(async move {
            // A connection that breaks is seen by who reads.
            let _ = connection.await;
        }));
        if self.wire == Wire::SseLater {
            let health =
                Request::get("/health").header("host", "localhost").body(Empty::new()).expect("a request");
            sender.send_request(health).await?.into_body().collect().await?;
        }
        let mut request =
            Request::get(&self.path).header("host", "localhost").header("accept", "text/event-stream");
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Empty::<Bytes>::new()).expect("a request");
        sender.ready().await?;
        let (parts, body) = sender.send_request(request).await?.into_parts();
        if parts.status != 200 {
            let body = body.collect().await?.to_bytes();
            return Ok(Err(Refused::of(parts.status.as_u16(), parts.headers, &body)));
        }
        let line = Line::Events { body, unread: BytesMut::new(), _connection: connection };
        Ok(Ok(Reader::new(line, parts.headers)))
    }

    async fn messages(&self, socket: TcpStream) -> Result<Result<Reader, Refused>, Broken> {
        let url = format!("ws://{}{}", self.address, self.path);
        let mut request = url.into_client_request().expect("a request");
        for (name, value) in &self.headers {
            request.headers_mut().insert(*name, value.parse().expect("a value"));
        }
        let (mut client, answer) = match tokio_tungstenite::client_async(request, socket).await {
            Ok(opened) => opened,
            Err(Error::Http(answer)) => {
                let (parts, body) = answer.into_parts();
                return Ok(Err(Refused::of(parts.status.as_u16(), parts.headers, &body.unwrap_or_default())));
            }
            Err(error) => return Err(error.into()),
        };
        assert_eq!(answer.status(), 101);
        if let Some(first) = &self.first {
            client.send(Message::text(first.to_string())).await?;
        }
        Ok(Ok(Reader::new(Line::Messages(Box::new(client)), answer.headers().clone())))
    }
}

impl Refused {
    fn of(status: u16, headers: HeaderMap, body: &[u8]) -> Self {
        let body = serde_json::from_slice(body).unwrap_or_else(|error| {
            panic!("{status} without JSON ({error}): {}", String::from_utf8_lossy(body))
        });
        Self { status, headers, body }
    }
}

/// Something that was heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is.
    pub kind: String,
    /// What moves a browser's place.
    pub id: Option<String>,
    /// All else.
    pub body: Value,
}

impl Event {
    pub fn cursor(&self) -> &str {
        self.body["cursor"].as_str().unwrap_or_else(|| panic!("no cursor in {self:?}"))
    }

    pub fn payload(&self) -> &Value {
        &self.body["payload"]
    }

    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    pub fn detail(&self) -> &Value {
        &self.body["detail"]
    }
}

/// Somebody who follows a room.
pub struct Reader {
    line: Line,
    /// Of the answer.
    pub head: HeaderMap,
    /// What a browser would send as `Last-Event-ID`.
    pub last_id: Option<String>,
    /// What `retry:` said, in order.
    pub retries: Vec<u64>,
    /// Comments, in order.
    pub comments: Vec<String>,
    /// The id that came before all events, with how long to wait.
    pub begins: Option<String>,
    /// Ids that came without an event later.
    pub bare_ids: Vec<String>,
    /// Answers to pings in JSON.
    pub pongs: usize,
    /// The text of the last event as it came.
    pub text: String,
    /// What a WebSocket was closed with.
    pub close: Option<(u16, String)>,
    /// It did not end, it broke.
    pub broken: bool,
}

enum Line {
    Events { body: Incoming, unread: BytesMut, _connection: Connection },
    Messages(Box<WebSocketStream<TcpStream>>),
}

/// A connection that goes with its reader.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Reader {
    fn new(line: Line, head: HeaderMap) -> Self {
        Self {
            line,
            head,
            last_id: None,
            retries: Vec::new(),
            comments: Vec::new(),
            begins: None,
            bare_ids: Vec::new(),
            pongs: 0,
            text: String::new(),
            close: None,
            broken: false,
        }
    }

    /// The next event; none at the end.
    pub async fn next(&mut self) -> Option<Event> {
        match tokio::time::timeout(TIMEOUT, self.read()).await {
            Ok(event) => event,
            Err(_) => panic!("nothing was heard, after {:?}", self.text),
        }
    }

    /// The next event, which must come.
    pub async fn hears(&mut self) -> Event {
        match self.next().await {
            Some(event) => event,
            None => {
                panic!("it ended, {:?}, broken: {}, after {:?}", self.close, self.broken, self.text)
            }
        }
    }

    /// What the server itself says next, with that reason.
    pub async fn is_told(&mut self, reason: &str) -> Event {
        let event = self.hears().await;
        assert_eq!((event.kind.as_str(), event.reason()), ("infoEvent", reason), "{event:?}");
        event
    }

    /// Nothing more comes, and that properly: of a WebSocket the number it is closed with.
    pub async fn ends(&mut self) -> Option<u16> {
        let more = self.next().await;
        assert_eq!(more, None, "nothing more comes");
        assert!(!self.broken, "it ends and does not break");
        self.close.as_ref().map(|(number, _)| *number)
    }

    /// All that is still to be heard, until it ends or breaks.
    pub async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// Says something on a WebSocket.
    pub async fn says(&mut self, text: &str) {
        let Line::Messages(client) = &mut self.line else { panic!("nobody listens to a reader of events") };
        client.send(Message::text(text)).await.expect("sent");
    }

    /// Whether a ping of the WebSocket's own protocol comes within a time; answered.
    pub async fn is_pinged_within(&mut self, time: Duration) -> bool {
        let Line::Messages(client) = &mut self.line else { panic!("a reader of events is not pinged") };
        let waiting = async {
            loop {
                let message = client.next().await.expect("it goes on").expect("a message");
                if matches!(message, Message::Ping(_)) {
                    client.flush().await.expect("the pong goes out");
                    return;
                }
                assert!(message.is_text(), "{message:?}");
            }
        };
        tokio::time::timeout(time, waiting).await.is_ok()
    }

    async fn read(&mut self) -> Option<Event> {
        loop {
            match &mut self.line {
                Line::Events { body, unread, .. } => {
                    if let Some(end) = unread.windows(2).position(|two| two == b"\n\n") {
                        let block = unread.split_to(end + 2);
                        let block = std::str::from_utf8(&block).expect("events are UTF-8").to_owned();
                        if let Some(event) = self.block(block) {
                            return Some(event);
                        }
                        continue;
                    }
                    match body.frame().await {
                        Some(Ok(frame)) => unread.extend_from_slice(frame.data_ref().expect("bytes")),
                        Some(Err(_)) => {
                            self.broken = true;
                            return None;
                        }
                        None => {
                            assert!(
                                unread.is_empty(),
                                "a stream ends with a whole block, not with {unread:?}"
                            );
                            return None;
                        }
                    }
                }
                Line::Messages(client) => match client.next().await {
                    Some(Ok(Message::Text(text))) => {
                        let mut body: Value = serde_json::from_str(&text).expect("a message is JSON");
                        let kind = body.as_object_mut().expect("an object").remove("type");
                        let kind = kind.and_then(|kind| Some(kind.as_str()?.to_owned())).expect("a type");
                        if kind == "pong" {
                            self.pongs += 1;
                            continue;
                        }
                        self.text = text.to_string();
                        return Some(Event { kind, id: None, body });
                    }
                    Some(Ok(Message::Close(close))) => {
                        self.close = close.map(|close| (close.code.into(), close.reason.to_string()));
                        // The other side hears the answer before the socket goes.
                        let _ = client.flush().await;
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(other)) => panic!("{other:?}"),
                    Some(Err(_)) => {
                        self.broken = self.close.is_none();
                        return None;
                    }
                    None => return None,
                },
            }
        }
    }

    /// One block of an event stream, as browsers take it.
    fn block(&mut self, block: String) -> Option<Event> {
        let (mut kind, mut data, mut id) = (String::new(), Vec::new(), None);
        let waits = self.retries.len();
        for line in block.lines().filter(|line| !line.is_empty()) {
            match line.split_once(": ").unwrap_or((line, "")) {
                ("", comment) => self.comments.push(comment.to_owned()),
                ("retry", value) => self.retries.push(value.parse().expect("milliseconds")),
                ("id", value) => id = Some(value.to_owned()),
                ("event", value) => kind = value.to_owned(),
                ("data", value) => data.push(value.to_owned()),
                other => panic!("{other:?} in {block:?}"),
            }
        }
        if let Some(id) = &id {
            self.last_id = Some(id.clone());
        }
        if data.is_empty() {
            match self.retries.len() == waits {
                true => self.bare_ids.extend(id),
                false => self.begins = id.or(self.begins.take()),
            }
            return None;
        }
        assert_eq!(data.len(), 1, "one line of data: {block:?}");
        let body = serde_json::from_str(&data[0]).unwrap_or_else(|error| panic!("{error} in {block:?}"));
        self.text = block;
        Some(Event { kind, id, body })
    }
}
