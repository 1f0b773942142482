//! The bus between nodes: which broker a URL means, and the number of a node.

use std::str::FromStr;

use tidings_auth::Randomness;
use tidings_broker::{Address, AddressError, BrokerBus, Context, Options, Trust};
use tidings_nats::{Nats, Security};
use tidings_postgres::{DatabaseError, PostgresBus};
use tidings_redis::Redis;

use crate::projects::SystemRandomness;

/// A URL of a broker, checked. Its `Debug` leaves out the credentials.
#[derive(Clone, Debug)]
pub struct BusUrl(Broker);

#[derive(Clone, Debug)]
enum Broker {
    Redis(Address),
    /// Redis with TLS.
    Rediss(Address),
    Nats(Address),
    /// NATS with TLS, whatever the server wants.
    NatsTls(Address),
    Postgres(Box<PostgresBus>),
}

/// A URL that no bus can be made of. The message does not quote the URL, which may have a password.
#[derive(Debug, thiserror::Error)]
pub enum BusUrlError {
    /// It is not a URL of a broker.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It is not a URL of a database.
    #[error("is not good: {0}")]
    Database(#[from] DatabaseError),
    /// Nothing is known of the scheme.
    #[error(
        "has the scheme `{0}`, which is not known; use redis, rediss, nats, tls (NATS with TLS) or postgres"
    )]
    Scheme(String),
}

impl FromStr for BusUrl {
    type Err = BusUrlError;

    fn from_str(url: &str) -> Result<Self, BusUrlError> {
        // These may have options and several hosts.
        if ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Ok(Self(Broker::Postgres(Box::new(PostgresBus::new(url)?))));
        }
        let address = Address::parse(url)?;
        Ok(Self(match address.scheme.as_str() {
            "redis" => Broker::Redis(address),
            "rediss" => Broker::Rediss(address),
            "nats" => Broker::Nats(address),
            "tls" => Broker::NatsTls(address),
            other => return Err(BusUrlError::Scheme(other.to_owned())),
        }))
    }
}

impl BusUrl {
    /// Begins to connect to the broker. Call it within a Tokio runtime.
    pub fn connect(self, options: Options, context: Context) -> BrokerBus {
        let trust = Trust::System;
        match self.0 {
            Broker::Redis(address) => BrokerBus::start(Redis::plain(address), options, context),
            Broker::Rediss(address) => BrokerBus::start(Redis::secured(address, trust), options, context),
            Broker::Nats(address) => {
                BrokerBus::start(Nats::new(address, Security::AsTheServerWants(trust)), options, context)
            }
            Broker::NatsTls(address) => {
                BrokerBus::start(Nats::new(address, Security::Always(trust)), options, context)
            }
            Broker::Postgres(database) => BrokerBus::start(*database, options, context),
        }
    }
}

/// Begins to connect to the broker at a URL. Call it within a Tokio runtime.
pub fn connect(url: &str, options: Options, context: Context) -> Result<BrokerBus, BusUrlError> {
    Ok(url.parse::<BusUrl>()?.connect(options, context))
}

/// A number that no other node draws.
pub(crate) fn node_number() -> u64 {
    let mut bytes = [0; 8];
    SystemRandomness.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_stands_for_a_broker_and_others_are_refused() {
        for (url, expected) in [
            ("redis://localhost", "Redis("),
            ("REDISS://:secret@localhost:1/shop", "Rediss("),
            ("nats://localhost", "Nats("),
            ("tls://localhost", "NatsTls("),
            ("postgres://u:secret@localhost/d?sslmode=disable", "Postgres("),
            ("postgresql://localhost/d", "Postgres("),
        ] {
            let shown = format!("{:?}", url.parse::<BusUrl>().expect(url));
            assert!(shown.contains(expected) && !shown.contains("secret"), "{shown}");
        }
        let error = "kafka://u:hunter2@localhost".parse::<BusUrl>().expect_err("not known").to_string();
        assert!(
            error.contains("`kafka`") && error.contains("redis") && !error.contains("hunter2"),
            "{error}"
        );
        for url in ["localhost", "postgres://u:hunter2@h:x/d"] {
            let error = url.parse::<BusUrl>().expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
