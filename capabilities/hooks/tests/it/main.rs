//! What hooks promise, a file per promise, on a store in memory and with a clock that moves only when told.

mod cleaning;
mod ingesting;
mod journals;
mod managing;
mod replaying;
mod scene;
