//! What a router can do beyond handling messages.

use std::sync::Arc;

use tidings_engine::Bus;
use tidings_engine::deliver::{BundleReader, Channels, Limits, Rings};

use super::Data;
use crate::hub::Hub;
use crate::local::{JsonText, Local, Member};
use crate::policy::ClientId;
use crate::topics::Topics;

/// What a router can do: [`NoPubSub`] or [`PubSub`].
pub trait Capability<D: Send + Sync + 'static>: sealed::Sealed + Clone + Send + Sync + 'static {
    /// What each connection has of it.
    type Connected: Clone + Send + Sync + 'static;

    /// Opens a connection.
    fn connect(&self, client_id: ClientId, data: Data<D>) -> (Self::Connected, Member, BundleReader);

    /// Ends what a connection has.
    fn close(connected: &Self::Connected);

    /// Forgets what was decided about a connection.
    fn invalidate(connected: &Self::Connected);
}

mod sealed {
    pub trait Sealed {}
}

/// Messages and replies only.
#[derive(Clone)]
pub struct NoPubSub {
    replies: Local,
}

/// Messages, replies and topics.
pub struct PubSub<D> {
    hub: Hub<Data<D>>,
}

impl Default for NoPubSub {
    fn default() -> Self {
        let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
        Self { replies: Local::new(rings, "", Arc::new(JsonText), u64::MAX) }
    }
}

impl<D: Send + Sync + 'static> PubSub<D> {
    pub(crate) fn new(hub: Hub<Data<D>>) -> Self {
        Self { hub }
    }

    pub(crate) fn hub(&self) -> &Hub<Data<D>> {
        &self.hub
    }
}

impl<D> Clone for PubSub<D> {
    fn clone(&self) -> Self {
        Self { hub: self.hub.clone() }
    }
}

impl sealed::Sealed for NoPubSub {}
impl<D> sealed::Sealed for PubSub<D> {}

impl<D: Send + Sync + 'static> Capability<D> for NoPubSub {
    type Connected = ();

    fn connect(&self, client_id: ClientId, _: Data<D>) -> ((), Member, BundleReader) {
        let (member, reader) = self.replies.connect(client_id);
        // Nobody asks who subscribes to what.
        self.replies.forget(&member);
        ((), member, reader)
    }

    fn close((): &()) {}

    fn invalidate((): &()) {}
}

impl<D: Send + Sync + 'static> Capability<D> for PubSub<D> {
    type Connected = Topics;

    fn connect(&self, client_id: ClientId, data: Data<D>) -> (Topics, Member, BundleReader) {
        let (topics, reader) = self.hub.connect(client_id, data);
        let member = topics.member().clone();
        (topics, member, reader)
    }

    fn close(topics: &Topics) {
        topics.close();
    }

    fn invalidate(topics: &Topics) {
        topics.invalidate_auth();
    }
}
