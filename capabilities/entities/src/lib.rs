//! Entities: whoever watches rows of a database is told when they changed, and fetches them again.
//!
//! Read [`entity`] (names), [`change`] (what is told) and [`cursor`], then the contracts that a backend may bring:
//! [`source`] (where changes come from), [`authorize`] (who may watch what), [`registry`] (a table of who watches what) and
//! [`relay`] (which node tells hooks). Then [`Entities`] (the handle), [`project`] (connections and changes of a project),
//! [`watch`], [`subscribe`] and [`answer`] (what a connection asks for), `hub` with `index` and `hold` (who hears what),
//! `reader` (from the source to the hub), [`told`] (from the hub to a connection), `replay` with `floors` (what a connection has missed),
//! `review` with `leave` (access that changes), `relaying` with [`events`] (hooks), and last [`change_log`] with [`table`],
//! [`store`] and [`retention`]: the source where there is no database.
//!
//! Invariants: a change that is committed after a subscribe was answered is told. Of an entity, no version is told after a
//! higher one. What waits for a connection is bounded by what it watches. Nothing is told of an entity while it is not known
//! that its user may hear of it.
//! Not here: WebSocket, HTTP, tokens (`api`); SQL (`backends/postgres`).

pub mod answer;
pub mod authorize;
pub mod change;
pub mod change_log;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
mod counts;
pub mod cursor;
pub mod entities;
pub mod entity;
pub mod events;
mod floors;
mod hold;
mod hub;
mod index;
mod leave;
pub mod project;
mod reader;
pub mod registry;
pub mod relay;
mod relaying;
mod replay;
pub mod retention;
mod review;
pub mod source;
pub mod store;
pub mod subscribe;
pub mod table;
pub mod told;
pub mod watch;

pub use answer::{Answer, Subscribed, Unsubscribed};
pub use authorize::{Allowed, Authorize, AuthorizeError, Question, Subject};
pub use change::{Action, Change, Entry, NewChange, Reason};
pub use change_log::ChangeLog;
pub use cursor::{Cursor, InvalidCursor};
pub use entities::{Backing, Entities, Failing, Options, Parts, SourceState};
pub use entity::{EntityCode, EntityId, IdForm, InvalidCode, InvalidEntityId};
pub use project::{Closing, Connect, ConnectError, Granted, Project, PublishError, Takeover};
pub use registry::{ConnectionId, NoRegistry, Noted, Registry, TypeStats};
pub use relay::{Claim, Relay};
pub use source::{Published, Read, ResyncReason, Source, SourceError};
pub use store::Store;
pub use subscribe::SubscribeError;
pub use table::Table;
pub use told::{Encode, Told};
pub use watch::Watch;
