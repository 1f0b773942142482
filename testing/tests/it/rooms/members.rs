//! Who may hear a room and write to it, from when until when.

use tidings_model::{Pattern, Timestamp};

use super::*;

/// Refused on every wire, in the shape of all refusals.
async fn is_refused(guest: impl Fn(Wire) -> Guest, what: (u16, &str)) {
    for wire in WIRES {
        let refused = guest(wire).is_refused().await;
        assert_eq!(refused.what(), what, "{refused:?}");
        is_a_refusal(refused.status, &refused.headers, &refused.body);
    }
}

fn rooms_of(globs: &[&str]) -> Resources {
    let globs = globs.iter().map(|glob| Pattern::parse(glob).expect("a glob")).collect();
    Resources { rooms: Some(globs), ..Resources::default() }
}

fn at(server: &Harness, wire: Wire, room: &str, token: &str) -> Guest {
    Guest::at(server.address(), wire, &format!("/v1/app/rooms/{room}/events")).with_token(token)
}

#[tokio::test]
async fn without_a_good_token_nobody_comes_in() {
    let server = open().await;
    let path = format!("/v1/app/rooms/{ROOM}/events");
    let nobody = |wire| Guest::at(server.address(), wire, &path);
    is_refused(nobody, (401, "AuthRequired")).await;
    is_refused(|wire| nobody(wire).with_token("x.y.z"), (401, "AuthRequired")).await;
    let good = claims(&server, "alice", Scope::Write);
    let expired = signed(&Claims { expires_at: server.clock.now(), ..good.clone() });
    is_refused(|wire| nobody(wire).with_token(&expired), (401, "TokenExpired")).await;
    let stranger = good.sign(&Key::parse("a-key-that-nobody-here-has").expect("a key"));
    is_refused(|wire| nobody(wire).with_token(&stranger), (401, "AuthRequired")).await;
    // Neither a cookie nor a part of the address that is not for it.
    let good = signed(&good);
    is_refused(|wire| nobody(wire).with_header("cookie", &format!("token={good}")), (401, "AuthRequired"))
        .await;
    is_refused(|wire| nobody(wire).asking(&format!("ticket={good}")), (401, "AuthRequired")).await;
    for request in [
        server.post(&path).json(&message(1)),
        server.request(Method::GET, &format!("/v1/app/rooms/{ROOM}/members")),
        server.post(&format!("/v1/app/rooms/{ROOM}/members")).json(&json!({ "add": ["mallory"] })),
        server.request(Method::GET, &format!("/v1/app/rooms/{ROOM}/seen")),
        server
            .post("/x/blue.catbird.mls.updateCursor")
            .json(&json!({ "convoId": ROOM, "cursor": cursor_of(1) })),
    ] {
        assert_eq!(refused(request).await, (401, "AuthRequired".into()));
    }
}

#[tokio::test]
async fn a_token_comes_in_the_header_or_in_the_address() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    let path = format!("/v1/app/rooms/{ROOM}/events?cursor={}", cursors[0]);
    for wire in WIRES {
        let by_address =
            Guest::at(server.address(), wire, &path).asking(&format!("token={}", token(&server, "alice")));
        hears_all(&mut by_address.comes().await, &cursors[1..]).await;
        let by_header = Guest::at(server.address(), wire, &path).with_token(&token(&server, "alice"));
        hears_all(&mut by_header.comes().await, &cursors[1..]).await;
    }
}

