//! Who may do what, for how long, and what nobody gets to see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tidings_auth::{
    Action, Allowed, Authorize, Claims, Credential, Denied, Key, Resource, Resources, Route, Scope,
    TopicGrants,
};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId};
use tidings_server::StoredProjects;
use tidings_testing::http::{Method, RequestBuilder, Response, StatusCode};
use tidings_testing::sse::Events;
use tidings_testing::{ADMIN_KEY, Doors, Harness, Process, SLEEPERS, Setup, TestStore, binary, http, until};
use tokio::io::{AsyncBufReadExt, BufReader};

const APP_KEY: &str = "the-signing-key-of-app";
const OTHER_KEY: &str = "the-signing-key-of-other";

/// A server with two projects.
async fn closed() -> Harness {
    closed_on(TestStore::Memory).await
}

async fn closed_on(store: TestStore) -> Harness {
    let created = vec![("app", APP_KEY), ("other", OTHER_KEY)];
    let doors = Doors::Closed { created, given: vec![("given", "the-key-of-the-given-project")] };
    Harness::with(Setup { doors, store, ..Setup::default() }).await
}

fn project(id: &str) -> ProjectId {
    ProjectId::parse(id).expect("a valid id")
}

fn globs(texts: &[&str]) -> Option<Vec<Pattern>> {
    Some(texts.iter().map(|text| Pattern::parse(text).expect("a valid glob")).collect())
}

/// Claims of a token for `app` that lives for an hour.
fn claims(server: &Harness, scope: Scope) -> Claims {
    Claims::new(project("app"), scope, server.clock.now() + Duration::from_secs(3600))
}

fn signed(claims: &Claims, key: &str) -> String {
    claims.sign(&Key::parse(key).expect("a valid key"))
}

fn token(server: &Harness, scope: Scope) -> String {
    signed(&claims(server, scope), APP_KEY)
}

fn token_for(server: &Harness, scope: Scope, resources: Resources) -> String {
    signed(&Claims { resources, ..claims(server, scope) }, APP_KEY)
}

async fn answer(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

/// The status and the code of an answer that says no.
async fn refusal(request: RequestBuilder) -> (u16, String) {
    let answer = answer(request).await;
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.expect("JSON");
    assert!(body["error"]["message"].is_string(), "{body}");
    (status, body["error"]["code"].as_str().expect("a code").to_owned())
}

fn put(server: &Harness, path: &str, token: &str) -> RequestBuilder {
    server.put(path).bearer_auth(token).header("content-type", "text/plain")
}

fn post(server: &Harness, path: &str, token: &str) -> RequestBuilder {
    server.post(path).bearer_auth(token).header("content-type", "text/plain").body("x")
}

fn get(server: &Harness, path: &str, token: &str) -> RequestBuilder {
    server.request(Method::GET, path).bearer_auth(token)
}

async fn created(server: &Harness, path: &str) {
    let token = token(server, Scope::Write);
    assert_eq!(answer(put(server, path, &token)).await.status(), 201, "{path}");
}

/// All that can be done with a stream, in an order in which each can succeed.
fn operations(server: &Harness, path: &str, token: &str) -> [(RequestBuilder, Scope); 5] {
    let request = |method| server.request(method, path).bearer_auth(token);
    [
        (put(server, path, token), Scope::Write),
        (post(server, path, token), Scope::Write),
        (request(Method::GET), Scope::Read),
        (request(Method::HEAD), Scope::Read),
        (request(Method::DELETE), Scope::Write),
    ]
}

#[tokio::test]
async fn each_operation_on_a_stream_needs_its_scope() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    for scope in [Scope::Read, Scope::Write, Scope::Manage] {
        let token = token(&server, scope);
        for (request, needed) in operations(&server, "/v1/app/stream/s", &token) {
            let answer = answer(request).await;
            let allowed = answer.status().is_success();
            assert_eq!(allowed, scope >= needed, "{scope:?} {needed:?} {answer:?}");
            assert!(allowed || answer.status() == 403, "{answer:?}");
        }
        if scope == Scope::Write {
            created(&server, "/v1/app/stream/s").await;
        }
    }
}

#[tokio::test]
async fn without_a_good_token_of_a_known_project_it_is_401() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let path = "/v1/app/stream/s";
    let good = claims(&server, Scope::Manage);
    assert_eq!(refusal(server.request(Method::GET, path)).await, (401, "token_missing".into()));
    let now = server.clock.now();
    let expired = signed(&Claims { expires_at: now, ..good.clone() }, APP_KEY);
    assert_eq!(refusal(get(&server, path, &expired)).await, (401, "token_expired".into()));
    let early = Claims { not_before: Some(now + Duration::from_secs(10)), ..good.clone() };
    let early = signed(&early, APP_KEY);
    assert_eq!(refusal(get(&server, path, &early)).await, (401, "token_too_early".into()));
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(answer(get(&server, path, &early)).await.status(), 200);
    let stranger = signed(&good, "a-key-that-nobody-here-has");
    assert_eq!(refusal(get(&server, path, &stranger)).await, (401, "unauthorized".into()));
    for bad in ["", "x", "a.b", "a.b.c", "ns_app_0123", "ns_", "not-the-admin-key-but-long"] {
        let request = server.request(Method::GET, path).header("authorization", format!("Bearer {bad}"));
        assert_eq!(answer(request).await.status(), 401, "{bad:?}");
    }
    for header in ["Basic YTpi", "Bearer", "Digest x"] {
        let request = server.request(Method::GET, path).header("authorization", header);
        let answer = answer(request).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["www-authenticate"]),
            (401, &"Bearer".parse().expect("value"))
        );
    }
    let unknown = Claims { project: project("nowhere"), ..good.clone() };
    for key in [APP_KEY, OTHER_KEY] {
        let token = signed(&unknown, key);
        assert_eq!(answer(get(&server, "/v1/nowhere/stream/s", &token)).await.status(), 401);
    }
    assert_eq!(answer(server.request(Method::GET, "/v1/nowhere/stream/s")).await.status(), 401);
    let own = token(&server, Scope::Read);
    assert_eq!(refusal(get(&server, "/v1/a%20b/stream/s", &own)).await, (400, "invalid_id".into()));
}

