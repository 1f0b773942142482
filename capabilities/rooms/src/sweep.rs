//! What goes, and when.

use tidings_engine::log::StoreError;

use crate::Rooms;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rooms of which events went.
    pub trimmed: usize,
    /// Reactions that are left out from now on.
    pub collapsed: usize,
    /// Users of whom it is not known any more how far they have seen a room.
    pub forgotten: usize,
}

/// What sweeps remember.
#[derive(Default)]
pub(crate) struct Sweeping;

impl Rooms {
    /// Lets go of what is too old, and leaves out reactions that later ones replace.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        todo!()
    }

    /// Does for ever what is to be done now and then.
    pub async fn tend(self) {
        todo!()
    }
}
