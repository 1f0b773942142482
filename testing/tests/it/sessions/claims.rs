//! What each kind of credential gains at each route, as one table: claims down, routes across.

use std::time::Duration;

use tidings_auth::{Claims, Key, Resources, Scope, TopicGrants};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId};
use tidings_testing::Doors;

use super::*;

const KEY: &str = "the-signing-key-of-app";

/// Sessions that hear `news`. Each is there for requests that change it.
const SESSIONS: [&str; 6] = ["alice", "bob", "closed", "published", "deleted", "ended"];

fn project() -> ProjectId {
    ProjectId::parse("app").expect("a valid id")
}

fn token(server: &Harness, scope: Scope, resources: Resources) -> String {
    let expires_at = server.clock.now() + Duration::from_secs(600);
    let claims = Claims { resources, ..Claims::new(project(), scope, expires_at) };
    claims.sign(&Key::parse(KEY).expect("a valid key"))
}

/// A server with the streams `news` and `sport`, and the sessions, which have got one message.
async fn scene() -> Harness {
    let doors = Doors::Closed { created: vec![("app", KEY)], given: vec![] };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let all = token(&server, Scope::Manage, Resources::default());
    for source in ["news", "sport"] {
        let put = server.put(&format!("/v1/app/stream/{source}")).header("content-type", "application/json");
        assert_eq!(answer(put.bearer_auth(&all)).await.status(), 201);
    }
    for session in SESSIONS {
        assert_eq!(answer(subscribing(&server, session, "news").bearer_auth(&all)).await.status(), 201);
    }
    let publish = server.post("/v1/app/publish/news").header("content-type", "application/json").body("1");
    assert_eq!(answer(publish.bearer_auth(&all)).await.status(), 204);
    server
}

/// Every route that a credential of a project opens on streams and sessions. Those that end something come last, each with a
/// session of its own.
fn routes(server: &Harness) -> Vec<(&'static str, RequestBuilder)> {
    let get = |path: &str| server.request(Method::GET, &format!("/v1/app{path}"));
    let post = |path: &str, body: &'static str| {
        server.post(&format!("/v1/app{path}")).header("content-type", "application/json").body(body)
    };
    let put = |path: &str| server.put(&format!("/v1/app{path}")).header("content-type", "application/json");
    let closing = |path: &str| server.post(&format!("/v1/app{path}")).header("stream-closed", "true");
    let delete = |path: &str| server.request(Method::DELETE, &format!("/v1/app{path}"));
    let head = |path: &str| server.request(Method::HEAD, &format!("/v1/app{path}"));
    let subscribe = |session: &str, source: &str, envelope: Option<bool>| {
        let mut wanted = json!({ "sessionId": session, "streamId": source });
        if let Some(envelope) = envelope {
            wanted["envelope"] = envelope.into();
        }
        server.post("/v1/app/subscribe").json(&wanted)
    };
    let same_as_session =
        || put("/stream/alice").header("stream-ttl", "1800").header("stream-max-age", "86400");
    vec![
        ("read news", get("/stream/news")),
        ("head news", head("/stream/news")),
        ("append news", post("/stream/news", "2")),
        ("publish news", post("/publish/news", "3")),
        ("create news.1", put("/stream/news.1")),
        ("fork news", put("/stream/news.2").header("stream-forked-from", "/v1/app/stream/news")),
        ("delete news.1", delete("/stream/news.1")),
        ("read sport", get("/stream/sport")),
        ("append sport", post("/stream/sport", "2")),
        ("publish sport", post("/publish/sport", "2")),
        ("list", get("/streams")),
        ("list sessions", get("/streams?sessions=true")),
        ("config", server.request(Method::GET, "/v1/config/app")),
        ("read alice", get("/stream/alice?offset=-1")),
        ("read session:alice", get("/stream/session:alice")),
        ("sse alice", get("/stream/alice?offset=-1&live=sse")),
        ("long-poll alice", get("/stream/alice?offset=-1&live=long-poll")),
        ("websocket alice", get("/stream/alice?offset=-1&live=websocket")),
        ("head alice", head("/stream/alice")),
        ("fork alice", put("/stream/news.3").header("stream-forked-from", "/v1/app/stream/alice")),
        (
            "fork session:alice",
            put("/stream/news.4").header("stream-forked-from", "/v1/app/stream/session:alice"),
        ),
        ("create alice", same_as_session()),
        ("append alice", post("/stream/alice", "4")),
        ("publish alice", post("/publish/alice", "4")),
        ("get alice", get("/session/alice")),
        ("touch alice", server.post("/v1/app/session/alice/touch")),
        ("subscribe alice news", subscribe("alice", "news", None)),
        ("subscribe alice sport", subscribe("alice", "sport", None)),
        ("envelope alice news", subscribe("alice", "news", Some(true))),
        ("subscribe new news", subscribe("new", "news", None)),
        ("subscribe news.9 news", subscribe("news.9", "news", None)),
        ("unsubscribe alice news", unsubscribing(server, "alice", "news")),
        ("get bob", get("/session/bob")),
        ("read bob", get("/stream/bob")),
        ("subscribe bob news", subscribe("bob", "news", None)),
        ("close closed", closing("/stream/closed")),
        ("publish-close published", closing("/publish/published")),
        ("delete stream deleted", delete("/stream/deleted")),
        ("delete session ended", delete("/session/ended")),
    ]
}

