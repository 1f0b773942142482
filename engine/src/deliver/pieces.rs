use std::sync::Arc;

use bytes::{Bytes, BytesMut};

/// What is sent of a frame: one piece, or two of which frames of other channels have the first as well.
#[derive(Clone, Debug)]
pub enum Pieces {
    /// All of it.
    One(Bytes),
    /// What others have, too, and what they have not. No larger than one piece, so that frames of one are not, either.
    Two(Arc<[Bytes; 2]>),
}

impl Pieces {
    /// In order.
    pub fn as_slice(&self) -> &[Bytes] {
        match self {
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Two(pieces) => &**pieces,
        }
    }

    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        match self {
            Self::One(piece) => piece.len(),
            Self::Two(pieces) => pieces[0].len() + pieces[1].len(),
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All pieces as one.
    pub fn joined(self) -> Bytes {
        match self {
            Self::One(piece) => piece,
            Self::Two(pieces) => pieces.iter().flatten().copied().collect::<BytesMut>().freeze(),
        }
    }
}

impl From<Bytes> for Pieces {
    fn from(piece: Bytes) -> Self {
        Self::One(piece)
    }
}

impl From<[Bytes; 2]> for Pieces {
    fn from(pieces: [Bytes; 2]) -> Self {
        Self::Two(Arc::new(pieces))
    }
}
