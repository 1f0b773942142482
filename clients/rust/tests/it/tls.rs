//! Following a room through TLS.

use std::sync::Arc;

use tidings_client::rooms::{BackoffReason, Target};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::scene::*;

#[tokio::test]
async fn a_room_is_followed_through_tls_when_the_certificate_is_trusted() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a certificate and its key");
    let acceptor = TlsAcceptor::from(Arc::new(server));
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let trusting = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let trusting = Arc::new(trusting);
    for wire in WIRES {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        // The test accepts the connections itself, so the scene gets an unused listener.
        let unused = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let target =
            Target::new(&format!("https://localhost:{port}"), "shop", "lobby").expect("a good URL").on(wire);
        let mut scene = Scene::follow(Setup::on(wire), unused, target.clone().trusting(trusting.clone()));
        let (socket, _) = in_time("a connection", listener.accept()).await.expect("a connection");
        let socket = acceptor.accept(socket).await.expect("a good handshake");
        let mut flow = Call::read(socket).await.open().await;
        flow.message("01A").await;
        scene.expect([disconnected(), connecting(), streaming(), event("01A"), stored("01A")]).await;

        // The system does not trust the certificate.
        let unused = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut scene = Scene::follow(Setup::on(wire), unused, target);
        let (socket, _) = in_time("a connection", listener.accept()).await.expect("a connection");
        assert!(acceptor.accept(socket).await.is_err());
        scene.expect([disconnected(), connecting()]).await;
        let (why, _) = scene.wait().await;
        assert!(matches!(&why, BackoffReason::Network(error) if error.contains("certificate")), "{why:?}");
    }
}
