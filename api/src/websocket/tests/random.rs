//! What holds for all inputs.

use proptest::prelude::*;

use super::*;
use crate::websocket::frame::{self, Decoder, Fragment, Header, Part};

/// A message in fragments, each followed by control frames.
#[derive(Clone, Debug)]
struct Sent {
    kind: u8,
    fragments: Vec<(Vec<u8>, Vec<Control>)>,
}

/// An opcode and a payload.
type Control = (u8, Vec<u8>);

fn sent() -> impl Strategy<Value = Sent> {
    let control = (prop_oneof![Just(PING), Just(PONG)], prop::collection::vec(any::<u8>(), 0..=125));
    let binary = prop::collection::vec(any::<u8>(), 0..400).prop_map(|bytes| (BINARY, bytes));
    let text = any::<String>().prop_map(|text| (TEXT, text.into_bytes()));
    let payload = prop_oneof![binary, text];
    let cuts =
        prop::collection::vec((any::<prop::sample::Index>(), prop::collection::vec(control, 0..3)), 0..5);
    (payload, cuts).prop_map(|((kind, payload), cuts)| {
        let mut cuts: Vec<_> =
            cuts.into_iter().map(|(cut, controls)| (cut.index(payload.len() + 1), controls)).collect();
        cuts.sort_by_key(|(cut, _)| *cut);
        let mut from = 0;
        let mut fragments = Vec::new();
        for (cut, controls) in cuts {
            fragments.push((payload[from..cut].to_vec(), controls));
            from = cut;
        }
        fragments.push((payload[from..].to_vec(), Vec::new()));
        Sent { kind, fragments }
    })
}

impl Sent {
    fn write(&self, out: &mut Vec<u8>, events: &mut Vec<Event>) {
        let last = self.fragments.len() - 1;
        for (i, (payload, controls)) in self.fragments.iter().enumerate() {
            let fin = if i == last { FIN } else { 0 };
            out.extend(super::frame(fin | if i == 0 { self.kind } else { CONTINUATION }, payload));
            for (opcode, payload) in controls {
                out.extend(super::frame(FIN | opcode, payload));
                events.push(if *opcode == PING { ping(payload) } else { pong(payload) });
            }
        }
        let whole: Vec<u8> = self.fragments.iter().flat_map(|(payload, _)| payload.clone()).collect();
        events.push(if self.kind == TEXT { text(whole) } else { binary(whole) });
    }
}

/// What a frame of ours is to somebody who reads it, here by masking it with zeros.
fn masked_with_zeros(frame: &[u8], payload: usize) -> Vec<u8> {
    let (header, payload) = frame.split_at(frame.len() - payload);
    let mut header = header.to_vec();
    header[1] |= 0x80;
    [&header[..], &[0; 4], payload].concat()
}

proptest! {
    #[test]
    fn what_was_sent_is_heard_in_whatever_pieces_it_comes(
        sent in prop::collection::vec(sent(), 1..5),
        pieces in prop::collection::vec(1_usize..60, 1..20),
    ) {
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        for message in &sent {
            message.write(&mut bytes, &mut events);
        }
        let mut pieces = pieces.into_iter().cycle();
        let outcome = hear_in(LIMITS, &bytes, || pieces.next().expect("a cycle"));
        prop_assert_eq!(outcome.events, events);
    }

    #[test]
    fn random_bytes_never_panic_nor_take_more_memory_than_the_limit(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        piece in 1_usize..100,
    ) {
        hear_in(LIMITS, &bytes, || piece);
    }

    #[test]
    fn damaged_frames_never_panic_and_come_to_the_same_in_any_pieces(
        sent in prop::collection::vec(sent(), 1..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        piece in 1_usize..100,
    ) {
        let (mut bytes, mut events) = (Vec::new(), Vec::new());
        for message in &sent {
            message.write(&mut bytes, &mut events);
        }
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        prop_assert_eq!(hear_in(LIMITS, &bytes, || piece), hear_in(LIMITS, &bytes, || bytes.len()));
    }

    #[test]
    fn a_frame_of_ours_is_read_as_it_was_written(len in prop_oneof![0_usize..300, 65_000_usize..66_000], step: u8) {
        let payload: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(step)).collect();
        let written = frame::frame(Opcode::Binary, &payload);
        let read = masked_with_zeros(&written, payload.len());
        let mut input = &read[..];
        let mut decoder = Decoder::new();
        let header = decoder.next(&mut input, &LIMITS);
        let expected = Header { opcode: Opcode::Binary, fragment: Fragment::Final, len: payload.len() };
        prop_assert!(matches!(header, Ok(Some(Part::Header(header))) if header == expected));
        let Ok(Some(Part::Payload(piece))) = decoder.next(&mut input, &LIMITS) else {
            panic!("a payload follows its header")
        };
        let mut unmasked = Vec::new();
        piece.unmask_onto(&mut unmasked);
        prop_assert_eq!(unmasked, payload);
        prop_assert!(!decoder.is_within_frame());
    }
}
