//! What entities promise, a file per promise, on a source and an authoriser that do what a test says.

mod access;
mod changes;
mod delivering;
mod fake;
mod model;
mod relaying;
mod replaying;
mod sources;
mod subscribing;
mod threads;
mod world;
