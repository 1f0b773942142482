//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

mod connections;
mod http;
mod preface;
pub mod serve;
mod tls;
mod usage;

pub use connections::ConnectionOptions;
pub use serve::{LimitOptions, ObserveOptions, Server, ServerOptions, StartError, StoreChoice};
pub use tls::{TlsError, TlsOptions};
