//! The message bus between nodes over NATS.
//!
//! [`Nats`] is a broker for [`tidings_broker::BrokerBus`]. NATS does not answer to what is published. So each batch of
//! commands ends with a `PING`, and the `PONG` says that the server has taken all of it. A server closes connections that
//! do not read fast enough, which nodes notice as a gap.
//!
//! Not here: JetStream, and authentication with keys and JWTs. A URL names one server, which may be part of a cluster.

mod protocol;
mod subject;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tidings_broker::{Address, Broker, Link, Stream, Trust, Wire, open, secure};
use tidings_model::limits;
use tokio::io::AsyncReadExt;

use protocol::{Client, Info};

/// Default port.
const PORT: u16 = 4222;
/// Begins the subject of each channel, so that others may use the same server.
const PREFIX: &str = "tidings.";
/// Bytes that a message may have before a server has said something else: its default.
const MESSAGE_BYTES: usize = 1024 * 1024;
/// Bytes that the first line of a server may have.
const INFO_BYTES: usize = 64 * 1024;

/// A NATS server.
pub struct Nats {
    address: Address,
    name: String,
    security: Security,
    /// What the server said when it was last connected to.
    message_bytes_max: Arc<AtomicUsize>,
}

/// Whether connections use TLS.
pub enum Security {
    /// If the server wants it.
    AsTheServerWants(Trust),
    /// Always.
    Always(Trust),
}

impl Nats {
    /// A server. What follows the host in the URL separates clusters that use the same server.
    pub fn new(address: Address, security: Security) -> Self {
        let name = format!("nats at {}", address.place(PORT));
        let message_bytes_max = Arc::new(AtomicUsize::new(MESSAGE_BYTES));
        Self { address, name, security, message_bytes_max }
    }

    async fn link(&self) -> Result<Box<dyn Link>, String> {
        let Address { user, password, host, port, path, .. } = &self.address;
        let mut stream = open(host, port.unwrap_or(PORT)).await?;
        let info = Info::parse(&first_line(&mut stream).await?)?;
        let trust = match &self.security {
            Security::Always(trust) => Some(trust),
            Security::AsTheServerWants(trust) => info.wants_tls.then_some(trust),
        };
        let is_secured = trust.is_some();
        if let Some(trust) = trust {
            stream = secure(stream, host, trust).await?;
        }
        let max = info.message_bytes_max.min(limits::BUS_MESSAGE_BYTES);
        self.message_bytes_max.store(max, Ordering::Relaxed);
        let prefix =
            if path.is_empty() { PREFIX.to_owned() } else { format!("{PREFIX}{}.", subject::token(path)) };
        let mut out = BytesMut::new();
        let credentials = protocol::Credentials { user: user.as_deref(), password: password.as_deref() };
        let client = Client::greeting(prefix, &credentials, is_secured, &mut out);
        let mut wire = Wire::new(stream, client, out);
        wire.ready().await?;
        Ok(Box::new(wire))
    }
}

/// Reads the line that a server begins with, and nothing behind it.
async fn first_line(stream: &mut Stream) -> Result<Vec<u8>, String> {
    let mut line = Vec::new();
    // Byte by byte, because what follows may be TLS. It is one line for each connection.
    while line.last() != Some(&b'\n') {
        let byte = stream.read_u8().await.map_err(|error| format!("cannot receive: {error}"))?;
        line.push(byte);
        if line.len() > INFO_BYTES {
            return Err("it does not begin as NATS does".to_owned());
        }
    }
    Ok(line)
}

impl Broker for Nats {
    fn name(&self) -> &str {
        &self.name
    }

    fn message_bytes_max(&self, _channel: &str) -> usize {
        self.message_bytes_max.load(Ordering::Relaxed)
    }

    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Link>, String>> {
        Box::pin(self.link())
    }
}
