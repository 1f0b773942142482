//! Endpoints that behave badly: what is told of them, and what they cannot do.

use tidings_model::Timestamp;

use super::*;

/// An attempt that fails: what the endpoint does, and the error.
struct Bad {
    behaviour: Behaviour,
    error: &'static str,
}

/// Subscribes with one attempt per delivery, which may take a second.
async fn once(api: &Api, endpoint: &Endpoint) -> Hook {
    let url = endpoint.url("/hook");
    api.subscribes(json!({ "url": url, "pattern": "a", "maxRetries": 1, "timeoutMs": 1000 })).await
}

#[tokio::test]
async fn the_log_says_how_an_attempt_failed() {
    let elsewhere = Endpoint::start().await;
    let location = ("location", elsewhere.url("/"));
    let answer = |status, body: &str| Behaviour::Answer(status, vec![location.clone()], body.to_owned());
    let no_http = "the response is not valid HTTP: ";
    let closed = "the endpoint closed the connection before its response was complete";
    for Bad { behaviour, error } in [
        Bad { behaviour: answer(500, "out of order"), error: "HTTP 500: out of order" },
        Bad { behaviour: answer(404, ""), error: "HTTP 404: " },
        Bad { behaviour: answer(400, "{\"error\":\"no\"}"), error: "HTTP 400: {\"error\":\"no\"}" },
        Bad { behaviour: answer(301, "there"), error: "HTTP 301: there" },
        Bad { behaviour: answer(302, ""), error: "HTTP 302: " },
        Bad { behaviour: answer(303, ""), error: "HTTP 303: " },
        Bad { behaviour: answer(307, ""), error: "HTTP 307: " },
        Bad { behaviour: answer(308, ""), error: "HTTP 308: " },
        Bad { behaviour: answer(304, ""), error: "HTTP 304: " },
        Bad { behaviour: Behaviour::Reset, error: closed },
        Bad { behaviour: Behaviour::Garbage, error: no_http },
        Bad { behaviour: Behaviour::Hang, error: "timeout after 1000 ms while waiting for a response" },
        Bad { behaviour: Behaviour::Drip, error: "timeout after 1000 ms while reading the response" },
        Bad { behaviour: Behaviour::DripHead, error: "timeout after 1000 ms while waiting for a response" },
    ] {
        let server = Harness::start().await;
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        endpoint.usually(behaviour.clone());
        let hook = once(&api, &endpoint).await;
        api.publishes("a", json!({})).await;
        endpoint.receives(1).await;
        if error.starts_with("timeout") {
            if !matches!(behaviour, Behaviour::Hang) {
                until("it drips", || endpoint.dripped() > 3).await;
            }
            server.clock.advance(SECOND - Duration::from_millis(1));
            assert_eq!(api.stats(&hook).await, Stats { pending: 1, ..Stats::default() }, "{behaviour:?}");
            server.clock.advance(Duration::from_millis(1));
        }
        rests(&server).await;
        let delivery = api.delivery(&hook).await;
        let told = delivery["lastError"].as_str().expect("an error").to_owned();
        let as_expected = if error == no_http { told.starts_with(error) } else { told == error };
        assert!(as_expected, "{behaviour:?}: {told}");
        assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("dead"), &json!(1)));
        let log = api.log(&delivery).await;
        assert_eq!((log.len(), &log[0]["status"]), (1, &json!("failed")), "{log:?}");
        assert_eq!(log[0]["errorMessage"], told);
        assert!(log[0].get("workerResponse").is_none(), "{log:?}");
        let took = if error.starts_with("timeout") { 1000 } else { 0 };
        assert_eq!(log[0]["durationMs"], took, "{log:?}");
        let letter = api.dead_letters(&hook).await.remove(0);
        assert_eq!((&letter["reason"], &letter["lastError"]), (&json!("max_retries_exceeded"), &json!(told)));
        assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 1, ..Stats::default() });
        assert_eq!(endpoint.received().len(), 1, "{behaviour:?}");
    }
    assert_eq!(elsewhere.received().len(), 0, "no redirect is followed");
}

#[tokio::test]
async fn an_endpoint_that_nobody_listens_at_or_that_speaks_no_tls_fails_the_attempt() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let gone = {
        let gone = Endpoint::start().await;
        gone.url("/")
    };
    let plain = endpoint.url("/").replace("http:", "https:");
    for (url, error) in [(gone, "cannot connect: connection refused"), (plain, "TLS handshake failed: ")] {
        let hook = api.subscribes(json!({ "url": url, "pattern": "a", "maxRetries": 1 })).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        let told = texts(&api.dead_letters(&hook).await, "lastError").remove(0);
        assert!(told.starts_with(error), "{url}: {told}");
        api.removes(&hook).await;
    }
}

#[tokio::test]
async fn any_status_from_200_to_299_is_success_whatever_the_body_is() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let answer = |status, body: &str| Behaviour::Answer(status, Vec::new(), body.to_owned());
    let long = "ä".repeat(3000);
    for (behaviour, kept) in [
        (answer(200, "{\"processed\":true}"), "{\"processed\":true}"),
        (answer(200, "this is no JSON <html>"), "this is no JSON <html>"),
        (answer(200, ""), ""),
        (answer(204, ""), ""),
        (answer(201, &long), &long[..1024]),
        (answer(299, "odd"), "odd"),
        (Behaviour::Huge(20_000_000), &"x".repeat(1024)),
    ] {
        endpoint.then(behaviour.clone());
        let hook = once(&api, &endpoint).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        let delivery = api.delivery(&hook).await;
        assert_eq!(delivery["status"], "delivered", "{behaviour:?}: {delivery}");
        assert!(delivery["deliveredAt"].is_u64() && delivery.get("lastError").is_none(), "{delivery}");
        assert_eq!(texts(&api.log(&delivery).await, "workerResponse"), [kept], "{behaviour:?}");
        api.removes(&hook).await;
    }
}

