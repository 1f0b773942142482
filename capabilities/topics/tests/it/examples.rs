//! The examples of the specification, as programs that embed this crate would write them.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidings_topics::router::{Data, HandlerError, PubSub, Router};
use tidings_topics::{
    AclDetails, Action, Answer, CancellationToken, Connection, Decision, Denial, ErrorDetails, Invalid,
    Message, MutateError, MutateOptions, ObserverError, Policy, PubSubErrorCode, PublishOptions,
    PublishResult, Topics, TypedTopic,
};

use crate::router::{Ack, Say, Text, frames, hub, say, send, with_pub_sub};

/// Messages of these examples.
macro_rules! messages {
    ($($name:ident $type:literal { $($field:ident: $kind:ty),* })*) => {
        $(
            #[derive(Clone, Debug, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct $name { $($field: $kind),* }
            impl Message for $name {
                const TYPE: &'static str = $type;
                type Payload = Self;
            }
        )*
    };
}

messages! {
    JoinRoom "JOIN_ROOM" { room_id: String }
    LeaveRoom "LEAVE_ROOM" { room_id: String }
    JoinRooms "JOIN_ROOMS" { room_ids: Vec<String> }
    LeaveAll "LEAVE_ALL" { }
    Update "UPDATE_SUBSCRIPTIONS" { desired: Vec<String> }
    UserJoined "USER_JOINED" { user_id: String }
    UserLeft "USER_LEFT" { user_id: String }
    Heartbeat "HEARTBEAT" { timestamp: u64 }
    Chat "CHAT" { text: String, user_id: String }
}

fn options() -> MutateOptions {
    MutateOptions::default()
}

#[derive(Clone, Default)]
struct User {
    id: String,
    room: Option<String>,
}

fn user(id: &str) -> User {
    User { id: id.to_owned(), room: None }
}

/// 10.1
#[tokio::test]
async fn example_1_plain_topics() {
    let router = with_pub_sub::<User>()
        .on::<JoinRoom, _, _>(|ctx, join| async move {
            let topic = format!("room:{}", join.room_id);
            ctx.topics().subscribe(&topic, &options()).await?;
            if ctx.topics().contains(&topic) {
                let joined = UserJoined { user_id: ctx.data().id.clone() };
                let sent = ctx.publish::<UserJoined>(&topic, &joined, PublishOptions::default()).await;
                assert!(sent.is_ok());
            }
            let topics: Vec<String> = ctx.topics().iter().map(|topic| topic.to_string()).collect();
            ctx.reply::<Ack>(&json!({ "topics": topics }));
            Ok(())
        })
        .on::<LeaveRoom, _, _>(|ctx, leave| async move {
            ctx.topics().unsubscribe(&format!("room:{}", leave.room_id), &options()).await?;
            ctx.reply::<Ack>(&json!({}));
            Ok(())
        });
    let (ann, mut to_ann) = router.connect("a", user("ann")).await;
    let (bob, mut to_bob) = router.connect("b", user("bob")).await;
    let join = json!({ "type": "JOIN_ROOM", "payload": { "roomId": "123" } });
    send(&ann, join.clone()).await;
    let heard = frames(&mut to_ann).await;
    assert!(heard.contains(&json!({ "type": "ACK", "payload": { "topics": ["room:123"] } })));
    assert_eq!(heard.iter().filter(|frame| frame["type"] == "USER_JOINED").count(), 1, "ann hears herself");
    send(&bob, join).await;
    assert_eq!(frames(&mut to_ann).await[0]["payload"], json!({ "userId": "bob" }));
    send(&ann, json!({ "type": "LEAVE_ROOM", "payload": { "roomId": "123" } })).await;
    frames(&mut to_ann).await;
    let sent = router.publish::<Say>("room:123", &say("who is there?"), PublishOptions::default()).await;
    assert_eq!(sent.matched(), Some(1));
    assert!(frames(&mut to_ann).await.is_empty());
    assert_eq!(frames(&mut to_bob).await.last().expect("a frame")["type"], "SAY");
}

