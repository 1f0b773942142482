//! Credentials, permissions and TLS of brokers.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;
use tidings_broker::{Address, BrokerBus, Options, Trust};
use tidings_engine::bus::messages::{Arrival, BusError, Joined, MessageBus};
use tidings_nats::{Nats, Security};
use tidings_testing::brokers::{BrokerKind, BrokerServer};
use tidings_testing::{Launch, Process, until};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::contract::{bus, context, quick};

fn with_credentials(server: &BrokerServer, credentials: &str) -> String {
    server.url().replace("://", &format!("://{credentials}@"))
}

/// What is written is heard.
async fn works(bus: &BrokerBus, channel: &str) {
    let Joined { interest, mut arrivals } = bus.join(1 << 20);
    interest.subscribe(channel).await.expect("it is permitted");
    bus.publish(channel, Bytes::from_static(b"x")).await.expect("it is permitted");
    assert!(matches!(arrivals.next().await, Some(Arrival::Message { .. })));
}

async fn lets_in_with(server: &BrokerServer, right: &str, wrong: &[&str]) {
    let inside = bus(&with_credentials(server, right), quick(), 1);
    assert!(inside.attempted().await, "{right}");
    works(&inside, "a").await;
    for credentials in wrong {
        let outside = bus(&with_credentials(server, credentials), quick(), 2);
        assert!(!outside.attempted().await, "{credentials}");
        assert!(matches!(outside.publish("a", Bytes::new()).await, Err(BusError::Failed(_))));
    }
}

#[tokio::test]
async fn redis_lets_in_who_has_the_password() {
    let server = BrokerServer::program(BrokerKind::Redis, &["--requirepass", "hunter2/%"]).await;
    lets_in_with(&server, ":hunter2%2F%25", &[":wrong", "default:hunter2", "nobody:hunter2%2F%25"]).await;
    assert!(!bus(&server.url(), quick(), 3).attempted().await, "without a password");
}

#[tokio::test]
async fn nats_lets_in_who_has_the_password_or_the_token() {
    let server = BrokerServer::program(BrokerKind::Nats, &["--user", "alice", "--pass", "hunter2"]).await;
    lets_in_with(&server, "alice:hunter2", &["alice:wrong", ":hunter2", "alice"]).await;
    let server = BrokerServer::program(BrokerKind::Nats, &["--auth", "secret"]).await;
    lets_in_with(&server, ":secret", &[":wrong", "secret:x"]).await;
    assert!(!bus(&server.url(), quick(), 3).attempted().await, "without a token");
}

#[tokio::test]
async fn a_password_that_is_refused_is_not_in_the_log() {
    let server = BrokerServer::program(BrokerKind::Redis, &["--requirepass", "right"]).await;
    let url = with_credentials(&server, "alice:hunter2");
    let arguments = ["--dev", "--listen", "127.0.0.1:0", "--log", "trace"];
    let process = Process::launch(Launch::new(&arguments, &[("TIDINGS_BUS_URL", &url)])).await;
    until("the refusal is logged", || process.log().contains("WRONGPASS")).await;
    let log = process.log();
    assert!(!log.contains("hunter2") && !log.contains("alice"), "{log}");
    process.stop().await;
}

/// Only the channel `ok` is permitted.
async fn refuses_alone(bus: &BrokerBus) {
    assert!(bus.attempted().await);
    works(bus, "ok").await;
    let Joined { interest, mut arrivals } = bus.join(1 << 20);
    interest.subscribe("ok").await.expect("it is permitted");
    let refused = interest.subscribe("no").await;
    assert!(matches!(refused, Err(BusError::Failed(_))), "{refused:?}");
    assert!(!interest.is_in_effect("no") && interest.is_in_effect("ok"));
    // Begun together, so that each answer has to be taken for the right one.
    let begun = ["ok", "no", "ok"].map(|channel| bus.publish(channel, Bytes::from_static(b"x")));
    let mut answers = Vec::new();
    for publish in begun {
        answers.push(publish.await.is_ok());
    }
    assert_eq!(answers, [true, false, true]);
    for _ in 0..2 {
        let arrival = arrivals.next().await;
        assert!(matches!(arrival, Some(Arrival::Message { .. })), "{arrival:?}");
    }
}

#[tokio::test]
async fn what_redis_does_not_permit_is_refused_alone() {
    let user = ["--user", "limited", "on", ">pw", "resetchannels", "&tidings/ok", "~*", "+@all"];
    let server = BrokerServer::program(BrokerKind::Redis, &user).await;
    refuses_alone(&bus(&with_credentials(&server, "limited:pw"), Options::default(), 1)).await;
}

#[tokio::test]
async fn what_nats_does_not_permit_is_refused_alone() {
    let folder = TempDir::new().expect("a folder");
    let file = folder.path().join("nats.conf");
    let permissions = r#"{ publish: ["tidings.ok"], subscribe: ["tidings.ok"] }"#;
    let users =
        format!("authorization {{ users: [{{ user: u, password: pw, permissions: {permissions} }}] }}");
    fs::write(&file, users).expect("written");
    let file = file.to_str().expect("a path in UTF-8");
    let server = BrokerServer::program(BrokerKind::Nats, &["--config", file]).await;
    refuses_alone(&bus(&with_credentials(&server, "u:pw"), Options::default(), 1)).await;
}

#[tokio::test]
async fn tls_is_spoken_if_the_server_wants_it_and_a_certificate_that_is_not_trusted_ends_it() {
    let folder = TempDir::new().expect("a folder");
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    fs::write(&certificate, made.cert.pem()).expect("written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let path = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
    let (certificate, key) = (path(&certificate), path(&key));
    let arguments = ["--tls", "--tlscert", &certificate, "--tlskey", &key];
    let server = BrokerServer::program(BrokerKind::Nats, &arguments).await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let trusted = Trust::These(Arc::new(config));
    let address = || Address::parse(&server.url().replace("127.0.0.1", "localhost")).expect("a URL");
    for security in [Security::AsTheServerWants(trusted.clone()), Security::Always(trusted)] {
        let bus = BrokerBus::start(Nats::new(address(), security), quick(), context(1));
        assert!(bus.attempted().await);
        works(&bus, "a").await;
    }
    let stranger = Security::AsTheServerWants(Trust::System);
    let bus = BrokerBus::start(Nats::new(address(), stranger), quick(), context(1));
    assert!(!bus.attempted().await, "nobody has vouched for it");
}