#[tokio::test]
async fn only_members_come_in_and_nobody_else_learns_which_rooms_there_are() {
    let server = open().await;
    write_messages(&server, 1).await;
    let mallory = |room: &'static str| {
        let server = &server;
        move |wire| guest(server, wire, "mallory", room).asking("cursor=oldest")
    };
    is_refused(mallory(ROOM), (403, "NotMember")).await;
    is_refused(mallory("nowhere"), (403, "NotMember")).await;
    let (there, nowhere) =
        (mallory(ROOM)(Wire::Sse).is_refused().await, mallory("nowhere")(Wire::Sse).is_refused().await);
    assert_eq!(there.body, nowhere.body, "the two cannot be told apart");
    for room in [ROOM, "nowhere"] {
        let by = |method, what| request(&server, method, "mallory", room, what);
        for request in [
            by(Method::POST, "events").json(&message(1)),
            by(Method::GET, "members"),
            by(Method::GET, "seen"),
            by(Method::POST, "seen").json(&json!({ "cursor": cursor_of(1) })),
        ] {
            assert_eq!(refused(request).await, (403, "NotMember".into()), "{room}");
        }
    }
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    reader.hears().await;
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn who_manages_enters_every_room_and_learns_which_there_are_not() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    let boss = manager(&server);
    for wire in WIRES {
        let mut reader = at(&server, wire, ROOM, &boss).asking("cursor=oldest").comes().await;
        hears_all(&mut reader, &cursors).await;
    }
    is_refused(|wire| at(&server, wire, "nowhere", &boss), (404, "ConvoNotFound")).await;
    for (method, what) in [(Method::POST, "events"), (Method::GET, "members"), (Method::GET, "seen")] {
        let request = server.request(method, &format!("/v1/app/rooms/nowhere/{what}")).bearer_auth(&boss);
        assert_eq!(refused(request.json(&message(1))).await, (404, "ConvoNotFound".into()), "{what}");
    }
    let write = server.post(&format!("/v1/app/rooms/{ROOM}/events")).bearer_auth(&boss).json(&message(1));
    assert_eq!(answer(write).await.status(), 200);
}

#[tokio::test]
async fn each_thing_needs_its_scope() {
    let server = open().await;
    let read = signed(&claims(&server, "alice", Scope::Read));
    let at = |method, what: &str| {
        server.request(method, &format!("/v1/app/rooms/{ROOM}/{what}")).bearer_auth(&read)
    };
    assert_eq!(refused(at(Method::POST, "events").json(&message(1))).await, (403, "Forbidden".into()));
    let add = json!({ "add": ["mallory"] });
    assert_eq!(refused(at(Method::POST, "members").json(&add)).await, (403, "Forbidden".into()));
    let by_writer = request(&server, Method::POST, "alice", ROOM, "members").json(&add);
    assert_eq!(refused(by_writer).await, (403, "Forbidden".into()), "writing is not enough");
    assert_eq!(answer(at(Method::GET, "members")).await.status(), 200);
    assert_eq!(answer(at(Method::GET, "seen")).await.status(), 200);
    for wire in WIRES {
        let reader =
            Guest::at(server.address(), wire, &format!("/v1/app/rooms/{ROOM}/events")).with_token(&read);
        let mut reader = reader.comes().await;
        hears_only_what_is_new(&server, &mut reader).await;
    }
    let members = body(answer(at(Method::GET, "members")).await).await;
    assert_eq!(members, json!({ "members": ["alice", "bob", "carol"] }));
}

#[tokio::test]
async fn a_room_is_for_users() {
    let server = open().await;
    for scope in [Scope::Read, Scope::Write, Scope::Manage] {
        let nameless = signed(&Claims { user: None, ..claims(&server, "", scope) });
        is_refused(|wire| at(&server, wire, ROOM, &nameless), (403, "UserRequired")).await;
        let request = |what: &str| server.request(Method::GET, &format!("/v1/app/rooms/{ROOM}/{what}"));
        assert_eq!(refused(request("seen").bearer_auth(&nameless)).await, (403, "UserRequired".into()));
        if scope >= Scope::Write {
            let write = server.post(&format!("/v1/app/rooms/{ROOM}/events")).bearer_auth(&nameless);
            assert_eq!(refused(write.json(&message(1))).await, (403, "UserRequired".into()));
        }
    }
}

