//! Sections 1 to 4 and 9: sizes, pings and pongs, reserved bits, opcodes, limits.

use super::*;
use crate::websocket::frame as ours;

const SIZES: [usize; 9] = [0, 1, 125, 126, 127, 128, 65535, 65536, 100_000];

#[test]
fn messages_of_all_sizes_come_through() {
    for size in SIZES {
        let payload = "*".repeat(size);
        goes_on(&format!("text of {size}"), &frame(FIN | TEXT, &payload), &[text(&payload)], &[]);
        let payload: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        goes_on(&format!("bytes of {size}"), &frame(FIN | BINARY, &payload), &[binary(&payload)], &[]);
    }
}

#[test]
fn messages_that_come_together_are_told_one_by_one() {
    let bytes = [frame(FIN | TEXT, "one"), frame(FIN | BINARY, "two"), frame(FIN | TEXT, "")].concat();
    goes_on("three at once", &bytes, &[text("one"), binary("two"), text("")], &[]);
}

#[test]
fn a_ping_is_answered_with_its_payload() {
    for size in [0, 1, 8, 124, 125] {
        let payload = vec![0xfe; size];
        goes_on(
            &format!("{size} bytes"),
            &frame(FIN | PING, &payload),
            &[ping(&payload)],
            &[answer(&payload)],
        );
    }
    let payloads: Vec<String> = (0..10).map(|number| format!("payload {number}")).collect();
    let bytes: Vec<u8> = payloads.iter().flat_map(|payload| frame(FIN | PING, payload)).collect();
    let events: Vec<Event> = payloads.iter().map(ping).collect();
    let answers: Vec<Bytes> = payloads.iter().map(answer).collect();
    goes_on("ten in a row", &bytes, &events, &answers);
}

#[test]
fn a_pong_that_nobody_asked_for_is_not_answered() {
    goes_on("empty", &frame(FIN | PONG, ""), &[pong("")], &[]);
    goes_on("with a payload", &frame(FIN | PONG, "unasked"), &[pong("unasked")], &[]);
    let bytes = [frame(FIN | PONG, "unasked"), frame(FIN | PING, "asked")].concat();
    goes_on("before a ping", &bytes, &[pong("unasked"), ping("asked")], &[answer("asked")]);
}

#[test]
fn a_control_frame_beyond_125_bytes_is_refused() {
    for opcode in [CLOSE, PING, PONG] {
        for size in [126, 127, 65536] {
            let bytes = frame(FIN | opcode, vec![0xfe; size]);
            fails(&format!("{opcode:x} of {size}"), &bytes, &[], Violation::ControlTooLong);
        }
    }
}

#[test]
fn reserved_bits_are_refused_with_the_first_byte() {
    for bits in 1..8_u8 {
        for opcode in [CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG] {
            let case = format!("bits {bits} on {opcode:x}");
            let bytes = frame(FIN | bits << 4 | opcode, "small");
            fails(&case, &bytes, &[], Violation::ReservedBits);
            fails(&case, &bytes[..1], &[], Violation::ReservedBits);
        }
    }
    let bytes = [frame(FIN | TEXT, "fine"), frame(FIN | 0x40 | PING, "")].concat();
    fails("after a message", &bytes, &[text("fine")], Violation::ReservedBits);
}

#[test]
fn undefined_opcodes_are_refused_with_the_first_byte() {
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        let bytes = frame(FIN | opcode, "x");
        fails(&format!("{opcode}"), &bytes, &[], Violation::UnknownOpcode(opcode));
        fails(&format!("{opcode}, not final"), &[opcode], &[], Violation::UnknownOpcode(opcode));
        let bytes = [frame(FIN | TEXT, "fine"), bytes, frame(FIN | PING, "")].concat();
        fails(&format!("{opcode} after a text"), &bytes, &[text("fine")], Violation::UnknownOpcode(opcode));
    }
}

#[test]
fn a_frame_without_a_mask_is_refused_with_its_second_byte() {
    for opcode in [TEXT, BINARY, CLOSE, PING, PONG] {
        fails(&format!("{opcode:x}"), &[FIN | opcode, 5, b'h', b'e', b'l'], &[], Violation::Unmasked);
        fails(&format!("empty {opcode:x}"), &[FIN | opcode, 0], &[], Violation::Unmasked);
    }
}

#[test]
fn a_length_is_written_in_the_fewest_bytes() {
    for len in [0_u16, 1, 125] {
        let bytes = [&[FIN | BINARY, 0x80 | 126][..], &len.to_be_bytes()].concat();
        fails(&format!("{len} in two bytes"), &bytes, &[], Violation::LengthNotMinimal);
    }
    for len in [0_u64, 125, 126, 65535] {
        let bytes = [&[FIN | BINARY, 0x80 | 127][..], &len.to_be_bytes()].concat();
        fails(&format!("{len} in eight bytes"), &bytes, &[], Violation::LengthNotMinimal);
    }
}

#[test]
fn a_length_of_64_bits_is_refused_for_its_highest_bit() {
    for len in [1 << 63, u64::MAX, 1 << 63 | 5] {
        let bytes = [&[FIN | BINARY, 0x80 | 127][..], &len.to_be_bytes()].concat();
        fails(&format!("{len:x}"), &bytes, &[], Violation::LengthOutOfRange);
    }
}

#[test]
fn a_frame_beyond_the_limit_is_refused_before_its_payload() {
    for len in [100_001, u64::from(u32::MAX), u64::MAX >> 1] {
        let bytes = [&[FIN | BINARY, 0x80 | 127][..], &len.to_be_bytes()].concat();
        fails(&format!("{len}"), &bytes, &[], Violation::FrameTooBig(100_000));
    }
}

#[test]
fn our_frames_have_the_shortest_header_and_no_mask() {
    let header = |len| ours::header(Opcode::Binary, len).to_vec();
    assert_eq!(header(0), [0x82, 0]);
    assert_eq!(header(125), [0x82, 125]);
    assert_eq!(header(126), [0x82, 126, 0, 126]);
    assert_eq!(header(255), [0x82, 126, 0, 255]);
    assert_eq!(header(256), [0x82, 126, 1, 0]);
    assert_eq!(header(65535), [0x82, 126, 0xff, 0xff]);
    assert_eq!(header(65536), [0x82, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(ours::frame(Opcode::Text, b"hello")[..], *b"\x81\x05hello");
}

#[test]
#[should_panic(expected = "a control frame has at most 125 bytes")]
fn a_control_frame_of_ours_beyond_125_bytes_is_our_mistake() {
    ours::header(Opcode::Ping, 126);
}
