//! The server under test, and requests to it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidings_bench::{Failed, Process, Requests, Usage, request};

/// A running server with its data.
pub struct Server {
    process: Option<Process>,
    pub address: SocketAddr,
    data: PathBuf,
    root: PathBuf,
}

impl Server {
    /// Starts it with an empty store.
    pub fn start(root: &Path) -> Result<Self, Failed> {
        let data = root.join("target/bench/hooks-data");
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
        std::fs::create_dir_all(&data)?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut server = Self { process: None, address, data, root: root.to_owned() };
        server.launch()?;
        Ok(server)
    }

    /// Starts it on what is there.
    pub fn launch(&mut self) -> Result<(), Failed> {
        let mut command = Command::new(self.root.join("target/release/tidings"));
        command.args(["serve", "--dev", "--listen", &self.address.to_string(), "--data"]).arg(&self.data);
        // Endpoints that fail are a part of the measurement.
        command.env("TIDINGS_LOG", "warn").env("TIDINGS_HOOKS_BREAKER_FAILURES", "1000000");
        let log = self.root.join("target/bench/hooks.log");
        self.process = Some(Process::start(&command, None, self.address, &log)?);
        Ok(())
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<(), Failed> {
        if let Some(process) = &self.process {
            Command::new("kill").args(["-9", &process.pid().to_string()]).status()?;
        }
        self.process = None;
        Ok(())
    }

    pub fn usage(&self) -> Usage {
        self.process.as_ref().map(Process::usage).unwrap_or_default()
    }

    pub fn process(&self) -> Result<&Process, Failed> {
        self.process.as_ref().ok_or_else(|| "it does not run".into())
    }

    /// Sends a request and returns the body of the answer.
    pub fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failed> {
        let mut socket = TcpStream::connect(self.address)?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let text = request(&format!("{method} /v1/bench{path}"), "application/json", &body);
        socket.write_all(text.replacen("\r\n", "\r\nConnection: close\r\n", 1).as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no head")?;
        if !head.starts_with("HTTP/1.1 2") {
            return Err(format!("{method} {path}: {answer}").into());
        }
        Ok(serde_json::from_str(body)?)
    }

    /// Creates hooks, and returns their ids if there are few.
    pub fn hook(&self, settings: &Value) -> Result<String, Failed> {
        let created = self.call("POST", "/hooks", settings)?;
        Ok(created["id"].as_str().ok_or("no id")?.to_owned())
    }

    /// Creates many hooks.
    pub fn hooks(&self, count: usize, settings: impl Fn(usize) -> Value) -> Result<(), Failed> {
        let make = |n| request("POST /v1/bench/hooks", "application/json", &settings(n).to_string());
        match Requests::new(count, make).send(self.address, 8)?.failed {
            0 => Ok(()),
            failed => Err(format!("{failed} of {count} hooks could not be created").into()),
        }
    }

    /// Publishes events of a type in batches, on some connections. Their numbers `n` begin with 0.
    pub fn publish(
        &self,
        event_type: impl Fn(usize) -> String,
        count: usize,
        batch: usize,
        connections: usize,
    ) -> Result<(), Failed> {
        let ts = timestamp();
        let make = |n: usize| {
            let events: Vec<_> =
                (n * batch..count.min((n + 1) * batch)).map(|n| event(&event_type(n), n, &ts)).collect();
            let body = format!("{{\"events\":[{}]}}", events.join(","));
            request("POST /v1/bench/events", "application/json", &body)
        };
        match Requests::new(count.div_ceil(batch), make).send(self.address, connections)?.failed {
            0 => Ok(()),
            failed => Err(format!("{failed} batches were refused").into()),
        }
    }

    /// Waits until a number in the statistics of a hook has a value.
    pub fn stat_reaches(&self, hook: &str, name: &str, value: u64, within: Duration) -> Result<(), Failed> {
        let begun = Instant::now();
        loop {
            let shown = self.call("GET", &format!("/hooks/{hook}"), &Value::Null)?;
            let now = shown["stats"][name].as_u64().ok_or("no such number")?;
            if now >= value {
                return Ok(());
            }
            if begun.elapsed() > within {
                return Err(format!("{name} of {hook} is {now} and not {value}").into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process = None;
        let _ = std::fs::remove_dir_all(&self.data);
    }
}

/// Bytes of an event's content beside its members.
const PADDING: usize = 190;

/// An event, whose delivery in the form of the envelope has about 400 bytes.
pub fn event(event_type: &str, n: usize, ts: &str) -> String {
    json!({ "type": event_type, "ts": ts, "n": n, "text": "x".repeat(PADDING) }).to_string()
}

/// The time of now, as events have it.
pub fn timestamp() -> String {
    let now = tidings_model::Timestamp::from_millis(super::sink::now() / 1_000_000);
    tidings_hooks::ingest::time_text(now)
}
