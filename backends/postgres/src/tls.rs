//! What a database URL says about TLS.

use std::sync::Arc;

use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

use crate::error::DatabaseError;

/// Parses a database URL, or the `key=value` form, and says how its certificate is verified.
///
/// As with libpq, `sslmode=prefer` (the default) and `require` encrypt without verifying, unless `sslrootcert` names a
/// file with certificates. `verify-full` verifies, by that file or by what the system trusts; `verify-ca` is treated
/// like it.
pub fn parse(url: &str) -> Result<(Config, MakeRustlsConnect), DatabaseError> {
    let (rest, mode, roots) = take_parameters(url);
    let mut config: Config =
        rest.parse().map_err(|error| DatabaseError::Url(crate::error::message(&error)))?;
    use tokio_postgres::config::SslMode;
    let verify = match mode.as_deref() {
        None | Some("prefer" | "allow") => roots.is_some(),
        Some("disable") => {
            config.ssl_mode(SslMode::Disable);
            false
        }
        Some("require") => {
            config.ssl_mode(SslMode::Require);
            roots.is_some()
        }
        Some("verify-ca" | "verify-full") => {
            config.ssl_mode(SslMode::Require);
            true
        }
        Some(other) => {
            return Err(DatabaseError::Url(format!(
                "sslmode is `{other}`, and has to be one of disable, prefer, require, verify-ca and verify-full"
            )));
        }
    };
    let tls = client_config(verify, roots.as_deref())
        .map_err(|error| DatabaseError::Url(format!("TLS cannot be set up: {error}")))?;
    Ok((config, MakeRustlsConnect::new(tls)))
}

/// Takes out the parameters that the library does not know, or knows less of.
fn take_parameters(url: &str) -> (String, Option<String>, Option<String>) {
    let (mut mode, mut roots) = (None, None);
    let mut keep = |pair: &&str| {
        let taken = match pair.split_once('=') {
            Some(("sslmode", value)) => mode.replace(value.to_owned()).is_some() || mode.is_some(),
            Some(("sslrootcert", value)) => roots.replace(value.to_owned()).is_some() || roots.is_some(),
            _ => false,
        };
        !taken
    };
    let rest = match url.split_once('?') {
        Some((base, query)) if base.contains("://") => {
            let kept: Vec<&str> = query.split('&').filter(&mut keep).collect();
            if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) }
        }
        _ if url.contains("://") => url.to_owned(),
        _ => url.split(' ').filter(&mut keep).collect::<Vec<_>>().join(" "),
    };
    (rest, mode, roots)
}

fn client_config(verify: bool, roots: Option<&str>) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match (verify, roots) {
        (true, Some(path)) => {
            let mut store = RootCertStore::empty();
            let certificates =
                CertificateDer::pem_file_iter(path).map_err(|error| format!("{path}: {error}"))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| format!("{path}: {error}"))?;
                store.add(certificate).map_err(|error| format!("{path}: {error}"))?;
            }
            builder.with_root_certificates(store)
        }
        (true, None) => {
            use rustls_platform_verifier::BuilderVerifierExt;
            builder.with_platform_verifier().map_err(|error| error.to_string())?
        }
        (false, _) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        }
    };
    Ok(builder.with_no_client_auth())
}

/// Accepts whatever certificate the server has, as `sslmode=require` asks: it keeps out who only listens.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::SslMode;

    use super::*;

    #[test]
    fn the_modes_of_libpq_are_understood() {
        let modes = [
            ("postgres://h/d", SslMode::Prefer),
            ("postgres://h/d?sslmode=disable", SslMode::Disable),
            ("postgres://h/d?application_name=x&sslmode=require", SslMode::Require),
            ("host=h sslmode=verify-full dbname=d", SslMode::Require),
        ];
        for (url, mode) in modes {
            let (config, _) = parse(url).map_err(|error| error.to_string()).expect(url);
            assert_eq!(config.get_ssl_mode(), mode, "{url}");
        }
        for (url, says) in [
            ("postgres://h/d?sslmode=maybe", "one of disable, prefer, require, verify-ca and verify-full"),
            ("postgres://h/d?sslmode=verify-full&sslrootcert=/nowhere.pem", "/nowhere.pem"),
            ("not a url", "not valid"),
        ] {
            let error = parse(url).map(|_| ()).expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
