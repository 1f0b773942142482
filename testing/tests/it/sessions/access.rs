//! Who may do what with sessions.

use std::time::Duration;

use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId};
use tidings_testing::sse::Events;
use tidings_testing::{ADMIN_KEY, Doors};

use super::*;

const KEY: &str = "the-signing-key-of-app";

async fn closed() -> Harness {
    let doors =
        Doors::Closed { created: vec![("app", KEY), ("other", "the-signing-key-of-other")], given: vec![] };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let write = token(&server, Scope::Write, Resources::default());
    for source in ["news", "sport"] {
        let put = server.put(&format!("/v1/app/stream/{source}")).header("content-type", "text/plain");
        assert_eq!(answer(put.bearer_auth(&write)).await.status(), 201);
    }
    for session in ["alice", "bob"] {
        assert_eq!(answer(subscribing(&server, session, "news").bearer_auth(&write)).await.status(), 201);
    }
    server
}

fn token(server: &Harness, scope: Scope, resources: Resources) -> String {
    let project = ProjectId::parse("app").expect("a valid id");
    let claims =
        Claims { resources, ..Claims::new(project, scope, server.clock.now() + Duration::from_secs(3600)) };
    claims.sign(&Key::parse(KEY).expect("a valid key"))
}

fn of_session(session: &str) -> Resources {
    Resources { session: Some(session.into()), ..Resources::default() }
}

fn of_streams(globs: &[&str]) -> Resources {
    let globs = globs.iter().map(|glob| Pattern::parse(glob).expect("a valid glob")).collect();
    Resources { streams: Some(globs), ..Resources::default() }
}

/// One request of each kind about a session and a source.
fn requests(server: &Harness, session: &str) -> [(&'static str, RequestBuilder); 7] {
    [
        ("subscribe", subscribing(server, session, "news")),
        ("get", server.request(Method::GET, &format!("/v1/app/session/{session}"))),
        ("touch", server.post(&format!("/v1/app/session/{session}/touch"))),
        ("read", server.request(Method::GET, &format!("/v1/app/stream/session:{session}"))),
        ("publish", publishing(server, "news", "x")),
        ("unsubscribe", unsubscribing(server, session, "sport")),
        ("delete", server.request(Method::DELETE, &format!("/v1/app/session/{session}"))),
    ]
}

async fn allowed(server: &Harness, session: &str, token: &str) -> Vec<&'static str> {
    let mut allowed = Vec::new();
    for (name, request) in requests(server, session) {
        let answer = answer(request.bearer_auth(token)).await;
        match answer.status().as_u16() {
            200..=299 => allowed.push(name),
            403 => assert_eq!(body(answer).await["error"]["code"], "forbidden", "{name}"),
            other => panic!("{name}: {other}"),
        }
    }
    allowed
}

#[tokio::test]
async fn a_token_for_a_session_does_not_read_a_stream_that_is_none() {
    let server = closed().await;
    let token = token(&server, Scope::Read, of_session("news"));
    for path in
        ["/v1/app/stream/news", "/v1/app/stream/session:news", "/v1/app/stream/news?offset=-1&live=sse"]
    {
        let answer = answer(server.request(Method::GET, path).bearer_auth(&token)).await;
        assert_eq!(
            (answer.status().as_u16(), body(answer).await["error"]["code"].as_str()),
            (403, Some("forbidden"))
        );
    }
    let head = answer(server.request(Method::HEAD, "/v1/app/stream/news").bearer_auth(&token)).await;
    assert_eq!(head.status(), 403);
}

#[tokio::test]
async fn each_operation_needs_its_scope() {
    let reading = vec!["subscribe", "get", "touch", "read"];
    let all = vec!["subscribe", "get", "touch", "read", "publish", "unsubscribe", "delete"];
    for (scope, expected) in [(Scope::Read, &reading), (Scope::Write, &all), (Scope::Manage, &all)] {
        let server = closed().await;
        let token = token(&server, scope, Resources::default());
        assert_eq!(allowed(&server, "alice", &token).await, *expected, "{scope:?}");
    }
}

