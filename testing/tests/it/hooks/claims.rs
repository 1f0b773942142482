//! Who may do what with hooks: a token that is confined to anything gains nothing here.

use serde_json::json;
use tidings_auth::{Resources, Scope, TopicGrants};
use tidings_model::Pattern;
use tidings_testing::Harness;
use tidings_testing::http::RequestBuilder;

use super::*;

/// Every route of hooks with the scope that it needs. The hook of the path exists.
pub(super) fn routes(client: &Client<'_>, id: &str) -> Vec<(String, Scope, RequestBuilder)> {
    let (read, write) = (Scope::Read, Scope::Write);
    let new = json!({ "workerId": "new", "pattern": "b", "rpcMethod": "m" });
    let named = json!({ "subscriptionId": id });
    let none = || json!({});
    let batch = json!({ "events": [event("a.1")] });
    let (from, before) = (json!({ "from": TS }), json!({ "before": 1 }));
    let table = vec![
        (read, "GET", "/subscriptions/list".to_owned(), none()),
        (read, "GET", "/subscriptions/match?eventType=a.1".into(), none()),
        (read, "GET", format!("/subscriptions/{id}"), none()),
        (read, "GET", format!("/subscriptions/status/{id}"), none()),
        (read, "GET", format!("/subscriptions/{id}/deliveries"), none()),
        (read, "GET", format!("/subscriptions/{id}/dead-letters"), none()),
        (read, "GET", format!("/subscriptions/deliveries/{NOBODY}/logs"), none()),
        (read, "GET", "/subscriptions/shards".into(), none()),
        (read, "GET", "/subscriptions/shards/config".into(), none()),
        (read, "GET", "/subscriptions/shards/webhook".into(), none()),
        (read, "GET", "/v1/acme/hooks".into(), none()),
        (read, "GET", "/v1/acme/hooks/match?type=a.1".into(), none()),
        (read, "GET", "/v1/acme/hooks/subscriptions".into(), none()),
        (read, "GET", format!("/v1/acme/hooks/{id}"), none()),
        (read, "GET", format!("/v1/acme/hooks/{id}/deliveries"), none()),
        (read, "GET", format!("/v1/acme/hooks/{id}/dead-letters"), none()),
        (read, "GET", format!("/v1/acme/hooks/{id}/events"), none()),
        (read, "GET", format!("/v1/acme/hooks/{id}/deliveries/{NOBODY}/attempts"), none()),
        (write, "POST", "/e".into(), batch.clone()),
        (write, "POST", "/ingest".into(), batch.clone()),
        (write, "POST", "/v1/acme/events".into(), batch),
        (write, "POST", "/subscriptions/subscribe".into(), new.clone()),
        (write, "POST", "/subscriptions/unsubscribe".into(), named.clone()),
        (write, "POST", "/subscriptions/reactivate".into(), named),
        (write, "PUT", format!("/subscriptions/{id}"), none()),
        (write, "POST", format!("/subscriptions/{id}/rotate-secret"), none()),
        (write, "POST", format!("/subscriptions/{id}/replay"), from.clone()),
        (write, "POST", format!("/subscriptions/{id}/dead-letters/retry"), none()),
        (write, "POST", format!("/subscriptions/{id}/dead-letters/{NOBODY}/retry"), none()),
        (write, "POST", "/subscriptions/cleanup".into(), before.clone()),
        (write, "PUT", "/subscriptions/shards/config".into(), none()),
        (write, "POST", "/subscriptions/shards/scale".into(), none()),
        (write, "POST", "/subscriptions/shards/health-check".into(), none()),
        (write, "POST", "/v1/acme/hooks".into(), new),
        (write, "PATCH", format!("/v1/acme/hooks/{id}"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/pause"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/resume"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/rotate-secret"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/test"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/replay"), from),
        (write, "POST", format!("/v1/acme/hooks/{id}/dead-letters/retry"), none()),
        (write, "POST", format!("/v1/acme/hooks/{id}/dead-letters/{NOBODY}/retry"), none()),
        (write, "POST", format!("/v1/acme/hooks/subscriptions/{NOBODY}/retry"), none()),
        (write, "POST", "/v1/acme/hooks/cleanup".into(), before),
        (write, "DELETE", format!("/v1/acme/hooks/{id}"), none()),
        (write, "DELETE", format!("/subscriptions/{id}"), none()),
    ];
    let request = |(scope, method, path, body): (Scope, &str, String, serde_json::Value)| {
        let request = client.request(method, &path);
        let request = if method == "GET" { request } else { request.json(&body) };
        (format!("{method} {path}"), scope, request)
    };
    table.into_iter().map(request).collect()
}

async fn scene() -> (Harness, String) {
    let server = closed().await;
    let id = Client::of(&server, "acme").subscribes("w", "a.*").await;
    (server, id)
}

#[tokio::test]
async fn every_route_that_is_served_is_in_the_table() {
    let (server, id) = scene().await;
    let asked: Vec<String> =
        routes(&Client::nobody(&server), &id).into_iter().map(|(name, ..)| name).collect();
    for template in tidings_api::templates() {
        let is_of_hooks = template.starts_with("/subscriptions")
            || template.contains("/hooks")
            || template.ends_with("/events") && !template.contains("rooms");
        if !is_of_hooks && template != "/e" && template != "/ingest" {
            continue;
        }
        let fits = |name: &String| {
            let path = name.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
            let (path, template): (Vec<_>, Vec<_>) =
                (path.split('/').collect(), template.split('/').collect());
            path.len() == template.len()
                && path.iter().zip(&template).all(|(a, b)| a == b || b.starts_with('{'))
        };
        assert!(asked.iter().any(fits), "{template}");
    }
}

#[tokio::test]
async fn a_token_that_is_confined_to_anything_gains_nothing() {
    let (server, id) = scene().await;
    let globs = || Some(vec![Pattern::parse("**").expect("a glob")]);
    let none = Resources::default;
    let confined = [
        ("a stream", Resources { stream_id: Some("a".into()), ..none() }),
        ("every stream", Resources { streams: globs(), ..none() }),
        ("every topic", Resources { topics: globs().map(TopicGrants::both), ..none() }),
        ("no topic", Resources { topics: Some(TopicGrants::default()), ..none() }),
        ("every room", Resources { rooms: globs(), ..none() }),
        ("every entity", Resources { entities: globs(), ..none() }),
        ("a session", Resources { session: Some("a".into()), ..none() }),
        (
            "everything by name",
            Resources {
                streams: globs(),
                topics: globs().map(TopicGrants::both),
                rooms: globs(),
                entities: globs(),
                ..none()
            },
        ),
    ];
    let before = Client::of(&server, "acme").gets(&format!("/subscriptions/status/{id}")).await;
    for (claims, resources) in confined {
        for scope in [Scope::Read, Scope::Write, Scope::Manage] {
            let client = Client::with(&server, token(&server, "acme", scope, resources.clone()));
            for (name, _, request) in routes(&client, &id) {
                let told = answered(request).await;
                assert_eq!(told.status, 403, "{claims}, {scope:?}: {name}: {told:?}");
            }
        }
    }
    assert_eq!(Client::of(&server, "acme").gets(&format!("/subscriptions/status/{id}")).await, before);
}

#[tokio::test]
async fn reading_needs_the_scope_read_and_the_rest_the_scope_write() {
    let (server, id) = scene().await;
    let reader = Client::with(&server, plain_token(&server, "acme", Scope::Read));
    for (name, scope, request) in routes(&reader, &id) {
        let status = answered(request).await.status;
        assert_eq!(status == 403, scope > Scope::Read, "{name}: {status}");
    }
    let credentials = [
        api_key("acme"),
        plain_token(&server, "acme", Scope::Write),
        plain_token(&server, "acme", Scope::Manage),
        tidings_testing::ADMIN_KEY.to_owned(),
    ];
    for credential in credentials {
        let id = Client::of(&server, "acme").subscribes("another", "c").await;
        let client = Client::with(&server, credential);
        for (name, _, request) in routes(&client, &id) {
            let status = answered(request).await.status;
            assert!(![401, 403].contains(&status) && status < 500, "{name}: {status}");
        }
        for leftover in Client::of(&server, "acme").lists("?workerId=new").await {
            answered(client.request("DELETE", &format!("/subscriptions/{leftover}"))).await;
        }
        let other = Client::of(&server, "acme").lists("?workerId=another").await;
        assert!(other.is_empty(), "the last requests removed it");
    }
}

#[tokio::test]
async fn without_a_valid_credential_nothing_is_answered() {
    let (server, id) = scene().await;
    let expired = {
        let token = plain_token(&server, "acme", Scope::Manage);
        server.clock.advance(std::time::Duration::from_secs(24 * 60 * 60 * 366));
        token
    };
    let wrong = api_key("acme").replace("acme", "beta");
    let clients = [
        Client::nobody(&server),
        Client::with(&server, "no-such-key"),
        Client::with(&server, "a.b.c"),
        Client::with(&server, expired),
        Client::with(&server, wrong),
        Client::with(&server, "ns_nobody_0123456789"),
    ];
    for client in clients {
        for (name, _, request) in routes(&client, &id) {
            let told = answered(request).await;
            assert_eq!((told.status, told.header("www-authenticate")), (401, Some("Bearer")), "{name}");
        }
    }
    assert_eq!(Client::of(&server, "acme").lists("").await, [id], "nothing was created or removed");
}

#[tokio::test]
async fn a_credential_in_the_query_counts_and_a_revoked_one_does_not() {
    let (server, id) = scene().await;
    let token = plain_token(&server, "acme", Scope::Read);
    let nobody = Client::nobody(&server);
    assert_eq!(nobody.get(&format!("/subscriptions/{id}?token={token}")).await.status, 200);
    let admin = Client::admin(&server);
    let rotated = admin.post("/v1/projects/acme/keys", json!({})).await.json();
    let api_key = rotated["apiKey"].as_str().expect("a key").to_owned();
    let listed = admin.gets("/v1/projects").await;
    let acme = listed["projects"].as_array().expect("an array").iter().find(|one| one["project"] == "acme");
    let old = acme.expect("listed")["kids"][1].as_str().expect("an id").to_owned();
    assert_eq!(answered(admin.request("DELETE", &format!("/v1/projects/acme/keys/{old}"))).await.status, 204);
    assert_eq!(nobody.get(&format!("/subscriptions/{id}?token={token}")).await.status, 401);
    assert_eq!(Client::of(&server, "acme").post("/e", json!({ "events": [] })).await.status, 401);
    assert_eq!(Client::with(&server, api_key).post("/e", json!({ "events": [] })).await.status, 200);
}
