//! The table of subscriptions, as sockets write it.

use std::time::Duration;

use tidings_auth::{Claims, Key, Scope};
use tidings_engine::{Clock, WallClock};
use tidings_model::ProjectId;
use tidings_server::{DatabaseUrl, SourceOptions};
use tidings_testing::{Doors, Harness, Setup};

use super::*;

/// Removes the lease of every node, as if its time had passed.
const LEASES_END: &str = "UPDATE app.tidings_node SET alive_until = now() - interval '1 s'";
const AGE: &str = "UPDATE app.rxdb_subscription SET subscribed_at = now() - interval '25 hours'";

/// The id under which a user of a project is stored that is not a UUID.
fn user_of(project: &str, user: &str) -> Uuid {
    let space = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("tidings:{project}").as_bytes());
    Uuid::new_v5(&space, user.as_bytes())
}

#[tokio::test]
async fn rows_appear_move_and_vanish_with_the_socket() {
    let fixture = Fixture::new().await;
    let server = fixture.server().await;
    let url = server.url("/v1/_default/sync");
    let mut client = Client::at(&url, None).await.expect("a WebSocket");
    let connected = client.message().await["payload"].clone();
    let [one, two, three] = [(); 3].map(|()| Uuid::new_v4());
    subscribe(&mut client, "project", &[one, two]).await;
    subscribe(&mut client, "task", &[]).await;
    fixture.until_rows(3).await;
    let rows = "SELECT user_id, connection_id, entity_code, entity_id FROM app.rxdb_subscription
        WHERE subscribed_at > now() - interval '1 hour' ORDER BY entity_code, entity_id";
    let rows = fixture.sql.query(rows, &[]).await.expect("the rows");
    let mut ids = [one, two];
    ids.sort();
    for (row, (code, id)) in
        rows.iter().zip([("project", Some(ids[0])), ("project", Some(ids[1])), ("task", None)])
    {
        assert_eq!(row.get::<_, Uuid>(0), user_of("_default", "dev"));
        assert_eq!(row.get::<_, &str>(1), connected["connectionId"]);
        assert_eq!((row.get::<_, &str>(2), row.get::<_, Option<Uuid>>(3)), (code, id));
    }
    let size = "SELECT pg_total_relation_size('app.rxdb_subscription')";
    assert!(fixture.number(size).await > 0);
    assert_eq!(client.unsubscribe("project", &[&one.to_string(), &two.to_string()]).await, 2);
    subscribe(&mut client, "project", &[three]).await;
    eventually("the old rows are gone and the new one is there", async || {
        let rows = "SELECT coalesce(array_agg(entity_id), '{}') FROM app.rxdb_subscription WHERE entity_id IS NOT NULL";
        fixture.sql.query_one(rows, &[]).await.expect("the rows").get::<_, Vec<Uuid>>(0) == [three]
    })
    .await;
    client.leave().await;
    fixture.until_rows(0).await;
    let mut vanishing = super::client(&server).await;
    subscribe(&mut vanishing, "project", &[one]).await;
    fixture.until_rows(1).await;
    drop(vanishing);
    fixture.until_rows(0).await;
}

#[tokio::test]
async fn two_tabs_of_a_user_have_rows_of_their_own_and_both_hear() {
    let fixture = Fixture::new().await;
    let (server, mut first) = fixture.client().await;
    let mut second = client(&server).await;
    let id = Uuid::new_v4();
    for client in [&mut first, &mut second] {
        subscribe(client, "project", &[id]).await;
    }
    fixture.until_rows(2).await;
    fixture.log(id, 1).await;
    for client in [&mut first, &mut second] {
        assert_eq!(told(client, "project").await, is(id, "UPDATE"));
    }
    first.leave().await;
    fixture.until_rows(1).await;
    fixture.log(id, 3).await;
    assert_eq!(told(&mut second, "project").await, is(id, "DELETE"));
}

