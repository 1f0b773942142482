//! What streams promise, a file per promise, on a store in memory and with a clock that stands still.

mod journal;
