//! Bytes that are to be sent, as the shared pieces they came in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use tidings_engine::deliver::Frame;
use tidings_model::Position;

/// Pieces in one write; more go with the next one.
pub const PIECES: usize = 64;

/// Pieces there is room for while nothing is to be sent.
const IDLE_PIECES: usize = 4;

/// What is to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// How much of the first piece was sent before.
    sent_of_first: usize,
    /// Where whoever has got all that was sent can resume.
    reached: Position,
}

#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    /// Where whoever has got it can resume.
    reaches: Position,
}

impl Outbox {
    /// An empty one, for somebody who has got all up to a position.
    pub fn at(reached: Position) -> Self {
        Self { reached, ..Self::default() }
    }

    /// Adds a piece at the end.
    pub fn push(&mut self, bytes: Bytes) {
        let reaches = self.reaches();
        if !bytes.is_empty() {
            self.pieces.push_back(Piece { bytes, reaches });
        }
    }

    /// Adds a piece before all others.
    pub fn push_front(&mut self, bytes: Bytes) {
        self.pieces.push_front(Piece { bytes, reaches: self.reached });
    }

    /// Adds a frame at the end.
    pub fn push_frame(&mut self, frame: &Frame) {
        self.push(frame.bytes.clone());
        self.pass(frame.next);
    }

    /// Whoever gets all that is here has got all up to a position.
    pub fn pass(&mut self, position: Position) {
        match self.pieces.back_mut() {
            Some(last) => last.reaches = position,
            None => self.reached = position,
        }
    }

    /// Where whoever gets all that is here can resume.
    pub fn reaches(&self) -> Position {
        self.pieces.back().map_or(self.reached, |last| last.reaches)
    }

    /// Whether all was sent.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The next piece, if there is no other.
    pub fn only(&self) -> Option<&Bytes> {
        self.pieces.front().filter(|_| self.pieces.len() == 1).map(|piece| &piece.bytes)
    }

    /// The next pieces.
    pub fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        self.pieces.iter().take(PIECES).map(|piece| IoSlice::new(&piece.bytes))
    }

    /// Takes away what was sent.
    pub fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front_mut() {
            if sent < first.bytes.len() {
                first.bytes.advance(sent);
                self.sent_of_first += sent;
                return;
            }
            sent -= first.bytes.len();
            self.pop();
        }
        // What is idle takes little memory, and what goes on needs none anew.
        self.pieces.shrink_to(IDLE_PIECES);
    }

    /// Takes the first piece out whole, or what is left of it.
    pub fn pop(&mut self) -> Option<Bytes> {
        self.sent_of_first = 0;
        let piece = self.pieces.pop_front()?;
        self.reached = piece.reaches;
        Some(piece.bytes)
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
