//! The contract of the drivers of topics, on two nodes over each broker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidings_broker::Options;
use tidings_engine::bus::messages::{Joined, MessageBus};
use tidings_engine::deliver::{Channels, Limits, Rings};
use tidings_engine::{Bus, WallClock};
use tidings_testing::brokers::{BrokerKind, BrokerServer};
use tidings_topics::contract::Nodes;
use tidings_topics::{BrokerConsumer, BusDriver, BusOptions, Deliver, JsonText, Local, PubSubDriver};

use super::contract::bus;

async fn two_nodes(kind: BrokerKind) -> Nodes {
    let server = BrokerServer::start(kind).await;
    let mut drivers: Vec<Arc<dyn PubSubDriver>> = Vec::new();
    let mut buses = Vec::new();
    for node in 0..2 {
        let bus = bus(&server.url(), Options::default(), node);
        assert!(bus.attempted().await, "it is connected");
        let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
        let local = Local::new(rings, "scope", Arc::new(JsonText), 1 << 20);
        let options = BusOptions {
            node,
            prefix: "topics/".into(),
            arrivals_bytes: 1 << 20,
            clock: Arc::new(WallClock),
            lease: Duration::from_secs(30),
        };
        let (driver, consumer) = BusDriver::join(local, bus.clone(), options);
        let driver = Arc::new(driver);
        let target = driver.clone();
        let deliver: Deliver = Arc::new(move |envelope| target.deliver_local(envelope));
        // The task runs until the test's runtime ends.
        std::mem::forget(consumer.start(deliver).await.expect("it starts"));
        drivers.push(driver);
        buses.push(bus);
    }
    // Lives as long as the drivers are tested.
    let server = Arc::new(server);
    let travelled = move || -> BoxFuture<'static, ()> {
        let (buses, server) = (buses.clone(), server.clone());
        Box::pin(async move {
            // What was published before has arrived where this arrives, since every bus has one connection.
            for from in &buses {
                for to in &buses {
                    let Joined { interest, mut arrivals } = to.join(1 << 20);
                    interest.subscribe("travelled").await.expect("a subscription");
                    from.publish("travelled", bytes::Bytes::new()).await.expect("it is sent");
                    arrivals.next().await.expect("it arrives");
                }
            }
            drop(server);
        })
    };
    Nodes { drivers, travelled: Box::new(travelled) }
}

mod redis {
    use super::*;

    tidings_topics::driver_contract!(|| two_nodes(BrokerKind::Redis));
}

mod nats {
    use super::*;

    tidings_topics::driver_contract!(|| two_nodes(BrokerKind::Nats));
}

mod postgres {
    use super::*;

    tidings_topics::driver_contract!(|| two_nodes(BrokerKind::Postgres));
}
