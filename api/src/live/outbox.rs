//! Bytes that are to be sent, as the shared pieces they came in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// Pieces in one write; more go with the next one.
pub const PIECES: usize = 64;

/// Pieces there is room for while nothing is to be sent.
const IDLE_PIECES: usize = 4;

/// What is to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Bytes>,
    /// How much of the first piece was sent before.
    sent_of_first: usize,
}

impl Outbox {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.pieces.push_back(piece);
        }
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The next piece, if there is no other.
    pub fn only(&self) -> Option<&Bytes> {
        self.pieces.front().filter(|_| self.pieces.len() == 1)
    }

    /// The next pieces.
    pub fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.pieces.iter().take(PIECES).map(|piece| IoSlice::new(piece))
    }

    /// Takes away what was sent.
    pub fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front_mut() {
            if sent < first.len() {
                first.advance(sent);
                self.sent_of_first += sent;
                return;
            }
            sent -= first.len();
            self.pieces.pop_front();
            self.sent_of_first = 0;
        }
        // What is idle takes little memory, and what goes on needs none anew.
        self.pieces.shrink_to(IDLE_PIECES);
    }

    /// Takes the first piece out whole, or what is left of it.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.sent_of_first = 0;
        self.pieces.pop_front()
    }

    /// Gives up all but a piece that was begun: its reader would not understand what follows.
    pub fn keep_begun(&mut self) {
        self.pieces.truncate(usize::from(self.sent_of_first > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(outbox: &Outbox) -> String {
        outbox.slices().map(|slice| String::from_utf8(slice.to_vec()).expect("text")).collect()
    }

    #[test]
    fn what_was_sent_is_gone_and_the_rest_is_there() {
        let mut outbox = Outbox::default();
        for piece in ["abc", "", "de", "f"] {
            outbox.push(Bytes::from_static(piece.as_bytes()));
        }
        outbox.advance(1);
        assert_eq!(rest(&outbox), "bcdef");
        outbox.advance(2);
        assert_eq!(rest(&outbox), "def");
        outbox.advance(1);
        assert_eq!(rest(&outbox), "ef");
        outbox.advance(2);
        assert!(outbox.is_empty());
    }

    #[test]
    fn only_what_was_begun_must_be_finished() {
        let mut outbox = Outbox::default();
        outbox.push(Bytes::from_static(b"abc"));
        outbox.push(Bytes::from_static(b"def"));
        outbox.advance(4);
        outbox.push(Bytes::from_static(b"ghi"));
        outbox.keep_begun();
        assert_eq!(rest(&outbox), "ef");
        outbox.advance(2);
        outbox.push(Bytes::from_static(b"jkl"));
        outbox.keep_begun();
        assert!(outbox.is_empty());
    }
}
