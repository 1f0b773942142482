use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_engine::deliver::{BundleReader, Channels, Limits, Rings};
use tidings_engine::{Bus, ManualClock, Metrics};
use tidings_model::Timestamp;
use tidings_topics::{
    Action, AllowAll, Answer, Connection, Decision, Hub, Local, MemoryDriver, Policy, TopicRules, Topics,
    WaitFor,
};
use tokio::sync::Notify;

use super::super::encode::Broadcasts;
use super::super::hubs::TopicHubs;
use super::super::operation::Operation;
use super::super::options::TopicOptions;
use super::super::request::Options;
use super::*;
use crate::live::poll_once;

/// A policy that answers when it is told to.
#[derive(Default)]
struct Slow {
    open: AtomicBool,
    opened: Notify,
}

impl Policy<()> for Slow {
    fn authorize<'a>(&'a self, _: Action, _: &'a str, _: &'a Connection<()>) -> Answer<'a, Decision> {
        Answer::later(async move {
            while !self.open.load(Ordering::SeqCst) {
                self.opened.notified().await;
            }
            Decision::Allow
        })
    }
}

impl Slow {
    fn answer(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.opened.notify_waiters();
    }
}

/// A connection whose answers are read here.
struct Conversation {
    waiting: Waiting,
    speaker: Speaker,
    reader: BundleReader,
    clock: Arc<ManualClock>,
}

impl Conversation {
    fn under(policy: Arc<dyn Policy<()>>) -> Self {
        let channels = Channels::new(Bus::new(), Limits::default());
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(0)));
        let rings = Rings::beside(&channels);
        let hubs = TopicHubs::new(
            TopicOptions::default(),
            rings.clone(),
            None,
            None,
            clock.clone(),
            &Metrics::new(),
        );
        let driver = MemoryDriver::new(Local::new(rings, "p", Arc::new(Broadcasts), 1 << 20));
        let hub = Hub::new(Arc::new(driver), TopicRules::default(), policy, clock.clone());
        let (topics, reader) = hub.connect("c", ());
        Self { waiting: Waiting::default(), speaker: Speaker { topics, hubs }, reader, clock }
    }

    fn topics(&self) -> &Topics {
        &self.speaker.topics
    }

    /// Handles a subscribe as a connection does. Returns whether it was answered at once.
    fn subscribes(&mut self, correlation_id: &str, topic: &str) -> bool {
        self.subscribes_with(correlation_id, topic, Options::default())
    }

    fn subscribes_with(&mut self, correlation_id: &str, topic: &str, options: Options) -> bool {
        let asked = Asked { kind: "$subscribe", correlation_id: Some(correlation_id.into()) };
        let cancel = CancellationToken::new();
        let operation =
            Operation::Subscribe { topic: topic.to_owned(), options, recover: None, presence: None };
        match poll_once(operation.run(self.topics().clone(), Some(cancel.clone()))) {
            Ok(ended) => {
                drop(self.speaker.answer(&asked, ended));
                true
            }
            Err(running) => {
                self.waiting.drive(self.speaker.clone(), asked, Some(cancel), running);
                false
            }
        }
    }

    /// The answers that are there, until there are so many.
    async fn answers(&mut self, count: usize) -> Vec<Value> {
        let mut answers = Vec::new();
        while answers.len() < count {
            std::future::poll_fn(|cx| {
                let mut take = |frame: &tidings_engine::deliver::Frame| {
                    let bytes = frame.bytes.clone().joined();
                    let begin = bytes.iter().position(|byte| *byte == b'{').expect("JSON");
                    answers.push(serde_json::from_slice(&bytes[begin..]).expect("JSON"));
                };
                self.reader.poll_frames(cx, usize::MAX, &mut take).map(drop)
            })
            .await;
        }
        answers
    }
}

fn id(answer: &Value) -> &str {
    answer["meta"]["correlationId"].as_str().expect("an id")
}

#[tokio::test]
async fn a_request_that_is_ready_needs_no_task() {
    let mut conversation = Conversation::under(Arc::new(AllowAll));
    assert!(conversation.subscribes("1", "a"));
    assert!(conversation.waiting.is_idle());
    assert_eq!(conversation.answers(1).await[0]["payload"], json!({ "added": 1, "total": 1 }));
}

