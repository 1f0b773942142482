//! Subscriptions: durable cursors on streams that wake a worker, as the Durable Streams protocol has them.
//!
//! A subscription is linked to streams that its owner names or that match a glob, and remembers for each how far it was
//! acknowledged. When a stream has more, it wakes a worker: by a webhook, or by an event in a stream, after which workers claim the
//! work. Each wake has a number and a lease, so that a worker that was given up is fenced off. Read [`Subscriptions`] (the
//! handle), then [`subscription`] with [`Glob`] (what owners choose, and the states of wakes), [`manage`] (what owners do),
//! [`claims`] (what workers do), [`wake`] (what workers are told), `dispatch` (who is woken when) and [`retry`]; then `pending`
//! (which streams have more), [`keys`] (signatures and tokens), and [`table`] with [`store`] (what is stored).
//!
//! Invariants: an append writes nothing here. A stream is linked by a pattern in the commit that creates it. A cursor never moves
//! backwards, and only while the wake that moves it is the current one.
//! Not here: routes and status codes (`api`), sockets and which addresses may be called (`egress`), records (`streams`).

pub mod claims;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod counts;
mod dispatch;
mod error;
mod glob;
pub mod keys;
pub mod manage;
mod pending;
pub mod retry;
pub mod store;
pub mod subscription;
mod subscriptions;
pub mod table;
pub mod wake;

pub use claims::{Claim, Report, Then, Way};
pub use error::SubscriptionError;
pub use glob::{Glob, InvalidGlob};
pub use manage::{CreateRequest, Created, Links, Selection};
pub use store::Store;
pub use subscription::{Config, Delivery, Phase, State, Subscription, SubscriptionId};
pub use subscriptions::{Options, Parts, Randomness, Subscriptions, WakeStreams};
pub use table::{Change, Declined, Linked, Table};
