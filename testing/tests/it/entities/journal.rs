//! Changes of entities as events that hooks hear.

use tidings_testing::Endpoint;

use super::*;

/// Creates a hook on the server in dev mode.
async fn hook(server: &Harness, pattern: &str, endpoint: &Endpoint) {
    let body = json!({ "url": endpoint.url("/hook"), "pattern": pattern, "format": "envelope" });
    let created = server.post("/v1/app/hooks").json(&body).send().await.expect("an answer");
    assert_eq!(created.status(), 201);
}

#[tokio::test]
async fn hooks_hear_inserts_updates_and_deletes_of_the_types_that_they_name() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    hook(&server, "collection.project.*", &endpoint).await;
    publish(
        &server,
        &[
            change("project", "1", "CREATE"),
            change("task", "1", "CREATE"),
            change("project", "1", "UPDATE"),
            change("project", "1", "DELETE"),
        ],
    )
    .await;
    until("all were heard", || endpoint.received().len() == 3).await;
    let received = endpoint.received();
    let mut types = Vec::new();
    for one in &received {
        let body = one.json();
        let payload = &body["payload"];
        assert_eq!((&payload["collection"], &payload["docId"]), (&json!("project"), &json!("1")), "{body}");
        types.push(body["type"].as_str().expect("a type").to_owned());
    }
    types.sort();
    assert_eq!(
        types,
        ["collection.project.delete", "collection.project.insert", "collection.project.update"]
    );
}

#[tokio::test]
async fn an_event_of_a_change_is_heard_once_also_when_nobody_watches() {
    let server = Harness::start().await;
    let endpoint = Endpoint::start().await;
    hook(&server, "collection.**", &endpoint).await;
    for n in 0..20 {
        update(&server, "project", &n.to_string()).await;
    }
    until("all were heard", || endpoint.received().len() == 20).await;
    let events: std::collections::BTreeSet<_> =
        endpoint.received().iter().map(|one| one.json()["payload"]["docId"].to_string()).collect();
    assert_eq!(events.len(), 20);
}
