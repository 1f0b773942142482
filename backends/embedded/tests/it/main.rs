//! Tests of what the embedded store promises, a file per promise.

mod book;
mod capability_contracts;
mod contract;
mod crash;
mod damage;
mod files;
mod retention;
mod rooms;
mod space;
mod upkeep;
