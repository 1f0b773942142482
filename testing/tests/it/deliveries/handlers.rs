//! Hooks whose deliveries go to a handler in the server's own process.

use std::sync::Mutex;

use futures_util::FutureExt;
use tidings_hooks::{Call, Handler};

use super::*;

/// A handler that keeps its calls and gives results in turn; the last one repeats.
fn handler(results: Vec<Result<&'static str, &'static str>>) -> (Handler, Arc<Mutex<Vec<Call>>>) {
    let calls = Arc::<Mutex<Vec<Call>>>::default();
    let kept = calls.clone();
    let handler: Handler = Arc::new(move |call| {
        let mut calls = kept.lock().expect("nobody panics");
        let result = results[calls.len().min(results.len() - 1)];
        calls.push(call);
        std::future::ready(result.map(str::to_owned).map_err(str::to_owned)).boxed()
    });
    (handler, calls)
}

async fn subscribes(api: &Api, endpoint: &Endpoint, more: Value) -> Hook {
    let mut settings = json!({
        "url": endpoint.url("/fallback"), "pattern": "users.*", "workerBinding": "USERS", "rpcMethod": "handleUser",
    });
    for (name, value) in more.as_object().expect("an object") {
        settings[name] = value.clone();
    }
    api.subscribes(settings).await
}

#[tokio::test]
async fn a_handler_in_the_process_is_called_with_the_event_and_its_result_is_in_the_log() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let (handler, calls) = handler(vec![Ok("{\"processed\":true}")]);
    server.server().hooks().bind("USERS", handler);
    let hook = subscribes(&api, &endpoint, json!({ "format": "cloudevents-structured" })).await;
    let event = api.event("users.created", json!({ "id": "evt-1", "name": "ada" }));
    api.ingests(vec![event.clone()]).await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 0, "the endpoint is not called");
    let delivery = api.delivery(&hook).await;
    let call = calls.lock().expect("nobody panics").remove(0);
    assert_eq!((call.method.as_str(), call.event.as_str()), ("handleUser", "evt-1"));
    assert_eq!(call.delivery, delivery["id"].as_str().expect("an id"));
    assert_eq!(serde_json::from_slice::<Value>(&call.payload).expect("JSON"), event);
    assert_eq!(api.log(&delivery).await[0]["workerResponse"], "{\"processed\":true}");
    assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 1, ..Stats::default() });
}

#[tokio::test]
async fn a_handler_that_is_not_bound_is_replaced_by_the_endpoint_until_it_is() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let hook = subscribes(&api, &endpoint, json!({})).await;
    api.publishes("users.created", json!({ "n": 1 })).await;
    assert_eq!(endpoint.receives(1).await[0].path, "/fallback");
    rests(&server).await;
    let (handler, calls) = handler(vec![Ok("")]);
    server.server().hooks().bind("USERS", handler);
    api.publishes("users.created", json!({ "n": 2 })).await;
    rests(&server).await;
    assert_eq!((endpoint.received().len(), calls.lock().expect("nobody panics").len()), (1, 1));
    assert_eq!(api.stats(&hook).await, Stats { delivered: 2, attempts: 2, ..Stats::default() });
}

#[tokio::test]
async fn an_error_of_a_handler_is_a_failed_attempt_that_is_repeated() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let (handler, calls) = handler(vec![Err("the database is away"), Ok("done")]);
    server.server().hooks().bind("USERS", handler);
    let hook = subscribes(&api, &endpoint, json!({ "retrySchedule": [10_000] })).await;
    api.publishes("users.created", json!({})).await;
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { failed: 1, attempts: 1, ..Stats::default() });
    passes(&server, 10 * SECOND).await;
    assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 2, ..Stats::default() });
    let log = api.log(&api.delivery(&hook).await).await;
    assert_eq!(log[0]["errorMessage"], "the database is away");
    assert_eq!(log[1]["workerResponse"], "done");
    let calls = calls.lock().expect("nobody panics");
    assert_eq!(calls[0].delivery, calls[1].delivery);
}

#[tokio::test]
async fn a_handler_that_panics_or_never_ends_harms_only_its_attempt() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let other = api.hears("users.*", &endpoint).await;
    server.server().hooks().bind("PANICS", Arc::new(|_| panic!("as it is told to")));
    server.server().hooks().bind("PANICS_LATER", Arc::new(|_| async { panic!("as it is told to") }.boxed()));
    server.server().hooks().bind("HANGS", Arc::new(|_| std::future::pending().boxed()));
    let mut hooks = Vec::new();
    for (binding, error) in [
        ("PANICS", "the handler panicked"),
        ("PANICS_LATER", "the handler panicked"),
        ("HANGS", "RPC timeout"),
    ] {
        let settings =
            json!({ "workerBinding": binding, "rpcMethod": binding, "maxRetries": 1, "timeoutMs": 2000 });
        let settings = {
            let mut settings = settings;
            settings["url"] = endpoint.url(&format!("/{binding}")).into();
            settings
        };
        hooks.push((subscribes(&api, &endpoint, settings).await, error));
    }
    api.publishes("users.created", json!({})).await;
    comes_to(&api, &other, Stats { delivered: 1, attempts: 1, ..Stats::default() }).await;
    let waiting = || server.clock.sleepers();
    let before = waiting();
    assert!(before > 0);
    passes(&server, 2 * SECOND).await;
    for (hook, error) in hooks {
        assert_eq!(texts(&api.dead_letters(&hook).await, "lastError"), [error]);
        assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 1, ..Stats::default() });
    }
    assert_eq!(endpoint.received().len(), 1, "no endpoint stands in for a handler that failed");
}