#[tokio::test]
async fn a_token_opens_the_rooms_that_it_names() {
    let server = open().await;
    for room in ["team.red", "team.blue", "private"] {
        changes_members(&server, room, &["alice"], &[]).await;
    }
    let only = |globs: &[&str]| {
        signed(&Claims { resources: rooms_of(globs), ..claims(&server, "alice", Scope::Write) })
    };
    let team = only(&["team.*"]);
    for wire in WIRES {
        at(&server, wire, "team.red", &team).comes().await;
        at(&server, wire, "team.blue", &team).comes().await;
    }
    is_refused(|wire| at(&server, wire, "private", &team), (403, "Forbidden")).await;
    let write = server.post("/v1/app/rooms/private/events").bearer_auth(&team).json(&message(1));
    assert_eq!(refused(write).await, (403, "Forbidden".into()));
    let topics = TopicGrants::both(vec![Pattern::parse("**").expect("a glob")]);
    let topics = Resources { topics: Some(topics), ..Resources::default() };
    let other = signed(&Claims { resources: topics, ..claims(&server, "alice", Scope::Write) });
    is_refused(|wire| at(&server, wire, "private", &other), (403, "Forbidden")).await;
    // Of another project.
    let foreign = Claims {
        project: ProjectId::parse("other").expect("an id"),
        ..claims(&server, "alice", Scope::Write)
    };
    let foreign = foreign.sign(&Key::parse("the-signing-key-of-other").expect("a key"));
    is_refused(|wire| at(&server, wire, ROOM, &foreign), (403, "Forbidden")).await;
    // The names of the protocol are about the token's own project, which has no such room.
    let known = format!("/x/blue.catbird.mls.subscribeConvoEvents?convoId={ROOM}");
    let refused = Guest::at(server.address(), Wire::Sse, &known).with_token(&foreign).is_refused().await;
    assert_eq!(refused.what(), (403, "NotMember"));
}

#[tokio::test]
async fn what_is_wrong_is_told_in_order() {
    let rooms = Options { max_streams_per_user: 1, ..Options::default() };
    let server = open_with(rooms).await;
    let boss = manager(&server);
    let bad = "cursor=nonsense";
    for wire in WIRES {
        let at = |room: &str, asked: &str| {
            Guest::at(server.address(), wire, &format!("/v1/app/rooms/{room}/events")).asking(asked)
        };
        assert_eq!(at("nowhere", bad).is_refused().await.status, 401);
        let mallory = token(&server, "mallory");
        assert_eq!(at("nowhere", bad).with_token(&mallory).is_refused().await.status, 400);
        assert_eq!(at("nowhere", "").with_token(&mallory).is_refused().await.status, 403);
        let nameless = signed(&Claims { user: None, ..claims(&server, "", Scope::Manage) });
        assert_eq!(at("nowhere", "").with_token(&nameless).is_refused().await.status, 403);
        let future = format!("cursor={}", cursor_of(u128::MAX));
        let reader = at(ROOM, "").with_token(&boss).comes().await;
        assert_eq!(at("nowhere", &future).with_token(&boss).is_refused().await.status, 404);
        assert_eq!(at(ROOM, &future).with_token(&boss).is_refused().await.status, 429);
        drop(reader);
        until("it has gone", || server.server().live_connections().is_empty()).await;
        assert_eq!(at(ROOM, &future).with_token(&boss).is_refused().await.status, 410);
    }
}

