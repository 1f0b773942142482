//! The dispatcher on a store in memory, with a clock that moves only when told and endpoints that answer as told.

mod attempts;
mod limits;
mod ordering;
mod retries;
mod states;
mod trouble;
mod world;
