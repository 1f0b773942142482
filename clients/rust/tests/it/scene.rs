//! A running client, and a server that the test scripts: it accepts a connection, inspects the request, and
//! responds.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::SinkExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tidings_client::rooms::{
    BackoffReason, Client, ConnectionState, Credential, Cursor, Event, Handler, InMemory, Info, LastSeen,
    MissedEvents, Reason, Stopped, Target, Wire,
};
use tidings_client::{Clock, Rng};
use tidings_engine::ManualClock;
use tidings_model::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};

/// Both protocols: every promise holds on each.
pub const WIRES: [Wire; 2] = [Wire::Sse, Wire::WebSocket];
/// Time after which a test fails because something expected has not happened.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the client did, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    State(ConnectionState),
    Event(String),
    Stored(Option<String>),
    Skipped(MissedEvents),
    Info(Reason),
    Refreshed,
}

pub fn connecting() -> Told {
    Told::State(ConnectionState::Connecting)
}

pub fn streaming() -> Told {
    Told::State(ConnectionState::Streaming)
}

pub fn disconnected() -> Told {
    Told::State(ConnectionState::Disconnected)
}

pub fn event(cursor: &str) -> Told {
    Told::Event(cursor.to_owned())
}

pub fn stored(cursor: &str) -> Told {
    Told::Stored(Some(cursor.to_owned()))
}

pub fn cursor(text: &str) -> Cursor {
    text.parse().expect("a cursor")
}

/// The clock of the tests as the client sees it, and a count of the waits on it.
struct Time(ManualClock, Arc<AtomicU64>);

impl Clock for Time {
    fn elapsed(&self) -> Duration {
        tidings_engine::Clock::elapsed(&self.0)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.1.fetch_add(1, Ordering::SeqCst);
        tidings_engine::Clock::sleep(&self.0, duration)
    }
}

/// Draws the number at a given percentage of the range.
#[derive(Clone, Default)]
struct FixedRng(Arc<AtomicU64>);

impl Rng for FixedRng {
    fn within(&self, range: RangeInclusive<u64>) -> u64 {
        range.start() + (range.end() - range.start()) * self.0.load(Ordering::SeqCst) / 100
    }
}

/// A handler that reports every call to the test.
struct RecordingHandler {
    told: UnboundedSender<Told>,
    /// Permits to handle events; one is used for each.
    permits: Arc<Semaphore>,
    fails_at: Option<String>,
}

impl RecordingHandler {
    fn tell(&self, told: Told) {
        // The test may have ended.
        let _ = self.told.send(told);
    }
}

impl Handler for RecordingHandler {
    type Error = String;

    async fn event(&mut self, event: &Event) -> Result<(), String> {
        assert_eq!(event.payload["of"], event.cursor.as_str(), "the payload is that of the event");
        self.tell(Told::Event(event.cursor.to_string()));
        if self.fails_at.as_deref() == Some(event.cursor.as_str()) {
            return Err("no room for it".to_owned());
        }
        self.permits.acquire().await.expect("it is never closed").forget();
        Ok(())
    }

    fn skipped(&mut self, skip: &MissedEvents) {
        self.tell(Told::Skipped(skip.clone()));
    }

    fn info(&mut self, info: &Info) {
        self.tell(Told::Info(info.reason));
    }

    fn state(&mut self, state: &ConnectionState) {
        self.tell(Told::State(state.clone()));
    }
}

struct Kept {
    told: UnboundedSender<Told>,
    memory: InMemory,
}

impl LastSeen for Kept {
    type Error = std::convert::Infallible;

    async fn load(&mut self) -> Result<Option<Cursor>, Self::Error> {
        self.memory.load().await
    }

    async fn store(&mut self, cursor: Option<&Cursor>) -> Result<(), Self::Error> {
        let _ = self.told.send(Told::Stored(cursor.map(Cursor::to_string)));
        self.memory.store(cursor).await
    }
}

