//! Sessions: streams that fill themselves from the streams a session subscribes to.
//!
//! Whoever publishes writes a record once, to a source. Each session that subscribes to it gets a reference to the record
//! in its own stream, which its client reads as any stream. Read [`Sessions`] (the handle), then the verbs: [`subscribe`]
//! with its opposite, [`publish`] (append and fan out), [`follow`] (what a publish leaves to later) and [`life`] (look,
//! touch, delete, expire); then [`breaker`] (when a publish leaves it to later because it keeps failing) and [`table`]
//! (what is stored, and the contract a store keeps for it).
//!
//! Invariants: a record's references and the progress of its source's fan-out are one commit, so that nothing is delivered
//! twice and nothing is lost. Nothing overtakes: while the follower has something left of a source, all that comes to it
//! is the follower's. A session, its stream and its subscriptions end in one commit.
//! Not here: headers, status codes, envelopes as they are written (`api`); records and their order (`engine::log`).

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
