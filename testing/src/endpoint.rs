//! An endpoint that hooks call: it keeps what it receives, and behaves well or badly as a test tells it to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// An endpoint on the loopback interface.
pub struct Endpoint {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    received: Vec<Received>,
    /// Behaviours for the next requests; after them, `usual`.
    next: VecDeque<Behaviour>,
    usual: Behaviour,
    connections: usize,
    /// Requests that are not answered, and the most there were at a time.
    open: usize,
    most: usize,
    /// Times that waiting requests were released.
    releases: u64,
    /// Pieces of responses that drip.
    dripped: usize,
    /// Decides what to do with each request, which is then not kept.
    judge: Option<Judge>,
}

/// Decides what to do with a request.
type Judge = Box<dyn FnMut(&Received) -> Behaviour + Send>;

/// A request as the endpoint received it.
#[derive(Clone, Debug)]
pub struct Received {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
    /// Number of the connection, from 1.
    pub connection: usize,
}

impl Received {
    /// Value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// What the endpoint does with a request.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// Answers with this status, these further headers and this body.
    Answer(u16, Vec<(&'static str, String)>, String),
    /// Never answers.
    Hang,
    /// Closes the connection instead of answering.
    Reset,
    /// Answers with bytes that are no HTTP.
    Garbage,
    /// Answers with a body that never ends, one byte at a time.
    Drip,
    /// Answers with a head that never ends, one header at a time.
    DripHead,
    /// Answers with a body of this many bytes.
    Huge(usize),
    /// Answers with this status at the next [`Endpoint::release`].
    Wait(u16),
}

impl Default for Behaviour {
    fn default() -> Self {
        Self::status(200)
    }
}

impl Behaviour {
    /// Answers with a status and no body.
    pub fn status(status: u16) -> Self {
        Self::Answer(status, Vec::new(), String::new())
    }
}

impl Endpoint {
    /// Starts an endpoint that answers 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::<Shared>::default();
        let serving = shared.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let connection = serving.connected();
                tokio::spawn(serve(socket, connection, serving.clone()));
            }
        });
        Self { address, shared, accepting }
    }

    /// Host and port, as a `Host` header has them.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }

    /// URL of a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Sets what it does with requests from now on, once what [`Self::then`] told is used up.
    pub fn usually(&self, behaviour: Behaviour) -> &Self {
        self.shared.state().usual = behaviour;
        self
    }

    /// Adds what it does with a further request.
    pub fn then(&self, behaviour: Behaviour) -> &Self {
        self.shared.state().next.push_back(behaviour);
        self
    }

    /// Lets a function decide about each request from now on. Requests are then not kept, so there may be very many.
    pub fn judging(&self, judge: impl FnMut(&Received) -> Behaviour + Send + 'static) -> &Self {
        self.shared.state().judge = Some(Box::new(judge));
        self
    }

    /// Lets requests that wait be answered. Those that come later are answered 200, unless told otherwise again.
    pub fn release(&self) {
        let mut state = self.shared.state();
        state.usual = Behaviour::default();
        state.releases += 1;
        drop(state);
        self.shared.changed.notify_waiters();
    }

    /// What it has received so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.state().received.clone()
    }

    /// Number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.state().connections
    }

    /// Number of requests that are not answered.
    pub fn open(&self) -> usize {
        self.shared.state().open
    }

    /// Most requests that were not answered at a time.
    pub fn most(&self) -> usize {
        self.shared.state().most
    }

    /// Pieces of responses that it has sent one by one.
    pub fn dripped(&self) -> usize {
        self.shared.state().dripped
    }

    /// Waits until it has received so many requests, and returns all.
    ///
    /// # Panics
    /// If they do not come within half a minute.
    pub async fn receives(&self, count: usize) -> Vec<Received> {
        crate::until("the endpoint has received enough", || self.shared.state().received.len() >= count)
            .await;
        self.received()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics while holding it")
    }

    fn connected(&self) -> usize {
        let mut state = self.state();
        state.connections += 1;
        state.connections
    }

    /// Takes a request. Returns what to do with it, and how often others were released before.
    fn receive(&self, received: Received) -> (Behaviour, u64) {
        let mut state = self.state();
        state.open += 1;
        state.most = state.most.max(state.open);
        if let Some(judge) = &mut state.judge {
            return (judge(&received), state.releases);
        }
        state.received.push(received);
        let behaviour = state.next.pop_front().unwrap_or_else(|| state.usual.clone());
        (behaviour, state.releases)
    }

    /// A piece of a response was sent.
    async fn drip(&self) {
        self.state().dripped += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A request that is not answered.
struct Open<'a>(&'a Shared);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.state().open -= 1;
    }
}

