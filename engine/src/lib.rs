//! The engine: logs, commits, wake-ups and live delivery, independent of any capability.
//!
//! Read [`log`] first (many logs, one atomic durable commit), then [`follow`] (delivery in the background
//! from stored cursors), [`journal`] (one log of all events of a project), [`bus`] (who is woken when), [`deliver`]
//! (encoded once, heard by all who are connected), [`matching`]
//! (patterns to subscribers), [`duty`] (work that one node does alone), [`detach_on_drop`] (writes that outlive their
//! request), [`clock`], [`rng`] and [`metrics`].
//!
//! Not here: HTTP, SQL, file formats, and the words stream, session, topic, hook, entity and room.

pub mod bus;
pub mod clock;
pub mod deliver;
pub mod detach_on_drop;
pub mod duty;
pub mod follow;
pub mod journal;
pub mod log;
pub mod matching;
pub mod metrics;
pub mod rng;

pub use bus::{Bus, Listener};
pub use clock::{Clock, ManualClock, WallClock};
pub use detach_on_drop::DetachOnDrop;
pub use metrics::{LimitHits, Metrics};
pub use rng::Rng;
