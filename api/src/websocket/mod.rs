//! WebSockets (RFC 6455), the server's side, without I/O: bytes in, events and bytes out.
//!
//! Read [`handshake`] (validates the request and builds the answer), then [`Connection`], which combines the
//! rest: [`frame`] (headers and masks), [`message`] (fragments and text), [`close`] (codes and the closing
//! handshake), [`keep_alive`] (pings and time limits).
//!
//! Invariants: whatever a peer sends, in whatever pieces, nothing panics, memory stays below [`Limits`], and
//! the pending output is at most one pong, one ping and one close frame. A connection without a partial
//! message holds no buffer. There are no extensions, so no reserved bits.
//!
//! Not here: sockets, timers and tasks (`live`), and what messages mean (the file of a capability).

pub mod close;
mod connection;
pub mod frame;
pub mod handshake;
pub mod keep_alive;
mod limits;
mod mask;
pub mod message;
#[cfg(test)]
mod tests;
mod violation;

pub use close::{Close, Code};
pub use connection::{Connection, EndReason, Event, Tick};
pub use frame::Opcode;
pub use handshake::{Upgrade, is_asked_for};
pub use keep_alive::Timeouts;
pub use limits::Limits;
pub use message::Text;
pub use violation::Violation;
