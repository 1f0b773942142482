//! Sockets that watch entities, and when they heard of changes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tidings_bench::{Failed, Times};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use uuid::Uuid;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Time after which a server that says nothing counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// When the rows were last changed.
pub struct Clock {
    began: Instant,
    numbers: HashMap<Uuid, usize>,
    /// Nanoseconds at which the statement was sent, and answered, by number of the row; 0 is never.
    sent: Vec<AtomicU64>,
    answered: Vec<AtomicU64>,
    heard: Mutex<Heard>,
}

/// Times of changes that were heard.
#[derive(Default)]
pub struct Heard {
    /// From sending the statement.
    pub from_statement: Times,
    /// From the answer to the commit; zero if it was heard before.
    pub from_commit: Times,
}

/// Connections with subscriptions.
pub struct Watchers {
    tasks: JoinSet<Result<u64, String>>,
}

impl Clock {
    /// A clock of rows.
    pub fn new(ids: &[Uuid]) -> Self {
        let never = || ids.iter().map(|_| AtomicU64::new(0)).collect();
        let numbers = ids.iter().enumerate().map(|(number, id)| (*id, number)).collect();
        Self { began: Instant::now(), numbers, sent: never(), answered: never(), heard: Mutex::default() }
    }

    /// Notes that the statement that changes a row is sent.
    pub fn sends(&self, row: usize) {
        self.sent[row].store(self.now(), Ordering::SeqCst);
    }

    /// Notes that its commit was answered.
    pub fn answers(&self, row: usize) {
        self.answered[row].store(self.now(), Ordering::SeqCst);
    }

    /// Notes that somebody has heard of the change of a row.
    pub fn hears(&self, id: &str) {
        let now = self.now();
        let Some(&row) = Uuid::parse_str(id).ok().and_then(|id| self.numbers.get(&id)) else { return };
        let (sent, answered) =
            (self.sent[row].load(Ordering::SeqCst), self.answered[row].load(Ordering::SeqCst));
        if sent == 0 {
            return;
        }
        let mut heard = self.heard.lock().expect("nobody panics with it");
        heard.from_statement.add(Duration::from_nanos(now.saturating_sub(sent)));
        // Not answered yet: it was heard before.
        let since = if answered < sent { 0 } else { now.saturating_sub(answered) };
        heard.from_commit.add(Duration::from_nanos(since));
    }

    /// What was heard since the last time.
    pub fn take(&self) -> Heard {
        std::mem::take(&mut self.heard.lock().expect("nobody panics with it"))
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

impl Watchers {
    /// Opens connections that subscribe each to so many rows, spread evenly, and to the row that ends the run. Each note goes to
    /// the clock until the last row is heard of.
    pub async fn open(
        address: SocketAddr,
        connections: usize,
        subscriptions: usize,
        ids: &[Uuid],
        last: Uuid,
        clock: &Arc<Clock>,
    ) -> Result<Self, Failed> {
        let mut tasks = JoinSet::new();
        for number in 0..connections {
            let own = (0..subscriptions).map(|n| ids[(number * subscriptions + n) % ids.len()].to_string());
            let own: Vec<String> = own.chain([last.to_string()]).collect();
            let socket = subscribed(address, &own).await?;
            tasks.spawn(listen(socket, last.to_string(), clock.clone()));
        }
        Ok(Self { tasks })
    }

    /// Waits until each has heard of the last row. Returns how many changes were heard, the last one not counted.
    pub async fn finish(mut self) -> Result<u64, Failed> {
        let mut count = 0;
        while let Some(ended) = self.tasks.join_next().await {
            count += ended??;
        }
        Ok(count)
    }
}

/// A connection with its subscriptions.
async fn subscribed(address: SocketAddr, ids: &[String]) -> Result<Socket, Failed> {
    let (mut socket, _) = connect_async(format!("ws://{address}/v1/_default/sync")).await?;
    let ask =
        json!({ "type": "SUBSCRIBE", "payload": { "entityCode": "captured", "entityIds": ids } }).to_string();
    socket.send(Message::text(ask.clone())).await?;
    loop {
        let message = next(&mut socket).await?;
        match message["type"].as_str() {
            Some("SUBSCRIBED") if message["payload"]["count"] == ids.len() => return Ok(socket),
            Some("ERROR") if message["payload"]["code"] == "Unavailable" => {
                // The server has just started, and has not reached the database.
                tokio::time::sleep(Duration::from_millis(200)).await;
                socket.send(Message::text(ask.clone())).await?;
            }
            Some("CONNECTED" | "INVALIDATE") => {}
            _ => return Err(format!("not subscribed: {message}").into()),
        }
    }
}

async fn listen(mut socket: Socket, last: String, clock: Arc<Clock>) -> Result<u64, String> {
    let mut count = 0;
    loop {
        let message = next(&mut socket).await?;
        if message["type"] != "INVALIDATE" {
            return Err(format!("instead of changes: {message}"));
        }
        let changes = message["payload"]["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut ends = false;
        for id in changes.iter().filter_map(|change| change["entityId"].as_str()) {
            if id == last {
                ends = true;
            } else {
                clock.hears(id);
                count += 1;
            }
        }
        if ends {
            return Ok(count);
        }
    }
}

/// The next message in JSON.
async fn next(socket: &mut Socket) -> Result<Value, String> {
    loop {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await;
        match message.map_err(|_| "the server says nothing".to_owned())? {
            Some(Ok(Message::Text(text))) => {
                return serde_json::from_str(&text).map_err(|error| error.to_string());
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            other => return Err(format!("the connection ended: {other:?}")),
        }
    }
}
