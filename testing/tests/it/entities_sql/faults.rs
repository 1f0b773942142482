//! The database away, restarted, crashed, replaced or back in time.

use std::collections::HashMap;
use std::sync::Arc;

use tidings_engine::{ManualClock, Metrics, Rng};
use tidings_entities::{ResyncReason, Source, SourceError};
use tidings_model::Timestamp;
use tidings_postgres::Database;
use tidings_testing::postgres::{Fsync, Postgres, Stop, connect};
use tidings_testing::{eventually, until};
use uuid::Uuid;

use super::{Fixture, Follower, Running, ids, install, log, node, options};

#[tokio::test]
async fn a_reader_is_woken_by_a_commit_without_a_timer() {
    let fixture = Fixture::new().await;
    // Its clock stands still, so that only the database can wake it.
    let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
    let rng = Arc::new(Rng::seeded(1));
    let node = Database::new(options(&fixture.database.url), Arc::new(clock), rng, &Metrics::new());
    let node = node.map_err(|error| error.to_string()).expect("a valid URL");
    let _running = Running::start(&node);
    let mut follower = Follower::new(&node).await;
    // The first wake is that of the listener itself.
    follower.outbox.changed(&follower.cursor).await;
    assert_eq!(follower.drain().await, []);
    let id = Uuid::new_v4();
    fixture.log(id, 1).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
}

#[tokio::test]
async fn a_reader_whose_listening_connection_was_killed_misses_nothing_and_listens_again() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let _running = Running::start(&node);
    let mut follower = Follower::new(&node).await;
    let listeners = "SELECT pid FROM pg_stat_activity
        WHERE datname = current_database() AND query = 'LISTEN tidings_outbox' AND pid <> pg_backend_pid()";
    let mut killed = Vec::new();
    for _ in 0..3 {
        eventually("a new connection listens", async || {
            let found = fixture.sql.query(listeners, &[]).await.expect("the server tells");
            let pids: Vec<i32> = found.iter().map(|row| row.get(0)).collect();
            match pids.first().filter(|pid| !killed.contains(*pid)) {
                Some(pid) => {
                    let kill = "SELECT pg_terminate_backend($1)";
                    fixture.sql.execute(kill, &[pid]).await.expect("killed");
                    killed.push(*pid);
                    true
                }
                None => false,
            }
        })
        .await;
        let id = Uuid::new_v4();
        fixture.log(id, 1).await;
        assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
    }
}

#[tokio::test]
async fn a_node_starts_while_its_database_is_away_and_works_when_it_comes() {
    let server = Postgres::start(Fsync::Off).await;
    let url = server.url("postgres");
    install(&url).await;
    server.stop(Stop::Fast).await;
    let node = node(&url);
    let _running = Running::start(&node);
    let away = node.outbox().now().await.expect_err("nobody answers");
    assert!(matches!(&away, SourceError::Unavailable(text) if text.contains("connect")), "{away}");
    server.start_again().await;
    eventually("the database is found", async || node.outbox().now().await.is_ok()).await;
    let mut follower = Follower::new(&node).await;
    let id = Uuid::new_v4();
    log(&connect(&url).await, id, 1).await;
    assert_eq!(ids(&follower.await_changes(1).await), [id.to_string()]);
}

#[tokio::test]
async fn nothing_is_missed_when_the_database_restarts_or_crashes() {
    let server = Postgres::start(Fsync::On).await;
    let url = server.url("postgres");
    install(&url).await;
    let node = node(&url);
    let _running = Running::start(&node);
    let mut follower = Follower::new(&node).await;
    for how in [Stop::Fast, Stop::Immediate] {
        let before = Uuid::new_v4();
        log(&connect(&url).await, before, 1).await;
        server.restart(how).await;
        let after = Uuid::new_v4();
        log(&connect(&url).await, after, 1).await;
        let expected = [before.to_string(), after.to_string()];
        let mut read = Vec::new();
        eventually("both are read", async || {
            if let Ok(tidings_entities::Read::Entries { entries, cursor, .. }) =
                follower.outbox.read(&follower.cursor, 100).await
            {
                follower.cursor = cursor;
                read.extend(ids(&entries.into_iter().map(super::changed).collect::<Vec<_>>()));
            }
            expected.iter().all(|id| read.contains(id))
        })
        .await;
    }
}

