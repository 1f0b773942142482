//! The contract of the bus, over each broker.

use std::sync::Arc;
use std::time::Duration;

use tidings_broker::{BrokerBus, Context, Options};
use tidings_engine::bus::contract::Buses;
use tidings_engine::bus::messages::MessageBus;
use tidings_engine::{Metrics, Rng, WallClock};
use tidings_testing::brokers::{BrokerKind, BrokerServer};

/// What a bus is given in tests. The seed makes two buses differ in their pauses.
pub fn context(seed: u64) -> Context {
    Context { clock: Arc::new(WallClock), rng: Arc::new(Rng::seeded(seed)), metrics: Metrics::new() }
}

/// Limits of a bus that notices faults soon.
pub fn quick() -> Options {
    Options {
        answer_timeout: Duration::from_millis(500),
        connect_timeout: Duration::from_millis(500),
        ping_after: Duration::from_millis(300),
        pause_min: Duration::from_millis(10),
        pause_max: Duration::from_millis(50),
        ..Options::default()
    }
}

/// A bus over the broker at a URL, which may be away.
pub fn bus(url: &str, options: Options, seed: u64) -> Arc<BrokerBus> {
    Arc::new(tidings_server::bus::connect(url, options, context(seed)).expect("a URL of a broker"))
}

async fn buses(kind: BrokerKind) -> Buses {
    let server = BrokerServer::start(kind).await;
    let mut buses: Vec<Arc<dyn MessageBus>> = Vec::new();
    for seed in 0..2 {
        let bus = bus(&server.url(), Options::default(), seed);
        assert!(bus.attempted().await, "it is connected");
        buses.push(bus);
    }
    let message_bytes_max = match kind {
        BrokerKind::Redis => 8 << 20,
        BrokerKind::Nats => 1 << 20,
        BrokerKind::Postgres => 5900,
    };
    let two = buses.remove(1);
    Buses { one: buses.remove(0), two, message_bytes_max, guard: Box::new(server) }
}

mod redis {
    use super::*;

    tidings_engine::bus_contract!(|| buses(BrokerKind::Redis));
}

mod nats {
    use super::*;

    tidings_engine::bus_contract!(|| buses(BrokerKind::Nats));
}

mod postgres {
    use super::*;

    tidings_engine::bus_contract!(|| buses(BrokerKind::Postgres));
}
