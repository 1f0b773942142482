//! The durable follower: delivers what lies between the stored cursor of a source and its tail, whatever happens in between.
//!
//! A source is a log, and its cursor is a row in a capability's tables. What is left of a source is read from there, so a
//! restart loses nothing. One task works for all sources of a capability:
//!
//! 1. The [`Follower`] knows which sources may have something left. Whoever leaves something calls
//!    [`Follower::notify`]; at its start, and whenever [`Follower::look_for_more`] is called, it asks [`Work::backlog`].
//! 2. It takes sources in turn, several at a time and each by one task, and has one batch of a source delivered
//!    ([`Work::step`]). A source with more goes to the end of the line. One that fails rests for a while and is tried again.
//! 3. A batch is worked out from the cursor ([`Work::next`], with [`read_extent`]) and delivered by commits that move the
//!    cursor as a compare-and-set ([`advance`]). A commit that lost a race holds in no part, and the batch is worked
//!    out again.
//!
//! Read [`work`] (what a capability brings), then [`follower`] (the loop), [`extent`] and [`cursor`] (what work is made of).
//!
//! Not here: who the subscribers are, what a cursor looks like, how deliveries are counted. That is the capability's.

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
