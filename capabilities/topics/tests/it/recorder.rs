//! A policy that notes what it is asked and told, and a world around a driver with faults.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use tidings_engine::ManualClock;
use tidings_model::Timestamp;
use tidings_topics::contract::Faulty;
use tidings_topics::{
    Action, Answer, Change, Connection, Decision, Denial, Hub, MemoryDriver, MutateError, MutateOptions,
    ObserverError, Policy, PubSubErrorCode, Removal, TopicRules, Topics,
};
use tokio::sync::oneshot;

use crate::support::{Client, local};

/// Notes everything. Denies topics that begin with `secret`, lower-cases topics, fails for observers of `bad`.
#[derive(Default)]
pub struct Recorder {
    noted: Mutex<Vec<String>>,
    waits: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Recorder {
    /// What happened since the last time.
    pub fn noted(&self) -> Vec<String> {
        std::mem::take(&mut *self.noted.lock().expect("no panic"))
    }

    /// Lets the next question wait until the result is used or dropped.
    pub fn wait(&self) -> oneshot::Sender<()> {
        let (go, wait) = oneshot::channel();
        *self.waits.lock().expect("no panic") = Some(wait);
        go
    }

    fn note(&self, what: String) {
        self.noted.lock().expect("no panic").push(what);
    }
}

fn id(connection: &Connection<()>) -> &str {
    connection.client_id.as_ref().map_or("-", |id| id.as_str())
}

impl Policy<()> for Recorder {
    fn normalize<'t>(&self, topic: &'t str, _: Option<&Connection<()>>) -> Cow<'t, str> {
        if topic.bytes().any(|byte| byte.is_ascii_uppercase()) {
            topic.to_ascii_lowercase().into()
        } else {
            topic.into()
        }
    }

    fn authorize<'a>(
        &'a self,
        action: Action,
        topic: &'a str,
        connection: &'a Connection<()>,
    ) -> Answer<'a, Decision> {
        self.note(format!("{} {} {topic}", id(connection), action.as_str()));
        let denied = topic.starts_with("secret") || topic == "sticky" && action == Action::Unsubscribe;
        let decision = if denied {
            Decision::Deny(Denial { policy: Some("recorder".to_owned()), ..Denial::forbidden("policy") })
        } else {
            Decision::Allow
        };
        match self.waits.lock().expect("no panic").take() {
            Some(wait) => Answer::later(async move {
                let _ = wait.await;
                decision
            }),
            None => Answer::now(decision),
        }
    }

    fn subscribed(&self, topic: &str, connection: &Connection<()>) -> Result<(), ObserverError> {
        self.note(format!("{} subscribed {topic}", id(connection)));
        match topic {
            "bad" => Err("an observer that fails".into()),
            "worse" => panic!("an observer that panics"),
            _ => Ok(()),
        }
    }

    fn unsubscribed(
        &self,
        topic: &str,
        why: Removal,
        connection: &Connection<()>,
    ) -> Result<(), ObserverError> {
        self.note(format!("{} unsubscribed {topic} {why:?}", id(connection)));
        if topic == "bad" { Err("an observer that fails".into()) } else { Ok(()) }
    }
}

/// A hub whose driver and policy are watched.
pub struct Watched {
    pub hub: Hub<()>,
    pub driver: Faulty,
    pub policy: Arc<Recorder>,
    pub clock: ManualClock,
}

pub fn watched(limit: Option<usize>) -> Watched {
    let driver = Faulty::new(Arc::new(MemoryDriver::new(local("scope"))));
    let policy = Arc::new(Recorder::default());
    let clock = ManualClock::at(Timestamp::from_millis(1_000));
    let rules = TopicRules::default().with_max_per_connection(limit);
    let hub = Hub::new(Arc::new(driver.clone()), rules, policy.clone(), Arc::new(clock.clone()));
    Watched { hub, driver, policy, clock }
}

impl Watched {
    pub fn client(&self) -> Client {
        let (topics, reader) = self.hub.connect("a", ());
        Client { topics, reader }
    }

    /// A client that holds some topics; what led there is forgotten.
    pub fn client_with(&self, topics: &[&str]) -> Client {
        let client = self.client();
        for topic in topics {
            client.subscribes(topic);
        }
        self.forget();
        client
    }

    pub fn forget(&self) {
        self.driver.take_calls();
        self.policy.noted();
    }

    /// Asserts that nothing has happened at the driver and the policy.
    pub fn is_untouched(&self) {
        assert_eq!(self.policy.noted(), Vec::<String>::new());
        assert_eq!(self.calls(), "");
    }

    /// The calls of the driver since the last time.
    pub fn calls(&self) -> String {
        let calls = self.driver.take_calls();
        calls.iter().map(|call| format!("{call:?}")).collect::<Vec<_>>().join(" ")
    }

    /// The calls that wait.
    pub fn waiting(&self) -> String {
        let calls = self.driver.waiting();
        calls.iter().map(|call| format!("{call:?}")).collect::<Vec<_>>().join(" ")
    }
}

/// Polls once, and expects that the operation is not over.
pub fn begins<F: Future + Unpin>(mut future: F) -> F {
    assert!((&mut future).now_or_never().is_none(), "it waits");
    future
}

pub fn options() -> MutateOptions {
    MutateOptions::default()
}

/// The code of a failure.
pub fn code(result: Result<Change, MutateError>) -> PubSubErrorCode {
    match result.expect_err("a failure") {
        MutateError::PubSub(error) => error.code,
        other => panic!("{other}"),
    }
}

/// The details of a failure.
pub fn details(result: Result<Change, MutateError>) -> serde_json::Value {
    match result.expect_err("a failure") {
        MutateError::PubSub(error) => serde_json::Value::Object(error.details.to_json()),
        other => panic!("{other}"),
    }
}

/// The topics of a connection, in order, separated by spaces.
pub fn held(topics: &Topics) -> String {
    topics.iter().map(|topic| topic.to_string()).collect::<Vec<_>>().join(" ")
}
