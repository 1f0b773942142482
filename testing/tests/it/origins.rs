//! Pages that open WebSockets: only those of origins that the project allows.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_auth::{Claims, Key, Scope};
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_testing::http::{Method, RequestBuilder};
use tidings_testing::{Doors, Harness, Setup, until};

const KEY: &str = "the-signing-key-of-app";

fn token(server: &Harness) -> String {
    let project = ProjectId::parse("app").expect("a valid id");
    let claims = Claims::new(project, Scope::Manage, server.clock.now() + Duration::from_secs(3600));
    Claims { user: Some("alice".into()), ..claims }.sign(&Key::parse(KEY).expect("a valid key"))
}

/// Makes a stream, a session and a room in `app`.
async fn furnish(server: &Harness) {
    let token = token(server);
    let sends = async |request: RequestBuilder, status: u16| {
        assert_eq!(request.bearer_auth(&token).send().await.expect("an answer").status(), status);
    };
    sends(server.put("/v1/app/stream/s").header("content-type", "text/plain"), 201).await;
    let subscribe = json!({ "sessionId": "alice", "streamId": "s" });
    sends(server.post("/v1/app/subscribe").json(&subscribe), 201).await;
    sends(server.post("/v1/app/rooms/r/members").json(&json!({ "add": ["alice"] })), 200).await;
}

/// Every kind of path that becomes a WebSocket.
const PATHS: [&str; 5] = [
    "/v1/app/stream/s?offset=now&live=websocket",
    "/v1/app/stream/alice?offset=now&live=websocket",
    "/v1/app/stream/session:alice?offset=now&live=websocket",
    "/v1/app/rooms/r/events",
    "/x/blue.catbird.mls.subscribeConvoEvents.ws?convoId=r",
];

/// Asks for a WebSocket with these origins, and tells the status and the code.
async fn handshake(server: &Harness, path: &str, origins: &[&str], token: Option<&str>) -> (u16, String) {
    let mut request = server
        .request(Method::GET, path)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    for origin in origins {
        request = request.header("origin", *origin);
    }
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    if status == 101 {
        return (status, String::new());
    }
    let body: Value = answer.json().await.expect("JSON");
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

async fn allow(server: &Harness, origins: &[&str]) {
    let config = server.put("/v1/config/app").bearer_auth(token(server));
    let config = config.json(&json!({ "corsOrigins": origins })).send().await.expect("an answer");
    assert_eq!(config.status(), 200);
}

fn opened() -> (u16, String) {
    (101, String::new())
}

fn refused() -> (u16, String) {
    (403, "origin_not_allowed".into())
}

#[tokio::test]
async fn a_page_opens_a_websocket_only_if_the_project_allows_its_origin() {
    let doors = Doors::Closed { created: vec![("app", KEY)], given: vec![] };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    furnish(&server).await;
    let token = token(&server);
    let (page, other) = ("https://app.example.com", "https://evil.example");
    for path in PATHS {
        allow(&server, &[]).await;
        let asks = async |origins: &[&str]| handshake(&server, path, origins, Some(&token)).await;
        assert_eq!(asks(&[]).await, opened(), "{path}: it is no browser");
        let own = server.url("");
        for origin in [page, other, "null", "", "http://localhost:5173", own.trim_end_matches('/')] {
            assert_eq!(asks(&[origin]).await, refused(), "{path}: {origin}");
        }
        allow(&server, &[page]).await;
        assert_eq!(asks(&[page]).await, opened(), "{path}");
        for origins in
            [&[other][..], &["null"], &["https://app.example.com:444"], &[page, other], &[page, page]]
        {
            assert_eq!(asks(origins).await, refused(), "{path}: {origins:?}");
        }
        allow(&server, &["*"]).await;
        for origin in [page, other, "null"] {
            assert_eq!(asks(&[origin]).await, opened(), "{path}: {origin}");
        }
    }
    until("they have gone", || server.server().live_connections().is_empty()).await;
}

#[tokio::test]
async fn in_dev_pages_of_this_machine_open_websockets_and_others_only_if_they_are_allowed() {
    let server = Harness::start().await;
    // Any project exists, but a token is checked, and needs a key.
    let create = server.post("/v1/projects").json(&json!({ "project": "app", "key": KEY }));
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    furnish(&server).await;
    let token = token(&server);
    for path in PATHS {
        allow(&server, &[]).await;
        for origin in ["http://localhost:5173", "http://127.0.0.1:1", "https://[::1]"] {
            assert_eq!(handshake(&server, path, &[origin], Some(&token)).await, opened(), "{path}: {origin}");
        }
        for origin in ["https://evil.example", "null", "http://localhost.evil.example"] {
            assert_eq!(
                handshake(&server, path, &[origin], Some(&token)).await,
                refused(),
                "{path}: {origin}"
            );
            // Without a credential it is refused as any request of a page of elsewhere.
            assert_eq!(handshake(&server, path, &[origin], None).await.0, 403, "{path}: {origin}");
        }
        allow(&server, &["https://app.example.com"]).await;
        let listed = handshake(&server, path, &["https://app.example.com"], Some(&token)).await;
        assert_eq!(listed, opened(), "{path}");
    }
}
