//! The store in memory keeps the log contract.

use std::sync::Arc;

use tidings_engine::log::Memory;
use tidings_engine::log::contract::Notes;
use tidings_engine::{Bus, WallClock};

async fn empty() -> Memory<Notes> {
    Memory::new(Bus::new(), Arc::new(WallClock))
}

tidings_engine::log_contract!(empty);
tidings_engine::rows_contract!(empty);
