//! The durable follower: delivers the records between the stored cursor of a source and its tail, across failures and
//! restarts.
//!
//! A source is a log, and its cursor is a row in a capability's tables. The backlog of a source is derived from both,
//! so a restart loses nothing. One task delivers all sources of a capability:
//!
//! 1. The [`Follower`] tracks which sources may have a backlog. A writer that leaves records to it calls
//!    [`Follower::notify`]. At its start, and on each [`Follower::look_for_more`], it asks [`Work::backlog`].
//! 2. It takes sources in FIFO order, several concurrently, and delivers one batch of each ([`Work::step`]). A source
//!    with more records goes to the end of the queue. A source that fails is tried again after a delay.
//! 3. A batch is computed from the cursor ([`Work::next`], with [`read_extent`]) and delivered by commits that move the
//!    cursor as a compare-and-set ([`advance`]). When a commit loses a race, none of it takes effect and the batch is
//!    computed again.
//!
//! Read [`work`] (what a capability implements), then [`follower`] (the loop), [`extent`] and [`cursor`] (building
//! blocks of an implementation).
//!
//! Not here: subscribers, the layout of cursors and metrics of deliveries. These belong to the capability.

mod backlog;
mod backoff;
pub mod cursor;
pub mod extent;
pub mod follower;
#[cfg(test)]
mod tests;
pub mod work;

pub use cursor::{MovesCursor, advance};
pub use extent::{Extent, read_extent};
pub use follower::Follower;
pub use work::{Delivered, Left, Work};
