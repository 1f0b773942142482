use std::sync::Arc;
use std::time::Duration;

use reqwest::{Client, Method, RequestBuilder, Response};
use tempfile::TempDir;
use tidings_embedded::Options as EmbeddedOptions;
use tidings_engine::{Bus, Clock, ManualClock, WallClock};
use tidings_model::Timestamp;
use tidings_server::{LimitOptions, ObserveOptions, Server, ServerOptions, StoreChoice, TlsOptions};
use tidings_streams::Options;

/// How a server under test is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Where it keeps its streams.
    pub store: TestStore,
    /// How streams are set.
    pub streams: Options,
    /// What clients may not exceed.
    pub limits: LimitOptions,
    /// Certificate and key, to speak TLS.
    pub tls: Option<TlsOptions>,
    /// What operators see.
    pub observe: ObserveOptions,
    /// Whether time passes by itself. Only for programs that measure it themselves.
    pub wall_clock: bool,
}

/// Where a server under test keeps its streams.
#[derive(Clone, Copy, Debug, Default)]
pub enum TestStore {
    /// In memory.
    #[default]
    Memory,
    /// In files, in a folder that goes with the harness.
    Embedded,
    /// In files, on a disk that has no space left.
    Full,
}

/// A server in this process, and a client of it.
pub struct Harness {
    /// Moves when told; nothing hears it when the server has the wall clock.
    pub clock: ManualClock,
    client: Client,
    server: Server,
    /// Removed last.
    _data: Option<TempDir>,
}

impl Harness {
    /// A server with an empty store and a clock that stands still.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// A server set up in its own way.
    pub async fn with(setup: Setup) -> Self {
        // A Sunday in November 2025, at noon and some.
        let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_123));
        let server_clock: Arc<dyn Clock> =
            if setup.wall_clock { Arc::new(WallClock) } else { Arc::new(clock.clone()) };
        let data = match setup.store {
            TestStore::Memory => None,
            TestStore::Embedded | TestStore::Full => Some(TempDir::new().expect("a folder for the data")),
        };
        let store = match &data {
            None => StoreChoice::Memory,
            Some(folder) => {
                let mut options =
                    EmbeddedOptions { on_failure: Arc::new(|why| panic!("{why}")), ..Default::default() };
                if matches!(setup.store, TestStore::Full) {
                    options.reserve_bytes = u64::MAX;
                }
                StoreChoice::Embedded { data: folder.path().to_owned(), options }
            }
        };
        let server = Server::start(ServerOptions {
            store,
            listen: ([127, 0, 0, 1], 0).into(),
            clock: server_clock,
            seed: 42,
            streams: setup.streams,
            limits: setup.limits,
            tls: setup.tls,
            observe: setup.observe,
        })
        .await
        .expect("a free port on the loopback interface");
        Self { clock, client: Client::new(), server, _data: data }
    }

    /// The server's address and a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// The value of a metric, written with its labels as in its text; none if there is no such line.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.server.metrics().text();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Who waits for what in the server.
    pub fn bus(&self) -> &Bus {
        self.server.bus()
    }

    /// A request to be filled and sent.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// A `PUT`.
    pub fn put(&self, path: &str) -> RequestBuilder {
        self.request(Method::PUT, path)
    }

    /// A `POST`.
    pub fn post(&self, path: &str) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    /// Sends a `GET`.
    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.expect("an answer")
    }

    /// Creates a stream of plain text that must be new.
    pub async fn create_text(&self, path: &str) {
        let answer = self.put(path).header("content-type", "text/plain").send().await.expect("an answer");
        assert_eq!(answer.status(), 201, "creating {path}");
    }

    /// Appends plain text, which must be accepted, and returns the next offset.
    pub async fn append_text(&self, path: &str, text: &str) -> String {
        let request = self.post(path).header("content-type", "text/plain").body(text.to_owned());
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 204, "appending to {path}");
        header(&answer, "stream-next-offset").expect("an append tells the next offset")
    }

    /// Lets all who wait hear that the server stops, and waits for its end.
    pub async fn stop(self) {
        drop(self.client);
        self.server.stop().await.expect("the server ends well");
    }
}

/// The text of a header.
fn header(answer: &Response, name: &str) -> Option<String> {
    Some(answer.headers().get(name)?.to_str().expect("plain text").to_owned())
}

/// Waits for something that other tasks bring about.
///
/// # Panics
/// When it does not come about within half a minute.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
        panic!("waited in vain until {what}");
    }
}
