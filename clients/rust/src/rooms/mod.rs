//! Follows a room, over server-sent events or a WebSocket.
//!
//! [`Client::run`] is the loop: connect at the stored cursor, hand each event to the [`Handler`], store its cursor, and when
//! the stream ends, wait and connect again. Read it first (`client.rs`), then `retry.rs`, which decides how long to wait and
//! when to stop, `event.rs` for what the server says, `stream.rs` and `connection.rs` for how it gets here.
//!
//! Promise: an event of the room that comes after the stored cursor is handled at least once, in order, one after the
//! other; twice only if the process ends, or the store fails, between handling it and storing its cursor. Where events could
//! not be had any more, the handler is told ([`Handler::skipped`]).

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
pub use handler::{ConnectionState, Handler, Skip, Why};
pub use last_seen::{InFile, InMemory, LastSeen};
pub use stopped::{Refusal, Stopped};
pub use target::{BadTarget, Target, Wire};

/// Bytes that one event may have. A server takes payloads of up to 16 KiB, unless it is told otherwise.
pub const EVENT_BYTES: usize = 1 << 20;
/// Bytes of a refusal's body that are read.
pub const REFUSAL_BYTES: usize = 64 << 10;
/// Cursors that are remembered, to know an event that comes again.
pub const RECENT_CURSORS: usize = 1024;
