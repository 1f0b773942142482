//! Who may do what: projects and their keys, tokens, and what they grant.
//!
//! Read [`principal`] (an actor, and [`Principal::may`], the one place that decides), [`token`] (HS256 and nothing
//! else), [`key`] (signing keys and what is derived from them), [`table`] (what is stored of projects, and the contract
//! a store keeps for it), [`projects`] (the handle), then [`gate`] and [`pass`]: a request is validated once at the gate
//! and holds a pass, which can be asked again and again, cheaply, whether it still counts.
//!
//! Invariants: a secret is never in a `Debug` output or an error's words. Secrets are compared in constant time. A
//! claim that is not understood grants nothing.
//! Not here: headers, queries and statuses (`api`), where randomness comes from (`server`).

#[cfg(any(test, feature = "contract-suite"))]
pub mod contract;
pub mod gate;
pub mod key;
pub mod pass;
pub mod principal;
pub mod projects;
mod registry;
pub mod table;
pub mod token;

pub use gate::{Admission, Allowed, Authorize, Credential, Denied, Gate, Route};
pub use key::{AdminDigest, AdminKey, InvalidKey, Key, Kid, Randomness};
pub use pass::Pass;
pub use principal::{Action, Grants, Principal, Reach, Resource, Resources, Scope};
pub use projects::{Given, Listed, NewKey, ProjectError, Projects};
pub use table::{Change, Config, Declined, InvalidConfig, LastKey, Project, ProjectState, Store, Table};
pub use token::{Claims, InvalidToken};
