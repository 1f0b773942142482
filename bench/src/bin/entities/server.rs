//! The server under test.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use tidings_bench::{Failed, Process, Usage};

use super::Arguments;
use super::database::Database;

/// A running server on the database. Its data is removed when this is dropped.
pub struct Server {
    process: Process,
    pub address: SocketAddr,
    data: PathBuf,
}

impl Server {
    /// Starts it.
    pub fn start(arguments: &Arguments, database: &Database) -> Result<Self, Failed> {
        let folder = arguments.root.join("target/bench");
        let data = folder.join("entities-data");
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
        std::fs::create_dir_all(&data)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(&arguments.binary);
        command.args(["serve", "--dev", "--listen", &address.to_string(), "--data"]).arg(&data);
        command.env("TIDINGS_LOG", "warn").env("TIDINGS_ENTITIES_DATABASE_URL", database.url());
        // With --dev all connections are of one user.
        command.env("TIDINGS_ENTITIES_CONNECTIONS_PER_USER", "1000000");
        let process = Process::start(&command, None, address, &folder.join("entities.log"))?;
        Ok(Self { process, address, data })
    }

    /// Resources used so far.
    pub fn usage(&self) -> Usage {
        self.process.usage()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Installs the schema and captures the table `captured`, once.
pub fn prepare(binary: &Path, url: &str) -> Result<(), Failed> {
    let steps: [&[&str]; 2] =
        [&["install"], &["attach", "public.captured", "--code", "captured", "--key", "id"]];
    for step in steps {
        let output =
            Command::new(binary).arg("entities").args(step).args(["--database-url", url]).output()?;
        if !output.status.success() {
            return Err(format!("{step:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
    }
    Ok(())
}
