//! Histories: what is trimmed, what is forgotten, and what becomes of publishes meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tidings_engine::log::Memory;
use tidings_engine::{Bus, ManualClock, Rng};
use tidings_model::{Pattern, ProjectId, Timestamp};
use tidings_topics::{
    AllowAll, Histories, Hub, Keep, MemoryDriver, MutateOptions, PublishOptions, Since, Table, TopicRule,
    TopicRules,
};

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

struct Kept {
    store: Arc<Memory<Table>>,
    histories: Histories,
    clock: ManualClock,
    world: World,
}

fn project() -> ProjectId {
    ProjectId::parse("shop").expect("an id")
}

fn kept(keep: Keep) -> Kept {
    let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
    let store = Arc::new(Memory::<Table>::new(Bus::new(), Arc::new(clock.clone())));
    let histories = Histories::new(store.clone(), Arc::new(clock.clone()), Arc::new(Rng::seeded(7)));
    let pattern = Pattern::parse("chat:*").expect("a pattern");
    let rules =
        TopicRules::default().with_rules([TopicRule { history: Some(keep), ..TopicRule::new(pattern) }]);
    let driver = Arc::new(MemoryDriver::new(local("")));
    let hub: Hub<()> = Hub::new(driver, rules, Arc::new(AllowAll), Arc::new(clock.clone()));
    let world = World { hub: hub.with_history(histories.of(&project())) };
    Kept { store, histories, clock, world }
}

impl Kept {
    async fn publishes(&self, topic: &str, text: &str) -> Value {
        self.world.hub.publish(message(topic, text), PublishOptions::default()).await.to_json()
    }

    /// Number of histories.
    fn count(&self) -> usize {
        self.store.look(|table, _| table.rows().count())
    }

    async fn trims(&self) -> u64 {
        let rules = self.world.hub.rules().clone();
        self.histories.trim(|topic| rules.history(topic)).await.expect("the store works")
    }
}

#[tokio::test]
async fn what_is_too_old_is_trimmed_and_a_history_of_which_nothing_is_left_is_forgotten() {
    let kept = kept(Keep { messages: 1000, age: Some(MINUTE) });
    let first = kept.publishes("chat:1", "a").await;
    kept.publishes("chat:1", "b").await;
    kept.clock.advance(MINUTE / 2);
    kept.publishes("chat:1", "c").await;
    assert_eq!(kept.trims().await, 0);
    kept.clock.advance(MINUTE / 2 + Duration::from_secs(1));
    assert_eq!(kept.trims().await, 2);
    let state = kept.world.hub.history("chat:1").await.expect("a state").expect("a history");
    assert_eq!((state.head.offset, state.count), (3, 1));
    kept.clock.advance(MINUTE);
    assert_eq!((kept.trims().await, kept.count()), (1, 1));
    assert_eq!((kept.trims().await, kept.count()), (0, 0), "the second time nothing was left");
    let again = kept.publishes("chat:1", "d").await;
    assert_eq!(again["offset"], 1);
    assert_ne!(again["epoch"], first["epoch"], "so nobody takes its place for one of before");
}

#[tokio::test]
async fn the_number_of_messages_is_exact_for_readers_and_what_is_stored_follows() {
    let kept = kept(Keep { messages: 10, age: None });
    let client = kept.world.client("a");
    for number in 1..=100 {
        assert_eq!(kept.publishes("chat:1", "x").await["offset"], number);
        let page = client.topics.history("chat:1", None, 1000).await.expect("it is read").expect("a history");
        assert_eq!(page.messages.len(), usize::min(number, 10), "{number}");
    }
    let stored = kept.store.look(|table, status| {
        let row = *table.rows().next().expect("a history").1;
        let status = status(row.log).expect("its log");
        status.tail.get() - status.floor.get()
    });
    assert!(stored <= 12, "{stored}");
    assert!(kept.trims().await <= 2);
}

#[tokio::test]
async fn a_rule_that_is_gone_lets_its_histories_go() {
    let kept = kept(Keep { messages: 10, age: None });
    kept.publishes("chat:1", "x").await;
    assert_eq!(kept.histories.trim(|_| None).await.expect("trimmed"), 1);
    assert_eq!(kept.histories.trim(|_| None).await.expect("trimmed"), 0);
    assert_eq!(kept.count(), 0);
}

#[tokio::test]
async fn a_project_that_is_cleared_has_no_histories_and_others_keep_theirs() {
    let kept = kept(Keep { messages: 10, age: None });
    let other = ProjectId::parse("other").expect("an id");
    let rule = TopicRule {
        history: Some(Keep { messages: 10, age: None }),
        ..TopicRule::new(Pattern::parse("**").expect("a pattern"))
    };
    let rules = TopicRules::default().with_rules([rule]);
    let hub: Hub<()> = Hub::new(
        Arc::new(MemoryDriver::new(local(""))),
        rules,
        Arc::new(AllowAll),
        Arc::new(kept.clock.clone()),
    );
    let hub = hub.with_history(kept.histories.of(&other));
    assert!(hub.publish(message("chat:1", "y"), PublishOptions::default()).await.is_ok());
    for topic in ["chat:1", "chat:2", "chat:3"] {
        kept.publishes(topic, "x").await;
    }
    assert_eq!(kept.count(), 4);
    kept.histories.clear(&project()).await.expect("cleared");
    assert_eq!(kept.count(), 1);
    assert_eq!(
        kept.publishes("chat:1", "again").await["offset"],
        1,
        "what was known of its end is forgotten"
    );
    assert_eq!(hub.history("chat:1").await.expect("a state").expect("a history").head.offset, 1);
}

#[tokio::test]
async fn a_publish_whose_caller_goes_is_delivered_all_the_same_and_in_order() {
    let kept = kept(Keep { messages: 100, age: None });
    let mut client = kept.world.client("a");
    client.topics.subscribe("chat:1", &MutateOptions::default()).await.expect("a subscription");
    for text in ["1", "2", "3"] {
        let mut publish =
            Box::pin(kept.world.hub.publish(message("chat:1", text), PublishOptions::default()));
        // It is dropped after its first poll, whether that was enough or not.
        drop(publish.as_mut().now_or_never());
    }
    assert_eq!(kept.publishes("chat:1", "4").await["ok"], true);
    assert_eq!(client.hears(4).await, ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn an_offset_beyond_the_end_or_of_another_epoch_is_no_place() {
    let kept = kept(Keep { messages: 100, age: None });
    let epoch = kept.publishes("chat:1", "x").await["epoch"].as_str().expect("an epoch").to_owned();
    let client = kept.world.client("a");
    for (epoch, offset, recovered) in
        [(epoch.clone(), 0, true), (epoch.clone(), 2, false), ("1.0".to_owned(), 0, false)]
    {
        let recover = [("chat:1".to_owned(), Since { epoch, offset })].into();
        let options = MutateOptions { recover, ..MutateOptions::default() };
        let change = client.topics.subscribe("chat:1", &options).await.expect("a subscription");
        let [begins] = &change.positions[..] else { panic!("one topic") };
        assert_eq!((begins.position.offset, begins.recovered), (1, Some(recovered)));
        drop(change);
        client.unsubscribes("chat:1");
    }
    let plain = client.subscribes("news");
    assert_eq!((plain.positions, json!(plain.total)), (Vec::new(), json!(1)));
}
