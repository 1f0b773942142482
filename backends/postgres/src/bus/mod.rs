//! The message bus between nodes over `LISTEN` and `NOTIFY`.
//!
//! [`PostgresBus`] is a broker for [`tidings_broker::BrokerBus`], on a connection of its own, so that no notification is
//! part of a transaction that writes anything. All nodes listen to one channel of the database and take out what is for
//! their own channels. What waits while a statement is under way goes into the next one, because each commit with
//! notifications takes a lock that the whole server has once.
//!
//! A notification has less than 8000 bytes, which limits messages. Read `notification` for how one is written.

mod link;
mod notification;

use std::fmt;

use futures_util::future::BoxFuture;
use tidings_broker::{Broker, Link};
use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::DatabaseError;
use crate::tls;

/// A database as a broker. Its `Debug` leaves out the credentials.
#[derive(Clone)]
pub struct PostgresBus {
    config: Config,
    tls: MakeRustlsConnect,
    name: String,
}

impl PostgresBus {
    /// Reads a database URL.
    pub fn new(url: &str) -> Result<Self, DatabaseError> {
        let (mut config, tls) = tls::parse(url)?;
        if config.get_application_name().is_none() {
            config.application_name("tidings bus");
        }
        let ports = config.get_ports().iter().copied().chain(std::iter::repeat(5432));
        // Of one port for all hosts there is only one.
        let ports =
            ports.map(|port| if config.get_ports().len() == 1 { config.get_ports()[0] } else { port });
        let places = config.get_hosts().iter().zip(ports).map(|(host, port)| match host {
            Host::Tcp(host) => format!("{host}:{port}"),
            Host::Unix(path) => path.display().to_string(),
        });
        let places: Vec<String> = places.collect();
        if places.is_empty() {
            return Err(DatabaseError::Url("it has no host".to_owned()));
        }
        let name = format!("postgres at {}", places.join(", "));
        Ok(Self { config, tls, name })
    }
}

impl Broker for PostgresBus {
    fn name(&self) -> &str {
        &self.name
    }

    fn message_bytes_max(&self, channel: &str) -> usize {
        notification::message_bytes_max(channel)
    }

    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Link>, String>> {
        Box::pin(link::connect(&self.config, &self.tls))
    }
}

impl fmt::Debug for PostgresBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresBus({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_database_has_no_credentials() {
        for (url, expected) in [
            ("postgres://alice:hunter2@db.example.com/shop", "postgres at db.example.com:5432"),
            ("postgres://alice:hunter2@a,b:1/shop?sslmode=disable", "postgres at a:5432, b:1"),
            ("postgres://alice:hunter2@a:9/shop", "postgres at a:9"),
        ] {
            let bus = PostgresBus::new(url).map_err(|error| error.to_string()).expect(url);
            assert_eq!(bus.name(), expected);
            assert!(!format!("{bus:?}").contains("hunter2"));
        }
        for url in
            ["postgres://", "postgres:///shop?password=hunter2", "postgres://hunter2:x@:b/c?sslmode=hm"]
        {
            let error = PostgresBus::new(url).expect_err(url).to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