#[tokio::test]
async fn a_session_token_is_for_its_session_whatever_its_scope() {
    for scope in [Scope::Read, Scope::Write, Scope::Manage] {
        let server = closed().await;
        let token = token(&server, scope, of_session("alice"));
        let own = ["subscribe", "get", "touch", "read", "unsubscribe"];
        assert_eq!(allowed(&server, "alice", &token).await, own, "{scope:?}");
        assert!(allowed(&server, "bob", &token).await.is_empty(), "{scope:?}");
    }
    let server = closed().await;
    let narrow = Resources { session: Some("alice".into()), ..of_streams(&["sport"]) };
    let narrow = token(&server, Scope::Read, narrow);
    let status =
        async |source| answer(subscribing(&server, "alice", source).bearer_auth(&narrow)).await.status();
    assert_eq!(status("sport").await, 200);
    assert_eq!(status("news").await, 403);
}

#[tokio::test]
async fn strangers_are_told_apart_from_those_who_may_not() {
    let server = closed().await;
    for (name, request) in requests(&server, "alice") {
        let answer = answer(request).await;
        assert_eq!(answer.status(), 401, "{name}");
        assert_eq!(body(answer).await["error"]["code"], "token_missing", "{name}");
    }
    let lives = Duration::from_secs(3600);
    let all = |lives| claims(&server, Scope::Manage, Resources::default(), lives);
    let foreign = Claims { project: ProjectId::parse("other").expect("a valid id"), ..all(lives) };
    let key = |text| Key::parse(text).expect("a valid key");
    let refused = [
        ("of another project", foreign.sign(&key("the-signing-key-of-other")), 403, "wrong_project"),
        ("forged", all(lives).sign(&key("the-signing-key-of-other")), 401, "unauthorized"),
        ("expired", all(Duration::ZERO).sign(&key(KEY)), 401, "token_expired"),
    ];
    for (what, token, status, code) in refused {
        for (name, request) in requests(&server, "alice") {
            let answer = answer(request.bearer_auth(&token)).await;
            assert_eq!(answer.status().as_u16(), status, "{what}: {name}");
            assert_eq!(body(answer).await["error"]["code"], code, "{what}: {name}");
        }
    }
}

#[tokio::test]
async fn an_api_key_may_publish_and_nothing_else() {
    let server = closed().await;
    let new = server.post("/v1/projects").bearer_auth(ADMIN_KEY).json(&json!({ "project": "shop" }));
    let new = body(answer(new).await).await;
    let (api_key, signing) = (new["apiKey"].as_str().expect("a key"), new["key"].as_str().expect("a key"));
    let shop = ProjectId::parse("shop").expect("a valid id");
    let claims = Claims::new(shop, Scope::Write, server.clock.now() + Duration::from_secs(60));
    let write = claims.sign(&Key::parse(signing).expect("a valid key"));
    let put = server.put("/v1/shop/stream/orders").header("content-type", "text/plain").bearer_auth(write);
    assert_eq!(answer(put).await.status(), 201);
    let publish = server.post("/v1/shop/publish/orders").header("content-type", "text/plain").body("x");
    assert_eq!(answer(publish.bearer_auth(api_key)).await.status(), 204);
    let pair = json!({ "sessionId": "alice", "streamId": "orders" });
    let subscribe = server.post("/v1/shop/subscribe").json(&pair).bearer_auth(api_key);
    assert_eq!(answer(subscribe).await.status(), 403);
}

/// A live reader of alice's session that has heard that it is up to date.
async fn follow(server: &Harness, token: &str) -> Events {
    let read = server.request(Method::GET, "/v1/app/stream/alice?offset=-1&live=sse").bearer_auth(token);
    let mut events = Events::of(answer(read).await);
    assert!(events.next().await.is_some_and(|event| event.name == "control"));
    events
}

/// The reader's answer ends, without another event.
async fn is_cut(mut events: Events) {
    let end = tokio::time::timeout(Duration::from_secs(30), events.next()).await;
    assert_eq!(end.expect("the reader is cut"), None);
}

/// The reader hears what is published now.
async fn hears_on(server: &Harness, mut events: Events, write: &str) {
    let publish = publishing(server, "news", "x").bearer_auth(write);
    assert_eq!(answer(publish).await.status(), 204);
    assert_eq!(events.next().await.expect("an event").data, "x");
}

