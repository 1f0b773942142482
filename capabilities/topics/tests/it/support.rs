//! A hub in memory, and clients that take what they receive.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use serde_json::{Value, json};
use tidings_engine::deliver::{BundleReader, Channels, Limits, Rings, Step};
use tidings_engine::{Bus, ManualClock};
use tidings_model::Timestamp;
use tidings_topics::{
    AllowAll, Change, Hub, JsonText, Local, MemoryDriver, MutateError, MutateOptions, Payload, Policy,
    PubSubDriver, PubSubErrorCode, PublishEnvelope, PublishOptions, PublishResult, TopicRules, Topics,
};

/// A hub with everything that tests look at.
pub struct World<D = ()> {
    pub hub: Hub<D>,
}

/// A connection and its reader.
pub struct Client {
    pub topics: Topics,
    pub reader: BundleReader,
}

pub fn local(scope: &str) -> Local {
    let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
    Local::new(rings, scope, Arc::new(JsonText), u64::MAX)
}

pub fn world() -> World {
    with(Arc::new(MemoryDriver::new(local(""))), TopicRules::default(), Arc::new(AllowAll))
}

pub fn with<D: Send + Sync + 'static>(
    driver: Arc<dyn PubSubDriver>,
    rules: TopicRules,
    policy: Arc<dyn Policy<D>>,
) -> World<D> {
    let clock = ManualClock::at(Timestamp::from_millis(1_000));
    World { hub: Hub::new(driver, rules, policy, Arc::new(clock)) }
}

impl<D: Send + Sync + Default + 'static> World<D> {
    pub fn client(&self, id: &str) -> Client {
        let (topics, reader) = self.hub.connect(id, D::default());
        Client { topics, reader }
    }

    pub fn publishes(&self, topic: &str, text: &str) -> PublishResult {
        now(self.hub.publish(message(topic, text), PublishOptions::default()))
    }
}

impl Client {
    /// The payloads, or replies, that can be taken at once.
    pub fn takes(&mut self) -> Vec<Value> {
        self.takes_text().iter().map(|text| serde_json::from_str(text).expect("JSON")).collect()
    }

    pub fn takes_text(&mut self) -> Vec<String> {
        let mut taken = Vec::new();
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            let polled = self.reader.poll_frames(&mut cx, usize::MAX, &mut |frame| {
                let bytes = frame.bytes.clone().joined();
                taken.push(String::from_utf8(bytes.to_vec()).expect("text"));
            });
            match polled {
                Poll::Ready(Step::Frames) => {}
                Poll::Ready(step) => panic!("{step:?}"),
                Poll::Pending => return taken,
            }
        }
    }

    /// The texts of messages that arrive, once there are so many.
    pub async fn hears(&mut self, count: usize) -> Vec<String> {
        let mut heard = Vec::new();
        for _ in 0..10_000 {
            heard.extend(self.takes().iter().map(text));
            if heard.len() >= count {
                // What is too much has come as well.
                tokio::task::yield_now().await;
                heard.extend(self.takes().iter().map(text));
                return heard;
            }
            tokio::task::yield_now().await;
        }
        panic!("only {heard:?} of {count}");
    }

    /// As [`Client::hears`], sorted: messages of different topics have no order.
    pub async fn hears_sorted(&mut self, count: usize) -> Vec<String> {
        let mut heard = self.hears(count).await;
        heard.sort();
        heard
    }

    pub fn subscribes(&self, topic: &str) -> Change {
        now(self.topics.subscribe(topic, &MutateOptions::default())).expect("a subscription")
    }

    pub fn subscribes_all(&self, topics: &[&str]) {
        topics.iter().for_each(|topic| drop(self.subscribes(topic)));
    }

    pub fn unsubscribes(&self, topic: &str) -> Change {
        now(self.topics.unsubscribe(topic, &MutateOptions::default())).expect("no subscription")
    }

    pub fn unsubscribes_failing(&self, topic: &str, expected: PubSubErrorCode) {
        match now(self.topics.unsubscribe(topic, &MutateOptions::default())) {
            Err(MutateError::PubSub(error)) => assert_eq!(error.code, expected),
            other => panic!("{other:?}"),
        }
    }

    pub fn publishes(&self, topic: &str, text: &str) -> PublishResult {
        now(self.topics.publish(message(topic, text), PublishOptions::default()))
    }
}

fn text(frame: &Value) -> String {
    frame["payload"]["text"].as_str().unwrap_or_default().to_owned()
}

pub fn message(topic: &str, text: &str) -> PublishEnvelope {
    let payload = Payload::json(&json!({ "text": text })).expect("JSON");
    PublishEnvelope::new(topic, "SAID").with_payload(payload)
}

/// The result of a future that is ready at its first poll.
pub fn now<F: Future>(future: F) -> F::Output {
    future.now_or_never().expect("it is ready at once")
}

/// Added, removed, total.
pub fn counts(change: Result<Change, MutateError>) -> (usize, usize, usize) {
    let change = change.expect("a change");
    (change.added, change.removed, change.total)
}
