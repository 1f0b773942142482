//! Connections to brokers, perhaps with TLS.

use std::sync::Arc;

use rustls_platform_verifier::BuilderVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

/// A connection to a broker.
pub type Stream = Box<dyn Bytewise>;

/// What bytes can be read from and written to.
pub trait Bytewise: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytewise for T {}

/// The certificates that are trusted.
#[derive(Clone, Default)]
pub enum Trust {
    /// Those that the system trusts.
    #[default]
    System,
    /// Those that this configuration trusts.
    These(Arc<ClientConfig>),
}

impl Trust {
    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        match self {
            Self::System => {
                of_the_system().map(Arc::new).map_err(|error| format!("TLS is not possible: {error}"))
            }
            Self::These(config) => Ok(config.clone()),
        }
    }
}

fn of_the_system() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    Ok(builder.with_safe_default_protocol_versions()?.with_platform_verifier()?.with_no_client_auth())
}

/// Connects to a host by TCP.
pub async fn open(host: &str, port: u16) -> Result<Stream, String> {
    let socket =
        TcpStream::connect((host, port)).await.map_err(|error| format!("cannot connect: {error}"))?;
    // Without it, small messages wait for acknowledgements. It fails only where the connection is gone.
    let _ = socket.set_nodelay(true);
    Ok(Box::new(socket))
}

/// Puts TLS on a connection.
pub async fn secure(stream: Stream, host: &str, trust: &Trust) -> Result<Stream, String> {
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| format!("TLS needs a host name, not {host}"))?;
    match TlsConnector::from(trust.config()?).connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(format!("TLS failed: {error}")),
    }
}
