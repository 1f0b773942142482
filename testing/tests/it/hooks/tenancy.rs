//! Namespaces are projects: each tenant sees its own, an admin all, and nobody another's.

use serde_json::{Value, json};
use tidings_auth::Scope;
use tidings_testing::Harness;

use super::*;

/// Every request by which a tenant could reach a subscription of another.
fn requests_to<'a>(
    client: &Client<'a>,
    id: &str,
) -> Vec<(&'static str, u16, tidings_testing::http::RequestBuilder)> {
    let at = |method: &str, path: String| client.request(method, &path);
    let reference = json!({ "subscriptionId": id });
    vec![
        ("get", 404, at("GET", format!("/subscriptions/{id}"))),
        ("put", 404, at("PUT", format!("/subscriptions/{id}")).json(&json!({ "maxRetries": 1 }))),
        ("unsubscribe", 404, at("POST", "/subscriptions/unsubscribe".into()).json(&reference)),
        ("reactivate", 404, at("POST", "/subscriptions/reactivate".into()).json(&reference)),
        ("deliveries", 404, at("GET", format!("/subscriptions/{id}/deliveries"))),
        ("rotate", 404, at("POST", format!("/subscriptions/{id}/rotate-secret"))),
        ("replay", 404, at("POST", format!("/subscriptions/{id}/replay")).json(&json!({ "from": TS }))),
        ("retry all", 404, at("POST", format!("/subscriptions/{id}/dead-letters/retry"))),
        ("retry one", 404, at("POST", format!("/subscriptions/{id}/dead-letters/{NOBODY}/retry"))),
        ("status", 200, at("GET", format!("/subscriptions/status/{id}"))),
        ("dead letters", 200, at("GET", format!("/subscriptions/{id}/dead-letters"))),
        ("delete", 404, at("DELETE", format!("/subscriptions/{id}"))),
    ]
}

#[tokio::test]
async fn a_tenant_reaches_nothing_of_another() {
    let server = closed().await;
    let (acme, beta) = (Client::of(&server, "acme"), Client::of(&server, "beta"));
    let id = acme.subscribes("w", "a.*").await;
    acme.ingests(json!([event("a.1")])).await;
    let before = acme.gets(&format!("/subscriptions/status/{id}")).await;
    let deliveries = acme.gets(&format!("/subscriptions/{id}/deliveries")).await;
    let delivery = deliveries["deliveries"][0]["id"].as_str().expect("an id").to_owned();
    let credentials = [api_key("beta"), plain_token(&server, "beta", Scope::Manage)];
    for beta in credentials.map(|credential| Client::with(&server, credential)) {
        for (name, status, request) in requests_to(&beta, &id) {
            let told = answered(request).await;
            assert_eq!(told.status, status, "{name}: {told:?}");
            if status == 200 {
                let nothing =
                    told.json()["subscription"] == Value::Null && told.json()["deadLetters"] != json!([{}]);
                assert!(nothing && !told.text.contains(&id), "{name}: {told:?}");
            }
        }
        let logs = beta.gets(&format!("/subscriptions/deliveries/{delivery}/logs")).await;
        assert_eq!(logs, json!({ "logs": [] }));
        assert!(beta.lists("").await.is_empty());
        assert!(ids(&beta.gets("/subscriptions/match?eventType=a.1").await["subscriptions"]).is_empty());
        for (method, path) in [
            ("GET", format!("/v1/beta/hooks/{id}")),
            ("PATCH", format!("/v1/beta/hooks/{id}")),
            ("DELETE", format!("/v1/beta/hooks/{id}")),
            ("POST", format!("/v1/beta/hooks/{id}/pause")),
            ("POST", format!("/v1/beta/hooks/{id}/test")),
            ("GET", format!("/v1/beta/hooks/{id}/deliveries/{delivery}/attempts")),
        ] {
            let told = beta.send(method, &path, json!({})).await;
            assert_eq!(told.status, 404, "{method} {path}");
            let of_acme = beta.send(method, &path.replace("beta", "acme"), json!({})).await;
            assert_eq!(of_acme.status, 403, "{method} {path}");
        }
    }
    assert_eq!(acme.gets(&format!("/subscriptions/status/{id}")).await, before);
    // Nor do its events go there.
    beta.ingests(json!([event("a.2")])).await;
    assert_eq!(acme.gets(&format!("/subscriptions/status/{id}")).await, before);
}

