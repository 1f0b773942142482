//! How a connection ends: close codes, close frames, and who has said what.

use bytes::{BufMut, Bytes, BytesMut};
use tidings_model::Timestamp;

use super::Violation;
use super::frame::{self, CONTROL_BYTES, Opcode};

/// Bytes that a reason may have beside its code.
pub const REASON_BYTES: usize = CONTROL_BYTES - 2;

/// A close code that may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(u16);

impl Code {
    /// Done with what it was for.
    pub const NORMAL: Self = Self(1000);
    /// The server stops, or the browser leaves the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A kind of message that is not taken here.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// A message that is not what it says, as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// Something that is not allowed.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// A message that is too big.
    pub const TOO_BIG: Self = Self(1009);
    /// The server could not.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The server starts again; come back.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// The server has too much to do; come back later.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// A code from the wire. Refuses those that only describe what happened (1005, 1006, 1015), those that
    /// mean nothing yet, and all outside 1000 to 4999.
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(number)),
            _ => None,
        }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// What a close frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Close {
    code: Code,
    reason: Box<str>,
}

impl Close {
    /// A code and a reason for people. What does not fit into a frame is cut off.
    pub fn new(code: Code, reason: &str) -> Self {
        let mut end = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        Self { code, reason: reason[..end].into() }
    }

    /// Reads a close frame's payload, which may be empty.
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

    /// The frame that says so.
    pub fn frame(&self) -> Bytes {
        let mut payload = BytesMut::with_capacity(2 + self.reason.len());
        payload.put_u16(self.code.number());
        payload.put_slice(self.reason.as_bytes());
        frame::frame(Opcode::Close, &payload)
    }
}

/// How far the closing handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Nobody has said anything.
    Open,
    /// We have; the peer has until the deadline to answer.
    Asked {
        /// When we have.
        since: Timestamp,
    },
    /// All is said. Nothing is read any more, and nothing written but what is owed.
    Done,
}

impl Closing {
    /// We want to end. Gives the frame to send, unless the end has begun already.
    pub fn ask(&mut self, close: &Close, now: Timestamp) -> Option<Bytes> {
        let Self::Open = self else { return None };
        *self = Self::Asked { since: now };
        Some(close.frame())
    }

    /// The peer has sent a close frame. Gives the answer, unless ours is on its way: then both have closed
    /// at once or the peer has answered, and either way that was all.
    pub fn heard(&mut self, close: Option<&Close>) -> Option<Bytes> {
        match std::mem::replace(self, Self::Done) {
            // The code goes back, the reason does not: the peer knows it.
            Self::Open => Some(match close {
                Some(close) => Close::new(close.code, "").frame(),
                None => frame::frame(Opcode::Close, &[]),
            }),
            Self::Asked { .. } | Self::Done => None,
        }
    }

    /// The peer broke a rule. Gives the frame that says which, unless ours is on its way.
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
        let answer = closing.heard(Some(&Close::new(Code::GOING_AWAY, "leaving")));
        assert_eq!(answer.as_deref(), Some(&b"\x88\x02\x03\xe9"[..]));
        assert_eq!(closing, Closing::Done);
        assert_eq!(closing.ask(&Close::new(Code::NORMAL, ""), NOW), None);
        assert_eq!(closing.heard(None), None);
        assert_eq!(closing.fail(Violation::Unmasked), None);
    }

    #[test]
    fn a_close_frame_without_a_code_is_answered_by_one_without() {
        assert_eq!(Closing::Open.heard(None).as_deref(), Some(&b"\x88\x00"[..]));
    }

    #[test]
    fn when_we_close_first_the_answer_ends_it() {
        let mut closing = Closing::Open;
        assert!(closing.ask(&Close::new(Code::NORMAL, ""), NOW).is_some());
        assert_eq!(closing, Closing::Asked { since: NOW });
        assert_eq!(closing.ask(&Close::new(Code::NORMAL, ""), NOW), None, "once is enough");
        assert_eq!(closing.heard(Some(&Close::new(Code::NORMAL, ""))), None, "an answer is not answered");
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
