//! Several servers on one database, and several databases of one server.

use tidings_testing::{Endpoint, until};

use super::*;

async fn post(server: &Process, path: &str, body: &Value) -> (StatusCode, Value) {
    let answer = http::Client::new().post(server.url(path)).json(body).send().await.expect("an answer");
    let status = answer.status();
    (status, answer.json().await.expect("JSON"))
}

async fn get(server: &Process, path: &str) -> Value {
    let answer = http::Client::new().get(server.url(path)).send().await.expect("an answer");
    answer.json().await.expect("JSON")
}

#[tokio::test]
async fn changes_over_http_reach_the_clients_of_every_node() {
    let fixture = Fixture::new().await;
    let (one, mut first) = fixture.client().await;
    let (_two, mut second) = fixture.client().await;
    let id = Uuid::new_v4();
    for client in [&mut first, &mut second] {
        subscribe(client, "project", &[id]).await;
    }
    let change =
        |action: &str| json!([{ "entityCode": "project", "entityId": id.to_string(), "action": action }]);
    let mut since = Value::Null;
    for action in ["CREATE", "UPDATE", "DELETE"] {
        let (status, answer) = post(&one, "/v1/_default/changes", &change(action)).await;
        assert_eq!((status.as_u16(), &answer["accepted"]), (200, &json!(1)), "{answer}");
        for client in [&mut first, &mut second] {
            assert_eq!(told(client, "project").await, is(id, action));
        }
        if since.is_null() {
            since = answer["cursor"].clone();
        }
    }
    let mut back = client(&one).await;
    back.resume("project", &[&id.to_string()], &since).await;
    let missed = back.until(&id.to_string()).await;
    assert_eq!(missed.last().expect("a change").1, "DELETE");
    let outbox = "SELECT count(*) FROM app.change_outbox";
    assert_eq!(fixture.number(outbox).await, 3, "they are in the database");
    let not_a_uuid = json!([{ "entityCode": "project", "entityId": "7", "action": "UPDATE" }]);
    let (status, answer) = post(&one, "/v1/_default/changes", &not_a_uuid).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("invalid_change")), "{answer}");
}

#[tokio::test]
async fn statistics_at_any_node_count_the_subscriptions_of_all() {
    let fixture = Fixture::new().await;
    let (one, mut first) = fixture.client().await;
    let (two, mut second) = fixture.client().await;
    let (shared, own) = (Uuid::new_v4(), Uuid::new_v4());
    subscribe(&mut first, "project", &[shared, own]).await;
    subscribe(&mut second, "project", &[shared]).await;
    subscribe(&mut second, "task", &[]).await;
    fixture.until_rows(4).await;
    for node in [&one, &two] {
        let project = json!({ "entities": 2, "users": 1, "subscriptions": 3 });
        let task = json!({ "entities": 1, "users": 1, "subscriptions": 1 });
        let all = get(node, "/v1/_default/entities/stats").await;
        assert_eq!(all, json!({ "project": project, "task": task }));
        assert_eq!(get(node, "/v1/_default/entities/stats/dev").await, json!({ "project": 3, "task": 1 }));
        assert_eq!(get(node, "/v1/_default/entities/stats/nobody").await, json!({}));
    }
}

#[tokio::test]
async fn hooks_hear_each_change_from_one_node_and_from_the_other_when_it_has_died() {
    let fixture = Fixture::new().await;
    let endpoint = Endpoint::start().await;
    let mut nodes = [fixture.server().await, fixture.server().await];
    for (node, path) in nodes.iter().zip(["/0", "/1"]) {
        let hook = json!({ "url": endpoint.url(path), "pattern": "collection.**", "format": "envelope" });
        assert_eq!(post(node, "/v1/_default/hooks", &hook).await.0.as_u16(), 201);
    }
    let held = "SELECT count(*) FROM app.tidings_relay WHERE position IS NOT NULL AND holder IS NOT NULL";
    eventually("one node has the lease", async || fixture.number(held).await == 1).await;
    let heard = |from: &str| -> Vec<String> {
        let received = endpoint.received();
        let of = received.iter().filter(|one| one.path == from);
        of.map(|one| one.json()["payload"]["docId"].as_str().expect("an id").to_owned()).collect()
    };
    let ids: Vec<String> = (0..20).map(|_| Uuid::new_v4().to_string()).collect();
    for id in &ids {
        fixture.run(&format!("SELECT app.manual_notify('project', '{id}', 4)")).await;
    }
    until("all were heard", || endpoint.received().len() >= ids.len()).await;
    let teller = usize::from(heard("/0").is_empty());
    let (mut once, mut expected) = (heard(&format!("/{teller}")), ids.clone());
    once.sort();
    expected.sort();
    assert_eq!(once, expected, "each once, and all from one node");
    nodes[teller].kill().await;
    let meanwhile: Vec<String> = (0..20).map(|_| Uuid::new_v4().to_string()).collect();
    for id in &meanwhile {
        fixture.run(&format!("SELECT app.manual_notify('project', '{id}', 1)")).await;
    }
    // Its time passes.
    fixture.run("UPDATE app.tidings_relay SET held_until = now() - interval '1 s'").await;
    let other = format!("/{}", 1 - teller);
    until("the other node tells what was changed meanwhile", || {
        let heard = heard(&other);
        meanwhile.iter().all(|id| heard.contains(id))
    })
    .await;
    assert_eq!(heard(&format!("/{teller}")).len(), ids.len(), "the dead one tells nothing more");
}

#[tokio::test]
async fn several_databases_are_heard_by_a_project_each_and_other_projects_need_none() {
    let (main, shop) = (Fixture::new().await, Fixture::new().await);
    let file = tempfile::NamedTempFile::new().expect("a file");
    let settings = format!(
        "[entities]\ndatabase_url = '{}'\n[[entities.sources]]\ndatabase_url = '{}'\nproject = 'shop'\n",
        main.database.url, shop.database.url
    );
    std::fs::write(file.path(), settings).expect("written");
    let path = file.path().to_str().expect("a path in UTF-8");
    let server = Process::serve(&["--config", path]).await;
    let id = Uuid::new_v4();
    let mut clients = Vec::new();
    for project in ["_default", "shop", "embedded"] {
        let mut client = client_of(&server, project).await;
        subscribe(&mut client, "project", &[id]).await;
        clients.push(client);
    }
    main.log(id, 4).await;
    assert_eq!(told(&mut clients[0], "project").await, is(id, "CREATE"));
    shop.log(id, 3).await;
    assert_eq!(told(&mut clients[1], "project").await, is(id, "DELETE"), "and nothing of the other database");
    let change = json!([{ "entityCode": "project", "entityId": id.to_string(), "action": "UPDATE" }]);
    assert_eq!(post(&server, "/v1/embedded/changes", &change).await.0.as_u16(), 200);
    assert_eq!(told(&mut clients[2], "project").await, is(id, "UPDATE"), "and nothing of the databases");
    assert_eq!(subscribe_text(&mut clients[2], "any text").await, 1, "without a database an id is any text");
    main.until_rows(1).await;
    shop.until_rows(1).await;
}

async fn subscribe_text(client: &mut Client, id: &str) -> Value {
    client.subscribe("project", &[id]).await["count"].clone()
}
