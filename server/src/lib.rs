//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

pub mod config;
mod connections;
mod early;
pub mod ledger;
pub mod options;
pub mod projects;
pub mod serve;

pub use config::Config;
pub use ledger::Ledger;
pub use projects::{StoredProjects, SystemRandomness};
pub use serve::{Access, Server, ServerOptions, StartError, StoreChoice};
