//! Rooms: conversations that members follow on any wire, and resume where they were.

mod blackhole;
mod browser;
mod claims;
mod client;
mod compaction;
mod curl;
mod cursors;
mod frames;
mod limits;
mod members;
pub(crate) mod proxy;
pub(crate) mod reader;
mod resume;
mod seen;
mod slow;
mod stale;
mod survival;
mod websocket;

use std::time::Duration;

use serde_json::{Value, json};
use tidings_auth::{Claims, Key, Resources, Scope, TopicGrants};
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_rooms::Options;
use tidings_testing::http::header::HeaderMap;
use tidings_testing::http::{Method, RequestBuilder, Response};
use tidings_testing::{Doors, Harness, SLEEPERS, Setup, TestStore, until};

use self::reader::{Event, Guest, Reader, WIRES, Wire};

const KEY: &str = "the-signing-key-of-app";
/// The room that most tests are about.
const ROOM: &str = "general";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server with a project `app`, and in it a room with the members alice, bob and carol.
async fn open() -> Harness {
    open_with(Options::default()).await
}

/// The same with rooms set in their own way.
async fn open_with(rooms: Options) -> Harness {
    open_on(TestStore::Memory, rooms).await
}

/// The same on a store.
async fn open_on(store: TestStore, rooms: Options) -> Harness {
    let created = vec![("app", KEY), ("other", "the-signing-key-of-other")];
    let doors = Doors::Closed { created, given: vec![] };
    let server = Harness::with(Setup { store, rooms, doors, ..Setup::default() }).await;
    changes_members(&server, ROOM, &["alice", "bob", "carol"], &[]).await;
    server
}

/// Claims of a user's token in `app`, for longer than any test lasts.
fn claims(server: &Harness, user: &str, scope: Scope) -> Claims {
    let project = ProjectId::parse("app").expect("an id");
    Claims { user: Some(user.into()), ..Claims::new(project, scope, server.clock.now() + DAY * 1000) }
}

fn signed(claims: &Claims) -> String {
    claims.sign(&Key::parse(KEY).expect("a key"))
}

/// A user's token, to read and write.
fn token(server: &Harness, user: &str) -> String {
    signed(&claims(server, user, Scope::Write))
}

/// The token of somebody who manages rooms, and is a member of none.
fn manager(server: &Harness) -> String {
    signed(&claims(server, "boss", Scope::Manage))
}

/// Somebody who is about to follow a room.
fn guest(server: &Harness, wire: Wire, user: &str, room: &str) -> Guest {
    let path = format!("/v1/app/rooms/{room}/events");
    Guest::at(server.address(), wire, &path).with_token(&token(server, user))
}

/// Alice, in the room that most tests are about.
fn alice(server: &Harness, wire: Wire) -> Guest {
    guest(server, wire, "alice", ROOM)
}

