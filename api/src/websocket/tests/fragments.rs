//! Sections 5 and 9: fragments, and control frames between them.

use super::*;

#[test]
fn fragments_become_one_message() {
    let parts = |kind, parts: &[&str]| -> Vec<u8> {
        let last = parts.len() - 1;
        let frames = parts.iter().enumerate().map(|(i, part)| {
            let fin = if i == last { FIN } else { 0 };
            frame(fin | if i == 0 { kind } else { CONTINUATION }, part)
        });
        frames.flatten().collect()
    };
    goes_on("two", &parts(TEXT, &["frag", "ment"]), &[text("fragment")], &[]);
    goes_on("bytes", &parts(BINARY, &["frag", "ment"]), &[binary("fragment")], &[]);
    goes_on("three, all empty", &parts(TEXT, &["", "", ""]), &[text("")], &[]);
    goes_on("empty around", &parts(TEXT, &["", "middle", ""]), &[text("middle")], &[]);
    let many = vec!["0123456789"; 100];
    goes_on("as many as may be", &parts(TEXT, &many), &[text("0123456789".repeat(100))], &[]);
    let more = vec![""; 101];
    fails("one more", &parts(TEXT, &more), &[], Violation::TooManyFragments(100));
}

#[test]
fn control_frames_between_fragments_are_told_at_once() {
    let bytes = [
        frame(TEXT, "frag"),
        frame(FIN | PING, "there?"),
        frame(CONTINUATION, "men"),
        frame(FIN | PONG, "here"),
        frame(FIN | PING, ""),
        frame(FIN | CONTINUATION, "t"),
    ]
    .concat();
    let events = [ping("there?"), pong("here"), ping(""), text("fragment")];
    goes_on("pings and a pong", &bytes, &events, &[answer("there?"), answer("")]);
}

#[test]
fn a_close_between_fragments_ends_it_all() {
    let bytes = [frame(TEXT, "frag"), frame(FIN | CLOSE, b"\x03\xe8"), frame(FIN | CONTINUATION, "ment")];
    let outcome = hear(&bytes.concat());
    assert_eq!(outcome.events, [Event::Closed(Some(Close::new(Code::NORMAL, "")))]);
    assert_eq!(outcome.written, [&b"\x88\x02\x03\xe8"[..]]);
}

#[test]
fn a_control_frame_is_never_a_fragment() {
    for opcode in [CLOSE, PING, PONG] {
        let case = format!("{opcode:x}");
        fails(&case, &[opcode], &[], Violation::ControlFragmented);
        let bytes = [frame(opcode, "frag"), frame(FIN | CONTINUATION, "ment")].concat();
        fails(&case, &bytes, &[], Violation::ControlFragmented);
        let bytes = [frame(TEXT, "frag"), frame(opcode, "")].concat();
        fails(&format!("{case} within a text"), &bytes, &[], Violation::ControlFragmented);
    }
}

#[test]
fn a_continuation_without_a_beginning_is_refused() {
    for first in [CONTINUATION, FIN | CONTINUATION] {
        fails("at first", &frame(first, "lost"), &[], Violation::NothingToContinue);
        fails("empty", &frame(first, ""), &[], Violation::NothingToContinue);
        let bytes = [frame(FIN | TEXT, "whole"), frame(first, "lost")].concat();
        fails("after a whole text", &bytes, &[text("whole")], Violation::NothingToContinue);
        let bytes = [frame(TEXT, "a"), frame(FIN | CONTINUATION, "b"), frame(first, "lost")].concat();
        fails("after fragments", &bytes, &[text("ab")], Violation::NothingToContinue);
    }
}

#[test]
fn a_message_does_not_begin_within_another() {
    for first in [TEXT, BINARY] {
        for second in [TEXT, BINARY, FIN | TEXT, FIN | BINARY] {
            let bytes = [frame(first, "frag"), frame(second, "other")].concat();
            fails(&format!("{second:x} in {first:x}"), &bytes, &[], Violation::MessageUnfinished);
        }
    }
    let bytes = [frame(TEXT, "frag"), frame(FIN | PING, ""), frame(FIN | TEXT, "other")].concat();
    fails("after a ping", &bytes, &[ping("")], Violation::MessageUnfinished);
}

#[test]
fn a_message_beyond_the_limit_is_refused_with_the_header_that_makes_it_so() {
    let half = vec![7; 75_000];
    let whole = [frame(BINARY, &half), frame(FIN | CONTINUATION, &half)].concat();
    goes_on("just so much", &whole, &[binary([&half[..], &half].concat())], &[]);

    let bytes = [frame(BINARY, &half), frame(CONTINUATION, &half), frame(CONTINUATION, "x")].concat();
    let header_only = &bytes[..bytes.len() - 1];
    fails("one byte more", header_only, &[], Violation::MessageTooBig(150_000));
}
