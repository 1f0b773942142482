//! TLS: loads a certificate and its key from files. Both can be reloaded while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

use crate::options::TlsOptions;

/// Why TLS cannot be set up. The message names the file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {file}: {error}", file = file.display())]
    Unreadable {
        /// The unreadable file.
        file: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// A file contains no PEM section of the expected kind.
    #[error("{file} holds no {what} in PEM form (-----BEGIN {label}-----)", file = file.display())]
    Missing {
        /// The file that was searched.
        file: PathBuf,
        /// What the file should contain.
        what: &'static str,
        /// PEM label of the expected section.
        label: &'static str,
    },
    /// A file contains invalid PEM.
    #[error("{file} is not valid PEM: {error}", file = file.display())]
    Malformed {
        /// The invalid file.
        file: PathBuf,
        /// The error of the PEM parser.
        error: pem::Error,
    },
    /// The certificate and the key do not match, or are of an unsupported kind.
    #[error("the certificate in {certificate} and the key in {key} cannot be used: {error}",
        certificate = certificate.display(), key = key.display())]
    Unusable {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
        /// The error of the TLS library.
        error: tokio_rustls::rustls::Error,
    },
}

/// TLS configuration of new connections.
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Loads the certificate and the key.
    pub fn load(options: TlsOptions) -> Result<Self, TlsError> {
        let current = RwLock::new(config(&options)?);
        Ok(Self { options, current })
    }

    /// Reads the files again, for new connections. If they cannot be used, the previous ones stay in effect.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = config(&self.options)?;
        *self.current.write().expect("nobody panics while holding it") = config;
        Ok(())
    }

    /// Performs the TLS handshake on a new connection.
    pub async fn accept(&self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.current.read().expect("nobody panics while holding it").clone();
        TlsAcceptor::from(config).accept(socket).await
    }
}

fn config(options: &TlsOptions) -> Result<Arc<ServerConfig>, TlsError> {
    let certificates = certificates(&options.certificate)?;
    let key = key(&options.key)?;
    let unusable = |error| TlsError::Unusable {
        certificate: options.certificate.clone(),
        key: options.key.clone(),
        error,
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    match all {
        Ok(all) if all.is_empty() => {
            Err(TlsError::Missing { file: file.to_owned(), what: "certificate", label: "CERTIFICATE" })
        }
        Ok(all) => Ok(all),
        Err(error) => Err(malformed(file, error)),
    }
}

fn key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    match PrivateKeyDer::from_pem_file(file) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => {
            Err(TlsError::Missing { file: file.to_owned(), what: "private key", label: "PRIVATE KEY" })
        }
        Err(error) => Err(malformed(file, error)),
    }
}

fn malformed(file: &Path, error: pem::Error) -> TlsError {
    let file = file.to_owned();
    match error {
        pem::Error::Io(error) => TlsError::Unreadable { file, error },
        error => TlsError::Malformed { file, error },
    }
}
