//! Resuming: exactly what comes after the cursor, wherever it is from.

use super::*;

/// The ways in which a client says where it has been.
fn ways(server: &Harness, wire: Wire, cursor: &str) -> Vec<Guest> {
    let by_parameter = alice(server, wire).asking(&format!("cursor={cursor}"));
    let by_header = alice(server, wire).having_heard(cursor);
    match wire {
        Wire::Sse | Wire::SseLater => vec![by_parameter, by_header],
        Wire::WebSocket => vec![by_parameter, by_header, alice(server, wire).resuming(cursor)],
    }
}

#[tokio::test]
async fn a_resume_at_any_position_returns_exactly_the_rest() {
    let server = open().await;
    let mut cursors = Vec::new();
    for n in 0..4 {
        let some = [message(n), reaction("1", "bob", &n.to_string(), "add")];
        cursors.extend(writes(&server, &some).await);
        server.clock.advance(Duration::from_millis(n % 2));
        cursors.push(write(&server, message(format!("{n} again"))).await);
        write(&server, typing("alice")).await;
    }
    for wire in WIRES {
        for at in 0..cursors.len() {
            for guest in ways(&server, wire, &cursors[at]) {
                let mut reader = guest.comes().await;
                hears_all(&mut reader, &cursors[at + 1..]).await;
                cursors.push(write(&server, message("new")).await);
                hears_all(&mut reader, &cursors[cursors.len() - 1..]).await;
            }
        }
    }
}

#[tokio::test]
async fn without_a_cursor_only_what_is_new_is_heard() {
    let server = open().await;
    for wire in WIRES {
        for asked in ["", "cursor=head", "cursor=last&deviceId=new"] {
            write_messages(&server, 2).await;
            write(&server, typing("alice")).await;
            let mut reader = alice(&server, wire).asking(asked).comes().await;
            hears_only_what_is_new(&server, &mut reader).await;
        }
    }
}

#[tokio::test]
async fn what_was_typed_is_not_replayed_also_while_others_listen() {
    let server = open().await;
    let _others = [alice(&server, Wire::Sse).comes().await, alice(&server, Wire::WebSocket).comes().await];
    for wire in WIRES {
        let mut present = alice(&server, wire).comes().await;
        let before = write(&server, message("before")).await;
        let typed = write(&server, typing("alice")).await;
        let after = write(&server, message("after")).await;
        let typed_last = write(&server, typing("alice")).await;
        hears_all(&mut present, &[before.clone(), typed, after.clone(), typed_last.clone()]).await;
        let late = [after, write(&server, message("late")).await];
        for guest in ways(&server, wire, &before) {
            hears_all(&mut guest.comes().await, &late).await;
        }
        for guest in ways(&server, wire, &typed_last) {
            hears_all(&mut guest.comes().await, &late[1..]).await;
        }
    }
}

#[tokio::test]
async fn from_the_oldest_on_all_that_is_kept_is_heard() {
    let server = open().await;
    for wire in WIRES {
        let mut empty =
            alice(&server, wire).asking("cursor=oldest&types=reactionEvent&caughtUp=1").comes().await;
        empty.is_told("caught-up").await;
    }
    let cursors = write_messages(&server, 5).await;
    for wire in WIRES {
        let mut reader = alice(&server, wire).asking("cursor=oldest").comes().await;
        hears_all(&mut reader, &cursors).await;
    }
    let mut reader = alice(&server, Wire::WebSocket).resuming("oldest").comes().await;
    hears_all(&mut reader, &cursors).await;
}

#[tokio::test]
async fn the_beginning_of_an_empty_room_is_a_place_to_resume_from() {
    let server = open().await;
    let begins =
        alice(&server, Wire::Sse).comes().await.head["last-event-id"].to_str().expect("text").to_owned();
    let cursors = write_messages(&server, 2).await;
    for wire in WIRES {
        for guest in ways(&server, wire, &begins) {
            hears_all(&mut guest.comes().await, &cursors).await;
        }
    }
}

#[tokio::test]
async fn who_comes_again_before_its_first_event_misses_nothing() {
    let server = open().await;
    for wire in [Wire::Sse, Wire::SseLater] {
        write_messages(&server, 2).await;
        let mut reader = alice(&server, wire).asking("caughtUp=1").comes().await;
        reader.is_told("caught-up").await;
        let place = reader.last_id.clone().expect("it has a place");
        assert_eq!(reader.head["last-event-id"], *place);
        drop(reader);
        let missed = write_messages(&server, 2).await;
        let mut again = alice(&server, wire).having_heard(&place).comes().await;
        hears_all(&mut again, &missed).await;
    }
    // Of a WebSocket the answer says it.
    let reader = alice(&server, Wire::WebSocket).comes().await;
    let place = reader.head["last-event-id"].to_str().expect("text").to_owned();
    drop(reader);
    let missed = write_messages(&server, 2).await;
    hears_all(&mut alice(&server, Wire::WebSocket).resuming(&place).comes().await, &missed).await;
}

#[tokio::test]
async fn with_overlap_the_event_of_the_cursor_comes_again_and_no_other() {
    let server = open().await;
    let cursors = write_messages(&server, 5).await;
    for wire in WIRES {
        for guest in ways(&server, wire, &cursors[2]) {
            let mut reader = guest.clone().asking("overlap=1").comes().await;
            hears_all(&mut reader, &cursors[2..]).await;
            let mut reader = guest.asking("overlap=0").comes().await;
            hears_all(&mut reader, &cursors[3..]).await;
        }
        let bad = alice(&server, wire).asking("overlap=yes").is_refused().await;
        assert_eq!(bad.what(), (400, "InvalidRequest"));
    }
}

