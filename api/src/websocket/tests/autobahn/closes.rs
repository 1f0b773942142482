//! 7: closes. The other cases end well with one, too.

use super::*;
use crate::websocket::tests::closing::{close, closes};

const REASON: &[u8] = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64";

/// The payload of a close frame.
fn payload(code: u16, reason: impl AsRef<[u8]>) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason.as_ref()].concat()
}

#[test]
fn section_7_1_what_follows_a_close_is_ignored() {
    let normal = close(&payload(1000, ""));
    let largest = vec![b'B'; 256 << 10];
    let rows: [(&str, Vec<u8>, Vec<Event>); 6] = [
        ("7.1.1", all([frame(FIN | TEXT, "Hello World!"), normal.clone()]), vec![text("Hello World!")]),
        ("7.1.2", all([normal.clone(), close(b"")]), vec![]),
        ("7.1.3", all([normal.clone(), frame(FIN | PING, "")]), vec![]),
        ("7.1.4", all([normal.clone(), frame(FIN | TEXT, "Hello World!")]), vec![]),
        (
            "7.1.5",
            all([frame(TEXT, "fragment1"), normal.clone(), frame(FIN | CONTINUATION, "fragment2")]),
            vec![],
        ),
        // The suite lets both pass: whether the message is sent back or the close is first. Ours takes all.
        (
            "7.1.6",
            all([
                frame(FIN | TEXT, &largest),
                frame(FIN | TEXT, "Hello World!"),
                normal.clone(),
                frame(FIN | PING, ""),
            ]),
            vec![text_of(&largest), text("Hello World!")],
        ),
    ];
    complete("7.1", 1..=6, rows.iter().map(|(case, ..)| *case));
    for (case, bytes, mut events) in rows {
        events.push(Event::Closed(Some(Close::new(Code::NORMAL, ""))));
        let outcome = hear_within(LARGEST, &bytes);
        assert!(outcome.events == events, "{case}: {:?}", abridged(&outcome.events));
        assert_eq!(outcome.written, [&b"\x88\x02\x03\xe8"[..]], "{case}");
    }
}

/// The event of a text that is larger than what other tests send.
fn text_of(payload: &[u8]) -> Event {
    let mut connection = Connection::new(LARGEST, Timeouts::default(), NOW);
    connection.feed(&mut &frame(FIN | TEXT, payload)[..], NOW).expect("a text")
}

#[test]
fn sections_7_3_and_7_5_what_a_close_frame_carries() {
    let normal = |reason: &str| Some(Close::new(Code::NORMAL, reason));
    let answer = b"\x88\x02\x03\xe8";
    let longest = "*".repeat(123);
    closes("7.3.1", b"", None, b"\x88\x00");
    fails("7.3.2", &close(b"a"), &[], Violation::CloseTooShort);
    closes("7.3.3", &payload(1000, ""), normal(""), answer);
    closes("7.3.4", &payload(1000, "Hello World!"), normal("Hello World!"), answer);
    closes("7.3.5", &payload(1000, &longest), normal(&longest), answer);
    fails("7.3.6", &close(&payload(1000, "*".repeat(124))), &[], Violation::ControlTooLong);
    fails("7.5.1", &close(&payload(1000, REASON)), &[], Violation::InvalidText);
}

#[test]
fn section_7_7_codes_that_may_be_sent() {
    let rows = [
        ("7.7.1", 1000),
        ("7.7.2", 1001),
        ("7.7.3", 1002),
        ("7.7.4", 1003),
        ("7.7.5", 1007),
        ("7.7.6", 1008),
        ("7.7.7", 1009),
        ("7.7.8", 1010),
        ("7.7.9", 1011),
        ("7.7.10", 3000),
        ("7.7.11", 3999),
        ("7.7.12", 4000),
        ("7.7.13", 4999),
    ];
    complete("7.7", 1..=13, rows.map(|(case, _)| case));
    for (case, code) in rows {
        let says = Close::new(Code::new(code).expect(case), "");
        closes(case, &payload(code, ""), Some(says), &[&b"\x88\x02"[..], &code.to_be_bytes()].concat());
    }
}

#[test]
fn sections_7_9_and_7_13_codes_that_may_not_be_sent() {
    // What comes of the last two is left open by the protocol; it is the same to us.
    let rows = [
        ("7.9.1", 0),
        ("7.9.2", 999),
        ("7.9.3", 1004),
        ("7.9.4", 1005),
        ("7.9.5", 1006),
        ("7.9.6", 1016),
        ("7.9.7", 1100),
        ("7.9.8", 2000),
        ("7.9.9", 2999),
        ("7.13.1", 5000),
        ("7.13.2", 65535),
    ];
    complete("7.9", 1..=9, rows[..9].iter().map(|(case, _)| *case));
    complete("7.13", 1..=2, rows[9..].iter().map(|(case, _)| *case));
    for (case, code) in rows {
        fails(case, &close(&payload(code, "")), &[], Violation::CloseCode(code));
    }
}
