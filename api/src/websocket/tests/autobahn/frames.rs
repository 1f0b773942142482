//! 1 to 5, and 10: sizes, pings and pongs, reserved bits, opcodes, fragments.

use super::*;

const HELLO: &str = "Hello, world!";
const BYTES: &[u8] = b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff";

/// The sizes of 1.1 and 1.2. The last is sent in pieces of 997 bytes.
const SIZES: [usize; 8] = [0, 125, 126, 127, 128, 65535, 65536, 65536];

#[test]
fn section_1_messages_of_all_sizes() {
    let number = ["1", "2", "3", "4", "5", "6", "7", "8"];
    for (group, opcode) in [("1.1", TEXT), ("1.2", BINARY)] {
        let cases = number.map(|number| format!("{group}.{number}"));
        let rows = cases.iter().zip(SIZES).map(|(case, size)| {
            let payload = if opcode == TEXT { vec![b'*'; size] } else { vec![0xfe; size] };
            let event = if opcode == TEXT { text(&payload) } else { binary(&payload) };
            (case.as_str(), frame(FIN | opcode, &payload), GoesOn(vec![event], vec![]))
        });
        check(group, 1..=8, rows.collect());
    }
}

#[test]
fn section_2_pings_and_pongs() {
    let pinged =
        |payload: &[u8]| (frame(FIN | PING, payload), GoesOn(vec![ping(payload)], vec![answer(payload)]));
    let row = |case, (bytes, outcome)| (case, bytes, outcome);
    let ten = || {
        let payloads: Vec<String> = (0..10).map(|number| format!("payload-{number}")).collect();
        let bytes = payloads.iter().flat_map(|payload| frame(FIN | PING, payload)).collect();
        let events = payloads.iter().map(ping).collect();
        (bytes, GoesOn(events, payloads.iter().map(answer).collect()))
    };
    let (unsolicited, asked) = ("unsolicited pong payload", "ping payload");
    check(
        "2",
        1..=11,
        vec![
            row("2.1", pinged(b"")),
            row("2.2", pinged(HELLO.as_bytes())),
            row("2.3", pinged(BYTES)),
            row("2.4", pinged(&[0xfe; 125])),
            ("2.5", frame(FIN | PING, [0xfe; 126]), Fails(vec![], Violation::ControlTooLong)),
            row("2.6", pinged(&[0xfe; 125])),
            ("2.7", frame(FIN | PONG, ""), GoesOn(vec![pong("")], vec![])),
            ("2.8", frame(FIN | PONG, unsolicited), GoesOn(vec![pong(unsolicited)], vec![])),
            (
                "2.9",
                all([frame(FIN | PONG, unsolicited), frame(FIN | PING, asked)]),
                GoesOn(vec![pong(unsolicited), ping(asked)], vec![answer(asked)]),
            ),
            row("2.10", ten()),
            row("2.11", ten()),
        ],
    );
}

#[test]
fn section_3_reserved_bits() {
    let reserved = |bits: u8, opcode, payload: &[u8]| frame(FIN | bits << 4 | opcode, payload);
    let after_hello =
        |bits| all([frame(FIN | TEXT, HELLO), reserved(bits, TEXT, HELLO.as_bytes()), frame(FIN | PING, "")]);
    let failed = |events| Fails(events, Violation::ReservedBits);
    let heard = || failed(vec![text(HELLO)]);
    check(
        "3",
        1..=7,
        vec![
            ("3.1", reserved(1, TEXT, HELLO.as_bytes()), failed(vec![])),
            ("3.2", after_hello(2), heard()),
            ("3.3", after_hello(3), heard()),
            ("3.4", after_hello(4), heard()),
            ("3.5", reserved(5, BINARY, BYTES), failed(vec![])),
            ("3.6", reserved(6, BINARY, HELLO.as_bytes()), failed(vec![])),
            ("3.7", reserved(7, CLOSE, b""), failed(vec![])),
        ],
    );
}