/// Ids of a subscription of the default project and one of each tenant, all to the same pattern.
async fn one_each(server: &Harness) -> [String; 3] {
    let mut made = Vec::new();
    for client in [Client::admin(server), Client::of(server, "acme"), Client::of(server, "beta")] {
        made.push(client.subscribes("w", "webhook.*").await);
        server.clock.advance(std::time::Duration::from_millis(1));
    }
    made.try_into().expect("three")
}

#[tokio::test]
async fn an_admin_lists_and_reaches_all_and_creates_and_matches_in_the_default_project() {
    let server = closed().await;
    let [own, of_acme, of_beta] = one_each(&server).await;
    let admin = Client::admin(&server);
    let listed = admin.gets("/subscriptions/list").await;
    assert_eq!(ids(&listed["subscriptions"]), [of_beta.clone(), of_acme.clone(), own.clone()]);
    assert_eq!(listed["namespace"], Value::Null);
    let labels = |field: &str| {
        listed["subscriptions"]
            .as_array()
            .expect("an array")
            .iter()
            .map(|one| one[field].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(labels("_shard"), ["beta:webhook", "acme:webhook", "webhook"]);
    assert_eq!(labels("namespace"), [json!("beta"), json!("acme"), Value::Null]);
    for (query, expected) in [
        ("?shard=webhook", vec![&own]),
        ("?shard=acme:webhook", vec![&of_acme]),
        ("?limit=1&offset=1", vec![&of_acme]),
    ] {
        assert_eq!(admin.lists(query).await, expected.into_iter().cloned().collect::<Vec<_>>(), "{query}");
    }
    let matching = admin.gets("/subscriptions/match?eventType=webhook.x").await;
    assert_eq!((ids(&matching["subscriptions"]), &matching["namespace"]), (vec![own.clone()], &Value::Null));
    for id in [&own, &of_acme, &of_beta] {
        assert_eq!(admin.gets(&format!("/subscriptions/{id}")).await["subscription"]["id"], *id);
        let told = admin.send("PUT", &format!("/subscriptions/{id}"), json!({ "maxRetries": 1 })).await;
        assert_eq!(told.status, 200);
    }
    // Its events are those of the default project.
    let told = admin.post("/e", json!({ "events": [event("webhook.x")] })).await;
    assert_eq!(told.json(), json!({ "ok": true, "received": 1, "namespace": null }));
    for (id, pending) in [(&own, 1), (&of_acme, 0), (&of_beta, 0)] {
        let status = admin.gets(&format!("/subscriptions/status/{id}")).await;
        let stats = &status["stats"];
        assert_eq!(stats["pendingDeliveries"], pending, "{status}");
    }
    let removed = told_delete(&admin, &of_beta).await;
    assert_eq!(removed, 200);
}

async fn told_delete(client: &Client<'_>, id: &str) -> u16 {
    answered(client.request("DELETE", &format!("/subscriptions/{id}"))).await.status
}

#[tokio::test]
async fn an_admin_acts_for_a_tenant_that_it_names() {
    let server = closed().await;
    let [own, of_acme, of_beta] = one_each(&server).await;
    let admin = Client::admin(&server).for_tenant("acme");
    let listed = admin.gets("/subscriptions/list").await;
    assert_eq!(
        (ids(&listed["subscriptions"]), &listed["namespace"]),
        (vec![of_acme.clone()], &json!("acme"))
    );
    assert_eq!(admin.lists("?shard=webhook").await, std::slice::from_ref(&of_acme));
    let matching = admin.gets("/subscriptions/match?eventType=webhook.x").await;
    assert_eq!(
        (ids(&matching["subscriptions"]), &matching["namespace"]),
        (vec![of_acme.clone()], &json!("acme"))
    );
    for other in [&own, &of_beta] {
        assert_eq!(admin.get(&format!("/subscriptions/{other}")).await.status, 404);
        assert_eq!(told_delete(&admin, other).await, 404);
    }
    let body = json!({ "workerId": "new", "pattern": "webhook.stripe.*", "rpcMethod": "m" });
    let created = admin.post("/subscriptions/subscribe", body).await.json();
    assert_eq!((&created["shard"], &created["namespace"]), (&json!("acme:webhook"), &json!("acme")));
    let seen = Client::of(&server, "acme").lists("?workerId=new").await;
    assert_eq!(seen, [created["subscriptionId"].as_str().expect("an id").to_owned()]);
    let told = admin.post("/ingest", json!({ "events": [] })).await;
    assert_eq!(told.json()["namespace"], "acme");
    let default = Client::admin(&server).for_tenant("_default").gets("/subscriptions/list").await;
    assert_eq!((ids(&default["subscriptions"]), &default["namespace"]), (vec![own], &Value::Null));
}

#[tokio::test]
async fn a_namespace_that_is_unknown_malformed_or_anothers_is_refused() {
    let server = closed().await;
    let admin = Client::admin(&server);
    let acme = Client::of(&server, "acme");
    let token = Client::with(&server, plain_token(&server, "acme", Scope::Manage));
    let list = "/subscriptions/list";
    assert_eq!(admin.clone().for_tenant("nobody").get(list).await.status, 404);
    assert_eq!(admin.clone().for_tenant("a b").get(list).await.status, 400);
    assert_eq!(admin.clone().for_tenant("acme").for_tenant("beta").get(list).await.status, 400);
    for tenant in [acme, token] {
        assert_eq!(tenant.clone().for_tenant("acme").gets(list).await["namespace"], "acme");
        for other in ["beta", "_default", "nobody"] {
            let told = tenant.clone().for_tenant(other).get(list).await;
            assert_eq!((told.status, &told.json()["ok"]), (403, &json!(false)), "{other}");
        }
        assert_eq!(tenant.for_tenant("a b").get(list).await.status, 400);
    }
    let codes = [("nobody", 404, "NAMESPACE_NOT_FOUND"), ("a b", 400, "INVALID_NAMESPACE")];
    for (namespace, status, code) in codes {
        let told = admin.clone().for_tenant(namespace).post("/e", json!({ "events": [] })).await;
        assert_eq!((told.status, &told.json()["code"]), (status, &json!(code)));
    }
    let told = Client::of(&server, "acme").for_tenant("beta").post("/e", json!({ "events": [] })).await;
    assert_eq!((told.status, &told.json()["code"]), (403, &json!("ADMIN_REQUIRED")));
    // Strangers learn nothing of which there are.
    for namespace in ["acme", "nobody", "a b"] {
        let told = Client::nobody(&server).for_tenant(namespace).get(list).await;
        assert_eq!(told.status, 401, "{namespace}");
        let told = Client::with(&server, "no-such-key").for_tenant(namespace).get(list).await;
        assert_eq!(told.status, 401, "{namespace}");
    }
}

#[tokio::test]
async fn an_event_is_queued_only_in_its_own_namespace() {
    let server = closed().await;
    let [own, of_acme, of_beta] = one_each(&server).await;
    let admin = Client::admin(&server);
    let (acme, beta) = (Client::of(&server, "acme"), Client::of(&server, "beta"));
    let all = [&admin, &acme, &beta].map(|client| client.subscribes("all", "**"));
    let [all_own, all_acme, all_beta] = futures_util::future::join_all(all).await.try_into().expect("three");
    acme.ingests(json!([event("webhook.x"), event("webhook.y")])).await;
    let ids_of = async |id: &str| {
        let page = admin.gets(&format!("/subscriptions/{id}/deliveries")).await;
        page["deliveries"].as_array().expect("an array").len()
    };
    assert_eq!((ids_of(&own).await, ids_of(&of_acme).await, ids_of(&of_beta).await), (0, 2, 0));
    assert_eq!((ids_of(&all_own).await, ids_of(&all_acme).await, ids_of(&all_beta).await), (0, 2, 0));
    admin.ingests(json!([event("orders.paid")])).await;
    assert_eq!((ids_of(&all_own).await, ids_of(&all_acme).await, ids_of(&all_beta).await), (1, 2, 0));
}

#[tokio::test]
async fn a_server_in_dev_mode_takes_a_request_without_credentials_for_an_admins() {
    let server = open().await;
    let anyone = Client::nobody(&server);
    let id = anyone.subscribes("w", "a.*").await;
    let of_shop = anyone.clone().for_tenant("shop").subscribes("w", "a.*").await;
    let told = anyone.post("/e", json!({ "events": [event("a.1")] })).await;
    assert_eq!(told.json(), json!({ "ok": true, "received": 1, "namespace": null }));
    let told = anyone.clone().for_tenant("shop").post("/e", json!({ "events": [event("a.1")] })).await;
    assert_eq!(told.json()["namespace"], "shop");
    let mut all = anyone.lists("").await;
    all.sort();
    let mut expected = vec![id.clone(), of_shop.clone()];
    expected.sort();
    assert_eq!(all, expected);
    assert_eq!(anyone.clone().for_tenant("shop").lists("").await, [of_shop]);
    assert_eq!(
        Client::with(&server, "made-up").get("/subscriptions/list").await.status,
        401,
        "what is sent is checked"
    );
    let page = of_page(&anyone, "https://elsewhere.example").await;
    assert_eq!(page.status, 403);
    assert_eq!(of_page(&anyone, "http://localhost:5173").await.status, 200);
}

async fn of_page(client: &Client<'_>, origin: &str) -> Answered {
    answered(client.request("GET", "/subscriptions/list").header("origin", origin)).await
}

#[tokio::test]
async fn a_hook_in_dev_mode_may_call_this_machine_and_nothing_else_that_is_private() {
    let server = open().await;
    let anyone = Client::nobody(&server);
    let body = |url: &str| json!({ "url": url, "pattern": "a.*" });
    let told = anyone.post("/subscriptions/subscribe", body("http://127.0.0.1:9000/in")).await;
    assert_eq!(told.status, 200, "{told:?}");
    assert_eq!(anyone.post("/subscriptions/subscribe", body("http://10.0.0.1/")).await.status, 400);
}

#[tokio::test]
async fn pages_are_allowed_by_the_origins_of_the_default_project() {
    let server = closed().await;
    let sets = async |project: &str, origin: &str| {
        let set = server.put(&format!("/v1/config/{project}")).bearer_auth(tidings_testing::ADMIN_KEY);
        assert_eq!(answered(set.json(&json!({ "corsOrigins": [origin] }))).await.status, 200);
    };
    sets("_default", "https://console.example").await;
    sets("acme", "https://acme.example").await;
    for path in ["/subscriptions/list", "/subscriptions/subscribe", "/e", "/ingest"] {
        let preflight = async |origin: &str| {
            let request =
                server.request(tidings_testing::http::Method::OPTIONS, path).header("origin", origin);
            let request =
                request.header("access-control-request-headers", "authorization,x-tenant-namespace");
            answered(request.header("access-control-request-method", "POST")).await
        };
        let good = preflight("https://console.example").await;
        assert_eq!(
            (good.status, good.header("access-control-allow-origin")),
            (204, Some("https://console.example"))
        );
        assert!(
            good.header("access-control-allow-headers").is_some_and(|all| all.contains("x-tenant-namespace"))
        );
        for foreign in ["https://acme.example", "https://elsewhere.example"] {
            assert_eq!(
                preflight(foreign).await.header("access-control-allow-origin"),
                None,
                "{path} {foreign}"
            );
        }
    }
    let patch = server.request(tidings_testing::http::Method::OPTIONS, &format!("/v1/acme/hooks/{NOBODY}"));
    let patch = answered(patch.header("origin", "https://acme.example")).await;
    assert!(patch.header("access-control-allow-methods").is_some_and(|all| all.contains("PATCH")));
    // The request itself is judged by the project of its credential.
    let list = async |client: &Client<'_>, origin: &str| {
        let told = of_page(client, origin).await;
        told.header("access-control-allow-origin").map(str::to_owned)
    };
    let (admin, acme) = (Client::admin(&server), Client::of(&server, "acme"));
    assert!(list(&admin, "https://console.example").await.is_some());
    assert!(list(&acme, "https://console.example").await.is_none());
    assert!(list(&acme, "https://acme.example").await.is_some());
}
