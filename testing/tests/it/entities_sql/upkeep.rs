//! What is removed from the outbox and marked in the log as time goes by.

use tidings_entities::{ResyncReason, Source};
use tidings_testing::eventually;
use uuid::Uuid;

use super::{AGE, Fixture, Follower, Running, expire, ids, node_with, options};

const OUTBOX: &str = "SELECT count(*) FROM app.change_outbox";

#[tokio::test]
async fn what_is_older_than_the_window_is_removed_and_a_cursor_before_it_has_expired() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    for _ in 0..3 {
        fixture.log(Uuid::new_v4(), 1).await;
    }
    let mut behind = Follower::new(&fixture.node()).await;
    behind.cursor = follower.cursor.clone();
    assert_eq!(follower.drain().await.len(), 3);
    expire(&fixture.database.url).await;
    assert_eq!(fixture.number(OUTBOX).await, 0);
    assert_eq!(behind.lost().await, ResyncReason::CursorExpired);
    let id = Uuid::new_v4();
    fixture.log(id, 1).await;
    assert_eq!(ids(&behind.drain().await), [id.to_string()], "it goes on from there");
}

#[tokio::test]
async fn what_is_younger_than_the_window_stays() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    fixture.log(Uuid::new_v4(), 1).await;
    fixture.sql.batch_execute(AGE).await.expect("time has passed");
    let young = Uuid::new_v4();
    fixture.log(young, 1).await;
    let _running = Running::start(&fixture.node());
    eventually("the old one is removed", async || fixture.number(OUTBOX).await == 1).await;
    let mut next = Follower::new(&fixture.node()).await;
    next.cursor = follower.cursor.clone();
    assert_eq!(follower.lost().await, ResyncReason::CursorExpired);
    let left = fixture.sql.query_one("SELECT entity_id FROM app.change_outbox", &[]).await.expect("one row");
    assert_eq!(left.get::<_, Uuid>(0), young);
}

#[tokio::test]
async fn what_a_live_node_or_the_relay_has_not_read_stays_however_old() {
    let fixture = Fixture::new().await;
    let pins = "INSERT INTO app.tidings_node (node_id, alive_until, read_snapshot)
            VALUES (gen_random_uuid(), now() + interval '1 h', pg_current_snapshot());
        INSERT INTO app.tidings_relay (name, held_until, read_snapshot)
            VALUES ('other', now() + interval '1 h', pg_current_snapshot())";
    fixture.sql.batch_execute(pins).await.expect("written");
    fixture.log(Uuid::new_v4(), 1).await;
    fixture.sql.batch_execute(AGE).await.expect("time has passed");
    for (pin, unpin) in [
        ("a node", "UPDATE app.tidings_node SET alive_until = now() - interval '1 s'"),
        ("a relay", "UPDATE app.tidings_relay SET held_until = now() - interval '1 h'"),
    ] {
        let horizons = "SELECT count(*) FROM app.tidings_horizon WHERE taken_ts > now() - interval '1 min'";
        fixture
            .sql
            .batch_execute("DELETE FROM app.tidings_horizon WHERE taken_ts > now() - interval '1 min'")
            .await
            .expect("removed");
        let running = Running::start(&fixture.node());
        eventually("a round is over", async || fixture.number(horizons).await == 1).await;
        assert_eq!(fixture.number(OUTBOX).await, 1, "{pin} has not read it");
        drop(running);
        fixture.sql.batch_execute(unpin).await.expect("gone");
    }
    let _running = Running::start(&fixture.node());
    eventually("nobody waits for it any more", async || fixture.number(OUTBOX).await == 0).await;
}

#[tokio::test]
async fn a_transaction_that_was_open_when_others_were_removed_is_read_with_a_higher_version() {
    let fixture = Fixture::new().await;
    let id = Uuid::new_v4();
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    super::log(&slow, id, 1).await;
    fixture.log(id, 1).await;
    let mut follower = Follower::new(&fixture.node()).await;
    let told: i64 = fixture.number("SELECT seq FROM app.change_outbox").await;
    expire(&fixture.database.url).await;
    slow.batch_execute("COMMIT").await.expect("committed");
    let read = follower.drain().await;
    assert_eq!(ids(&read), [id.to_string()]);
    assert!(read[0].version > told.unsigned_abs(), "{read:?} after version {told}, which is removed");
}

#[tokio::test]
async fn entries_of_the_log_that_were_read_become_sent_and_views_never() {
    let fixture = Fixture::new().await;
    let unmarked = {
        let mut options = options(&fixture.database.url);
        options.mark_status = false;
        node_with(options)
    };
    let marking = fixture.node();
    let fill = "INSERT INTO app.logging (entity_code, entity_id, action)
        SELECT 'p', gen_random_uuid(), n % 6 FROM generate_series(1, 12000) AS n";
    let reading = async |node: &tidings_postgres::Database| {
        let mut follower = Follower::new(node).await;
        fixture.sql.batch_execute(fill).await.expect("logged");
        assert_eq!(follower.await_changes(10_000).await.len(), 10_000);
        // The reader comes back for more, which says that it has got what it was given.
        follower.outbox.changed(&follower.cursor).await;
        follower
    };
    let pending = "SELECT count(*) FROM app.logging WHERE sync_status = 'pending' AND action <> 0";
    let running = Running::start(&unmarked);
    reading(&unmarked).await;
    drop(running);
    assert_eq!(fixture.number(pending).await, 10_000, "this node does not mark");
    let _running = Running::start(&marking);
    let mut follower = reading(&marking).await;
    eventually("all are marked", async || {
        assert_eq!(follower.drain().await, []);
        follower.outbox.changed(&follower.cursor).await;
        fixture.number(pending).await == 0
    })
    .await;
    let wrong = "SELECT count(*) FROM app.logging
        WHERE (action = 0) <> (sync_status = 'pending') OR (action = 0) <> (sync_processed_ts IS NULL)";
    assert_eq!(fixture.number(wrong).await, 0);
}

#[tokio::test]
async fn what_no_node_has_read_is_not_marked() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let _running = Running::start(&node);
    let mut follower = Follower::new(&node).await;
    follower.outbox.changed(&follower.cursor).await;
    fixture.log(Uuid::new_v4(), 1).await;
    let marked = "SELECT count(*) FROM app.logging WHERE sync_status = 'sent'";
    assert_eq!(fixture.number(marked).await, 0);
    follower.await_changes(1).await;
    eventually("it is marked", async || {
        assert_eq!(follower.drain().await, []);
        follower.outbox.changed(&follower.cursor).await;
        fixture.number(marked).await == 1
    })
    .await;
}
