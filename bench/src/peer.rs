//! The servers that are measured, and how each is started.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::pin_to;
use crate::{Process, Profile};

/// A server that a benchmark can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Peer {
    /// tidings with its embedded store.
    Tidings,
    /// The Rust server of the protocol's authors, with its write-ahead log.
    OfficialRust,
    /// The Node server of the protocol's authors. It keeps everything in memory; nothing it acknowledges is
    /// durable.
    OfficialNode,
    /// nginx with the Nchan module. It keeps the latest messages in memory.
    Nchan,
    /// Bun's built-in publish to WebSockets. It stores nothing.
    Bun,
    /// ws-kit on Bun, with its adapter in memory.
    WsKit,
    /// The NATS server, without JetStream. It stores nothing.
    Nats,
    /// The Redis server. It stores nothing here.
    Redis,
}

/// Paths and cores of a benchmark.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Root of the repository.
    pub root: PathBuf,
    /// Folder for servers' data, on the disk that is measured.
    pub data: PathBuf,
    /// Cores that servers are pinned to; `None` for all.
    pub cores: Option<String>,
    /// Further flags of tidings.
    pub flags: Vec<String>,
}

impl Setup {
    /// Pins servers to core 0, and this process to core 1.
    pub fn apart(self) -> io::Result<Self> {
        pin_to("1")?;
        Ok(Self { cores: Some("0".to_owned()), ..self })
    }
}

/// A running server.
#[derive(Debug)]
pub struct Served {
    /// Its process.
    pub process: Process,
    /// Address on which it listens.
    pub address: SocketAddr,
    /// Folder of its data; removed when this is dropped.
    pub data: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

impl Peer {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tidings => "tidings",
            Self::OfficialRust => "official Rust",
            Self::OfficialNode => "official Node (memory)",
            Self::Nchan => "nginx + Nchan",
            Self::Bun => "Bun",
            Self::WsKit => "ws-kit on Bun",
            Self::Nats => "NATS",
            Self::Redis => "Redis",
        }
    }

    /// Whether it implements the Durable Streams protocol.
    pub fn has_streams(self) -> bool {
        matches!(self, Self::Tidings | Self::OfficialRust | Self::OfficialNode)
    }

    /// Starts it with an empty store.
    pub fn start(self, setup: &Setup) -> io::Result<Served> {
        let label: String = self.name().chars().filter(char::is_ascii_alphanumeric).collect();
        let data = setup.data.join(&label);
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
        std::fs::create_dir_all(&data)?;
        let data = data.canonicalize()?;
        let address = free_address()?;
        let command = self.command(setup, &data, address)?;
        let log = setup.data.join(format!("{label}.log"));
        let process = Process::start(&command, setup.cores.as_deref(), address, &log)?;
        Ok(Served { process, address, data })
    }

    /// Starts to record a profile of it after a delay, if it is tidings.
    pub fn profile(self, served: &Served, after: Duration, lasting: Duration) -> io::Result<Option<Profile>> {
        (self == Self::Tidings).then(|| Profile::of(&served.process, after, lasting)).transpose()
    }

    fn command(self, setup: &Setup, data: &PathBuf, address: SocketAddr) -> io::Result<Command> {
        let (port, peers) = (address.port().to_string(), setup.root.join("target/peers"));
        let scripts = setup.root.join("bench/peers");
        let mut command;
        match self {
            Self::Tidings => {
                command = Command::new(setup.root.join("target/release/tidings"));
                command.args(["serve", "--dev", "--listen", &address.to_string(), "--data"]).arg(data);
                let more = std::env::var("TIDINGS_FLAGS").unwrap_or_default();
                command.args(more.split_whitespace()).args(&setup.flags);
                command.env("TIDINGS_LOG", "warn");
            }
            Self::OfficialRust => {
                command = Command::new(peers.join("bin/durable-streams-server"));
                command.args(["--port", &port, "--data-dir"]).arg(data);
            }
            Self::OfficialNode => {
                command = Command::new("node");
                command.arg(scripts.join("durable-streams.cjs"));
                command.env("NODE_PATH", peers.join("npm/node_modules")).env("PORT", port);
            }
            Self::Nchan => {
                let config = std::fs::read_to_string(scripts.join("nchan.conf"))?.replace("PORT", &port);
                std::fs::write(data.join("nginx.conf"), config)?;
                command = Command::new("nginx");
                command.arg("-p").arg(data).arg("-c").arg(data.join("nginx.conf"));
            }
            Self::Bun => {
                command = Command::new(peers.join("npm/node_modules/.bin/bun"));
                command.arg("run").arg(scripts.join("topics.ts")).env("PORT", port);
            }
            Self::WsKit => {
                // Bun looks for packages beside the script.
                let npm = peers.join("npm");
                let script = npm.join("ws-kit.ts");
                std::fs::copy(scripts.join("ws-kit.ts"), &script)?;
                command = Command::new(npm.join("node_modules/.bin/bun"));
                command.arg("run").arg(script).env("PORT", port);
            }
            Self::Nats => {
                command = Command::new("nats-server");
                command.args(["-a", &address.ip().to_string(), "-p", &port]);
            }
            Self::Redis => {
                command = Command::new("redis-server");
                command.args(["--bind", &address.ip().to_string(), "--port", &port]);
                command.args(["--save", "", "--appendonly", "no"]).current_dir(data);
            }
        }
        Ok(command)
    }
}

/// A free port on the loopback address.
fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}
