//! What clients are told without being asked.

use std::sync::Arc;

use tidings_engine::Clock;
use tidings_engine::deliver::FrameChunks;
use tidings_entities::{Cursor, Encode, EntityCode, ResyncReason, Told};

use super::encode::{self, ToldChange, framed};
use super::error::{WireError, code};
use super::sockets::EntitySockets;

/// Writes what clients are told without being asked.
pub struct Telling {
    pub sockets: EntitySockets,
    pub clock: Arc<dyn Clock>,
}

impl Encode for Telling {
    fn invalidate(&self, code: &EntityCode, changes: &[Told], cursor: Option<&Cursor>) -> FrameChunks {
        self.sockets.invalidated(changes.len());
        let changes: Vec<_> = changes.iter().map(ToldChange::from).collect();
        framed(&encode::invalidate(code, &changes, cursor, self.clock.now())).into()
    }

    fn resync(&self, code: Option<&EntityCode>, reason: ResyncReason) -> FrameChunks {
        self.sockets.resynced();
        framed(&encode::resync(code, reason)).into()
    }

    fn whole_type_denied(&self, code: &EntityCode) -> FrameChunks {
        framed(&encode::error(None, &whole_type_forbidden(code))).into()
    }
}

/// A whole type that the user may not watch, or not any more.
pub fn whole_type_forbidden(code: &EntityCode) -> WireError {
    WireError::new(code::FORBIDDEN, format!("All of `{code}` is not allowed"))
}
