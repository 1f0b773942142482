//! What rooms promise, a file per promise, on a store in memory and with a clock that stands still.

mod cursors;
mod journal;
mod members;
mod producers;
mod replicas;
mod seen;
mod sweeping;
mod typing;
mod wayward;
mod world;
