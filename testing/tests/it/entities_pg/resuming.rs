//! Clients that come back: after a restart of the server or of the database, too late, or to other data.

use tidings_testing::postgres::{Fsync, Postgres, Stop};

use super::*;
use crate::entities_sql::expire;

/// Action and version of the next change of an entity after the last one. Until it comes, the last may be told again, as
/// what was read before a crash of the database is read again; nothing before the last is told.
async fn told_after(client: &mut Client, id: Uuid, last: (String, u64)) -> (String, u64) {
    loop {
        for (changed, action, version) in client.changes("project").await {
            assert_eq!(changed, id.to_string());
            if version > last.1 {
                return (action, version);
            }
            assert_eq!((&action, version), (&last.0, last.1), "versions do not go back");
        }
    }
}

#[tokio::test]
async fn a_restart_of_the_server_is_a_pause_for_who_resumes() {
    let fixture = Fixture::new().await;
    let (mut running, mut before) = fixture.client().await;
    let (id, other) = (Uuid::new_v4(), Uuid::new_v4());
    let cursor = subscribe(&mut before, "project", &[id]).await["cursor"].clone();
    running.kill().await;
    fixture.log(other, 4).await;
    fixture.log(id, 4).await;
    let running = running.restart().await;
    let mut back = client(&running).await;
    let id_text = id.to_string();
    back.resume("project", &[&id_text], &cursor).await;
    assert_eq!(told(&mut back, "project").await, is(id, "CREATE"));
    fixture.log(id, 1).await;
    assert_eq!(told(&mut back, "project").await, is(id, "UPDATE"), "and what comes later as well");
}

#[tokio::test]
async fn a_restart_or_a_crash_of_the_database_loses_nothing_for_clients_that_stay() {
    let database = Postgres::start(Fsync::On).await;
    let url = database.url("postgres");
    install(&url).await;
    let running = server(&url, &[]).await;
    let mut client = client(&running).await;
    let id = Uuid::new_v4();
    let cursor = subscribe(&mut client, "project", &[id]).await["cursor"].clone();
    let mut last = (String::new(), 0);
    for how in [Stop::Fast, Stop::Immediate] {
        log(&connect(&url).await, id, 4).await;
        last = told_after(&mut client, id, last).await;
        assert_eq!(last.0, "CREATE");
        database.restart(how).await;
        log(&connect(&url).await, id, 1).await;
        last = told_after(&mut client, id, last).await;
        assert_eq!(last.0, "UPDATE");
    }
    let mut back = super::client(&running).await;
    back.resume("project", &[&id.to_string()], &cursor).await;
    let changes = back.until(&id.to_string()).await;
    assert_eq!(changes.last().expect("a change").1, "UPDATE", "what was before the restarts is known");
}

#[tokio::test]
async fn a_listening_connection_that_is_cut_loses_nothing_and_is_made_again() {
    let fixture = Fixture::new().await;
    let (_server, mut client) = fixture.client().await;
    let id = Uuid::new_v4();
    subscribe(&mut client, "project", &[id]).await;
    let cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND query = 'LISTEN tidings_outbox' AND pid <> pg_backend_pid()";
    for _ in 0..3 {
        eventually("somebody listens, and is cut", async || fixture.number(cut).await > 0).await;
        fixture.log(id, 1).await;
        assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
    }
}

#[tokio::test]
async fn a_cursor_from_before_the_window_has_expired() {
    let fixture = Fixture::new().await;
    let (early_server, mut early) = fixture.client().await;
    let id = Uuid::new_v4();
    let cursor = subscribe(&mut early, "project", &[id]).await["cursor"].clone();
    fixture.log(id, 1).await;
    told(&mut early, "project").await;
    early_server.stop().await;
    // More time than the window passes, and nobody has told hooks in it.
    fixture.run("UPDATE app.tidings_relay SET held_until = now() - interval '1 hour'").await;
    expire(&fixture.database.url).await;
    let server = fixture.server().await;
    let mut late = client(&server).await;
    late.send(
        "SUBSCRIBE",
        json!({ "entityCode": "project", "entityIds": [id.to_string()], "since": cursor }),
    )
    .await;
    let first = late.message().await;
    assert_eq!((&first["type"], &first["payload"]["reason"]), (&json!("RESYNC"), &json!("cursor-expired")));
    let second = late.message().await;
    assert_eq!((&second["type"], &second["payload"]["count"]), (&json!("SUBSCRIBED"), &json!(1)));
    fixture.log(id, 3).await;
    assert_eq!(told(&mut late, "project").await, is(id, "DELETE"));
}

#[tokio::test]
async fn a_database_that_went_back_in_time_is_a_reset_for_who_stays_and_who_resumes() {
    let database = Postgres::start(Fsync::Off).await;
    let url = database.url("postgres");
    install(&url).await;
    database.stop(Stop::Fast).await;
    database.keep_copy().await;
    database.start_again().await;
    let running = server(&url, &[]).await;
    let mut stays = client(&running).await;
    let id = Uuid::new_v4();
    subscribe(&mut stays, "project", &[id]).await;
    let sql = connect(&url).await;
    for _ in 0..10 {
        log(&sql, id, 1).await;
    }
    let mut cursor = Value::Null;
    while cursor.is_null() {
        cursor = stays.hear_a("INVALIDATE").await["cursor"].clone();
    }
    database.stop(Stop::Fast).await;
    database.go_back().await;
    database.start_again().await;
    loop {
        let message = stays.hear().await;
        if message["type"] == "RESYNC" {
            assert_eq!(message["payload"]["reason"], "source-reset");
            break;
        }
        assert_eq!(message["type"], "INVALIDATE", "{message}");
    }
    let mut back = client(&running).await;
    back.send(
        "SUBSCRIBE",
        json!({ "entityCode": "project", "entityIds": [id.to_string()], "since": cursor }),
    )
    .await;
    let first = back.message().await;
    assert_eq!((&first["type"], &first["payload"]["reason"]), (&json!("RESYNC"), &json!("source-reset")));
    assert_eq!(back.message().await["type"], "SUBSCRIBED");
    log(&connect(&url).await, id, 3).await;
    for client in [&mut stays, &mut back] {
        assert_eq!(told(client, "project").await, is(id, "DELETE"), "it goes on from there");
    }
}

#[tokio::test]
async fn a_cursor_of_one_node_is_good_at_another_and_what_is_none_is_refused() {
    let fixture = Fixture::new().await;
    let (_one, mut first) = fixture.client().await;
    let other = fixture.server().await;
    let id = Uuid::new_v4();
    let cursor = subscribe(&mut first, "project", &[id]).await["cursor"].clone();
    fixture.log(id, 4).await;
    assert_eq!(told(&mut first, "project").await, is(id, "CREATE"));
    let mut second = client(&other).await;
    second.resume("project", &[&id.to_string()], &cursor).await;
    assert_eq!(told(&mut second, "project").await, is(id, "CREATE"));
    let bad =
        json!({ "entityCode": "project", "entityIds": [id.to_string()], "since": "'; DROP TABLE x; --" });
    assert_eq!(second.refused("SUBSCRIBE", bad).await, "InvalidCursor");
}