/// A credential that yields `token-1`, `token-2` and so on.
struct Tokens {
    told: UnboundedSender<Told>,
    token: String,
    refreshed: u32,
    at_most: u32,
}

impl Credential for Tokens {
    fn token(&self) -> Option<&str> {
        Some(&self.token)
    }

    async fn refresh(&mut self) -> bool {
        if self.refreshed == self.at_most {
            return false;
        }
        self.refreshed += 1;
        self.token = format!("token-{}", self.refreshed + 1);
        let _ = self.told.send(Told::Refreshed);
        true
    }
}

/// Options of a scene.
pub struct Setup {
    pub wire: Wire,
    pub last_seen: Option<&'static str>,
    /// Number of new tokens that can be obtained.
    pub tokens: u32,
    /// Events that are handled before the handler waits for [`Scene::permit`].
    pub permits: usize,
    /// The event at which the handler fails.
    pub fails_at: Option<&'static str>,
}

impl Setup {
    pub fn on(wire: Wire) -> Self {
        Self { wire, last_seen: None, tokens: 9, permits: Semaphore::MAX_PERMITS, fails_at: None }
    }
}

/// A running client.
pub struct Scene {
    pub clock: ManualClock,
    pub memory: InMemory,
    rng: FixedRng,
    sleeps: Arc<AtomicU64>,
    permits: Arc<Semaphore>,
    listener: Option<TcpListener>,
    told: UnboundedReceiver<Told>,
    client: JoinHandle<Stopped>,
}

impl Scene {
    pub async fn with(setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = format!("http://{}", listener.local_addr().expect("an address"));
        let target = Target::new(&server, "shop", "lobby").expect("a good URL").on(setup.wire);
        Self::follow(setup, listener, target)
    }

    pub fn follow(setup: Setup, listener: TcpListener, target: Target) -> Self {
        let (tell, told) = unbounded_channel();
        let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
        let memory = setup.last_seen.map_or_else(InMemory::default, |text| InMemory::at(cursor(text)));
        let (rng, permits) = (FixedRng::default(), Arc::new(Semaphore::new(setup.permits)));
        let sleeps = Arc::new(AtomicU64::new(0));
        let fails_at = setup.fails_at.map(str::to_owned);
        let teller = RecordingHandler { told: tell.clone(), permits: permits.clone(), fails_at };
        let tokens =
            Tokens { told: tell.clone(), token: "token-1".to_owned(), refreshed: 0, at_most: setup.tokens };
        let mut client = Client::new(target, teller, Kept { told: tell, memory: memory.clone() })
            .with_credential(tokens)
            .with_clock(Arc::new(Time(clock.clone(), sleeps.clone())))
            .with_rng(Arc::new(rng.clone()));
        let client = tokio::spawn(async move { client.run().await });
        Self { clock, memory, rng, sleeps, permits, listener: Some(listener), told, client }
    }

    /// A scene whose client has connected and streams.
    pub async fn streaming(setup: Setup) -> (Self, Flow) {
        let mut scene = Self::with(setup).await;
        scene.expect([disconnected(), connecting()]).await;
        let flow = scene.call().await.open().await;
        scene.expect([streaming()]).await;
        (scene, flow)
    }

    /// Sets the percentage of the range at which random numbers are drawn; initially 0.
    pub fn draw_at(&self, hundredths: u64) {
        self.rng.0.store(hundredths, Ordering::SeqCst);
    }

    pub fn permit(&self) {
        self.permits.add_permits(1);
    }

    /// Stops listening.
    pub fn stop_listening(&mut self) {
        self.listener = None;
    }

    /// The client's next request.
    pub async fn call(&mut self) -> Call {
        let listener = self.listener.as_ref().expect("the door is open");
        let (socket, _) = in_time("a call", listener.accept()).await.expect("a connection");
        in_time("a request", Call::read(socket)).await
    }