#[test]
fn section_4_opcodes_that_are_not_defined() {
    let alone = |opcode, payload: &str| {
        (frame(FIN | opcode, payload), Fails(vec![], Violation::UnknownOpcode(opcode)))
    };
    let after = |opcode, payload: &str| {
        let bytes = all([frame(FIN | TEXT, HELLO), frame(FIN | opcode, payload), frame(FIN | PING, "")]);
        (bytes, Fails(vec![text(HELLO)], Violation::UnknownOpcode(opcode)))
    };
    let row = |case, (bytes, outcome)| (case, bytes, outcome);
    check(
        "4.1",
        1..=5,
        vec![
            row("4.1.1", alone(3, "")),
            row("4.1.2", alone(4, "reserved opcode payload")),
            row("4.1.3", after(5, "")),
            row("4.1.4", after(6, HELLO)),
            row("4.1.5", after(7, HELLO)),
        ],
    );
    check(
        "4.2",
        1..=5,
        vec![
            row("4.2.1", alone(11, "")),
            row("4.2.2", alone(12, "reserved opcode payload")),
            row("4.2.3", after(13, "")),
            row("4.2.4", after(14, HELLO)),
            row("4.2.5", after(15, HELLO)),
        ],
    );
}

#[test]
fn section_5_fragments() {
    let (first, second) = (frame(TEXT, "fragment1"), frame(FIN | CONTINUATION, "fragment2"));
    let whole = || GoesOn(vec![text("fragment1fragment2")], vec![]);
    let interrupted = || {
        let bytes = all([first.clone(), frame(FIN | PING, "ping payload"), second.clone()]);
        let events = vec![ping("ping payload"), text("fragment1fragment2")];
        (bytes, GoesOn(events, vec![answer("ping payload")]))
    };
    let lost = |first| {
        let bytes = all([frame(first, "non-continuation payload"), frame(FIN | TEXT, HELLO)]);
        (bytes, Fails(vec![], Violation::NothingToContinue))
    };
    let twice = |lost| {
        let once =
            all([frame(lost, "fragment1"), frame(TEXT, "fragment2"), frame(FIN | CONTINUATION, "fragment3")]);
        (once.repeat(2), Fails(vec![], Violation::NothingToContinue))
    };
    let five = || {
        let bytes = all([
            frame(TEXT, "fragment1"),
            frame(CONTINUATION, "fragment2"),
            frame(FIN | PING, "pongme 1!"),
            frame(CONTINUATION, "fragment3"),
            frame(CONTINUATION, "fragment4"),
            frame(FIN | PING, "pongme 2!"),
            frame(FIN | CONTINUATION, "fragment5"),
        ]);
        let events =
            vec![ping("pongme 1!"), ping("pongme 2!"), text("fragment1fragment2fragment3fragment4fragment5")];
        (bytes, GoesOn(events, vec![answer("pongme 1!"), answer("pongme 2!")]))
    };
    let fragmented = |opcode| {
        (all([frame(opcode, "fragment1"), second.clone()]), Fails(vec![], Violation::ControlFragmented))
    };
    let after_whole = all([
        first.clone(),
        second.clone(),
        frame(CONTINUATION, "fragment3"),
        frame(FIN | TEXT, "fragment4"),
    ]);
    let within = all([first.clone(), frame(FIN | TEXT, "fragment2")]);
    let two = || (all([first.clone(), second.clone()]), whole());
    let row = |case, (bytes, outcome)| (case, bytes, outcome);
    check(
        "5",
        1..=20,
        vec![
            row("5.1", fragmented(PING)),
            row("5.2", fragmented(PONG)),
            row("5.3", two()),
            row("5.4", two()),
            row("5.5", two()),
            row("5.6", interrupted()),
            row("5.7", interrupted()),
            row("5.8", interrupted()),
            row("5.9", lost(FIN | CONTINUATION)),
            row("5.10", lost(FIN | CONTINUATION)),
            row("5.11", lost(FIN | CONTINUATION)),
            row("5.12", lost(CONTINUATION)),
            row("5.13", lost(CONTINUATION)),
            row("5.14", lost(CONTINUATION)),
            ("5.15", after_whole, Fails(vec![text("fragment1fragment2")], Violation::NothingToContinue)),
            row("5.16", twice(CONTINUATION)),
            row("5.17", twice(FIN | CONTINUATION)),
            ("5.18", within, Fails(vec![], Violation::MessageUnfinished)),
            row("5.19", five()),
            row("5.20", five()),
        ],
    );
}

#[test]
fn section_10_a_message_that_the_client_cuts_into_fragments_of_1300_bytes() {
    let payload = vec![b'*'; 65536];
    let fragments: Vec<&[u8]> = payload.chunks(1300).collect();
    let last = fragments.len() - 1;
    let bytes = fragments.iter().enumerate().flat_map(|(at, fragment)| {
        let fin = if at == last { FIN } else { 0 };
        frame(fin | if at == 0 { TEXT } else { CONTINUATION }, fragment)
    });
    check("10.1", 1..=1, vec![("10.1.1", bytes.collect(), GoesOn(vec![text(&payload)], vec![]))]);
}
