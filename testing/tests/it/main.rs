//! What a user of the server sees, a file per promise.

mod client;
mod command_line;
mod commands;
mod config;
mod conformance;
mod durability;
mod limits;
mod live;
mod names;
mod streams;
mod tour;
