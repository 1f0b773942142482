//! Revocations: whose tokens count no more, what is cut, and what survives.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_auth::{Claims, Key, Resources, Scope, TopicGrants};
use tidings_engine::Clock;
use tidings_model::{Pattern, ProjectId, Timestamp, limits};
use tidings_testing::http::{self, Method, RequestBuilder, Response};
use tidings_testing::sse::Events;
use tidings_testing::{ADMIN_KEY, Doors, Harness, Process, Setup, TestStore, until};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::rooms::reader::{Guest, WIRES};

const KEY: &str = "the-signing-key-of-app";
const STREAM: &str = "/v1/app/stream/s";

async fn open() -> Harness {
    open_on(TestStore::Memory).await
}

/// A server with two projects, and in one of them a stream, a session and a room.
async fn open_on(store: TestStore) -> Harness {
    let created = vec![("app", KEY), ("other", "the-signing-key-of-other")];
    let doors = Doors::Closed { created, given: vec![] };
    let server = Harness::with(Setup { doors, store, ..Setup::default() }).await;
    let manager = manager(&server);
    let create = server.put(STREAM).bearer_auth(&manager).header("content-type", "text/plain");
    assert_eq!(answer(create).await.status(), 201);
    for session in ["of-alice", "of-bob"] {
        let subscribe = json!({ "sessionId": session, "streamId": "s" });
        let subscribe = server.post("/v1/app/subscribe").bearer_auth(&manager).json(&subscribe);
        assert_eq!(answer(subscribe).await.status(), 201);
    }
    let members = server.post("/v1/app/rooms/r/members").bearer_auth(&manager);
    assert_eq!(answer(members.json(&json!({ "add": ["alice", "bob"] }))).await.status(), 200);
    server
}

fn app() -> ProjectId {
    ProjectId::parse("app").expect("a valid id")
}

/// Claims of a user's token, issued now.
fn claims(server: &Harness, user: &str) -> Claims {
    let now = server.clock.now();
    Claims {
        user: Some(user.into()),
        issued_at: Some(now),
        ..Claims::new(app(), Scope::Write, now + Duration::from_secs(3600))
    }
}

fn signed(claims: &Claims) -> String {
    claims.sign(&Key::parse(KEY).expect("a valid key"))
}

fn token(server: &Harness, user: &str) -> String {
    signed(&claims(server, user))
}

fn manager(server: &Harness) -> String {
    signed(&Claims { scope: Scope::Manage, ..claims(server, "boss") })
}

