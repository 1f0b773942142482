//! What a user of the server sees, a file per promise.

mod access;
mod client;
mod command_line;
mod commands;
mod config;
mod conformance;
mod durability;
mod limits;
mod live;
mod names;
mod project_commands;
mod streams;
mod tour;
