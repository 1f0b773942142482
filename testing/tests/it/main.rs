//! What a user of the server sees, a file per promise.

mod client;
mod command_line;
mod conformance;
mod connections;
mod durability;
mod fuzz;
mod limits;
mod live;
mod names;
mod observe;
mod schema;
mod streams;
mod tls;
mod tour;
