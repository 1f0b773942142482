//! Routers: typed messages, handlers, middleware, hooks, and what the client is told.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidings_engine::{Clock, ManualClock};
use tidings_model::Timestamp;
use tidings_topics::router::{Capability, Data, HandlerError, NoPubSub, Outbox, PubSub, Router, Session};
use tidings_topics::{AllowAll, Hub, Invalid, Message, Policy, PublishError, PublishOptions, TopicRules};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Text {
    pub text: String,
}

/// A message with a text that is not empty.
pub struct Say;

impl Message for Say {
    const TYPE: &'static str = "SAY";
    type Payload = Text;

    fn validate(say: &Text) -> Result<(), Invalid> {
        if say.text.is_empty() { Err(Invalid::new("text is empty")) } else { Ok(()) }
    }
}

/// A message without payload.
pub struct Ping;

impl Message for Ping {
    const TYPE: &'static str = "PING";
    type Payload = ();
}

/// Any answer.
pub struct Ack;

impl Message for Ack {
    const TYPE: &'static str = "ACK";
    type Payload = Value;
}

pub fn say(text: &str) -> Text {
    Text { text: text.to_owned() }
}

pub fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::at(Timestamp::from_millis(1_000)))
}

pub fn hub<D: Send + Sync + 'static>(policy: Arc<dyn Policy<Data<D>>>) -> Hub<Data<D>> {
    Hub::in_memory(TopicRules::default(), policy, clock())
}

pub fn with_pub_sub<D: Send + Sync + 'static>() -> Router<D, PubSub<D>> {
    Router::new().with_pub_sub(hub(Arc::new(AllowAll)))
}

/// What the outbox has once everybody had a turn.
pub async fn frames(outbox: &mut Outbox) -> Vec<Value> {
    let mut frames = Vec::new();
    for _ in 0..16 {
        while let Some(Some(frame)) = outbox.next().now_or_never() {
            frames.push(serde_json::from_slice(&frame).expect("JSON"));
        }
        tokio::task::yield_now().await;
    }
    frames
}

pub async fn send<D: Send + Sync + 'static, C: Capability<D>>(session: &Session<D, C>, frame: Value) {
    session.receive(&frame.to_string()).await;
}

#[tokio::test]
async fn a_message_goes_to_the_handler_of_its_type() {
    let router = Router::<(), NoPubSub>::new()
        .on::<Say, _, _>(|ctx, said| async move {
            ctx.reply::<Ack>(
                &json!({ "said": said.text, "lang": ctx.meta().get("lang"), "by": ctx.client_id().as_str() }),
            );
            Ok(())
        })
        .on::<Ping, _, _>(|ctx, ()| async move {
            ctx.send::<Say>(&say("pong"));
            Ok(())
        });
    let (session, mut outbox) = router.connect("c1", ()).await;
    let said =
        json!({ "type": "SAY", "payload": { "text": "hi" }, "meta": { "lang": "de", "clientId": "forged" } });
    send(&session, said).await;
    send(&session, json!({ "type": "PING" })).await;
    assert_eq!(
        frames(&mut outbox).await,
        [
            json!({ "type": "ACK", "payload": { "said": "hi", "lang": "de", "by": "c1" } }),
            json!({ "type": "SAY", "payload": { "text": "pong" } }),
        ]
    );
}

