//! Hubs: a driver, rules and a policy, and the connections that share them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidings_engine::deliver::{BundleReader, Channels, Limits, Rings};
use tidings_engine::{Bus, Clock};
use tokio::sync::Mutex;

use crate::driver::{BrokerConsumer, Consumption, Count, DriverError, PubSubDriver, Route};
use crate::envelope::PublishEnvelope;
use crate::error::PubSubError;
use crate::history::{History, HistoryError, HistoryState};
use crate::inner::{Inner, Phase, Settings};
use crate::local::{JsonText, Local};
use crate::memory::MemoryDriver;
use crate::message::Message;
use crate::options::PublishOptions;
use crate::policy::{Action, ClientId, Connection, Decision, Gated, Policy};
use crate::presence::{Announce, Presence};
use crate::publish;
use crate::result::PublishResult;
use crate::topic::TopicRules;
use crate::topics::Topics;

/// Topics of one scope, for example of one project. Clones share them. `D` is what the policy knows of a connection.
pub struct Hub<D> {
    settings: Arc<Settings>,
    policy: Arc<dyn Policy<D>>,
    ingress: Arc<Ingress>,
}

/// The consumers of a hub, and those that are started.
struct Ingress {
    consumers: Vec<Arc<dyn BrokerConsumer>>,
    started: Mutex<Vec<Box<dyn Consumption>>>,
}

/// Number of subscribers of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicCount {
    /// The topic in its normal form.
    pub topic: String,
    /// The number, and what it means.
    pub count: Count,
}

/// Why a number of subscribers is not known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CountError {
    /// The topic is not valid.
    #[error(transparent)]
    Topic(#[from] PubSubError),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl<D> Clone for Hub<D> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), policy: self.policy.clone(), ingress: self.ingress.clone() }
    }
}

