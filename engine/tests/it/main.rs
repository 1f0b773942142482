//! What the engine promises, a file per promise.

mod matching;
mod memory;
