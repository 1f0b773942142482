//! Messages: reassembles fragments, between which control frames may come.

use bytes::Bytes;

use super::frame::{Decoder, Fragment, Header, Opcode, Part, Piece};
use super::{Limits, Violation};

/// Initial capacity of the buffer of a message that comes in several pieces.
const FIRST_BYTES: usize = 512;

/// A text message, checked to be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(Bytes);

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("a text was checked while it came in")
    }

    /// The bytes of the text, which are UTF-8. Parts of them can be shared.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes of the text, which are UTF-8.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A complete message or control frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A text message.
    Text(Text),
    /// A binary message.
    Binary(Bytes),
    /// The payload of a close frame, not validated yet.
    Close(Bytes),
    /// The payload of a ping.
    Ping(Bytes),
    /// The payload of a pong.
    Pong(Bytes),
}

/// Parses messages. Has a buffer only while a message is incomplete.
#[derive(Debug, Default)]
pub struct Reader {
    decoder: Decoder,
    /// Header of the frame whose payload is being read.
    header: Option<Header>,
    /// The message whose fragments are being read.
    begun: Option<Begun>,
    /// Payload of a control frame, which may come between fragments.
    control: Vec<u8>,
}

/// An incomplete message.
#[derive(Debug)]
struct Begun {
    kind: Kind,
    fragments: u32,
    buffer: Vec<u8>,
    /// For a text: number of bytes that are complete characters. The rest is the beginning of one.
    checked: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

impl Reader {
    /// A parser before the first frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a message or frame is incomplete.
    pub fn is_within_message(&self) -> bool {
        self.begun.is_some() || self.header.is_some() || self.decoder.is_within_frame()
    }

    /// Parses the next message. Consumes `input` from the front; `None` when it is used up.
    pub fn next(&mut self, input: &mut &[u8], limits: &Limits) -> Result<Option<Message>, Violation> {
        while let Some(part) = self.decoder.next(input, limits)? {
            match part {
                Part::Header(header) => self.begin(header, limits)?,
                Part::Payload(piece) => {
                    if let Some(message) = self.take(&piece, limits)? {
                        return Ok(Some(message));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Bytes allocated by buffers.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.control.capacity() + self.begun.as_ref().map_or(0, |begun| begun.buffer.capacity())
    }

    /// Validates a header before its payload is read.
    fn begin(&mut self, header: Header, limits: &Limits) -> Result<(), Violation> {
        match (header.opcode, &mut self.begun) {
            (Opcode::Text, None) => self.begun = Some(Begun::new(Kind::Text)),
            (Opcode::Binary, None) => self.begun = Some(Begun::new(Kind::Binary)),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Violation::MessageUnfinished),
            (Opcode::Continuation, None) => return Err(Violation::NothingToContinue),
            (Opcode::Continuation, Some(begun)) => begun.fragments += 1,
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => {}
        }
        if let (false, Some(begun)) = (header.opcode.is_control(), &self.begun) {
            if header.len > limits.message_bytes.saturating_sub(begun.buffer.len()) {
                return Err(Violation::MessageTooBig(limits.message_bytes));
            }
            if begun.fragments > limits.fragments {
                return Err(Violation::TooManyFragments(limits.fragments));
            }
        }
        self.header = Some(header);
        Ok(())
    }

    /// Adds a piece of a payload. Returns the message that it completes.
    fn take(&mut self, piece: &Piece<'_>, limits: &Limits) -> Result<Option<Message>, Violation> {
        let header = self.header.expect("a payload follows its header");
        let ends_frame = piece.left == 0;
        if ends_frame {
            self.header = None;
        }
        if header.opcode.is_control() {
            self.control.reserve_exact(piece.len() + piece.left);
            piece.unmask_onto(&mut self.control);
            return Ok(ends_frame.then(|| self.end_control(header.opcode)));
        }

        let ends_message = ends_frame && header.fragment == Fragment::Final;
        let begun = self.begun.as_mut().expect("a fragment belongs to a message");
        begun.take(piece, header.fragment, limits);
        begun.check(ends_message)?;
        if !ends_message {
            return Ok(None);
        }
        let begun = self.begun.take().expect("a fragment belongs to a message");
        Ok(Some(match begun.kind {
            Kind::Text => Message::Text(Text(begun.buffer.into())),
            Kind::Binary => Message::Binary(begun.buffer.into()),
        }))
    }

    fn end_control(&mut self, opcode: Opcode) -> Message {
        let payload = Bytes::from(std::mem::take(&mut self.control));
        match opcode {
            Opcode::Close => Message::Close(payload),
            Opcode::Ping => Message::Ping(payload),
            _ => Message::Pong(payload),
        }
    }
}

impl Begun {
    fn new(kind: Kind) -> Self {
        Self { kind, fragments: 1, buffer: Vec::new(), checked: 0 }
    }

    /// Appends a piece. The buffer at most doubles with what was really received, and never exceeds what the
    /// message can become, so that a peer that announces much and sends little gets little memory.
    fn take(&mut self, piece: &Piece<'_>, fragment: Fragment, limits: &Limits) {
        let len = self.buffer.len() + piece.len();
        if len > self.buffer.capacity() {
            let most = match fragment {
                Fragment::Final => len + piece.left,
                Fragment::More => limits.message_bytes.max(len),
            };
            let room = len.max(self.buffer.capacity() * 2).max(FIRST_BYTES).min(most);
            self.buffer.reserve_exact(room - self.buffer.len());
        }
        piece.unmask_onto(&mut self.buffer);
    }

    /// Checks the text so far. Fails at the first byte that cannot be part of valid UTF-8.
    fn check(&mut self, ends: bool) -> Result<(), Violation> {
        if self.kind == Kind::Binary {
            return Ok(());
        }
        match std::str::from_utf8(&self.buffer[self.checked..]) {
            Ok(_) => self.checked = self.buffer.len(),
            // The beginning of a character, which the next piece may complete.
            Err(error) if error.error_len().is_none() && !ends => self.checked += error.valid_up_to(),
            Err(_) => return Err(Violation::InvalidText),
        }
        Ok(())
    }
}
