//! The wake of readers, and what their looks cost: one transaction at a time notifies, and the readers find the others'
//! changes by themselves.

use std::future::poll_fn;

use tidings_testing::eventually;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};
use uuid::Uuid;

use super::{Fixture, Follower, Running, ids, log};

/// Listens as a node does, and passes on every notification.
async fn notifications(url: &str) -> (tokio_postgres::Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) = tokio_postgres::connect(url, NoTls).await.expect("the database answers");
    let (told, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = told.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN tidings_outbox").await.expect("it listens");
    (client, heard)
}

#[tokio::test]
async fn only_one_transaction_at_a_time_notifies_and_the_notification_is_empty() {
    let fixture = Fixture::new().await;
    let (listener, mut heard) = notifications(&fixture.database.url).await;
    let first = fixture.database.client().await;
    first.batch_execute("BEGIN").await.expect("begun");
    log(&first, Uuid::new_v4(), 1).await;
    for _ in 0..10 {
        fixture.log(Uuid::new_v4(), 1).await;
    }
    // An answer comes after the notifications before it.
    listener.batch_execute("").await.expect("the database answers");
    assert!(heard.try_recv().is_err(), "the first transaction has the turn");
    first.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(heard.recv().await.as_deref(), Some(""));
    fixture.log(Uuid::new_v4(), 1).await;
    assert_eq!(heard.recv().await.as_deref(), Some(""));
    fixture.log(Uuid::new_v4(), 0).await;
    listener.batch_execute("").await.expect("the database answers");
    assert!(heard.try_recv().is_err(), "a view wakes nobody");
}

#[tokio::test]
async fn a_reader_finds_what_did_not_notify() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let _running = Running::start(&node);
    let mut follower = Follower::new(&node).await;
    let first = fixture.database.client().await;
    first.batch_execute("BEGIN").await.expect("begun");
    log(&first, Uuid::new_v4(), 1).await;
    for _ in 0..5 {
        let id = Uuid::new_v4();
        fixture.log(id, 1).await;
        assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    }
    first.batch_execute("ROLLBACK").await.expect("rolled back");
    assert_eq!(follower.drain().await, []);
}

#[tokio::test]
async fn a_hundred_thousand_rows_in_one_transaction_are_read_in_pages() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    follower.page = 5000;
    let insert = "INSERT INTO app.logging (entity_code, entity_id, action)
        SELECT 'p', gen_random_uuid(), 1 FROM generate_series(1, 100000)";
    fixture.sql.batch_execute(insert).await.expect("logged");
    let (mut count, mut pages) = (0, 0);
    eventually("all are read", async || {
        let (entries, more) = follower.read().await;
        assert!(entries.len() <= 5000);
        count += entries.len();
        pages += 1;
        !more
    })
    .await;
    assert_eq!((count, pages), (100_000, 21), "twenty pages, and a look at what came meanwhile");
}

#[tokio::test]
async fn no_look_walks_through_the_whole_outbox_also_without_statistics_of_the_table() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let mut follower = Follower::new(&node).await;
    follower.page = 100;
    // Statements are planned, and plans kept, while the table is empty.
    for _ in 0..10 {
        follower.drain().await;
    }
    let slow = fixture.database.client().await;
    let id = Uuid::new_v4();
    slow.batch_execute("BEGIN").await.expect("begun");
    log(&slow, id, 1).await;
    let fill = "INSERT INTO app.logging (entity_code, entity_id, action)
        SELECT 'p', gen_random_uuid(), 1 FROM generate_series(1, 20000)";
    fixture.sql.batch_execute(fill).await.expect("logged");
    fixture.log(id, 1).await;
    assert_eq!(follower.drain().await.len(), 20_001);
    slow.batch_execute("COMMIT").await.expect("committed");
    for _ in 0..10 {
        follower.drain().await;
        fixture.log(Uuid::new_v4(), 1).await;
    }
    fixture.sql.batch_execute(super::AGE).await.expect("time has passed");
    let running = Running::start(&node);
    let trimmed = "SELECT trimmed_seq FROM app.tidings_schema";
    eventually("all are removed", async || fixture.number(trimmed).await >= 20_000).await;
    drop((follower, running, node));
    // A session tells what it has done when it ends.
    let others = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'tidings'";
    eventually("the sessions have ended", async || fixture.number(others).await == 0).await;
    let walks = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'change_outbox'";
    let rows = fixture.number(walks).await;
    assert_eq!(rows, 0, "rows that were read one after the other");
}
