//! Authentication and authorisation: projects and their keys, tokens, and the rights they grant.
//!
//! Read [`principal`] (an actor, and [`Principal::may`], the one place that decides), [`token`] (HS256 and
//! nothing else), [`topics`] and [`entities`] (rights on topics and entities), [`key`] (signing keys and what is derived from them), [`api_key`] (API keys of the
//! configuration), [`table`] (what is stored about projects, and the contract a store keeps for it), [`revocation`] (tokens that count no more), [`exchange`] (how nodes tell each other), [`projects`] (the handle), then [`gate`] and [`pass`]:
//! the gate checks a request once and issues a pass, which answers at any time, cheaply, whether it is still
//! valid.
//!
//! Invariants: a secret never appears in `Debug` output or in an error message. Secrets are compared in
//! constant time. A claim that is not understood grants nothing.
//! Not here: headers, queries and status codes (`api`), the source of randomness (`server`).

pub mod api_key;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
pub mod entities;
mod exchange;
pub mod gate;
pub mod key;
pub mod pass;
pub mod principal;
pub mod projects;
mod registry;
pub mod revocation;
pub mod table;
pub mod token;
pub mod topics;

pub use api_key::{ApiKey, InvalidApiKey};
pub use entities::{Segments, WantedEntities};
pub use exchange::Exchange;
pub use gate::{Admission, Allowed, Authorize, Credential, Denied, Gate, Route};
pub use key::{AdminDigest, AdminKey, InvalidKey, Key, Kid, Randomness};
pub use pass::{Lapse, Pass};
pub use principal::{Action, Grants, Principal, Reach, Resource, Resources, Scope};
pub use projects::{Given, Listed, NewKey, ProjectError, Projects};
pub use revocation::{Revocation, Subject};
pub use table::{Change, Config, Declined, InvalidConfig, LastKey, Project, ProjectState, Store, Table};
pub use token::{Claims, InvalidToken};
pub use topics::{RefusalKind, RefusalReason, TopicGrants, TopicRefusal, Wanted};
