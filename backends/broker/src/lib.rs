//! What message buses over a broker share.
//!
//! [`BrokerBus`] keeps the promises of `tidings_engine::bus::messages` over a connection that may end at any moment: nodes
//! and their channels, a queue with limits, time limits, connecting again, subscribing again, and telling of gaps. Read
//! `state` (what it knows), then `connection` (what it does while it is connected). A broker is a [`Broker`], which makes
//! [`Link`]s. [`Wire`] is the link of brokers that speak a [`Protocol`] over a byte stream, so that their crates have no
//! I/O of their own. [`Address`] is a URL, [`Stream`] a connection, perhaps with TLS.
//!
//! Invariants: one task owns the link. Nobody else waits for the network. No error and no log line has credentials.
//! Not here: the protocols of brokers, which have a crate each.

mod address;
mod backoff;
mod bus;
mod connection;
mod link;
mod metrics;
mod options;
mod state;
mod stream;
mod wire;

pub use address::{Address, AddressError};
pub use bus::BrokerBus;
pub use link::{Broker, Command, Event, Link};
pub use options::{Context, Options};
pub use stream::{Stream, Trust, open, secure};
pub use wire::{Protocol, Wire};
