//! The table of subscriptions, as nodes write it.

use std::sync::Arc;

use tidings_entities::{ConnectionId, EntityCode, IdForm, Noted, Registry, Subject, TypeStats};
use tidings_postgres::{Database, Directory};
use tidings_testing::eventually;
use tidings_testing::postgres::{Fsync, Postgres, Stop, connect};
use uuid::Uuid;

use super::{Fixture, Running, install, node, node_with, options};

fn connection(name: &str) -> ConnectionId {
    ConnectionId::new(name)
}

fn code(text: &str) -> EntityCode {
    EntityCode::parse(text).expect("a code")
}

fn some(numbers: impl IntoIterator<Item = u128>) -> Subject {
    let id = |number| IdForm::Uuid.parse(&Uuid::from_u128(number).to_string()).expect("a UUID");
    Subject::Ids(numbers.into_iter().map(id).collect())
}

async fn subscribe(directory: &Directory, name: &str, user: &str, kind: &str, subject: Subject) {
    let connection = connection(name);
    directory.note(Noted::Subscribed { connection, user: user.to_owned(), code: code(kind), subject }).await;
}

async fn unsubscribe(directory: &Directory, name: &str, kind: &str, subject: Subject) {
    directory.note(Noted::Unsubscribed { connection: connection(name), code: code(kind), subject }).await;
}

/// The rows as `connection code id`, where `*` is the whole type.
async fn rows(sql: &tokio_postgres::Client) -> Vec<String> {
    let rows = "SELECT connection_id || ' ' || entity_code || ' ' || coalesce(ltrim(replace(entity_id::text, '-', ''), '0'), '*')
        FROM app.rxdb_subscription ORDER BY 1";
    sql.query(rows, &[]).await.expect("the rows").iter().map(|row| row.get(0)).collect()
}

async fn until_rows(sql: &tokio_postgres::Client, expected: &[&str]) {
    let what = format!("the rows are {expected:?}");
    eventually(&what, async || rows(sql).await == expected).await;
}

#[tokio::test]
async fn subscriptions_become_rows_and_go_as_they_end() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let _running = Running::start(&node);
    let directory = node.directory();
    subscribe(&directory, "a", "ada", "project", some([1, 2, 3])).await;
    subscribe(&directory, "a", "ada", "project", some([3])).await;
    subscribe(&directory, "a", "ada", "task", Subject::WholeType).await;
    subscribe(&directory, "b", "ada", "project", some([1])).await;
    let all = ["a project 1", "a project 2", "a project 3", "a task *", "b project 1"];
    until_rows(&fixture.sql, &all).await;
    unsubscribe(&directory, "a", "project", some([2, 9])).await;
    until_rows(&fixture.sql, &["a project 1", "a project 3", "a task *", "b project 1"]).await;
    subscribe(&directory, "a", "ada", "task", some([7])).await;
    until_rows(&fixture.sql, &["a project 1", "a project 3", "a task *", "a task 7", "b project 1"]).await;
    unsubscribe(&directory, "a", "task", Subject::WholeType).await;
    until_rows(&fixture.sql, &["a project 1", "a project 3", "b project 1"]).await;
    directory.note(Noted::UnsubscribedAll { connection: connection("a") }).await;
    until_rows(&fixture.sql, &["b project 1"]).await;
    directory.forget(connection("b"));
    until_rows(&fixture.sql, &[]).await;
}

#[tokio::test]
async fn whatever_was_noted_last_is_what_is_written() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let directory = node.directory();
    // Before anything is written, so that it is written together.
    subscribe(&directory, "a", "ada", "project", some([1, 2])).await;
    unsubscribe(&directory, "a", "project", Subject::WholeType).await;
    subscribe(&directory, "a", "ada", "project", some([2, 3])).await;
    unsubscribe(&directory, "a", "project", some([3])).await;
    subscribe(&directory, "gone", "ada", "project", some([1])).await;
    directory.forget(connection("gone"));
    let _running = Running::start(&node);
    until_rows(&fixture.sql, &["a project 2"]).await;
}

#[tokio::test]
async fn what_is_noted_of_a_connection_a_moment_after_it_was_closed_is_not_written() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let _running = Running::start(&node);
    let directory = node.directory();
    subscribe(&directory, "closed", "ada", "project", some([1])).await;
    directory.forget(connection("closed"));
    directory.forget(connection("never seen"));
    subscribe(&directory, "closed", "ada", "project", some([2])).await;
    subscribe(&directory, "never seen", "ada", "project", some([3])).await;
    subscribe(&directory, "open", "ada", "project", some([4])).await;
    until_rows(&fixture.sql, &["open project 4"]).await;
}

#[tokio::test]
async fn a_user_that_is_not_a_uuid_is_stored_with_a_name_based_one_of_its_project() {
    let fixture = Fixture::new().await;
    let own = Uuid::new_v4();
    let shop = node_with(tidings_postgres::Options::new(&fixture.database.url, "shop", Uuid::new_v4()));
    let _running = Running::start(&shop);
    let directory = shop.directory();
    subscribe(&directory, "a", "ada", "project", some([1])).await;
    subscribe(&directory, "b", &own.to_string(), "project", some([1])).await;
    until_rows(&fixture.sql, &["a project 1", "b project 1"]).await;
    let users = "SELECT user_id FROM app.rxdb_subscription ORDER BY connection_id";
    let users = fixture.sql.query(users, &[]).await.expect("the rows");
    let space = Uuid::new_v5(&Uuid::NAMESPACE_URL, b"tidings:shop");
    let expected = [Uuid::new_v5(&space, b"ada"), own];
    assert_eq!(users.iter().map(|row| row.get(0)).collect::<Vec<Uuid>>(), expected);
    let stats = directory.user_stats("ada").await.expect("an answer").expect("the table has them");
    assert_eq!(stats.into_iter().collect::<Vec<_>>(), [(code("project"), 1)]);
}

