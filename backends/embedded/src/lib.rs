//! The embedded store: all logs and tables in the files of one folder.
//!
//! A commit is acknowledged when its frame is in the write-ahead log. A frame is one atomic commit and holds
//! every change of it: records, references and rows of the capabilities' tables. Recent commits are also kept
//! in memory (the *memtable*). A full memtable is written as an immutable *segment*, sorted by log and
//! position, together with a *checkpoint* of the logs and tables; the files of the write-ahead log are then
//! reused. Cold rows of tables go the same way, from the memtable into files of their own.
//!
//! Read [`store`] (the handle), `committer` (the one thread that commits), [`frame`] and [`wal`] (the
//! write-ahead log), [`state`] (what is in memory), [`segment`] (records on disk), [`checkpoint`] (recovery),
//! `flush` and `merge` (which write segments), [`rows`] (cold rows), then [`disk`] (all access to files; `simulation` is a disk for
//! tests).
//!
//! Invariants: nothing is visible or acknowledged before its frame is synced. A file is removed only after a
//! manifest that does not name it is durable. A failed write or sync stops the store, because what the disk
//! holds is known again only after a restart.

pub mod checkpoint;
pub mod codec;
mod committer;
pub mod disk;
mod entities;
mod error;
pub mod field;
mod files;
mod flush;
mod folder;
pub mod frame;
mod hooks;
mod job;
mod lock;
pub mod log_map;
mod maintenance;
mod merge;
mod metrics;
mod projects;
mod rooms;
pub mod rows;
pub mod segment;
pub(crate) mod segment_shared;
pub mod segment_writer;
mod sessions;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod state;
pub mod store;
pub mod stored_state;
mod streams;
mod subscriptions;
pub mod tools;
mod topics;
pub mod wal;

pub use disk::{Disk, DiskFile, Folder};
pub use error::OpenError;
pub use lock::DirectoryLock;
pub use store::{Embedded, Failure, Gather, Options};
pub use stored_state::{Access, StoredBase, StoredState};
