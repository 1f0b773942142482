//! TLS: certificate and key from files, HTTP/1.1 and HTTP/2 above it.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tidings_server::{LimitOptions, TlsOptions};
use tidings_testing::{Harness, Process, Setup, http, until};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// A certificate for `localhost` with its key, in files.
pub(crate) struct Files {
    folder: TempDir,
    certificate: CertificateDer<'static>,
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let certificate = Self::write(folder.path());
        Self { folder, certificate }
    }

    fn write(folder: &Path) -> CertificateDer<'static> {
        let CertifiedKey { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        std::fs::write(folder.join("cert.pem"), cert.pem()).expect("written");
        std::fs::write(folder.join("key.pem"), signing_key.serialize_pem()).expect("written");
        cert.der().clone()
    }

    /// Another certificate in the same files.
    fn renew(&mut self) {
        self.certificate = Self::write(self.folder.path());
    }

    pub(crate) fn options(&self) -> TlsOptions {
        TlsOptions {
            certificate: self.folder.path().join("cert.pem"),
            key: self.folder.path().join("key.pem"),
        }
    }

    /// Connects as a client that trusts the certificate and offers these protocols.
    pub(crate) async fn connect(
        &self,
        address: &str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let socket = TcpStream::connect(address).await?;
        let name = "localhost".try_into().expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, socket).await
    }
}

async fn put_http1(io: TlsStream<TcpStream>, path: &str) -> Response<hyper::body::Incoming> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.expect("it speaks HTTP/1.1");
    tokio::spawn(connection);
    let request = Request::put(path).header("host", "localhost").body(Empty::<Bytes>::new());
    sender.send_request(request.expect("a request")).await.expect("an answer")
}

#[tokio::test]
async fn http1_and_http2_are_served_above_tls_and_locations_say_https() {
    let files = Files::new();
    let server = Harness::with(Setup { tls: Some(files.options()), ..Setup::default() }).await;
    let address = server.address().to_string();

    let io = files.connect(&address, &["http/1.1"]).await.expect("shaken hands");
    assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = put_http1(io, "/v1/stream/one").await;
    assert_eq!(answer.status(), 201);
    assert_eq!(answer.headers()["location"], "https://localhost/v1/stream/one");

    let io = files.connect(&address, &[]).await.expect("shaken hands");
    assert_eq!(put_http1(io, "/v1/stream/none").await.status(), 201, "who offers nothing speaks HTTP/1.1");

    let io = files.connect(&address, &["h2", "http/1.1"]).await.expect("shaken hands");
    assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    let request = Request::put("https://localhost/v1/stream/two").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!((answer.status().as_u16(), answer.version()), (201, hyper::Version::HTTP_2));
    assert_eq!(answer.headers()["location"], "https://localhost/v1/stream/two");
    let request = Request::get("https://localhost/v1/stream/two").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.into_body().collect().await.expect("whole").to_bytes(), "");
}

#[tokio::test]
async fn a_handshake_that_fails_or_takes_too_long_is_counted_and_ended() {
    let files = Files::new();
    let limits =
        LimitOptions { head_timeout: std::time::Duration::from_millis(200), ..LimitOptions::default() };
    let server = Harness::with(Setup { tls: Some(files.options()), limits, ..Setup::default() }).await;
    let mut silent = TcpStream::connect(server.address()).await.expect("connected");
    assert_eq!(silent.read(&mut [0; 1]).await.expect("ended"), 0);
    let hits = "tidings_limit_hits_total{limit=\"head_time\"}";
    until("it is counted", || server.metric(hits) == Some(1.0)).await;
    assert!(http::get(server.url("/health")).await.is_err(), "plain HTTP is not TLS");
    until("it is counted", || server.metric("tidings_tls_failures_total") == Some(1.0)).await;
}

#[tokio::test]
async fn a_hang_up_renews_the_certificate_and_cuts_nobody() {
    let mut files = Files::new();
    let options = files.options();
    let text = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (certificate, key) = (text(&options.certificate), text(&options.key));
    let server = Process::serve(&["--tls-cert", &certificate, "--tls-key", &key]).await;
    let address = server.url("").replace("http://", "");
    let old = files.connect(&address, &["http/1.1"]).await.expect("shaken hands");
    let (mut sender, connection) = http1::handshake(TokioIo::new(old)).await.expect("it speaks HTTP/1.1");
    tokio::spawn(connection);
    files.renew();
    server.signal("HUP").await;
    // The signal is heard in its own time.
    let mut renewed = None;
    while renewed.is_none() {
        renewed = files.connect(&address, &["http/1.1"]).await.ok();
        tokio::task::yield_now().await;
    }
    assert_eq!(put_http1(renewed.expect("connected"), "/v1/stream/s").await.status(), 201);
    let request = Request::get("/health").header("host", "localhost").body(Empty::<Bytes>::new());
    let answer = sender.send_request(request.expect("a request")).await.expect("the old one goes on");
    assert_eq!(answer.status(), 200);
    // Files that cannot be used change nothing.
    std::fs::write(&options.key, "not a key").expect("written");
    server.signal("HUP").await;
    assert!(files.connect(&address, &["http/1.1"]).await.is_ok());
}

#[tokio::test]
async fn what_is_wrong_with_certificate_or_key_is_told() {
    let (files, others) = (Files::new(), Files::new());
    let path = |folder: &TempDir, name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (certificate, key) = (path(&files.folder, "cert.pem"), path(&files.folder, "key.pem"));
    let empty = path(&files.folder, "empty.pem");
    std::fs::write(&empty, "nothing here").expect("written");
    let cases = [
        (certificate.clone(), "/no/such/key.pem".to_owned(), "cannot read /no/such/key.pem"),
        (empty.clone(), key.clone(), "empty.pem holds no certificate"),
        (certificate.clone(), empty, "empty.pem holds no private key"),
        (certificate.clone(), path(&others.folder, "key.pem"), "cannot be used"),
    ];
    for (certificate, key, expected) in cases {
        let data = TempDir::new().expect("a folder");
        let data = data.path().to_str().expect("a path in UTF-8");
        let exit = Process::run(&[
            "serve",
            "--dev",
            "--listen",
            "127.0.0.1:0",
            "--data",
            data,
            "--tls-cert",
            &certificate,
            "--tls-key",
            &key,
        ])
        .await;
        assert_eq!(exit.status.code(), Some(1));
        assert!(exit.stderr.contains(expected), "{expected}: {}", exit.stderr);
    }
    let exit = Process::run(&["serve", "--dev", "--tls-cert", &certificate]).await;
    assert_eq!(exit.status.code(), Some(1), "one without the other");
    assert!(exit.stderr.contains("tls.cert needs tls.key, which is missing"), "{}", exit.stderr);
}
