//! Hooks of typed topics, subscriptions that end after a time, and topics that may have only so many subscribers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tidings_engine::ManualClock;
use tidings_model::{Pattern, Timestamp};
use tidings_topics::{
    AllowAll, Hub, LocalStatus, MemoryDriver, MutateError, MutateOptions, PubSubErrorCode, TopicHooks,
    TopicRule, TopicRules, TypedTopic,
};

use crate::support::*;

const ROOM: TypedTopic<u32> = TypedTopic::new("room", |id| format!("room:{id}"))
    .parsed(|topic| topic.strip_prefix("room:")?.parse().ok());
static ROOMS: TypedTopic<u32> = ROOM;
static USERS: TypedTopic<String> = TypedTopic::new("user", |name: &String| format!("user:{name}"))
    .parsed(|topic| Some(topic.strip_prefix("user:")?.to_owned()));

#[tokio::test]
async fn hooks_of_typed_topics_get_their_arguments_and_hear_of_no_others() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |seen: &Arc<Mutex<Vec<String>>>| {
        let seen = seen.clone();
        move |text: String| seen.lock().expect("no panic").push(text)
    };
    let (on, off, named, failing) = (note(&seen), note(&seen), note(&seen), note(&seen));
    let policy = TopicHooks::new(AllowAll)
        .subscribed(&ROOMS, move |id, connection: &tidings_topics::Connection<()>| {
            failing(format!("{:?} in {id}", connection.client_id.as_ref().map(|id| id.as_str())));
            Err("a failure changes nothing".into())
        })
        .subscribed(&ROOMS, move |id, _| {
            on(format!("+{id}"));
            Ok(())
        })
        .unsubscribed(&ROOMS, move |id, why, _| {
            off(format!("-{id} {why:?}"));
            Ok(())
        })
        .subscribed(&USERS, move |name, _| {
            named(name);
            Ok(())
        });
    let world = with(Arc::new(MemoryDriver::new(local(""))), TopicRules::default(), Arc::new(policy));
    let client = world.client("a");
    client.subscribes_all(&["room:7", "room:7", "user:bob", "x", "room:*", "room:07"]);
    client.unsubscribes("room:7");
    client.subscribes("room:8");
    client.topics.remove_where(|topic| topic == "room:8", "revoked");
    client.subscribes("room:9");
    client.topics.close();
    let expected = [
        "Some(\"a\") in 7",
        "+7",
        "bob",
        "-7 Requested",
        "Some(\"a\") in 8",
        "+8",
        "-8 Removed",
        "Some(\"a\") in 9",
        "+9",
    ];
    assert_eq!(*seen.lock().expect("no panic"), expected, "each change once, and a close none");
}

#[test]
#[should_panic(expected = "no way back")]
fn a_kind_of_topic_without_a_way_back_has_no_hooks() {
    static ONE_WAY: TypedTopic<u32> = TypedTopic::new("one-way", |id| format!("one-way:{id}"));
    drop(TopicHooks::<_, ()>::new(AllowAll).subscribed(&ONE_WAY, |_, _| Ok(())));
}

#[tokio::test]
async fn a_subscription_with_a_time_ends_when_it_is_over_and_is_renewed_by_repeating_it() {
    let clock = ManualClock::at(Timestamp::from_millis(0));
    let driver = Arc::new(MemoryDriver::new(local("")));
    let hub: Hub<()> = Hub::new(driver, TopicRules::default(), Arc::new(AllowAll), Arc::new(clock.clone()));
    let world = World { hub };
    let mut client = world.client("a");
    let ttl = MutateOptions { ttl: Some(Duration::from_secs(10)), ..MutateOptions::default() };
    assert_eq!(counts(now(client.topics.subscribe_many(["a", "b", "c:*"], &ttl))), (3, 0, 3));
    client.subscribes("d");
    clock.advance(Duration::from_secs(9));
    assert_eq!(client.topics.expire(), Vec::<Arc<str>>::new());
    assert_eq!(counts(now(client.topics.subscribe("b", &ttl))), (0, 0, 4), "renewed");
    assert_eq!(client.subscribes("a").added, 0, "without a time nothing is renewed");
    clock.advance(Duration::from_secs(1));
    let mut ended = client.topics.expire();
    ended.sort();
    assert_eq!(ended, ["a".into(), "c:*".into()]);
    assert_eq!(client.topics.local_status("a"), LocalStatus::Absent);
    assert_eq!(world.publishes("a", "x").matched(), Some(0));
    assert_eq!(world.publishes("c:1", "x").matched(), Some(0));
    client.unsubscribes("b");
    client.subscribes("b");
    clock.advance(Duration::from_secs(100));
    assert_eq!(
        client.topics.expire(),
        Vec::<Arc<str>>::new(),
        "what was left and taken up again has no time"
    );
    assert_eq!(world.publishes("b", "y").matched(), Some(1));
    assert_eq!(client.hears(1).await, ["y"]);
    assert_eq!(world.hub.subscriptions(), 2);
}

#[tokio::test]
async fn a_topic_has_so_many_subscribers_however_they_come_and_go() {
    let rule = |pattern: &str, most| {
        let pattern = Pattern::parse(pattern).expect("a pattern");
        TopicRule { max_subscribers: most, ..TopicRule::new(pattern) }
    };
    let rules = TopicRules::default().with_rules([rule("free:*", None), rule("**", Some(2))]);
    let world: World = with(Arc::new(MemoryDriver::new(local(""))), rules, Arc::new(AllowAll));
    let clients: Vec<Client> = ["a", "b", "c"].map(|id| world.client(id)).into();
    let full =
        |client: &Client, topic: &str| match now(client.topics.subscribe(topic, &MutateOptions::default())) {
            Err(MutateError::PubSub(error)) => {
                assert_eq!(error.code, PubSubErrorCode::TopicLimitExceeded);
                let details = json!({ "scope": "topic", "limit": 2, "topic": topic });
                assert_eq!(serde_json::Value::Object(error.details.to_json()), details);
            }
            other => panic!("{other:?}"),
        };
    clients.iter().for_each(|client| drop(client.subscribes("free:1")));
    clients[..2].iter().for_each(|client| drop(client.subscribes("t")));
    full(&clients[2], "t");
    full(&clients[2], "t");
    assert_eq!(clients[2].subscribes("t:*").added, 1, "a pattern does not count");
    assert_eq!(clients[0].subscribes("t").added, 0);
    clients[0].unsubscribes("t");
    clients[2].subscribes("t");
    full(&clients[0], "t");
    clients[2].topics.remove_where(|topic| topic == "t", "revoked");
    clients[0].subscribes("t");
    clients[1].topics.close();
    clients[2].subscribes("t");
    now(clients[2].topics.set(["u"], &MutateOptions::default())).expect("a set");
    world.client("d").subscribes("t");
    // Dropped at once.
    world.client("e").subscribes("t");
}