#[tokio::test]
async fn members_are_added_and_removed_together_and_the_room_begins_with_the_first() {
    let server = open().await;
    assert_eq!(changes_members(&server, "new", &["zoe", "adam"], &[]).await, json!(["adam", "zoe"]));
    assert_eq!(changes_members(&server, "new", &["bea"], &["zoe", "nobody"]).await, json!(["adam", "bea"]));
    assert_eq!(changes_members(&server, "new", &["bea"], &[]).await, json!(["adam", "bea"]), "once");
    assert_eq!(changes_members(&server, "new", &[], &["adam", "bea"]).await, json!([]));
    assert_eq!(changes_members(&server, "new", &["zoe"], &[]).await, json!(["zoe"]));
    let listed = request(&server, Method::GET, "zoe", "new", "members");
    assert_eq!(body(answer(listed).await).await, json!({ "members": ["zoe"] }));
    let listed = request(&server, Method::GET, "adam", "new", "members");
    assert_eq!(refused(listed).await, (403, "NotMember".into()));
    let boss = manager(&server);
    let change = |sent: Value| {
        let request = server.post("/v1/app/rooms/new/members").bearer_auth(&boss);
        refused(request.json(&sent))
    };
    for bad in [
        json!({ "add": "zoe" }),
        json!({ "add": [7] }),
        json!({ "add": [""] }),
        json!({ "add": ["a\u{7}"] }),
        json!({ "add": ["x".repeat(257)] }),
        json!({ "add": ["both"], "remove": ["both"] }),
        json!([]),
    ] {
        assert_eq!(change(bad.clone()).await, (400, "InvalidRequest".into()), "{bad}");
    }
    let listed = request(&server, Method::GET, "zoe", "new", "members");
    assert_eq!(body(answer(listed).await).await, json!({ "members": ["zoe"] }), "nothing of that holds");
}

