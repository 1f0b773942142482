//! The outbox: pending bytes of a live response, as the shared chunks they came in.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;
use tidings_engine::deliver::{Frame, FrameChunks};
use tidings_model::Position;

/// Maximum number of chunks in one write.
pub const CHUNKS: usize = 64;

/// Capacity kept while nothing is pending, in frames.
const IDLE_FRAMES: usize = 4;

/// Pending bytes, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Waiting>,
    /// Bytes of the first entry that were sent already.
    sent_of_first: usize,
    /// Position at which a client that received everything sent so far can resume.
    reached: Position,
}

/// An entry that must be sent as a whole once its first byte was sent.
#[derive(Debug)]
struct Waiting {
    bytes: FrameChunks,
    /// Position at which a client that received it can resume.
    reaches: Position,
}

impl Outbox {
    /// An empty outbox of a client that has received everything up to a position.
    pub fn at(reached: Position) -> Self {
        Self { reached, ..Self::default() }
    }

    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: impl Into<FrameChunks>) {
        let (bytes, reaches) = (bytes.into(), self.reaches());
        if !bytes.is_empty() {
            self.waiting.push_back(Waiting { bytes, reaches });
        }
    }

    /// Adds bytes at the front.
    pub fn push_front(&mut self, bytes: Bytes) {
        self.waiting.push_front(Waiting { bytes: bytes.into(), reaches: self.reached });
    }

    /// Adds a frame at the end.
    pub fn push_frame(&mut self, frame: &Frame) {
        self.push(frame.bytes.clone());
        self.pass(frame.next);
    }

    /// Sets the position at which a client that receives everything pending can resume.
    pub fn pass(&mut self, position: Position) {
        match self.waiting.back_mut() {
            Some(last) => last.reaches = position,
            None => self.reached = position,
        }
    }

    /// Position at which a client that receives everything pending can resume.
    pub fn reaches(&self) -> Position {
        self.waiting.back().map_or(self.reached, |last| last.reaches)
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The pending bytes, if they are a single chunk.
    pub fn only(&self) -> Option<&[u8]> {
        match self.waiting.front() {
            Some(Waiting { bytes: FrameChunks::One(chunk), .. }) if self.waiting.len() == 1 => {
                Some(&chunk[self.sent_of_first..])
            }
            _ => None,
        }
    }

    /// Fills the slices with the next chunks, as many as fit.
    pub fn fill<'a, 'b>(&'a self, room: &'b mut [IoSlice<'a>; CHUNKS]) -> &'b [IoSlice<'a>] {
        let (mut count, mut sent) = (0, self.sent_of_first);
        'full: for waiting in &self.waiting {
            for chunk in waiting.bytes.as_slice() {
                if count == CHUNKS {
                    break 'full;
                }
                let before = sent.min(chunk.len());
                sent -= before;
                if before < chunk.len() {
                    room[count] = IoSlice::new(&chunk[before..]);
                    count += 1;
                }
            }
        }
        &room[..count]
    }

    /// Removes bytes that were sent.
    pub fn advance(&mut self, sent: usize) {
        let mut sent = self.sent_of_first + sent;
        while let Some(first) = self.waiting.front() {
            let bytes = first.bytes.len();
            if sent < bytes {
                self.sent_of_first = sent;
                return;
            }
            sent -= bytes;
            self.reached = first.reaches;
            self.waiting.pop_front();
        }
        self.sent_of_first = 0;
        // An idle outbox uses little memory, and a busy one does not reallocate.
        self.waiting.shrink_to(IDLE_FRAMES);
    }

    /// Removes and returns the next chunk, or the rest of it.
    pub fn pop(&mut self) -> Option<Bytes> {
        let mut sent = self.sent_of_first;
        let left = self.waiting.front()?.bytes.as_slice().iter().find_map(|chunk| {
            let before = sent.min(chunk.len());
            sent -= before;
            (before < chunk.len()).then(|| chunk.slice(before..))
        });
        self.advance(left.as_ref().map_or(0, Bytes::len));
        left
    }

    /// Releases the memory of an empty outbox. The next entry allocates again.
    pub fn release(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }

    /// Drops all entries but one that was begun: its reader could not parse what follows a partial one.
    pub fn keep_begun(&mut self) {
        self.waiting.truncate(usize::from(self.sent_of_first > 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(outbox: &Outbox) -> String {
        let mut room = [IoSlice::new(&[]); CHUNKS];
        let text = |slice: &IoSlice<'_>| String::from_utf8(slice.to_vec()).expect("text");
        outbox.fill(&mut room).iter().map(text).collect()
    }

    #[test]
    fn what_was_sent_is_gone_and_the_rest_is_there() {
        let mut outbox = Outbox::default();
        for chunk in ["abc", "", "de", "f"] {
            outbox.push(Bytes::from_static(chunk.as_bytes()));
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
    fn a_frame_of_two_pieces_is_begun_with_its_first_and_goes_whole() {
        let two = || FrameChunks::from([Bytes::from_static(b"shared,"), Bytes::from_static(b"own.")]);
        for sent in 0.."shared,own.shared,own.".len() {
            let mut outbox = Outbox::default();
            outbox.push(two());
            outbox.push(two());
            outbox.advance(sent);
            assert_eq!(rest(&outbox), "shared,own.shared,own."[sent..]);
            assert!(outbox.only().is_none());
            let begun = if sent % 11 == 0 { "" } else { &"shared,own."[sent % 11..] };
            outbox.keep_begun();
            assert_eq!(rest(&outbox), begun);
            let mut popped = Vec::new();
            while let Some(chunk) = outbox.pop() {
                popped.extend_from_slice(&chunk);
            }
            assert_eq!(popped, begun.as_bytes());
        }
    }

    #[test]
    fn what_does_not_fit_into_one_write_goes_with_the_next() {
        let mut outbox = Outbox::default();
        for n in 0..CHUNKS {
            outbox.push([Bytes::from(format!("{n},")), Bytes::from_static(b".")]);
        }
        let (first, mut all) = (rest(&outbox), String::new());
        assert!(first.ends_with("31,."), "half of the frames are as many chunks: {first}");
        while !outbox.is_empty() {
            let part = rest(&outbox);
            outbox.advance(part.len());
            all += &part;
        }
        assert_eq!(all, (0..CHUNKS).map(|n| format!("{n},.")).collect::<String>());
    }

    #[test]
    fn a_frame_whose_first_piece_was_taken_out_is_begun() {
        let mut outbox = Outbox::default();
        outbox.push([Bytes::from_static(b"shared,"), Bytes::from_static(b"own.")]);
        outbox.push(Bytes::from_static(b"next"));
        assert_eq!(outbox.pop().as_deref(), Some(&b"shared,"[..]));
        outbox.keep_begun();
        assert_eq!(outbox.only(), None, "only frames of one chunk are");
        assert_eq!(outbox.pop().as_deref(), Some(&b"own."[..]));
        assert!(outbox.is_empty() && outbox.pop().is_none());
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