impl<D: Send + Sync + 'static> Hub<D> {
    /// Creates a hub without connections.
    pub fn new(
        driver: Arc<dyn PubSubDriver>,
        rules: TopicRules,
        policy: Arc<dyn Policy<D>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let settings = Arc::new(Settings::new(driver, rules, clock));
        let ingress = Ingress { consumers: Vec::new(), started: Mutex::default() };
        Self { settings, policy, ingress: Arc::new(ingress) }
    }

    /// Creates a hub whose driver is the memory of this process. Frames are texts of JSON, and a connection that is more
    /// than [`Hub::BEHIND_MAX`] bytes behind is too slow. Call it within a Tokio runtime, which delivers.
    pub fn in_memory(rules: TopicRules, policy: Arc<dyn Policy<D>>, clock: Arc<dyn Clock>) -> Self {
        let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
        let local = Local::new(rings, "", Arc::new(JsonText), Self::BEHIND_MAX);
        Self::new(Arc::new(MemoryDriver::new(local)), rules, policy, clock)
    }

    /// Bytes that a connection of [`Hub::in_memory`] may be behind.
    pub const BEHIND_MAX: u64 = 1024 * 1024;

    /// Gives a history to the topics whose rules say so. Without it no topic has one. The driver must be one of this process
    /// only.
    ///
    /// # Panics
    ///
    /// If there are clones or connections already.
    pub fn with_history(mut self, history: History) -> Self {
        let settings = Arc::get_mut(&mut self.settings).expect("a hub is put together before it is used");
        settings.history = Some(history);
        self
    }

    /// What is known of the history of a topic, which must be in its normal form; `None` if it has none yet.
    pub async fn history(&self, topic: &str) -> Result<Option<HistoryState>, HistoryError> {
        match self.settings.history_of(topic) {
            Some((history, keep)) => history.state(topic, keep).await,
            None => Ok(None),
        }
    }

    /// Changes how members are told of each other. Default: [`JsonText`].
    ///
    /// # Panics
    ///
    /// If there are clones or connections already.
    pub fn with_announce(mut self, announce: Arc<dyn Announce>) -> Self {
        let settings = Arc::get_mut(&mut self.settings).expect("a hub is put together before it is used");
        settings.announce = announce;
        self
    }

    /// The members of a topic, which must be in its normal form, on this node.
    pub fn presence(&self, topic: &str) -> Presence {
        self.settings.roster.of(topic)
    }

    /// Adds consumers of other nodes' messages. The hub is not ready until [`Hub::start`].
    pub fn with_consumers(self, consumers: Vec<Arc<dyn BrokerConsumer>>) -> Self {
        self.settings.enter(Phase::NotReady);
        let ingress = Ingress { consumers, started: Mutex::default() };
        Self { ingress: Arc::new(ingress), ..self }
    }

    /// Starts the consumers. If one fails, none is started and the hub can be started again. Starting a hub that is
    /// started does nothing.
    pub async fn start(&self) -> Result<(), DriverError> {
        let mut started = self.ingress.started.lock().await;
        if !started.is_empty() || self.settings.phase() == Phase::Disposed {
            return Ok(());
        }
        for consumer in &self.ingress.consumers {
            let driver = self.settings.driver.clone();
            match consumer.start(Arc::new(move |envelope| driver.deliver_local(envelope))).await {
                Ok(consumption) => started.push(consumption),
                Err(error) => {
                    for consumption in started.drain(..) {
                        consumption.stop().await;
                    }
                    return Err(error);
                }
            }
        }
        self.settings.enter(Phase::Ready);
        Ok(())
    }

    /// Stops the consumers and closes all connections. Whoever publishes later fails with `CONNECTION_CLOSED`. Shutting
    /// down a hub again does nothing.
    pub async fn shut_down(&self) {
        self.settings.enter(Phase::Disposed);
        let mut started = self.ingress.started.lock().await;
        for consumption in started.drain(..) {
            consumption.stop().await;
        }
        for connection in self.settings.open_connections() {
            connection.close();
        }
    }

    /// The connections that are open, in no particular order.
    pub fn connections(&self) -> Vec<Topics> {
        self.settings.open_connections().into_iter().map(Topics::new).collect()
    }

    /// Adds a connection without subscriptions. Whoever serves it takes replies and frames from the reader. All ends
    /// when the reader is dropped or [`Topics::close`] is called.
    pub fn connect(&self, client_id: impl Into<ClientId>, data: D) -> (Topics, BundleReader) {
        let client_id = client_id.into();
        let (member, mut reader) = self.settings.driver.connect(client_id.clone());
        let connection = Connection { client_id: Some(client_id), data };
        let gate = Box::new(Gated { policy: self.policy.clone(), connection });
        let inner = Inner::open(&self.settings, member, gate);
        let closed = inner.clone();
        reader.when_dropped(move || closed.close());
        (Topics::new(inner), reader)
    }

    /// Publishes a message of the application itself. The policy normalizes the topic, but is not asked.
    pub async fn publish(&self, mut envelope: PublishEnvelope, options: PublishOptions) -> PublishResult {
        publish::normalize(&mut envelope, |topic| self.policy.normalize(topic, None));
        match publish::check(&self.settings, &mut envelope) {
            Ok(()) => self.send(envelope, options).await,
            Err(failure) => failure.into(),
        }
    }

    /// Publishes a message with a type. A payload that is not valid is a failure of the publish.
    pub async fn publish_message<M: Message>(
        &self,
        topic: &str,
        payload: &M::Payload,
        options: PublishOptions,
    ) -> PublishResult {
        let envelope = M::envelope(topic, payload);
        match envelope {
            Ok(envelope) => self.publish(envelope, options).await,
            Err(failure) => failure.into(),
        }
    }

    /// Publishes a message of somebody without a connection, whom the policy is asked about.
    pub async fn publish_as(
        &self,
        connection: &Connection<D>,
        mut envelope: PublishEnvelope,
        options: PublishOptions,
    ) -> PublishResult {
        publish::normalize(&mut envelope, |topic| self.policy.normalize(topic, Some(connection)));
        if let Err(failure) = publish::check(&self.settings, &mut envelope) {
            return failure.into();
        }
        match self.policy.authorize(Action::Publish, &envelope.topic, connection).await {
            Decision::Allow => self.send(envelope, options).await,
            Decision::Deny(denial) => publish::denied(&envelope.topic, denial).into(),
        }
    }

    /// Sends a message that was checked.
    async fn send(&self, envelope: PublishEnvelope, options: PublishOptions) -> PublishResult {
        let route = Route { exclude: None, partition_key: options.partition_key.as_deref() };
        self.settings.publish(&envelope, route, || None).await.into()
    }

    /// Number of connections that would hear a message under a topic.
    pub async fn count(&self, topic: &str) -> Result<TopicCount, CountError> {
        let topic = self.policy.normalize(topic, None).into_owned();
        self.settings.rules.check(&topic)?;
        let count = self.settings.driver.count(&topic).await?;
        Ok(TopicCount { topic, count })
    }

    /// Whether messages may be published. If not, publishing fails with `STATE`.
    pub fn set_ready(&self, ready: bool) {
        self.settings.enter(if ready { Phase::Ready } else { Phase::NotReady });
    }

    /// Operations so far after which the driver and a connection differ, because a rollback failed.
    pub fn failed_rollbacks(&self) -> u64 {
        self.settings.failed_rollbacks.load(Ordering::Relaxed)
    }

    /// Subscriptions of all connections, with those that are being made.
    pub fn subscriptions(&self) -> usize {
        self.settings.places.taken()
    }

    /// What topics must look like.
    pub fn rules(&self) -> &TopicRules {
        &self.settings.rules
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn PubSubDriver> {
        &self.settings.driver
    }

    /// The policy.
    pub fn policy(&self) -> &Arc<dyn Policy<D>> {
        &self.policy
    }
}
