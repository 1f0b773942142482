//! Frames: encodes those of the server and decodes those of a client, from whatever pieces they come in.
//!
//! A payload for many readers is encoded once: [`header`] for its length, then the shared payload, or
//! [`frame`] for both in one buffer. [`Decoder`] buffers a header at most, never a payload.

use std::ops::Deref;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Limits, Violation, mask::Mask};

/// Maximum bytes of the payload of a control frame.
pub const CONTROL_BYTES: usize = 125;

/// Bytes of the longest header of a client: two, eight of length, four of mask.
const HEADER_BYTES: usize = 14;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A further fragment of a message.
    Continuation,
    /// A text message, or its first fragment.
    Text,
    /// A binary message, or its first fragment.
    Binary,
    /// Closes the connection.
    Close,
    /// Asks the peer for a pong.
    Ping,
    /// Answers a ping.
    Pong,
}

impl Opcode {
    /// The opcode with this number.
    pub fn new(number: u8) -> Option<Self> {
        Some(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xa => Self::Pong,
            _ => return None,
        })
    }

    /// The number of the opcode.
    pub const fn number(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xa,
        }
    }

    /// Whether it is close, ping or pong: short, not fragmented, and allowed between the fragments of a
    /// message.
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The encoded header of a frame of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBytes {
    bytes: [u8; 10],
    len: u8,
}

impl Deref for HeaderBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Encodes the header of an unmasked, unfragmented message of `len` bytes.
///
/// Panics when a control frame would be longer than [`CONTROL_BYTES`].
pub fn header(opcode: Opcode, len: usize) -> HeaderBytes {
    assert!(len <= CONTROL_BYTES || !opcode.is_control(), "a control frame has at most 125 bytes");
    let mut bytes = [0; 10];
    bytes[0] = FIN | opcode.number();
    let taken = match (u8::try_from(len), u16::try_from(len)) {
        (Ok(short @ ..=125), _) => {
            bytes[1] = short;
            2
        }
        (_, Ok(middle)) => {
            bytes[1] = LENGTH_16;
            bytes[2..4].copy_from_slice(&middle.to_be_bytes());
            4
        }
        _ => {
            bytes[1] = LENGTH_64;
            bytes[2..10].copy_from_slice(&(len as u64).to_be_bytes());
            10
        }
    };
    HeaderBytes { bytes, len: taken }
}

/// Encodes a message as one unmasked frame.
///
/// Panics when a control frame would be longer than [`CONTROL_BYTES`].
pub fn frame(opcode: Opcode, payload: &[u8]) -> Bytes {
    let header = header(opcode, payload.len());
    let mut out = BytesMut::with_capacity(header.len() + payload.len());
    out.put_slice(&header);
    out.put_slice(payload);
    out.freeze()
}

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// Whether more fragments follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The last frame of its message, or the only one.
    Final,
    /// More fragments of the message follow.
    More,
}

/// The decoded header of a client's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Type of the frame.
    pub opcode: Opcode,
    /// Whether more fragments follow.
    pub fragment: Fragment,
    /// Bytes of the payload.
    pub len: usize,
}

/// A part of a frame: its header, then pieces of its payload until it is complete.
#[derive(Debug)]
pub enum Part<'b> {
    /// The header of the next frame.
    Header(Header),
    /// A piece of the payload. There is at least one; that of an empty payload is empty.
    Payload(Piece<'b>),
}

/// A piece of a payload, still masked.
#[derive(Debug)]
pub struct Piece<'b> {
    bytes: &'b [u8],
    mask: Mask,
    /// Bytes of the payload after this piece.
    pub left: usize,
}

impl Piece<'_> {
    /// Bytes of this piece.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the piece is the payload of an empty frame.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Unmasks the piece and appends it.
    pub fn unmask_onto(&self, buffer: &mut Vec<u8>) {
        let start = buffer.len();
        buffer.extend_from_slice(self.bytes);
        self.mask.apply(&mut buffer[start..]);
    }
}

/// Decodes a client's frames.
#[derive(Debug)]
pub struct Decoder {
    head: [u8; HEADER_BYTES],
    /// Bytes of the header received so far.
    have: u8,
    payload: Option<Payload>,
}

/// A payload that is being received.
#[derive(Clone, Copy, Debug)]
struct Payload {
    mask: Mask,
    left: usize,
}

