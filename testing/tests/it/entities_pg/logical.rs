//! Logical mode of real servers: from an SQL statement to the socket, without a trigger.

use tidings_testing::postgres::{Fsync, Postgres, Stop};

use super::*;
use crate::entities_sql::operator;

const TABLE: &str =
    "CREATE TABLE todos (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), text text NOT NULL DEFAULT '')";
const LOGICAL: [(&str, &str); 1] = [("TIDINGS_ENTITIES_MODE", "logical")];

/// A database with a table that is attached by the command.
async fn attached() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.run(TABLE).await;
    let exit = entities(&fixture.database.url, &["attach", "todos", "--code", "todo", "--key", "id"]).await;
    assert_eq!(exit, (Some(0), "changes of todos are told as todo\n".to_owned(), String::new()));
    fixture
}

/// Runs `tidings entities` with a configuration in mode `logical`.
async fn entities(url: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let variables = [LOGICAL[0], ("TIDINGS_ENTITIES_DATABASE_URL", url)];
    let exit = Process::run_with(&[&["entities"], arguments].concat(), &variables).await;
    (exit.status.code(), exit.stdout, exit.stderr)
}

async fn ready(server: &Process) -> Value {
    let answer = http::Client::new().get(server.url("/ready")).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.json().await.expect("JSON")
}

