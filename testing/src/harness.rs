//! [`Harness`]: a server in the test's own process, its options, and helpers that wait for a condition.

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
    Access, CapabilityOptions, Duty, EntityOptions, HookOptions, LimitOptions, ObserveOptions, Server,
    ServerOptions, StoreChoice, TlsOptions, TopicOptions,
};
use tidings_streams::Options;

/// Number of server duties that wait for the clock: expiry and retention of streams, removal of projects,
/// clean-up and backlog of sessions, sweep and receipts of rooms, backlog, expiry, retention, patterns and
/// connections of hooks, retention of changes of entities, checks of live responses, and maintenance of the store.
pub const SLEEPERS: usize = 16;

/// Options of a server under test.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Store of the server. Default: in memory.
    pub store: TestStore,
    /// Options of streams.
    pub streams: Options,
    /// Options of sessions.
    pub sessions: tidings_sessions::Options,
    /// Options of subscriptions to streams.
    pub subscriptions: tidings_subscriptions::Options,
    /// Options of rooms.
    pub rooms: tidings_rooms::Options,
    /// Options of hooks.
    pub hooks: HookOptions,
    /// Options of topics.
    pub topics: TopicOptions,
    /// Options of entities.
    pub entities: EntityOptions,
    /// URL of the broker that connects the server with others. Default: none.
    pub bus: Option<String>,
    /// Who has access. Default: everybody.
    pub doors: Doors,
    /// Limits for clients.
    pub limits: LimitOptions,
    /// Certificate and key; with them the server speaks TLS.
    pub tls: Option<TlsOptions>,
    /// Options of logs, metrics and traces.
    pub observe: ObserveOptions,
    /// Duties that replace the server's duties of the same name, or are added to them.
    pub duties: Vec<Duty>,
    /// Whether this node runs the duties that only one node of a cluster runs.
    pub leadership: Leadership,
    /// Whether the server uses the wall clock, for programs that measure time themselves. Default: a manual
    /// clock.
    pub wall_clock: bool,
}

/// Admin key of a server with [`Doors::Closed`].
pub const ADMIN_KEY: &str = "the-admin-key-of-the-tests";

/// Who has access to a server under test.
#[derive(Clone, Default)]
pub enum Doors {
    /// Everybody, as with `--dev`.
    #[default]
    Open,
    /// Requests with a credential: [`ADMIN_KEY`], or one signed with the key of a project.
    Closed {
        /// Projects with their keys that are created in the store.
        created: Vec<(&'static str, &'static str)>,
        /// Projects with their keys that are set by configuration.
        given: Vec<(&'static str, &'static str)>,
    },
    /// Requests that an authorization callback admits.
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
                Access { given: Given { projects, admin, ..Given::default() }, ..Access::default() }
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

/// Store of a server under test.
#[derive(Clone, Copy, Debug, Default)]
pub enum TestStore {
    /// In memory.
    #[default]
    Memory,
    /// In files, in a folder that is removed with the harness.
    Embedded,
    /// In files, on a disk without free space.
    Full,
}

/// A server in this process, and a client of it.
pub struct Harness {
    /// Clock of the server, which moves only when told; without effect if the server uses the wall clock.
    pub clock: ManualClock,
    client: Client,
    server: Server,
    setup: Setup,
    /// Last field, so that the folder is removed after the server has stopped.
    data: Option<TempDir>,
}

impl Harness {
    /// Starts a server with an empty store and a clock that stands still.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// Starts a server with options.
    pub async fn with(setup: Setup) -> Self {
        // A Sunday in November 2025, shortly after noon UTC.
        let clock = ManualClock::at(Timestamp::from_millis(1_763_294_400_123));
        let data = match setup.store {
            TestStore::Memory => None,
            TestStore::Embedded | TestStore::Full => Some(TempDir::new().expect("a folder for the data")),
        };
        let server = start(&setup, &clock, data.as_ref()).await;
        setup.doors.create(server.projects()).await;
        Self { clock, client: Client::new(), server, setup, data }
    }

    /// Stops the server and starts it again with the same data, at the time that its clock shows.
    ///
    /// # Panics
    /// If its store is in memory.
    pub async fn restart(self) -> Self {
        self.restart_with(|_| {}).await
    }

    /// The same with other options. They are changed while it is stopped.
    ///
    /// # Panics
    /// If its store is in memory.
    pub async fn restart_with(self, change: impl FnOnce(&mut Setup)) -> Self {
        let Self { clock, client, server, mut setup, data } = self;
        drop(client);
        server.stop().await.expect("the server ends well");
        change(&mut setup);
        assert!(data.is_some(), "a store in memory does not outlive its server");
        let server = start(&setup, &clock, data.as_ref()).await;
        Self { clock, client: Client::new(), server, setup, data }
    }

    /// URL of a path on the server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    /// The server's projects.
    pub fn projects(&self) -> &Projects {
        self.server.projects()
    }

    /// Address on which the server listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.server.address()
    }

    /// Value of a metric, given with its labels as in the text format; `None` if there is no such line.
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.server.metrics().text();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// The server's bus, which knows who waits for which log.
    pub fn bus(&self) -> &Bus {
        self.server.bus()
    }

    /// The server itself.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// A request to be completed and sent.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    /// A `PUT` request.
    pub fn put(&self, path: &str) -> RequestBuilder {
        self.request(Method::PUT, path)
    }

    /// A `POST` request.
    pub fn post(&self, path: &str) -> RequestBuilder {
        self.request(Method::POST, path)
    }

    /// Sends a `GET` request.
    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.expect("an answer")
    }

    /// Creates a stream of plain text; fails if it exists.
    pub async fn create_text(&self, path: &str) {
        let answer = self.put(path).header("content-type", "text/plain").send().await.expect("an answer");
        assert_eq!(answer.status(), 201, "creating {path}");
    }

    /// Appends plain text and returns the next offset; fails if the append is refused.
    pub async fn append_text(&self, path: &str, text: &str) -> String {
        let request = self.post(path).header("content-type", "text/plain").body(text.to_owned());
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 204, "appending to {path}");
        header(&answer, "stream-next-offset").expect("an append tells the next offset")
    }

    /// Stops the server gracefully and waits for its end.
    pub async fn stop(self) {
        drop(self.client);
        self.server.stop().await.expect("the server ends well");
    }
}

/// Starts a server with options and data.
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
            subscriptions: setup.subscriptions,
            rooms: setup.rooms,
            hooks: setup.hooks,
            topics: setup.topics,
            entities: setup.entities,
        },
        bus: setup.bus.map(|url| url.parse().expect("a URL of a broker")),
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

/// Value of a header as text.
fn header(answer: &Response, name: &str) -> Option<String> {
    Some(answer.headers().get(name)?.to_str().expect("plain text").to_owned())
}

/// Waits until a condition holds that other tasks bring about.
///
/// # Panics
/// If it does not hold within half a minute.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
        panic!("timed out waiting until {what}");
    }
}

/// Waits until a condition holds that other tasks or processes bring about and that takes a request to check.
///
/// # Panics
/// If it does not hold within half a minute.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    if tokio::time::timeout(Duration::from_secs(30), waiting).await.is_err() {
        panic!("timed out waiting until {what}");
    }
}
