//! The message bus between nodes over Redis, or what speaks its protocol, such as Valkey.
//!
//! [`Redis`] is a broker for [`tidings_broker::BrokerBus`]. One connection publishes and subscribes, which RESP3 permits
//! (Redis 6 and newer), so that the answers come in the order of the commands. Redis forgets a message as soon as it has
//! written it to the connections that subscribe; a connection that does not read fast enough is closed by Redis
//! (`client-output-buffer-limit pubsub`), which nodes notice as a gap.
//!
//! Not here: clusters and sentinels of Redis. A URL names one server.

mod protocol;
mod resp;

use bytes::BytesMut;
use futures_util::future::BoxFuture;
use tidings_broker::{Address, Broker, Link, Trust, Wire, open, secure};
use tidings_model::limits;

use protocol::Resp3;

/// Default port.
const PORT: u16 = 6379;
/// Begins the name of each channel, so that others may use the same Redis.
const PREFIX: &str = "tidings/";

/// A Redis server.
pub struct Redis {
    address: Address,
    name: String,
    /// `None` for a connection without TLS.
    trust: Option<Trust>,
}

impl Redis {
    /// A server without TLS. What follows the host in the URL separates clusters that use the same server.
    pub fn plain(address: Address) -> Self {
        let name = format!("redis at {}", address.place(PORT));
        Self { address, name, trust: None }
    }

    /// A server with TLS.
    pub fn secured(address: Address, trust: Trust) -> Self {
        Self { trust: Some(trust), ..Self::plain(address) }
    }

    async fn link(&self) -> Result<Box<dyn Link>, String> {
        let Address { user, password, host, port, path, .. } = &self.address;
        let mut stream = open(host, port.unwrap_or(PORT)).await?;
        if let Some(trust) = &self.trust {
            stream = secure(stream, host, trust).await?;
        }
        let prefix = if path.is_empty() { PREFIX.to_owned() } else { format!("{PREFIX}{path}/") };
        let mut out = BytesMut::new();
        let protocol = Resp3::greeting(prefix, user.as_deref(), password.as_deref(), &mut out);
        let mut wire = Wire::new(stream, protocol, out);
        wire.ready().await?;
        Ok(Box::new(wire))
    }
}

impl Broker for Redis {
    fn name(&self) -> &str {
        &self.name
    }

    fn message_bytes_max(&self, _channel: &str) -> usize {
        limits::BUS_MESSAGE_BYTES
    }

    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Link>, String>> {
        Box::pin(self.link())
    }
}
