//! The log contract: many logs, one atomic durable commit.
//!
//! A [`Commit`] carries any number of operations on any number of logs, with the conditions they rest on,
//! a capability's own changes, and changes of cold rows. A store promises of it:
//!
//! 1. **All or nothing.** Either every operation and change of the commit holds, or none does.
//! 2. **Acknowledged = durable.** `commit` returns `Ok` only when the commit survives a power cut.
//! 3. **Visible after durable.** No read shows what could still be lost.
//! 4. **Validated in order.** Conditions are validated against all commits before this one, durable or pending. A
//!    refusal that rests on a pending commit is told only when that commit is durable.
//! 5. **Positions grow.** Records of a log are read in the order of their positions, each once; a position
//!    is never given twice, not even after records or logs are gone.
//! 6. **Payloads are stored once.** A reference shares the payload of the record it refers to and outlives
//!    that record and its log.
//! 7. **Whoever listens is woken**, after a commit is visible, for each log that it touched.
//! 8. **A log knows what it took.** Its status counts the records ever appended and the bytes of their payloads,
//!    references like others, and trimming takes nothing away from that.
//! 9. **Observers are told what is applied**, in the order of commits, when it is durable and before anybody sees it or is
//!    answered.
//! 10. **Cold rows are written blindly.** A commit is never refused for what its changes of rows find. They take effect in
//!     the order of commits, and within a commit in their order, and are visible exactly when the commit is.
//!
//! Read [`commit`] (what can be asked), [`state`] and [`plan`] (how it is validated; pure), [`store`] (the traits),
//! [`observe`] (how caches follow tables), [`rows`] (table rows that are too many for memory), then [`memory`], the implementation that tests run on, and [`snapshot`], how tables
//! are written down while they change. `contract` is the suite every store runs, and `fixture` what
//! the suites of capabilities run on.
//!
//! Not here: names of logs. A log is a number; its name and who may use it are up to a capability.

pub mod commit;
#[cfg(feature = "contract-suite")]
pub mod contract;
#[cfg(feature = "contract-suite")]
pub mod fixture;
pub mod memory;
pub mod observe;
pub mod plan;
pub mod record;
pub mod rows;
pub mod snapshot;
pub mod state;
pub mod store;

pub use commit::{
    Append, Appended, Commit, Committed, Conditions, Of, Operation, Outcome, Positions, Refer, Referred, Then,
};
pub use memory::Memory;
pub use observe::{ChangeFeed, Observer, Observers};
pub use record::{Boundary, LogTotals, Origin, Page, Record, Span, Status};
pub use rows::{Row, RowChange, RowSpan, RowTable, Rows};
pub use snapshot::{BeforeImages, SnapshotMap, Snapshots};
pub use state::{LogParts, LogState, ProducerRefusal, Refusal, Validated};
pub use store::{
    Change, CommitError, Commits, HasTable, Logs, ReadError, ReadsTable, Refused, StandsOn, StateMachine,
    StoreError,
};
