//! Who may do what with subscriptions, and what the tokens of wakes are not.

use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_model::{Pattern, ProjectId};
use tidings_testing::{ADMIN_KEY, Doors, Endpoint, Setup};

use super::*;

const KEY: &str = "the-key-of-the-project-called-shop";

/// A server with the projects `shop` and `other`.
async fn closed() -> Harness {
    let created = vec![("shop", KEY), ("other", "the-key-of-the-project-called-other")];
    let doors = Doors::Closed { created, given: Vec::new() };
    let mut setup = Setup { doors, ..Setup::default() };
    setup.hooks.allow_targets = Some(tidings_egress::AllowList::loopback());
    Harness::with(setup).await
}

fn token(server: &Harness, scope: Scope, resources: Resources) -> String {
    let (project, key) = (ProjectId::parse("shop").expect("an id"), Key::parse(KEY).expect("a key"));
    let expires_at = server.clock.now() + SECOND * 3600;
    Claims { resources, ..Claims::new(project, scope, expires_at) }.sign(&key)
}

fn plain(server: &Harness, scope: Scope) -> String {
    token(server, scope, Resources::default())
}

/// Every request of an owner, as a path of the project, with whether it changes anything.
fn requests() -> Vec<(Method, &'static str, Option<Value>, bool)> {
    vec![
        (Method::PUT, "stream/__ds/subscriptions/t", Some(pull_wake()), true),
        (Method::GET, "stream/__ds/subscriptions/s", None, false),
        (Method::GET, "stream/__ds/subscriptions", None, false),
        (Method::POST, "stream/__ds/subscriptions/s/streams", Some(json!({ "streams": ["a"] })), true),
        (Method::DELETE, "stream/__ds/subscriptions/s/streams/a", None, true),
        (Method::POST, "stream/__ds/subscriptions/s/retry", None, true),
        (Method::POST, "stream/__ds/subscriptions/s/claim", Some(json!({ "worker": "w" })), true),
        (Method::DELETE, "stream/__ds/subscriptions/t", None, true),
        (Method::GET, "hooks/subscriptions", None, false),
        (Method::POST, "hooks/subscriptions/s/retry", None, true),
    ]
}

#[tokio::test]
async fn a_subscription_hears_the_project_so_a_confined_token_gains_nothing() {
    let server = closed().await;
    let write = plain(&server, Scope::Write);
    Root::of(&server).with(&write).subscribe("s", pull_wake()).await;
    let root = Root { base: server.url("/v1/shop"), ..Root::of(&server) };
    let owner = root.with(&write);
    let all = || Some(vec![Pattern::parse("**").expect("a glob")]);
    let none = Resources::default;
    let confined = [
        Resources { stream_id: Some("events/a".into()), ..none() },
        Resources { streams: all(), ..none() },
        Resources { rooms: all(), ..none() },
        Resources { session: Some("x".into()), ..none() },
    ];
    for (method, path, body, changes) in requests() {
        let status = async |sender: &Root| sender.send(method.clone(), path, body.as_ref()).await.0;
        assert_eq!(status(&root).await, 401, "{method} {path}");
        for resources in &confined {
            let sender = root.with(&token(&server, Scope::Manage, resources.clone()));
            assert_eq!(status(&sender).await, 403, "{method} {path} {resources:?}");
        }
        let reader = root.with(&plain(&server, Scope::Read));
        assert_eq!(status(&reader).await == 403, changes, "{method} {path}");
        let stranger = Root { base: server.url("/v1/other"), ..owner.clone() };
        assert_eq!(status(&stranger).await, 403, "{method} {path}");
        let answer = status(&owner).await;
        assert!(answer < 400 || path.ends_with("claim") && answer == 409, "{method} {path}: {answer}");
        let admin = root.with(ADMIN_KEY);
        assert!(![401, 403].contains(&status(&admin).await), "{method} {path}");
    }
}

