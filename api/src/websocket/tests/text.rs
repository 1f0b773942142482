//! Section 6: UTF-8, in one frame, in several, and cut within a character.

use super::*;

const VALID: [&[u8]; 14] = [
    b"",
    b"Hello",
    "Hello-µ@ßöäüàá-UTF-8!!".as_bytes(),
    "κόσμε".as_bytes(),
    "日本語".as_bytes(),
    "🦀🦀🦀".as_bytes(),
    b"\x00",
    b"\x7f",
    b"\xc2\x80",
    b"\xdf\xbf",
    b"\xe0\xa0\x80",
    b"\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbd\xef\xbf\xbe\xef\xbf\xbf",
    b"\xf0\x90\x80\x80",
    b"\xf4\x8f\xbf\xbf",
];

/// What is not UTF-8, and the place of the first byte that shows it.
const INVALID: [(&[u8], usize); 21] = [
    (b"\x80", 0),
    (b"\xbf", 0),
    (b"fine\x80fine", 4),
    (b"\xc0\x80", 0),
    (b"\xc1\xbf", 0),
    (b"\xc2\x41", 1),
    (b"\xc2\xc2", 1),
    (b"\xe0\x80\x80", 1),
    (b"\xe0\x9f\xbf", 1),
    (b"\xe2\x82\x41", 2),
    (b"\xed\xa0\x80", 1),
    (b"\xed\xad\xbf", 1),
    (b"\xed\xaf\xbf\xed\xb0\x80", 1),
    (b"\xf0\x80\x80\x80", 1),
    (b"\xf0\x8f\xbf\xbf", 1),
    (b"\xf1\x80\x80\x41", 3),
    (b"\xf4\x90\x80\x80", 1),
    (b"\xf5\x80\x80\x80", 0),
    (b"\xf8\x88\x80\x80\x80", 0),
    (b"\xfc\x84\x80\x80\x80\x80", 0),
    (b"\xfe", 0),
];

#[test]
fn valid_text_comes_through_in_any_two_fragments() {
    for valid in VALID {
        let expected = std::str::from_utf8(valid).expect("the table is right");
        for cut in 0..=valid.len() {
            let bytes = [frame(TEXT, &valid[..cut]), frame(FIN | CONTINUATION, &valid[cut..])].concat();
            let outcome = hear(&bytes);
            let [Event::Text(text)] = &outcome.events[..] else { panic!("{expected}: {outcome:?}") };
            assert_eq!(text.as_str(), expected);
        }
    }
}

#[test]
fn text_may_be_cut_into_single_bytes_with_pings_in_between() {
    for valid in VALID {
        let mut bytes = frame(TEXT, "");
        for byte in valid {
            bytes.extend(frame(CONTINUATION, [*byte]));
            bytes.extend(frame(FIN | PONG, "\u{fffd}"));
        }
        bytes.extend(frame(FIN | CONTINUATION, ""));
        assert_eq!(hear(&bytes).events.last(), Some(&text(valid)));
    }
}

#[test]
fn invalid_text_is_refused_with_the_first_byte_that_shows_it() {
    for (invalid, place) in INVALID {
        let case = format!("{invalid:x?}");
        // The frame announces more, and the message more frames: none of it is awaited.
        let long = [invalid, &[b'x'; 50]].concat();
        let whole = frame(TEXT, &long);
        let payload_at = whole.len() - long.len();
        let mut connection = connection();
        assert_eq!(connection.feed(&mut &whole[..payload_at + place], NOW), None, "{case}");
        let event = connection.feed(&mut &whole[payload_at + place..=payload_at + place], NOW);
        assert_eq!(event, Some(Event::Failed(Violation::InvalidText)), "{case}");

        fails(&case, &frame(FIN | TEXT, invalid), &[], Violation::InvalidText);
        for cut in 0..=invalid.len() {
            let bytes = [frame(TEXT, &invalid[..cut]), frame(FIN | CONTINUATION, &invalid[cut..])].concat();
            fails(&case, &bytes, &[], Violation::InvalidText);
        }
        goes_on(&case, &frame(FIN | BINARY, invalid), &[binary(invalid)], &[]);
    }
}

#[test]
fn a_text_does_not_end_within_a_character() {
    for valid in ["é".as_bytes(), "語".as_bytes(), "🦀".as_bytes()] {
        for cut in 1..valid.len() {
            let case = format!("{:x?}", &valid[..cut]);
            fails(&case, &frame(FIN | TEXT, &valid[..cut]), &[], Violation::InvalidText);
            let bytes = [frame(TEXT, &valid[..cut]), frame(FIN | CONTINUATION, "")].concat();
            fails(&case, &bytes, &[], Violation::InvalidText);
        }
    }
}

#[test]
fn a_character_does_not_reach_over_two_messages() {
    let bytes = [frame(FIN | TEXT, "a"), frame(FIN | TEXT, b"\xc3"), frame(FIN | TEXT, b"\xa9")].concat();
    fails("é", &bytes, &[text("a")], Violation::InvalidText);
}