#[tokio::test]
async fn the_header_counts_for_more_than_the_message_and_that_for_more_than_the_address() {
    let server = open().await;
    let cursors = write_messages(&server, 6).await;
    for wire in WIRES {
        let address = alice(&server, wire).asking(&format!("cursor={}", cursors[1]));
        let mut reader = address.clone().having_heard(&cursors[3]).comes().await;
        if wire != Wire::WebSocket {
            assert_eq!(reader.head["last-event-id"], *cursors[3], "where it really begins");
        }
        hears_all(&mut reader, &cursors[4..]).await;
        // Even if what the address says is gone, or none at all: a browser sends it for ever.
        let future = cursor_of(number(&cursors[5]) + (1 << 90));
        let stale = alice(&server, wire).asking(&format!("cursor={future}")).having_heard(&cursors[4]);
        hears_all(&mut stale.comes().await, &cursors[5..]).await;
        // A browser that has heard nothing yet has an empty one.
        let mut reader = address.clone().having_heard("").comes().await;
        hears_all(&mut reader, &cursors[2..]).await;
    }
    let both =
        alice(&server, Wire::WebSocket).asking(&format!("cursor={}", cursors[1])).resuming(&cursors[3]);
    hears_all(&mut both.comes().await, &cursors[4..]).await;
    let all = both.having_heard(&cursors[4]);
    hears_all(&mut all.comes().await, &cursors[5..]).await;
}

#[tokio::test]
async fn who_asks_is_told_when_all_that_was_there_has_been_sent() {
    let server = open().await;
    let cursors = write_messages(&server, 40).await;
    for wire in WIRES {
        let mut reader =
            alice(&server, wire).asking(&format!("cursor={}&caughtUp=1", cursors[9])).comes().await;
        hears_all(&mut reader, &cursors[10..]).await;
        assert_eq!(reader.is_told("caught-up").await.cursor(), cursors[39]);
        let mut reader = alice(&server, wire).asking("caughtUp=1").comes().await;
        assert_eq!(reader.is_told("caught-up").await.cursor(), cursors[39], "there was nothing");
    }
    let mut quiet = alice(&server, Wire::Sse).asking(&format!("cursor={}", cursors[38])).comes().await;
    let mut told = alice(&server, Wire::Sse).asking("caughtUp=1").comes().await;
    told.is_told("caught-up").await;
    hears_all(&mut quiet, &cursors[39..]).await;
    let more = write_messages(&server, 2).await;
    hears_all(&mut quiet, &more).await;
    hears_all(&mut told, &more).await;
}

#[tokio::test]
async fn a_cursor_whose_event_is_not_kept_is_a_place_like_any_other() {
    let server = open().await;
    let before = write(&server, message(1)).await;
    let typed = write(&server, typing("alice")).await;
    let after = write(&server, message(2)).await;
    // Nobody has ever had this one, but it lies between two that somebody has.
    let between = cursor_of(number(&before) - 1);
    for wire in WIRES {
        for guest in ways(&server, wire, &typed) {
            hears_all(&mut guest.comes().await, std::slice::from_ref(&after)).await;
        }
        for guest in ways(&server, wire, &between) {
            hears_all(&mut guest.comes().await, &[before.clone(), after.clone()]).await;
        }
    }
    // The last that was given, to what is not kept, is not from the future.
    for wire in WIRES {
        let last = write(&server, typing("alice")).await;
        for guest in ways(&server, wire, &last).into_iter().take(1) {
            let mut reader = guest.comes().await;
            hears_only_what_is_new(&server, &mut reader).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_thousand_missed_events_come_whole_and_join_what_is_written_meanwhile() {
    let server = open().await;
    let first = write(&server, message("first")).await;
    for _ in 0..50 {
        writes(&server, &(0..1000).map(message).collect::<Vec<_>>()).await;
    }
    let mut readers = Vec::new();
    for wire in WIRES {
        let mut reader = alice(&server, wire).asking(&format!("cursor={first}")).comes().await;
        readers.push(tokio::spawn(async move {
            let mut heard = Vec::new();
            loop {
                let event = reader.hears().await;
                heard.push(event.cursor().to_owned());
                if event.payload()["messageView"]["id"] == "last" {
                    return heard;
                }
            }
        }));
    }
    let mut meanwhile = 0;
    while readers.iter().any(|reader| !reader.is_finished()) && meanwhile < 2000 {
        writes(&server, &(0..10).map(message).collect::<Vec<_>>()).await;
        meanwhile += 10;
    }
    let last = write(&server, message("last")).await;
    let mut all = alice(&server, Wire::Sse).asking("cursor=oldest").comes().await;
    let mut expected = Vec::new();
    while expected.last() != Some(&last) {
        expected.push(all.hears().await.cursor().to_owned());
    }
    assert_eq!(expected.len(), 1 + 50_000 + meanwhile + 1);
    for reader in readers {
        let heard = reader.await.expect("it heard the last");
        assert!(heard == expected[1..], "{} of {}", heard.len(), expected.len() - 1);
    }
}