/// Metrics of a server that are not zero, by name.
async fn metric(server: &Process, name: &str) -> f64 {
    let answer = http::Client::new().get(server.url("/metrics")).send().await.expect("an answer");
    let text = answer.text().await.expect("text");
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

#[tokio::test]
async fn the_life_of_a_table_in_logical_mode_from_attach_to_uninstall_on_two_nodes() {
    let fixture = attached().await;
    let url = &fixture.database.url;
    let mut nodes = [fixture.server_with(&LOGICAL).await, fixture.server_with(&LOGICAL).await];
    let mut clients = [client(&nodes[0]).await, client(&nodes[1]).await];
    for client in &mut clients {
        subscribe(client, "todo", &[]).await;
    }
    let id = Uuid::new_v4();
    for (statement, action) in [
        (format!("INSERT INTO todos VALUES ('{id}')"), "CREATE"),
        (format!("UPDATE todos SET text = 'milk' WHERE id = '{id}'"), "UPDATE"),
        (format!("DELETE FROM todos WHERE id = '{id}'"), "DELETE"),
    ] {
        fixture.run(&statement).await;
        for client in &mut clients {
            assert_eq!(told(client, "todo").await, is(id, action));
        }
    }
    let (_, status, _) = entities(url, &["status"]).await;
    assert!(status.contains("todos as todo by id, by logical replication\n"), "{status}");
    assert!(status.contains(": read by a node, "), "{status}");
    let leading = [
        metric(&nodes[0], "tidings_entity_slot_leading").await,
        metric(&nodes[1], "tidings_entity_slot_leading").await,
    ];
    let leader = usize::from(leading[1] == 1.0);
    assert_eq!(leading[leader] + leading[1 - leader], 1.0, "one of them reads the slot");
    let retained = "tidings_entity_slot_retained_bytes";
    eventually("what the slot keeps is shown", async || metric(&nodes[leader], retained).await > 0.0).await;
    assert!(metric(&nodes[leader], "tidings_entity_slot_lag_bytes").await >= 0.0);
    assert_eq!(metric(&nodes[leader], "tidings_entity_slot_changes_total").await, 3.0);

    nodes[leader].kill().await;
    fixture.run(&format!("INSERT INTO todos VALUES ('{id}')")).await;
    fixture.run("UPDATE app.tidings_slot SET held_until = now() - interval '1 s'").await;
    let left = &mut clients[1 - leader];
    assert_eq!(told(left, "todo").await, is(id, "CREATE"), "the other node goes on where the first was");
    fixture.run("TRUNCATE todos").await;
    assert_eq!(left.hear_a("RESYNC").await["reason"], "truncated");

    let detached = entities(url, &["detach", "todos"]).await;
    assert_eq!(detached.1, "changes of todos are not told any more\n", "{}", detached.2);
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(fixture.number(slots).await, 0);
    fixture.run(&format!("INSERT INTO todos VALUES ('{}')", Uuid::new_v4())).await;
    let (_, attached, _) = entities(url, &["attach", "todos", "--code", "todo", "--key", "id"]).await;
    assert_eq!(attached, "changes of todos are told as todo\n");
    fixture.run(&format!("INSERT INTO todos VALUES ('{id}')")).await;
    loop {
        // The node may have been quicker than the command to make the slot.
        let message = left.hear().await;
        if message["type"] == "INVALIDATE" {
            assert_eq!(message["payload"]["changes"][0]["entityId"], id.to_string(), "{message}");
            break;
        }
        assert_eq!(message["type"], "RESYNC");
    }
    let (_, removed, _) = entities(url, &["uninstall"]).await;
    assert_eq!(removed, "the schema app is removed; app.logging is kept\n");
    assert_eq!(fixture.number(slots).await, 0);
}

#[tokio::test]
async fn a_client_that_was_away_is_told_what_it_missed_also_across_a_crash_of_the_database() {
    let database = Postgres::start(Fsync::On).await;
    let url = database.url("postgres");
    install(&url).await;
    connect(&url).await.batch_execute(TABLE).await.expect("a table");
    entities(&url, &["attach", "todos", "--code", "todo", "--key", "id"]).await;
    let mut running = super::server(&url, &LOGICAL).await;
    let mut before = client(&running).await;
    let cursor = subscribe(&mut before, "todo", &[]).await["cursor"].clone();
    running.kill().await;
    let ids: Vec<Uuid> = (0..3).map(|_| Uuid::new_v4()).collect();
    let insert = async |id: Uuid| {
        let sql = connect(&url).await;
        sql.execute("INSERT INTO todos (id) VALUES ($1)", &[&id]).await.expect("inserted");
    };
    insert(ids[0]).await;
    database.restart(Stop::Immediate).await;
    insert(ids[1]).await;
    connect(&url)
        .await
        .batch_execute("UPDATE app.tidings_slot SET held_until = now() - interval '1 s'")
        .await
        .expect("time passes");
    let running = running.restart().await;
    let mut back = client(&running).await;
    back.resume("todo", &[], &cursor).await;
    insert(ids[2]).await;
    let mut heard = std::collections::HashSet::new();
    while heard.len() < ids.len() {
        for (id, action, _) in back.changes("todo").await {
            assert_eq!(action, "CREATE");
            heard.insert(Uuid::parse_str(&id).expect("a UUID"));
        }
    }
    assert_eq!(heard, ids.into_iter().collect());
}

#[tokio::test]
async fn a_database_without_wal_level_logical_is_said_by_ready_and_by_the_command() {
    let database = Postgres::start(Fsync::Off).await;
    let url = database.url("postgres");
    install(&url).await;
    let sql = connect(&url).await;
    sql.batch_execute(TABLE).await.expect("a table");
    sql.batch_execute("ALTER SYSTEM SET wal_level = replica").await.expect("set");
    database.restart(Stop::Fast).await;
    let says = "mode \"logical\" needs a database with wal_level = logical, and wal_level is replica";
    let refused = entities(&url, &["attach", "todos", "--code", "todo", "--key", "id"]).await;
    assert_eq!((refused.0, refused.2), (Some(1), format!("tidings: {says}\n")));
    let server = super::server(&url, &LOGICAL).await;
    let expected = json!({
        "status": "ready", "unavailableSources": 1, "misconfiguredSources": [format!("_default: {says}")],
    });
    eventually("it says what is missing", async || ready(&server).await == expected).await;
    let mut early =
        Client::at(&server.url("/v1/_default/sync"), None).await.expect("a WebSocket").admitted().await;
    let refused = early.refused("SUBSCRIBE", json!({ "entityCode": "todo", "entityIds": [] })).await;
    assert_eq!(refused, "Unavailable", "nobody is promised what cannot be kept");
    connect(&url).await.batch_execute("ALTER SYSTEM RESET wal_level").await.expect("set");
    database.restart(Stop::Fast).await;
    eventually("all is well", async || ready(&server).await == json!({ "status": "ready" })).await;
}

#[tokio::test]
async fn a_transaction_of_a_hundred_thousand_rows_takes_little_memory_and_reaches_the_socket() {
    let fixture = attached().await;
    let server = fixture.server_with(&LOGICAL).await;
    let mut client = client(&server).await;
    let last = Uuid::new_v4();
    subscribe(&mut client, "todo", &[last]).await;
    let first = Uuid::new_v4();
    subscribe(&mut client, "other", &[first]).await;
    fixture.run(&format!("SELECT app.manual_notify('other', '{first}', 1)")).await;
    assert_eq!(told(&mut client, "other").await, is(first, "UPDATE"));
    let before = server.memory();
    let mut most = before;
    // As much text as would not fit, if rows were sent whole or kept.
    fixture
        .run("INSERT INTO todos (text) SELECT repeat(md5(n::text), 50) FROM generate_series(1, 100000) AS n")
        .await;
    fixture.run(&format!("INSERT INTO todos VALUES ('{last}')")).await;
    let told = told(&mut client, "todo");
    tokio::pin!(told);
    let heard = loop {
        tokio::select! {
            heard = &mut told => break heard,
            () = tokio::task::yield_now() => most = most.max(server.memory()),
        }
    };
    assert_eq!(heard, is(last, "CREATE"));
    let grown = most.saturating_sub(before) >> 20;
    assert!(grown < 64, "grew by {grown} MiB, where the rows have 160 MB");
    println!("logical: 100,000 rows of one transaction: memory grew by {grown} MiB");
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn who_asks_for_logical_mode_without_its_database_still_starts_and_hides_the_password() {
    let url = "postgres://a:hunter2@127.0.0.1:1/b";
    let server = super::server(url, &LOGICAL).await;
    eventually("it is unavailable", async || ready(&server).await["unavailableSources"] == 1).await;
    assert!(!ready(&server).await.to_string().contains("hunter2"));
    let limit = [("TIDINGS_ENTITIES_SLOT_RETAINED_LIMIT", "1000")];
    let refused = Process::run_with(&["serve", "--dev"], &limit).await;
    assert!(refused.stderr.contains("must be a whole number from 16777216"), "{}", refused.stderr);
}
