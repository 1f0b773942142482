//! An egress with a clock that stands still and a resolver that says what it is told to, and the other end of its
//! connections.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use hyper::Method;
use hyper::header::HeaderMap;
use socket2::SockRef;
use tidings_egress::{
    AllowList, Answer, Egress, EgressOptions, Guard, Outgoing, Resolver, SendError, Target,
};
use tidings_engine::{ManualClock, Metrics};
use tidings_model::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Time that requests of these tests may take, by the clock that stands still.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a body that requests of these tests keep.
pub const KEEP: usize = 16;
/// A response without a body.
pub const NO_CONTENT: &[u8] = b"HTTP/1.1 204 No Content\r\n\r\n";
/// Real time after which a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// An egress under test.
#[derive(Clone)]
pub struct Fixture {
    pub egress: Egress,
    pub clock: ManualClock,
    pub resolver: TestResolver,
    metrics: Metrics,
}

/// What a [`Fixture`] is made of.
pub struct Setup {
    pub options: EgressOptions,
    pub allow: &'static [&'static str],
}

impl Default for Setup {
    fn default() -> Self {
        Self { options: EgressOptions::default(), allow: &["127.0.0.0/8", "::1/128"] }
    }
}

impl Setup {
    pub fn fixture(self) -> Fixture {
        let clock = ManualClock::at(Timestamp::from_millis(1_763_497_634_000));
        let (resolver, metrics) = (TestResolver::default(), Metrics::new());
        let allow: Vec<String> = self.allow.iter().map(|&entry| entry.to_owned()).collect();
        let guard = Guard::new(AllowList::parse(&allow).expect("a list"));
        let (resolving, timing) = (Arc::new(resolver.clone()), Arc::new(clock.clone()));
        let egress = Egress::new(self.options, guard, resolving, timing, &metrics);
        Fixture { egress, clock, resolver, metrics }
    }
}

impl Fixture {
    pub fn new() -> Self {
        Setup::default().fixture()
    }

    /// Sends a request in the background.
    pub fn send(&self, url: &str) -> JoinHandle<Result<Answer, SendError>> {
        let (egress, target) = (self.egress.clone(), target(url));
        tokio::spawn(async move { egress.send(outgoing(&target)).await })
    }

    /// Lets time pass as soon as a request waits for something, and what was said to it was heard.
    pub async fn advance(&self, by: Duration) {
        settle().await;
        until("a request waits", || self.clock.sleepers() > 0).await;
        self.clock.advance(by);
    }

    /// Value of a metric.
    pub fn metric(&self, series: &str) -> u64 {
        let text = self.metrics.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is in {text}")).parse().expect("a number")
    }

    pub fn open_connections(&self) -> u64 {
        self.metric("tidings_egress_connections")
    }
}

pub fn target(url: &str) -> Target {
    Target::parse(url).expect("a target")
}

/// A small POST.
pub fn outgoing(target: &Target) -> Outgoing<'_> {
    Outgoing {
        method: Method::POST,
        target,
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"{\"id\":1}"),
        timeout: TIMEOUT,
        keep: KEEP,
    }
}

/// Waits until something is so, while other tasks run.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::task::yield_now().await;
    }
}

/// Lets other tasks take note of what has arrived on their sockets. What was written to a socket of this machine has
/// arrived at once, and the runtime of a test looks at all sockets whenever its only thread yields.
pub async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// A future that must end soon.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}"))
}

/// The result of a request that was sent in the background.
pub async fn sent(sending: JoinHandle<Result<Answer, SendError>>) -> Result<Answer, SendError> {
    soon("a request ends", sending).await.expect("no panic")
}

/// Where requests go: a listening socket.
pub struct Endpoint {
    listener: TcpListener,
    pub address: SocketAddr,
}

/// The endpoint's end of a connection.
pub struct Peer {
    pub socket: TcpStream,
}

/// A request as it arrived.
pub struct Request {
    pub line: String,
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

impl Endpoint {
    pub async fn listen() -> Self {
        Self::listen_on(1, 0).await
    }