#[tokio::test]
async fn numbers_of_transactions_that_a_crash_has_freed_are_read_again() {
    let server = Postgres::start(Fsync::On).await;
    let url = server.url("postgres");
    install(&url).await;
    let sql = connect(&url).await;
    let mut follower = Follower::new(&node(&url)).await;
    // A transaction that is rolled back leaves nothing on disk, so its number is free after a crash.
    sql.batch_execute("BEGIN; SELECT pg_current_xact_id(); ROLLBACK").await.expect("rolled back");
    assert_eq!(follower.drain().await, []);
    server.restart(Stop::Immediate).await;
    let sql = connect(&url).await;
    let mut expected = Vec::new();
    for _ in 0..5 {
        let id = Uuid::new_v4();
        log(&sql, id, 1).await;
        expected.push(id.to_string());
    }
    let next = node(&url).outbox().read(&follower.cursor, 100).await.expect("the database answers");
    match next {
        tidings_entities::Read::Entries { entries, .. } => {
            let read: Vec<_> = entries.into_iter().map(super::changed).collect();
            assert_eq!(ids(&read), expected);
        }
        // The numbers are not used up to the old end yet.
        tidings_entities::Read::Lost { reason, .. } => assert_eq!(reason, ResyncReason::SourceReset),
    }
}

#[tokio::test]
async fn what_is_read_again_after_a_crash_takes_no_version_back() {
    let server = Postgres::start(Fsync::On).await;
    let url = server.url("postgres");
    install(&url).await;
    let mut follower = Follower::new(&node(&url)).await;
    follower.page = 10;
    let sql = connect(&url).await;
    let entities = [Uuid::new_v4(), Uuid::new_v4()];
    for round in 0..30 {
        // Among them changes of access, of which none is left out.
        log(&sql, entities[round % 2], if round == 6 { 2 } else { 1 }).await;
    }
    let mut told = HashMap::new();
    for change in follower.drain().await {
        told.insert(change.id, change.version);
    }
    let unread = Uuid::new_v4();
    log(&sql, unread, 4).await;
    server.restart(Stop::Immediate).await;
    follower.outbox = node(&url).outbox();
    let read = follower.drain().await;
    assert!(read.len() < 10, "of each entity the last change: {read:?}");
    for change in &read {
        let known = told.get(&change.id).copied().unwrap_or_default();
        assert!(change.version >= known, "{change:?} was told up to version {known}");
    }
    assert!(ids(&read).contains(&unread.to_string()));
    assert!(read.iter().any(|change| change.reason.is_some()), "{read:?}");
}

#[tokio::test]
async fn a_database_that_went_back_in_time_is_a_reset() {
    let server = Postgres::start(Fsync::Off).await;
    let url = server.url("postgres");
    install(&url).await;
    server.stop(Stop::Fast).await;
    server.keep_copy().await;
    server.start_again().await;
    let sql = connect(&url).await;
    for _ in 0..10 {
        log(&sql, Uuid::new_v4(), 1).await;
    }
    let mut follower = Follower::new(&node(&url)).await;
    server.stop(Stop::Fast).await;
    server.go_back().await;
    server.start_again().await;
    follower.outbox = node(&url).outbox();
    assert_eq!(follower.lost().await, ResyncReason::SourceReset);
    let id = Uuid::new_v4();
    log(&connect(&url).await, id, 1).await;
    assert_eq!(ids(&follower.drain().await), [id.to_string()], "it goes on from there");
}

