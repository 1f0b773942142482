//! Rooms: conversations whose events have ULIDs as cursors, so that readers resume without gaps.
//!
//! A room is a log whose positions are ULIDs, and a set of members. Read [`Rooms`] (the handle) and [`Cursor`], then
//! [`generator`] (which cursor is next), `active` with `registry` (what is in memory of a room that is being written to),
//! `caches` (what of it follows the table), `ownership` (when this node may write), [`write`](mod@write) with `idempotency`
//! (what a repeated request is told), [`journal`] (which of it others in the project hear) and [`read`]; then [`members`] with `leases` (who may hear it, until when),
//! [`seen`] (how far somebody has come), [`sweep`] (what goes, and when), [`reader_limits`] (who comes too often) and [`table`]
//! with [`store`] (what is stored, and the contract a store keeps for it).
//!
//! Invariants: cursors of a room only grow, over all kinds of events, whatever the clock does and however often the server
//! starts, and none is given twice. Nobody is shown an event while one with a lower cursor may still come. Only who
//! leads and took over last writes. Nothing that is committed after a member was removed reaches it.
//! Not here: SSE, WebSocket, status codes (`api`); records and their order (`engine::log`).

mod active;
mod caches;
mod clock_guard;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod counts;
pub mod cursor;
mod error;
pub mod event;
pub mod generator;
mod idempotency;
pub mod journal;
mod leases;
pub mod members;
mod ownership;
pub mod read;
pub mod reader_limits;
mod registry;
mod rooms;
pub mod seen;
pub mod store;
pub mod sweep;
pub mod table;
pub mod write;

pub use cursor::{Cursor, InvalidCursor};
pub use error::RoomError;
pub use event::{BadEvent, Event, Kind, NewEvent};
pub use leases::MembershipLease;
pub use members::{Member, Members};
pub use read::Bounds;
pub use reader_limits::{ReaderKey, ReaderLimits, ReaderPermit};
pub use rooms::{Capacity, Options, Room, Rooms};
pub use seen::SeenCursors;
pub use store::Store;
pub use sweep::Swept;
pub use table::{Change, Declined, Table};
pub use write::Written;
