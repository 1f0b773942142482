//! `tidings entities`, by the real binary.

use std::io::Write;

use tempfile::NamedTempFile;
use tidings_testing::postgres::{TestDatabase, database};
use tidings_testing::{Exit, Process};
use uuid::Uuid;

use super::{Fixture, Follower, Running, ids, node};

async fn entities(arguments: &[&str]) -> Exit {
    Process::run(&[&["entities"], arguments].concat()).await
}

/// Runs a command on a database. It must end well; what it prints is returned.
async fn on(database: &TestDatabase, arguments: &[&str]) -> String {
    let exit = entities(&[arguments, &["--database-url", &database.url]].concat()).await;
    assert_eq!(exit.status.code(), Some(0), "{arguments:?}: {}", exit.stderr);
    exit.stdout
}

/// Everything in the schema, in a form that can be compared.
async fn schema(database: &TestDatabase) -> String {
    let everything = "SELECT string_agg(line, E'\\n' ORDER BY line) FROM (
        SELECT p.oid::regprocedure::text || pg_get_functiondef(p.oid) AS line FROM pg_proc AS p
            WHERE p.pronamespace = to_regnamespace('app')
        UNION ALL
        SELECT c.oid::regclass::text || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
            || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || a.attnotnull FROM pg_class AS c
            JOIN pg_attribute AS a ON a.attrelid = c.oid LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
            WHERE c.relnamespace = to_regnamespace('app')
        UNION ALL
        SELECT pg_get_constraintdef(oid) || conname FROM pg_constraint WHERE connamespace = to_regnamespace('app')
        UNION ALL
        SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    ) AS lines";
    let row = database.client().await.query_one(everything, &[]).await.expect("the catalog");
    row.get::<_, Option<String>>(0).unwrap_or_default()
}

#[tokio::test]
async fn install_creates_the_schema_and_again_changes_nothing() {
    let database = database().await;
    assert_eq!(schema(&database).await, "");
    assert_eq!(on(&database, &["install"]).await, "the schema app is installed\n");
    let installed = schema(&database).await;
    for name in ["app.logging", "app.rxdb_subscription", "app.bulk_subscribe", "app.log_entity_change"] {
        assert!(installed.contains(name), "{name}");
    }
    let sql = database.client().await;
    let id = Uuid::new_v4();
    super::log(&sql, id, 1).await;
    let installation = "SELECT installation::text FROM app.tidings_schema";
    let before: String = sql.query_one(installation, &[]).await.expect("one row").get(0);
    on(&database, &["install"]).await;
    assert_eq!(schema(&database).await, installed);
    let after: String = sql.query_one(installation, &[]).await.expect("one row").get(0);
    assert_eq!(before, after);
    let kept = "SELECT (SELECT count(*) FROM app.logging) + (SELECT count(*) FROM app.change_outbox)";
    assert_eq!(sql.query_one(kept, &[]).await.expect("a number").get::<_, i64>(0), 2);
}

#[tokio::test]
async fn what_install_prints_is_what_it_runs_and_printing_changes_nothing() {
    let (by_hand, by_command) = (database().await, database().await);
    let printed = entities(&["install", "--print"]).await;
    assert_eq!(printed.status.code(), Some(0), "it needs no database");
    assert_eq!(on(&by_hand, &["install", "--print"]).await, printed.stdout);
    assert_eq!(schema(&by_hand).await, "", "nothing was changed");
    by_hand.client().await.batch_execute(&printed.stdout).await.expect("it is SQL");
    on(&by_command, &["install"]).await;
    assert_eq!(schema(&by_hand).await, schema(&by_command).await);
}