#[tokio::test]
async fn the_token_of_a_wake_is_no_credential_and_a_credential_is_no_token_of_a_wake() {
    let server = closed().await;
    let root = Root::of(&server);
    let owner = root.with(&plain(&server, Scope::Write));
    let endpoint = Endpoint::start().await;
    owner.subscribe("hook", webhook(endpoint.url("/"))).await;
    owner.stream("wake/pool").await;
    owner.subscribe("pull", pull_wake()).await;
    owner.stream("events/a").await;
    owner.append("events/a", json!(1)).await;
    let told = endpoint.receives(1).await[0].json();
    let claimed = owner.claim("pull", "w").await;
    let (callback, claim) = (text(&told, "callback_token"), text(&claimed, "token"));
    for token in [callback, claim] {
        let worker = root.with(token);
        for (method, path, body) in [
            (Method::GET, "events/a", None),
            (Method::POST, "events/a", Some(json!([1]))),
            (Method::GET, "__ds/subscriptions", None),
            (Method::DELETE, "__ds/subscriptions/pull", None),
            (Method::POST, "__ds/subscriptions/pull/claim", Some(json!({ "worker": "w" }))),
        ] {
            let status = worker.send(method.clone(), path, body.as_ref()).await.0;
            assert_eq!(status, 401, "{method} {path}");
        }
    }
    // Not even that of the admin.
    for credential in
        [None, Some(plain(&server, Scope::Manage)), Some(ADMIN_KEY.to_owned()), Some(claim.to_owned())]
    {
        let sender = credential.as_deref().map_or(root.clone(), |credential| root.with(credential));
        let refused = sender.post("hook", "callback", report(&told, true)).await;
        assert_eq!(code(&refused), (401, "TOKEN_INVALID"), "{credential:?}");
    }
    assert_eq!(root.with(callback).post("hook", "callback", report(&told, true)).await.0, 200);
    assert_eq!(root.with(claim).post("pull", "ack", report(&claimed, true)).await.0, 200);
}

#[tokio::test]
async fn the_public_keys_are_public_and_each_project_has_its_own() {
    let server = closed().await;
    let root = Root::of(&server);
    let other = Root { base: server.url("/v1/other/stream"), ..root.clone() };
    assert_eq!(root.get("__ds/jwks.json").await, json!({ "keys": [] }));
    root.with(&plain(&server, Scope::Write)).subscribe("s", webhook("https://example.com/".to_owned())).await;
    other.with(ADMIN_KEY).subscribe("s", webhook("https://example.com/".to_owned())).await;
    let keys = async |of: &Root| of.get("__ds/jwks.json").await["keys"].as_array().expect("keys").clone();
    let (own, others) = (keys(&root).await, keys(&other).await);
    assert_eq!((own.len(), others.len()), (1, 1));
    assert_ne!(own[0]["kid"], others[0]["kid"]);
    let answer = server.get("/v1/shop/stream/__ds/jwks.json").await;
    assert_eq!(answer.headers()["content-type"], "application/jwk-set+json");
    assert_eq!(answer.headers()["cache-control"], "public, max-age=300");
}

#[tokio::test]
async fn subscriptions_of_a_removed_project_are_removed_with_it() {
    let server = closed().await;
    let admin = Root::of(&server).with(ADMIN_KEY);
    admin.stream("events/a").await;
    let first = admin.subscribe("s", webhook("https://example.com/".to_owned())).await;
    let remove = server.request(Method::DELETE, "/v1/projects/shop").bearer_auth(ADMIN_KEY);
    assert!(remove.send().await.expect("an answer").status().is_success());
    let create = || server.post("/v1/projects").bearer_auth(ADMIN_KEY).json(&json!({ "project": "shop" }));
    eventually("it can be created again", async || {
        server.clock.advance(SECOND * 5);
        create().send().await.expect("an answer").status() == 201
    })
    .await;
    assert_eq!(admin.get("__ds/subscriptions").await["subscriptions"], json!([]));
    let again = admin.subscribe("s", webhook("https://example.com/".to_owned())).await;
    assert_ne!(again["webhook"]["signing"]["kid"], first["webhook"]["signing"]["kid"], "with other keys");
}
