//! Hooks: call an endpoint for every event whose type matches a pattern.
//!
//! Publishing never waits for an endpoint. An event is stored once; the queue of each hook that hears it gets a reference
//! in the same commit, and a dispatcher works through the queues. Read [`Hooks`] (the handle), then [`hook`] with
//! [`pattern`] and [`filter`] (what an owner chooses), [`event`] (what is stored and sent), [`ingest`] and `journal` (how
//! events come in: from outside, and from other capabilities), `matchers` (who hears them), `follow` (matching what was
//! left to later) and `replay`; then `dispatch` (deliveries, retries, destinations) with [`retry`], [`signature`] and
//! [`delivery`]; `manage`, [`history`] and [`pull`] (what owners do and see); [`maintenance`] (what goes, and when); [`table`] with
//! [`rows`] and [`store`] (what is stored).
//!
//! Invariants: an event that was accepted is delivered at least once to every hook that was active and matched it, or is
//! among its dead letters. A delivery keeps its id over all attempts and restarts. One writer, the dispatcher, records what
//! came of deliveries.
//! Not here: routes and status codes (`api`), sockets and which addresses may be called (`egress`).

#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod counts;
pub mod delivery;
mod dispatch;
mod error;
pub mod event;
pub mod filter;
mod follow;
pub mod history;
pub mod hook;
mod hooks;
mod in_flight_ids;
pub mod ingest;
mod ingest_limits;
mod journal;
pub mod maintenance;
pub mod manage;
mod matchers;
pub mod options;
pub mod pattern;
mod paused;
pub mod pull;
pub mod replay;
pub mod retry;
pub mod rows;
pub mod signature;
pub mod store;
pub mod table;

pub use delivery::{Attempt, AttemptOutcome, DeadLetter, DeathReason, DeliveryId, DeliveryStatus, IdMask};
pub use error::HookError;
pub use event::Event;
pub use filter::{Filter, InvalidFilter};
pub use hook::{Format, Hook, HookId, HookState, InvalidSettings, Ordering, Settings};
pub use hooks::{Call, Handler, Hooks, Parts, Randomness, Sources};
pub use options::Options;
pub use pattern::InvalidHookPattern;
pub use signature::{Secret, Secrets};
pub use store::{Found, Store};
pub use table::{Change, Declined, Table};
