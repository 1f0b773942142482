//! What a user of the server sees, a file per promise.

mod access;
mod client;
mod command_line;
mod commands;
mod compression;
mod config;
mod conformance;
mod connections;
mod damage;
mod durability;
mod forks;
mod fuzz;
mod limits;
mod listing;
mod live;
mod names;
mod observe;
mod project_commands;
mod retention;
mod rooms;
mod schema;
mod sessions;
mod sockets;
mod streams;
mod tls;
mod tour;