/// Serves the requests of one connection.
async fn serve(mut socket: TcpStream, connection: usize, shared: Arc<Shared>) {
    let mut buffer = Vec::new();
    while let Some(received) = read(&mut socket, &mut buffer, connection).await {
        let (behaviour, releases) = shared.receive(received);
        let _open = Open(&shared);
        if answer(&mut socket, behaviour, releases, &shared).await.is_none() {
            return;
        }
    }
}

async fn read(socket: &mut TcpStream, buffer: &mut Vec<u8>, connection: usize) -> Option<Received> {
    let head = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if buffer.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            // No HTTP, such as the beginning of a TLS handshake.
            return None;
        }
        fill(socket, buffer).await?;
    };
    let text = String::from_utf8_lossy(&buffer[..head]).into_owned();
    let mut lines = text.split("\r\n");
    let mut request = lines.next()?.split(' ').map(str::to_owned);
    let (method, path) = (request.next()?, request.next()?);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.map_or(0, |(_, value)| value.parse().expect("a length"));
    while buffer.len() < head + 4 + length {
        fill(socket, buffer).await?;
    }
    let rest = buffer.split_off(head + 4 + length);
    let body = buffer.split_off(head + 4);
    *buffer = rest;
    Some(Received { method, path, headers, body, connection })
}

async fn fill(socket: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 16 * 1024];
    match socket.read(&mut piece).await {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            buffer.extend_from_slice(&piece[..length]);
            Some(())
        }
    }
}

/// Answers a request. Returns `None` when the connection is at its end.
async fn answer(socket: &mut TcpStream, behaviour: Behaviour, releases: u64, shared: &Shared) -> Option<()> {
    match behaviour {
        Behaviour::Answer(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} Told\r\ncontent-length: {}\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            if status == 204 {
                head = head.replace("content-length: 0\r\n", "");
            }
            socket.write_all(format!("{head}\r\n{body}").as_bytes()).await.ok()
        }
        Behaviour::Hang => {
            // Until the other side gives up.
            let mut nothing = [0; 1];
            let _ = socket.read(&mut nothing).await;
            None
        }
        Behaviour::Reset => None,
        Behaviour::Garbage => {
            let _ = socket.write_all(b"\x00\x01 this is no HTTP\r\n\r\n").await;
            None
        }
        Behaviour::Drip => {
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await.ok()?;
            while socket.write_all(b"x").await.is_ok() {
                shared.drip().await;
            }
            None
        }
        Behaviour::DripHead => {
            socket.write_all(b"HTTP/1.1 200 OK\r\n").await.ok()?;
            while socket.write_all(b"x: y\r\n").await.is_ok() {
                shared.drip().await;
            }
            None
        }
        Behaviour::Huge(bytes) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n");
            socket.write_all(head.as_bytes()).await.ok()?;
            socket.write_all(&vec![b'x'; bytes]).await.ok()
        }
        Behaviour::Wait(status) => {
            loop {
                let changed = shared.changed.notified();
                if shared.state().releases > releases {
                    break;
                }
                changed.await;
            }
            let head = format!("HTTP/1.1 {status} Told\r\ncontent-length: 0\r\n\r\n");
            socket.write_all(head.as_bytes()).await.ok()
        }
    }
}
