//! What a user of the server sees, a file per promise.

mod access;
mod client;
mod command_line;
mod compression;
mod conformance;
mod durability;
mod limits;
mod listing;
mod live;
mod names;
mod retention;
mod sockets;
mod streams;
mod tour;
