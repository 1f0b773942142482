//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

mod connections;
mod early;
pub mod ledger;
pub mod projects;
pub mod serve;

pub use ledger::Ledger;
pub use projects::{StoredProjects, SystemRandomness};
pub use serve::{Access, Server, ServerOptions, StartError, StoreChoice};
