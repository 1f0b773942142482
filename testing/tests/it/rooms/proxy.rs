//! Something between client and server that loses bytes, or everything.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What becomes of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All goes through, to there.
    Open(SocketAddr),
    /// Of what comes from there so many bytes go through. What comes then vanishes.
    Narrow { to: SocketAddr, bytes: usize, then: Then },
    /// They are cut, also those that come.
    Closed,
}

/// What a client notices of what vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Silence,
    /// Its connection ends. The server does not notice.
    Cut,
}

/// A proxy in the way of clients.
pub struct Proxy {
    pub address: SocketAddr,
    way: watch::Sender<Way>,
    /// Counts connections of which something has vanished.
    vanished: Arc<watch::Sender<usize>>,
    serving: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub async fn start(first: Way) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (way, current) = watch::channel(first);
        let vanished = Arc::new(watch::Sender::new(0));
        let serving = tokio::spawn(serve(listener, current, vanished.clone()));
        Self { address, way, vanished, serving }
    }

    /// What becomes of connections from now on; those there are stay as they are, unless all are cut.
    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }

    /// Tells when one more connection has fallen silent.
    pub fn watch(&self) -> watch::Receiver<usize> {
        let mut vanished = self.vanished.subscribe();
        vanished.mark_unchanged();
        vanished
    }
}

async fn serve(listener: TcpListener, way: watch::Receiver<Way>, vanished: Arc<watch::Sender<usize>>) {
    // Ends them when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.expect("a connection");
        let (mut way, vanished) = (way.clone(), vanished.clone());
        let (to, bytes, then) = match *way.borrow_and_update() {
            Way::Open(to) => (to, usize::MAX, Then::Silence),
            Way::Narrow { to, bytes, then } => (to, bytes, then),
            Way::Closed => continue,
        };
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(to).await else { return };
            tokio::select! {
                () = pass(client, server, bytes, then, &vanished) => {}
                _ = way.wait_for(|way| *way == Way::Closed) => {}
            }
        });
    }
}

async fn pass(
    client: TcpStream,
    server: TcpStream,
    mut left: usize,
    then: Then,
    vanished: &watch::Sender<usize>,
) {
    let ((mut from_client, to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let mut to_client = Some(to_client);
    let up = async {
        // Whoever goes is noticed on the other side.
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    };
    let down = async {
        let (mut bytes, mut silent) = (vec![0; 16 * 1024], false);
        while let Ok(read @ 1..) = from_server.read(&mut bytes).await {
            let Some(client) = &mut to_client else { continue };
            let through = read.min(left);
            if client.write_all(&bytes[..through]).await.is_err() {
                return;
            }
            left -= through;
            if through < read {
                if then == Then::Cut {
                    to_client = None;
                }
                if !std::mem::replace(&mut silent, true) {
                    vanished.send_modify(|count| *count += 1);
                }
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
