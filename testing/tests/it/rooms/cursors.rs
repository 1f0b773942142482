//! Cursors: ULIDs that grow, whatever the clock does.

use tidings_model::Timestamp;

use super::*;

/// Events of one millisecond in every run of the tests; `make test-all` sets more.
const EVENTS: usize = 100_000;

fn events() -> usize {
    std::env::var("TIDINGS_ROOM_EVENTS").ok().and_then(|events| events.parse().ok()).unwrap_or(EVENTS)
}

fn grows(cursors: &[String]) {
    for pair in cursors.windows(2) {
        assert!(number(&pair[0]) < number(&pair[1]), "as numbers: {pair:?}");
        assert!(pair[0] < pair[1], "as text: {pair:?}");
    }
}

#[tokio::test]
async fn cursors_are_ulids_of_their_time_and_grow_over_all_kinds() {
    let server = open().await;
    let mut cursors = Vec::new();
    for n in 0..20 {
        let some = [message(n), reaction("m", "alice", "+1", "add"), typing("alice")];
        cursors.extend(writes(&server, &some).await);
        let now = server.clock.now().as_millis();
        assert!(cursors[cursors.len() - 3..].iter().all(|cursor| millis(cursor) == now), "{cursors:?}");
        for one in some {
            cursors.push(write(&server, one).await);
        }
        server.clock.advance(Duration::from_millis(n % 3));
    }
    grows(&cursors);
    assert!(cursors.iter().all(|cursor| cursor.len() == 26 && *cursor == cursor.to_uppercase()));
}

#[tokio::test]
async fn within_a_millisecond_the_next_is_one_more_and_in_the_next_one_it_is_drawn_anew() {
    const TOP: u128 = 1 << 79;
    const RANDOM: u128 = (1 << 80) - 1;
    let server = open().await;
    let mut drawn = Vec::new();
    for n in 0..100 {
        let first = number(&write(&server, message(n)).await);
        assert_eq!(first & TOP, 0, "there is room above");
        for more in 1..4 {
            assert_eq!(number(&write(&server, message(n)).await), first + more);
        }
        drawn.push(first & RANDOM);
        server.clock.advance(Duration::from_millis(1));
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), 100, "no two draws are the same");
    let large = drawn.iter().filter(|&&drawn| drawn >= TOP / 2).count();
    assert!((20..80).contains(&large), "they are spread: {large} of 100 in the upper half");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_millisecond_have_growing_cursors_and_none_is_missing() {
    let server = open().await;
    let mut cursors = Vec::with_capacity(events());
    while cursors.len() < events() {
        let first = cursors.len();
        let some: Vec<Value> = (first..events().min(first + 1000)).map(message).collect();
        cursors.extend(writes(&server, &some).await);
    }
    grows(&cursors);
    let now = server.clock.now().as_millis();
    assert_eq!((millis(&cursors[0]), millis(&cursors[cursors.len() - 1])), (now, now));
    let mut reader = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    for (n, cursor) in cursors.iter().enumerate() {
        let event = reader.hears().await;
        assert_eq!(
            (event.cursor(), &event.payload()["messageView"]["id"]),
            (&**cursor, &json!(n.to_string()))
        );
    }
}

#[tokio::test]
async fn every_room_has_an_order_of_its_own() {
    let server = open().await;
    changes_members(&server, "other", &["alice"], &[]).await;
    let mut cursors: [Vec<u128>; 2] = Default::default();
    for n in 0..10 {
        for (room, cursors) in [ROOM, "other"].into_iter().zip(&mut cursors) {
            let written = body(answer(writing(&server, room, &message(n))).await).await;
            cursors.push(number(written["cursor"].as_str().expect("a cursor")));
        }
    }
    for cursors in &cursors {
        let expected: Vec<u128> = (0..10).map(|n| cursors[0] + n).collect();
        assert_eq!(*cursors, expected, "what happens in one room does not move the other");
    }
    assert_ne!(cursors[0], cursors[1]);
}

