//! What a user of the server sees, a file per promise.

mod access;
mod client;
mod command_line;
mod commands;
mod compression;
mod config;
mod conformance;
mod durability;
mod limits;
mod listing;
mod live;
mod names;
mod project_commands;
mod retention;
mod sockets;
mod streams;
mod tour;
