//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

mod connections;
mod early;
pub mod serve;

pub use serve::{Server, ServerOptions, StartError, StoreChoice};
