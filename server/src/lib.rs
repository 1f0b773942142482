//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

pub mod config;
mod connections;
pub mod options;
pub mod serve;

pub use config::Config;
pub use serve::{Server, ServerOptions, StartError, StoreChoice};
