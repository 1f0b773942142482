//! The bus between nodes over real brokers, a file per kind of promise. What all brokers have to do is a test that is called
//! for each.

mod access;
mod cluster;
mod contract;
mod drivers;
mod faults;
mod revocations;
