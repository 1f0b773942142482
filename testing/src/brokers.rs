//! Brokers for tests: real servers on free ports that end with the test, and a proxy that breaks connections to them.

mod nats;
mod proxy;
mod redis;

use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

use crate::postgres::{self, Fsync, Postgres, Stop};

pub use proxy::{Fault, Proxy};

/// Kinds of brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
    /// `redis-server`.
    Redis,
    /// `nats-server`.
    Nats,
    /// PostgreSQL.
    Postgres,
}

/// A broker in a process of its own. Killed when dropped.
pub struct BrokerServer {
    running: Running,
    kind: BrokerKind,
    port: u16,
    /// Database of PostgreSQL.
    database: String,
}

enum Running {
    Program(Program),
    /// PostgreSQL for one test.
    Private(Postgres),
    /// A database of the PostgreSQL that the tests share.
    Shared,
}

/// A server that is one process.
struct Program {
    /// First field, so that the server ends before its folder is removed.
    child: Option<Child>,
    folder: TempDir,
    /// Arguments in addition to those that every test needs.
    arguments: Vec<String>,
}

impl BrokerServer {
    /// Starts a broker that only works. PostgreSQL is a database of the server that the tests of this process share.
    pub async fn start(kind: BrokerKind) -> Self {
        if kind != BrokerKind::Postgres {
            return Self::program(kind, &[]).await;
        }
        let database = postgres::database().await;
        let url = database.url.rsplit_once('/').expect("a URL with a database");
        let port = url.0.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("a URL with a port");
        Self { running: Running::Shared, kind, port, database: url.1.to_owned() }
    }

    /// Starts a broker that can be killed.
    pub async fn private(kind: BrokerKind) -> Self {
        if kind != BrokerKind::Postgres {
            return Self::program(kind, &[]).await;
        }
        let server = Postgres::start(Fsync::Off).await;
        let port = server.port();
        Self { running: Running::Private(server), kind, port, database: "postgres".to_owned() }
    }

    /// Starts Redis or NATS with further arguments.
    pub async fn program(kind: BrokerKind, arguments: &[&str]) -> Self {
        let mut server = Self::not_running(kind, arguments).await;
        // Another process may take the port between looking for it and using it.
        for _ in 0..10 {
            if server.launch().await {
                return server;
            }
            server.port = free_port().await;
        }
        panic!("{kind:?} does not start; `make test` installs it");
    }

    /// Prepares a broker that is not running.
    pub async fn stopped(kind: BrokerKind) -> Self {
        if kind != BrokerKind::Postgres {
            return Self::not_running(kind, &[]).await;
        }
        let mut server = Self::private(kind).await;
        server.kill().await;
        server
    }

    async fn not_running(kind: BrokerKind, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let folder = TempDir::new().expect("a folder");
        let running = Running::Program(Program { child: None, folder, arguments });
        Self { running, kind, port: free_port().await, database: String::new() }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The kind of broker.
    pub fn kind(&self) -> BrokerKind {
        self.kind
    }

    /// The URL for `[bus] url`.
    pub fn url(&self) -> String {
        self.url_by(self.port)
    }

    /// The URL by way of a proxy on this port.
    pub fn url_by(&self, port: u16) -> String {
        match self.kind {
            BrokerKind::Redis => format!("redis://127.0.0.1:{port}"),
            BrokerKind::Nats => format!("nats://127.0.0.1:{port}"),
            BrokerKind::Postgres => format!("postgres://postgres@127.0.0.1:{port}/{}", self.database),
        }
    }

    /// Kills it at once, as a crash would.
    pub async fn kill(&mut self) {
        match &mut self.running {
            Running::Program(program) => {
                if let Some(mut child) = program.child.take() {
                    child.kill().await.expect("it was running");
                }
            }
            Running::Private(server) => server.stop(Stop::Immediate).await,
            Running::Shared => panic!("other tests use it"),
        }
    }

    /// Starts it on the same port after it was killed or prepared.
    pub async fn start_again(&mut self) {
        match &self.running {
            Running::Program(_) => assert!(self.launch().await, "{:?} starts again", self.kind),
            Running::Private(server) => server.start_again().await,
            Running::Shared => panic!("other tests use it"),
        }
    }

    /// Stops it from doing anything, without closing its connections, until [`BrokerServer::thaw`].
    pub async fn freeze(&self) {
        match &self.running {
            Running::Program(program) => program.signal("STOP").await,
            Running::Private(server) => server.pause(),
            Running::Shared => panic!("other tests use it"),
        }
    }

    /// Lets it go on.
    pub async fn thaw(&self) {
        match &self.running {
            Running::Program(program) => program.signal("CONT").await,
            Running::Private(server) => server.resume(),
            Running::Shared => panic!("other tests use it"),
        }
    }

    /// Starts the process and waits until it listens. Returns whether it does.
    async fn launch(&mut self) -> bool {
        let Running::Program(program) = &mut self.running else { return false };
        let mut command = match self.kind {
            BrokerKind::Redis => redis::command(self.port, program.folder.path()),
            BrokerKind::Nats => nats::command(self.port),
            BrokerKind::Postgres => return false,
        };
        command.args(&program.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child =
            command.kill_on_drop(true).spawn().expect("the broker is installed, as by `make test`");
        let listens = async {
            loop {
                if child.try_wait().expect("it can be asked").is_some() {
                    return false;
                }
                if TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let listens = tokio::time::timeout(Duration::from_secs(60), listens).await.unwrap_or(false);
        program.child = listens.then_some(child);
        listens
    }
}

impl Program {
    async fn signal(&self, name: &str) {
        let id = self.child.as_ref().and_then(Child::id).expect("it is running").to_string();
        let sent =
            Command::new("kill").args([&format!("-{name}"), &id]).status().await.expect("kill is there");
        assert!(sent.success());
    }
}

async fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    listener.local_addr().expect("it is bound").port()
}
