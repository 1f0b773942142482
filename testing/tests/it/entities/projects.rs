//! Projects: none hears of another, and one that is removed is gone.

use tidings_testing::ADMIN_KEY;

use super::*;

#[tokio::test]
async fn nothing_of_a_project_is_heard_or_counted_in_another() {
    let server = closed().await;
    let mine = token(&server, "alice");
    let other = ProjectId::parse("other").expect("an id");
    let theirs = Claims { project: other, ..claims(&server, "alice", Scope::Manage) }
        .sign(&Key::parse(OTHER_KEY).expect("a key"));
    let mut here = Client::with_token(&server, &mine).await;
    let mut there = Client::opened(&server, "/v1/other/sync", Some(&theirs)).await.admitted().await;
    here.subscribe("project", &["1", "2"]).await;
    there.subscribe("project", &[]).await;
    let body = json!([change("project", "1", "UPDATE")]);
    assert_eq!(post_to(&server, "other", Some(&theirs), &body).await.0, 200);
    assert_eq!(ids(&there.changes("project").await), ["1"]);
    update(&server, "project", "2").await;
    assert_eq!(ids(&here.until("2").await), ["2"], "not what was published there");
    let stats = server.request(Method::GET, "/v1/other/entities/stats").bearer_auth(&theirs);
    let stats: Value = stats.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(stats["project"]["subscriptions"], 1);
    // The same user has its connections in each project.
    let mut taking =
        Client::opened(&server, &format!("{PATH}?takeover=1"), Some(&mine)).await.admitted().await;
    taking.subscribe("project", &["1"]).await;
    there.ask("PING", json!({}), "PONG").await;
    assert_eq!(here.closed().await.0, 4000);
}

#[tokio::test]
async fn a_cursor_of_another_project_is_not_one_of_this() {
    let server = Harness::start().await;
    for n in 0..3 {
        update(&server, "project", &n.to_string()).await;
    }
    let (_, answer) = post_to(&server, "second", None, &json!([change("project", "1", "UPDATE")])).await;
    let mut client = Client::connect(&server).await;
    let payload = json!({ "entityCode": "project", "entityIds": ["1"], "since": answer["cursor"] });
    client.send("SUBSCRIBE", payload).await;
    assert_eq!(client.hear_a("RESYNC").await, json!({ "entityCode": "project", "reason": "source-reset" }));
    assert_eq!(client.answer().await["type"], "SUBSCRIBED");
}

#[tokio::test]
async fn a_project_that_is_removed_closes_its_sockets_and_what_was_published_is_gone() {
    let server = closed().await;
    let token = token(&server, "alice");
    let mut client = Client::with_token(&server, &token).await;
    client.subscribe("project", &["1"]).await;
    let since = update(&server, "project", "1").await;
    client.changes("project").await;
    let remove = server.request(Method::DELETE, "/v1/projects/app").bearer_auth(ADMIN_KEY).send().await;
    assert_eq!(remove.expect("an answer").status(), 204);
    assert_eq!(client.closed().await, (4401, "Token revoked".into()));
    let mut refused = Client::opened(&server, PATH, Some(&token)).await;
    assert_eq!(refused.turned_away().await.2, 4002);
    let app = ProjectId::parse("app").expect("an id");
    until("all of it is removed", || !server.projects().removing().contains(&app)).await;
    let body = json!({ "project": "app", "key": KEY });
    let created = server.post("/v1/projects").bearer_auth(ADMIN_KEY).json(&body).send().await;
    assert_eq!(created.expect("an answer").status(), 201);
    let mut again = Client::with_token(&server, &token).await;
    again.send("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": ["1"], "since": since })).await;
    assert_eq!(again.hear_a("RESYNC").await["reason"], "source-reset");
    assert_eq!(again.answer().await["type"], "SUBSCRIBED");
    update(&server, "project", "1").await;
    assert_eq!(ids(&again.changes("project").await), ["1"]);
}
