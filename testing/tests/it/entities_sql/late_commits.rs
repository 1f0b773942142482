//! Transactions that are long, late, large or rolled back: nothing of what is committed is missed.

use std::collections::{HashMap, HashSet};

use tidings_entities::{Action, Change, Reason};
use uuid::Uuid;

use super::{Fixture, Follower, ids, log};

#[tokio::test]
async fn a_transaction_that_began_before_the_last_read_and_commits_after_it_is_read() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let (late, early) = (Uuid::new_v4(), Uuid::new_v4());
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    log(&slow, late, 1).await;
    fixture.log(early, 1).await;
    assert_eq!(ids(&follower.drain().await), [early.to_string()], "what is open holds nobody back");
    assert_eq!(follower.drain().await, []);
    slow.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(ids(&follower.drain().await), [late.to_string()]);
    assert_eq!(follower.drain().await, []);
}

#[tokio::test]
async fn a_cursor_taken_while_a_transaction_is_open_hears_it() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    let late = Uuid::new_v4();
    log(&slow, late, 1).await;
    let mut follower = Follower::new(&node).await;
    slow.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(ids(&follower.drain().await), [late.to_string()]);
}

#[tokio::test]
async fn a_writer_that_stays_idle_in_its_transaction_holds_nobody_back() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let idle = fixture.database.client().await;
    idle.batch_execute("BEGIN").await.expect("begun");
    let last = Uuid::new_v4();
    log(&idle, last, 1).await;
    for _ in 0..50 {
        let id = Uuid::new_v4();
        fixture.log(id, 1).await;
        assert_eq!(ids(&follower.drain().await), [id.to_string()]);
    }
    idle.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(ids(&follower.drain().await), [last.to_string()]);
}

#[tokio::test]
async fn a_transaction_of_ten_thousand_rows_is_read_completely_page_by_page() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let mut follower = Follower::new(&fixture.node()).await;
    follower.page = 700;
    let insert = "INSERT INTO public.todos (text) SELECT 'x' FROM generate_series(1, 10000)";
    fixture.sql.batch_execute(insert).await.expect("inserted");
    let mut read = Vec::new();
    loop {
        let (entries, more) = follower.read().await;
        assert!(entries.len() <= 700, "{} in a page", entries.len());
        read.extend(entries.into_iter().map(super::changed));
        if !more {
            break;
        }
    }
    let rows = fixture.sql.query("SELECT id::text FROM public.todos", &[]).await.expect("the rows");
    let expected: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(read.len(), 10_000, "each once");
    assert_eq!(ids(&read).into_iter().collect::<HashSet<_>>(), expected);
    assert!(read.is_sorted_by_key(|change| change.version));
}

#[tokio::test]
async fn what_is_committed_while_a_large_transaction_is_read_is_read_after_it_also_from_the_middle() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let node = fixture.node();
    let mut follower = Follower::new(&node).await;
    follower.page = 100;
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    let late = Uuid::new_v4();
    log(&slow, late, 1).await;
    let insert = "INSERT INTO public.todos (text) SELECT 'x' FROM generate_series(1, 1000)";
    fixture.sql.batch_execute(insert).await.expect("inserted");
    let (first, more) = follower.read().await;
    assert!(!first.is_empty() && more);
    // A client takes the cursor of the middle to another node.
    let mut other = Follower::new(&fixture.node()).await;
    other.cursor = follower.cursor.clone();
    other.page = 100;
    slow.batch_execute("COMMIT").await.expect("committed");
    let between = Uuid::new_v4();
    fixture.log(between, 1).await;
    for reader in [&mut follower, &mut other] {
        let rest = reader.drain().await;
        assert_eq!(rest.len(), 1000 - first.len() + 2);
        let ids = ids(&rest);
        assert!(ids.contains(&late.to_string()) && ids.contains(&between.to_string()));
    }
}

#[tokio::test]
async fn what_is_rolled_back_also_to_a_savepoint_is_not_told() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let undone = "BEGIN; INSERT INTO public.todos (text) VALUES ('undone'); ROLLBACK";
    fixture.sql.batch_execute(undone).await.expect("rolled back");
    let partly = "BEGIN; INSERT INTO public.todos (text) VALUES ('first'); SAVEPOINT s;
        INSERT INTO public.todos (text) VALUES ('undone'); ROLLBACK TO s;
        SAVEPOINT t; INSERT INTO public.todos (text) VALUES ('second'); RELEASE t; COMMIT";
    fixture.sql.batch_execute(partly).await.expect("committed");
    let kept =
        fixture.sql.query("SELECT id::text FROM public.todos ORDER BY text", &[]).await.expect("the rows");
    let kept: Vec<String> = kept.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids(&follower.drain().await), kept);
}

#[tokio::test]
async fn a_prepared_transaction_is_told_when_it_is_committed() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    // PostgreSQL does not prepare a transaction that has notified.
    fixture.sql.batch_execute("SET tidings.wake = off").await.expect("set");
    fixture.sql.batch_execute("BEGIN").await.expect("begun");
    fixture.log(id, 1).await;
    fixture.sql.batch_execute("PREPARE TRANSACTION 'late'").await.expect("prepared");
    assert_eq!(follower.drain().await, []);
    fixture.sql.batch_execute("COMMIT PREPARED 'late'").await.expect("committed");
    assert_eq!(ids(&follower.drain().await), [id.to_string()]);
}

