//! Connections to a database by TLS.

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tidings_entities::Source;
use tidings_testing::postgres::{Fsync, Postgres, Stop};

use super::{install, node};

/// Whether a node gets an answer, or why not.
async fn answer(url: &str) -> Result<(), String> {
    match node(url).outbox().now().await {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

#[tokio::test]
async fn tls_is_demanded_and_certificates_are_verified_as_the_url_says() {
    let server = Postgres::start(Fsync::Off).await;
    install(&server.url("postgres")).await;
    let url = |host: &str, parameters: &str| {
        format!("postgres://postgres@{host}:{}/postgres?{parameters}", server.port())
    };
    let refused = answer(&url("127.0.0.1", "sslmode=require")).await.expect_err("the server has no TLS");
    assert!(refused.contains("server does not support TLS"), "{refused}");
    assert_eq!(answer(&url("127.0.0.1", "sslmode=prefer")).await, Ok(()));

    let folder = TempDir::new().expect("a folder");
    let certificate = |name: &str| {
        let made = generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let path = folder.path().join(name);
        std::fs::write(&path, made.cert.pem()).expect("written");
        (made, path.to_str().expect("a path in UTF-8").to_owned())
    };
    let (CertifiedKey { cert, signing_key }, trusted) = certificate("trusted.pem");
    let (_, other) = certificate("other.pem");
    server.use_certificate(&cert.pem(), &signing_key.serialize_pem()).await;
    server.restart(Stop::Fast).await;
    assert_eq!(answer(&url("127.0.0.1", "sslmode=require")).await, Ok(()), "encrypted, not verified");
    assert_eq!(answer(&url("127.0.0.1", "sslmode=disable")).await, Ok(()));
    let verified = |root: &str| format!("sslmode=verify-full&sslrootcert={root}");
    assert_eq!(answer(&url("localhost", &verified(&trusted))).await, Ok(()));
    for (host, parameters, says) in [
        ("localhost", verified(&other), "invalid peer certificate"),
        ("127.0.0.1", verified(&trusted), "not valid for name"),
        ("localhost", "sslmode=verify-full".to_owned(), "invalid peer certificate"),
    ] {
        let refused = answer(&url(host, &parameters)).await.expect_err(&parameters);
        assert!(refused.contains(says), "{parameters}: {refused}");
    }
    let encrypted = "SELECT count(*) FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid)
        WHERE a.application_name = 'tidings' AND s.ssl";
    let node = node(&url("localhost", &verified(&trusted)));
    let outbox = node.outbox();
    outbox.now().await.expect("the database answers");
    let sql = server.client("postgres").await;
    let count: i64 = sql.query_one(encrypted, &[]).await.expect("the server tells").get(0);
    assert!(count >= 1);
}
