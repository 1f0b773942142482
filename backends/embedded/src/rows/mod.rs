//! Cold rows: table rows that are too many for memory.
//!
//! Rows lie in *layers*, one above the other: that of the current memtable, those of memtables on their way to the disk, and
//! files, oldest last. A layer has what a stretch of commits did: rows written and deleted, and *floors*, which are ranges of
//! keys that were cleared. A key is looked up from the newest layer to the oldest. An entry of a layer counts above the
//! floors of the same layer, and a floor hides all layers below. So nothing needs a sequence number.
//!
//! In this folder a key begins with the number of its table, so that all tables are one sequence of keys.
//!
//! Read [`change`] (how a commit carries changes of rows), [`layer`] (a layer in memory), [`file`] (the format of a layer on
//! disk, with [`page`], [`filter`] and [`writer`]), [`read`] (reading through all layers), then [`merge`].

pub mod change;
pub mod file;
mod filter;
pub mod layer;
pub(crate) mod merge;
mod page;
pub mod ranges;
pub(crate) mod read;
pub mod writer;

pub use change::{RowWrite, RowWrites};
pub use file::{FOLDER, RowFile, RowFileName, RowFiles};
pub use layer::RowLayer;
