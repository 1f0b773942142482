//! A proxy that breaks the connections through it when it is told to.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What is wrong with a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Connections stay open, and what is sent never arrives.
    BlackHole,
    /// A byte of each piece is missing.
    MissingBytes,
    /// Each piece takes this long.
    Slow(Duration),
    /// Connections are closed as soon as they are made, and those that exist are closed.
    Closed,
}

/// A proxy in front of a server on this machine. Its connections end when it is dropped.
pub struct Proxy {
    port: u16,
    fault: watch::Sender<Fault>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port for a server on this port.
    pub async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let (fault, faults) = watch::channel(Fault::None);
        let task = tokio::spawn(serve(listener, server, faults));
        Self { port, fault, task }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets what is wrong from now on.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(listener: TcpListener, server: u16, faults: watch::Receiver<Fault>) {
    // Dropped with the task, which ends all connections.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(connect(client, server, faults.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(client: TcpStream, server: u16, mut faults: watch::Receiver<Fault>) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
    // They fail only where the connection is gone.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = copy(from_client, to_server, faults.clone()) => {}
        () = copy(from_server, to_client, faults.clone()) => {}
        _ = faults.wait_for(|fault| *fault == Fault::Closed) => {}
    }
}

async fn copy(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut faults: watch::Receiver<Fault>) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(length) = from.read(&mut bytes).await else { return };
        if length == 0 {
            return;
        }
        let mut sent = &bytes[..length];
        let fault = *faults.borrow();
        match fault {
            Fault::None | Fault::Closed => {}
            Fault::BlackHole => {
                // As with a network that is gone, both sides see neither bytes nor an end. What was lost stays lost.
                let gone = faults.wait_for(|fault| *fault == Fault::Closed).await;
                drop(gone);
                return;
            }
            Fault::MissingBytes => sent = &bytes[1..length],
            Fault::Slow(pause) => tokio::time::sleep(pause).await,
        }
        if to.write_all(sent).await.is_err() {
            return;
        }
    }
}
