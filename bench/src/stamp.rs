//! Messages that contain the time at which they were sent, and are found whatever they are wrapped in.

use std::time::{Duration, Instant};

use memchr::memchr;

/// Bytes of a stamp: a mark, nanoseconds in 16 digits, a mark.
pub const STAMP_BYTES: usize = 18;

const MARK: u8 = b'@';

/// A message of `bytes` bytes that was sent `sent` after the beginning. Text on one line.
pub fn stamped(sent: Duration, bytes: usize) -> String {
    let mut message = format!("@{:016}@", sent.as_nanos());
    message.extend(std::iter::repeat_n('x', bytes.saturating_sub(STAMP_BYTES)));
    message
}

/// Finds stamps in received bytes, across reads.
#[derive(Debug, Default)]
pub struct Stamps {
    held: Vec<u8>,
}

impl Stamps {
    /// Calls `took` with the latency of each message that is complete with these bytes.
    pub fn feed(&mut self, bytes: &[u8], began: Instant, mut took: impl FnMut(Duration)) {
        let now = began.elapsed();
        self.held.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(mark) = memchr(MARK, &self.held[at..]) {
            at += mark;
            let Some(stamp) = self.held.get(at..at + STAMP_BYTES) else {
                self.held.drain(..at);
                return;
            };
            let digits = std::str::from_utf8(&stamp[1..STAMP_BYTES - 1]).ok();
            let sent =
                digits.and_then(|digits| digits.parse().ok()).filter(|_| stamp[STAMP_BYTES - 1] == MARK);
            match sent {
                Some(nanoseconds) => {
                    took(now.saturating_sub(Duration::from_nanos(nanoseconds)));
                    at += STAMP_BYTES;
                }
                None => at += 1,
            }
        }
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_found_once_wherever_the_bytes_are_cut() {
        let sent = [Duration::from_nanos(5), Duration::from_millis(7)];
        let wire = format!("data: {}\nid: a@b\n\n{}@", stamped(sent[0], 40), stamped(sent[1], STAMP_BYTES));
        for step in 1..wire.len() {
            let (mut stamps, mut found) = (Stamps::default(), 0);
            for part in wire.as_bytes().chunks(step) {
                stamps.feed(part, Instant::now(), |_| found += 1);
            }
            assert_eq!(found, 2, "in steps of {step}");
        }
        assert_eq!(stamped(sent[0], 40).len(), 40);
    }
}