#[tokio::test]
async fn create_update_and_delete_of_one_entity_are_read_in_that_order_with_rising_versions() {
    let fixture = Fixture::new().await;
    fixture.todos().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let life = "INSERT INTO public.todos (text) VALUES ('a'); UPDATE public.todos SET text = 'b'; DELETE FROM public.todos";
    fixture.sql.batch_execute(life).await.expect("done");
    let read = follower.drain().await;
    let actions: Vec<Action> = read.iter().map(|change| change.action).collect();
    assert_eq!(actions, [Action::Create, Action::Update, Action::Delete]);
    assert!(read.is_sorted_by(|one, other| one.version < other.version));
    assert!(read.iter().all(|change| (1..1 << 53).contains(&change.version)));
}

/// Two applications log changes of one entity without a lock, and the one that wrote first commits last.
async fn overtaken(first: i16, second: i16) -> (Fixture, Follower, Vec<Change>, Vec<Change>) {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    log(&slow, id, first).await;
    fixture.log(id, second).await;
    let before = follower.drain().await;
    slow.batch_execute("COMMIT").await.expect("committed");
    let after = follower.drain().await;
    (fixture, follower, before, after)
}

#[tokio::test]
async fn a_change_that_commits_after_a_later_one_of_its_entity_is_read_with_a_higher_version() {
    let (fixture, mut follower, before, after) = overtaken(1, 1).await;
    assert_eq!((before.len(), after.len()), (1, 1));
    assert!(after[0].version > before[0].version, "{after:?} after {before:?}");
    // The next change of the entity is higher still, and a node that comes later hears the same versions.
    let id = Uuid::parse_str(after[0].id.as_str()).expect("a UUID");
    fixture.log(id, 3).await;
    let next = follower.drain().await;
    assert_eq!((next.len(), next[0].action), (1, Action::Delete));
    assert!(next[0].version > after[0].version);
}

#[tokio::test]
async fn an_overtaken_change_is_left_out_only_if_a_later_one_is_still_to_come_and_access_never() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    log(&slow, id, 1).await;
    log(&slow, id, 2).await;
    fixture.log(id, 1).await;
    let before = follower.drain().await;
    log(&slow, id, 3).await;
    slow.batch_execute("COMMIT").await.expect("committed");
    let after = follower.drain().await;
    let told: Vec<(Action, Option<Reason>)> =
        after.iter().map(|change| (change.action, change.reason)).collect();
    assert_eq!(told, [(Action::Delete, None), (Action::Update, Some(Reason::Access))]);
    assert!(before[0].version < after[0].version && after[0].version < after[1].version);
}

#[tokio::test]
async fn two_nodes_that_find_the_same_overtaken_change_tell_it_with_one_version() {
    let fixture = Fixture::new().await;
    let (mut one, mut other) = (Follower::new(&fixture.node()).await, Follower::new(&fixture.node()).await);
    let id = Uuid::new_v4();
    let slow = fixture.database.client().await;
    slow.batch_execute("BEGIN").await.expect("begun");
    log(&slow, id, 1).await;
    fixture.log(id, 1).await;
    assert_eq!(one.drain().await, other.drain().await);
    slow.batch_execute("COMMIT").await.expect("committed");
    let (one, other) = tokio::join!(one.drain(), other.drain());
    let newest = |changes: &[Change]| changes.iter().map(|change| change.version).max();
    assert!(!one.is_empty() && newest(&one) == newest(&other), "{one:?} {other:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_many_writers_commit_is_read_once_or_again_but_never_missed_and_never_backwards() {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 60;
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let mut follower = Follower::new(&node).await;
    follower.page = 7;
    let shared: Vec<Uuid> = (0..3).map(|_| Uuid::new_v4()).collect();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let sql = fixture.database.client().await;
        let shared = shared.clone();
        writers.push(tokio::spawn(async move {
            let mut rng = fastrand::Rng::with_seed(writer as u64);
            let mut committed = Vec::new();
            for _ in 0..ROUNDS {
                let rows = rng.usize(1..=20);
                let written: Vec<Uuid> = (0..rows).map(|_| Uuid::new_v4()).collect();
                sql.batch_execute("BEGIN").await.expect("begun");
                for id in &written {
                    log(&sql, *id, 1).await;
                    if rng.u8(..) < 40 {
                        log(&sql, shared[rng.usize(..shared.len())], 1).await;
                    }
                }
                let commits = rng.u8(..) < 200;
                sql.batch_execute(if commits { "COMMIT" } else { "ROLLBACK" }).await.expect("ended");
                if commits {
                    committed.extend(written);
                }
            }
            committed
        }));
    }
    let mut read: Vec<Change> = Vec::new();
    while writers.iter().any(|writer| !writer.is_finished()) {
        read.extend(follower.drain().await);
    }
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await.expect("it ends").iter().map(Uuid::to_string));
    }
    read.extend(follower.drain().await);
    read.extend(follower.drain().await);
    let mut versions: HashMap<String, u64> = HashMap::new();
    for change in &read {
        let last = versions.insert(change.id.to_string(), change.version).unwrap_or(0);
        assert!(change.version > last, "{change:?} after version {last}");
    }
    for id in &shared {
        versions.remove(&id.to_string());
    }
    assert_eq!(versions.into_keys().collect::<HashSet<_>>(), committed);
}