#[tokio::test]
async fn members_are_listed_in_pages() {
    let server = open().await;
    let names: Vec<String> = (0..2500).map(|n| format!("user {n:04}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    let first = body(answer(changing_members(&server, "large", &all, &[])).await).await;
    assert_eq!(first["members"], json!(all[..1000]), "no more than a page is answered");
    let list = |asked: String| {
        let request = server.request(Method::GET, &format!("/v1/app/rooms/large/members{asked}"));
        request.bearer_auth(token(&server, "user 0001"))
    };
    let next = |page: &Value| page["nextCursor"].as_str().expect("there are more").to_owned();
    assert_eq!(body(answer(list(String::new())).await).await, first, "the same");
    let second = body(answer(list(format!("?cursor={}", next(&first)))).await).await;
    assert_eq!(second["members"], json!(all[1000..2000]));
    let third = body(answer(list(format!("?cursor={}&limit=1000", next(&second)))).await).await;
    assert_eq!(third, json!({ "members": all[2000..] }), "there are no more");
    let some = body(answer(list("?limit=3".into())).await).await;
    assert_eq!(some["members"], json!(all[..3]));
    // Who was listed last may have gone, and those after it come all the same.
    changes_members(&server, "large", &[], &[all[2]]).await;
    let on = body(answer(list(format!("?limit=2&cursor={}", next(&some)))).await).await;
    assert_eq!(on["members"], json!(all[3..5]));
    for bad in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=x",
        "limit=",
        "cursor=%C3%BC",
        "cursor=",
        "cursor=a&cursor=b",
    ] {
        assert_eq!(refused(list(format!("?{bad}"))).await, (400, "InvalidRequest".into()), "{bad}");
    }
}

#[tokio::test]
async fn a_member_reacts_for_itself_and_only_who_manages_for_others() {
    let server = open().await;
    let by = |user: &str, events: &Value| request(&server, Method::POST, user, ROOM, "events").json(events);
    let forged = reaction("1", "bob", "+1", "add");
    for sent in
        [forged.clone(), json!([message(1), forged]), json!([reaction("1", "alice", "+1", "add"), forged])]
    {
        assert_eq!(refused(by("alice", &sent)).await, (403, "Forbidden".into()), "{sent}");
    }
    // Who reads the first of two names would see another than who reads the last.
    for (first, last) in [("alice", "bob"), ("bob", "alice"), ("alice", "alice")] {
        let payload = format!(
            r#"{{"messageId":"1","actor":"{first}","\u0061ctor":"{last}","reaction":"+1","op":"add"}}"#
        );
        let sent = format!(r#"{{"type":"reactionEvent","payload":{payload}}}"#);
        let ambiguous = request(&server, Method::POST, "alice", ROOM, "events").body(sent);
        assert_eq!(refused(ambiguous).await, (400, "InvalidRequest".into()), "{first}, {last}");
    }
    for (user, op) in [("alice", "add"), ("bob", "remove")] {
        assert_eq!(answer(by(user, &reaction("1", user, "+1", op))).await.status(), 200);
    }
    let boss = server.post(&format!("/v1/app/rooms/{ROOM}/events")).bearer_auth(manager(&server));
    assert_eq!(answer(boss.json(&reaction("1", "bob", "-1", "add"))).await.status(), 200);
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    for actor in ["alice", "bob", "bob"] {
        assert_eq!(reader.hears().await.payload()["actor"], json!(actor));
    }
    hears_only_what_is_new(&server, &mut reader).await;
}

#[tokio::test]
async fn who_is_removed_hears_nothing_more_and_why() {
    let server = open().await;
    for (wire, n) in WIRES.into_iter().zip(0..) {
        let user = format!("user{n}");
        changes_members(&server, ROOM, &[&user], &[]).await;
        let bob = guest(&server, wire, &user, ROOM);
        let mut reader = bob.comes().await;
        let mut other = alice(&server, wire).comes().await;
        let before = write(&server, message("before")).await;
        hears_all(&mut reader, std::slice::from_ref(&before)).await;
        changes_members(&server, ROOM, &[], &[&user]).await;
        let after = write(&server, message("after")).await;
        hears_all(&mut other, &[before.clone(), after]).await;
        let info = reader.is_told("membership-revoked").await;
        assert_eq!((info.detail(), info.cursor()), (&json!({ "status": 403 }), &*before));
        let close = (wire == Wire::WebSocket).then_some(4403);
        assert_eq!(reader.ends().await, close);
        assert_eq!(bob.is_refused().await.what(), (403, "NotMember"));
        let write = request(&server, Method::POST, &user, ROOM, "events").json(&message(1));
        assert_eq!(refused(write).await, (403, "NotMember".into()));
    }
}

#[tokio::test]
async fn who_is_removed_while_nothing_is_written_is_told_within_a_second() {
    let server = open().await;
    let mut readers = Vec::new();
    for wire in WIRES {
        let mut reader = guest(&server, wire, "bob", ROOM).comes().await;
        hears_only_what_is_new(&server, &mut reader).await;
        readers.push(reader);
    }
    // Those who came first have heard the later ones' events too.
    changes_members(&server, ROOM, &[], &["bob"]).await;
    let_pass(&server, 2).await;
    for mut reader in readers {
        let heard = reader.rest().await;
        let info = heard.last().expect("a word at the end");
        assert_eq!((info.kind.as_str(), info.reason()), ("infoEvent", "membership-revoked"));
        assert!(!reader.broken);
    }
    until("nobody is left", || server.server().live_connections().is_empty()).await;
}

#[tokio::test]
async fn nothing_that_is_written_after_a_removal_reaches_whom_it_concerns() {
    let server = open().await;
    for (wire, n) in WIRES.into_iter().cycle().take(30).zip(0..) {
        let user = format!("user{n}");
        changes_members(&server, ROOM, &[&user], &[]).await;
        let mut reader = guest(&server, wire, &user, ROOM).comes().await;
        let first = write(&server, message("first")).await;
        hears_all(&mut reader, &[first]).await;
        // Both at once, so that one is on its way when the other comes.
        let writing = async {
            let mut cursors = Vec::new();
            for _ in 0..10 {
                cursors.push(write(&server, message("some")).await);
            }
            cursors
        };
        let gone = [&*user];
        let (before, _) = tokio::join!(writing, changes_members(&server, ROOM, &[], &gone));
        let after = write(&server, message("after")).await;
        let heard = reader.rest().await;
        let (info, events) = heard.split_last().expect("a word at the end");
        assert_eq!(info.reason(), "membership-revoked");
        let heard: Vec<&str> = events.iter().map(Event::cursor).collect();
        assert!(!heard.contains(&&*after));
        assert!(
            before.iter().map(String::as_str).take(heard.len()).eq(heard.iter().copied()),
            "in order, from the first"
        );
    }
}

#[tokio::test]
async fn who_is_removed_in_the_middle_of_a_replay_hears_no_more_of_it() {
    let server = open().await;
    let large = json!({ "type": "messageEvent", "payload": { "messageView": { "x": "x".repeat(8000) } } });
    for _ in 0..40 {
        writes(&server, &vec![large.clone(); 50]).await;
    }
    for wire in WIRES {
        changes_members(&server, ROOM, &["bob"], &[]).await;
        let mut reader = guest(&server, wire, "bob", ROOM).narrow().asking("cursor=oldest").comes().await;
        reader.hears().await;
        changes_members(&server, ROOM, &[], &["bob"]).await;
        let mut heard = 1;
        let info = loop {
            let event = reader.hears().await;
            if event.kind == "infoEvent" {
                break event;
            }
            heard += 1;
        };
        assert_eq!(info.reason(), "membership-revoked");
        assert!(heard < 2000, "it was in the middle of it");
    }
}

#[tokio::test]
async fn who_is_added_again_reads_what_it_missed() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    changes_members(&server, ROOM, &[], &["bob"]).await;
    let missed = write_messages(&server, 2).await;
    changes_members(&server, ROOM, &["bob"], &[]).await;
    for wire in WIRES {
        let mut reader =
            guest(&server, wire, "bob", ROOM).asking(&format!("cursor={}", cursors[1])).comes().await;
        hears_all(&mut reader, &missed).await;
    }
    changes_members(&server, ROOM, &["late"], &[]).await;
    let mut reader = guest(&server, Wire::Sse, "late", ROOM).asking("cursor=oldest").comes().await;
    hears_all(&mut reader, &[cursors, missed].concat()).await;
}

#[tokio::test]
async fn without_history_a_member_reads_from_its_joining_on() {
    let server = open_with(Options { history_for_new_members: false, ..Options::default() }).await;
    let before = write_messages(&server, 2).await;
    changes_members(&server, ROOM, &["late"], &["bob"]).await;
    let missed = write_messages(&server, 2).await;
    changes_members(&server, ROOM, &["bob"], &[]).await;
    let after = write_messages(&server, 2).await;
    for wire in WIRES {
        let of = |user: &str, asked: &str| guest(&server, wire, user, ROOM).asking(asked);
        hears_all(&mut of("bob", "cursor=oldest").comes().await, &after).await;
        hears_all(&mut of("late", "cursor=oldest").comes().await, &[missed.clone(), after.clone()].concat())
            .await;
        let all = [before.clone(), missed.clone(), after.clone()].concat();
        hears_all(&mut of("alice", "cursor=oldest").comes().await, &all).await;
        for (user, stale) in [("bob", &before[1]), ("bob", &missed[0]), ("late", &before[0])] {
            let asked = format!("cursor={stale}&deviceId={wire:?}");
            let refused = of(user, &asked).is_refused().await;
            assert_eq!(refused.what(), (410, "CursorCompacted"), "{user}");
            let floor = if user == "bob" { &missed[1] } else { &before[1] };
            let told = |detail: &Value| (detail["floor"].clone(), detail["oldest"].clone());
            assert_eq!(told(&refused.body["detail"]), (json!(floor), json!(floor)), "nothing from before");
            let mut reader = of(user, "").having_heard(stale).comes().await;
            let info = reader.is_told("compacted").await;
            assert_eq!(info.cursor(), after[1]);
            assert_eq!(told(info.detail()), (json!(floor), json!(floor)));
            // With what it was told it goes on, from its joining.
            let mut reader = of(user, &format!("cursor={floor}")).comes().await;
            reader.hears().await;
        }
        hears_all(&mut of("bob", &format!("cursor={}", missed[1])).comes().await, &after).await;
        let mut overlapping = of("bob", &format!("cursor={}&overlap=1", missed[1])).comes().await;
        hears_all(&mut overlapping, &after).await;
    }
}

#[tokio::test]
async fn a_token_that_expires_ends_the_stream_within_seconds() {
    let server = open().await;
    let mut readers = Vec::new();
    let expires_at = server.clock.now() + Duration::from_secs(20);
    // Times are whole seconds in a token.
    let expires_at = Timestamp::from_millis(expires_at.as_millis() / 1000 * 1000);
    let short = signed(&Claims { expires_at, ..claims(&server, "alice", Scope::Read) });
    let guest = |wire| at(&server, wire, ROOM, &short);
    for wire in WIRES {
        readers.push((wire, guest(wire).comes().await));
    }
    let before = write(&server, message("before")).await;
    for (_, reader) in &mut readers {
        hears_all(reader, std::slice::from_ref(&before)).await;
    }
    let_pass(&server, 10).await;
    for (_, reader) in readers.iter_mut().filter(|(wire, _)| *wire == Wire::WebSocket) {
        assert!(reader.close.is_none());
    }
    let_pass(&server, 15).await;
    until("they are cut, before anything else is written", || server.server().live_connections().is_empty())
        .await;
    write(&server, message("after")).await;
    for (wire, mut reader) in readers {
        let info = reader.is_told("token-expired").await;
        assert_eq!((info.detail(), info.cursor()), (&json!({ "status": 401 }), &*before));
        assert_eq!(reader.ends().await, (wire == Wire::WebSocket).then_some(4401));
    }
    is_refused(guest, (401, "TokenExpired")).await;
}

#[tokio::test]
async fn a_key_that_is_removed_ends_the_streams_that_it_opened() {
    let server = open().await;
    let mut readers = Vec::new();
    for wire in WIRES {
        let mut reader = alice(&server, wire).comes().await;
        hears_only_what_is_new(&server, &mut reader).await;
        readers.push((wire, reader));
    }
    let app = ProjectId::parse("app").expect("an id");
    server.projects().rotate_key(&app, None).await.expect("rotated");
    server.projects().remove_key(&app, Key::parse(KEY).expect("a key").kid()).await.expect("removed");
    let_pass(&server, 5).await;
    for (wire, mut reader) in readers {
        let heard = reader.rest().await;
        assert_eq!(heard.last().expect("a word at the end").reason(), "token-expired");
        assert_eq!(reader.close.map(|(number, _)| number), (wire == Wire::WebSocket).then_some(4401));
    }
}

#[tokio::test]
async fn in_dev_mode_the_caller_is_dev_and_what_is_shown_is_checked() {
    let server = Harness::start().await;
    let members = server.post("/v1/p/rooms/r/members").json(&json!({ "add": ["alice"] }));
    assert_eq!(body(answer(members).await).await, json!({ "members": ["alice"] }));
    let written = body(answer(server.post("/v1/p/rooms/r/events").json(&message(1))).await).await;
    for wire in WIRES {
        let dev = Guest::at(server.address(), wire, "/v1/p/rooms/r/events?cursor=oldest");
        assert_eq!(dev.comes().await.hears().await.body["cursor"], written["cursor"]);
        assert_eq!(dev.with_token("a.b.c").is_refused().await.what(), (401, "AuthRequired"));
    }
    let seen = server.post("/v1/p/rooms/r/seen").json(&json!({ "cursor": written["cursor"] }));
    assert_eq!(body(answer(seen).await).await["cursor"], written["cursor"]);
}