impl Decoder {
    /// A decoder before the first frame.
    pub fn new() -> Self {
        Self { head: [0; HEADER_BYTES], have: 0, payload: None }
    }

    /// Whether a frame is incomplete.
    pub fn is_within_frame(&self) -> bool {
        self.have > 0 || self.payload.is_some()
    }

    /// Decodes the next part. Consumes `input` from the front; `None` when it is used up.
    ///
    /// A violation is reported at the first byte that shows it, so that no further bytes are waited for.
    pub fn next<'b>(&mut self, input: &mut &'b [u8], limits: &Limits) -> Result<Option<Part<'b>>, Violation> {
        if let Some(payload) = &mut self.payload {
            if input.is_empty() && payload.left > 0 {
                return Ok(None);
            }
            let bytes = take(input, payload.left);
            let piece = Piece { bytes, mask: payload.mask, left: payload.left - bytes.len() };
            *payload = Payload { mask: payload.mask.after(bytes.len()), left: piece.left };
            if piece.left == 0 {
                self.payload = None;
            }
            return Ok(Some(Part::Payload(piece)));
        }
        loop {
            let have = usize::from(self.have);
            match parse_header(&self.head[..have], limits)? {
                ParsedHeader::Incomplete { need } => {
                    let taken = take(input, need - have);
                    if taken.is_empty() {
                        return Ok(None);
                    }
                    self.head[have..have + taken.len()].copy_from_slice(taken);
                    self.have += taken.len() as u8; // at most HEADER_BYTES
                }
                ParsedHeader::Complete(header, mask) => {
                    self.have = 0;
                    self.payload = Some(Payload { mask, left: header.len });
                    return Ok(Some(Part::Header(header)));
                }
            }
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes up to `most` bytes from the front.
fn take<'b>(input: &mut &'b [u8], most: usize) -> &'b [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

enum ParsedHeader {
    /// More can be decoded once `need` bytes are there.
    Incomplete {
        need: usize,
    },
    Complete(Header, Mask),
}

/// Decodes and validates a header as far as it was received.
fn parse_header(head: &[u8], limits: &Limits) -> Result<ParsedHeader, Violation> {
    let &[first, ref rest @ ..] = head else { return Ok(ParsedHeader::Incomplete { need: 1 }) };
    if first & RESERVED != 0 {
        return Err(Violation::ReservedBits);
    }
    let number = first & OPCODE;
    let opcode = Opcode::new(number).ok_or(Violation::UnknownOpcode(number))?;
    let fragment = if first & FIN != 0 { Fragment::Final } else { Fragment::More };
    if opcode.is_control() && fragment == Fragment::More {
        return Err(Violation::ControlFragmented);
    }

    let &[second, ref rest @ ..] = rest else { return Ok(ParsedHeader::Incomplete { need: 2 }) };
    if second & MASKED == 0 {
        return Err(Violation::Unmasked);
    }
    let short = second & LENGTH;
    if opcode.is_control() && usize::from(short) > CONTROL_BYTES {
        return Err(Violation::ControlTooLong);
    }

    let (len, rest) = match short {
        LENGTH_16 => match rest.split_first_chunk::<2>() {
            Some((bytes, rest)) => (minimal(u16::from_be_bytes(*bytes).into(), 126)?, rest),
            None => return Ok(ParsedHeader::Incomplete { need: 4 }),
        },
        LENGTH_64 => match rest.split_first_chunk::<8>() {
            Some((bytes, rest)) => (minimal(u64::from_be_bytes(*bytes), 1 << 16)?, rest),
            None => return Ok(ParsedHeader::Incomplete { need: 10 }),
        },
        short => (short.into(), rest),
    };
    let len = match usize::try_from(len) {
        Ok(len) if len <= limits.frame_bytes => len,
        _ => return Err(Violation::FrameTooBig(limits.frame_bytes)),
    };
    let Some(key) = rest.first_chunk::<4>() else {
        return Ok(ParsedHeader::Incomplete { need: head.len() - rest.len() + 4 });
    };
    Ok(ParsedHeader::Complete(Header { opcode, fragment, len }, Mask::new(*key)))
}

/// Checks that a length needs its encoding and has at most 63 bits.
fn minimal(len: u64, least: u64) -> Result<u64, Violation> {
    match len {
        short if short < least => Err(Violation::LengthNotMinimal),
        long if long > u64::MAX >> 1 => Err(Violation::LengthOutOfRange),
        right => Ok(right),
    }
}
