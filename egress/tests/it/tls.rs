//! Endpoints with TLS, and with certificates that must not be accepted.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tidings_egress::{EgressOptions, SendError};
use tidings_model::limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::fixture::{Endpoint, Fixture, Resolved, Setup, sent, soon};

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An authority that the egress of these tests trusts.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// An egress that trusts this authority and no other.
    fn fixture(&self) -> Fixture {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).expect("a certificate");
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let options = EgressOptions { tls: Some(Arc::new(config)), ..EgressOptions::default() };
        let fixture = Setup { options, ..Setup::default() }.fixture();
        fixture.resolver.set("hooks.example.com", [Resolved::local(1)]);
        fixture
    }

    /// A server's certificate.
    fn issue(&self, params: CertificateParams) -> TlsAcceptor {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .expect("a certificate and its key");
        TlsAcceptor::from(Arc::new(config))
    }
}

fn named(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).expect("a name")
}

fn url(endpoint: &Endpoint) -> String {
    format!("https://hooks.example.com:{}/", endpoint.address.port())
}

/// Reads a request and says something.
async fn answer(stream: &mut TlsStream<TcpStream>, response: &str) {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"{\"id\":1}") {
        let count = soon("a request arrives", stream.read_buf(&mut bytes)).await.expect("it is open");
        assert_ne!(count, 0, "it is complete");
    }
    stream.write_all(response.as_bytes()).await.expect("it is open");
    stream.flush().await.expect("it is open");
}

/// The error of a request to an endpoint with this certificate.
async fn refused(fixture: &Fixture, acceptor: TlsAcceptor) -> String {
    let endpoint = Endpoint::listen().await;
    let sending = fixture.send(&url(&endpoint));
    let _ = soon("the handshake ends", acceptor.accept(endpoint.accept().await.socket)).await;
    let error = sent(sending).await.expect_err("no answer");
    assert!(matches!(error, SendError::Tls(_)), "{error:?}");
    assert_eq!(fixture.open_connections(), 0);
    error.to_string()
}

#[tokio::test]
async fn an_endpoint_with_a_good_certificate_is_reached_by_its_name_and_again() {
    let authority = Authority::new();
    let (fixture, acceptor) = (authority.fixture(), authority.issue(named("hooks.example.com")));
    let endpoint = Endpoint::listen().await;
    let sending = fixture.send(&url(&endpoint));
    let mut stream = acceptor.accept(endpoint.accept().await.socket).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.server_name(), Some("hooks.example.com"));
    answer(&mut stream, OK).await;
    assert_eq!(sent(sending).await.expect("an answer").body, "ok");
    let sending = fixture.send(&url(&endpoint));
    answer(&mut stream, OK).await;
    assert_eq!(sent(sending).await.expect("an answer").body, "ok");
    assert_eq!(fixture.metric("tidings_egress_connects_total"), 1);
}

#[tokio::test]
async fn an_endpoint_with_a_certificate_for_its_address_is_reached() {
    let authority = Authority::new();
    let (fixture, acceptor) = (authority.fixture(), authority.issue(named("127.0.0.1")));
    let endpoint = Endpoint::listen().await;
    let sending = fixture.send(&format!("https://{}/", endpoint.address));
    let mut stream = acceptor.accept(endpoint.accept().await.socket).await.expect("a handshake");
    answer(&mut stream, OK).await;
    assert_eq!(sent(sending).await.expect("an answer").status, 200);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused() {
    let (trusted, other) = (Authority::new(), Authority::new());
    let told = refused(&trusted.fixture(), other.issue(named("hooks.example.com"))).await;
    assert!(told.starts_with("TLS handshake failed: invalid peer certificate"), "{told}");
}

#[tokio::test]
async fn what_the_system_does_not_trust_is_refused_unless_told_otherwise() {
    let fixture = Fixture::new();
    fixture.resolver.set("hooks.example.com", [Resolved::local(1)]);
    refused(&fixture, Authority::new().issue(named("hooks.example.com"))).await;
}

#[tokio::test]
async fn a_certificate_of_another_name_is_refused() {
    let authority = Authority::new();
    let told = refused(&authority.fixture(), authority.issue(named("other.example.com"))).await;
    assert!(told.contains("not valid for name"), "{told}");
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let authority = Authority::new();
    let mut params = named("hooks.example.com");
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let told = refused(&authority.fixture(), authority.issue(params)).await;
    assert!(told.contains("expired"), "{told}");
}

#[tokio::test]
async fn an_endpoint_without_tls_is_told() {
    let (fixture, endpoint) = (Authority::new().fixture(), Endpoint::listen().await);
    let sending = fixture.send(&url(&endpoint));
    let mut peer = endpoint.accept().await;
    peer.say(OK).await;
    assert!(matches!(sent(sending).await, Err(SendError::Tls(_))));
    peer.closed().await;
}

#[tokio::test]
async fn a_handshake_that_does_not_end_is_given_up_after_three_seconds() {
    let (fixture, endpoint) = (Authority::new().fixture(), Endpoint::listen().await);
    let sending = fixture.send(&url(&endpoint));
    let mut peer = endpoint.accept().await;
    soon("the handshake begins", peer.socket.readable()).await.expect("it is open");
    fixture.advance(limits::EGRESS_CONNECT_TIMEOUT).await;
    let error = sent(sending).await.expect_err("no handshake");
    assert_eq!(error.to_string(), "timeout after 3000 ms while connecting");
    peer.closed().await;
    assert_eq!(fixture.open_connections(), 0);
    assert_eq!(fixture.clock.sleepers(), 0);
}

#[tokio::test]
async fn a_body_that_ends_without_a_closing_message_counts_only_where_its_length_does_not_say_otherwise() {
    let authority = Authority::new();
    let (fixture, acceptor) = (authority.fixture(), authority.issue(named("hooks.example.com")));
    for (said, complete) in [
        ("HTTP/1.1 200 OK\r\n\r\nuntil the end", true),
        ("HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\nuntil the end", false),
    ] {
        let endpoint = Endpoint::listen().await;
        let sending = fixture.send(&url(&endpoint));
        let mut stream = acceptor.accept(endpoint.accept().await.socket).await.expect("a handshake");
        answer(&mut stream, said).await;
        // Dropping a stream of TLS closes the socket without a closing message.
        drop(stream);
        match sent(sending).await {
            Ok(answer) => assert!(complete && answer.body == "until the end"),
            Err(error) => assert!(!complete && error == SendError::Closed),
        }
    }
}

#[tokio::test]
async fn a_connection_that_the_endpoint_closed_meanwhile_is_not_used_with_tls_either() {
    let authority = Authority::new();
    let (fixture, acceptor) = (authority.fixture(), authority.issue(named("hooks.example.com")));
    let endpoint = Endpoint::listen().await;
    for _ in 0..2 {
        let sending = fixture.send(&url(&endpoint));
        let mut stream = acceptor.accept(endpoint.accept().await.socket).await.expect("a handshake");
        answer(&mut stream, OK).await;
        assert_eq!(sent(sending).await.expect("an answer").status, 200);
        stream.shutdown().await.expect("it is open");
    }
    fixture.clock.advance(Duration::from_secs(60));
    fixture.egress.sweep();
    assert_eq!(fixture.open_connections(), 0);
}
