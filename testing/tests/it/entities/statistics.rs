//! Statistics: who watches how much, for whoever manages the project.

use super::*;

async fn stats(server: &Harness, path: &str, token: &str) -> (u16, Value) {
    let request = server.request(Method::GET, path).bearer_auth(token).send().await.expect("an answer");
    (request.status().as_u16(), request.json().await.expect("JSON"))
}

#[tokio::test]
async fn statistics_count_entities_users_and_subscriptions_by_type() {
    let server = closed().await;
    let (alice, bob) = (token(&server, "alice"), token(&server, "bob"));
    let mut first = Client::with_token(&server, &alice).await;
    let mut second = Client::with_token(&server, &alice).await;
    let mut third = Client::with_token(&server, &bob).await;
    first.subscribe("project", &["1", "2"]).await;
    second.subscribe("project", &["2", "3"]).await;
    third.subscribe("project", &["2"]).await;
    third.subscribe("task", &[]).await;
    let all = stats(&server, "/v1/app/entities/stats", &alice).await;
    let project = json!({ "entities": 3, "users": 2, "subscriptions": 5 });
    let task = json!({ "entities": 1, "users": 1, "subscriptions": 1 });
    assert_eq!(all, (200, json!({ "project": project, "task": task })));
    let of = async |user: &str| stats(&server, &format!("/v1/app/entities/stats/{user}"), &alice).await;
    assert_eq!(of("alice").await, (200, json!({ "project": 4 })));
    assert_eq!(of("bob").await, (200, json!({ "project": 1, "task": 1 })));
    assert_eq!(of("carol").await, (200, json!({})), "a user without subscriptions has empty statistics");
    assert_eq!(of("alice%2Fx").await, (200, json!({})), "whatever the id is");
    third.ask("UNSUBSCRIBE_ALL", json!({}), "UNSUBSCRIBED").await;
    assert_eq!(of("bob").await, (200, json!({})));
}

#[tokio::test]
async fn statistics_are_for_whoever_manages_the_project_and_for_nobody_else() {
    let server = closed().await;
    let entities = token_for(&server, "alice", &["**"]);
    let of = |scope| signed(&claims(&server, "alice", scope));
    for path in ["/v1/app/entities/stats", "/v1/app/entities/stats/alice"] {
        for (token, status) in [
            (of(Scope::Read), 403),
            (of(Scope::Write), 403),
            (of(Scope::Manage), 200),
            (entities.clone(), 403),
            ("nonsense".to_owned(), 401),
        ] {
            assert_eq!(stats(&server, path, &token).await.0, status, "{path}");
        }
        let anonymous = server.get(path).await;
        assert_eq!(anonymous.status(), 401, "{path}");
    }
    assert_eq!(stats(&server, "/v1/other/entities/stats", &of(Scope::Manage)).await.0, 403);
}
