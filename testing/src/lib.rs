//! The test harness: a real server, and clients to test it with.
//!
//! [`Harness`] runs the server in the test's own process on a free port, by default with a clock that moves
//! only when told. [`Process`] runs the real binary, which can be killed and restarted. [`node`] runs Node
//! programs against either. [`postgres`] starts a private PostgreSQL, [`brokers`] starts brokers. [`coverage`] checks the
//! pages that list which test shows which requirement.

pub mod brokers;
pub mod coverage;
mod endpoint;
mod harness;
pub mod http;
pub mod node;
pub mod postgres;
mod process;
pub mod sse;

pub use endpoint::{Behaviour, Endpoint, Received};
pub use harness::{ADMIN_KEY, Doors, Harness, SLEEPERS, Setup, TestStore, eventually, until};
pub use process::{Exit, Launch, Process, binary};
