//! A query in the database that decides who may watch what, asked by a server.

use super::*;

const QUERY: &str = "SELECT asked.id FROM unnest($3) AS asked (id)
    WHERE EXISTS (SELECT FROM members WHERE person = $1 AND code = $2 AND members.id IS NOT DISTINCT FROM asked.id)";

/// A database whose table `members` says who may watch what.
async fn with_members() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.run("CREATE TABLE members (person text, code text, id uuid)").await;
    fixture
}

async fn member(fixture: &Fixture, person: &str, code: &str, id: Option<Uuid>) {
    let insert = "INSERT INTO members VALUES ($1, $2, $3)";
    fixture.sql.execute(insert, &[&person, &code, &id]).await.expect("inserted");
}

fn denied(answer: &Value) -> Vec<&str> {
    let denied = answer["denied"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(denied.iter().all(|one| one["code"] == "Forbidden"), "{answer}");
    denied.iter().map(|one| one["entityId"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn the_query_allows_and_forbids_id_by_id_and_whole_types() {
    let fixture = with_members().await;
    let [mine, theirs, of_another_type] = [(); 3].map(|()| Uuid::new_v4());
    member(&fixture, "dev", "project", Some(mine)).await;
    member(&fixture, "ada", "project", Some(theirs)).await;
    member(&fixture, "dev", "task", Some(of_another_type)).await;
    member(&fixture, "dev", "note", None).await;
    let server = fixture.server_with(&[("TIDINGS_ENTITIES_AUTHORIZE_SQL", QUERY)]).await;
    let mut client = client(&server).await;
    let answer = subscribe(&mut client, "project", &[mine, theirs, of_another_type]).await;
    let mut refused = denied(&answer);
    refused.sort_unstable();
    let mut expected = [theirs.to_string(), of_another_type.to_string()];
    expected.sort();
    assert_eq!((&answer["count"], refused), (&json!(1), expected.iter().map(|id| &**id).collect()));
    let whole = |code: &str| json!({ "entityCode": code, "entityIds": [] });
    assert_eq!(client.refused("SUBSCRIBE", whole("project")).await, "Forbidden");
    assert_eq!(subscribe(&mut client, "note", &[]).await["count"], 1);
    for id in [theirs, of_another_type, mine] {
        fixture.log(id, 1).await;
    }
    assert_eq!(told(&mut client, "project").await, is(mine, "UPDATE"), "of the others nothing");
}

#[tokio::test]
async fn a_change_of_access_is_told_and_ends_what_the_query_does_not_allow_any_more() {
    for action in [2, 5] {
        let fixture = with_members().await;
        let (lost, kept) = (Uuid::new_v4(), Uuid::new_v4());
        for id in [lost, kept] {
            member(&fixture, "dev", "project", Some(id)).await;
        }
        let server = fixture.server_with(&[("TIDINGS_ENTITIES_AUTHORIZE_SQL", QUERY)]).await;
        let mut client = client(&server).await;
        assert_eq!(subscribe(&mut client, "project", &[lost, kept]).await["count"], 2);
        fixture.until_rows(2).await;
        fixture.run(&format!("DELETE FROM members WHERE id = '{lost}'")).await;
        for id in [lost, kept] {
            fixture.log(id, action).await;
            let heard = client.hear_a("INVALIDATE").await;
            let change = &heard["changes"][0];
            assert_eq!(heard["changes"].as_array().map(Vec::len), Some(1), "{heard}");
            assert_eq!((&change["entityId"], &change["reason"]), (&json!(id.to_string()), &json!("access")));
        }
        fixture.until_rows(1).await;
        for id in [lost, kept] {
            fixture.log(id, 1).await;
        }
        assert_eq!(told(&mut client, "project").await, is(kept, "UPDATE"), "of what was lost nothing more");
    }
}

#[tokio::test]
async fn the_query_runs_under_the_role_that_is_configured() {
    let fixture = Fixture::new().await;
    let role = format!("watcher {}", Uuid::new_v4().simple());
    fixture.run(&format!("CREATE ROLE \"{role}\"")).await;
    let query = format!("SELECT id FROM unnest($3) AS asked (id) WHERE current_user = '{role}' AND $1 <> $2");
    let ids = [Uuid::new_v4()];
    let mut without = vec![("TIDINGS_ENTITIES_AUTHORIZE_SQL", &*query)];
    let server = fixture.server_with(&without).await;
    let answer = subscribe(&mut client(&server).await, "project", &ids).await;
    assert_eq!(denied(&answer), [ids[0].to_string()], "the user of the address is another");
    without.push(("TIDINGS_ENTITIES_AUTHORIZE_SQL_ROLE", &role));
    let server = fixture.server_with(&without).await;
    assert_eq!(subscribe(&mut client(&server).await, "project", &ids).await["count"], 1);
}

#[tokio::test]
async fn a_query_that_fails_allows_nothing_and_the_connection_stays() {
    let fixture = Fixture::new().await;
    let server =
        fixture.server_with(&[("TIDINGS_ENTITIES_AUTHORIZE_SQL", "SELECT id FROM no_such_table")]).await;
    let mut client = client(&server).await;
    let id = Uuid::new_v4();
    assert_eq!(denied(&subscribe(&mut client, "project", &[id]).await), [id.to_string()]);
    client.ask("PING", json!({}), "PONG").await;
}
