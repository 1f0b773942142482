//! The reference client of tidings. It depends on the wire protocol only, on no crate of the server.
//!
//! [`rooms`] follows a room over server-sent events or a WebSocket, and reconnects by itself without a gap.
//! Start with [`rooms::Client`]. [`sse`] parses server-sent events. Time and randomness come from a [`Clock`]
//! and an [`Rng`] that the caller provides, so that tests control both.

mod clock;
mod rng;
pub mod rooms;
pub mod sse;

pub use clock::{Clock, SystemClock};
pub use rng::{Rng, SystemRng};
