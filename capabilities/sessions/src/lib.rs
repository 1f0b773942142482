//! Sessions: streams that are filled from the streams a session subscribes to.
//!
//! A publisher writes a record once, to a source. Each session that subscribes to the source gets a reference to the
//! record in its own stream, which its client reads like any stream. Read [`Sessions`] (the handle), then the
//! operations: [`subscribe`] (and unsubscribe), [`publish`] (append and fan out), [`follow`] (deliver what a publish
//! left for later) and [`life`] (describe, touch, delete, expire); then [`breaker`] (stops inline fan-out that keeps
//! failing) and [`table`] (the stored state, and the contract of a store).
//!
//! Invariants: the references to a record and the fan-out progress of its source change in one commit, so nothing is
//! delivered twice and nothing is lost. Records are delivered in order: while the follower has a backlog for a source,
//! every new record of that source is delivered by the follower. A session, its stream and its subscriptions end in one
//! commit.
//! Not here: headers, status codes and the encoding of envelopes (`api`); records and their order (`engine::log`).

pub mod breaker;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod error;
mod events;
pub mod follow;
pub mod life;
pub mod publish;
mod sessions;
pub mod subscribe;
pub mod table;
mod targets;

pub use error::SessionError;
pub use follow::Undelivered;
pub use life::{CleanedUp, Described};
pub use publish::{Fanout, Mode, Published};
pub use sessions::{Options, Sessions};
pub use subscribe::{SubscribeRequest, Subscribed};
pub use table::{Change, Declined, Session, Source, Store, Subscription, Table};
pub use targets::Targets;
