//! The database fails over to a streaming standby.

use tidings_testing::postgres::{Fsync, Postgres, Stop};

use super::*;

const TABLE: &str = "CREATE TABLE todos (id uuid PRIMARY KEY)";

#[tokio::test]
async fn a_change_after_the_subscribe_is_not_missed_when_a_synchronous_standby_takes_over() {
    fails_over("outbox").await;
}

#[tokio::test]
async fn nor_in_logical_mode_where_the_standby_has_no_slot() {
    fails_over("logical").await;
}

async fn fails_over(mode: &str) {
    let primary = Postgres::start(Fsync::On).await;
    install(&primary.url("postgres")).await;
    connect(&primary.url("postgres")).await.batch_execute(TABLE).await.expect("a table");
    let standby = primary.synchronous_standby().await;
    let (first, second) = (primary.port(), standby.port());
    let url = format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres");
    let attach = ["entities", "attach", "todos", "--code", "todo", "--key", "id", "--mode", mode];
    let attached = Process::run(&[&attach[..], &["--database-url", &url]].concat()).await;
    assert!(attached.status.success(), "{}", attached.stderr);
    let variables = [("TIDINGS_ENTITIES_MODE", mode)];
    let nodes = [super::server(&url, &variables).await, super::server(&url, &variables).await];
    let mut clients = Vec::new();
    for node in &nodes {
        let mut client = client(node).await;
        eventually("the database is read", async || {
            let payload = json!({ "entityCode": "todo", "entityIds": [] });
            client.send("SUBSCRIBE", payload).await;
            client.answer().await["type"] == "SUBSCRIBED"
        })
        .await;
        clients.push(client);
    }
    let insert = async |server: &Postgres, id: Uuid| {
        let sql = connect(&server.url("postgres")).await;
        sql.execute("INSERT INTO todos VALUES ($1)", &[&id]).await.expect("inserted");
    };
    let heard = Uuid::new_v4();
    insert(&primary, heard).await;
    for client in &mut clients {
        assert_eq!(told(client, "todo").await, is(heard, "CREATE"));
    }
    // It is answered, so the standby has it, whether or not a node has read it.
    let last = Uuid::new_v4();
    insert(&primary, last).await;
    primary.stop(Stop::Immediate).await;
    let rows = "SELECT count(*) FROM todos";
    standby.promote().await;
    let sql = connect(&standby.url("postgres")).await;
    // Nobody follows it.
    sql.batch_execute("ALTER SYSTEM RESET synchronous_standby_names").await.expect("set");
    sql.batch_execute("SELECT pg_reload_conf()").await.expect("read again");
    assert_eq!(sql.query_one(rows, &[]).await.expect("a number").get::<_, i64>(0), 2);
    for client in &mut clients {
        loop {
            let message = client.hear().await;
            if message["type"] == "RESYNC" {
                assert_eq!(
                    message["payload"]["reason"], "source-reset",
                    "whoever fetches now sees the last change"
                );
                break;
            }
            assert_eq!(message["payload"]["changes"][0]["entityId"], last.to_string(), "{message}");
        }
    }
    if mode == "logical" {
        let read =
            "SELECT count(*) FROM pg_replication_slots WHERE active AND confirmed_flush_lsn IS NOT NULL";
        eventually("a slot is made and read", async || {
            sql.query_one(read, &[]).await.expect("a number").get::<_, i64>(0) == 1
        })
        .await;
    }
    let after = Uuid::new_v4();
    insert(&standby, after).await;
    for client in &mut clients {
        loop {
            let message = client.hear().await;
            // In logical mode the slot is made anew a moment after the outbox is read again.
            if message["type"] == "RESYNC" {
                continue;
            }
            assert_eq!(message["payload"]["changes"][0]["entityId"], after.to_string(), "{message}");
            break;
        }
    }
}
