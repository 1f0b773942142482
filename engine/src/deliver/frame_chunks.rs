use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// What is sent of a frame: one chunk, or two of which frames of other channels have the first as well.
#[derive(Clone, Debug)]
pub enum FrameChunks {
    /// All of it.
    One(Bytes),
    /// What others have, too, and what they have not. No larger than one chunk, so that frames of one are not, either.
    Two(Arc<[Bytes; 2]>),
}

impl FrameChunks {
    /// In order.
    pub fn as_slice(&self) -> &[Bytes] {
        match self {
            Self::One(chunk) => std::slice::from_ref(chunk),
            Self::Two(chunks) => &**chunks,
        }
    }

    /// Bytes of all chunks.
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

    /// All chunks as one.
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
