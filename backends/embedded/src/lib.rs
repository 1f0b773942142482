//! The embedded store: our own log, because it is the heart of the product.
//!
//! One write-ahead log is all that an acknowledgement waits for. Every change, a record, a reference or a row of a
//! capability's table, is an item in one frame, and a frame is one atomic commit. What was committed lately is kept in
//! memory (a *memtable*); when that is large enough it is written as an immutable *segment*, sorted by log and position,
//! together with a *checkpoint* of what is known of logs and tables, and the log's files are used again.
//!
//! Read [`store`] (the handle), `committer` (the one thread that commits), [`frame`] and [`wal`] (what is written first), [`state`]
//! (what is in memory), [`segment`] (what is written later), [`checkpoint`] (how it is found again), `flush` and `merge`
//! (who writes segments, and when), then [`disk`] (all access to files; the simulated one is in `simulation`).
//!
//! Invariants: nothing is visible or acknowledged before its frame is synced. A file is let go only after a manifest
//! that does without it is durable. A failed write or sync ends the store: what the disk has is only known again after
//! a restart.

pub mod checkpoint;
pub mod codec;
mod committer;
pub mod disk;
mod error;
pub mod field;
mod files;
mod flush;
pub mod frame;
mod lock;
pub mod log_map;
mod maintenance;
mod merge;
mod metrics;
mod projects;
mod rooms;
pub mod segment;
pub mod segment_writer;
mod sessions;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod state;
pub mod store;
pub mod stored_state;
mod streams;
pub mod tools;
pub mod wal;

pub use disk::{Disk, DiskFile, Folder};
pub use error::OpenError;
pub use lock::DirectoryLock;
pub use store::{Embedded, Failure, Gather, Options};
pub use stored_state::{Access, StoredBase, StoredState};