async fn answer(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

async fn body(answer: Response) -> Value {
    answer.json().await.expect("JSON")
}

/// A request of a user to what belongs to a room.
fn request(server: &Harness, method: Method, user: &str, room: &str, what: &str) -> RequestBuilder {
    server.request(method, &format!("/v1/app/rooms/{room}/{what}")).bearer_auth(token(server, user))
}

/// A change of members, by who manages.
fn changing_members(server: &Harness, room: &str, add: &[&str], remove: &[&str]) -> RequestBuilder {
    let request = server.post(&format!("/v1/app/rooms/{room}/members")).bearer_auth(manager(server));
    request.json(&json!({ "add": add, "remove": remove }))
}

/// Changes members, and tells who is one then.
async fn changes_members(server: &Harness, room: &str, add: &[&str], remove: &[&str]) -> Value {
    let answer = answer(changing_members(server, room, add, remove)).await;
    assert_eq!(answer.status(), 200);
    body(answer).await["members"].clone()
}

fn message(id: impl ToString) -> Value {
    json!({ "type": "messageEvent", "payload": { "messageView": { "id": id.to_string() } } })
}

fn reaction(message: &str, actor: &str, reaction: &str, op: &str) -> Value {
    let payload = json!({ "messageId": message, "actor": actor, "reaction": reaction, "op": op });
    json!({ "type": "reactionEvent", "payload": payload })
}

fn typing(who: &str) -> Value {
    json!({ "type": "typingEvent", "payload": { "who": who } })
}

/// A write of one event or several, by alice; by who manages if somebody else reacts in one of them.
fn writing(server: &Harness, room: &str, events: &Value) -> RequestBuilder {
    let is_of_another =
        |event: &Value| event["payload"]["actor"].as_str().is_some_and(|actor| actor != "alice");
    let some = events.as_array().map_or(std::slice::from_ref(events), Vec::as_slice);
    if some.iter().any(is_of_another) {
        let request = server.post(&format!("/v1/app/rooms/{room}/events"));
        return request.bearer_auth(manager(server)).json(events);
    }
    request(server, Method::POST, "alice", room, "events").json(events)
}

/// Writes events together, which must be accepted, and tells their cursors.
async fn writes(server: &Harness, events: &[Value]) -> Vec<String> {
    let answer = answer(writing(server, ROOM, &json!(events))).await;
    assert_eq!(answer.status(), 200);
    let written = body(answer).await;
    let cursor = |written: &Value| written["cursor"].as_str().expect("a cursor").to_owned();
    written.as_array().expect("an array").iter().map(cursor).collect()
}

/// Writes an event by itself, and tells its cursor.
async fn write(server: &Harness, event: Value) -> String {
    let answer = answer(writing(server, ROOM, &event)).await;
    assert_eq!(answer.status(), 200);
    body(answer).await["cursor"].as_str().expect("a cursor").to_owned()
}

/// Writes so many messages by themselves.
async fn write_messages(server: &Harness, count: usize) -> Vec<String> {
    let mut cursors = Vec::new();
    for n in 0..count {
        cursors.push(write(server, message(n)).await);
    }
    cursors
}

/// The reader hears these next, in this order.
async fn hears_all(reader: &mut Reader, cursors: &[String]) {
    for (at, cursor) in cursors.iter().enumerate() {
        let event = reader.hears().await;
        assert_eq!(event.cursor(), cursor, "event {at} of {}: {event:?}", cursors.len());
        assert_ne!(event.kind, "infoEvent");
    }
}

/// The reader has nothing more to hear than what is written now.
async fn hears_only_what_is_new(server: &Harness, reader: &mut Reader) {
    let cursor = write(server, message("new")).await;
    let event = reader.hears().await;
    assert_eq!(event.cursor(), cursor, "{event:?}");
}

/// What a refused request is told, which must have the shape that all refusals of rooms have.
async fn refused(request: RequestBuilder) -> (u16, String) {
    let answer = answer(request).await;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    // Who is let in may be let follow, and would wait for an end that never comes.
    assert!(status >= 400, "it is let in: {status}");
    let body = body(answer).await;
    is_a_refusal(status, &headers, &body);
    (status, body["error"].as_str().expect("a name").to_owned())
}

/// Whether an answer has the shape that all refusals of rooms have.
fn is_a_refusal(status: u16, headers: &HeaderMap, body: &Value) {
    assert!((400..600).contains(&status), "{status}");
    assert_eq!(headers["content-type"], "application/json");
    let fields = body.as_object().unwrap_or_else(|| panic!("{body}"));
    let known = ["error", "message", "retryAfter", "detail"];
    assert!(fields.keys().all(|name| known.contains(&name.as_str())), "{body}");
    assert!(body["error"].as_str().is_some_and(|name| !name.is_empty()), "{body}");
    assert!(body["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    let retry_after = fields.get("retryAfter").map(|after| after.as_f64().expect("seconds"));
    let header = headers.get("retry-after").map(|after| after.to_str().expect("text").parse::<f64>());
    assert_eq!(header.map(|after| after.expect("seconds")), retry_after.map(f64::ceil), "{body}");
    match status {
        400 | 403 => assert_eq!(retry_after, None, "there is no use in coming again: {body}"),
        410 | 429 | 503 => assert!(retry_after.is_some(), "{body}"),
        409 => assert_eq!(retry_after.is_some(), body["error"] == "SlowConsumer", "{body}"),
        _ => {}
    }
}

/// Lets so many seconds pass, in each of which the server asks its live readers.
async fn let_pass(server: &Harness, seconds: usize) {
    // A WebSocket that has come within a second may have left one more.
    until("the server waits", || server.clock.sleepers() >= SLEEPERS).await;
    for _ in 0..seconds {
        server.clock.advance(Duration::from_secs(1));
        until("the server has asked", || server.clock.sleepers() == SLEEPERS).await;
    }
}

/// How often events have gone because of their age.
fn trims(server: &Harness) -> f64 {
    server.metric("tidings_room_trims_total").unwrap_or_default()
}

/// Lets so much time pass that a sweep finds what was written before it too old.
async fn let_age(server: &Harness, rooms: &Options) {
    let before = trims(server);
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(rooms.retention + Duration::from_secs(1));
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(rooms.sweep_interval);
    until("it is gone", || trims(server) > before).await;
}

/// A cursor as the number it is.
fn number(cursor: &str) -> u128 {
    const DIGITS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    assert_eq!(cursor.len(), 26, "{cursor}");
    let digit = |digit| DIGITS.find(digit).unwrap_or_else(|| panic!("{digit} in {cursor}")) as u128;
    let value = cursor.chars().fold(0u128, |value, each| (value << 5) | digit(each));
    assert!(cursor.as_bytes()[0] <= b'7', "{cursor}");
    value
}

/// A number as the cursor it is.
fn cursor_of(number: u128) -> String {
    tidings_rooms::Cursor::at(tidings_model::Position::new(number)).to_string()
}

/// The milliseconds in a cursor.
fn millis(cursor: &str) -> u64 {
    (number(cursor) >> 80) as u64
}
