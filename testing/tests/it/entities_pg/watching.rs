//! Changes that applications make by SQL, as sockets hear them.

use super::*;

#[tokio::test]
async fn inserts_updates_and_deletes_of_an_attached_table_reach_the_socket() {
    let fixture = Fixture::new().await;
    fixture.run(TODOS).await;
    let (_server, mut client) = fixture.client().await;
    assert_eq!(subscribe(&mut client, "todo", &[]).await["count"], 1);
    let id = Uuid::new_v4();
    fixture.run(&format!("INSERT INTO todos VALUES ('{id}', 'milk')")).await;
    assert_eq!(told(&mut client, "todo").await, is(id, "CREATE"));
    fixture.run(&format!("UPDATE todos SET text = 'bread' WHERE id = '{id}'")).await;
    assert_eq!(told(&mut client, "todo").await, is(id, "UPDATE"));
    fixture.run(&format!("DELETE FROM todos WHERE id = '{id}'")).await;
    assert_eq!(told(&mut client, "todo").await, is(id, "DELETE"));
}

#[tokio::test]
async fn what_changes_nothing_or_is_rolled_back_reaches_no_socket() {
    let fixture = Fixture::new().await;
    fixture.run(TODOS).await;
    let [still, undone, kept] = [(); 3].map(|()| Uuid::new_v4());
    fixture
        .run(&format!("INSERT INTO todos VALUES ('{still}', 'same'), ('{undone}', ''), ('{kept}', '')"))
        .await;
    let (_server, mut client) = fixture.client().await;
    subscribe(&mut client, "todo", &[]).await;
    fixture.run(&format!("UPDATE todos SET text = 'same' WHERE id = '{still}'")).await;
    fixture.run(&format!("BEGIN; DELETE FROM todos WHERE id = '{undone}'; ROLLBACK")).await;
    let to_savepoint = format!(
        "BEGIN; SAVEPOINT a; DELETE FROM todos WHERE id = '{undone}'; ROLLBACK TO a;
         UPDATE todos SET text = 'new' WHERE id = '{kept}'; COMMIT"
    );
    fixture.run(&to_savepoint).await;
    assert_eq!(told(&mut client, "todo").await, is(kept, "UPDATE"), "and of the others nothing");
}

#[tokio::test]
async fn a_transaction_of_ten_thousand_rows_reaches_the_socket_completely() {
    let fixture = Fixture::new().await;
    fixture.run(TODOS).await;
    let (_server, mut client) = fixture.client().await;
    subscribe(&mut client, "todo", &[]).await;
    fixture.run("INSERT INTO todos (text) SELECT n::text FROM generate_series(1, 10000) AS n").await;
    let mut heard = std::collections::BTreeSet::new();
    while heard.len() < 10_000 {
        heard.extend(client.changes("todo").await.into_iter().map(|(id, ..)| id));
    }
    let rows = fixture.sql.query("SELECT id::text FROM todos", &[]).await.expect("the rows");
    assert_eq!(heard, rows.iter().map(|row| row.get(0)).collect());
}

#[tokio::test]
async fn a_truncate_reaches_the_socket_as_a_resync() {
    let fixture = Fixture::new().await;
    fixture.run(TODOS).await;
    let (_server, mut client) = fixture.client().await;
    subscribe(&mut client, "todo", &[Uuid::new_v4()]).await;
    fixture.run("TRUNCATE todos").await;
    let resync = client.hear_a("RESYNC").await;
    assert_eq!((&resync["reason"], &resync["entityCode"]), (&json!("truncated"), &json!("todo")));
}

#[tokio::test]
async fn actions_of_the_log_reach_the_socket_with_their_names_and_a_view_does_not() {
    let fixture = Fixture::new().await;
    let (_server, mut client) = fixture.client().await;
    let (id, other) = (Uuid::new_v4(), Uuid::new_v4());
    subscribe(&mut client, "project", &[id]).await;
    for (number, action, reason) in [
        (4, "CREATE", None),
        (1, "UPDATE", None),
        (2, "UPDATE", Some("access")),
        (5, "UPDATE", Some("access")),
        (3, "DELETE", None),
    ] {
        fixture.log(id, 0).await;
        fixture.log(other, number).await;
        fixture.log(id, number).await;
        let heard = client.hear_a("INVALIDATE").await;
        let changes = heard["changes"].as_array().expect("changes");
        assert_eq!(changes.len(), 1, "neither the view nor the other entity: {heard}");
        let change = &changes[0];
        assert_eq!((&change["entityId"], &change["action"]), (&json!(id.to_string()), &json!(action)));
        assert_eq!(change["reason"].as_str(), reason, "{number}");
    }
    fixture.run(&format!("SELECT app.manual_notify('project', '{id}', 1)")).await;
    assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
}

#[tokio::test]
async fn create_update_and_delete_of_one_entity_end_with_the_delete_at_every_client() {
    let fixture = Fixture::new().await;
    let (server, mut first) = fixture.client().await;
    let mut second = client(&server).await;
    let (id, last) = (Uuid::new_v4(), Uuid::new_v4());
    for client in [&mut first, &mut second] {
        subscribe(client, "project", &[id, last]).await;
    }
    for action in [4, 1, 3] {
        fixture.log(id, action).await;
    }
    fixture.log(last, 1).await;
    for client in [&mut first, &mut second] {
        let all = client.until(&last.to_string()).await;
        let of_it: Vec<_> = all.iter().filter(|change| change.0 == id.to_string()).collect();
        assert_eq!(of_it.last().expect("it was told").1, "DELETE", "{all:?}");
        assert!(of_it.is_sorted_by(|one, next| one.2 < next.2), "versions rise: {all:?}");
    }
}

#[tokio::test]
async fn a_transaction_that_stays_open_delays_nobody_and_is_heard_when_it_ends() {
    let fixture = Fixture::new().await;
    let (_server, mut client) = fixture.client().await;
    let [slow, quick, later] = [(); 3].map(|()| Uuid::new_v4());
    subscribe(&mut client, "project", &[slow, quick, later]).await;
    let writer = connect(&fixture.database.url).await;
    writer.batch_execute("BEGIN").await.expect("begun");
    log(&writer, slow, 4).await;
    for id in [quick, later] {
        fixture.log(id, 1).await;
        assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
    }
    writer.batch_execute("COMMIT").await.expect("committed");
    assert_eq!(told(&mut client, "project").await, is(slow, "CREATE"));
}

#[tokio::test]
async fn entries_that_were_told_are_marked_as_sent_unless_that_is_turned_off() {
    let (unmarked, marked) = (Fixture::new().await, Fixture::new().await);
    let off = [("TIDINGS_ENTITIES_MARK_STATUS", "false")];
    let servers = [unmarked.server_with(&off).await, marked.server().await];
    let id = Uuid::new_v4();
    for (fixture, server) in [&unmarked, &marked].into_iter().zip(&servers) {
        let mut client = client(server).await;
        subscribe(&mut client, "project", &[id]).await;
        fixture.log(id, 1).await;
        assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
    }
    let sent =
        "SELECT count(*) FROM app.logging WHERE sync_status = 'sent' AND sync_processed_ts IS NOT NULL";
    eventually("it is marked", async || marked.number(sent).await == 1).await;
    let untouched =
        "SELECT count(*) FROM app.logging WHERE sync_status = 'pending' AND sync_processed_ts IS NULL";
    assert_eq!(unmarked.number(untouched).await, 1, "though it was told earlier");
}
