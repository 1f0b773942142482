//! TLS: a certificate and its key from files, which can be read again while the server runs.

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

/// Why there is no TLS. The message names the file and what is wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {file}: {error}", file = file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// There is nothing in a file of what should be there.
    #[error("{file} holds no {what} in PEM form (-----BEGIN {label}-----)", file = file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// What should be there.
        what: &'static str,
        /// How that begins.
        label: &'static str,
    },
    /// A file has PEM that cannot be read.
    #[error("{file} is not valid PEM: {error}", file = file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        error: pem::Error,
    },
    /// Certificate and key do not go together, or are of a kind that cannot be used.
    #[error("the certificate in {certificate} and the key in {key} cannot be used: {error}",
        certificate = certificate.display(), key = key.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        error: tokio_rustls::rustls::Error,
    },
}

/// TLS for connections to come.
pub struct Tls {
    options: TlsOptions,
    current: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    pub fn load(options: TlsOptions) -> Result<Self, TlsError> {
        let current = RwLock::new(config(&options)?);
        Ok(Self { options, current })
    }

    /// Reads the files again, for connections that come from now on. If they cannot be used, all stays as it is.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = config(&self.options)?;
        *self.current.write().expect("nobody panics while holding it") = config;
        Ok(())
    }

    /// Shakes hands.
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