#[tokio::test]
async fn install_brings_the_tables_of_the_original_design_up_to_date() {
    let database = database().await;
    let sql = database.client().await;
    let original = "CREATE SCHEMA app;
        CREATE TABLE app.rxdb_subscription (
            user_id UUID NOT NULL, entity_code VARCHAR(100) NOT NULL, entity_id UUID NOT NULL,
            connection_id VARCHAR(50) NOT NULL, subscribed_at TIMESTAMPTZ NOT NULL DEFAULT now(),
            PRIMARY KEY (user_id, entity_code, entity_id));
        CREATE INDEX idx_rxdb_subscription_entity ON app.rxdb_subscription(entity_code, entity_id);
        INSERT INTO app.rxdb_subscription VALUES (gen_random_uuid(), 'p', gen_random_uuid(), 'c')";
    sql.batch_execute(original).await.expect("created");
    on(&database, &["install"]).await;
    on(&database, &["install"]).await;
    let two_tabs =
        "SELECT app.bulk_subscribe('00000000-0000-0000-0000-000000000001', c, 'p', ARRAY[NULL]::uuid[])
        FROM unnest(ARRAY['a', 'b']) AS c";
    assert_eq!(sql.query(two_tabs, &[]).await.expect("subscribed").len(), 2);
    let rows = sql.query_one("SELECT count(*) FROM app.rxdb_subscription", &[]).await.expect("a number");
    assert_eq!(rows.get::<_, i64>(0), 3);
}

#[tokio::test]
async fn a_schema_of_a_later_version_is_left_alone() {
    let fixture = Fixture::new().await;
    fixture.sql.batch_execute("UPDATE app.tidings_schema SET version = 99").await.expect("changed");
    let exit = entities(&["install", "--database-url", &fixture.database.url]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("of version 99, made by a later tidings"), "{}", exit.stderr);
}

#[tokio::test]
async fn a_table_is_attached_heard_shown_and_detached_by_commands() {
    let database = database().await;
    on(&database, &["install"]).await;
    let sql = database.client().await;
    sql.batch_execute(
        "CREATE TABLE public.todos (id uuid PRIMARY KEY); CREATE TABLE public.numbered (id int)",
    )
    .await
    .expect("tables");
    let attach = ["attach", "public.todos", "--code", "to do", "--key", "id"];
    assert_eq!(on(&database, &attach).await, "changes of public.todos are told as to do\n");
    let mut follower = Follower::new(&node(&database.url)).await;
    let id = Uuid::new_v4();
    sql.execute("INSERT INTO public.todos VALUES ($1)", &[&id]).await.expect("inserted");
    assert_eq!(ids(&follower.drain().await), [id.to_string()]);
    let status = on(&database, &["status"]).await;
    assert!(status.contains("attached tables: 1\n  todos as to do by id\n"), "{status}");
    sql.batch_execute("ALTER TABLE public.todos DISABLE TRIGGER tidings_update").await.expect("disabled");
    let status = on(&database, &["status"]).await;
    assert!(status.contains("(3 of 4 triggers are active: attach it again)"), "{status}");
    assert_eq!(
        on(&database, &["detach", "todos"]).await,
        "changes of public.todos are not told any more\n".replace("public.", "")
    );
    assert_eq!(on(&database, &["detach", "todos"]).await, "changes of todos were not told\n");

    let refused =
        entities(&["attach", "numbered", "--code", "n", "--key", "id", "--database-url", &database.url])
            .await;
    assert_eq!(refused.status.code(), Some(1));
    let says = "tidings: column id of numbered is of type integer, and tidings needs a key of type uuid\n";
    assert_eq!(refused.stderr, says);
}

#[tokio::test]
async fn status_shows_what_is_installed_how_large_the_outbox_is_and_who_reads_it() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let running = Running::start(&node);
    let follower = Follower::new(&node).await;
    tidings_testing::eventually("the node has its lease", async || {
        fixture.number("SELECT count(*) FROM app.tidings_node").await == 1
    })
    .await;
    drop(running);
    let reading = tidings_entities::Source::changed(&follower.outbox, &follower.cursor);
    drop(reading);
    for action in [1, 0] {
        fixture.log(Uuid::new_v4(), action).await;
    }
    let seen = "UPDATE app.tidings_node SET read_snapshot = '1:1:'";
    fixture.sql.batch_execute(seen).await.expect("noted");
    let status = on(&fixture.database, &["status"]).await;
    for line in [
        "schema app of version 1",
        "outbox: 1 changes, the oldest ",
        "log: 1 entries pending",
        "registry: 0 subscriptions",
        "attached tables: 0",
        "nodes: 1",
        "1 changes unread, 0 subscriptions",
    ] {
        assert!(status.contains(line), "{line}: {status}");
    }
}

