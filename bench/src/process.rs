//! The process of a server under test: starts it on given cores, waits for it, measures it, stops it.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Usage;

const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A server's process. Stopped when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
}

impl Process {
    /// Starts a program, on the given cores if any, and waits until it accepts connections. Its output goes
    /// to a file.
    pub fn start(
        command: &Command,
        cores: Option<&str>,
        address: SocketAddr,
        log: &Path,
    ) -> io::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let output = File::create(log)?;
        // The server must end with this process even if this is killed.
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--pdeathsig", "TERM"]);
        if let Some(cores) = cores {
            wrapped.args(["taskset", "-c", cores]);
        }
        wrapped.arg(command.get_program()).args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            wrapped.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            wrapped.env(name, value.unwrap_or_default());
        }
        wrapped.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let mut process = Self { child: wrapped.spawn()?, name };
        process.wait_for(address, log)?;
        Ok(process)
    }

    fn wait_for(&mut self, address: SocketAddr, log: &Path) -> io::Result<()> {
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                return Err(io::Error::other(format!("{} ended ({status}): {}", self.name, said.trim())));
            }
            if start.elapsed() > START_TIMEOUT {
                return Err(io::Error::other(format!("{} does not listen on {address}", self.name)));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resources used so far by it and its descendants.
    pub fn usage(&self) -> Usage {
        Usage::of(self.pid())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Send SIGTERM first: a server of several processes stops the others.
        let _ = Command::new("kill").arg(self.pid().to_string()).stderr(Stdio::null()).status();
        let start = Instant::now();
        while start.elapsed() < STOP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `perf record` of a server, if `BENCH_PROFILE` names a file to record to.
#[derive(Debug)]
pub struct Profile(Option<Child>);

impl Profile {
    /// Starts recording after a delay.
    pub fn of(process: &Process, after: Duration, lasting: Duration) -> io::Result<Self> {
        let Some(file) = std::env::var_os("BENCH_PROFILE") else { return Ok(Self(None)) };
        let script = "sleep \"$1\"; exec perf record -q -F 999 -o \"$2\" -p \"$3\" -- sleep \"$4\"";
        let child = Command::new("sh")
            .args(["-c", script, "profile", &after.as_secs_f64().to_string()])
            .arg(file)
            .args([process.pid().to_string(), lasting.as_secs_f64().to_string()])
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self(Some(child)))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.wait();
        }
    }
}

/// Pins this process, and those that it starts from now on, to cores.
pub fn pin_to(cores: &str) -> io::Result<()> {
    let own = std::process::id().to_string();
    let status =
        Command::new("taskset").args(["-a", "-c", "-p", cores, &own]).stdout(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("cannot pin this process to cores {cores}")))
    }
}
