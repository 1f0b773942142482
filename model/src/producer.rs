//! Idempotent producers: an append carries its producer's id, epoch and sequence number, so that a retry is
//! recognized.

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// Why a producer's headers are refused before any state is looked up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProducer {
    /// The id is empty.
    #[error("Producer-Id may not be empty")]
    EmptyId,
    /// The id is longer than [`limits::PRODUCER_ID_BYTES`].
    #[error("Producer-Id is at most {} bytes", limits::PRODUCER_ID_BYTES)]
    LongId,
    /// A header that is not plain digits, or above 2^53-1; the value is its name.
    #[error("{0} must be a whole number from 0 to 9007199254740991")]
    Number(&'static str),
}

/// Name that a producer chose for itself. State is kept per log and id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId(Arc<str>);

impl ProducerId {
    /// Parses an id.
    pub fn parse(text: &str) -> Result<Self, InvalidProducer> {
        match text.len() {
            0 => Err(InvalidProducer::EmptyId),
            n if n > limits::PRODUCER_ID_BYTES => Err(InvalidProducer::LongId),
            _ => Ok(Self(text.into())),
        }
    }

    /// Id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one request of a producer: a request with the same three values is a repeat of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Producer {
    /// The producer.
    pub id: ProducerId,
    /// Incarnation of the producer; a higher one fences off lower ones.
    pub epoch: u64,
    /// Number of the request, counted from zero in each epoch.
    pub sequence: u64,
}

impl Producer {
    /// Parses the three header values.
    pub fn parse(id: &str, epoch: &str, sequence: &str) -> Result<Self, InvalidProducer> {
        Ok(Self {
            id: ProducerId::parse(id)?,
            epoch: number("Producer-Epoch", epoch)?,
            sequence: number("Producer-Seq", sequence)?,
        })
    }
}

fn number(name: &'static str, text: &str) -> Result<u64, InvalidProducer> {
    // `parse` alone would accept a leading plus sign.
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match text.parse::<u64>() {
        Ok(value) if digits && value <= limits::PRODUCER_NUMBER_MAX => Ok(value),
        _ => Err(InvalidProducer::Number(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_takes_plain_digits_up_to_2_pow_53_minus_1() {
        let stamp = Producer::parse("p", "0", "9007199254740991").expect("valid");
        assert_eq!((stamp.epoch, stamp.sequence), (0, 9_007_199_254_740_991));
        for bad in ["", "-1", "+1", "1.5", "1e3", " 1", "abc", "9007199254740992", "99999999999999999999"] {
            assert_eq!(
                Producer::parse("p", bad, "0"),
                Err(InvalidProducer::Number("Producer-Epoch")),
                "{bad:?}"
            );
            assert_eq!(
                Producer::parse("p", "0", bad),
                Err(InvalidProducer::Number("Producer-Seq")),
                "{bad:?}"
            );
        }
        assert_eq!(Producer::parse("", "0", "0"), Err(InvalidProducer::EmptyId));
        assert_eq!(Producer::parse(&"x".repeat(257), "0", "0"), Err(InvalidProducer::LongId));
    }
}