#[tokio::test]
async fn uninstall_stops_everything_and_keeps_the_log_unless_told_otherwise() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    fixture.log(Uuid::new_v4(), 1).await;
    assert_eq!(
        on(&fixture.database, &["uninstall"]).await,
        "the schema app is removed; app.logging is kept\n"
    );
    let write = "INSERT INTO public.todos DEFAULT VALUES; TRUNCATE public.todos";
    fixture.sql.batch_execute(write).await.expect("the table works as before");
    fixture.log(Uuid::new_v4(), 1).await;
    let left = "SELECT string_agg(c.relname, ',') FROM pg_class AS c WHERE c.relnamespace = 'app'::regnamespace AND c.relkind = 'r'";
    let left: String = fixture.sql.query_one(left, &[]).await.expect("the catalog").get(0);
    assert_eq!(left, "logging");
    let refused = fixture.node().outbox();
    let error = tidings_entities::Source::now(&refused).await.expect_err("not installed").to_string();
    assert!(error.contains("run `tidings entities install`"), "{error}");
    on(&fixture.database, &["uninstall"]).await;
    on(&fixture.database, &["uninstall", "--drop-log"]).await;
    assert_eq!(schema(&fixture.database).await, "");
    on(&fixture.database, &["install"]).await;
}

#[tokio::test]
async fn the_configuration_may_name_the_database_instead_of_the_command_line() {
    let (one, other) = (database().await, database().await);
    let file = |text: String| {
        let mut file = NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("it is ours");
        file
    };
    let single = file(format!("[entities]\ndatabase_url = \"{}\"\n", one.url));
    let path = single.path().to_str().expect("a path in UTF-8");
    let exit = entities(&["install", "--config", path]).await;
    assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);
    let todos = "CREATE TABLE public.todos (id uuid)";
    one.client().await.batch_execute(todos).await.expect("a table");
    for command in [
        &["attach", "todos", "--code", "todo", "--key", "id"][..],
        &["status"],
        &["detach", "todos"],
        &["uninstall"],
    ] {
        let exit = entities(&[command, &["--config", path]].concat()).await;
        assert_eq!(exit.status.code(), Some(0), "{command:?}: {}", exit.stderr);
    }
    let exit =
        Process::run_with(&["entities", "install"], &[("TIDINGS_ENTITIES_DATABASE_URL", &one.url)]).await;
    assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);

    let several = file(format!(
        "[entities]\ndatabase_url = \"{}\"\n[[entities.sources]]\nproject = \"shop\"\ndatabase_url = \"{}\"\n",
        one.url, other.url
    ));
    let path = several.path().to_str().expect("a path in UTF-8");
    let exit = entities(&["install", "--config", path]).await;
    assert!(exit.stderr.contains("several databases: say which with --project"), "{}", exit.stderr);
    let exit = entities(&["install", "--config", path, "--project", "shop"]).await;
    assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);
    assert_ne!(schema(&other).await, "");
    let exit = entities(&["status"]).await;
    assert!(exit.stderr.contains("give --database-url, or --config"), "{}", exit.stderr);
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_or_is_no_url_is_a_clear_error() {
    for (url, says) in [
        ("postgres://127.0.0.1:1/nothing", "cannot connect to the database"),
        ("mysql://127.0.0.1/nothing", "the database URL is not valid"),
        ("postgres://127.0.0.1/x?sslmode=maybe", "sslmode is `maybe`"),
    ] {
        let exit = entities(&["status", "--database-url", url]).await;
        assert_eq!(exit.status.code(), Some(1));
        assert!(exit.stderr.contains(says), "{url}: {}", exit.stderr);
    }
    let empty = database().await;
    let exit = entities(&["status", "--database-url", &empty.url]).await;
    assert!(exit.stderr.contains("run `tidings entities install`"), "{}", exit.stderr);
}
