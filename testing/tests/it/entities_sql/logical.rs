//! Logical mode: a replication slot that one node reads, and what becomes of it.

use std::collections::{HashMap, HashSet};

use tidings_entities::{Action, Change, EntityCode, Entry, Read, ResyncReason, Source, SourceError};
use tidings_postgres::{Capture, Database};
use tidings_testing::eventually;
use tidings_testing::postgres::{Fsync, Postgres, Stop, connect};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Fixture, Follower, Running, ids, install, log, node_with, operator, options};

/// A node that reads the slot if no other does.
pub fn logical(url: &str) -> Database {
    logical_up_to(url, 4 << 30)
}

fn logical_up_to(url: &str, slot_retained_limit: i64) -> Database {
    let mut options = options(url);
    (options.capture, options.slot_retained_limit) = (Capture::Log, slot_retained_limit);
    node_with(options)
}

async fn publish(url: &str, table: &str, key: &str) -> Result<(), String> {
    let code = EntityCode::parse("todo").expect("a code");
    operator(url).await.publish(table, &code, key).await.map_err(|error| error.to_string())
}

const TODOS: &str = "CREATE TABLE public.todos (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), text text NOT NULL DEFAULT '')";

/// A database with an attached table.
async fn attached() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.sql.batch_execute(TODOS).await.expect("a table");
    publish(&fixture.database.url, "public.todos", "id").await.expect("attached");
    fixture
}

/// The same in a server of its own.
async fn attached_apart(fsync: Fsync) -> (Postgres, String) {
    let server = Postgres::start(fsync).await;
    let url = server.url("postgres");
    install(&url).await;
    connect(&url).await.batch_execute(TODOS).await.expect("a table");
    publish(&url, "public.todos", "id").await.expect("attached");
    (server, url)
}

async fn insert(sql: &Client) -> Uuid {
    let row = sql.query_one("INSERT INTO public.todos DEFAULT VALUES RETURNING id", &[]).await;
    row.expect("inserted").get(0)
}

const SLOT: &str = "FROM pg_replication_slots WHERE database = current_database()";

/// Drops the slot as somebody does who does not know what it is for.
async fn lose_slot(sql: &Client) {
    eventually("the slot is dropped", async || {
        let end = format!("SELECT pg_terminate_backend(active_pid) {SLOT} AND active");
        sql.batch_execute(&end).await.expect("ended");
        sql.batch_execute(&format!("SELECT pg_drop_replication_slot(slot_name) {SLOT}")).await.is_ok()
    })
    .await;
}

/// A reader of the outbox, also before a node has begun to work.
async fn follower(url: &str) -> Follower {
    Follower::new(&super::node(url)).await
}

/// Waits until a reader is told that everything before counts for nothing.
async fn until_reset(follower: &mut Follower) {
    eventually("everybody is told to fetch again", async || {
        match follower.outbox.read(&follower.cursor, 100).await {
            Ok(Read::Lost { reason, cursor }) => {
                assert_eq!(reason, ResyncReason::SourceReset);
                follower.cursor = cursor;
                true
            }
            Ok(Read::Entries { .. }) | Err(_) => false,
        }
    })
    .await;
}

fn kinds(changes: &[Change]) -> Vec<(Action, String)> {
    changes.iter().map(|change| (change.action, change.id.to_string())).collect()
}

