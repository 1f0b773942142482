//! Hooks: subscriptions to patterns of events, and the events that come in.

mod api;

pub use api::*;

mod claims;
mod examples;
mod hearing;
mod ingest;
mod letters;
mod project;
mod records;
mod secrets;
mod subscriptions;
mod tenancy;
mod validation;
