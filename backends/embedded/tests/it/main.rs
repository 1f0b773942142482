//! Tests of what the embedded store promises, a file per promise.

mod book;
mod capability_contracts;
mod cold_rows;
mod contract;
mod crash;
mod damage;
mod entities;
mod files;
mod memory;
mod retention;
mod rooms;
mod row_model;
mod row_space;
mod rows_contract;
mod space;
mod subscription_tables;
mod upkeep;
