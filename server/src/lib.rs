//! The server as a part: wiring, sockets and the end of both. The binary adds flags and signals.

pub mod bus;
mod capabilities;
pub mod catalog;
pub mod config;
mod connections;
pub mod descriptors;
pub mod duration;
mod duties;
mod early;
mod http;
pub mod options;
mod pool;
mod preface;
mod progress;
pub mod projects;
pub mod serve;
mod store;
mod tls;
mod usage;

pub use bus::BusUrl;
pub use capabilities::entities::{AuthorizeOptions, DatabaseUrl, EntityOptions, Mode, SourceOptions};
pub use capabilities::hooks::HookOptions;
pub use capabilities::{CapabilityError, Options as CapabilityOptions};
pub use catalog::Catalog;
pub use config::Config;
pub use connections::ConnectionOptions;
pub use duties::Duty;
pub use options::{LimitOptions, ObserveOptions, TlsOptions};
pub use projects::{StoredProjects, SystemRandomness};
pub use serve::{Access, Server, ServerOptions, StartError};
pub use store::StoreChoice;
pub use tidings_api::TopicOptions;
pub use tls::TlsError;
