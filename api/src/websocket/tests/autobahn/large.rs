//! 9: large messages. How fast they are is for benchmarks; these are about what comes through, and what is refused.

use super::*;

/// Feeds the bytes in pieces and returns the lengths of the messages and how much was held at most.
fn lengths(limits: Limits, bytes: &[u8], piece: usize) -> (Vec<usize>, usize) {
    let mut connection = Connection::new(limits, Timeouts::default(), NOW);
    let (mut lengths, mut held) = (Vec::new(), 0);
    for mut input in bytes.chunks(piece) {
        while let Some(event) = connection.feed(&mut input, NOW) {
            match event {
                Event::Text(text) => lengths.push(text.bytes().len()),
                Event::Binary(bytes) => lengths.push(bytes.len()),
                event => panic!("{event:?}"),
            }
        }
        held = held.max(connection.held());
    }
    (lengths, held)
}

/// A message in fragments of this size.
fn in_fragments(opcode: u8, payload: &[u8], size: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = frame(opcode, "");
    bytes.extend(payload.chunks(size).flat_map(|fragment| frame(CONTINUATION, fragment)));
    bytes.extend(frame(FIN | CONTINUATION, ""));
    bytes
}

#[test]
fn sections_9_1_and_9_2_messages_up_to_16_mebibytes() {
    for (group, opcode) in [("9.1", TEXT), ("9.2", BINARY)] {
        for (number, size) in
            [64 << 10, 256 << 10, 1 << 20, 4 << 20, 8 << 20, 16 << 20].into_iter().enumerate()
        {
            let bytes = frame(FIN | opcode, vec![b'*'; size]);
            let (lengths, held) = lengths(LARGEST, &bytes, 1500);
            assert_eq!(lengths, [size], "{group}.{}", number + 1);
            assert!(held <= size, "{group}.{}: {held} bytes held for {size}", number + 1);
        }
    }
}

#[test]
fn sections_9_3_and_9_4_four_mebibytes_in_fragments() {
    let payload = vec![b'*'; 4 << 20];
    for (group, opcode) in [("9.3", TEXT), ("9.4", BINARY)] {
        for number in 1..=9_u32 {
            let bytes = in_fragments(opcode, &payload, 16 << (2 * number));
            let (lengths, _) = lengths(LARGEST, &bytes, 1500);
            assert_eq!(lengths, [payload.len()], "{group}.{number}");
        }
    }
}

#[test]
fn sections_9_5_and_9_6_a_mebibyte_in_small_pieces() {
    for (group, opcode) in [("9.5", TEXT), ("9.6", BINARY)] {
        let bytes = frame(FIN | opcode, vec![b'*'; 1 << 20]);
        for number in 1..=6_u32 {
            let (lengths, _) = lengths(LARGEST, &bytes, 32 << number);
            assert_eq!(lengths, [1 << 20], "{group}.{number}");
        }
    }
}

#[test]
fn sections_9_7_and_9_8_a_thousand_messages_one_after_the_other() {
    for (group, opcode) in [("9.7", TEXT), ("9.8", BINARY)] {
        for (number, size) in [0, 16, 64, 256, 1024, 4096].into_iter().enumerate() {
            let bytes = frame(FIN | opcode, vec![b'*'; size]).repeat(1000);
            let (lengths, _) = lengths(LARGEST, &bytes, 1500);
            assert_eq!(lengths, vec![size; 1000], "{group}.{}", number + 1);
        }
    }
}

#[test]
fn what_section_9_sends_is_refused_by_the_limits_of_the_server() {
    let limits = Limits::default();
    let refused = |bytes: &[u8]| {
        let mut connection = Connection::new(limits, Timeouts::default(), NOW);
        let mut rest = bytes;
        let event = connection.feed(&mut rest, NOW);
        assert!(connection.held() <= limits.message_bytes);
        event
    };
    for (case, size) in [("9.1.4", 4 << 20), ("9.1.5", 8 << 20), ("9.1.6", 16 << 20)] {
        let event = refused(&frame(FIN | TEXT, vec![b'*'; size])[..14]);
        assert_eq!(event, Some(Event::Failed(Violation::FrameTooBig(limits.frame_bytes))), "{case}");
    }
    let event = refused(&in_fragments(TEXT, &vec![b'*'; 4 << 20], 64));
    let Some(Event::Failed(violation)) = event else { panic!("9.3.1: {event:?}") };
    assert_eq!(violation, Violation::TooManyFragments(limits.fragments), "9.3.1");
    let event = refused(&in_fragments(TEXT, &vec![b'*'; 4 << 20], 64 << 10));
    assert_eq!(event, Some(Event::Failed(Violation::MessageTooBig(limits.message_bytes))), "9.3.6");
}
