//! The closing handshake: close codes and close frames.

use bytes::{BufMut, Bytes, BytesMut};
use tidings_model::Timestamp;

use super::Violation;
use super::frame::{self, CONTROL_BYTES, Opcode};

/// Maximum bytes of the reason of a close frame.
pub const REASON_BYTES: usize = CONTROL_BYTES - 2;

/// A close code that may be sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(u16);

impl Code {
    /// The purpose of the connection is fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// The server stops, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A kind of message that is not accepted.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// A message with invalid data, such as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// The peer violated a policy.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// A message is too big.
    pub const TOO_BIG: Self = Self(1009);
    /// The server failed.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The server restarts; the client should reconnect.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// The server is overloaded; the client should reconnect later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// Parses a code from the wire. Refuses reserved codes that must not be sent (1005, 1006, 1015),
    /// undefined codes, and all outside 1000 to 4999.
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(number)),
            _ => None,
        }
    }

    /// The number of the code.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// The content of a close frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    code: Code,
    reason: Box<str>,
}

impl Close {
    /// A code and a reason for people. A reason that does not fit is truncated.
    pub fn new(code: Code, reason: &str) -> Self {
        let mut end = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        Self { code, reason: reason[..end].into() }
    }

    /// Parses the payload of a close frame, which may be empty.
    pub fn read(payload: &[u8]) -> Result<Option<Self>, Violation> {
        let Some((number, reason)) = payload.split_first_chunk::<2>() else {
            return if payload.is_empty() { Ok(None) } else { Err(Violation::CloseTooShort) };
        };
        let number = u16::from_be_bytes(*number);
        let code = Code::new(number).ok_or(Violation::CloseCode(number))?;
        let reason = std::str::from_utf8(reason).map_err(|_| Violation::InvalidText)?;
        Ok(Some(Self::new(code, reason)))
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The reason, often empty.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Encodes the close frame.
    pub fn frame(&self) -> Bytes {
        let mut payload = BytesMut::with_capacity(2 + self.reason.len());
        payload.put_u16(self.code.number());
        payload.put_slice(self.reason.as_bytes());
        frame::frame(Opcode::Close, &payload)
    }
}

/// The state of the closing handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Neither side has closed.
    Open,
    /// We have sent a close frame and wait for the answer.
    Asked {
        /// Time at which it was sent.
        since: Timestamp,
    },
    /// The handshake is complete. Nothing is read any more, and only pending frames are written.
    Done,
}

impl Closing {
    /// Begins to close. Returns the frame to send, unless the handshake has begun already.
    pub fn ask(&mut self, close: &Close, now: Timestamp) -> Option<Bytes> {
        let Self::Open = self else { return None };
        *self = Self::Asked { since: now };
        Some(close.frame())
    }

    /// Handles a close frame of the peer. Returns the answer, unless our own close frame was sent: then both
    /// sides have closed.
    pub fn received(&mut self, close: Option<&Close>) -> Option<Bytes> {
        match std::mem::replace(self, Self::Done) {
            // The answer repeats the code, but not the reason, which the peer knows.
            Self::Open => Some(match close {
                Some(close) => Close::new(close.code, "").frame(),
                None => frame::frame(Opcode::Close, &[]),
            }),
            Self::Asked { .. } | Self::Done => None,
        }
    }

    /// Handles a violation. Returns the close frame that names it, unless ours was sent already.
    pub fn fail(&mut self, violation: Violation) -> Option<Bytes> {
        match std::mem::replace(self, Self::Done) {
            Self::Open => Some(Close::new(violation.code(), &violation.to_string()).frame()),
            Self::Asked { .. } | Self::Done => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(7);

    #[test]
    fn only_codes_that_mean_something_on_the_wire_are_taken() {
        let valid = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014];
        for number in 0..=u16::MAX {
            let expected = valid.contains(&number) || (3000..5000).contains(&number);
            assert_eq!(Code::new(number).map(Code::number), expected.then_some(number), "{number}");
        }
    }

    #[test]
    fn the_codes_that_we_send_may_be_sent() {
        let ours = [
            Code::NORMAL,
            Code::GOING_AWAY,
            Code::PROTOCOL_ERROR,
            Code::UNSUPPORTED_DATA,
            Code::INVALID_DATA,
            Code::POLICY_VIOLATION,
            Code::TOO_BIG,
            Code::INTERNAL_ERROR,
            Code::SERVICE_RESTART,
            Code::TRY_AGAIN_LATER,
        ];
        for code in ours {
            assert_eq!(Code::new(code.number()), Some(code));
        }
    }

    #[test]
    fn a_reason_is_cut_between_characters() {
        let close = Close::new(Code::NORMAL, &"é".repeat(100));
        assert_eq!(close.reason(), "é".repeat(61));
        let frame = close.frame();
        assert_eq!(frame[..4], [0x88, 124, 0x03, 0xe8]);
        assert_eq!(Close::read(&frame[2..]), Ok(Some(close)));
    }

    #[test]
    fn a_close_frame_has_no_code_or_a_whole_valid_one_and_a_reason_in_utf8() {
        assert_eq!(Close::read(b""), Ok(None));
        assert_eq!(Close::read(b"\x03"), Err(Violation::CloseTooShort));
        assert_eq!(Close::read(b"\x03\xe8bye"), Ok(Some(Close::new(Code::NORMAL, "bye"))));
        assert_eq!(Close::read(b"\x03\xed"), Err(Violation::CloseCode(1005)));
        assert_eq!(Close::read(b"\x03\xe8\xff"), Err(Violation::InvalidText));
    }

    #[test]
    fn a_peer_that_closes_first_is_answered_once_with_its_code() {
        let mut closing = Closing::Open;
        let answer = closing.received(Some(&Close::new(Code::GOING_AWAY, "leaving")));
        assert_eq!(answer.as_deref(), Some(&b"\x88\x02\x03\xe9"[..]));
        assert_eq!(closing, Closing::Done);
        assert_eq!(closing.ask(&Close::new(Code::NORMAL, ""), NOW), None);
        assert_eq!(closing.received(None), None);
        assert_eq!(closing.fail(Violation::Unmasked), None);
    }

    #[test]
    fn a_close_frame_without_a_code_is_answered_by_one_without() {
        assert_eq!(Closing::Open.received(None).as_deref(), Some(&b"\x88\x00"[..]));
    }

    #[test]
    fn when_we_close_first_the_answer_ends_it() {
        let mut closing = Closing::Open;
        assert!(closing.ask(&Close::new(Code::NORMAL, ""), NOW).is_some());
        assert_eq!(closing, Closing::Asked { since: NOW });
        assert_eq!(closing.ask(&Close::new(Code::NORMAL, ""), NOW), None, "once is enough");
        assert_eq!(closing.received(Some(&Close::new(Code::NORMAL, ""))), None, "an answer is not answered");
        assert_eq!(closing, Closing::Done);
    }

    #[test]
    fn a_broken_rule_is_told_unless_a_close_frame_is_on_its_way() {
        let mut closing = Closing::Open;
        let told = closing.fail(Violation::InvalidText).expect("a close frame");
        let close = Close::read(&told[2..]).expect("valid").expect("with a code");
        assert_eq!((close.code(), close.reason()), (Code::INVALID_DATA, "a text is not UTF-8"));

        let mut closing = Closing::Asked { since: NOW };
        assert_eq!(closing.fail(Violation::InvalidText), None);
        assert_eq!(closing, Closing::Done);
    }
}
