//! What a token that is confined to something gains in rooms: on every route, the room that it names and nothing else.

use tidings_model::Pattern;

use super::*;

/// A request to each route of a room, with its name.
fn routes(server: &Harness, room: &str) -> Vec<(&'static str, RequestBuilder)> {
    let at = |method, what: &str| server.request(method, &format!("/v1/app/rooms/{room}/{what}"));
    let known = |what: &str| {
        server.request(Method::GET, &format!("/x/blue.catbird.mls.subscribeConvoEvents{what}?convoId={room}"))
    };
    let upgrading = |request: RequestBuilder| {
        let request = request.header("connection", "upgrade").header("upgrade", "websocket");
        request.header("sec-websocket-version", "13").header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
    };
    let cursor = cursor_of(1);
    let told = json!({ "convoId": room, "cursor": cursor });
    vec![
        ("follow", at(Method::GET, "events")),
        ("follow by WebSocket", upgrading(at(Method::GET, "events"))),
        ("follow by the known name", known("")),
        ("follow by the known name, WebSocket", upgrading(known(".ws"))),
        ("see members", at(Method::GET, "members")),
        ("see what was seen", at(Method::GET, "seen")),
        ("tell what was seen", at(Method::POST, "seen").json(&json!({ "cursor": cursor }))),
        ("tell by the known name", server.post("/x/blue.catbird.mls.updateCursor").json(&told)),
        ("write", at(Method::POST, "events").json(&message(1))),
        ("change members", at(Method::POST, "members").json(&json!({ "add": ["alice"] }))),
    ]
}

/// How many of the routes need no more than this.
fn within(scope: Scope) -> usize {
    match scope {
        Scope::Read => 8,
        Scope::Write => 9,
        Scope::Manage => 10,
    }
}

fn globs(texts: &[&str]) -> Option<Vec<Pattern>> {
    Some(texts.iter().map(|text| Pattern::parse(text).expect("a glob")).collect())
}

#[tokio::test]
async fn a_token_that_is_confined_gains_the_rooms_that_it_names_and_nothing_else_on_every_route() {
    let server = open().await;
    let nothing = Resources::default;
    // Which room it is, and whether the claims open it.
    let table = [
        ("no claims", nothing(), true),
        ("this room", Resources { rooms: globs(&[ROOM]), ..nothing() }, true),
        ("every room", Resources { rooms: globs(&["**"]), ..nothing() }, true),
        ("some rooms, this among them", Resources { rooms: globs(&["other", "gen*"]), ..nothing() }, true),
        ("another room", Resources { rooms: globs(&["other"]), ..nothing() }, false),
        ("a part of the name", Resources { rooms: globs(&["genera", "general.*"]), ..nothing() }, false),
        ("no room", Resources { rooms: globs(&[]), ..nothing() }, false),
        ("a stream of that name", Resources { stream_id: Some(ROOM.into()), ..nothing() }, false),
        ("every stream", Resources { streams: globs(&["**"]), ..nothing() }, false),
        ("every topic", Resources { topics: globs(&["**"]).map(TopicGrants::both), ..nothing() }, false),
        ("no topic", Resources { topics: Some(TopicGrants::default()), ..nothing() }, false),
        ("every entity", Resources { entities: globs(&["**"]), ..nothing() }, false),
        ("a session of that name", Resources { session: Some(ROOM.into()), ..nothing() }, false),
        (
            "a session, and this room",
            Resources { session: Some(ROOM.into()), rooms: globs(&[ROOM]), ..nothing() },
            false,
        ),
    ];
    for (name, resources, opens) in table {
        for scope in [Scope::Read, Scope::Write, Scope::Manage] {
            let resources = resources.clone();
            let token = signed(&Claims { resources, ..claims(&server, "alice", scope) });
            for (n, (route, request)) in routes(&server, ROOM).into_iter().enumerate() {
                let what = format!("{name}, {scope:?}: {route}");
                let request = request.bearer_auth(&token);
                if !opens || n >= within(scope) {
                    assert_eq!(refused(request).await, (403, "Forbidden".into()), "{what}");
                } else {
                    let status = if route.ends_with("WebSocket") { 101 } else { 200 };
                    assert_eq!(answer(request).await.status(), status, "{what}");
                }
            }
            until("they have gone", || server.server().live_connections().is_empty()).await;
        }
    }
}

#[tokio::test]
async fn who_is_no_member_gains_nothing_by_a_claim_that_names_the_room() {
    let server = open().await;
    let resources = Resources { rooms: globs(&["**"]), ..Resources::default() };
    for scope in [Scope::Read, Scope::Write] {
        let token = signed(&Claims { resources: resources.clone(), ..claims(&server, "mallory", scope) });
        for (n, (route, request)) in routes(&server, ROOM).into_iter().enumerate() {
            let error = if n < within(scope) { "NotMember" } else { "Forbidden" };
            assert_eq!(refused(request.bearer_auth(&token)).await, (403, error.into()), "{scope:?}: {route}");
        }
    }
}
