//! The harness: a real server and what a test does with it.
//!
//! [`Harness`] runs the server in the test's own process on a free port, by default with a clock that moves only
//! when told. [`Process`] runs the real binary, to be killed and started again. [`node`] runs programs written for
//! Node against either. [`coverage`] checks the pages that say which test shows which requirement.

pub mod coverage;
mod harness;
pub mod http;
pub mod node;
mod process;
pub mod sse;

pub use harness::{ADMIN_KEY, Doors, Harness, SLEEPERS, Setup, TestStore, eventually, until};
pub use process::{Exit, Launch, Process, binary};