#[tokio::test]
async fn a_token_of_another_project_is_403() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let foreign = Claims { project: project("other"), ..claims(&server, Scope::Manage) };
    for key in [OTHER_KEY, APP_KEY] {
        let token = signed(&foreign, key);
        for (request, _) in operations(&server, "/v1/app/stream/s", &token) {
            assert_eq!(answer(request).await.status(), 403);
        }
        assert_eq!(refusal(get(&server, "/v1/app/stream/s", &token)).await, (403, "wrong_project".into()));
    }
    assert_eq!(answer(get(&server, "/v1/stream/s", &token(&server, Scope::Read))).await.status(), 403);
    // One that counts nowhere any more is a bad one first.
    let over = signed(&Claims { expires_at: server.clock.now(), ..foreign.clone() }, OTHER_KEY);
    assert_eq!(refusal(get(&server, "/v1/app/stream/s", &over)).await, (401, "token_expired".into()));
    let later = Some(server.clock.now() + Duration::from_secs(1));
    let early = signed(&Claims { not_before: later, ..foreign }, OTHER_KEY);
    assert_eq!(refusal(get(&server, "/v1/app/stream/s", &early)).await, (401, "token_too_early".into()));
}

#[tokio::test]
async fn the_older_form_names_its_project_as_sub() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let exp = server.clock.now().as_millis() / 1000 + 60;
    let old = |sub: &str, more: Value| {
        let mut claims = json!({ "sub": sub, "scope": "read", "exp": exp });
        claims.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        hand_made(&json!({ "alg": "HS256", "typ": "JWT" }), &claims, APP_KEY)
    };
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &old("app", json!({})))).await.status(), 200);
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &old("other", json!({})))).await.status(), 403);
    let one = old("app", json!({ "stream_id": "s" }));
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &one)).await.status(), 200);
    let two = old("app", json!({ "stream_id": "t" }));
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &two)).await.status(), 403);
    let without_end =
        hand_made(&json!({ "alg": "HS256" }), &json!({ "sub": "app", "scope": "read" }), APP_KEY);
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &without_end)).await.status(), 401);
}

/// A token as another library makes it.
fn hand_made(header: &Value, claims: &Value, key: &str) -> String {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use hmac::{Hmac, KeyInit, Mac};
    let text = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key.as_bytes()).expect("any length");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

#[tokio::test]
async fn only_hs256_counts_whatever_a_token_says() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let exp = server.clock.now().as_millis() / 1000 + 60;
    let claims = json!({ "project": "app", "scope": "manage", "exp": exp });
    let read = |header: Value| get(&server, "/v1/app/stream/s", &hand_made(&header, &claims, APP_KEY));
    assert_eq!(answer(read(json!({ "alg": "HS256" }))).await.status(), 200);
    for alg in ["none", "None", "hs256", "HS384", "RS256", ""] {
        assert_eq!(answer(read(json!({ "alg": alg }))).await.status(), 401, "{alg}");
    }
    assert_eq!(answer(read(json!({ "typ": "JWT" }))).await.status(), 401);
    assert_eq!(answer(read(json!({ "alg": "HS256", "crit": ["x"] }))).await.status(), 401);
    assert_eq!(answer(read(json!({ "alg": "HS256", "kid": "of-nobody" }))).await.status(), 401);
    let unsigned = hand_made(&json!({ "alg": "none" }), &claims, APP_KEY);
    let unsigned = unsigned.rsplit_once('.').expect("three parts").0.to_owned() + ".";
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &unsigned)).await.status(), 401);
}

#[tokio::test]
async fn stream_claims_restrict_every_operation() {
    let server = closed().await;
    created(&server, "/v1/app/stream/secret").await;
    let one = Resources { stream_id: Some("mine".into()), ..Resources::default() };
    let many = Resources { streams: globs(&["mine", "team/*"]), ..Resources::default() };
    for resources in [one, many] {
        let token = token_for(&server, Scope::Write, resources);
        for (request, _) in operations(&server, "/v1/app/stream/mine", &token) {
            assert!(answer(request).await.status().is_success());
        }
        for (request, _) in operations(&server, "/v1/app/stream/secret", &token) {
            assert_eq!(answer(request).await.status(), 403);
        }
    }
    let topics = Resources { topics: globs(&["**"]).map(TopicGrants::both), ..Resources::default() };
    let token = token_for(&server, Scope::Manage, topics);
    for (request, _) in operations(&server, "/v1/app/stream/secret", &token) {
        assert_eq!(answer(request).await.status(), 403, "kinds that a token does not name are denied");
    }
    assert_eq!(answer(get(&server, "/v1/config/app", &token)).await.status(), 403);
}