#[tokio::test]
async fn changes_of_rows_and_keys_come_from_the_log_of_the_database_without_a_trigger() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    let _running = Running::start(&node);
    let [one, two] = [Uuid::new_v4(), Uuid::new_v4()];
    for write in [
        &format!("INSERT INTO todos VALUES ('{one}')"),
        "UPDATE todos SET text = 'milk'",
        &format!("UPDATE todos SET id = '{two}'"),
        "BEGIN; DELETE FROM todos; ROLLBACK",
        "DELETE FROM todos",
    ] {
        fixture.sql.batch_execute(write).await.expect("written");
    }
    let (create, update, delete) = (Action::Create, Action::Update, Action::Delete);
    let read = follower.await_changes(5).await;
    let (first, second) = (one.to_string(), two.to_string());
    let expected =
        [(create, &first), (update, &first), (delete, &first), (create, &second), (delete, &second)];
    assert_eq!(kinds(&read), expected.map(|(action, id)| (action, id.clone())));
    assert!(read.is_sorted_by(|one, next| one.version < next.version), "versions rise: {read:?}");
    assert!(read.iter().all(|change| change.code.as_str() == "todo"));
    assert_eq!(fixture.number("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'todos'::regclass").await, 0);
    // What the application logs itself comes as ever.
    let logged = Uuid::new_v4();
    fixture.log(logged, 1).await;
    assert_eq!(ids(&follower.await_changes(1).await), [logged.to_string()]);
    let confirmed =
        format!("SELECT count(*) {SLOT} AND confirmed_flush_lsn >= (SELECT position FROM app.tidings_slot)");
    eventually("the slot is told what is stored", async || fixture.number(&confirmed).await == 1).await;
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn an_idle_database_may_forget_its_log() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let _running = Running::start(&node);
    // Nothing of it concerns an attached table.
    fixture.sql.batch_execute("CREATE TABLE other AS SELECT 1 AS n").await.expect("written");
    let end: String =
        fixture.sql.query_one("SELECT pg_current_wal_lsn()::text", &[]).await.expect("a position").get(0);
    let confirmed = format!("SELECT count(*) {SLOT} AND confirmed_flush_lsn >= '{end}'");
    eventually("it is confirmed without a change", async || fixture.number(&confirmed).await == 1).await;
    assert_eq!(fixture.number("SELECT count(*) FROM app.change_outbox").await, 0);
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn a_truncate_and_tables_with_other_replica_identities_are_told() {
    let fixture = Fixture::new().await;
    let url = &fixture.database.url;
    let tables = "CREATE TABLE public.composite (tenant int, id uuid, PRIMARY KEY (tenant, id));
        CREATE TABLE public.whole (n int, id uuid); ALTER TABLE whole REPLICA IDENTITY FULL;
        CREATE TABLE public.indexed (n int PRIMARY KEY, id uuid NOT NULL UNIQUE, big text);
        ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_id_key;
        CREATE TABLE public.parts (id uuid PRIMARY KEY) PARTITION BY HASH (id);
        CREATE TABLE public.part PARTITION OF parts FOR VALUES WITH (MODULUS 1, REMAINDER 0)";
    fixture.sql.batch_execute(tables).await.expect("tables");
    let node = logical(url);
    let _running = Running::start(&node);
    for table in ["composite", "whole", "indexed", "parts"] {
        publish(url, table, "id").await.expect(table);
    }
    // The first is told anew, as the node may have been quicker than the command.
    let mut follower = follower(url).await;
    let (create, update, delete) = (Action::Create, Action::Update, Action::Delete);
    for (table, columns, touch) in [
        ("composite", "tenant, id", "tenant = 2"),
        ("whole", "n, id", "n = 2"),
        ("indexed", "n, id", "n = 2, big = repeat(md5(random()::text), 1000)"),
        ("parts", "id", "id = id"),
    ] {
        let id = Uuid::new_v4();
        let values = if columns == "id" { format!("'{id}'") } else { format!("1, '{id}'") };
        let write = format!(
            "INSERT INTO {table} ({columns}) VALUES ({values}); UPDATE {table} SET {touch}; DELETE FROM {table}"
        );
        fixture.sql.batch_execute(&write).await.expect(table);
        let id = id.to_string();
        let told = kinds(&follower.await_changes(3).await);
        assert_eq!(told, [(create, id.clone()), (update, id.clone()), (delete, id)], "{table}");
    }
    fixture.sql.batch_execute("TRUNCATE composite").await.expect("emptied");
    eventually("the truncate is told", async || {
        let (entries, _) = follower.read().await;
        entries.iter().any(|entry| matches!(entry, Entry::Truncated(code) if code.as_str() == "todo"))
    })
    .await;
    for table in ["composite", "whole", "indexed", "parts"] {
        operator(url).await.detach(table).await.expect("detached");
    }
    assert_eq!(
        fixture.number(&format!("SELECT count(*) {SLOT}")).await,
        0,
        "with the last table the slot is gone"
    );
}