/// 10.2
#[tokio::test]
async fn example_2_batches() {
    let router = with_pub_sub::<()>()
        .on::<JoinRooms, _, _>(|ctx, join| async move {
            let topics = join.room_ids.iter().map(|id| format!("room:{id}"));
            let change = ctx.topics().subscribe_many(topics, &options()).await?;
            ctx.reply::<Ack>(&json!({ "added": change.added, "total": change.total }));
            Ok(())
        })
        .on::<LeaveAll, _, _>(|ctx, _| async move {
            let change = ctx.topics().clear(&options()).await?;
            ctx.reply::<Ack>(&json!({ "removed": change.removed }));
            Ok(())
        });
    let (session, mut outbox) = router.connect("a", ()).await;
    send(&session, json!({ "type": "JOIN_ROOMS", "payload": { "roomIds": ["1", "2", "1"] } })).await;
    send(&session, json!({ "type": "JOIN_ROOMS", "payload": { "roomIds": ["3", "no spaces"] } })).await;
    send(&session, json!({ "type": "LEAVE_ALL", "payload": {} })).await;
    let answers = frames(&mut outbox).await;
    assert_eq!(answers[0]["payload"], json!({ "added": 2, "total": 2 }));
    assert_eq!(answers[1]["payload"]["code"], "INVALID_TOPIC");
    assert_eq!(answers[2]["payload"], json!({ "removed": 2 }), "all or nothing");
}

/// A room of a number in hexadecimal, which stands for the identifier of the example.
const ROOM: TypedTopic<String> = TypedTopic::new("room", |id: &String| format!("room:{id}"))
    .validated(|id| {
        if !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(())
        } else {
            Err(Invalid::new("a room has a hexadecimal number"))
        }
    })
    .parsed(|topic| Some(topic.strip_prefix("room:")?.to_owned()));

/// 4 and 10.3
#[tokio::test]
async fn example_3_typed_topics() {
    let router = with_pub_sub::<User>().on::<JoinRoom, _, _>(|ctx, join| async move {
        let topic = ROOM
            .make(&join.room_id)
            .map_err(|invalid| HandlerError::new("INVALID_ARGUMENT", invalid.to_string()))?;
        ctx.topics().subscribe(&topic, &options()).await?;
        let joined = UserJoined { user_id: ctx.data().id.clone() };
        assert!(ctx.publish::<UserJoined>(&topic, &joined, PublishOptions::default()).await.is_ok());
        ctx.reply::<Ack>(&json!({ "topic": topic }));
        Ok(())
    });
    let (session, mut outbox) = router.connect("a", user("ann")).await;
    send(&session, json!({ "type": "JOIN_ROOM", "payload": { "roomId": "7f" } })).await;
    send(&session, json!({ "type": "JOIN_ROOM", "payload": { "roomId": "no spaces" } })).await;
    let answers = frames(&mut outbox).await;
    assert!(answers.contains(&json!({ "type": "ACK", "payload": { "topic": "room:7f" } })), "{answers:?}");
    assert!(answers.iter().any(|frame| frame["payload"]["code"] == "INVALID_ARGUMENT"));
    assert_eq!(
        (ROOM.name(), ROOM.parse("room:7f").as_deref(), ROOM.parse("room:x")),
        ("room", Some("7f"), None)
    );
}

/// Topics in lower case; rooms for members, own notifications for their owner.
struct Members {
    observed: Mutex<Vec<String>>,
}

impl Policy<Data<User>> for Members {
    fn normalize<'t>(&self, topic: &'t str, _: Option<&Connection<Data<User>>>) -> Cow<'t, str> {
        topic.to_lowercase().into()
    }

    fn authorize<'a>(
        &'a self,
        action: Action,
        topic: &'a str,
        connection: &'a Connection<Data<User>>,
    ) -> Answer<'a, Decision> {
        let user = connection.data.get();
        Answer::later(async move {
            // The program might ask its database here.
            tokio::task::yield_now().await;
            let allowed = match topic.rsplit_once(':') {
                Some(("user:notifications", id)) => action != Action::Subscribe || id == user.id,
                Some(("room", _)) => true,
                _ => false,
            };
            if allowed { Decision::Allow } else { Decision::Deny(Denial::forbidden("not yours")) }
        })
    }

    fn subscribed(&self, topic: &str, connection: &Connection<Data<User>>) -> Result<(), ObserverError> {
        self.observed.lock().expect("no panic").push(format!("{} joined {topic}", connection.data.get().id));
        Ok(())
    }
}