#[tokio::test]
async fn a_session_claim_reads_its_own_stream_and_nothing_else() {
    let server = closed().await;
    created(&server, "/v1/app/stream/orders").await;
    let subscribing = post(&server, "/v1/app/subscribe", &token(&server, Scope::Write));
    let subscribing = subscribing.body(r#"{"sessionId":"alice","streamId":"orders"}"#);
    assert_eq!(answer(subscribing).await.status(), 201);
    let claim =
        Resources { session: Some("alice".into()), streams: globs(&["orders"]), ..Resources::default() };
    let token = token_for(&server, Scope::Manage, claim);
    assert_eq!(answer(get(&server, "/v1/app/stream/alice", &token)).await.status(), 200);
    assert_eq!(answer(get(&server, "/v1/app/stream/orders", &token)).await.status(), 403);
    assert_eq!(answer(post(&server, "/v1/app/stream/alice", &token)).await.status(), 403);
}

#[tokio::test]
async fn a_fork_needs_to_read_its_source() {
    let server = closed().await;
    created(&server, "/v1/app/stream/source").await;
    let fork = |path: &str, streams: &[&str]| {
        let resources = Resources { streams: globs(streams), ..Resources::default() };
        let token = token_for(&server, Scope::Write, resources);
        put(&server, path, &token).header("stream-forked-from", "/v1/app/stream/source")
    };
    assert_eq!(answer(fork("/v1/app/stream/fork", &["fork"])).await.status(), 403);
    assert_eq!(answer(fork("/v1/app/stream/fork", &["fork", "source"])).await.status(), 201);
}

#[tokio::test]
async fn an_api_key_opens_no_stream() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let key = Key::parse(APP_KEY).expect("a valid key").api_key(&project("app"));
    for (request, _) in operations(&server, "/v1/app/stream/s", &key) {
        assert_eq!(answer(request).await.status(), 403);
    }
    assert_eq!(refusal(get(&server, "/v1/other/stream/s", &key)).await, (403, "wrong_project".into()));
}

#[tokio::test]
async fn a_token_may_stand_in_the_query() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let token = token(&server, Scope::Read);
    let read = |query: &str| server.request(Method::GET, &format!("/v1/app/stream/s?{query}"));
    assert_eq!(answer(read(&format!("offset=-1&token={token}"))).await.status(), 200);
    assert_eq!(answer(read("offset=-1&token=wrong")).await.status(), 401);
    let both = read("token=wrong").bearer_auth(&token);
    assert_eq!(answer(both).await.status(), 200, "the header counts");
}

#[tokio::test]
async fn the_default_project_is_closed_until_its_key_is_rotated() {
    let server = closed().await;
    for path in ["/v1/stream/s", "/v1/_default/stream/s"] {
        assert_eq!(answer(server.request(Method::GET, path)).await.status(), 401);
    }
    let mut admin = server.post("/v1/projects/_default/tokens").bearer_auth(ADMIN_KEY);
    admin = admin.json(&json!({ "scope": "write" }));
    assert_eq!(refusal(admin).await, (409, "no_key".into()));
    server.projects().rotate_key(&ProjectId::default_project(), None).await.expect("rotated");
    let mint = server.post("/v1/projects/_default/tokens").bearer_auth(ADMIN_KEY);
    let minted: Value = answer(mint.json(&json!({ "scope": "write" }))).await.json().await.expect("JSON");
    let token = minted["token"].as_str().expect("a token");
    assert_eq!(answer(put(&server, "/v1/stream/s", token)).await.status(), 201);
    assert_eq!(answer(get(&server, "/v1/_default/stream/s", token)).await.status(), 200);
}

#[tokio::test]
async fn in_dev_any_project_exists_but_a_credential_is_checked() {
    let server = Harness::start().await;
    assert_eq!(answer(server.put("/v1/any/stream/s")).await.status(), 201);
    for bad in ["x", "a.b.c", "ns_any_0"] {
        assert_eq!(answer(get(&server, "/v1/any/stream/s", bad)).await.status(), 401, "{bad}");
    }
    let created = answer(server.post("/v1/projects").json(&json!({ "project": "app" }))).await;
    assert_eq!(created.status(), 201);
    let created: Value = created.json().await.expect("JSON");
    let key = created["key"].as_str().expect("a key");
    let read = signed(&claims(&server, Scope::Read), key);
    assert_eq!(answer(put(&server, "/v1/app/stream/s", &read)).await.status(), 403);
    assert_eq!(answer(server.put("/v1/app/stream/s")).await.status(), 201);
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &read)).await.status(), 200);
}

