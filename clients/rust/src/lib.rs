//! The reference client of tidings. It stands on the wire alone: nothing of the server is in it.
//!
//! [`rooms`] follows a room over server-sent events or a WebSocket and comes back by itself, without a gap, whatever
//! happens in between. Begin with [`rooms::Client`]. [`sse`] reads server-sent events. Time and chance are a [`Clock`] and a
//! [`Chance`] that are given, so that a test can hold both still.

mod chance;
mod clock;
pub mod rooms;
pub mod sse;

pub use chance::{Chance, SystemChance};
pub use clock::{Clock, SystemClock};
