//! The driver of one node: all subscriptions are in its memory, and the numbers are exact.

use std::sync::Arc;

use tidings_engine::deliver::{BundleReader, FrameChunks};

use crate::answer::Answer;
use crate::driver::{Count, DriverError, Handover, PubSubDriver, Route, Verification};
use crate::envelope::PublishEnvelope;
use crate::local::{EncodeError, Local, Member};
use crate::policy::ClientId;
use crate::result::{Capability, PublishFailure, Sent};

/// A driver that knows the members of this process only. It never makes a caller wait.
#[derive(Clone)]
pub struct MemoryDriver {
    local: Local,
}

impl MemoryDriver {
    /// Creates a driver.
    pub fn new(local: Local) -> Self {
        Self { local }
    }
}

impl PubSubDriver for MemoryDriver {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capability(&self) -> Capability {
        Capability::Exact
    }

    fn connect(&self, client_id: ClientId) -> (Member, BundleReader) {
        self.local.connect(client_id)
    }

    fn subscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<Handover, DriverError>> {
        Answer::now(member.enter(topic).map(|_| Handover::Settled))
    }

    fn unsubscribe<'a>(
        &'a self,
        member: &'a Member,
        topic: &'a Arc<str>,
    ) -> Answer<'a, Result<(), DriverError>> {
        member.leave(topic);
        Answer::now(Ok(()))
    }

    fn encode(&self, envelope: &PublishEnvelope) -> Result<FrameChunks, EncodeError> {
        self.local.encode(envelope)
    }

    fn publish<'a>(
        &'a self,
        envelope: &'a PublishEnvelope,
        route: Route<'a>,
    ) -> Answer<'a, Result<Sent, PublishFailure>> {
        Answer::now(match self.local.deliver(envelope, route.exclude) {
            Ok(matched) => Ok(Sent::exact(matched as u64)),
            Err(error) => Err(error.into_failure(self.name())),
        })
    }

    fn is_subscribed<'a>(&'a self, member: &'a Member, topic: &'a str) -> Answer<'a, Verification> {
        Answer::now(if member.is_in(topic) { Verification::Subscribed } else { Verification::Unsubscribed })
    }

    fn local_subscribers(&self, topic: &str) -> Vec<ClientId> {
        self.local.clients(topic)
    }

    fn deliver_local(&self, envelope: &PublishEnvelope) -> usize {
        self.local.deliver_or_log(envelope)
    }

    fn count<'a>(&'a self, topic: &'a str) -> Answer<'a, Result<Count, DriverError>> {
        let subscribers = self.local.subscribers(topic) as u64;
        Answer::now(Ok(Count { subscribers, capability: Capability::Exact }))
    }

    fn remove(&self, member: &Member) {
        self.local.remove(member);
    }
}