    /// What the client did next.
    pub async fn told(&mut self) -> Told {
        in_time("something to be told", self.told.recv()).await.expect("the client runs")
    }

    /// Asserts what the client did next, in order.
    pub async fn expect<const N: usize>(&mut self, all: [Told; N]) {
        for expected in all {
            assert_eq!(self.told().await, expected);
        }
    }

    /// Asserts that the client waits next; returns reason and duration, and advances the clock. It has not
    /// connected before that.
    pub async fn wait(&mut self) -> (BackoffReason, Duration) {
        let Told::State(ConnectionState::Backoff { wait, why }) = self.told().await else {
            panic!("it should wait");
        };
        self.pass(wait).await;
        self.expect([connecting()]).await;
        (why, wait)
    }

    /// Advances the clock when the client waits for it.
    pub async fn pass(&mut self, time: Duration) {
        let waits = async {
            while self.clock.sleepers() == 0 {
                tokio::task::yield_now().await;
            }
        };
        in_time("it to wait", waits).await;
        self.clock.advance(time - Duration::from_millis(1));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(self.told.is_empty(), "not before its time");
        self.clock.advance(Duration::from_millis(1));
    }

    /// Sends a heartbeat and waits until the client has read it, which shows only in that it waits again.
    pub async fn heartbeat(&self, flow: &mut Flow) {
        let before = self.sleeps.load(Ordering::SeqCst);
        flow.heartbeat().await;
        let taken = async {
            while self.sleeps.load(Ordering::SeqCst) == before {
                tokio::task::yield_now().await;
            }
        };
        in_time("the heartbeat to be taken", taken).await;
    }

    /// Asserts that the client stops next; returns the reason.
    pub async fn stopped(mut self) -> Stopped {
        self.expect([disconnected()]).await;
        self.ended().await
    }

    /// The reason for which the client has stopped.
    pub async fn ended(self) -> Stopped {
        in_time("its end", self.client).await.expect("no panic")
    }

    /// Drops the client's future.
    pub fn drop_the_client(&self) {
        self.client.abort();
    }
}

pub async fn in_time<T>(what: &str, coming: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, coming).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// A request that has no response yet.
pub struct Call<S = TcpStream> {
    socket: S,
    head: String,
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Call<S> {
    pub async fn read(mut socket: S) -> Self {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.expect("a whole request"));
        }
        Self { socket, head: String::from_utf8(head).expect("plain text") }
    }

    /// Path and query.
    pub fn path(&self) -> &str {
        self.head.split(' ').nth(1).expect("a request line")
    }

    /// Cursor that was sent.
    pub fn cursor(&self) -> Option<&str> {
        let query = self.path().split_once('?')?.1;
        query.split('&').find_map(|parameter| parameter.strip_prefix("cursor="))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Responds with an error.
    pub async fn refuse(self, status: u16, body: Value) {
        self.refuse_with(status, "", body).await;
    }

    /// Responds with an error and additional headers, each with its line end.
    pub async fn refuse_with(mut self, status: u16, headers: &str, body: Value) {
        let body = body.to_string();
        let head = format!("HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n{headers}");
        let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        self.socket.write_all(answer.as_bytes()).await.expect("the client listens");
    }

    /// Responds with a stream.
    pub async fn open(self) -> Flow<S> {
        self.open_with("").await
    }

    /// Responds with a stream and additional headers, each with its line end.
    pub async fn open_with(mut self, headers: &str) -> Flow<S> {
        let key = self.header("sec-websocket-key").map(|key| derive_accept_key(key.as_bytes()));
        let head = match &key {
            None => "200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked".to_owned(),
            Some(key) => format!(
                "101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: {key}"
            ),
        };
        let head = format!("HTTP/1.1 {head}\r\n{headers}\r\n");
        self.socket.write_all(head.as_bytes()).await.expect("the client listens");
        match key {
            None => Flow::Sse(self.socket),
            Some(_) => Flow::WebSocket(Box::new(
                WebSocketStream::from_raw_socket(self.socket, Role::Server, None).await,
            )),
        }
    }
}