/// Sends every request. What is not among the expected must be refused with this status.
async fn gains(
    claims: &str,
    credential: impl Fn(&Harness) -> Option<String>,
    refused: u16,
    expected: &[(&str, u16)],
) {
    let server = scene().await;
    let credential = credential(&server);
    for (name, _) in expected {
        assert!(routes(&server).iter().any(|(route, _)| route == name), "{name} is no route of the table");
    }
    for (route, request) in routes(&server) {
        let request = match &credential {
            Some(credential) => request.bearer_auth(credential),
            None => request,
        };
        let status = answer(request).await.status().as_u16();
        let expected =
            expected.iter().find(|(name, _)| *name == route).map_or(refused, |(_, status)| *status);
        assert_eq!(status, expected, "{claims}: {route}");
    }
}

fn globs(texts: &[&str]) -> Option<Vec<Pattern>> {
    Some(texts.iter().map(|text| Pattern::parse(text).expect("a valid glob")).collect())
}

const ON_NEWS: [(&str, u16); 4] =
    [("read news", 200), ("head news", 200), ("append news", 204), ("publish news", 204)];
const ON_NEWS_AND_BELOW: [(&str, u16); 7] = [
    ("read news", 200),
    ("head news", 200),
    ("append news", 204),
    ("publish news", 204),
    ("create news.1", 201),
    ("fork news", 201),
    ("delete news.1", 204),
];

#[tokio::test]
async fn claims_that_name_streams_open_those_and_nothing_of_any_session() {
    let none = Resources::default;
    let one = || Resources { stream_id: Some("news".into()), ..none() };
    gains("stream_id", |server| Some(token(server, Scope::Manage, one())), 403, &ON_NEWS).await;
    let some = || Resources { streams: globs(&["news", "news.*"]), ..none() };
    gains("streams", |server| Some(token(server, Scope::Manage, some())), 403, &ON_NEWS_AND_BELOW).await;
    // Globs that match the names of sessions do not make them streams.
    let every = || Resources { streams: globs(&["**"]), ..none() };
    let expected: Vec<_> = ON_NEWS_AND_BELOW
        .into_iter()
        .chain([("read sport", 200), ("append sport", 204), ("publish sport", 204)])
        .collect();
    gains("streams **", |server| Some(token(server, Scope::Manage, every())), 403, &expected).await;
    let named = || Resources { stream_id: Some("alice".into()), ..none() };
    gains("stream_id of a session", |server| Some(token(server, Scope::Manage, named())), 403, &[]).await;
    let read = ["read news", "head news", "read sport"].map(|name| (name, 200));
    gains("streams ** to read", |server| Some(token(server, Scope::Read, every())), 403, &read).await;
}

#[tokio::test]
async fn claims_of_other_kinds_open_nothing_of_streams_and_sessions() {
    let none = Resources::default;
    for (name, resources) in [
        ("rooms", Resources { rooms: globs(&["**"]), ..none() }),
        ("topics", Resources { topics: globs(&["**"]).map(TopicGrants::both), ..none() }),
        (
            "topics to subscribe to",
            Resources {
                topics: Some(TopicGrants { subscribe: globs(&["**"]).unwrap_or_default(), publish: vec![] }),
                ..none()
            },
        ),
        ("no topics", Resources { topics: Some(TopicGrants::default()), ..none() }),
        ("entities", Resources { entities: globs(&["**"]), ..none() }),
        ("no streams", Resources { streams: Some(vec![]), ..none() }),
    ] {
        gains(name, |server| Some(token(server, Scope::Manage, resources.clone())), 403, &[]).await;
    }
}

#[tokio::test]
async fn a_session_claim_opens_its_session_and_nothing_else() {
    const OWN: [(&str, u16); 9] = [
        ("read alice", 200),
        ("read session:alice", 200),
        ("sse alice", 200),
        ("long-poll alice", 200),
        // It is let in, and told that it does not ask as one asks for a WebSocket.
        ("websocket alice", 426),
        ("head alice", 200),
        ("get alice", 200),
        ("touch alice", 200),
        ("subscribe alice news", 200),
    ];
    let alice = || Resources { session: Some("alice".into()), ..Resources::default() };
    let all: Vec<_> = OWN
        .into_iter()
        .chain([
            ("subscribe alice sport", 200),
            ("envelope alice news", 200),
            ("unsubscribe alice news", 204),
        ])
        .collect();
    for scope in [Scope::Read, Scope::Manage] {
        gains("session", |server| Some(token(server, scope, alice())), 403, &all).await;
    }
    let narrow = || Resources { streams: globs(&["news"]), ..alice() };
    let within: Vec<_> =
        OWN.into_iter().chain([("envelope alice news", 200), ("unsubscribe alice news", 204)]).collect();
    gains("session, streams", |server| Some(token(server, Scope::Read, narrow())), 403, &within).await;
    // The stream of that name is no session.
    let stream = || Resources { session: Some("news".into()), ..Resources::default() };
    gains("session of a stream's name", |server| Some(token(server, Scope::Manage, stream())), 403, &[])
        .await;
}