#[tokio::test]
async fn a_clock_that_is_set_back_takes_no_cursor_back_and_is_told_of() {
    let server = open().await;
    let alarms = || server.metric(r#"tidings_room_clock_alarms_total{clock="behind"}"#).unwrap_or_default();
    let now = server.clock.now();
    let mut cursors = write_messages(&server, 3).await;
    server.clock.set(Timestamp::from_millis(now.as_millis() - 4000));
    cursors.extend(write_messages(&server, 3).await);
    assert_eq!(alarms(), 0.0, "a few seconds are borne");
    server.clock.set(Timestamp::from_millis(now.as_millis() - 10_000));
    cursors.extend(write_messages(&server, 3).await);
    assert!(alarms() > 0.0);
    grows(&cursors);
    assert!(cursors.iter().all(|cursor| millis(cursor) == now.as_millis()), "the last moment is kept");
    let first = number(&cursors[0]);
    assert_eq!(number(&cursors[8]), first + 8, "each is one more");
    server.clock.set(now);
    server.clock.advance(Duration::from_millis(1));
    let later = write(&server, message("later")).await;
    assert_eq!(millis(&later), now.as_millis() + 1, "time goes on");
    grows(&[cursors[8].clone(), later]);
}

#[tokio::test]
async fn a_clock_that_is_set_back_across_a_restart_takes_no_cursor_back() {
    let server = open_on(TestStore::Embedded, Options::default()).await;
    let now = server.clock.now();
    let mut cursors = write_messages(&server, 3).await;
    server.clock.set(Timestamp::from_millis(now.as_millis() - 10_000));
    let server = server.restart().await;
    cursors.extend(write_messages(&server, 3).await);
    grows(&cursors);
    let mut reader = alice(&server, Wire::Sse).asking(&format!("cursor={}", cursors[0])).comes().await;
    hears_all(&mut reader, &cursors[1..]).await;
}

#[tokio::test]
async fn retention_goes_by_the_time_of_writing_whatever_the_cursors_say() {
    let rooms = Options { retention: DAY, sweep_interval: Duration::from_secs(60), ..Options::default() };
    let server = open_with(rooms.clone()).await;
    let now = server.clock.now();
    // Typing is not kept, but what comes after it must have a later cursor.
    server.clock.set(now + Duration::from_secs(9 * 60));
    let ahead = write(&server, typing("alice")).await;
    server.clock.set(now);
    let message = write(&server, message("now")).await;
    assert_eq!((millis(&message), number(&message)), (millis(&ahead), number(&ahead) + 1));
    let_age(&server, &rooms).await;
    let refused = alice(&server, Wire::Sse).asking(&format!("cursor={}", cursor_of(0))).is_refused().await;
    assert_eq!(refused.what(), (410, "CursorCompacted"));
    assert_eq!(refused.body["detail"]["floor"], json!(message), "it went a day after it was written");
}

#[tokio::test]
async fn a_clock_that_jumps_ahead_is_followed_when_it_has_stayed_there() {
    let server = open().await;
    let now = server.clock.now().as_millis();
    let first = write(&server, message(1)).await;
    let jump = 11 * 60 * 1000;
    server.clock.set(Timestamp::from_millis(now + jump));
    let second = write(&server, message(2)).await;
    assert!(millis(&second) < now + 10 * 60 * 1000, "not yet: {}", millis(&second) - now);
    let_pass(&server, 59).await;
    let third = write(&server, message(3)).await;
    assert!(millis(&third) < now + 10 * 60 * 1000, "nor now: {}", millis(&third) - now);
    let_pass(&server, 2).await;
    let fourth = write(&server, message(4)).await;
    assert!(millis(&fourth) >= now + jump, "it is so: {}", millis(&fourth) - now);
    grows(&[first, second, third, fourth]);
    assert!(server.metric(r#"tidings_room_clock_alarms_total{clock="ahead"}"#).unwrap_or_default() > 0.0);
    // A smaller jump is nothing unusual.
    server.clock.set(Timestamp::from_millis(server.clock.now().as_millis() + 9 * 60 * 1000));
    assert_eq!(millis(&write(&server, message(5)).await), server.clock.now().as_millis());
}

#[tokio::test]
async fn what_is_not_a_cursor_is_refused_and_small_letters_are_none_the_worse() {
    let server = open().await;
    let cursors = write_messages(&server, 3).await;
    let cursor = &cursors[1];
    let bad = [
        String::new(),
        cursor[..25].to_owned(),
        format!("{cursor}0"),
        format!("8{}", "Z".repeat(25)),
        format!("{}O", &cursor[..25]),
        format!("{}I", &cursor[..25]),
        format!("{}l", &cursor[..25]),
        format!("{}u", &cursor[..25]),
        "%27%20OR%201%3D1%3B%20DROP%20TABLE%20x%3B%20--".to_owned(),
        "last%20".to_owned(),
        "OLDEST".to_owned(),
        "%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC%C3%BC".to_owned(),
    ];
    for wire in WIRES {
        for bad in &bad {
            let refused = alice(&server, wire).asking(&format!("cursor={bad}")).is_refused().await;
            assert_eq!(refused.what(), (400, "InvalidCursor"), "{bad:?}");
            is_a_refusal(refused.status, &refused.headers, &refused.body);
        }
        let small = cursor.to_lowercase();
        let mut reader = alice(&server, wire).asking(&format!("cursor={small}")).comes().await;
        hears_all(&mut reader, &cursors[2..]).await;
        if wire != Wire::WebSocket {
            assert_eq!(reader.head["last-event-id"], **cursor, "answered in large letters");
        }
        let twice = alice(&server, wire).asking(&format!("cursor={cursor}&cursor=head")).is_refused().await;
        assert_eq!(twice.what(), (400, "InvalidRequest"));
    }
    for bad in bad.iter().filter(|bad| !bad.contains('%')) {
        let seen = request(&server, Method::POST, "alice", ROOM, "seen").json(&json!({ "cursor": bad }));
        assert_eq!(refused(seen).await, (400, "InvalidCursor".to_owned()), "{bad:?}");
    }
    let small = json!({ "cursor": cursor.to_lowercase() });
    let seen = body(answer(request(&server, Method::POST, "alice", ROOM, "seen").json(&small)).await).await;
    assert_eq!(seen["cursor"], json!(cursor));
}
