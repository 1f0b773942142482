//! Section 7: how a connection ends.

use super::*;

pub(super) fn close(payload: &[u8]) -> Vec<u8> {
    frame(FIN | CLOSE, payload)
}

pub(super) fn closes(case: &str, payload: &[u8], says: Option<Close>, written: &[u8]) {
    let bytes =
        [close(payload), frame(FIN | PING, "late"), close(payload), frame(FIN | TEXT, "late")].concat();
    let outcome = hear(&bytes);
    assert_eq!(outcome.events, [Event::Closed(says)], "{case}: what follows is not looked at");
    assert_eq!(outcome.written, [written], "{case}");
}

#[test]
fn a_close_is_answered_with_its_code_and_nothing_follows() {
    closes("empty", b"", None, b"\x88\x00");
    closes("normal", b"\x03\xe8", Some(Close::new(Code::NORMAL, "")), b"\x88\x02\x03\xe8");
    let says = Some(Close::new(Code::GOING_AWAY, "päge left"));
    closes("with a reason", b"\x03\xe9p\xc3\xa4ge left", says, b"\x88\x02\x03\xe9");
    let longest = [&b"\x03\xe8"[..], &[b'*'; 123]].concat();
    closes(
        "the longest reason",
        &longest,
        Some(Close::new(Code::NORMAL, &"*".repeat(123))),
        b"\x88\x02\x03\xe8",
    );
}

#[test]
fn close_codes_that_may_be_sent_are_answered_and_others_refused() {
    let valid =
        [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999];
    for number in valid {
        let payload = u16::to_be_bytes(number);
        let says = Close::new(Code::new(number).expect("valid"), "");
        closes(&number.to_string(), &payload, Some(says), &[&b"\x88\x02"[..], &payload].concat());
    }
    for number in [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        let bytes = close(&u16::to_be_bytes(number));
        fails(&number.to_string(), &bytes, &[], Violation::CloseCode(number));
    }
}

#[test]
fn a_malformed_close_is_refused() {
    fails("one byte", &close(b"\x03"), &[], Violation::CloseTooShort);
    fails("a reason that is not text", &close(b"\x03\xe8\xce\xba\xed\xa0\x80"), &[], Violation::InvalidText);
    fails("a reason cut within a character", &close(b"\x03\xe8\xe2\x82"), &[], Violation::InvalidText);
}

#[test]
fn messages_before_a_close_are_told() {
    let outcome = hear(&[frame(FIN | TEXT, "last words"), frame(FIN | PING, "p"), close(b"")].concat());
    assert_eq!(outcome.events, [text("last words"), ping("p"), Event::Closed(None)]);
    assert_eq!(outcome.written, [answer("p"), Bytes::from_static(b"\x88\x00")]);
}

#[test]
fn a_close_of_ours_is_sent_once_behind_what_is_owed_and_its_answer_ends_it() {
    let mut connection = connection();
    assert!(connection.is_open());
    connection.feed(&mut &frame(FIN | PING, "owed")[..], NOW);
    connection.close(&Close::new(Code::GOING_AWAY, "restart"), NOW);
    connection.close(&Close::new(Code::NORMAL, "again"), NOW);
    assert!(!connection.is_open() && !connection.is_over());
    assert_eq!(connection.outgoing(), Some(answer("owed")));
    assert_eq!(connection.outgoing().as_deref(), Some(&b"\x88\x09\x03\xe9restart"[..]));
    assert_eq!(connection.outgoing(), None);

    let late = [frame(FIN | TEXT, "crossed"), frame(FIN | PING, "crossed")].concat();
    let mut late = &late[..];
    assert_eq!(connection.feed(&mut late, NOW), Some(text("crossed")));
    assert_eq!(connection.feed(&mut late, NOW), Some(ping("crossed")));
    assert_eq!(connection.outgoing(), None, "nothing follows a close frame");

    let event = connection.feed(&mut &close(b"\x03\xe9")[..], NOW);
    assert_eq!(event, Some(Event::Closed(Some(Close::new(Code::GOING_AWAY, "")))));
    assert_eq!(connection.outgoing(), None, "an answer is not answered");
    assert!(connection.is_over());
}

#[test]
fn when_both_close_at_once_each_frame_goes_out_once() {
    let mut connection = connection();
    connection.close(&Close::new(Code::NORMAL, ""), NOW);
    let event = connection.feed(&mut &close(b"\x03\xe9")[..], NOW);
    assert_eq!(event, Some(Event::Closed(Some(Close::new(Code::GOING_AWAY, "")))));
    assert!(!connection.is_over(), "ours has not been written yet");
    assert_eq!(connection.outgoing().as_deref(), Some(&b"\x88\x02\x03\xe8"[..]));
    assert!(connection.is_over());
}

#[test]
fn a_violation_after_our_close_ends_it_without_another_close() {
    let mut connection = connection();
    connection.close(&Close::new(Code::NORMAL, ""), NOW);
    assert!(connection.outgoing().is_some());
    let event = connection.feed(&mut &[0xff_u8][..], NOW);
    assert_eq!(event, Some(Event::Failed(Violation::ReservedBits)));
    assert_eq!(connection.outgoing(), None);
    assert!(connection.is_over());
}
