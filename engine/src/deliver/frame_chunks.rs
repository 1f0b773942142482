//! The bytes of a frame, in one chunk or two.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// The bytes of a frame: one chunk, or two of which frames of other channels share the first.
#[derive(Clone, Debug)]
pub enum FrameChunks {
    /// The whole frame.
    One(Bytes),
    /// A shared chunk and this frame's own. Behind an `Arc`, so that the enum is no larger than one `Bytes`.
    Two(Arc<[Bytes; 2]>),
}

impl FrameChunks {
    /// The chunks, in the order in which they are sent.
    pub fn as_slice(&self) -> &[Bytes] {
        match self {
            Self::One(chunk) => std::slice::from_ref(chunk),
            Self::Two(chunks) => &**chunks,
        }
    }

    /// Total bytes of all chunks.
    pub fn len(&self) -> usize {
        match self {
            Self::One(chunk) => chunk.len(),
            Self::Two(chunks) => chunks[0].len() + chunks[1].len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all chunks into one.
    pub fn joined(self) -> Bytes {
        match self {
            Self::One(chunk) => chunk,
            Self::Two(chunks) => chunks.iter().flatten().copied().collect::<BytesMut>().freeze(),
        }
    }
}

impl From<Bytes> for FrameChunks {
    fn from(chunk: Bytes) -> Self {
        Self::One(chunk)
    }
}

impl From<[Bytes; 2]> for FrameChunks {
    fn from(chunks: [Bytes; 2]) -> Self {
        Self::Two(Arc::new(chunks))
    }
}
