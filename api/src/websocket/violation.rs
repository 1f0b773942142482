//! What a peer can do wrong, and the close code that tells it.

use super::close::Code;

/// Why a connection was failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A bit that only an extension may use.
    #[error("a reserved bit is set and no extension was agreed on")]
    ReservedBits,
    /// An opcode that is not defined.
    #[error("opcode {0} is not defined")]
    UnknownOpcode(u8),
    /// A client's frame without a mask.
    #[error("a frame is not masked")]
    Unmasked,
    /// A length in more bytes than it needs.
    #[error("a length is not written in the fewest bytes")]
    LengthNotMinimal,
    /// A length with its highest bit set.
    #[error("the highest bit of a length is set")]
    LengthOutOfRange,
    /// A close, ping or pong beyond 125 bytes.
    #[error("a control frame is longer than 125 bytes")]
    ControlTooLong,
    /// A close, ping or pong in several frames.
    #[error("a control frame is fragmented")]
    ControlFragmented,
    /// A continuation without a beginning.
    #[error("a continuation has nothing to continue")]
    NothingToContinue,
    /// A message that begins within another.
    #[error("a message begins before the one before it ended")]
    MessageUnfinished,
    /// Text that is not UTF-8.
    #[error("a text is not UTF-8")]
    InvalidText,
    /// A frame beyond the limit.
    #[error("a frame is larger than {0} bytes")]
    FrameTooBig(usize),
    /// A message beyond the limit.
    #[error("a message is larger than {0} bytes")]
    MessageTooBig(usize),
    /// A message in too many frames.
    #[error("a message comes in more than {0} fragments")]
    TooManyFragments(u32),
    /// A message that does not come to its end.
    #[error("a message takes too long")]
    MessageTooSlow,
    /// A close frame with half a code.
    #[error("a close frame has one byte")]
    CloseTooShort,
    /// A close code that must not be sent.
    #[error("close code {0} may not be sent")]
    CloseCode(u16),
}

impl Violation {
    /// The code to close with.
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
