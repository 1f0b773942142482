//! What time brings about: pings, silence, slow messages, close frames that nobody answers.

use std::time::Duration;

use super::*;
use crate::websocket::{EndReason, Tick, frame as ours};

const TIMEOUTS: Timeouts =
    Timeouts { ping_after: Duration::from_secs(30), dead_after: Duration::from_secs(50) };

fn after(seconds: u64) -> Timestamp {
    NOW + Duration::from_secs(seconds)
}

fn patient() -> Connection {
    Connection::new(LIMITS, TIMEOUTS, NOW)
}

#[test]
fn a_silent_peer_is_pinged_and_then_given_up_without_a_word() {
    let mut connection = patient();
    assert_eq!(connection.tick(NOW), Tick::Wait(after(30)));
    assert_eq!(connection.outgoing(), None);
    assert_eq!(connection.tick(after(30)), Tick::Wait(after(50)));
    let moment = after(30).as_millis().to_be_bytes();
    assert_eq!(connection.outgoing(), Some(ours::frame(Opcode::Ping, &moment)));
    assert_eq!(connection.tick(after(50)), Tick::Over(EndReason::Silent));
    assert!(connection.is_over());
    assert_eq!(connection.tick(after(51)), Tick::Over(EndReason::Closed));
}

#[test]
fn a_single_byte_is_a_sign_of_life() {
    let mut connection = patient();
    connection.tick(after(30));
    connection.feed(&mut &frame(FIN | PONG, "")[..1], after(49));
    assert_eq!(connection.tick(after(50)), Tick::Wait(after(79)));
    connection.feed(&mut &[][..], after(60));
    assert_eq!(connection.tick(after(79)), Tick::Wait(after(99)), "no byte is no sign");
}

#[test]
fn a_message_that_takes_too_long_is_refused_however_lively_the_peer_is() {
    let mut connection = patient();
    connection.feed(&mut &frame(BINARY, "begun")[..], NOW);
    for second in (10..60).step_by(10) {
        let bytes = [frame(CONTINUATION, "x"), frame(FIN | PING, "")].concat();
        let mut input = &bytes[..];
        while connection.feed(&mut input, after(second)).is_some() {}
        assert_eq!(connection.tick(after(second)), Tick::Wait(after(60).min(after(second + 30))));
    }
    assert!(connection.held() > 0);
    assert_eq!(connection.tick(after(60)), Tick::Over(EndReason::Failed(Violation::MessageTooSlow)));
    assert_eq!(connection.held(), 0);
    assert_eq!(connection.outgoing(), Some(answer("")));
    let close = connection.outgoing().expect("a close frame");
    assert_eq!(close[2..4], Code::POLICY_VIOLATION.number().to_be_bytes());
    assert!(connection.is_over());
}

#[test]
fn each_message_has_its_own_time() {
    let mut connection = patient();
    connection.feed(&mut &frame(BINARY, "first")[..], NOW);
    let both = [frame(FIN | CONTINUATION, ""), frame(BINARY, "second")].concat();
    let mut both = &both[..];
    assert_eq!(connection.feed(&mut both, after(40)), Some(binary("first")));
    assert_eq!(connection.feed(&mut both, after(40)), None);
    connection.feed(&mut &frame(CONTINUATION, "")[..], after(90));
    assert_eq!(connection.tick(after(90)), Tick::Wait(after(100)), "counted from the second's beginning");
    assert_eq!(connection.feed(&mut &frame(FIN | CONTINUATION, "")[..], after(99)), Some(binary("second")));
    assert_eq!(connection.tick(after(100)), Tick::Wait(after(129)), "nothing is half received");
}

#[test]
fn a_close_that_is_not_answered_in_time_ends_it() {
    let mut connection = patient();
    connection.close(&Close::new(Code::NORMAL, ""), after(10));
    assert_eq!(connection.tick(after(11)), Tick::Wait(after(15)));
    connection.feed(&mut &frame(FIN | TEXT, "still here")[..], after(14));
    assert_eq!(connection.tick(after(15)), Tick::Over(EndReason::CloseUnanswered));
    assert!(connection.is_over());
}