#[tokio::test]
async fn projects_are_administered_with_the_admin_key() {
    let server = closed().await;
    let admin = |method: Method, path: &str| server.request(method, path).bearer_auth(ADMIN_KEY);
    let new = answer(admin(Method::POST, "/v1/projects").json(&json!({ "project": "new" }))).await;
    assert_eq!((new.status().as_u16(), new.headers()["cache-control"].as_bytes()), (201, &b"no-store"[..]));
    let new: Value = new.json().await.expect("JSON");
    let key = new["key"].as_str().expect("a key");
    let kid = Key::parse(key).expect("a key").kid().to_string();
    assert_eq!((new["project"].as_str(), new["kid"].as_str()), (Some("new"), Some(&*kid)));
    assert!(new["apiKey"].as_str().expect("an API key").starts_with("ns_new_"));
    let list: Value = answer(admin(Method::GET, "/v1/projects")).await.json().await.expect("JSON");
    let ids: Vec<_> =
        list["projects"].as_array().expect("a list").iter().map(|one| one["project"].as_str()).collect();
    assert_eq!(ids, [Some("app"), Some("given"), Some("new"), Some("other")]);
    assert_eq!(list["projects"][2]["kids"], json!([kid]));

    for (body, expected) in [
        (json!({ "project": "new" }), (409, "project_exists")),
        (json!({ "project": "given" }), (409, "project_exists")),
        (json!({ "project": "_x" }), (400, "reserved_id")),
        (json!({ "project": "stream" }), (400, "reserved_id")),
        (json!({ "project": "streams" }), (400, "reserved_id")),
        (json!({ "project": "config" }), (400, "reserved_id")),
        (json!({ "project": "projects" }), (400, "reserved_id")),
        (json!({ "project": "a b" }), (400, "invalid_id")),
        (json!({ "project": "short", "key": "too-short" }), (400, "invalid_key")),
        (json!({ "project": "x", "unknown": 1 }), (400, "invalid_json")),
        (json!([]), (400, "invalid_json")),
    ] {
        let (status, code) = refusal(admin(Method::POST, "/v1/projects").json(&body)).await;
        assert_eq!((status, &*code), expected, "{body}");
    }
    for (method, path, expected) in [
        (Method::DELETE, "/v1/projects/nowhere", (404, "project_not_found")),
        (Method::DELETE, "/v1/projects/_default", (409, "default_project")),
        (Method::DELETE, "/v1/projects/given", (409, "project_given")),
        (Method::POST, "/v1/projects/nowhere/keys", (404, "project_not_found")),
        (Method::POST, "/v1/projects/given/keys", (409, "project_given")),
        (Method::DELETE, "/v1/projects/app/keys/none", (404, "key_not_found")),
    ] {
        let (status, code) = refusal(admin(method, path)).await;
        assert_eq!((status, &*code), expected, "{path}");
    }
    let last = format!("/v1/projects/new/keys/{kid}");
    assert_eq!(refusal(admin(Method::DELETE, &last)).await, (409, "last_key".into()));

    for (method, path) in [
        (Method::GET, "/v1/projects"),
        (Method::POST, "/v1/projects"),
        (Method::DELETE, "/v1/projects/app"),
        (Method::POST, "/v1/projects/app/keys"),
        (Method::DELETE, "/v1/projects/app/keys/x"),
        (Method::POST, "/v1/projects/app/tokens"),
    ] {
        let request = || server.request(method.clone(), path).json(&json!({}));
        assert_eq!(answer(request()).await.status(), 401, "{path}");
        assert_eq!(answer(request().bearer_auth("not-the-admin-key")).await.status(), 401, "{path}");
        let manage = token(&server, Scope::Manage);
        assert_eq!(answer(request().bearer_auth(manage)).await.status(), 403, "{path}");
    }
}

#[tokio::test]
async fn tokens_are_minted_with_the_admin_key() {
    let server = closed().await;
    created(&server, "/v1/app/stream/orders.1").await;
    let mint = |body: Value| server.post("/v1/projects/app/tokens").bearer_auth(ADMIN_KEY).json(&body);
    let minted =
        answer(mint(json!({ "scope": "read", "user": "u", "ttlSeconds": 5, "streams": "orders.*" }))).await;
    assert_eq!(minted.status(), 201);
    let minted: Value = minted.json().await.expect("JSON");
    let token = minted["token"].as_str().expect("a token");
    assert_eq!(answer(get(&server, "/v1/app/stream/orders.1", token)).await.status(), 200);
    assert_eq!(answer(get(&server, "/v1/app/stream/other", token)).await.status(), 403);
    let lives = minted["expiresAt"].as_u64().expect("a time") - server.clock.now().as_millis();
    assert!((5000..6000).contains(&lives), "{lives}");
    server.clock.advance(Duration::from_millis(lives));
    assert_eq!(answer(get(&server, "/v1/app/stream/orders.1", token)).await.status(), 401);
    for bad in [
        json!({}),
        json!({ "scope": "all" }),
        json!({ "scope": "read", "ttlSeconds": 0 }),
        json!({ "scope": "read", "streams": "***" }),
        json!({ "scope": "read", "streams": [1] }),
        json!({ "scope": "read", "exp": 1 }),
    ] {
        assert_eq!(answer(mint(bad.clone())).await.status(), 400, "{bad}");
    }
    let nowhere = server.post("/v1/projects/nowhere/tokens").bearer_auth(ADMIN_KEY);
    assert_eq!(answer(nowhere.json(&json!({ "scope": "read" }))).await.status(), 404);
}

#[tokio::test]
async fn a_rotated_key_counts_until_it_is_removed() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let old = token(&server, Scope::Read);
    let rotate = server.post("/v1/projects/app/keys").bearer_auth(ADMIN_KEY);
    let rotated: Value = answer(rotate).await.json().await.expect("JSON");
    let new_key = rotated["key"].as_str().expect("a key");
    let new = signed(&claims(&server, Scope::Read), new_key);
    for token in [&old, &new] {
        assert_eq!(answer(get(&server, "/v1/app/stream/s", token)).await.status(), 200);
    }
    let without_kid = hand_made(
        &json!({ "alg": "HS256" }),
        &json!({ "project": "app", "scope": "read", "exp": u32::MAX }),
        APP_KEY,
    );
    assert_eq!(
        answer(get(&server, "/v1/app/stream/s", &without_kid)).await.status(),
        200,
        "all keys are tried"
    );
    let old_kid = Key::parse(APP_KEY).expect("a key").kid().to_string();
    let path = format!("/v1/projects/app/keys/{old_kid}");
    assert_eq!(answer(server.request(Method::DELETE, &path).bearer_auth(ADMIN_KEY)).await.status(), 204);
    for token in [&old, &without_kid] {
        assert_eq!(answer(get(&server, "/v1/app/stream/s", token)).await.status(), 401);
    }
    assert_eq!(answer(get(&server, "/v1/app/stream/s", &new)).await.status(), 200);
}

