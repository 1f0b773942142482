//! 6: texts that are UTF-8 and texts that are not.
//!
//! We are stricter than the suite asks: a text fails with the first byte that shows it ("fail fast", which 6.4 is about
//! and the suite lets pass later), in the middle of a frame too. Only a text that ends within a character fails with
//! its end, for until then the rest may come.

use super::*;

/// Whether a text is valid, or what shows that it is not.
#[derive(Clone, Copy)]
enum Utf8 {
    /// It is.
    Valid,
    /// The byte at this place.
    At(usize),
    /// The end: it is within a character.
    AtEnd,
}

use Utf8::{At, AtEnd, Valid};

/// The groups of the table and how many cases they have.
const GROUPS: [(&str, u32); 19] = [
    ("6.5", 5),
    ("6.6", 11),
    ("6.7", 4),
    ("6.8", 2),
    ("6.9", 4),
    ("6.10", 3),
    ("6.11", 5),
    ("6.12", 8),
    ("6.13", 5),
    ("6.14", 10),
    ("6.15", 1),
    ("6.16", 3),
    ("6.17", 5),
    ("6.18", 5),
    ("6.19", 5),
    ("6.20", 7),
    ("6.21", 8),
    ("6.22", 34),
    ("6.23", 7),
];

#[rustfmt::skip]
const TEXTS: [(&str, Utf8, &[u8]); 132] = [
    ("6.5.1", Valid, b"hello$world"),
    ("6.5.2", Valid, b"hello\xc2\xa2world"),
    ("6.5.3", Valid, b"hello\xe2\x82\xacworld"),
    ("6.5.4", Valid, b"hello\xf0\xa4\xad\xa2world"),
    ("6.5.5", Valid, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"),
    ("6.6.1", AtEnd, b"\xce"),
    ("6.6.2", Valid, b"\xce\xba"),
    ("6.6.3", AtEnd, b"\xce\xba\xe1"),
    ("6.6.4", AtEnd, b"\xce\xba\xe1\xbd"),
    ("6.6.5", Valid, b"\xce\xba\xe1\xbd\xb9"),
    ("6.6.6", AtEnd, b"\xce\xba\xe1\xbd\xb9\xcf"),
    ("6.6.7", Valid, b"\xce\xba\xe1\xbd\xb9\xcf\x83"),
    ("6.6.8", AtEnd, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce"),
    ("6.6.9", Valid, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc"),
    ("6.6.10", AtEnd, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce"),
    ("6.6.11", Valid, b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5"),
    ("6.7.1", Valid, b"\x00"),
    ("6.7.2", Valid, b"\xc2\x80"),
    ("6.7.3", Valid, b"\xe0\xa0\x80"),
    ("6.7.4", Valid, b"\xf0\x90\x80\x80"),
    ("6.8.1", At(0), b"\xf8\x88\x80\x80\x80"),
    ("6.8.2", At(0), b"\xfc\x84\x80\x80\x80\x80"),
    ("6.9.1", Valid, b"\x7f"),
    ("6.9.2", Valid, b"\xdf\xbf"),
    ("6.9.3", Valid, b"\xef\xbf\xbf"),
    ("6.9.4", Valid, b"\xf4\x8f\xbf\xbf"),
    ("6.10.1", At(0), b"\xf7\xbf\xbf\xbf"),
    ("6.10.2", At(0), b"\xfb\xbf\xbf\xbf\xbf"),
    ("6.10.3", At(0), b"\xfd\xbf\xbf\xbf\xbf\xbf"),
    ("6.11.1", Valid, b"\xed\x9f\xbf"),
    ("6.11.2", Valid, b"\xee\x80\x80"),
    ("6.11.3", Valid, b"\xef\xbf\xbd"),
    ("6.11.4", Valid, b"\xf4\x8f\xbf\xbf"),
    ("6.11.5", At(1), b"\xf4\x90\x80\x80"),
    ("6.12.1", At(0), b"\x80"),
    ("6.12.2", At(0), b"\xbf"),
    ("6.12.3", At(0), b"\x80\xbf"),
    ("6.12.4", At(0), b"\x80\xbf\x80"),
    ("6.12.5", At(0), b"\x80\xbf\x80\xbf"),
    ("6.12.6", At(0), b"\x80\xbf\x80\xbf\x80"),
    ("6.12.7", At(0), b"\x80\xbf\x80\xbf\x80\xbf"),
    ("6.12.8", At(0), b"\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x8e\x8f\x90\x91\x92\x93\x94\x95\x96\x97\x98\x99\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf\xb0\xb1\xb2\xb3\xb4\xb5\xb6\xb7\xb8\xb9\xba\xbb\xbc\xbd\xbe"),
    ("6.13.1", At(0), b"\xc0 \xc1 \xc2 \xc3 \xc4 \xc5 \xc6 \xc7 \xc8 \xc9 \xca \xcb \xcc \xcd \xce \xcf \xd0 \xd1 \xd2 \xd3 \xd4 \xd5 \xd6 \xd7 \xd8 \xd9 \xda \xdb \xdc \xdd \xde "),
    ("6.13.2", At(1), b"\xe0 \xe1 \xe2 \xe3 \xe4 \xe5 \xe6 \xe7 \xe8 \xe9 \xea \xeb \xec \xed \xee "),
    ("6.13.3", At(1), b"\xf0 \xf1 \xf2 \xf3 \xf4 \xf5 \xf6 "),
    ("6.13.4", At(0), b"\xf8 \xf9 \xfa "),
    ("6.13.5", At(0), b"\xfc "),
    ("6.14.1", At(0), b"\xc0"),
    ("6.14.2", At(1), b"\xe0\x80"),
    ("6.14.3", At(1), b"\xf0\x80\x80"),
    ("6.14.4", At(0), b"\xf8\x80\x80\x80"),
    ("6.14.5", At(0), b"\xfc\x80\x80\x80\x80"),
    ("6.14.6", AtEnd, b"\xdf"),
    ("6.14.7", AtEnd, b"\xef\xbf"),
    ("6.14.8", At(0), b"\xf7\xbf\xbf"),
    ("6.14.9", At(0), b"\xfb\xbf\xbf\xbf"),
    ("6.14.10", At(0), b"\xfd\xbf\xbf\xbf\xbf"),
    ("6.15.1", At(0), b"\xc0\xe0\x80\xf0\x80\x80\xf8\x80\x80\x80\xfc\x80\x80\x80\x80\xdf\xef\xbf\xf7\xbf\xbf\xfb\xbf\xbf\xbf\xfd\xbf\xbf\xbf\xbf"),
    ("6.16.1", At(0), b"\xfe"),
    ("6.16.2", At(0), b"\xff"),
    ("6.16.3", At(0), b"\xfe\xfe\xff\xff"),
    ("6.17.1", At(0), b"\xc0\xaf"),
    ("6.17.2", At(1), b"\xe0\x80\xaf"),
    ("6.17.3", At(1), b"\xf0\x80\x80\xaf"),
    ("6.17.4", At(0), b"\xf8\x80\x80\x80\xaf"),
    ("6.17.5", At(0), b"\xfc\x80\x80\x80\x80\xaf"),
    ("6.18.1", At(0), b"\xc1\xbf"),
    ("6.18.2", At(1), b"\xe0\x9f\xbf"),
    ("6.18.3", At(1), b"\xf0\x8f\xbf\xbf"),
    ("6.18.4", At(0), b"\xf8\x87\xbf\xbf\xbf"),
    ("6.18.5", At(0), b"\xfc\x83\xbf\xbf\xbf\xbf"),
    ("6.19.1", At(0), b"\xc0\x80"),
    ("6.19.2", At(1), b"\xe0\x80\x80"),
    ("6.19.3", At(1), b"\xf0\x80\x80\x80"),
    ("6.19.4", At(0), b"\xf8\x80\x80\x80\x80"),
    ("6.19.5", At(0), b"\xfc\x80\x80\x80\x80\x80"),
    ("6.20.1", At(1), b"\xed\xa0\x80"),
    ("6.20.2", At(1), b"\xed\xad\xbf"),
    ("6.20.3", At(1), b"\xed\xae\x80"),
    ("6.20.4", At(1), b"\xed\xaf\xbf"),
    ("6.20.5", At(1), b"\xed\xb0\x80"),
    ("6.20.6", At(1), b"\xed\xbe\x80"),
    ("6.20.7", At(1), b"\xed\xbf\xbf"),
    ("6.21.1", At(1), b"\xed\xa0\x80\xed\xb0\x80"),
    ("6.21.2", At(1), b"\xed\xa0\x80\xed\xbf\xbf"),
    ("6.21.3", At(1), b"\xed\xad\xbf\xed\xb0\x80"),
    ("6.21.4", At(1), b"\xed\xad\xbf\xed\xbf\xbf"),
    ("6.21.5", At(1), b"\xed\xae\x80\xed\xb0\x80"),
    ("6.21.6", At(1), b"\xed\xae\x80\xed\xbf\xbf"),
    ("6.21.7", At(1), b"\xed\xaf\xbf\xed\xb0\x80"),
    ("6.21.8", At(1), b"\xed\xaf\xbf\xed\xbf\xbf"),
    ("6.22.1", Valid, b"\xef\xbf\xbe"),
    ("6.22.2", Valid, b"\xef\xbf\xbf"),
    ("6.22.3", Valid, b"\xf0\x9f\xbf\xbe"),
    ("6.22.4", Valid, b"\xf0\x9f\xbf\xbf"),
    ("6.22.5", Valid, b"\xf0\xaf\xbf\xbe"),
    ("6.22.6", Valid, b"\xf0\xaf\xbf\xbf"),
    ("6.22.7", Valid, b"\xf0\xbf\xbf\xbe"),
    ("6.22.8", Valid, b"\xf0\xbf\xbf\xbf"),
    ("6.22.9", Valid, b"\xf1\x8f\xbf\xbe"),
    ("6.22.10", Valid, b"\xf1\x8f\xbf\xbf"),
    ("6.22.11", Valid, b"\xf1\x9f\xbf\xbe"),
    ("6.22.12", Valid, b"\xf1\x9f\xbf\xbf"),
    ("6.22.13", Valid, b"\xf1\xaf\xbf\xbe"),
    ("6.22.14", Valid, b"\xf1\xaf\xbf\xbf"),
    ("6.22.15", Valid, b"\xf1\xbf\xbf\xbe"),
    ("6.22.16", Valid, b"\xf1\xbf\xbf\xbf"),
    ("6.22.17", Valid, b"\xf2\x8f\xbf\xbe"),
    ("6.22.18", Valid, b"\xf2\x8f\xbf\xbf"),
    ("6.22.19", Valid, b"\xf2\x9f\xbf\xbe"),
    ("6.22.20", Valid, b"\xf2\x9f\xbf\xbf"),
    ("6.22.21", Valid, b"\xf2\xaf\xbf\xbe"),
    ("6.22.22", Valid, b"\xf2\xaf\xbf\xbf"),
    ("6.22.23", Valid, b"\xf2\xbf\xbf\xbe"),
    ("6.22.24", Valid, b"\xf2\xbf\xbf\xbf"),
    ("6.22.25", Valid, b"\xf3\x8f\xbf\xbe"),
    ("6.22.26", Valid, b"\xf3\x8f\xbf\xbf"),
    ("6.22.27", Valid, b"\xf3\x9f\xbf\xbe"),
    ("6.22.28", Valid, b"\xf3\x9f\xbf\xbf"),
    ("6.22.29", Valid, b"\xf3\xaf\xbf\xbe"),
    ("6.22.30", Valid, b"\xf3\xaf\xbf\xbf"),
    ("6.22.31", Valid, b"\xf3\xbf\xbf\xbe"),
    ("6.22.32", Valid, b"\xf3\xbf\xbf\xbf"),
    ("6.22.33", Valid, b"\xf4\x8f\xbf\xbe"),
    ("6.22.34", Valid, b"\xf4\x8f\xbf\xbf"),
    ("6.23.1", Valid, b"\xef\xbf\xb9"),
    ("6.23.2", Valid, b"\xef\xbf\xba"),
    ("6.23.3", Valid, b"\xef\xbf\xbb"),
    ("6.23.4", Valid, b"\xef\xbf\xbc"),
    ("6.23.5", Valid, b"\xef\xbf\xbd"),
    ("6.23.6", Valid, b"\xef\xbf\xbe"),
    ("6.23.7", Valid, b"\xef\xbf\xbf"),
];

/// The greeting of 6.2.4, and what makes 6.3 and 6.4 invalid: a surrogate and a character beyond the last.
const KOSME: &[u8] = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5";
const SURROGATE: &[u8] = b"\xed\xa0\x80";
const BEYOND: &[u8] = b"\xf4\x90\x80\x80";

/// A text in fragments.
fn fragments<'f>(parts: impl IntoIterator<Item = &'f [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut parts = parts.into_iter().peekable();
    let mut opcode = TEXT;
    while let Some(part) = parts.next() {
        let fin = if parts.peek().is_none() { FIN } else { 0 };
        bytes.extend(frame(fin | opcode, part));
        opcode = CONTINUATION;
    }
    bytes
}

#[test]
fn sections_6_1_and_6_2_valid_texts_in_any_fragments() {
    let heard = |payload: &[u8]| GoesOn(vec![text(payload)], vec![]);
    let empty: &[u8] = b"";
    let middle = "middle frame payload".as_bytes();
    check(
        "6.1",
        1..=3,
        vec![
            ("6.1.1", frame(FIN | TEXT, empty), heard(empty)),
            ("6.1.2", fragments([empty, empty, empty]), heard(empty)),
            ("6.1.3", fragments([empty, middle, empty]), heard(middle)),
        ],
    );
    let hello = "Hello-µ@ßöäüàá-UTF-8!!".as_bytes();
    let (first, second) = ("Hello-µ@ßöä".as_bytes(), "üàá-UTF-8!!".as_bytes());
    check(
        "6.2",
        1..=4,
        vec![
            ("6.2.1", frame(FIN | TEXT, hello), heard(hello)),
            ("6.2.2", fragments([first, second]), heard(hello)),
            ("6.2.3", fragments(hello.chunks(1)), heard(hello)),
            ("6.2.4", fragments(KOSME.chunks(1)), heard(KOSME)),
        ],
    );
}

#[test]
fn section_6_3_invalid_texts_in_one_frame_and_in_frames_of_a_byte() {
    let invalid = [KOSME, SURROGATE, b"edited"].concat();
    let refused = || Fails(vec![], Violation::InvalidText);
    check(
        "6.3",
        1..=2,
        vec![
            ("6.3.1", frame(FIN | TEXT, &invalid), refused()),
            ("6.3.2", fragments(invalid.chunks(1)), refused()),
        ],
    );
}

#[test]
fn section_6_4_an_invalid_text_fails_before_the_rest_of_it_comes() {
    let invalid = [KOSME, BEYOND, b"edited"].concat();
    let (one_frame, head) = (frame(FIN | TEXT, &invalid), frame(FIN | TEXT, &invalid).len() - invalid.len());
    // Two pieces: nothing is wrong with the first, and the second is not the last that the client has announced.
    let rows = [
        ("6.4.1", frame(TEXT, KOSME), frame(CONTINUATION, BEYOND)),
        ("6.4.2", frame(TEXT, &invalid[..12]), frame(CONTINUATION, &invalid[12..13])),
        ("6.4.3", one_frame[..head + 11].to_vec(), one_frame[head + 11..head + 15].to_vec()),
        ("6.4.4", one_frame[..head + 12].to_vec(), one_frame[head + 12..head + 13].to_vec()),
    ];
    complete("6.4", 1..=4, rows.iter().map(|(case, ..)| *case));
    for (case, first, second) in rows {
        goes_on(case, &first, &[], &[]);
        fails(case, &[first, second].concat(), &[], Violation::InvalidText);
    }
}

#[test]
fn sections_6_5_to_6_23_texts_one_by_one() {
    let mut rows = TEXTS.iter();
    for (group, count) in GROUPS {
        let cases: Vec<_> = rows.by_ref().take(count as usize).collect();
        complete(group, 1..=count, cases.iter().map(|(case, ..)| *case));
        for &&(case, utf8, payload) in &cases {
            let bytes = frame(FIN | TEXT, payload);
            let head = bytes.len() - payload.len();
            match utf8 {
                Valid => goes_on(case, &bytes, &[text(payload)], &[]),
                At(place) => {
                    // With the byte before it there is nothing wrong, and with it nothing more is awaited.
                    let unfinished = frame(TEXT, payload);
                    goes_on(case, &unfinished[..head + place], &[], &[]);
                    fails(case, &bytes, &[], Violation::InvalidText);
                    let event = connection().feed(&mut &unfinished[..=head + place], NOW);
                    assert_eq!(event, Some(Event::Failed(Violation::InvalidText)), "{case}");
                }
                AtEnd => {
                    goes_on(case, &frame(TEXT, payload), &[], &[]);
                    fails(case, &bytes, &[], Violation::InvalidText);
                }
            }
        }
    }
    assert_eq!(rows.len(), 0, "all rows belong to a group");
}