async fn answer(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

fn revoking(server: &Harness, token: &str, what: &Value) -> RequestBuilder {
    server.post("/v1/app/revocations").bearer_auth(token).json(what)
}

/// Revokes, and tells how many connections were closed.
async fn revoke(server: &Harness, what: Value) -> u64 {
    let answer = answer(revoking(server, &manager(server), &what)).await;
    assert_eq!(answer.status(), 200, "{what}");
    let told: Value = answer.json().await.expect("JSON");
    assert_eq!(told["subscriptions"], 0, "{told}");
    told["connections"].as_u64().unwrap_or_else(|| panic!("{told}"))
}

/// The status and the code of an answer, if that says no.
async fn outcome(request: RequestBuilder) -> (u16, String) {
    let answer = answer(request).await;
    let status = answer.status().as_u16();
    let body = answer.bytes().await.expect("a body");
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Reads the stream.
async fn reads(server: &Harness, token: &str) -> (u16, String) {
    outcome(server.request(Method::GET, STREAM).bearer_auth(token)).await
}

fn revoked() -> (u16, String) {
    (401, "token_revoked".into())
}

fn fine() -> (u16, String) {
    (200, String::new())
}

#[tokio::test]
async fn tokens_of_a_revoked_user_are_refused_if_they_were_issued_up_to_then() {
    let server = open().await;
    let now = server.clock.now();
    let before = token(&server, "alice");
    let undated = signed(&Claims { issued_at: None, ..claims(&server, "alice") });
    let bob = token(&server, "bob");
    let nobody = signed(&Claims { user: None, ..claims(&server, "alice") });
    assert_eq!(revoke(&server, json!({ "user": "alice" })).await, 0);
    for token in [&before, &undated] {
        assert_eq!(reads(&server, token).await, revoked());
    }
    for token in [&bob, &nobody] {
        assert_eq!(reads(&server, token).await, fine());
    }
    let later = Some(Timestamp::from_millis((now.as_millis() / 1000 + 1) * 1000));
    let later = signed(&Claims { issued_at: later, ..claims(&server, "alice") });
    assert_eq!(reads(&server, &later).await, fine(), "it was issued afterwards");
    let undated = signed(&Claims { issued_at: None, ..claims(&server, "alice") });
    assert_eq!(reads(&server, &undated).await, revoked(), "it does not tell when it was issued");
    let of_server = server.post("/v1/projects/app/tokens").bearer_auth(ADMIN_KEY);
    let of_server: Value = answer(of_server.json(&json!({ "scope": "read", "user": "alice" })))
        .await
        .json()
        .await
        .expect("JSON");
    let of_server = of_server["token"].as_str().expect("a token");
    assert_eq!(reads(&server, of_server).await, revoked(), "the server dates the tokens that it signs");
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(reads(&server, &token(&server, "alice")).await, fine());
}

#[tokio::test]
async fn a_revocation_by_id_touches_the_tokens_with_this_id_and_no_other() {
    let server = open().await;
    let with = |id: Option<&str>| signed(&Claims { id: id.map(Into::into), ..claims(&server, "alice") });
    let (one, other, none) = (with(Some("1")), with(Some("2")), with(None));
    assert_eq!(revoke(&server, json!({ "jti": "1" })).await, 0);
    assert_eq!(reads(&server, &one).await, revoked());
    for token in [other, none] {
        assert_eq!(reads(&server, &token).await, fine());
    }
    let elsewhere = ProjectId::parse("other").expect("a valid id");
    let elsewhere = Claims { project: elsewhere, id: Some("1".into()), ..claims(&server, "alice") };
    let elsewhere = elsewhere.sign(&Key::parse("the-signing-key-of-other").expect("a valid key"));
    let list = server.request(Method::GET, "/v1/other/streams").bearer_auth(elsewhere);
    assert_eq!(answer(list).await.status(), 200, "another project has ids of its own");
}

#[tokio::test]
async fn only_who_manages_the_whole_project_revokes() {
    let server = open().await;
    let globs = || vec![Pattern::parse("**").expect("a glob")];
    let none = Resources::default;
    let by_scope = |scope| signed(&Claims { scope, ..claims(&server, "boss") });
    let confined = |resources| signed(&Claims { resources, scope: Scope::Manage, ..claims(&server, "boss") });
    let what = json!({ "user": "alice" });
    for refused in [
        by_scope(Scope::Read),
        by_scope(Scope::Write),
        confined(Resources { topics: Some(TopicGrants::both(globs())), ..none() }),
        confined(Resources { streams: Some(globs()), ..none() }),
        confined(Resources { session: Some("of-alice".into()), ..none() }),
        Key::parse(KEY).expect("a valid key").api_key(&app()),
    ] {
        assert_eq!(outcome(revoking(&server, &refused, &what)).await, (403, "forbidden".into()));
    }
    let nobody = server.post("/v1/app/revocations").json(&what);
    assert_eq!(outcome(nobody).await, (401, "token_missing".into()));
    assert_eq!(reads(&server, &token(&server, "alice")).await, fine(), "nothing was revoked");
    for allowed in [by_scope(Scope::Manage), ADMIN_KEY.to_owned()] {
        assert_eq!(outcome(revoking(&server, &allowed, &what)).await, fine());
    }
    assert_eq!(reads(&server, &token(&server, "alice")).await, revoked());
    assert_eq!(revoke(&server, json!({ "user": "boss" })).await, 0);
    assert_eq!(outcome(revoking(&server, &by_scope(Scope::Manage), &what)).await, revoked());
}

#[tokio::test]
async fn a_revocation_that_is_not_as_it_must_be_is_refused_and_revokes_nothing() {
    let server = open().await;
    let manager = manager(&server);
    let long = "x".repeat(limits::USER_ID_BYTES + 1);
    let many = vec!["a"; limits::REVOKED_TOPICS + 1];
    for what in [
        json!({}),
        json!({ "topics": ["a"] }),
        json!({ "user": "alice", "jti": "1" }),
        json!({ "user": "" }),
        json!({ "jti": "" }),
        json!({ "user": long }),
        json!({ "user": "alice", "topics": [] }),
        json!({ "user": "alice", "topics": [""] }),
        json!({ "user": "alice", "topics": ["a", "b***"] }),
        json!({ "user": "alice", "topics": many }),
    ] {
        let told = outcome(revoking(&server, &manager, &what)).await;
        assert_eq!(told, (400, "invalid_revocation".into()), "{what}");
    }
    for what in [
        json!({ "user": 1 }),
        json!({ "user": "alice", "topics": "a" }),
        json!({ "usr": "alice" }),
        json!([]),
    ] {
        assert_eq!(outcome(revoking(&server, &manager, &what)).await.0, 400, "{what}");
    }
    assert_eq!(reads(&server, &token(&server, "alice")).await, fine());
}

/// Readers of a user on each kind of live connection, and the long-poll that is none.
struct Readers {
    events: Vec<Events>,
    sockets: Vec<Socket>,
    guests: Vec<crate::rooms::reader::Reader>,
    poll: tokio::task::JoinHandle<Response>,
}

type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<tokio::net::TcpStream>>;

async fn readers(server: &Harness, user: &str) -> Readers {
    let token = token(server, user);
    let paths = [STREAM.to_owned(), format!("/v1/app/stream/of-{user}")];
    let (mut events, mut sockets, mut guests) = (Vec::new(), Vec::new(), Vec::new());
    for path in &paths {
        let sse = server.request(Method::GET, &format!("{path}?offset=now&live=sse")).bearer_auth(&token);
        let mut sse = Events::of(answer(sse).await);
        assert_eq!(sse.next().await.expect("a first event").name, "control");
        events.push(sse);
        let url = server.url(&format!("{path}?offset=now&live=websocket&token={token}"));
        let request = url.replace("http://", "ws://").into_client_request().expect("a request");
        sockets.push(tokio_tungstenite::connect_async(request).await.expect("a WebSocket").0);
    }
    for wire in WIRES {
        let guest = Guest::at(server.address(), wire, "/v1/app/rooms/r/events").with_token(&token);
        guests.push(guest.comes().await);
    }
    let before = server.clock.sleepers();
    let poll = server.request(Method::GET, &format!("{STREAM}?offset=now&live=long-poll"));
    let poll = poll.bearer_auth(&token);
    let poll = tokio::spawn(async move { answer(poll).await });
    // It waits for its time, and for that of its token.
    until("the long-poll waits", || server.clock.sleepers() == before + 2).await;
    Readers { events, sockets, guests, poll }
}

impl Readers {
    fn connections(&self) -> u64 {
        (self.events.len() + self.sockets.len() + self.guests.len()) as u64
    }

    async fn are_cut(self) {
        for mut events in self.events {
            assert_eq!(events.next().await, None);
        }
        for socket in self.sockets {
            assert_eq!(close_of(socket).await, Some((1008, "access-ended".to_owned())));
        }
        for mut guest in self.guests {
            guest.rest().await;
        }
        assert_eq!(self.poll.await.expect("no panic").status(), 401);
    }
}

async fn close_of(mut socket: Socket) -> Option<(u16, String)> {
    use futures_util::StreamExt;
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Close(close) = message {
            return close.map(|close| (close.code.into(), close.reason.to_string()));
        }
    }
    None
}

#[tokio::test]
async fn every_live_reader_of_a_revoked_user_is_cut_and_counted_and_others_stay() {
    let server = open().await;
    let (alice, bob) = (readers(&server, "alice").await, readers(&server, "bob").await);
    let live = || server.server().live_connections().len() as u64;
    let (of_alice, all) = (alice.connections(), live());
    assert_eq!(of_alice + bob.connections(), all);
    assert_eq!(revoke(&server, json!({ "user": "alice" })).await, of_alice);
    tokio::time::timeout(Duration::from_secs(30), alice.are_cut()).await.expect("they are cut");
    until("they have gone", || live() == all - of_alice).await;
    assert_eq!(revoke(&server, json!({ "user": "alice" })).await, 0, "nothing is left");
    let append = server.post(STREAM).bearer_auth(manager(&server)).header("content-type", "text/plain");
    assert_eq!(answer(append.body("x")).await.status(), 204);
    let Readers { mut events, guests, poll, .. } = bob;
    assert_eq!(events[0].next().await.expect("an event").data, "x");
    assert_eq!(poll.await.expect("no panic").status(), 200);
    assert_eq!(live(), all - of_alice);
    drop(guests);
}

#[tokio::test]
async fn a_revocation_of_topics_leaves_streams_sessions_and_rooms_alone() {
    let server = open().await;
    let alice = readers(&server, "alice").await;
    let live = server.server().live_connections().len();
    assert_eq!(revoke(&server, json!({ "user": "alice", "topics": ["**"] })).await, 0);
    assert_eq!(reads(&server, &token(&server, "alice")).await, fine());
    assert_eq!(server.server().live_connections().len(), live);
    alice.poll.abort();
}

#[tokio::test]
async fn revocations_survive_a_restart_of_the_server() {
    let server = open_on(TestStore::Embedded).await;
    let lost = token(&server, "alice");
    revoke(&server, json!({ "user": "alice" })).await;
    let server = server.restart().await;
    assert_eq!(reads(&server, &lost).await, revoked());
    assert_eq!(reads(&server, &token(&server, "bob")).await, fine());
}

#[tokio::test]
async fn revocations_survive_a_kill() {
    let mut process = Process::serve(&[]).await;
    let client = http::Client::new();
    let create = client.post(process.url("/v1/projects")).json(&json!({ "project": "app", "key": KEY }));
    assert_eq!(answer(create).await.status(), 201);
    let stream = client.put(process.url(STREAM)).header("content-type", "text/plain");
    assert_eq!(answer(stream).await.status(), 201);
    let signed = |user: &str| {
        let expires_at = Timestamp::from_millis(4_000_000_000_000);
        signed(&Claims { user: Some(user.into()), ..Claims::new(app(), Scope::Read, expires_at) })
    };
    let revoke = client.post(process.url("/v1/app/revocations")).json(&json!({ "user": "alice" }));
    assert_eq!(answer(revoke).await.status(), 200);
    for round in 0..3 {
        process.kill().await;
        process = process.restart().await;
        let read = |user: &str| outcome(client.get(process.url(STREAM)).bearer_auth(signed(user)));
        assert_eq!(read("alice").await, revoked(), "after {round} more");
        assert_eq!(read("bob").await, fine());
        let again = json!({ "jti": format!("{round}"), "topics": ["a.*", "b"] });
        let revoke = client.post(process.url("/v1/app/revocations")).json(&again);
        assert_eq!(answer(revoke).await.status(), 200);
    }
}

#[tokio::test]
async fn a_user_has_so_many_revoked_topics_and_no_more() {
    let server = open().await;
    let topics: Vec<String> = (0..limits::REVOKED_TOPICS).map(|number| format!("topic:{number}")).collect();
    revoke(&server, json!({ "user": "alice", "topics": topics })).await;
    revoke(&server, json!({ "user": "alice", "topics": ["topic:0"] })).await;
    let more = json!({ "user": "alice", "topics": ["one more"] });
    let told = outcome(revoking(&server, &manager(&server), &more)).await;
    assert_eq!(told, (409, "too_many_revoked_topics".into()));
    revoke(&server, json!({ "user": "bob", "topics": ["one more"] })).await;
}
