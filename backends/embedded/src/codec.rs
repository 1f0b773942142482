//! Bytes to values and back: what all files are written with. Numbers are little-endian or of variable length.

use bytes::{Buf, Bytes};
use tidings_model::{CommitNumber, LogId, Position, Producer, ProducerId, Timestamp};

/// Bytes that do not say what they should.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end too early or make no sense")]
pub struct DecodeError;

/// Writes values behind each other.
pub trait Writer {
    /// One byte.
    fn byte(&mut self, value: u8);
    /// A number in as few bytes as it needs.
    fn number(&mut self, value: u64);
    /// Four bytes.
    fn fixed32(&mut self, value: u32);
    /// Eight bytes.
    fn fixed64(&mut self, value: u64);
    /// A length and bytes.
    fn bytes(&mut self, value: &[u8]);

    /// A length and text.
    fn text(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    /// A log.
    fn log(&mut self, log: LogId) {
        self.number(log.get());
    }

    /// A position.
    fn position(&mut self, position: Position) {
        let (high, low) = halves(position);
        self.number(high);
        self.number(low);
    }

    /// A producer's stamp.
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

/// Reads values that stand behind each other. What it gives shares the memory it reads.
#[derive(Clone, Debug)]
pub struct Reader(pub Bytes);

impl Reader {
    /// Whether all was read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        if self.0.is_empty() { Err(DecodeError) } else { Ok(self.0.get_u8()) }
    }

    /// A number of variable length.
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

    /// A number that counts things in memory.
    pub fn count(&mut self) -> Result<usize, DecodeError> {
        usize::try_from(self.number()?).map_err(|_| DecodeError)
    }

    /// Four bytes.
    pub fn fixed32(&mut self) -> Result<u32, DecodeError> {
        if self.0.len() < 4 { Err(DecodeError) } else { Ok(self.0.get_u32_le()) }
    }

    /// Eight bytes.
    pub fn fixed64(&mut self) -> Result<u64, DecodeError> {
        if self.0.len() < 8 { Err(DecodeError) } else { Ok(self.0.get_u64_le()) }
    }

    /// So many bytes.
    pub fn exactly(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        if self.0.len() < length { Err(DecodeError) } else { Ok(self.0.split_to(length)) }
    }

    /// A length and bytes.
    pub fn bytes(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.count()?;
        self.exactly(length)
    }

    /// A length and text.
    pub fn text(&mut self) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| DecodeError)
    }

    /// A log.
    pub fn log(&mut self) -> Result<LogId, DecodeError> {
        Ok(LogId::new(self.number()?))
    }

    /// A position.
    pub fn position(&mut self) -> Result<Position, DecodeError> {
        Ok(whole(self.number()?, self.number()?))
    }

    /// A commit number.
    pub fn commit(&mut self) -> Result<CommitNumber, DecodeError> {
        Ok(CommitNumber::from_number(self.number()?))
    }

    /// A moment.
    pub fn time(&mut self) -> Result<Timestamp, DecodeError> {
        Ok(Timestamp::from_millis(self.number()?))
    }

    /// A producer's stamp.
    pub fn producer(&mut self) -> Result<Producer, DecodeError> {
        let id = ProducerId::parse(&self.text()?).map_err(|_| DecodeError)?;
        Ok(Producer { id, epoch: self.number()?, sequence: self.number()? })
    }
}

/// The two halves of a position: for one the store gave, commit and index.
pub fn halves(position: Position) -> (u64, u64) {
    ((position.get() >> 64) as u64, position.get() as u64)
}

/// Reads back [`halves`].
pub fn whole(high: u64, low: u64) -> Position {
    Position::new((u128::from(high) << 64) | u128::from(low))
}

/// Checksum of bytes, begun with a salt that only the file knows.
pub fn checksum(salt: u64, parts: &[&[u8]]) -> u32 {
    let mut sum = Checksum::begin(salt);
    parts.iter().for_each(|part| sum.add(part));
    sum.end()
}

/// A [`checksum`] of bytes that come one after the other.
#[derive(Debug)]
pub struct Checksum(crc32fast::Hasher);

impl Checksum {
    /// Of nothing yet.
    pub fn begin(salt: u64) -> Self {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&salt.to_le_bytes());
        Self(hasher)
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all.
    pub fn end(self) -> u32 {
        self.0.finalize()
    }
}
