//! A driver that delivers and does not know to how many, and that cannot leave anybody out.

use std::sync::Arc;

use serde_json::json;
use tidings_engine::deliver::BundleReader;
use tidings_topics::{
    AllowAll, Answer, Capability, ClientId, Count, DriverError, Handover, Member, MemoryDriver, PubSubDriver,
    PublishEnvelope, PublishError, PublishFailure, PublishOptions, Route, Sent, TopicRules,
};

use crate::support::*;

struct Blind(MemoryDriver);

impl PubSubDriver for Blind {
    fn name(&self) -> &'static str {
        "blind"
    }

    fn capability(&self) -> Capability {
        Capability::Unknown
    }

    fn connect(&self, client_id: ClientId) -> (Member, BundleReader) {
        self.0.connect(client_id)
    }

    fn subscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<Handover, DriverError>> {
        self.0.subscribe(member, topic)
    }

    fn unsubscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<(), DriverError>> {
        self.0.unsubscribe(member, topic)
    }

    fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
    ) -> Answer<'a, Result<Sent, PublishFailure>> {
        if route.exclude.is_some() {
            let failure = PublishFailure::new(PublishError::Unsupported).with("feature", "excludeSelf");
            return Answer::now(Err(failure.by(self.name())));
        }
        let sent = now(self.0.publish(envelope, route));
        Answer::now(sent.map(|_| Sent::unknown()))
    }

    fn local_subscribers(&self, topic: &str) -> Vec<ClientId> {
        self.0.local_subscribers(topic)
    }

    fn deliver_local(&self, envelope: &PublishEnvelope) -> usize {
        self.0.deliver_local(envelope)
    }

    fn count<'a>(&'a self, _: &'a str) -> Answer<'a, Result<Count, DriverError>> {
        Answer::now(Ok(Count { subscribers: 0, capability: Capability::Unknown }))
    }

    fn remove(&self, member: &Member) {
        self.0.remove(member);
    }
}

fn blind() -> World {
    with(Arc::new(Blind(MemoryDriver::new(local("")))), TopicRules::default(), Arc::new(AllowAll))
}

#[tokio::test]
async fn a_publish_whose_number_is_unknown_tells_none() {
    let world = blind();
    let mut client = world.client("a");
    client.subscribes("t");
    for topic in ["t", "nobody"] {
        let sent = world.publishes(topic, "x");
        assert_eq!(sent.matched(), None, "0 does not stand for unknown");
        assert_eq!(sent.to_json(), json!({ "ok": true, "capability": "unknown" }));
    }
    assert_eq!(client.hears(1).await, ["x"]);
    assert_eq!(now(world.hub.count("t")).expect("a count").count.capability, Capability::Unknown);
}

#[tokio::test]
async fn an_option_that_the_driver_does_not_have_is_named_and_nothing_is_sent() {
    let world = blind();
    let mut client = world.client("a");
    client.subscribes("t");
    let exclude_self = PublishOptions { exclude_self: true, ..PublishOptions::default() };
    let failed = now(client.topics.publish(message("t", "x"), exclude_self)).to_json();
    let expected = json!({
        "ok": false, "error": "UNSUPPORTED", "retryable": false, "adapter": "blind",
        "details": { "feature": "excludeSelf" },
    });
    assert_eq!(failed, expected);
    assert!(client.publishes("t", "y").is_ok());
    assert_eq!(client.hears(1).await, ["y"]);
}