#[tokio::test]
async fn a_new_admin_key_takes_the_place_of_the_old_one() {
    let server = closed().await;
    let first = server.projects().set_admin_key(None).await.expect("set");
    let list = |key: &str| server.request(Method::GET, "/v1/projects").bearer_auth(key);
    assert_eq!(answer(list(first.reveal())).await.status(), 200);
    let second = server.projects().set_admin_key(None).await.expect("set");
    assert_eq!(answer(list(first.reveal())).await.status(), 401);
    assert_eq!(answer(list(second.reveal())).await.status(), 200);
    created(&server, "/v1/app/stream/s").await;
    let read = get(&server, "/v1/app/stream/s", second.reveal());
    assert_eq!(answer(read).await.status(), 200, "the admin key may all that a manage token may");
    assert_eq!(answer(get(&server, "/v1/nowhere/stream/s", second.reveal())).await.status(), 401);
}

#[tokio::test]
async fn a_project_is_set_with_a_manage_token() {
    let server = closed().await;
    let manage = token(&server, Scope::Manage);
    let empty = json!({ "corsOrigins": [], "public": [], "hooks": { "sources": [] } });
    let read: Value = answer(get(&server, "/v1/config/app", &manage)).await.json().await.expect("JSON");
    assert_eq!(read, empty);
    let wanted = json!({ "corsOrigins": ["https://a.example"], "public": ["news.*"], "hooks": { "sources": ["stream"] } });
    let set = |body: &Value| server.put("/v1/config/app").bearer_auth(&manage).json(body);
    assert_eq!(answer(set(&wanted)).await.status(), 200);
    let read: Value = answer(get(&server, "/v1/config/app", &manage)).await.json().await.expect("JSON");
    assert_eq!(read, wanted);
    for bad in [
        json!({ "corsOrigins": ["example.com"] }),
        json!({ "public": ["***"] }),
        json!({ "hooks": { "sources": ["all"] } }),
        json!({ "cors_origins": [] }),
        json!({ "corsOrigins": vec!["*"; 257] }),
    ] {
        assert_eq!(answer(set(&bad)).await.status(), 400, "{bad}");
    }
    for scope in [Scope::Read, Scope::Write] {
        let token = token(&server, scope);
        assert_eq!(answer(get(&server, "/v1/config/app", &token)).await.status(), 403);
        assert_eq!(answer(server.put("/v1/config/app").bearer_auth(&token).json(&empty)).await.status(), 403);
    }
    assert_eq!(answer(server.request(Method::GET, "/v1/config/app")).await.status(), 401);
    assert_eq!(answer(get(&server, "/v1/config/other", &manage)).await.status(), 403);
    assert_eq!(answer(get(&server, "/v1/config/given", ADMIN_KEY)).await.status(), 200);
}

async fn make_public(server: &Harness, globs: &[&str]) {
    let manage = token(server, Scope::Manage);
    let set = server.put("/v1/config/app").bearer_auth(&manage).json(&json!({ "public": globs }));
    assert_eq!(answer(set).await.status(), 200);
}

#[tokio::test]
async fn anybody_reads_a_public_stream_and_nobody_writes_it() {
    let server = closed().await;
    created(&server, "/v1/app/stream/news.today").await;
    created(&server, "/v1/app/stream/secret").await;
    make_public(&server, &["news.*"]).await;
    let path = "/v1/app/stream/news.today";
    for method in [Method::GET, Method::HEAD] {
        assert_eq!(answer(server.request(method, path)).await.status(), 200);
    }
    for method in [Method::PUT, Method::POST, Method::DELETE] {
        assert_eq!(answer(server.request(method, path)).await.status(), 401);
    }
    assert_eq!(answer(server.request(Method::GET, "/v1/app/stream/secret")).await.status(), 401);
    assert_eq!(answer(get(&server, path, "a.bad.token")).await.status(), 401, "what is sent is checked");
    let elsewhere = Resources { streams: globs(&["secret"]), ..Resources::default() };
    let token = token_for(&server, Scope::Read, elsewhere);
    assert_eq!(answer(get(&server, path, &token)).await.status(), 200);
    let fork = put(
        &server,
        "/v1/app/stream/secret2",
        &token_for(&server, Scope::Write, Resources { streams: globs(&["secret2"]), ..Resources::default() }),
    );
    assert_eq!(answer(fork.header("stream-forked-from", path)).await.status(), 201);
}

/// Readers of one stream, by SSE and by long-poll, that have begun to wait.
async fn readers(
    server: &Harness,
    path: &str,
    token: Option<&str>,
) -> (Events, tokio::task::JoinHandle<Response>) {
    let request = |live: &str| {
        let request = server.request(Method::GET, &format!("{path}?offset=now&live={live}"));
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    };
    let before = server.clock.sleepers();
    let mut events = Events::of(answer(request("sse")).await);
    assert_eq!(events.next().await.expect("a first event").name, "control");
    let poll = request("long-poll");
    let poll = tokio::spawn(async move { poll.send().await.expect("an answer") });
    // The long-poll waits for its time, and for that of its token.
    let sleepers = if token.is_some() { 2 } else { 1 };
    until("the readers wait", || server.clock.sleepers() == before + sleepers).await;
    (events, poll)
}

/// They have gone, and nothing was heard.
async fn are_cut((mut events, poll): (Events, tokio::task::JoinHandle<Response>)) {
    let cut = async {
        assert_eq!(events.next().await, None);
        assert_eq!(poll.await.expect("no panic").status(), 401);
    };
    tokio::time::timeout(Duration::from_secs(30), cut).await.expect("the readers are cut");
}

