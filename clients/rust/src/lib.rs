//! The reference client of tidings. It stands on the wire alone: nothing of the server is in it.
//!
//! [`rooms`] follows a room over server-sent events or a WebSocket and comes back by itself, without a gap, whatever
//! happens in between. Begin with [`rooms::Client`]. [`sse`] reads server-sent events. Time and rng are a [`Clock`] and a
//! [`Rng`] that are given, so that a test can hold both still.

mod clock;
mod rng;
pub mod rooms;
pub mod sse;

pub use clock::{Clock, SystemClock};
pub use rng::{Rng, SystemChance};
