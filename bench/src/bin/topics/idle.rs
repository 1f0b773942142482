//! Idle connections, each subscribed to a topic, on bare sockets and through TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tidings_bench::{
    Channel, Failed, Held, Measured, Peer, Subscribers, connections_within, grouped, text_frame,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::speech::subscribing;
use crate::{Bench, beside};

/// Connections opened at the same time.
const OPENING: usize = 64;
/// Time after which the server's memory is looked at.
const SETTLE: Duration = Duration::from_secs(1);
/// Goal for the memory of a connection on a bare socket, in KB.
const KILOBYTES: f64 = 6.0;

impl Bench {
    pub fn idle(&mut self) -> Result<(), Failed> {
        let connections = connections_within(self.arguments.idle);
        println!("\n## Idle connections\n\nEach subscribes to the same topic.\n");
        println!("| server | connections | held | RSS per connection | tidings takes |");
        println!("|---|---|---|---|---|");
        let mut rows = Vec::new();
        for channel in self.channels("idle") {
            rows.push((channel, self.hold(channel, connections)?));
        }
        for (channel, row) in &rows {
            print(&channel.name(), connections, row, &beside(&rows, *channel, |held| Some(held.kilobytes)));
        }
        let name = "idle, tidings WebSocket through TLS";
        if self.arguments.scope.has_row(name) {
            print("tidings WebSocket through TLS", connections, &self.hold_through_tls(connections)?, "");
        }
        if let Some((_, Ok(held))) = rows.iter().find(|(channel, _)| channel.peer == Peer::Tidings) {
            let met = held.kilobytes <= KILOBYTES && held.count == connections;
            let measured = format!("{:.1} KB, {} held", held.kilobytes, grouped(held.count));
            let wanted = format!("<= {KILOBYTES:.0} KB, {}", grouped(connections));
            self.goal("idle connection on a bare socket".to_owned(), measured, wanted, met);
        }
        Ok(())
    }

    fn hold(&self, channel: Channel, count: usize) -> Result<Measured<Held>, Failed> {
        let served = match self.start(channel)? {
            Ok(served) => served,
            Err(why) => return Ok(Err(why)),
        };
        let subscribing = subscribing(channel.peer);
        let subscribers = Subscribers { served: &served, channel, path: subscribing.path, count };
        Ok(self.arguments.liveload.hold(&subscribers, subscribing.arguments())?)
    }

    /// The load generator speaks no TLS, so these connections are this process's own.
    fn hold_through_tls(&self, count: usize) -> Result<Measured<Held>, Failed> {
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()])?;
        let (certificate, key) = (self.setup.data.join("cert.pem"), self.setup.data.join("key.pem"));
        std::fs::write(&certificate, cert.pem())?;
        std::fs::write(&key, signing_key.serialize_pem())?;
        let mut setup = self.setup.clone();
        for (flag, file) in [("--tls-cert", certificate), ("--tls-key", key)] {
            setup.flags.extend([flag.to_owned(), file.canonicalize()?.display().to_string()]);
        }
        let served = Peer::Tidings.start(&setup)?;

        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let before = served.process.usage().resident;
        let held = runtime.block_on(async {
            let mut opening = JoinSet::new();
            let turns = Arc::new(Semaphore::new(OPENING));
            for _ in 0..count {
                let (connector, address, turns) = (connector.clone(), served.address, turns.clone());
                opening.spawn(async move {
                    let _turn = turns.acquire_owned().await;
                    open(&connector, address).await.map_err(|why| why.to_string())
                });
            }
            opening.join_all().await.into_iter().collect::<Result<Vec<_>, String>>()
        });
        let held = match held {
            Ok(held) => held,
            Err(why) => return Ok(Err(why)),
        };
        std::thread::sleep(SETTLE);
        let grown = served.process.usage().resident - before;
        Ok(Ok(Held { count: held.len(), kilobytes: grown / 1024.0 / count.max(1) as f64 }))
    }
}

/// Opens a connection through TLS, and subscribes.
async fn open(
    connector: &TlsConnector,
    address: SocketAddr,
) -> Result<impl AsyncRead + AsyncWrite + Unpin + use<>, Failed> {
    let mut socket = connector.connect("localhost".try_into()?, TcpStream::connect(address).await?).await?;
    let subscribing = subscribing(Peer::Tidings);
    let request = tidings_bench::Wire::WebSocket.request(address, subscribing.path);
    socket.write_all(request.as_bytes()).await?;
    read_until(&mut socket, b"\r\n\r\n").await?;
    if let Some((message, answer)) = subscribing.message {
        socket.write_all(&text_frame(&message.replace("{topic}", "t0"))).await?;
        read_until(&mut socket, answer.as_bytes()).await?;
    }
    Ok(socket)
}

async fn read_until(socket: &mut (impl AsyncRead + Unpin), mark: &[u8]) -> Result<(), Failed> {
    let mut read = Vec::new();
    while memchr::memmem::find(&read, mark).is_none() {
        if socket.read_buf(&mut read).await? == 0 {
            return Err(format!("the server closed after {:?}", String::from_utf8_lossy(&read)).into());
        }
    }
    Ok(())
}

fn print(name: &str, connections: usize, row: &Measured<Held>, beside: &str) {
    let wanted = grouped(connections);
    match row {
        Err(why) => println!("| {name} | {wanted} | {why} | | |"),
        Ok(held) => {
            println!("| {name} | {wanted} | {} | {:.1} KB | {beside} |", grouped(held.count), held.kilobytes)
        }
    }
}
