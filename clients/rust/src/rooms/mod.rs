//! Follows a room, over server-sent events or a WebSocket.
//!
//! [`Client::run`] is the loop: connect at the stored cursor, pass each event to the [`Handler`], store its
//! cursor, and when the stream ends, wait and connect again. Read it first (`client.rs`), then `retry.rs`,
//! which decides how long to wait and when to stop, `event.rs` for the messages, `stream.rs` and
//! `connection.rs` for the transport.
//!
//! Invariant: each event after the stored cursor is handled at least once, in order and one at a time; twice
//! only if the process ends, or storing fails, between handling it and storing its cursor. If events are no
//! longer available, the handler is told ([`Handler::skipped`]).

mod client;
mod connection;
mod credential;
mod cursor;
mod event;
mod handler;
mod last_seen;
mod recent;
mod retry;
mod stopped;
mod stream;
mod target;

pub use client::Client;
pub use credential::{Credential, NoCredential, Token};
pub use cursor::{BadCursor, Cursor};
pub use event::{Event, Info, Kind, Reason};
pub use handler::{BackoffReason, ConnectionState, Handler, MissedEvents};
pub use last_seen::{InFile, InMemory, LastSeen};
pub use stopped::{Refusal, Stopped};
pub use target::{BadTarget, Target, Wire};

/// Maximum bytes of an event. The server's default limit for a payload is 16 KiB.
pub const EVENT_BYTES: usize = 1 << 20;
/// Bytes of an error response's body that are read.
pub const REFUSAL_BYTES: usize = 64 << 10;
/// Cursors that are remembered to recognize duplicates.
pub const RECENT_CURSORS: usize = 1024;