#[tokio::test]
async fn an_endpoint_that_takes_its_time_is_waited_for_until_the_timeout_of_the_hook() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    endpoint.usually(Behaviour::Wait(200));
    let url = endpoint.url("/hook");
    let hook = api.subscribes(json!({ "url": url, "pattern": "a", "timeoutMs": 300_000 })).await;
    api.publishes("a", json!({})).await;
    endpoint.receives(1).await;
    server.clock.advance(299 * SECOND);
    assert_eq!(api.stats(&hook).await, Stats { pending: 1, ..Stats::default() });
    endpoint.release();
    rests(&server).await;
    assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 1, ..Stats::default() });
    assert_eq!(api.log(&api.delivery(&hook).await).await[0]["durationMs"], 299_000);
}

#[tokio::test]
async fn status_410_deactivates_the_hook_and_what_waits_stays_for_its_reactivation() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), answering(503, "").await);
        let url = endpoint.url("/hook");
        let settings = json!({ "url": url, "pattern": "a", "concurrency": 1, "retrySchedule": [60_000] });
        let hook = api.subscribes(settings).await;
        api.publishes("a", json!({ "n": 0 })).await;
        rests(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { failed: 1, attempts: 1, ..Stats::default() });
        endpoint.usually(Behaviour::Wait(200)).then(Behaviour::Answer(410, vec![], "moved out".into()));
        api.ingests((1..=3).map(|n| api.event("a", json!({ "n": n }))).collect()).await;
        rests(&server).await;
        assert_eq!(numbers(&endpoint.received()), [0, 1], "nothing begins after it");
        let expected = Stats { pending: 2, failed: 1, dead: 1, delivered: 0, attempts: 2 };
        assert_eq!(api.stats(&hook).await, expected);
        let subscription = api.get(&format!("/subscriptions/{}", hook.id)).await;
        assert_eq!(subscription["subscription"]["active"], false);
        let letter = api.dead_letters(&hook).await.remove(0);
        assert_eq!(
            (&letter["reason"], &letter["lastError"]),
            (&json!("endpoint_gone"), &json!("HTTP 410: moved out"))
        );
        api.publishes("a", json!({ "n": 4 })).await;
        passes(&server, 60 * SECOND).await;
        assert_eq!(endpoint.received().len(), 2, "an inactive hook is not called, nor does it queue");
        endpoint.release();
        api.tells("reactivate", &hook, json!({})).await;
        rests(&server).await;
        let mut numbers = numbers(&endpoint.received()[2..]);
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 2, 3]);
        let expected = Stats { dead: 1, delivered: 3, attempts: 5, ..Stats::default() };
        assert_eq!(api.stats(&hook).await, expected);
    }
}

#[tokio::test]
async fn retry_after_is_kept_to_up_to_an_hour() {
    for (status, value, wait) in [
        (429, "90".to_owned(), 90),
        (503, "120".to_owned(), 120),
        (500, "60".to_owned(), 60),
        (503, "1".to_owned(), 10),
        (503, "soon".to_owned(), 10),
        (503, "100000".to_owned(), 3600),
        // Two minutes after the time of the harness.
        (503, "Sun, 16 Nov 2025 12:02:00 GMT".to_owned(), 120),
    ] {
        let server = Harness::start().await;
        server.clock.set(Timestamp::from_millis(1_763_294_400_000));
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        endpoint.then(Behaviour::Answer(status, vec![("retry-after", value.clone())], String::new()));
        let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "retrySchedule": [10_000] });
        let hook = api.subscribes(settings).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { failed: 1, attempts: 1, ..Stats::default() });
        passes(&server, wait * SECOND - Duration::from_millis(1)).await;
        assert_eq!(endpoint.received().len(), 1, "{status} {value}: it was to wait {wait} s");
        passes(&server, Duration::from_millis(1)).await;
        assert_eq!(endpoint.received().len(), 2, "{status} {value}: it waited more than {wait} s");
        assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 2, ..Stats::default() });
    }
}

#[tokio::test]
async fn status_429_slows_the_destination_down_until_it_recovers() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let refused = api.hears("refused", &endpoint).await;
    let hook = api.hears("a", &endpoint).await;
    // As many as it can take in this second.
    api.publishes_many("a", 40).await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 40);
    endpoint.then(Behaviour::status(429));
    api.publishes("refused", json!({})).await;
    rests(&server).await;
    api.publishes_many("a", 400).await;
    let made = async |steps: u32| {
        let before = endpoint.received().len();
        for _ in 0..steps {
            passes(&server, SECOND / 50).await;
        }
        endpoint.received().len() - before
    };
    let first = made(50).await;
    assert!((15..=30).contains(&first), "about half of 41 in the next second, not {first}");
    made(500).await;
    assert!(made(50).await > first, "it recovers");
    for _ in 0..60 {
        passes(&server, SECOND).await;
    }
    assert_eq!(endpoint.received().len(), 442, "all is delivered in the end, and one twice");
    assert_eq!(api.stats(&refused).await, Stats { delivered: 1, attempts: 2, ..Stats::default() });
    assert_eq!(api.stats(&hook).await, Stats { delivered: 440, attempts: 440, ..Stats::default() });
}