#[tokio::test]
async fn a_request_that_waits_is_answered_when_it_is_done() {
    let policy = Arc::new(Slow::default());
    let mut conversation = Conversation::under(policy.clone());
    assert!(!conversation.subscribes("1", "a"));
    assert!(!conversation.subscribes("2", "a"), "it waits for the one before");
    assert!(!conversation.waiting.is_idle() && conversation.waiting.has_room());
    policy.answer();
    let answers = conversation.answers(2).await;
    assert_eq!((id(&answers[0]), &answers[0]["payload"]["added"]), ("1", &json!(1)));
    assert_eq!((id(&answers[1]), &answers[1]["payload"]["added"]), ("2", &json!(0)));
    while !conversation.waiting.is_idle() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_request_that_is_cancelled_while_it_waits_changes_nothing() {
    let policy = Arc::new(Slow::default());
    let mut conversation = Conversation::under(policy.clone());
    assert!(!conversation.subscribes("1", "a"));
    assert!(!conversation.subscribes("2", "b"));
    conversation.waiting.cancel("nobody");
    conversation.waiting.cancel("1");
    let answers = conversation.answers(1).await;
    assert_eq!((id(&answers[0]), &answers[0]["type"]), ("1", &json!("RPC_ERROR")));
    assert_eq!(answers[0]["payload"]["code"], "CANCELLED");
    assert_eq!(answers[0]["payload"]["retryable"], false);
    assert_eq!(answers[0]["payload"]["details"], json!({ "changed": false }));
    policy.answer();
    assert_eq!(id(&conversation.answers(1).await[0]), "2");
    assert_eq!(conversation.topics().snapshot().len(), 1);
}

#[tokio::test]
async fn a_settled_request_whose_time_passes_while_it_waits_is_told_so() {
    let mut conversation = Conversation::under(Arc::new(Slow::default()));
    let timeout = Some(Duration::from_secs(5));
    let options = Options { wait_for: WaitFor::Settled, timeout, ..Options::default() };
    assert!(!conversation.subscribes_with("1", "a", options));
    conversation.clock.advance(Duration::from_secs(5));
    let answers = conversation.answers(1).await;
    assert_eq!((id(&answers[0]), &answers[0]["type"]), ("1", &json!("RPC_ERROR")));
    let payload = &answers[0]["payload"];
    assert_eq!((&payload["code"], &payload["retryable"]), (&json!("DEADLINE_EXCEEDED"), &json!(true)));
    assert_eq!(payload["details"], json!({ "changed": false }));
    assert!(conversation.topics().is_empty());
}

#[tokio::test]
async fn only_so_many_requests_wait_before_nothing_more_is_read() {
    let policy = Arc::new(Slow::default());
    let mut conversation = Conversation::under(policy.clone());
    for n in 0..limits::TOPIC_REQUESTS_IN_FLIGHT {
        assert!(conversation.waiting.has_room(), "{n}");
        conversation.subscribes(&n.to_string(), &format!("t{n}"));
    }
    assert!(!conversation.waiting.has_room());
    policy.answer();
    conversation.answers(limits::TOPIC_REQUESTS_IN_FLIGHT).await;
    while !conversation.waiting.has_room() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_that_ends_leaves_nothing_of_what_waits() {
    let policy = Arc::new(Slow::default());
    let mut conversation = Conversation::under(policy.clone());
    assert!(!conversation.subscribes("1", "a"));
    let topics = conversation.topics().clone();
    drop(conversation);
    policy.answer();
    while topics.in_flight() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(topics.is_closed() && topics.is_empty());
}

#[tokio::test]
async fn a_request_that_panics_is_a_fault_of_ours_and_is_answered() {
    let mut conversation = Conversation::under(Arc::new(AllowAll));
    let ended = poll_once(async { panic!("as a test") }).unwrap_or_else(|_| panic!("it is over"));
    let asked = Asked { kind: "$list", correlation_id: Some("1".into()) };
    drop(conversation.speaker.answer(&asked, ended));
    let answer = conversation.answers(1).await.remove(0);
    assert_eq!(
        (&answer["payload"]["code"], &answer["payload"]["retryable"]),
        (&json!("INTERNAL"), &json!(true))
    );
}