#[tokio::test]
async fn statistics_are_those_of_all_nodes() {
    let fixture = Fixture::new().await;
    let (here, there) = (fixture.node(), fixture.node());
    let _running = (Running::start(&here), Running::start(&there));
    subscribe(&here.directory(), "a", "ada", "project", some([1, 2])).await;
    subscribe(&there.directory(), "b", "bob", "project", some([2])).await;
    subscribe(&there.directory(), "b", "bob", "project", Subject::WholeType).await;
    until_rows(&fixture.sql, &["a project 1", "a project 2", "b project *", "b project 2"]).await;
    let stats = here.directory().stats().await.expect("an answer").expect("the table has them");
    let expected = TypeStats { entities: 3, users: 2, subscriptions: 4 };
    assert_eq!(stats.into_iter().collect::<Vec<_>>(), [(code("project"), expected)]);
    let nobody = here.directory().user_stats("carol").await.expect("an answer");
    assert_eq!(nobody, Some(Default::default()), "a user without subscriptions has empty statistics");
}

#[tokio::test]
async fn rows_of_a_node_that_stops_renewing_its_lease_are_removed_by_another_and_no_others() {
    let fixture = Fixture::new().await;
    let (dead, alive) = (fixture.node(), fixture.node());
    let running = Running::start(&dead);
    subscribe(&dead.directory(), "dead", "ada", "project", some(1..=20)).await;
    eventually("they are written", async || rows(&fixture.sql).await.len() == 20).await;
    drop(running);
    let foreign = "INSERT INTO app.rxdb_subscription (user_id, entity_code, connection_id)
            VALUES (gen_random_uuid(), 'project', 'of somebody else');
        UPDATE app.tidings_node SET alive_until = now() - interval '1 s'";
    fixture.sql.batch_execute(foreign).await.expect("time has passed");
    let _running = Running::start(&alive);
    subscribe(&alive.directory(), "alive", "ada", "project", some([1])).await;
    until_rows(&fixture.sql, &["alive project 1", "of somebody else project *"]).await;
}

#[tokio::test]
async fn a_node_that_leaves_takes_its_rows_and_its_lease_with_it() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let running = Running::start(&node);
    subscribe(&node.directory(), "a", "ada", "project", some([1])).await;
    until_rows(&fixture.sql, &["a project 1"]).await;
    drop(running);
    node.leave().await.expect("it leaves");
    assert_eq!(rows(&fixture.sql).await, [""; 0]);
    assert_eq!(fixture.number("SELECT count(*) FROM app.tidings_node").await, 0);
}

#[tokio::test]
async fn a_database_that_comes_back_gets_all_that_was_noted_while_it_was_away() {
    let server = Postgres::start(Fsync::Off).await;
    let url = server.url("postgres");
    install(&url).await;
    let clock = tidings_engine::ManualClock::at(tidings_model::Timestamp::from_millis(1_000_000));
    let rng = Arc::new(tidings_engine::Rng::seeded(1));
    let metrics = tidings_engine::Metrics::new();
    let node = Database::new(options(&url), Arc::new(clock.clone()), rng, &metrics);
    let node = node.map_err(|error| error.to_string()).expect("a valid URL");
    let _running = Running::start(&node);
    let directory = node.directory();
    subscribe(&directory, "a", "ada", "project", some([1])).await;
    subscribe(&directory, "b", "ada", "project", some([1])).await;
    until_rows(&connect(&url).await, &["a project 1", "b project 1"]).await;
    server.stop(Stop::Fast).await;
    // Nobody waits for the database: more than the writer would keep.
    for number in 0..30 {
        subscribe(&directory, "a", "ada", "task", some(number * 10_000..(number + 1) * 10_000)).await;
    }
    unsubscribe(&directory, "a", "task", some(1..300_000)).await;
    directory.forget(connection("b"));
    server.start_again().await;
    let sql = connect(&url).await;
    // Others have removed what this node had.
    sql.batch_execute("DELETE FROM app.tidings_node; DELETE FROM app.rxdb_subscription")
        .await
        .expect("removed");
    eventually("all is there", async || {
        clock.advance(std::time::Duration::from_secs(1));
        tokio::task::yield_now().await;
        rows(&sql).await == ["a project 1", "a task "]
    })
    .await;
}

#[tokio::test]
async fn many_subscriptions_of_many_connections_are_written_together() {
    let fixture = Fixture::new().await;
    let node = node(&fixture.database.url);
    let _running = Running::start(&node);
    let directory = node.directory();
    for number in 0..200 {
        subscribe(&directory, &format!("c{number}"), "ada", "project", some(1..=50)).await;
    }
    eventually("they are written", async || fixture.rows().await == 10_000).await;
    for number in 0..200 {
        directory.forget(connection(&format!("c{number}")));
    }
    eventually("they are removed", async || fixture.rows().await == 0).await;
}