    /// Listens on 127.0.0.`last`. Tests that need the same port on two addresses use addresses that no other test uses,
    /// so that the port is free on the second one.
    pub async fn listen_on(last: u8, port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port)).await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        Self { listener, address }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks?k=v", self.address)
    }

    pub async fn accept(&self) -> Peer {
        let (socket, _) = soon("a connection is opened", self.listener.accept()).await.expect("a connection");
        Peer { socket }
    }

    /// Whether a connection is waiting to be accepted.
    pub fn is_called(&self) -> bool {
        SockRef::from(&self.listener).accept().is_ok()
    }
}

impl Peer {
    /// Reads a request.
    pub async fn request(&mut self) -> Request {
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            let count =
                soon("a request arrives", self.socket.read_buf(&mut bytes)).await.expect("it is open");
            assert_ne!(count, 0, "the request is complete: {:?}", String::from_utf8_lossy(&bytes));
        };
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let mut lines = head.split("\r\n");
        let line = lines.next().expect("a request line").to_owned();
        let headers = lines.map(|line| line.split_once(": ").expect("a header"));
        let headers: HashMap<_, _> =
            headers.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let length: usize = headers["content-length"].parse().expect("a number");
        let mut body = bytes.split_off(end + 4);
        while body.len() < length {
            let count = soon("the body arrives", self.socket.read_buf(&mut body)).await.expect("it is open");
            assert_ne!(count, 0, "the body is complete");
        }
        assert_eq!(body.len(), length, "nothing comes behind the body");
        Request { line, headers, body }
    }

    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        soon("bytes are taken", self.socket.write_all(bytes.as_ref())).await.expect("it is open");
    }

    /// Writes again and again, at least so many bytes, or until the other side closes the connection.
    pub async fn flood(&mut self, bytes: &[u8], total: usize) {
        for _ in 0..=total / bytes.len() {
            if soon("bytes are taken", self.socket.write_all(bytes)).await.is_err() {
                break;
            }
        }
    }

    /// Waits until the other side closes the connection. What it sends before is ignored.
    pub async fn closed(&mut self) {
        let mut ignored = [0; 1024];
        while let Ok(1..) = soon("the connection is closed", self.socket.read(&mut ignored)).await {}
    }

    /// Closes the connection with a reset.
    pub fn reset(self) {
        let socket = SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO)).expect("it is open");
    }

    /// Whether the connection is open as far as is known now.
    pub fn is_open(&self) -> bool {
        let peeked = SockRef::from(&self.socket).peek(&mut [MaybeUninit::uninit(); 1]);
        matches!(peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// A resolver that says what it is told to.
#[derive(Clone, Default)]
pub struct TestResolver {
    answers: Arc<Mutex<HashMap<String, Vec<Resolved>>>>,
    lookups: Arc<AtomicUsize>,
}

/// What becomes of a lookup.
#[derive(Clone)]
pub enum Resolved {
    To(Vec<IpAddr>),
    Fails,
    /// Ends when the notification comes, and fails.
    Hangs(Arc<tokio::sync::Notify>),
    Panics,
}

impl TestResolver {
    /// Says what becomes of the lookups of a name, one after the other; the last one repeats.
    pub fn set(&self, name: &str, lookups: impl IntoIterator<Item = Resolved>) {
        let mut lookups: Vec<Resolved> = lookups.into_iter().collect();
        lookups.reverse();
        self.answers.lock().expect("no panic").insert(name.to_owned(), lookups);
    }

    /// Number of lookups so far.
    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::Relaxed)
    }
}

impl Resolved {
    pub fn to(addresses: &[&str]) -> Self {
        Self::To(addresses.iter().map(|address| address.parse().expect("an address")).collect())
    }

    pub fn local(last: u8) -> Self {
        Self::To(vec![Ipv4Addr::new(127, 0, 0, last).into()])
    }
}

impl Resolver for TestResolver {
    fn resolve(&self, name: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let mut all = self.answers.lock().expect("no panic");
        let lookups = all.get_mut(name).unwrap_or_else(|| panic!("the test says what {name} is"));
        let next = if lookups.len() > 1 { lookups.pop() } else { lookups.last().cloned() };
        Box::pin(async move {
            match next.expect("there is one") {
                Resolved::To(addresses) => Ok(addresses),
                Resolved::Fails => Err(io::Error::other("no such name")),
                Resolved::Hangs(end) => {
                    end.notified().await;
                    Err(io::Error::other("no answer"))
                }
                Resolved::Panics => panic!("the resolver of this test panics"),
            }
        })
    }
}
