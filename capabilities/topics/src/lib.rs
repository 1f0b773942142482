//! Topics: live publish and subscribe by name. A connection holds a set of topics and hears what is published under
//! them from then on. Only topics with a history store anything.
//!
//! Read [`Hub`] (a driver, rules and a policy) and [`Topics`] (what a connection can do), then `operation` (the steps of a
//! change) with `queue` (whose turn it is) and `underway` (what is pending), `publish`, [`driver`] (the contract of
//! drivers) with [`memory`], [`local`] and [`bus`], and [`policy`]; [`history`] with [`table`] and `replay` for topics that keep
//! what is published.
//!
//! Invariants: what is in the set was accepted by the driver. Operations on one topic are made in the order in which
//! they arrived. An operation that changes nothing has no effect at all. A batch is made as a whole or not at all; if the
//! driver cannot take something back, the error says so. Nothing of a closed connection is left, and nobody waits for it.
//!
//! What it gives an application, with an example: `docs/topics.md`. Not here: WebSocket, HTTP, tokens (`api`); rings
//! and cursors (`engine::deliver`).

mod abort;
mod answer;
pub mod bus;
mod change;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod crowd;
mod draft;
pub mod driver;
mod envelope;
mod error;
pub mod history;
mod hooks;
mod hub;
mod inner;
pub mod local;
pub mod memory;
mod message;
mod nodes;
mod operation;
mod options;
mod parcel;
mod places;
pub mod policy;
pub mod presence;
mod publish;
mod queue;
mod replay;
mod result;
pub mod router;
mod state;
pub mod store;
pub mod table;
mod topic;
mod topics;
mod typed;
mod underway;

pub use answer::Answer;
pub use bus::{BusConsumer, BusDriver, BusOptions};
pub use change::{Begins, Change, Held};
pub use draft::Draft;
pub use driver::{
    BrokerConsumer, Consumption, Count, Deliver, DriverError, Handover, PubSubDriver, Route, Verification,
};
pub use envelope::{KIND_LENGTH, Payload, PublishEnvelope, RESERVED_META};
pub use error::{
    AbortReason, Aborted, AclDetails, Cause, ErrorDetails, MutateError, PubSubError, PubSubErrorCode,
};
pub use history::{Histories, History, HistoryError, HistoryPage, HistoryState, Position, Since};
pub use hooks::TopicHooks;
pub use hub::{CountError, Hub, TopicCount};
pub use local::{Encode, EncodeError, JsonText, Local, Member};
pub use memory::MemoryDriver;
pub use message::{Invalid, Message};
pub use options::{
    MutateOptions, PresenceInfo, PublishOptions, SettleOptions, Verify, VerifyMode, VerifyOptions, WaitFor,
};
pub use policy::{
    Action, AllowAll, ClientId, Connection, Decision, Denial, DenialKind, ObserverError, Policy, Removal,
};
pub use presence::{Announce, Passing, Presence, Present, PresentMember};
pub use result::{Capability, PublishError, PublishFailure, PublishResult, Sent};
pub use state::LocalStatus;
pub use store::Store;
pub use table::Table;
pub use tokio_util::sync::CancellationToken;
pub use topic::{InvalidTopicPattern, Keep, TopicRule, TopicRules, is_pattern};
pub use topics::{Topics, Verified};
pub use typed::TypedTopic;

/// The example of the page on topics is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/topics.md")]
mod page {}