#[tokio::test]
async fn readers_are_cut_when_their_key_is_removed_and_others_stay() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let new = server.projects().rotate_key(&project("app"), None).await.expect("rotated");
    let of_new = signed(&claims(&server, Scope::Read), new.key.reveal());
    let of_old = token(&server, Scope::Read);
    let stay = readers(&server, "/v1/app/stream/s", Some(&of_new)).await;
    let go = readers(&server, "/v1/app/stream/s", Some(&of_old)).await;
    let old = Key::parse(APP_KEY).expect("a key");
    server.projects().remove_key(&project("app"), old.kid()).await.expect("removed");
    are_cut(go).await;
    let (mut events, poll) = stay;
    assert_eq!(
        answer(post(&server, "/v1/app/stream/s", &signed(&claims(&server, Scope::Write), new.key.reveal())))
            .await
            .status(),
        204
    );
    assert_eq!(events.next().await.expect("an event").data, "x");
    assert_eq!(poll.await.expect("no panic").status(), 200);
}

#[tokio::test]
async fn readers_are_cut_when_their_project_is_removed() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let token = token(&server, Scope::Read);
    let readers = readers(&server, "/v1/app/stream/s", Some(&token)).await;
    let removed = server.request(Method::DELETE, "/v1/projects/app").bearer_auth(ADMIN_KEY);
    assert_eq!(answer(removed).await.status(), 204);
    let (mut events, poll) = readers;
    assert_eq!(events.next().await, None);
    // The stream goes as well, and the reader may hear of either first.
    assert!(
        [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND].contains(&poll.await.expect("no panic").status())
    );
}

#[tokio::test]
async fn readers_are_cut_when_their_token_expires() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let expires_at = server.clock.now() + Duration::from_secs(2);
    let short = signed(&Claims { expires_at, ..claims(&server, Scope::Read) }, APP_KEY);
    let readers = readers(&server, "/v1/app/stream/s", Some(&short)).await;
    server.clock.advance(Duration::from_secs(2));
    are_cut(readers).await;
}

#[tokio::test]
async fn readers_are_cut_when_their_stream_is_no_longer_public() {
    let server = closed().await;
    created(&server, "/v1/app/stream/news").await;
    make_public(&server, &["news"]).await;
    let readers = readers(&server, "/v1/app/stream/news", None).await;
    make_public(&server, &["**"]).await;
    make_public(&server, &["other"]).await;
    are_cut(readers).await;
}

#[tokio::test]
async fn a_key_that_goes_while_a_body_comes_does_not_count_for_it() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    server.projects().rotate_key(&project("app"), None).await.expect("rotated");
    let (tx, rx) = tokio::sync::mpsc::channel::<Result<bytes::Bytes, std::io::Error>>(1);
    let body = http::Body::wrap_stream(futures_util::stream::unfold(rx, |mut rx| async {
        Some((rx.recv().await?, rx))
    }));
    let token = token(&server, Scope::Write);
    let append =
        server.post("/v1/app/stream/s").bearer_auth(&token).header("content-type", "text/plain").body(body);
    let append = tokio::spawn(async move { append.send().await.expect("an answer") });
    tx.send(Ok("first".into())).await.expect("somebody listens");
    tx.send(Ok("second".into())).await.expect("somebody listens");
    // What is on its way has been validated by now: the server reads the body behind it.
    tx.reserve().await.expect("somebody listens");
    let old = Key::parse(APP_KEY).expect("a key");
    server.projects().remove_key(&project("app"), old.kid()).await.expect("removed");
    drop(tx);
    assert_eq!(append.await.expect("no panic").status(), 401);
    let status = answer(get(&server, "/v1/app/stream/s", ADMIN_KEY)).await.bytes().await.expect("a body");
    assert!(status.is_empty(), "{status:?}");
}

#[tokio::test]
async fn a_removed_project_loses_its_data_and_its_id_is_free_when_nothing_is_left() {
    let server = closed_on(TestStore::Embedded).await;
    let token = token(&server, Scope::Write);
    for stream in ["a", "b/c", "d"] {
        created(&server, &format!("/v1/app/stream/{stream}")).await;
        assert_eq!(answer(post(&server, &format!("/v1/app/stream/{stream}"), &token)).await.status(), 204);
    }
    let fork = put(&server, "/v1/app/stream/fork", &token).header("stream-forked-from", "/v1/app/stream/a");
    assert_eq!(answer(fork).await.status(), 201);
    let admin = |method: Method, path: &str| server.request(method, path).bearer_auth(ADMIN_KEY);
    assert_eq!(answer(admin(Method::DELETE, "/v1/projects/app")).await.status(), 204);
    assert_eq!(answer(get(&server, "/v1/app/stream/a", &token)).await.status(), 401);
    until("nothing is left", || server.projects().removing().is_empty()).await;
    let again = admin(Method::POST, "/v1/projects").json(&json!({ "project": "app", "key": APP_KEY }));
    assert_eq!(answer(again).await.status(), 201);
    for stream in ["a", "b/c", "d", "fork"] {
        let path = format!("/v1/app/stream/{stream}");
        assert_eq!(answer(get(&server, &path, &token)).await.status(), 404, "{stream}");
    }
}

