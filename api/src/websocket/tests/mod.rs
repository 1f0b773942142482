//! What a peer may send, in whatever pieces it comes, and what it hears back.
//!
//! The cases follow the sections of the Autobahn test suite; `autobahn` has those of the suite itself by their
//! numbers. Each is fed whole, byte by byte and in random
//! pieces, and must come to the same.

mod autobahn;
mod client;
mod closing;
mod fragments;
mod framing;
mod random;
mod text;
mod time;

use bytes::Bytes;
use tidings_model::Timestamp;

use super::close::{Close, Code};
use super::frame::Opcode;
use super::{Connection, Event, Limits, Timeouts, Violation};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const FIN: u8 = 0x80;
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

const LIMITS: Limits = Limits {
    frame_bytes: 100_000,
    message_bytes: 150_000,
    fragments: 100,
    message_time: std::time::Duration::from_secs(60),
    close_time: std::time::Duration::from_secs(5),
};

fn connection() -> Connection {
    Connection::new(LIMITS, Timeouts::default(), NOW)
}

/// A client's frame, its first byte as it is, its length in the fewest bytes.
fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    const KEY: [u8; 4] = [0xa5, 0x00, 0xff, 0x3c];
    let payload = payload.as_ref();
    let mut out = vec![first];
    match payload.len() {
        len @ ..=125 => out.push(0x80 | len as u8),
        len @ ..=65535 => {
            out.push(0x80 | 126);
            out.extend((len as u16).to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend((len as u64).to_be_bytes());
        }
    }
    out.extend(KEY);
    out.extend(payload.iter().enumerate().map(|(i, byte)| byte ^ KEY[i % 4]));
    out
}

/// What came of some bytes.
#[derive(Debug, PartialEq)]
struct Outcome {
    events: Vec<Event>,
    written: Vec<Bytes>,
}

/// Feeds the bytes whole, byte by byte and in random pieces, and expects the same each time.
fn hear(bytes: &[u8]) -> Outcome {
    hear_within(LIMITS, bytes)
}

fn hear_within(limits: Limits, bytes: &[u8]) -> Outcome {
    let outcome = hear_in(limits, bytes, || bytes.len().max(1));
    assert_eq!(hear_in(limits, bytes, || 1), outcome, "byte by byte it is the same");
    for seed in 0..8 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let most = 1 << rng.u32(1..12);
        let pieces = hear_in(limits, bytes, || rng.usize(1..=most));
        assert_eq!(pieces, outcome, "in pieces of up to {most} it is the same, seed {seed}");
    }
    outcome
}

fn hear_in(limits: Limits, bytes: &[u8], mut piece: impl FnMut() -> usize) -> Outcome {
    let mut connection = Connection::new(limits, Timeouts::default(), NOW);
    let mut outcome = Outcome { events: Vec::new(), written: Vec::new() };
    let mut rest = bytes;
    while !rest.is_empty() {
        let (mut input, after) = rest.split_at(piece().min(rest.len()));
        rest = after;
        while let Some(event) = connection.feed(&mut input, NOW) {
            outcome.events.push(event);
            outcome.written.extend(std::iter::from_fn(|| connection.outgoing()));
        }
        assert!(input.is_empty(), "what was fed was taken");
        assert!(connection.held() <= limits.message_bytes + 125, "buffers stay below the limit");
    }
    outcome
}

/// Hears the bytes and expects these events and answers, of a connection that goes on.
fn goes_on(case: &str, bytes: &[u8], events: &[Event], written: &[Bytes]) {
    let outcome = hear(bytes);
    assert!(outcome.events == events, "{case}: {:?}", abridged(&outcome.events));
    assert_eq!(outcome.written, written, "{case}");
}