#[tokio::test]
async fn a_table_that_says_nothing_of_its_deleted_rows_is_refused_with_what_to_do() {
    let fixture = Fixture::new().await;
    let tables = "CREATE TABLE keyless (id uuid); CREATE TABLE apart (n int PRIMARY KEY, id uuid UNIQUE);
        CREATE UNLOGGED TABLE unlogged (id uuid PRIMARY KEY); CREATE TABLE numbered (id int PRIMARY KEY);
        CREATE TABLE nothing (id uuid PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING";
    fixture.sql.batch_execute(tables).await.expect("tables");
    for (table, says) in [
        (
            "keyless",
            "keyless has no primary key, so nobody would know which of its rows was deleted (add a primary key",
        ),
        ("apart", "column id of apart is not in the replica identity of the table"),
        ("unlogged", "unlogged is temporary or unlogged"),
        ("numbered", "column id of numbered is of type integer, and tidings needs a key of type uuid"),
        ("nothing", "nothing has no primary key"),
        ("missing", "there is no table missing"),
    ] {
        let refused = publish(&fixture.database.url, table, "id").await.expect_err(table);
        assert!(refused.contains(says), "{refused}");
    }
    let left = "SELECT count(*) FROM app.tidings_attachment";
    assert_eq!(fixture.number(left).await, 0);
    assert_eq!(fixture.number(&format!("SELECT count(*) {SLOT}")).await, 0);
}

#[tokio::test]
async fn a_database_that_cannot_decode_its_log_is_said_by_the_command_and_by_the_source() {
    let (server, url) = attached_apart(Fsync::Off).await;
    let node = logical(&url);
    operator(&url).await.detach("todos").await.expect("detached");
    connect(&url).await.batch_execute("ALTER SYSTEM SET wal_level = replica").await.expect("set");
    server.restart(Stop::Fast).await;
    let refused = publish(&url, "todos", "id").await.expect_err("refused");
    let says = "mode \"logical\" needs a database with wal_level = logical, and wal_level is replica";
    assert!(refused.contains(says), "{refused}");
    let _running = Running::start(&node);
    let outbox = node.outbox();
    eventually("the source says so", async || match outbox.now().await {
        Err(SourceError::Misconfigured(text)) => text == says,
        Ok(_) | Err(_) => false,
    })
    .await;
    connect(&url).await.batch_execute("ALTER SYSTEM RESET wal_level").await.expect("set");
    server.restart(Stop::Fast).await;
    eventually("it is fine", async || outbox.now().await.is_ok()).await;
}

#[tokio::test]
async fn a_role_without_the_right_and_one_with_a_password() {
    let (server, url) = attached_apart(Fsync::Off).await;
    let sql = connect(&url).await;
    sql.batch_execute(
        "CREATE ROLE reader LOGIN PASSWORD 'se cret'; GRANT USAGE ON SCHEMA app TO reader;
         GRANT ALL ON ALL TABLES IN SCHEMA app TO reader; GRANT EXECUTE ON FUNCTION pg_control_system() TO reader;
         GRANT ALL ON ALL SEQUENCES IN SCHEMA app TO reader",
    )
    .await
    .expect("a role");
    server.demand_password("reader").await;
    let password_url = server.url_as("reader:se%20cret", "postgres");
    let node = logical(&password_url);
    let _running = Running::start(&node);
    let outbox = node.outbox();
    eventually("it says which right is missing", async || match outbox.now().await {
        Err(SourceError::Misconfigured(text)) => text.contains("attribute REPLICATION"),
        Ok(_) | Err(_) => false,
    })
    .await;
    sql.batch_execute("ALTER ROLE reader REPLICATION").await.expect("granted");
    eventually("it is fine", async || outbox.now().await.is_ok()).await;
    let mut follower = follower(&url).await;
    let id = insert(&sql).await;
    let told = ids(&follower.await_changes(1).await);
    assert_eq!(told, [id.to_string()], "logged in by SCRAM");
}

#[tokio::test]
async fn one_node_reads_the_slot_and_another_goes_on_where_it_was() {
    let fixture = attached().await;
    let nodes = [logical(&fixture.database.url), logical(&fixture.database.url)];
    let mut followers = [follower(&fixture.database.url).await, follower(&fixture.database.url).await];
    let mut expected = Vec::new();
    for round in 0..4 {
        let (dies, lives) = (round % 2, (round + 1) % 2);
        let running = Running::start(&nodes[dies]);
        expected.push(insert(&fixture.sql).await.to_string());
        for follower in &mut followers {
            assert_eq!(
                ids(&follower.await_changes(1).await),
                expected[expected.len() - 1..],
                "both nodes hear"
            );
        }
        let other = Running::start(&nodes[lives]);
        drop(running);
        expected.push(insert(&fixture.sql).await.to_string());
        fixture
            .sql
            .batch_execute("UPDATE app.tidings_slot SET held_until = now() - interval '1 s'")
            .await
            .expect("time passes");
        for follower in &mut followers {
            assert_eq!(ids(&follower.await_changes(1).await), expected[expected.len() - 1..]);
        }
        drop(other);
        fixture
            .sql
            .batch_execute("UPDATE app.tidings_slot SET held_until = now() - interval '1 s'")
            .await
            .expect("time passes");
    }
    let told = "SELECT count(*) FROM app.change_outbox";
    assert_eq!(fixture.number(told).await, 8, "each change once");
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn a_node_whose_lease_was_taken_stores_nothing_more() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    let _running = Running::start(&node);
    let first = insert(&fixture.sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [first.to_string()]);
    let taken = "UPDATE app.tidings_slot SET holder = gen_random_uuid(), term = term + 1, held_until = now() + interval '1 h'";
    fixture.sql.batch_execute(taken).await.expect("another node");
    let second = insert(&fixture.sql).await;
    let inactive = format!("SELECT count(*) {SLOT} AND NOT active");
    eventually("the node has let go of the slot", async || fixture.number(&inactive).await == 1).await;
    assert_eq!(follower.drain().await, []);
    fixture.sql.batch_execute("UPDATE app.tidings_slot SET holder = NULL").await.expect("it is gone");
    assert_eq!(ids(&follower.await_changes(1).await), [second.to_string()]);
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn nothing_is_missed_when_the_database_restarts_or_crashes_while_its_log_is_read() {
    let (server, url) = attached_apart(Fsync::On).await;
    let node = logical(&url);
    let _running = Running::start(&node);
    let mut follower = follower(&url).await;
    let mut versions: HashMap<String, u64> = HashMap::new();
    for how in [Stop::Fast, Stop::Immediate, Stop::Fast] {
        let before = insert(&connect(&url).await).await;
        server.restart(how).await;
        let after = insert(&connect(&url).await).await;
        let expected = HashSet::from([before.to_string(), after.to_string()]);
        eventually("both are told", async || {
            match follower.outbox.read(&follower.cursor, 100).await {
                Ok(Read::Entries { entries, cursor, .. }) => {
                    follower.cursor = cursor;
                    for change in entries.into_iter().map(super::changed) {
                        let known = versions.entry(change.id.to_string()).or_default();
                        assert!(change.version >= *known, "{change:?} was told with version {known}");
                        *known = change.version;
                    }
                }
                Ok(Read::Lost { reason, .. }) => panic!("lost: {reason:?}"),
                Err(_) => {}
            }
            expected.iter().all(|id| versions.contains_key(id))
        })
        .await;
    }
    let rows = "SELECT count(*) FROM app.change_outbox";
    let count: i64 = connect(&url).await.query_one(rows, &[]).await.expect("a number").get(0);
    assert_eq!(count, 6, "what the slot has sent twice is known by its position");
}

#[tokio::test]
async fn a_slot_that_was_dropped_is_made_anew_and_everybody_fetches_again() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    {
        let _running = Running::start(&node);
        insert(&fixture.sql).await;
        follower.await_changes(1).await;
        lose_slot(&fixture.sql).await;
        until_reset(&mut follower).await;
        let id = insert(&fixture.sql).await;
        assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    }
    // And while no node is there.
    lose_slot(&fixture.sql).await;
    insert(&fixture.sql).await;
    let _running = Running::start(&node);
    fixture
        .sql
        .batch_execute("UPDATE app.tidings_slot SET held_until = now() - interval '1 s'")
        .await
        .expect("time passes");
    until_reset(&mut follower).await;
    let id = insert(&fixture.sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn a_slot_whose_maker_died_before_it_told_anybody_is_not_taken_for_the_one_before() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    {
        let _running = Running::start(&node);
        insert(&fixture.sql).await;
        follower.await_changes(1).await;
    }
    lose_slot(&fixture.sql).await;
    insert(&fixture.sql).await;
    let died = "UPDATE app.tidings_slot SET is_whole = false, held_until = now() - interval '1 s'";
    fixture.sql.batch_execute(died).await.expect("it began");
    let made = "SELECT pg_create_logical_replication_slot('tidings_' || oid, 'pgoutput') FROM pg_database
        WHERE datname = current_database()";
    fixture.sql.batch_execute(made).await.expect("and made the slot");
    let _running = Running::start(&node);
    until_reset(&mut follower).await;
    let id = insert(&fixture.sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn a_publication_that_was_dropped_is_made_anew_with_the_slot() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    let _running = Running::start(&node);
    insert(&fixture.sql).await;
    follower.await_changes(1).await;
    fixture.sql.batch_execute("DROP PUBLICATION tidings_changes").await.expect("dropped");
    insert(&fixture.sql).await;
    until_reset(&mut follower).await;
    let id = insert(&fixture.sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

/// Writes more into the log of the database than the least limit is.
const MUCH: &str =
    "CREATE TABLE much AS SELECT repeat(md5(n::text), 60) AS text FROM generate_series(1, 12000) AS n";

#[tokio::test]
async fn a_slot_that_keeps_more_than_the_limit_is_made_anew_rather_than_filling_the_disk() {
    let (_server, url) = attached_apart(Fsync::Off).await;
    let sql = connect(&url).await;
    let open = connect(&url).await;
    let node = logical_up_to(&url, 16 << 20);
    let mut follower = follower(&url).await;
    let _running = Running::start(&node);
    insert(&sql).await;
    follower.await_changes(1).await;
    // An open transaction keeps the database from forgetting its log.
    open.batch_execute("BEGIN; INSERT INTO todos DEFAULT VALUES").await.expect("begun");
    sql.batch_execute(MUCH).await.expect("written");
    let slots = format!("SELECT count(*) {SLOT} AND confirmed_flush_lsn IS NOT NULL");
    let count = async |query: &str| sql.query_one(query, &[]).await.expect("a number").get::<_, i64>(0);
    eventually("the slot is dropped", async || count(&slots).await == 0).await;
    insert(&sql).await;
    open.batch_execute("COMMIT").await.expect("committed");
    until_reset(&mut follower).await;
    let id = insert(&sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    assert_eq!(count(&slots).await, 1);
}

#[tokio::test]
async fn a_slot_that_is_left_by_a_change_of_the_mode_does_not_fill_the_disk_either() {
    let (_server, url) = attached_apart(Fsync::Off).await;
    let sql = connect(&url).await;
    sql.batch_execute(MUCH).await.expect("written");
    let mut options = options(&url);
    options.slot_retained_limit = 16 << 20;
    let _running = Running::start(&node_with(options));
    let slots = format!("SELECT count(*) {SLOT}");
    let count = async || sql.query_one(&slots, &[]).await.expect("a number").get::<_, i64>(0);
    eventually("the slot is dropped", async || count().await == 0).await;
}

#[tokio::test]
async fn a_hundred_thousand_rows_of_one_transaction_come_in_parts_and_all_at_once() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let mut follower = follower(&fixture.database.url).await;
    let _running = Running::start(&node);
    let rows = "INSERT INTO todos (text) SELECT 'x' FROM generate_series(1, 100000)";
    fixture.sql.batch_execute(rows).await.expect("written");
    let last = insert(&fixture.sql).await;
    let read = follower.await_changes(100_001).await;
    assert_eq!(
        read.last().map(|change| change.id.to_string()),
        Some(last.to_string()),
        "after what was before it"
    );
    assert_eq!(ids(&read).into_iter().collect::<HashSet<_>>().len(), 100_001);
    let transactions = "SELECT count(DISTINCT xid) FROM app.change_outbox";
    assert!(fixture.number(transactions).await <= 2, "a transaction is told as a whole");
    operator(&fixture.database.url).await.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn a_table_is_captured_in_one_mode_at_a_time() {
    let fixture = attached().await;
    let url = &fixture.database.url;
    let node = logical(url);
    let _running = Running::start(&node);
    let mut follower = follower(url).await;
    insert(&fixture.sql).await;
    follower.await_changes(1).await;
    let code = EntityCode::parse("todo").expect("a code");
    let operator = operator(url).await;
    operator.attach("todos", &code, "id").await.expect("by triggers");
    let id = insert(&fixture.sql).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    operator.publish("todos", &code, "id").await.expect("by the log");
    let id = insert(&fixture.sql).await;
    eventually("it is told", async || {
        follower.outbox.read(&follower.cursor, 100).await.is_ok_and(|read| match read {
            Read::Entries { entries, cursor, .. } => {
                follower.cursor = cursor;
                let told: Vec<_> = entries.into_iter().map(super::changed).collect();
                ids(&told).contains(&id.to_string())
            }
            Read::Lost { cursor, .. } => {
                follower.cursor = cursor;
                false
            }
        })
    })
    .await;
    let twice = "SELECT count(*) FROM (SELECT FROM app.change_outbox GROUP BY entity_id HAVING count(*) > 1) AS twice";
    assert_eq!(fixture.number(twice).await, 0);
    operator.detach("todos").await.expect("detached");
}

#[tokio::test]
async fn uninstall_takes_the_slot_and_the_publication_also_from_a_node_that_runs() {
    let fixture = attached().await;
    let node = logical(&fixture.database.url);
    let _running = Running::start(&node);
    let mut follower = follower(&fixture.database.url).await;
    insert(&fixture.sql).await;
    follower.await_changes(1).await;
    let operator = operator(&fixture.database.url).await;
    operator.uninstall(tidings_postgres::schema::Log::Keep).await.expect("removed");
    let left = format!("SELECT (SELECT count(*) {SLOT}) + (SELECT count(*) FROM pg_publication)");
    assert_eq!(fixture.number(&left).await, 0);
    fixture.sql.batch_execute("INSERT INTO todos DEFAULT VALUES").await.expect("the table works as before");
    let error = node.outbox().now().await.expect_err("it is gone").to_string();
    assert!(error.contains("run `tidings entities install`"), "{error}");
    assert_eq!(fixture.number(&left).await, 0, "and the node does not make it again");
    log(&fixture.sql, Uuid::new_v4(), 1).await;
}