#[tokio::test]
async fn every_message_that_is_refused_is_answered_with_a_code() {
    let router = Router::<(), NoPubSub>::new().on::<Say, _, _>(|_, said| async move {
        match said.text.as_str() {
            "fail" => Err(HandlerError::new("NOT_FOUND", "there is no such thing").with("what", "thing")),
            "panic" => panic!("a handler panics"),
            _ => Ok(()),
        }
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let cases = [
        ("not json", "INVALID_ARGUMENT", json!({ "reason": "json" })),
        ("[1]", "INVALID_ARGUMENT", json!({ "reason": "envelope" })),
        ("{\"type\":7}", "INVALID_ARGUMENT", json!({ "reason": "envelope" })),
        ("{\"type\":\"\"}", "INVALID_ARGUMENT", json!({ "reason": "envelope" })),
        (
            "{\"type\":\"SAY\",\"meta\":{\"correlationId\":7}}",
            "INVALID_ARGUMENT",
            json!({ "reason": "envelope" }),
        ),
        ("{\"type\":\"$subscribe\"}", "UNIMPLEMENTED", json!({ "type": "$subscribe" })),
        ("{\"type\":\"OTHER\"}", "UNIMPLEMENTED", json!({ "type": "OTHER" })),
        ("{\"type\":\"SAY\"}", "INVALID_ARGUMENT", json!({ "reason": "payload", "type": "SAY" })),
        (
            "{\"type\":\"SAY\",\"payload\":{\"text\":1}}",
            "INVALID_ARGUMENT",
            json!({ "reason": "payload", "type": "SAY" }),
        ),
        (
            "{\"type\":\"SAY\",\"payload\":{\"text\":\"\"}}",
            "INVALID_ARGUMENT",
            json!({ "reason": "payload", "type": "SAY" }),
        ),
        ("{\"type\":\"SAY\",\"payload\":{\"text\":\"fail\"}}", "NOT_FOUND", json!({ "what": "thing" })),
        ("{\"type\":\"SAY\",\"payload\":{\"text\":\"panic\"}}", "INTERNAL", Value::Null),
    ];
    for (text, code, details) in cases {
        session.receive(text).await;
        let told = frames(&mut outbox).await;
        assert_eq!(told.len(), 1, "{text}");
        assert_eq!(
            (&told[0]["type"], &told[0]["payload"]["code"]),
            (&json!("ERROR"), &json!(code)),
            "{text}"
        );
        assert_eq!(told[0]["payload"]["details"], details, "{text}");
        assert!(told[0]["payload"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    std::panic::set_hook(hook);
    session.receive("{\"type\":\"SAY\",\"payload\":{\"text\":\"fine\"}}").await;
    assert_eq!(frames(&mut outbox).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_request_with_a_correlation_id_has_one_answer() {
    let router = Router::<(), NoPubSub>::new().on::<Say, _, _>(|ctx, said| async move {
        if said.text == "error" {
            ctx.error("NO", "no");
        }
        ctx.reply::<Ack>(&json!(1));
        ctx.reply::<Ack>(&json!(2));
        Err(HandlerError::new("LATE", "too late"))
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    let request =
        |text: &str| json!({ "type": "SAY", "meta": { "correlationId": "7" }, "payload": { "text": text } });
    send(&session, request("hi")).await;
    let meta = json!({ "correlationId": "7" });
    assert_eq!(frames(&mut outbox).await, [json!({ "type": "ACK", "meta": meta, "payload": 1 })]);
    send(&session, request("error")).await;
    let told = frames(&mut outbox).await;
    assert_eq!(told.len(), 1);
    assert_eq!((&told[0]["type"], &told[0]["meta"]), (&json!("RPC_ERROR"), &meta));
    assert_eq!(told[0]["payload"], json!({ "code": "NO", "message": "no", "retryable": false }));
}

#[tokio::test]
async fn middleware_runs_in_order_around_the_handler_and_may_stop_it() {
    let log: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |what: &'static str| {
        let log = log.clone();
        move || log.lock().expect("no panic").push(what)
    };
    let (before, after, inner, handled) = (note("before"), note("after"), note("inner"), note("handled"));
    let router = Router::<(), NoPubSub>::new()
        .wrap(move |ctx, next| {
            let (before, after) = (before.clone(), after.clone());
            async move {
                before();
                let result = next.run(ctx).await;
                after();
                result
            }
        })
        .wrap(move |ctx, next| {
            let inner = inner.clone();
            async move {
                inner();
                if ctx.meta().contains_key("stop") {
                    return Err(HandlerError::new("PERMISSION_DENIED", "stopped"));
                }
                next.run(ctx).await
            }
        })
        .on::<Ping, _, _>(move |_, ()| {
            handled();
            async { Ok(()) }
        });
    let (session, mut outbox) = router.connect("a", ()).await;
    send(&session, json!({ "type": "PING" })).await;
    assert_eq!(std::mem::take(&mut *log.lock().expect("no panic")), ["before", "inner", "handled", "after"]);
    send(&session, json!({ "type": "PING", "meta": { "stop": true } })).await;
    assert_eq!(std::mem::take(&mut *log.lock().expect("no panic")), ["before", "inner", "after"]);
    assert_eq!(frames(&mut outbox).await[0]["payload"]["code"], "PERMISSION_DENIED");
    send(&session, json!({ "type": "UNKNOWN" })).await;
    assert_eq!(
        *log.lock().expect("no panic"),
        Vec::<&str>::new(),
        "nobody is asked about what has no handler"
    );
}

#[tokio::test]
async fn data_of_a_connection_is_its_own_and_can_be_changed() {
    #[derive(Clone, Default)]
    struct User {
        name: String,
        messages: u32,
    }
    let router = Router::<User, NoPubSub>::new().on::<Ping, _, _>(|ctx, ()| async move {
        let before = ctx.data();
        ctx.assign_data(|user| user.messages += 1);
        assert_eq!(before.messages + 1, ctx.data().messages, "who has read it keeps what was read");
        ctx.reply::<Ack>(&json!([ctx.data().name, ctx.data().messages]));
        Ok(())
    });
    let user = |name: &str| User { name: name.to_owned(), messages: 0 };
    let (ann, mut to_ann) = router.connect("a", user("ann")).await;
    let (bob, mut to_bob) = router.connect("b", user("bob")).await;
    for session in [&ann, &ann, &bob] {
        send(session, json!({ "type": "PING" })).await;
    }
    let payloads =
        |frames: Vec<Value>| frames.iter().map(|frame| frame["payload"].clone()).collect::<Vec<_>>();
    assert_eq!(payloads(frames(&mut to_ann).await), [json!(["ann", 1]), json!(["ann", 2])]);
    assert_eq!(payloads(frames(&mut to_bob).await), [json!(["bob", 1])]);
}

#[tokio::test]
async fn a_connection_is_opened_and_closed_once() {
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let (opened, closed) = (log.clone(), log.clone());
    let router = with_pub_sub::<()>()
        .on_open(move |ctx| {
            opened.lock().expect("no panic").push(format!("open {}", ctx.client_id()));
            async move {
                ctx.topics().set(["news"], &Default::default()).await?;
                ctx.send::<Ping>(&());
                Ok(())
            }
        })
        .on_close(move |ctx| {
            let log = closed.clone();
            async move {
                log.lock().expect("no panic").push(format!("close {}", ctx.client_id()));
                // Cleaning up is always possible, and publishing for the connection is over.
                ctx.topics().unsubscribe("news", &Default::default()).await?;
                let late = ctx.publish::<Say>("news", &say("bye"), PublishOptions::default()).await;
                assert_eq!(late.error(), Some(PublishError::ConnectionClosed));
                Ok(())
            }
        });
    let (session, mut outbox) = router.connect("a", ()).await;
    assert_eq!(session.context(None).topics().snapshot().len(), 1);
    session.close().await;
    session.close().await;
    assert_eq!(*log.lock().expect("no panic"), ["open a", "close a"]);
    assert_eq!(
        &outbox.next().await.expect("what came before the end")[..],
        br#"{"type":"PING","payload":null}"#
    );
    assert_eq!(outbox.next().await, None, "the end");
    assert!(!outbox.is_too_slow());
    assert!(router.hub().connections().is_empty());
    let (session, mut outbox) = router.connect("b", ()).await;
    drop(session);
    assert!(outbox.next().await.is_some());
    assert_eq!(outbox.next().await, None, "also if the session is dropped");
}

#[tokio::test]
async fn a_client_that_does_not_take_its_answers_is_disconnected() {
    let handled = Arc::new(Mutex::new(0));
    let count = handled.clone();
    let router = with_pub_sub::<()>().on::<Ping, _, _>(move |ctx, ()| {
        *count.lock().expect("no panic") += 1;
        async move {
            ctx.reply::<Ack>(&json!("x".repeat(10_000)));
            Ok(())
        }
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    let topics = session.context(None).topics().clone();
    topics.subscribe("t", &Default::default()).await.expect("a subscription");
    for _ in 0..1_000 {
        send(&session, json!({ "type": "PING" })).await;
    }
    let handled = *handled.lock().expect("no panic");
    assert!((20..40).contains(&handled), "{handled} answers of 10 kB, where 256 KiB may wait");
    assert!(topics.is_closed());
    let mut sent = 0;
    while outbox.next().await.is_some() {
        sent += 1;
    }
    assert_eq!(sent, handled, "what was answered is still sent");
}

#[tokio::test]
async fn a_failure_of_a_subscription_is_told_as_it_is() {
    let router = with_pub_sub::<()>().on::<Say, _, _>(|ctx, said| async move {
        ctx.topics().subscribe(&said.text, &Default::default()).await?;
        Ok(())
    });
    let (session, mut outbox) = router.connect("a", ()).await;
    send(&session, json!({ "type": "SAY", "payload": { "text": "no spaces" } })).await;
    let told = frames(&mut outbox).await;
    assert_eq!(told[0]["payload"]["code"], "INVALID_TOPIC");
    assert_eq!(told[0]["payload"]["details"], json!({ "reason": "pattern", "topic": "no spaces" }));
    assert_eq!(told[0]["payload"]["retryable"], false);
}

#[tokio::test]
async fn a_payload_that_is_not_valid_is_not_published() {
    let router = with_pub_sub::<()>();
    let (session, _outbox) = router.connect("a", ()).await;
    let ctx = session.context(None);
    let failed = ctx.publish::<Say>("t", &say(""), PublishOptions::default()).await.to_json();
    let expected =
        json!({ "ok": false, "error": "VALIDATION", "retryable": false, "cause": "text is empty" });
    assert_eq!(failed, expected);
    assert_eq!(router.publish::<Say>("t", &say(""), PublishOptions::default()).await.to_json(), expected);
    assert!(router.publish::<Say>("t", &say("x"), PublishOptions::default()).await.is_ok());
}

#[tokio::test]
async fn a_wrongly_wired_router_is_a_mistake_that_shows_at_start_up() {
    struct Reserved;
    impl Message for Reserved {
        const TYPE: &'static str = "$hello";
        type Payload = ();
    }
    fn twice() {
        let _ = Router::<(), NoPubSub>::new()
            .on::<Say, _, _>(|_, _| async { Ok(()) })
            .on::<Say, _, _>(|_, _| async { Ok(()) });
    }
    fn reserved() {
        let _ = Router::<(), NoPubSub>::new().on::<Reserved, _, _>(|_, ()| async { Ok(()) });
    }
    fn too_late() {
        let router = Router::<(), NoPubSub>::new().on::<Ping, _, _>(|_, ()| async { Ok(()) });
        let _ = router.with_pub_sub(hub(Arc::new(AllowAll)));
    }
    let cases: [(fn(), &str); 3] = [
        (twice, "`SAY` has a handler already"),
        (reserved, "`$hello` is reserved, or not a type of messages"),
        (too_late, "pub/sub is added before handlers, middleware and hooks"),
    ];
    for (wires, expected) in cases {
        let panic = std::panic::catch_unwind(wires).expect_err("it panics");
        let message = match panic.downcast_ref::<String>() {
            Some(message) => message.as_str(),
            None => panic.downcast_ref::<&str>().expect("a message"),
        };
        assert_eq!(message, expected);
    }
}
