//! Streams: named logs with a content type, read by offset, live or later.
//!
//! This is the stream of the Durable Streams protocol, without HTTP. Read [`Streams`] (the handle), then its
//! operations: [`create`] with forks, [`append`], [`read`], [`list`], [`delete`] with expiry; then [`journal`] (which
//! messages are events), [`retention`] (which records a stream keeps) and [`table`] (what is stored about a stream beside its
//! records, and the contract a store keeps for it).
//!
//! Invariants: a [`LogId`](tidings_model::LogId) is one incarnation of a stream, and its content type never
//! changes. The records of a stream are removed only after its last fork is gone.
//! Not here: headers, offsets as text, status codes (`api`); durability and order (`engine::log`).

pub mod append;
pub mod content;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
pub mod create;
pub mod delete;
mod error;
pub mod journal;
pub mod json_array;
pub mod list;
pub mod read;
pub mod retention;
mod streams;
pub mod table;

pub use append::{AppendRequest, Appended, Body, Freshness, Prepared};
pub use content::ContentType;
pub use create::{CreateRequest, Created, ForkRequest};
pub use delete::{Cleared, Ended, Swept};
pub use error::StreamError;
pub use list::{ListRequest, Listing};
pub use read::{Chunk, From, ReaderFormat, ReferenceRewriter};
pub use retention::{Floor, Hold, Retained, Retention};
pub use streams::{Options, Streams};
pub use table::{Change, Expiry, Fork, Found, Owner, Segment, Store, Stream, StreamKey, StreamState, Table};
