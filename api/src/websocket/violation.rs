//! Violations of the protocol by a peer, and the close codes for them.

use super::close::Code;

/// Why a connection failed. The message is sent as the reason of the close frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A reserved bit is set.
    #[error("a reserved bit is set and no extension was agreed on")]
    ReservedBits,
    /// The opcode is not defined.
    #[error("opcode {0} is not defined")]
    UnknownOpcode(u8),
    /// A frame of a client is not masked.
    #[error("a frame is not masked")]
    Unmasked,
    /// A length is encoded in more bytes than needed.
    #[error("a length is not written in the fewest bytes")]
    LengthNotMinimal,
    /// A length has its highest bit set.
    #[error("the highest bit of a length is set")]
    LengthOutOfRange,
    /// A close, ping or pong frame has more than 125 bytes.
    #[error("a control frame is longer than 125 bytes")]
    ControlTooLong,
    /// A close, ping or pong frame is fragmented.
    #[error("a control frame is fragmented")]
    ControlFragmented,
    /// A continuation frame does not follow the start of a message.
    #[error("a continuation has nothing to continue")]
    NothingToContinue,
    /// A message begins before the previous one has ended.
    #[error("a message begins before the one before it ended")]
    MessageUnfinished,
    /// A text message is not UTF-8.
    #[error("a text is not UTF-8")]
    InvalidText,
    /// A frame exceeds the limit, in bytes.
    #[error("a frame is larger than {0} bytes")]
    FrameTooBig(usize),
    /// A message exceeds the limit, in bytes.
    #[error("a message is larger than {0} bytes")]
    MessageTooBig(usize),
    /// A message has more fragments than the limit.
    #[error("a message comes in more than {0} fragments")]
    TooManyFragments(u32),
    /// A message is not complete in time.
    #[error("a message takes too long")]
    MessageTooSlow,
    /// The payload of a close frame is one byte, half a code.
    #[error("a close frame has one byte")]
    CloseTooShort,
    /// The close code must not be sent on the wire.
    #[error("close code {0} may not be sent")]
    CloseCode(u16),
}

impl Violation {
    /// The close code of the violation.
    pub fn code(self) -> Code {
        match self {
            Self::ReservedBits
            | Self::UnknownOpcode(_)
            | Self::Unmasked
            | Self::LengthNotMinimal
            | Self::LengthOutOfRange
            | Self::ControlTooLong
            | Self::ControlFragmented
            | Self::NothingToContinue
            | Self::MessageUnfinished
            | Self::CloseTooShort
            | Self::CloseCode(_) => Code::PROTOCOL_ERROR,
            Self::InvalidText => Code::INVALID_DATA,
            Self::FrameTooBig(_) | Self::MessageTooBig(_) => Code::TOO_BIG,
            Self::TooManyFragments(_) | Self::MessageTooSlow => Code::POLICY_VIOLATION,
        }
    }
}