#[tokio::test]
async fn an_api_key_publishes_to_streams_and_does_nothing_to_sessions() {
    let key = |_: &Harness| Some(Key::parse(KEY).expect("a valid key").api_key(&project()));
    gains("API key", key, 403, &[("publish news", 204), ("publish sport", 204)]).await;
}

#[tokio::test]
async fn a_token_without_resource_claims_does_what_its_scope_says() {
    const READ: [(&str, u16); 20] = [
        ("read news", 200),
        ("head news", 200),
        ("read sport", 200),
        ("list", 200),
        ("list sessions", 200),
        ("read alice", 200),
        ("read session:alice", 200),
        ("sse alice", 200),
        ("long-poll alice", 200),
        ("websocket alice", 426),
        ("head alice", 200),
        ("get alice", 200),
        ("touch alice", 200),
        ("subscribe alice news", 200),
        ("subscribe alice sport", 200),
        ("envelope alice news", 200),
        ("subscribe new news", 201),
        ("subscribe news.9 news", 201),
        ("get bob", 200),
        ("read bob", 200),
    ];
    let wide = |scope| move |server: &Harness| Some(token(server, scope, Resources::default()));
    let with_bob: Vec<_> = READ.into_iter().chain([("subscribe bob news", 200)]).collect();
    gains("read", wide(Scope::Read), 403, &with_bob).await;
    let write: Vec<_> = with_bob
        .into_iter()
        .chain(ON_NEWS_AND_BELOW)
        .chain([
            ("append sport", 204),
            ("publish sport", 204),
            ("fork alice", 201),
            ("fork session:alice", 201),
            ("create alice", 200),
            ("unsubscribe alice news", 204),
            ("close closed", 204),
            ("publish-close published", 204),
            ("delete stream deleted", 204),
            ("delete session ended", 204),
        ])
        .collect();
    gains("write", wide(Scope::Write), 403, &write).await;
}

#[tokio::test]
async fn public_globs_open_streams_and_never_sessions() {
    let server = scene().await;
    let manage = token(&server, Scope::Manage, Resources::default());
    let config = server.put("/v1/config/app").bearer_auth(&manage).json(&json!({ "public": ["**"] }));
    assert_eq!(answer(config).await.status(), 200);
    let public = ["read news", "head news", "read sport"];
    let other = Resources { streams: globs(&["other"]), ..Resources::default() };
    let other = token(&server, Scope::Manage, other);
    for (route, request) in routes(&server) {
        let expected = if public.contains(&route) { 200 } else { 401 };
        assert_eq!(answer(request).await.status().as_u16(), expected, "without a token: {route}");
    }
    for (route, request) in routes(&server) {
        let expected = if public.contains(&route) { 200 } else { 403 };
        let status = answer(request.bearer_auth(&other)).await.status().as_u16();
        assert_eq!(status, expected, "with a token for others: {route}");
    }
    // Who may write one stream may not carry a session over into it.
    let news = Resources { streams: globs(&["news.*"]), ..Resources::default() };
    let news = token(&server, Scope::Write, news);
    for (route, request) in routes(&server).into_iter().filter(|(route, _)| route.starts_with("fork ")) {
        let expected = if route == "fork news" { 201 } else { 403 };
        assert_eq!(answer(request.bearer_auth(&news)).await.status().as_u16(), expected, "{route}");
    }
}

#[tokio::test]
async fn whoever_may_not_read_a_session_does_not_keep_it_alive() {
    let server = scene().await;
    let manage = token(&server, Scope::Manage, Resources::default());
    let config = server.put("/v1/config/app").bearer_auth(&manage).json(&json!({ "public": ["**"] }));
    assert_eq!(answer(config).await.status(), 200);
    server.clock.advance(Duration::from_secs(300));
    let every = token(&server, Scope::Manage, Resources { streams: globs(&["**"]), ..Resources::default() });
    let look = async || {
        let get = server.request(Method::GET, "/v1/app/session/alice");
        let manage = token(&server, Scope::Manage, Resources::default());
        body(answer(get.bearer_auth(manage)).await).await["expiresAt"].as_u64().expect("a time")
    };
    let before = look().await;
    for path in ["/v1/app/stream/alice", "/v1/app/stream/alice?offset=-1&live=sse"] {
        assert_eq!(answer(server.request(Method::GET, path).bearer_auth(&every)).await.status(), 403);
        assert_eq!(answer(server.request(Method::GET, path)).await.status(), 401);
    }
    assert_eq!(look().await, before);
}