#[tokio::test]
async fn a_browser_may_use_a_project_from_the_origins_it_is_set_to() {
    let server = closed().await;
    created(&server, "/v1/app/stream/s").await;
    let manage = token(&server, Scope::Manage);
    let allowed = |answer: &Response| {
        let header = answer.headers().get("access-control-allow-origin");
        header.map(|value| value.to_str().expect("plain text").to_owned())
    };
    let read = |origin: &str| get(&server, "/v1/app/stream/s", &manage).header("origin", origin);
    let none = answer(read("https://a.example")).await;
    assert_eq!((allowed(&none), none.headers().get("access-control-expose-headers")), (None, None));
    assert!(none.headers().get_all("vary").iter().any(|vary| vary == "Origin"));
    let set = server.put("/v1/config/app").bearer_auth(&manage);
    let origins = json!({ "corsOrigins": ["https://a.example", "https://b.example"] });
    assert_eq!(answer(set.json(&origins)).await.status(), 200);
    for origin in ["https://a.example", "https://b.example"] {
        let answer = answer(read(origin)).await;
        assert_eq!(allowed(&answer).as_deref(), Some(origin));
        assert!(answer.headers().get_all("vary").iter().any(|vary| vary == "Origin"));
        assert!(answer.headers().contains_key("access-control-expose-headers"));
    }
    for foreign in ["https://c.example", "https://a.example.c.example", "null"] {
        assert_eq!(allowed(&answer(read(foreign)).await), None, "{foreign}");
    }
    let refused = server.request(Method::GET, "/v1/app/stream/s").header("origin", "https://a.example");
    let refused = answer(refused).await;
    assert_eq!((refused.status().as_u16(), allowed(&refused).as_deref()), (401, Some("https://a.example")));
    let preflight = |path: &str, origin: &str| {
        server
            .request(Method::OPTIONS, path)
            .header("origin", origin)
            .header("access-control-request-method", "PUT")
    };
    let good = answer(preflight("/v1/app/stream/s", "https://a.example")).await;
    assert_eq!((good.status().as_u16(), allowed(&good).as_deref()), (204, Some("https://a.example")));
    let methods = good.headers()["access-control-allow-methods"].to_str().expect("plain text");
    assert!(methods.contains("PUT"), "{methods}");
    for (path, origin) in [
        ("/v1/app/stream/s", "https://c.example"),
        ("/v1/other/stream/s", "https://a.example"),
        ("/v1/nowhere/stream/s", "https://a.example"),
        ("/v1/projects", "https://a.example"),
    ] {
        let bad = answer(preflight(path, origin)).await;
        assert_eq!(
            (allowed(&bad), bad.headers().get("access-control-allow-methods")),
            (None, None),
            "{path}"
        );
    }
    let any = server.put("/v1/config/app").bearer_auth(&manage).json(&json!({ "corsOrigins": ["*"] }));
    assert_eq!(answer(any).await.status(), 200);
    assert_eq!(allowed(&answer(read("https://c.example")).await).as_deref(), Some("*"));
}

/// Lets in whoever says the password, until it is told not to, and keeps what it was asked.
#[derive(Default)]
struct Doorman {
    shut: AtomicBool,
    asked: AtomicUsize,
    last: std::sync::Mutex<Option<Route>>,
}

impl Authorize for Doorman {
    fn authorize<'a>(
        &'a self,
        route: &'a Route,
        credential: Option<&'a Credential>,
    ) -> futures_util::future::BoxFuture<'a, Result<Allowed, Denied>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            *self.last.lock().expect("nobody panics") = Some(route.clone());
            match credential.map(Credential::reveal) {
                None => Err(Denied::Unauthenticated("who are you?".into())),
                Some("sesame") if !self.shut.load(Ordering::SeqCst) => Ok(Allowed::default()),
                Some(_) => Err(Denied::Refused("not you".into())),
            }
        })
    }
}