/// An open stream.
pub enum Flow<S = TcpStream> {
    Sse(S),
    WebSocket(Box<WebSocketStream<S>>),
}

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Flow<S> {
    /// Sends a message event.
    pub async fn message(&mut self, cursor: &str) {
        self.event("messageEvent", cursor).await;
    }

    pub async fn event(&mut self, kind: &str, cursor: &str) {
        let mut event = json!({
            "cursor": cursor, "convoId": "lobby", "emittedAt": "2025-10-22T22:00:00Z",
            "payload": { "messageView": {}, "of": cursor }
        });
        match self {
            Self::Sse(_) => {
                let id = if kind == "typingEvent" { String::new() } else { format!("id: {cursor}\n") };
                self.raw(&format!("{id}event: {kind}\ndata: {event}\n\n")).await;
            }
            Self::WebSocket(_) => {
                event["type"] = json!(kind);
                self.text(&event.to_string()).await;
            }
        }
    }

    pub async fn info(&mut self, reason: &str, cursor: &str, detail: Value) {
        let info = json!({
            "type": "infoEvent", "cursor": cursor, "convoId": "lobby", "emittedAt": "2025-10-22T22:00:00Z",
            "payload": { "reason": reason, "detail": detail }, "reason": reason, "detail": detail
        });
        match self {
            Self::Sse(_) => self.raw(&format!("event: infoEvent\ndata: {info}\n\n")).await,
            Self::WebSocket(_) => self.text(&info.to_string()).await,
        }
    }

    pub async fn heartbeat(&mut self) {
        match self {
            Self::Sse(_) => self.raw(": keep-alive\n\n").await,
            Self::WebSocket(socket) => {
                socket.send(Message::Ping("".into())).await.expect("the client listens");
            }
        }
    }

    /// Sends bytes of an event stream.
    pub async fn raw(&mut self, text: &str) {
        let Self::Sse(socket) = self else { panic!("only an event stream has bytes of its own") };
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        socket.write_all(chunk.as_bytes()).await.expect("the client listens");
    }

    /// Sends a message on a WebSocket.
    pub async fn text(&mut self, text: &str) {
        let Self::WebSocket(socket) = self else { panic!("only a WebSocket has messages of its own") };
        socket.send(Message::text(text)).await.expect("the client listens");
    }

    /// Ends the stream normally.
    pub async fn end(self) {
        match self {
            Self::Sse(mut socket) => socket.write_all(b"0\r\n\r\n").await.expect("the client listens"),
            this => this.close(1000).await,
        }
    }

    /// Closes a WebSocket with a code.
    pub async fn close(self, code: u16) {
        let Self::WebSocket(mut socket) = self else { panic!("only a WebSocket has codes") };
        let frame = CloseFrame { code: code.into(), reason: "".into() };
        socket.send(Message::Close(Some(frame))).await.expect("the client listens");
    }

    /// Breaks the connection in the middle of an event.
    pub async fn cut(self, cursor: &str) {
        let event = format!("id: {cursor}\nevent: messageEvent\ndata: {{\"cursor\":\"{cursor}\",\"pay");
        match self {
            mut this @ Self::Sse(_) => this.raw(&event).await,
            Self::WebSocket(mut socket) => {
                // A frame that announces 100 bytes and has fewer.
                let socket = socket.get_mut();
                socket.write_all(b"\x81\x64{\"type\":\"messageEvent\"").await.expect("the client listens");
                socket.flush().await.expect("the client listens");
            }
        }
    }

    /// Waits until the client has disconnected.
    pub async fn gone(self) {
        let mut socket = match self {
            Self::Sse(socket) => socket,
            Self::WebSocket(socket) => socket.into_inner(),
        };
        let mut rest = Vec::new();
        // With or without a close frame.
        let _ = in_time("the client's end", socket.read_to_end(&mut rest)).await;
    }
}