fn claims(server: &Harness, scope: Scope, resources: Resources, lives: Duration) -> Claims {
    let expires_at = server.clock.now() + lives;
    let project = ProjectId::parse("app").expect("a valid id");
    Claims { resources, ..Claims::new(project, scope, expires_at) }
}

#[tokio::test]
async fn a_reader_whose_token_expires_is_cut() {
    let server = closed().await;
    let lasting = token(&server, Scope::Read, of_session("alice"));
    let short = claims(&server, Scope::Read, of_session("alice"), Duration::from_secs(5));
    let short = short.sign(&Key::parse(KEY).expect("a valid key"));
    let (stays, goes) = (follow(&server, &lasting).await, follow(&server, &short).await);
    // Long before an answer of events ends by itself.
    server.clock.advance(Duration::from_secs(5));
    is_cut(goes).await;
    hears_on(&server, stays, &token(&server, Scope::Write, Resources::default())).await;
}

#[tokio::test]
async fn a_reader_whose_key_is_removed_is_cut() {
    let server = closed().await;
    let app = ProjectId::parse("app").expect("a valid id");
    let new = server.projects().rotate_key(&app, None).await.expect("rotated").key;
    let with_new = |scope, resources| claims(&server, scope, resources, Duration::from_secs(3600)).sign(&new);
    let stays = follow(&server, &with_new(Scope::Read, of_session("alice"))).await;
    let goes = follow(&server, &token(&server, Scope::Read, of_session("alice"))).await;
    let old = Key::parse(KEY).expect("a valid key");
    server.projects().remove_key(&app, old.kid()).await.expect("removed");
    is_cut(goes).await;
    hears_on(&server, stays, &with_new(Scope::Write, Resources::default())).await;
}

#[tokio::test]
async fn a_write_token_closes_and_deletes_a_session_through_its_stream() {
    let server = closed().await;
    let read = token(&server, Scope::Read, Resources::default());
    let write = token(&server, Scope::Write, Resources::default());
    let close = || server.post("/v1/app/stream/alice").header("stream-closed", "true");
    let delete = || server.request(Method::DELETE, "/v1/app/stream/alice");
    for request in [close(), delete()] {
        assert_eq!(answer(request.bearer_auth(&read)).await.status(), 403);
    }
    let subscribers = async || {
        let publish = answer(publishing(&server, "news", "x").bearer_auth(&write)).await;
        told(&publish)
    };
    assert_eq!(subscribers().await, inline(2));
    assert_eq!(answer(close().bearer_auth(&write)).await.status(), 204);
    let head = answer(server.request(Method::HEAD, "/v1/app/stream/alice").bearer_auth(&read)).await;
    assert_eq!(header(&head, "stream-closed"), "true");
    assert_eq!(subscribers().await, ("inline".to_owned(), 2, 1, 1));
    assert_eq!(answer(delete().bearer_auth(&write)).await.status(), 204);
    let get = server.request(Method::GET, "/v1/app/session/alice").bearer_auth(&read);
    assert_eq!(answer(get).await.status(), 404);
    assert_eq!(subscribers().await, inline(1), "its subscriptions went with it");
}

#[tokio::test]
async fn browsers_may_see_how_it_was_fanned_out_where_the_project_lets_them() {
    let server = Harness::start().await;
    create(&server, "news", "text/plain").await;
    let publish = answer(publishing(&server, "news", "x").header("origin", "http://localhost:5173")).await;
    let exposed = header(&publish, "access-control-expose-headers").to_lowercase();
    for name in ["count", "successes", "failures", "mode"] {
        assert!(exposed.contains(&format!("stream-fanout-{name}")), "{exposed}");
    }
    let server = closed().await;
    let manage = token(&server, Scope::Manage, Resources::default());
    let config = server.put("/v1/config/app").bearer_auth(&manage);
    let config = config.json(&json!({ "corsOrigins": ["https://example.com"] }));
    assert_eq!(answer(config).await.status(), 200);
    for (origin, let_in) in [("https://example.com", true), ("https://evil.example", false)] {
        let subscribe = subscribing(&server, "alice", "news").bearer_auth(&manage).header("origin", origin);
        let answer = answer(subscribe).await;
        assert_eq!(answer.headers().contains_key("access-control-allow-origin"), let_in, "{origin}");
    }
}
