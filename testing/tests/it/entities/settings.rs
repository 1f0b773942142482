//! Settings that cannot be used: the server says so and does not start.

use tidings_testing::Process;

/// What the server says when it is started with this configuration.
async fn refused(entities: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tidings.toml");
    let data = folder.path().join("data");
    std::fs::write(&file, format!("listen = '127.0.0.1:0'\ndev = true\n{entities}")).expect("written");
    let text = |path: &std::path::Path| path.to_str().expect("a path in UTF-8").to_owned();
    let exit = Process::run(&["serve", "--config", &text(&file), "--data", &text(&data)]).await;
    assert!(!exit.status.success(), "{entities}");
    exit.stderr
}

#[tokio::test]
async fn an_authoriser_that_cannot_be_asked_keeps_the_server_from_starting() {
    let sql = refused("[entities.authorize]\nsql = 'SELECT 1'").await;
    assert!(sql.contains("entities.authorize.sql needs a database to ask"), "{sql}");
    let both = refused("[entities.authorize]\nsql = 'SELECT 1'\ncallback_url = 'https://example.com/'").await;
    assert!(both.contains("entities.authorize.sql cannot be set beside"), "{both}");
    let role = refused("[entities.authorize]\nsql_role = 'watcher'").await;
    assert!(role.contains("entities.authorize.sql_role needs entities.authorize.sql"), "{role}");
    let source = refused("[[entities.sources]]\nproject = 'shop'").await;
    assert!(source.contains("tidings.toml:3: entities.sources needs database_url"), "{source}");
}