#[tokio::test]
async fn an_application_can_decide_instead_and_is_asked_again_about_readers() {
    let doorman = Arc::new(Doorman::default());
    let server = Harness::with(Setup { doors: Doors::Custom(doorman.clone()), ..Setup::default() }).await;
    assert_eq!(answer(put(&server, "/v1/any/stream/a/b", "sesame")).await.status(), 201);
    let route = doorman.last.lock().expect("nobody panics").clone().expect("asked");
    let id = tidings_model::StreamId::parse("a/b").expect("a valid id");
    assert_eq!(
        route,
        Route { action: Action::Create, project: project("any"), resource: Resource::Stream(id) }
    );
    assert_eq!(refusal(get(&server, "/v1/any/stream/a/b", "other")).await, (403, "forbidden".into()));
    let nobody = server.request(Method::GET, "/v1/any/stream/a/b");
    assert_eq!(refusal(nobody).await, (401, "unauthorized".into()));
    let request = get(&server, "/v1/any/stream/a/b?offset=now&live=sse", "sesame");
    let mut events = Events::of(answer(request).await);
    assert_eq!(events.next().await.expect("a first event").name, "control");
    let asked = doorman.asked.load(Ordering::SeqCst);
    until("the reader and its watch wait", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(Duration::from_secs(4));
    until("it is asked again", || doorman.asked.load(Ordering::SeqCst) == asked + 1).await;
    until("the watch waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    doorman.shut.store(true, Ordering::SeqCst);
    server.clock.advance(Duration::from_secs(4));
    until("it is asked once more", || doorman.asked.load(Ordering::SeqCst) == asked + 2).await;
    until("the server waits", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(events.next().await, None);
    until("nothing is left of the reader", || server.clock.sleepers() == SLEEPERS).await;
    assert_eq!(
        answer(server.request(Method::GET, "/v1/projects").bearer_auth(ADMIN_KEY)).await.status(),
        200
    );
}

#[tokio::test]
async fn projects_and_keys_survive_a_kill() {
    let mut server = Process::serve(&[]).await;
    let client = http::Client::new();
    let send = async |request: RequestBuilder| answer(request).await;
    let create = client.post(server.url("/v1/projects")).json(&json!({ "project": "app", "key": APP_KEY }));
    assert_eq!(send(create).await.status(), 201);
    let rotated: Value =
        send(client.post(server.url("/v1/projects/app/keys"))).await.json().await.expect("JSON");
    let gone = json!({ "project": "gone", "key": OTHER_KEY });
    assert_eq!(send(client.post(server.url("/v1/projects")).json(&gone)).await.status(), 201);
    assert_eq!(send(client.delete(server.url("/v1/projects/gone"))).await.status(), 204);
    let config = json!({ "corsOrigins": ["https://a.example"], "public": ["p"], "hooks": { "sources": [] } });
    assert_eq!(send(client.put(server.url("/v1/config/app")).json(&config)).await.status(), 200);
    let old_kid = Key::parse(APP_KEY).expect("a key").kid().to_string();
    assert_eq!(
        send(client.delete(server.url(&format!("/v1/projects/app/keys/{old_kid}")))).await.status(),
        204
    );
    server.kill().await;

    let stored = StoredProjects::open(server.data()).expect("nobody has it open");
    let admin = stored.projects().set_admin_key(None).await.expect("set");
    drop(stored);

    let server = server.restart().await;
    let list: Value = send(client.get(server.url("/v1/projects")).bearer_auth(admin.reveal()))
        .await
        .json()
        .await
        .expect("JSON");
    assert_eq!(list["projects"], json!([{ "project": "app", "kids": [rotated["kid"]] }]));
    let read: Value = send(client.get(server.url("/v1/config/app"))).await.json().await.expect("JSON");
    assert_eq!(read, config);
    let token = |key: &str| {
        let claims = json!({ "project": "app", "scope": "write", "exp": u32::MAX });
        hand_made(&json!({ "alg": "HS256" }), &claims, key)
    };
    let put = |key: &str| client.put(server.url("/v1/app/stream/s")).bearer_auth(token(key));
    assert_eq!(send(put(APP_KEY)).await.status(), 401, "a removed key stays removed");
    assert_eq!(send(put(rotated["key"].as_str().expect("a key"))).await.status(), 201);
}

/// The binary with a log that has everything.
async fn serve_and_log_all(log: &std::path::Path, data: &std::path::Path) -> (tokio::process::Child, String) {
    let mut child = tokio::process::Command::new(binary())
        .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .env("TIDINGS_LOG", "trace")
        .stdout(std::process::Stdio::piped())
        .stderr(std::fs::File::create(log).expect("a log file"))
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = lines.next_line().await.expect("readable").expect("a line");
    let address = first.split("http://").nth(1).expect("an address").trim().to_owned();
    // Read on: a server whose output nobody reads must not stop.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, address)
}

#[tokio::test]
async fn no_log_at_any_level_has_a_secret() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let log = folder.path().join("log");
    let (mut child, address) = serve_and_log_all(&log, &folder.path().join("data")).await;
    let url = |path: &str| format!("http://{address}{path}");
    let claims = json!({ "project": "app", "scope": "write", "exp": u32::MAX });
    let good = hand_made(&json!({ "alg": "HS256" }), &claims, APP_KEY);
    let bad = hand_made(&json!({ "alg": "HS256" }), &claims, OTHER_KEY);
    let old = http::Client::new();
    let two = http::Client::http2();
    let mut minted = Vec::new();
    for (round, client) in [old, two].into_iter().enumerate() {
        let create = json!({ "project": "app", "key": APP_KEY });
        assert!(
            [201, 409]
                .contains(&answer(client.post(url("/v1/projects")).json(&create)).await.status().as_u16())
        );
        let broken = format!(r#"{{ "project": "app", "key": "{APP_KEY}", "key": "#);
        assert_eq!(answer(client.post(url("/v1/projects")).body(broken)).await.status(), 400);
        let mistyped = json!({ "project": "app", "key": [APP_KEY], APP_KEY: 1 });
        let told = answer(client.post(url("/v1/projects")).json(&mistyped)).await.text().await.expect("text");
        assert!(!told.contains(APP_KEY), "{told}");
        let token: Value =
            answer(client.post(url("/v1/projects/app/tokens")).json(&json!({ "scope": "read" })))
                .await
                .json()
                .await
                .expect("JSON");
        minted.push(token["token"].as_str().expect("a token").to_owned());
        let stream = url(&format!("/v1/app/stream/s{round}"));
        assert_eq!(answer(client.put(&stream).bearer_auth(&good)).await.status(), 201);
        assert_eq!(answer(client.get(format!("{stream}?offset=-1&token={good}"))).await.status(), 200);
        assert_eq!(
            answer(client.get(format!("{stream}?offset=now&live=sse&token={good}"))).await.status(),
            200
        );
        assert_eq!(answer(client.get(format!("{stream}?offset=nonsense&token={good}"))).await.status(), 400);
        for refused in [client.get(&stream).bearer_auth(&bad), client.get(format!("{stream}?token={bad}"))] {
            assert_eq!(answer(refused).await.status(), 401);
        }
        assert_eq!(answer(client.get(url(&format!("/nowhere?token={bad}")))).await.status(), 404);
    }
    child.kill().await.expect("it was running");
    let log = std::fs::read_to_string(&log).expect("readable");
    assert!(log.contains("/v1/{project}/stream/{id}"), "the log has every request: {log}");
    let payload = |token: &str| token.split('.').nth(1).expect("three parts").to_owned();
    let signature = |token: &str| token.rsplit('.').next().expect("three parts").to_owned();
    let api_token = Key::parse(APP_KEY).expect("a key").api_key(&project("app"));
    let mut secrets = vec![APP_KEY.to_owned(), OTHER_KEY.to_owned(), api_token, payload(&good)];
    secrets.extend([&good, &bad].into_iter().chain(&minted).map(|token| signature(token)));
    for secret in secrets {
        let line = log.lines().find(|line| line.contains(&secret));
        assert_eq!(line, None, "{secret}");
    }
}