#[tokio::test]
async fn another_database_and_another_installation_are_a_reset() {
    let (one, other) = (Fixture::new().await, Fixture::new().await);
    let mut follower = Follower::new(&one.node()).await;
    let kept = follower.cursor.clone();
    follower.outbox = other.node().outbox();
    assert_eq!(follower.lost().await, ResyncReason::SourceReset);
    follower.outbox = one.node().outbox();
    follower.cursor = kept;
    let again = "UPDATE app.tidings_schema SET installation = gen_random_uuid()";
    one.sql.batch_execute(again).await.expect("another installation");
    assert_eq!(follower.lost().await, ResyncReason::SourceReset);
}

#[tokio::test]
async fn a_schema_that_somebody_has_damaged_is_an_error() {
    let fixture = Fixture::new().await;
    let follower = Follower::new(&fixture.node()).await;
    fixture.log(Uuid::new_v4(), 1).await;
    for damage in ["DELETE FROM app.tidings_schema", "DROP TABLE app.tidings_schema"] {
        fixture.sql.batch_execute(damage).await.expect("damaged");
        let read = follower.outbox.read(&follower.cursor, 10).await.expect_err(damage).to_string();
        assert!(read.contains("run `tidings entities install`"), "{damage}: {read}");
    }
}

#[tokio::test]
async fn a_promoted_standby_is_a_reset() {
    let server = Postgres::start(Fsync::Off).await;
    let url = server.url("postgres");
    install(&url).await;
    let mut follower = Follower::new(&node(&url)).await;
    server.stop(Stop::Fast).await;
    server.become_standby().await;
    server.start_again().await;
    let outbox = node(&url).outbox();
    let refused = outbox.now().await.expect_err("a standby").to_string();
    assert!(refused.contains("standby"), "{refused}");
    server.promote().await;
    follower.outbox = node(&url).outbox();
    assert_eq!(follower.lost().await, ResyncReason::SourceReset);
}

#[tokio::test]
async fn a_text_that_is_no_cursor_of_the_database_is_refused() {
    let fixture = Fixture::new().await;
    let outbox = fixture.node().outbox();
    for bad in ["0", "AQAA", "'; DROP TABLE app.logging; --"] {
        let read = outbox.read(&tidings_entities::Cursor::new(bad), 10).await;
        assert!(matches!(read, Err(SourceError::InvalidCursor(_))), "{bad}: {read:?}");
    }
}

#[tokio::test]
async fn a_database_that_does_not_answer_is_given_up_in_time() {
    let server = Postgres::start(Fsync::Off).await;
    let url = server.url("postgres");
    install(&url).await;
    let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
    let rng = Arc::new(Rng::seeded(1));
    let node = Database::new(options(&url), Arc::new(clock.clone()), rng, &Metrics::new());
    let outbox = Arc::new(node.map_err(|error| error.to_string()).expect("a valid URL").outbox());
    outbox.now().await.expect("the database answers");
    server.pause();
    let asked = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.now().await }
    });
    until("the statement waits", || clock.sleepers() == 1).await;
    clock.advance(std::time::Duration::from_secs(10));
    let late = asked.await.expect("it ends").expect_err("no answer").to_string();
    assert!(late.contains("did not answer within 10 s"), "{late}");
    server.resume();
    outbox.now().await.expect("the database answers again, on another connection");
}

#[tokio::test]
async fn connections_are_bounded_however_much_is_asked_at_once() {
    let fixture = Fixture::new().await;
    let mut options = options(&fixture.database.url);
    options.connections = 2;
    let outbox = super::node_with(options).outbox();
    let asked = (0..50).map(|_| outbox.now());
    for answer in futures_util::future::join_all(asked).await {
        answer.expect("the database answers");
    }
    let count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    let open: i64 = fixture.sql.query_one(count, &[]).await.expect("the server tells").get(0);
    assert_eq!(open, 2);
}