#[tokio::test]
async fn two_users_that_watch_one_entity_have_a_row_each_and_both_hear() {
    let fixture = Fixture::new().await;
    let key = "the-signing-key-of-app";
    let app = ProjectId::parse("app").expect("an id");
    let doors = Doors::Closed { created: vec![("app", key)], given: vec![] };
    let mut setup = Setup { doors, wall_clock: true, ..Setup::default() };
    let url = Some(DatabaseUrl::new(&fixture.database.url));
    setup.entities.main =
        SourceOptions { database_url: url, project: app.clone(), ..SourceOptions::default() };
    let server = Harness::with(setup).await;
    let (id, ada) = (Uuid::new_v4(), Uuid::new_v4());
    let users = [ada.to_string(), "bob".to_owned()];
    let mut clients = Vec::new();
    for user in &users {
        let expires = WallClock.now() + Duration::from_secs(3600);
        let claims =
            Claims { user: Some(user.as_str().into()), ..Claims::new(app.clone(), Scope::Read, expires) };
        let token = claims.sign(&Key::parse(key).expect("a key"));
        let mut client = Client::at(&server.url("/v1/app/sync"), Some(&token))
            .await
            .expect("a WebSocket")
            .admitted()
            .await;
        assert_eq!(subscribe(&mut client, "project", &[id]).await["count"], 1);
        clients.push(client);
    }
    fixture.until_rows(2).await;
    let mut stored = [ada, user_of("app", "bob")];
    stored.sort();
    let found = "SELECT user_id FROM app.get_entity_subscribers('project', $1) ORDER BY user_id";
    let found = fixture.sql.query(found, &[&id]).await.expect("the subscribers");
    assert_eq!(found.iter().map(|row| row.get(0)).collect::<Vec<Uuid>>(), stored);
    fixture.log(id, 1).await;
    for client in &mut clients {
        assert_eq!(told(client, "project").await, is(id, "UPDATE"));
    }
    drop(clients);
    server.stop().await;
    fixture.until_rows(0).await;
}

#[tokio::test]
async fn ids_have_to_be_uuids_and_sql_in_them_does_no_harm() {
    let fixture = Fixture::new().await;
    let (_server, mut client) = fixture.client().await;
    let id = Uuid::new_v4();
    let bad = "'; DROP TABLE app.rxdb_subscription; --";
    let code = "it's; DROP TABLE app.logging; --\"";
    let answer = client.subscribe(code, &[bad, "7", &id.to_string().to_uppercase()]).await;
    assert_eq!(answer["count"], 1);
    let denied =
        [json!({ "entityId": bad, "code": "InvalidId" }), json!({ "entityId": "7", "code": "InvalidId" })];
    assert_eq!(answer["denied"], json!(denied));
    fixture.until_rows(1).await;
    let row = "SELECT entity_code, entity_id FROM app.rxdb_subscription";
    let row = fixture.sql.query_one(row, &[]).await.expect("one row");
    assert_eq!((row.get::<_, &str>(0), row.get::<_, Uuid>(1)), (code, id));
    let insert = "INSERT INTO app.logging (entity_code, entity_id, action) VALUES ($1, $2, 1)";
    fixture.sql.execute(insert, &[&code, &id]).await.expect("the table is there");
    assert_eq!(told(&mut client, code).await, is(id, "UPDATE"));
}

#[tokio::test]
async fn a_live_connection_stays_subscribed_whatever_becomes_of_its_rows() {
    let fixture = Fixture::new().await;
    let (_server, mut client) = fixture.client().await;
    let (id, other) = (Uuid::new_v4(), Uuid::new_v4());
    subscribe(&mut client, "project", &[id]).await;
    fixture.until_rows(1).await;
    fixture.run(AGE).await;
    assert_eq!(fixture.number("SELECT app.cleanup_stale_subscriptions(24)::bigint").await, 0, "it is alive");
    fixture.log(id, 1).await;
    assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
    let subscribe = format!(
        "SELECT app.bulk_subscribe(user_id, connection_id, 'project', ARRAY['{other}']::uuid[]) FROM app.rxdb_subscription"
    );
    fixture.run(&subscribe).await;
    let remove = format!("SELECT app.cleanup_user_subscriptions('{}')::bigint", user_of("_default", "dev"));
    fixture.log(other, 1).await;
    fixture.log(id, 1).await;
    assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"), "nothing of what SQL has subscribed");
    assert_eq!(fixture.number(&remove).await, 2);
    fixture.log(id, 3).await;
    assert_eq!(told(&mut client, "project").await, is(id, "DELETE"), "also without a row");
}

#[tokio::test]
async fn rows_of_a_node_that_died_go_when_its_lease_ends_and_stale_ones_without_a_node_as_well() {
    let fixture = Fixture::new().await;
    let (mut running, mut client) = fixture.client().await;
    subscribe(&mut client, "project", &[Uuid::new_v4(), Uuid::new_v4()]).await;
    fixture.until_rows(2).await;
    running.kill().await;
    let [old, new] = [(); 2].map(|()| Uuid::new_v4());
    for (age, id) in [("25 h", old), ("23 h", new)] {
        let insert = format!(
            "INSERT INTO app.rxdb_subscription (user_id, connection_id, entity_code, entity_id, subscribed_at)
             VALUES ('{id}', 'of no node', 'project', '{id}', now() - interval '{age}')"
        );
        fixture.run(&insert).await;
    }
    fixture.run(LEASES_END).await;
    let _running = running.restart().await;
    fixture.until_rows(1).await;
    let left = "SELECT entity_id FROM app.rxdb_subscription";
    assert_eq!(fixture.sql.query_one(left, &[]).await.expect("one row").get::<_, Uuid>(0), new);
}
