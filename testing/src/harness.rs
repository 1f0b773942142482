use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::http::{Client, Method, RequestBuilder, Response};
use tempfile::TempDir;
use tidings_auth::{AdminKey, Authorize, Given, Key, Projects};
use tidings_embedded::Options as EmbeddedOptions;
use tidings_engine::duty::Leadership;
use tidings_engine::{Bus, Clock, ManualClock, WallClock};
use tidings_model::{ProjectId, Timestamp};
use tidings_server::{
    Access, CapabilityOptions, Duty, LimitOptions, ObserveOptions, Server, ServerOptions, StoreChoice,
    TlsOptions,
};
use tidings_streams::Options;

/// How many of the server's duties wait for the clock: expiry and retention of streams, removal of projects, clean-up and
/// backlog of sessions, the two of rooms (the sweep, and writing how far they were seen), live answers, and the store's
/// upkeep.
pub const SLEEPERS: usize = 9;

/// How a server under test is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Where it keeps its streams.
    pub store: TestStore,
    /// How streams are set.
    pub streams: Options,
    /// How sessions are set.
    pub sessions: tidings_sessions::Options,
    /// How rooms are set.
    pub rooms: tidings_rooms::Options,
    /// Whom it lets in.
    pub doors: Doors,
    /// What clients may not exceed.
    pub limits: LimitOptions,
    /// Certificate and key, to speak TLS.
    pub tls: Option<TlsOptions>,
    /// What operators see.
    pub observe: ObserveOptions,
    /// Duties in place of the server's own of the same name, or beside them.
    pub duties: Vec<Duty>,
    /// Whether it does what one of several nodes does alone.
    pub leadership: Leadership,
    /// Whether time passes by itself. Only for programs that measure it themselves.
    pub wall_clock: bool,
}

/// The admin key of a server that does not let everybody in.
pub const ADMIN_KEY: &str = "the-admin-key-of-the-tests";

/// Whom a server under test lets in.
#[derive(Clone, Default)]
pub enum Doors {
    /// Everybody, as with `--dev`.
    #[default]
    Open,
    /// Whoever has a credential. There is [`ADMIN_KEY`], and these projects, each with a key.
    Closed {
        /// Created in the store.
        created: Vec<(&'static str, &'static str)>,
        /// Given by configuration.
        given: Vec<(&'static str, &'static str)>,
    },
    /// Whom the application lets in.
    Custom(Arc<dyn Authorize>),
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Closed { .. } => "Closed",
            Self::Custom(_) => "Custom",
        })
    }
}

impl Doors {
    fn access(&self) -> Access {
        let admin = Some(AdminKey::parse(ADMIN_KEY).expect("long enough").digest());
        match self {
            Self::Open => Access { dev: true, ..Access::default() },
            Self::Closed { given, .. } => {
                let projects = given.iter().map(|(id, key)| (project(id), vec![signing_key(key)])).collect();
                Access { given: Given { projects, admin }, ..Access::default() }
            }
            Self::Custom(authorize) => Access {
                given: Given { admin, ..Given::default() },
                authorize: Some(authorize.clone()),
                ..Access::default()
            },
        }
    }

    async fn create(&self, projects: &Projects) {
        let Self::Closed { created, .. } = self else { return };
        for (id, key) in created {
            projects.create(&project(id), Some(signing_key(key))).await.expect("a new project");
        }
    }
}

fn project(id: &str) -> ProjectId {
    ProjectId::parse(id).expect("a valid id")
}

fn signing_key(text: &str) -> Key {
    Key::parse(text).expect("a valid key")
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
    setup: Setup,
    /// Removed last.
    data: Option<TempDir>,
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
        let data = match setup.store {
            TestStore::Memory => None,
            TestStore::Embedded | TestStore::Full => Some(TempDir::new().expect("a folder for the data")),
        };
        let server = start(&setup, &clock, data.as_ref()).await;
        setup.doors.create(server.projects()).await;
        Self { clock, client: Client::new(), server, setup, data }
    }

    /// Stops it and starts it again, with the same data and at the time that its clock shows.
    ///
    /// # Panics
    /// When its store is in memory.
    pub async fn restart(self) -> Self {
        let Self { clock, client, server, setup, data } = self;
        drop(client);
        server.stop().await.expect("the server ends well");
        assert!(data.is_some(), "a store in memory does not outlive its server");
        let server = start(&setup, &clock, data.as_ref()).await;
        Self { clock, client: Client::new(), server, setup, data }
    }

    /// The server's address and a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// The projects of the server.
    pub fn projects(&self) -> &Projects {
        self.server.projects()
    }

    /// Where it listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
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

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
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

/// A server as it is set up, with its data.
async fn start(setup: &Setup, clock: &ManualClock, data: Option<&TempDir>) -> Server {
    let setup = setup.clone();
    let server_clock: Arc<dyn Clock> =
        if setup.wall_clock { Arc::new(WallClock) } else { Arc::new(clock.clone()) };
    let store = match data {
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
    let listen = ([127, 0, 0, 1], 0).into();
    Server::start(ServerOptions {
        seed: 42,
        capabilities: CapabilityOptions {
            streams: setup.streams,
            sessions: setup.sessions,
            rooms: setup.rooms,
        },
        access: setup.doors.access(),
        limits: setup.limits,
        tls: setup.tls,
        observe: setup.observe,
        duties: setup.duties,
        leadership: setup.leadership,
        ..ServerOptions::new(store, listen, server_clock)
    })
    .await
    .expect("a free port on the loopback interface")
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

/// Waits for something that other tasks or processes bring about, and that takes a request to see.
///
/// # Panics
/// When it does not come about within half a minute.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
        panic!("waited in vain until {what}");
    }
}