/// Hears the bytes and expects a violation after these events, told in the only close frame.
fn fails(case: &str, bytes: &[u8], before: &[Event], violation: Violation) {
    // What comes behind a violation is not even looked at.
    let outcome = hear(&[bytes, &frame(FIN | TEXT, "later"), &[0xff; 20]].concat());
    let (last, events) = outcome.events.split_last().expect("an event");
    assert_eq!(last, &Event::Failed(violation), "{case}");
    assert!(events == before, "{case}: {:?}", abridged(events));
    let close = outcome.written.last().expect("a close frame");
    assert_eq!(close[0], FIN | CLOSE, "{case}");
    let told = Close::read(&close[2..]).expect("a valid payload").expect("a code");
    assert_eq!(told, Close::new(violation.code(), &violation.to_string()), "{case}");
    let closes = outcome.written.iter().filter(|frame| frame[0] == FIN | CLOSE).count();
    assert_eq!(closes, 1, "{case}: a violation is told once");
}

/// Events by their first letters: some are of 65,536 bytes.
fn abridged(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| format!("{event:?}").chars().take(100).collect()).collect()
}

/// The event of a text.
fn text(text: impl AsRef<[u8]>) -> Event {
    let mut connection = connection();
    let event = connection.feed(&mut &frame(FIN | TEXT, text)[..], NOW);
    event.expect("a short text in one frame is an event")
}

fn binary(bytes: impl AsRef<[u8]>) -> Event {
    Event::Binary(Bytes::copy_from_slice(bytes.as_ref()))
}

fn ping(bytes: impl AsRef<[u8]>) -> Event {
    Event::Ping(Bytes::copy_from_slice(bytes.as_ref()))
}

fn pong(bytes: impl AsRef<[u8]>) -> Event {
    Event::Pong(Bytes::copy_from_slice(bytes.as_ref()))
}

/// A pong of ours.
fn answer(payload: impl AsRef<[u8]>) -> Bytes {
    super::frame::frame(Opcode::Pong, payload.as_ref())
}

#[test]
fn a_connection_is_small_and_holds_no_buffer_while_nothing_is_half_received() {
    assert!(size_of::<Connection>() <= 384, "{} bytes", size_of::<Connection>());
    let mut connection = connection();
    let message = frame(FIN | TEXT, "x".repeat(5000));
    let (mut first, mut second) = message.split_at(3000);
    assert_eq!(connection.feed(&mut first, NOW), None);
    assert!(connection.held() >= 2900, "what has come is kept");
    assert!(connection.held() <= 5000, "and no more is taken than the message needs");
    assert!(connection.feed(&mut second, NOW).is_some());
    assert_eq!(connection.held(), 0);
}

#[test]
fn a_length_that_is_only_announced_takes_no_memory() {
    let mut connection = connection();
    let message = frame(BINARY, vec![0; 100_000]);
    assert_eq!(connection.feed(&mut &message[..20], NOW), None);
    assert!(connection.held() <= 512, "{} bytes for 6 that came", connection.held());
}

#[test]
fn a_flood_of_pings_is_owed_one_pong_for_the_last_of_them() {
    let mut connection = connection();
    for number in 0..10_000_u32 {
        let event = connection.feed(&mut &frame(FIN | PING, number.to_be_bytes())[..], NOW);
        assert_eq!(event, Some(ping(number.to_be_bytes())));
    }
    assert_eq!(connection.outgoing(), Some(answer(9999_u32.to_be_bytes())));
    assert_eq!(connection.outgoing(), None);
}

#[test]
fn a_violation_says_its_code() {
    assert_eq!(Violation::Unmasked.code(), Code::PROTOCOL_ERROR);
    assert_eq!(Violation::InvalidText.code(), Code::INVALID_DATA);
    assert_eq!(Violation::FrameTooBig(1).code(), Code::TOO_BIG);
    assert_eq!(Violation::MessageTooBig(1).code(), Code::TOO_BIG);
    assert_eq!(Violation::TooManyFragments(1).code(), Code::POLICY_VIOLATION);
}
