//! WebSockets (RFC 6455), the server's side, without a socket: bytes in, events and bytes out.
//!
//! Read [`handshake`] (may this request become a WebSocket, and the answer that says so), then [`Connection`],
//! which joins the rest: [`frame`] (headers and masks), [`message`] (fragments and text), [`close`] (codes and
//! the closing handshake), [`keep_alive`] (is somebody there).
//!
//! Invariants: whatever a peer sends, in whatever pieces, nothing panics, memory stays below [`Limits`], and
//! what is owed in answer is at most one pong and one close frame. A connection on which nothing is half
//! received holds no buffer. No extensions, so no reserved bits.
//!
//! Not here: sockets, timers and tasks (whoever transports), and what messages mean (a capability's file).

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
pub use connection::{Connection, Event, Tick, Why};
pub use frame::Opcode;
pub use handshake::Upgrade;
pub use keep_alive::Patience;
pub use limits::Limits;
pub use message::Text;
pub use violation::Violation;
