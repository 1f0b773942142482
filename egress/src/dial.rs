//! Opens connections.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::destination::{Destination, Host, Scheme};
use crate::error::{Phase, Scope, SendError};
use crate::io::Stream;
use crate::pool::Slot;

/// Error numbers of Linux for too many open files, of the process and of the system.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// The TLS configuration of connections.
pub(crate) struct Trust {
    /// The one that trusts what the system trusts is loaded when it is first needed, which is never where all endpoints are
    /// plain HTTP.
    config: OnceLock<Result<Arc<ClientConfig>, SendError>>,
}

impl Trust {
    /// Uses this configuration, or one that trusts the certificates that the system trusts.
    pub(crate) fn new(config: Option<Arc<ClientConfig>>) -> Self {
        Self { config: config.map_or_else(OnceLock::new, |config| OnceLock::from(Ok(config))) }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, SendError> {
        let load = || {
            of_the_system().map(Arc::new).map_err(|error| {
                tracing::error!(%error, "no endpoint with https can be reached");
                SendError::Tls("the server has no root certificates".to_owned())
            })
        };
        self.config.get_or_init(load).clone()
    }
}

fn of_the_system() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    let mut config = builder.with_platform_verifier()?.with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Connects to one of the addresses, in their order. Each gets its share of the time that is left.
pub(crate) async fn dial(
    trust: &Trust,
    destination: &Destination,
    addresses: &[IpAddr],
    slot: Slot,
    connecting: Deadline<'_>,
) -> Result<Connection, SendError> {
    let timeout = connecting.reached(Phase::Connecting);
    let mut failed = None;
    for (at, &address) in addresses.iter().enumerate() {
        let socket = TcpStream::connect((address, destination.port()));
        let untried = u32::try_from(addresses.len() - at).unwrap_or(1);
        match connecting.limit(untried, socket).await {
            Some(Ok(socket)) => {
                // Without it, small requests wait for acknowledgements. It fails only where the connection is gone.
                let _ = socket.set_nodelay(true);
                let opening = open(trust, destination, address, socket, slot);
                return connecting.limit(1, opening).await.unwrap_or(Err(timeout));
            }
            Some(Err(error)) => failed = Some(connect_error(&error)),
            None => failed = Some(timeout.clone()),
        }
    }
    Err(failed.unwrap_or(timeout))
}

async fn open(
    trust: &Trust,
    destination: &Destination,
    address: IpAddr,
    socket: TcpStream,
    slot: Slot,
) -> Result<Connection, SendError> {
    let stream = match destination.scheme() {
        Scheme::Http => Stream::Plain(socket),
        Scheme::Https => {
            let connector = TlsConnector::from(trust.config()?);
            let name = server_name(destination.host())?;
            let opened = connector.connect(name, socket).await;
            Stream::Tls(Box::new(opened.map_err(|error| SendError::Tls(error.to_string()))?))
        }
    };
    Connection::new(stream, address, slot).await
}

fn server_name(host: &Host) -> Result<ServerName<'static>, SendError> {
    match host {
        Host::Address(address) => Ok(ServerName::from(*address)),
        Host::Name(name) => ServerName::try_from(name.to_string())
            .map_err(|_| SendError::Tls(format!("no certificate can be for the host name `{name}`"))),
    }
}

fn connect_error(error: &io::Error) -> SendError {
    match error.raw_os_error() {
        Some(number) if TOO_MANY_FILES.contains(&number) => SendError::TooManySockets(Scope::All),
        _ => SendError::Connect(error.kind().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_descriptors_is_not_the_fault_of_the_endpoint() {
        for number in TOO_MANY_FILES {
            let error = connect_error(&io::Error::from_raw_os_error(number));
            assert_eq!(error, SendError::TooManySockets(Scope::All));
        }
        let refused = connect_error(&io::Error::from(io::ErrorKind::ConnectionRefused));
        assert_eq!(refused, SendError::Connect("connection refused".to_owned()));
    }
}
