//! Encoding of values in all files of the store.
//!
//! Integers are little-endian of fixed width, or LEB128 varints (`number`). [`Writer`] and [`Reader`] mirror
//! each other: a value is read by the method of the name it was written with.

use bytes::{Buf, Bytes};
use tidings_model::{CommitNumber, LogId, Position, Producer, ProducerId, Timestamp};

/// Bytes that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its content is truncated or cannot be decoded")]
pub struct DecodeError;

/// Appends encoded values to a buffer.
pub trait Writer {
    /// Writes one byte.
    fn byte(&mut self, value: u8);
    /// Writes a varint: seven bits in a byte, lowest first.
    fn number(&mut self, value: u64);
    /// Writes four bytes, little-endian.
    fn fixed32(&mut self, value: u32);
    /// Writes eight bytes, little-endian.
    fn fixed64(&mut self, value: u64);
    /// Writes a length and the bytes.
    fn bytes(&mut self, value: &[u8]);

    /// Writes a length and UTF-8 text.
    fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    /// Writes the number of a log.
    fn log(&mut self, log: LogId) {
        self.number(log.get());
    }

    /// Writes a position as two varints, the high half first.
    fn position(&mut self, position: Position) {
        let (high, low) = halves(position);
        self.number(high);
        self.number(low);
    }

    /// Writes a producer's id, epoch and sequence number.
    fn producer(&mut self, producer: &Producer) {
        self.text(producer.id.as_str());
        self.number(producer.epoch);
        self.number(producer.sequence);
    }
}

impl Writer for Vec<u8> {
    fn byte(&mut self, value: u8) {
        self.push(value);
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn fixed32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn fixed64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.extend_from_slice(value);
    }
}

/// Reads encoded values in sequence. Byte strings share the memory of the input.
#[derive(Clone, Debug)]
pub struct Reader(pub Bytes);

impl Reader {
    /// Whether all input was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        if self.0.is_empty() { Err(DecodeError) } else { Ok(self.0.get_u8()) }
    }

    /// Reads a varint.
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(DecodeError);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError)
    }

    /// Reads a varint that must fit `usize`.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.number()?).map_err(|_| DecodeError)
    }

    /// Reads four bytes, little-endian.
    pub fn fixed32(&mut self) -> Result<u32, DecodeError> {
        if self.0.len() < 4 { Err(DecodeError) } else { Ok(self.0.get_u32_le()) }
    }

    /// Reads eight bytes, little-endian.
    pub fn fixed64(&mut self) -> Result<u64, DecodeError> {
        if self.0.len() < 8 { Err(DecodeError) } else { Ok(self.0.get_u64_le()) }
    }

    /// Reads `length` bytes.
    pub fn exactly(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if self.0.len() < length { Err(DecodeError) } else { Ok(self.0.split_to(length)) }
    }

    /// Reads a length and that many bytes.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.count()?;
        self.exactly(length)
    }

    /// Reads a length and UTF-8 text.
    pub fn text(&mut self) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| DecodeError)
    }

    /// Reads the number of a log.
    pub fn log(&mut self) -> Result<LogId, DecodeError> {
        Ok(LogId::new(self.number()?))
    }

    /// Reads a position.
    pub fn position(&mut self) -> Result<Position, DecodeError> {
        Ok(whole(self.number()?, self.number()?))
    }

    /// Reads a commit number.
    pub fn commit(&mut self) -> Result<CommitNumber, DecodeError> {
        Ok(CommitNumber::from_number(self.number()?))
    }

    /// Reads a timestamp in milliseconds.
    pub fn time(&mut self) -> Result<Timestamp, DecodeError> {
        Ok(Timestamp::from_millis(self.number()?))
    }

    /// Reads a producer's id, epoch and sequence number.
    pub fn producer(&mut self) -> Result<Producer, DecodeError> {
        let id = ProducerId::parse(&self.text()?).map_err(|_| DecodeError)?;
        Ok(Producer { id, epoch: self.number()?, sequence: self.number()? })
    }
}

/// Splits a position into its high and low half. In a position that the store assigned these are commit
/// number and index.
pub fn halves(position: Position) -> (u64, u64) {
    ((position.get() >> 64) as u64, position.get() as u64)
}

/// Joins two [`halves`] to a position.
pub fn whole(high: u64, low: u64) -> Position {
    Position::new((u128::from(high) << 64) | u128::from(low))
}

/// CRC-32 of the parts in sequence, preceded by the salt.
pub fn checksum(salt: u64, parts: &[&[u8]]) -> u32 {
    let mut sum = Checksum::begin(salt);
    parts.iter().for_each(|part| sum.add(part));
    sum.end()
}

/// A [`checksum`] computed incrementally.
#[derive(Debug)]
pub struct Checksum(crc32fast::Hasher);

impl Checksum {
    /// Starts a checksum with a salt.
    pub fn begin(salt: u64) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&salt.to_le_bytes());
        Self(hasher)
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the checksum of everything added.
    pub fn end(self) -> u32 {
        self.0.finalize()
    }
}