/// 5.0, 5.1, 5.2, 7 and 10.4
#[tokio::test]
async fn example_4_authorization_in_one_place() {
    let policy = Arc::new(Members { observed: Mutex::default() });
    let router = Router::new().with_pub_sub(hub(policy.clone()));
    let (session, _outbox) = router.connect("a", user("ann")).await;
    let topics = session.context(None).topics().clone();
    topics.subscribe("Room:1", &options()).await.expect("rooms are for all");
    topics.subscribe("user:notifications:ANN", &options()).await.expect("her own");
    for (topic, expected) in [
        ("user:notifications:bob", "E_ACL user:notifications:bob"),
        ("admin:x", "E_ACL admin:x"),
        ("Room: 1", "E_INVALID characters"),
        (&"x".repeat(129), "E_TOPIC_TOO_LONG 128"),
    ] {
        let told = match topics.subscribe(topic, &options()).await {
            Err(MutateError::PubSub(error)) => match (error.code, error.details) {
                (PubSubErrorCode::AclSubscribe, ErrorDetails::Acl(AclDetails { topic, .. })) => {
                    format!("E_ACL {topic}")
                }
                (PubSubErrorCode::InvalidTopic, ErrorDetails::Length { max, .. }) => {
                    format!("E_TOPIC_TOO_LONG {max}")
                }
                (PubSubErrorCode::InvalidTopic, ErrorDetails::Pattern { .. }) => {
                    "E_INVALID characters".to_owned()
                }
                (code, details) => panic!("{code:?} {details:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(told, expected);
    }
    let observed = policy.observed.lock().expect("no panic").clone();
    assert_eq!(observed, ["ann joined room:1", "ann joined user:notifications:ann"]);
}

/// 10.5
#[tokio::test]
async fn example_5_publishing_in_the_background() {
    let router = with_pub_sub::<()>();
    let (session, mut outbox) = router.connect("a", ()).await;
    session.context(None).topics().subscribe("system:heartbeat", &options()).await.expect("a subscription");
    let background = router.clone();
    let job = tokio::spawn(async move {
        let beat = Heartbeat { timestamp: 1_000 };
        background.publish::<Heartbeat>("system:heartbeat", &beat, PublishOptions::default()).await
    });
    assert_eq!(job.await.expect("it runs").matched(), Some(1));
    assert_eq!(frames(&mut outbox).await[0]["payload"], json!({ "timestamp": 1_000 }));
}

/// 6.7 and 10.6
#[tokio::test]
async fn example_6_the_sender_stands_in_the_payload() {
    let router = with_pub_sub::<User>().on::<Say, _, _>(|ctx, said: Text| async move {
        let chat = Chat { text: said.text, user_id: ctx.data().id.clone() };
        let told = match ctx.publish::<Chat>("room:1", &chat, PublishOptions::default()).await {
            PublishResult::Sent(sent) => {
                json!({ "matched": sent.matched, "capability": sent.capability.as_str() })
            }
            PublishResult::Failed(failure) if failure.is_retryable() => json!("later"),
            PublishResult::Failed(_) => json!("never"),
        };
        ctx.reply::<Ack>(&told);
        Ok(())
    });
    let (ann, mut to_ann) = router.connect("client-of-ann", user("ann")).await;
    let (bob, mut to_bob) = router.connect("client-of-bob", user("bob")).await;
    for session in [&ann, &bob] {
        session.context(None).topics().subscribe("room:1", &options()).await.expect("a subscription");
    }
    send(&ann, json!({ "type": "SAY", "payload": { "text": "hi" } })).await;
    let heard = frames(&mut to_bob).await;
    assert_eq!(heard[0]["payload"], json!({ "text": "hi", "userId": "ann" }));
    assert!(!heard[0].to_string().contains("client-of"), "connections are nobody's business");
    let answers = frames(&mut to_ann).await;
    assert!(answers.iter().any(|frame| frame["payload"] == json!({ "matched": 2, "capability": "exact" })));
    let others: Vec<&Value> = answers.iter().filter(|frame| frame["payload"]["userId"] != "ann").collect();
    assert_eq!(others.len(), 1, "ann can leave out her own");
}

/// 10.7
#[tokio::test]
async fn example_7_joining_and_leaving_a_room() {
    let router = with_pub_sub::<User>();
    let hub = router.hub().clone();
    let router = router
        .on::<JoinRoom, _, _>(|ctx, join| async move {
            ctx.assign_data(|user| user.room = Some(join.room_id.clone()));
            let topic = format!("room:{}", join.room_id);
            ctx.topics().subscribe(&topic, &options()).await?;
            let joined = UserJoined { user_id: ctx.data().id.clone() };
            assert!(ctx.publish::<UserJoined>(&topic, &joined, PublishOptions::default()).await.is_ok());
            Ok(())
        })
        .on_close(move |ctx| {
            let hub = hub.clone();
            async move {
                if let Some(room) = &ctx.data().room {
                    let topic = format!("room:{room}");
                    ctx.topics().unsubscribe(&topic, &options()).await?;
                    let left = UserLeft { user_id: ctx.data().id.clone() };
                    let sent =
                        hub.publish_message::<UserLeft>(&topic, &left, PublishOptions::default()).await;
                    assert_eq!(sent.matched(), Some(1), "only who stays");
                }
                Ok(())
            }
        });
    let (ann, mut to_ann) = router.connect("a", user("ann")).await;
    let (bob, _to_bob) = router.connect("b", user("bob")).await;
    for session in [&ann, &bob] {
        send(session, json!({ "type": "JOIN_ROOM", "payload": { "roomId": "1" } })).await;
    }
    bob.close().await;
    let types: Vec<Value> = frames(&mut to_ann).await.iter().map(|frame| frame["type"].clone()).collect();
    assert_eq!(types, ["USER_JOINED", "USER_JOINED", "USER_LEFT"]);
}

/// 10.8
#[tokio::test]
async fn example_8_one_difference_for_each_operation() {
    let router = with_pub_sub::<()>().on::<Update, _, _>(|ctx, update| async move {
        let before = ctx.topics().snapshot();
        let change = ctx.topics().set(&update.desired, &options()).await?;
        let after = ctx.topics().snapshot();
        let added: Vec<String> =
            after.iter().filter(|topic| !before.contains(topic)).map(|topic| topic.to_string()).collect();
        let removed: Vec<String> = before
            .iter()
            .filter(|topic| !ctx.topics().contains(topic))
            .map(|topic| topic.to_string())
            .collect();
        assert_eq!((added.len(), removed.len()), (change.added, change.removed));
        ctx.reply::<Ack>(&json!({ "added": added, "removed": removed, "total": change.total }));
        Ok(())
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    for desired in [vec!["a", "b"], vec!["b", "c", "d"]] {
        send(&session, json!({ "type": "UPDATE_SUBSCRIPTIONS", "payload": { "desired": desired } })).await;
    }
    let answers = frames(&mut outbox).await;
    assert_eq!(answers[0]["payload"], json!({ "added": ["a", "b"], "removed": [], "total": 2 }));
    assert_eq!(answers[1]["payload"], json!({ "added": ["c", "d"], "removed": ["a"], "total": 3 }));
}

/// 10.9
#[tokio::test]
async fn example_9_what_follows_a_change_does_not_undo_it() {
    async fn audit(topics: usize) -> Result<(), String> {
        Err(format!("the audit log is full, {topics} topics are not noted"))
    }
    let router = with_pub_sub::<()>().on::<JoinRooms, _, _>(|ctx, join| async move {
        let topics = join.room_ids.iter().map(|id| format!("room:{id}"));
        let change = ctx.topics().subscribe_many(topics, &options()).await?;
        assert!(audit(change.added).await.is_err());
        ctx.reply::<Ack>(&json!({ "added": change.added, "total": change.total }));
        Ok(())
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    send(&session, json!({ "type": "JOIN_ROOMS", "payload": { "roomIds": ["1", "2"] } })).await;
    assert_eq!(frames(&mut outbox).await[0]["payload"], json!({ "added": 2, "total": 2 }));
    assert_eq!(session.context(None).topics().len(), 2);
}

/// A connection's tenant, and the rules that were loaded for it.
#[derive(Clone, Default)]
struct Tenant {
    rooms: Option<Arc<Vec<String>>>,
}

/// Loads the rules of a tenant once for each connection, until they are invalidated.
#[derive(Default)]
struct Tenants {
    loaded: AtomicUsize,
}

impl Policy<Data<Tenant>> for Tenants {
    fn authorize<'a>(
        &'a self,
        _: Action,
        topic: &'a str,
        connection: &'a Connection<Data<Tenant>>,
    ) -> Answer<'a, Decision> {
        Answer::later(async move {
            let rooms = match &connection.data.get().rooms {
                Some(rooms) => rooms.clone(),
                None => {
                    let version = self.loaded.fetch_add(1, Ordering::SeqCst);
                    let rooms = Arc::new(vec![format!("room:{version}")]);
                    connection.data.assign(|tenant| tenant.rooms = Some(rooms.clone()));
                    rooms
                }
            };
            if rooms.iter().any(|room| room == topic) {
                Decision::Allow
            } else {
                Decision::Deny(Denial::forbidden("tenant"))
            }
        })
    }

    fn invalidate(&self, connection: &Connection<Data<Tenant>>) {
        connection.data.assign(|tenant| tenant.rooms = None);
    }
}

/// 10.10
#[tokio::test]
async fn example_10_a_policy_that_is_loaded_once_for_each_connection() {
    let policy = Arc::new(Tenants::default());
    let router = Router::new().with_pub_sub(hub(policy.clone()));
    let (session, _outbox) = router.connect("a", Tenant::default()).await;
    let ctx = session.context(None);
    let publish =
        async |topic: &str| ctx.publish::<Say>(topic, &say("x"), PublishOptions::default()).await.is_ok();
    assert!(publish("room:0").await);
    assert!(!publish("room:1").await);
    assert_eq!(policy.loaded.load(Ordering::SeqCst), 1, "it is remembered");
    ctx.invalidate_auth();
    assert!(!publish("room:0").await);
    assert!(publish("room:1").await, "rights have changed");
    assert_eq!(policy.loaded.load(Ordering::SeqCst), 2);
}

/// 10.11
#[tokio::test]
async fn example_11_helpers_of_the_program() {
    async fn ensure(topics: &Topics, topic: &str) -> Result<bool, MutateError> {
        Ok(!topics.contains(topic) && topics.subscribe(topic, &options()).await?.added == 1)
    }
    async fn sync(
        topics: &Topics,
        desired: &[&str],
        cancel: CancellationToken,
    ) -> Result<usize, MutateError> {
        Ok(topics.set(desired, &options().cancelled_by(cancel)).await?.total)
    }
    async fn drop_many(topics: &Topics, unwanted: &[&str]) -> Result<usize, MutateError> {
        Ok(topics.unsubscribe_many(unwanted, &options()).await?.removed)
    }
    async fn subscribe_if(topics: &Topics, topic: &str, condition: bool) -> Result<(), MutateError> {
        if condition {
            topics.subscribe(topic, &options()).await?;
        }
        Ok(())
    }
    let router = with_pub_sub::<()>();
    let (session, _outbox) = router.connect("a", ()).await;
    let topics = session.context(None).topics().clone();
    assert!(ensure(&topics, "a").await.expect("a subscription"));
    assert!(!ensure(&topics, "a").await.expect("there is one"));
    assert_eq!(sync(&topics, &["a", "b", "c"], CancellationToken::new()).await.expect("a set"), 3);
    assert_eq!(drop_many(&topics, &["a", "b", "never", "not valid"]).await.expect("fewer"), 2);
    subscribe_if(&topics, "d", false).await.expect("nothing");
    subscribe_if(&topics, "e", true).await.expect("a subscription");
    assert_eq!(topics.iter().map(|topic| topic.to_string()).collect::<Vec<_>>(), ["c", "e"]);
}

/// 9
#[tokio::test]
async fn example_12_a_client_that_reconnects_sets_what_it_wants() {
    let desired: Arc<Mutex<Vec<String>>> =
        Arc::new(Mutex::new(vec!["room:123".to_owned(), "system:announcements".to_owned()]));
    let (at_open, at_join) = (desired.clone(), desired.clone());
    let router: Router<(), PubSub<()>> = with_pub_sub()
        .on_open(move |ctx| {
            let desired = at_open.lock().expect("no panic").clone();
            async move {
                let change = ctx.topics().set(desired, &options()).await?;
                ctx.send::<Ack>(&json!([change.added, change.removed, change.total]));
                Ok(())
            }
        })
        .on::<JoinRoom, _, _>(move |ctx, join| {
            let desired = {
                let mut desired = at_join.lock().expect("no panic");
                desired.push(format!("room:{}", join.room_id));
                desired.clone()
            };
            async move {
                let change = ctx.topics().set(desired, &options()).await?;
                ctx.reply::<Ack>(&json!([change.added, change.removed, change.total]));
                Ok(())
            }
        });
    let (session, mut outbox) = router.connect("a", ()).await;
    send(&session, json!({ "type": "JOIN_ROOM", "payload": { "roomId": "7" } })).await;
    let answers = frames(&mut outbox).await;
    assert_eq!((&answers[0]["payload"], &answers[1]["payload"]), (&json!([2, 0, 2]), &json!([1, 0, 3])));
    drop((session, outbox));
    let (_session, mut outbox) = router.connect("b", ()).await;
    assert_eq!(
        frames(&mut outbox).await[0]["payload"],
        json!([3, 0, 3]),
        "nothing was kept, everything is back"
    );
}
