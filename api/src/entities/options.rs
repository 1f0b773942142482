//! Options of the sockets of entities.

use std::time::Duration;

use tidings_model::limits;

/// Options of the sockets of entities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityOptions {
    /// Interval of pings to a client that sends nothing. One that is silent for twice as long is disconnected.
    /// Default: 15 s.
    pub heartbeat: Duration,
    /// Time for which a client may take nothing of what is sent before it is disconnected. Default: 60 s.
    pub stall_limit: Duration,
    /// Time from the expiry of a client's token until its connection is closed. Default: 10 s.
    pub token_grace: Duration,
    /// Maximum number of ids in one message. Default: 10,000.
    pub max_ids_per_subscribe: usize,
}

impl Default for EntityOptions {
    fn default() -> Self {
        Self {
            heartbeat: limits::ENTITY_HEARTBEAT,
            stall_limit: limits::ENTITY_STALL,
            token_grace: limits::ENTITY_TOKEN_GRACE,
            max_ids_per_subscribe: limits::ENTITY_IDS_PER_SUBSCRIBE,
        }
    }
}
