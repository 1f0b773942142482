//! What a webhook receives.

use standardwebhooks::Webhook;
use tidings_testing::http::header::HeaderMap;

use super::*;
use tidings_engine::WallClock;

/// Verifies a request by the public library of Standard Webhooks.
fn verifies(received: &Received, secret: &str) -> bool {
    let mut headers = HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let value = received.header(name).unwrap_or_else(|| panic!("no {name}"));
        headers.insert(name, value.parse().expect("a value"));
    }
    Webhook::new(secret).expect("a secret").verify(&received.body, &headers).is_ok()
}

/// Sets the clock of a server to the system's time, because the public library refuses other timestamps.
fn set_to_system_time(server: &Harness) {
    server.clock.set(WallClock.now());
}

#[tokio::test]
async fn an_event_reaches_a_webhook_that_verifies_it_by_the_public_library() {
    for server in both_stores(|_| {}).await {
        set_to_system_time(&server);
        let (api, endpoint) = (Api::of(&server), answering(200, "{\"processed\":true}").await);
        let hook = api.hears("webhook.github.*", &endpoint).await;
        let event = api.event("webhook.github.push", json!({ "repository": "tidings", "id": "evt-1" }));
        api.ingests(vec![event.clone()]).await;
        let received = endpoint.receives(1).await.remove(0);
        rests(&server).await;
        let body =
            json!({ "id": "evt-1", "type": "webhook.github.push", "ts": event["ts"], "payload": event });
        assert_eq!(received.json(), body);
        assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/hook"));
        assert_eq!(received.header("content-type"), Some("application/json"));
        assert_eq!(received.header("host"), Some(endpoint.authority().as_str()));
        assert!(received.header("user-agent").is_some_and(|agent| agent.starts_with("tidings/")));
        assert!(verifies(&received, &hook.secret));
        let changed = Received { body: received.body.to_ascii_uppercase(), ..received.clone() };
        assert!(!verifies(&changed, &hook.secret), "the signature is that of the body");
        let other = api.hears("webhook.**", &endpoint).await;
        assert!(!verifies(&received, &other.secret), "each hook has a secret of its own");

        let delivery = api.delivery(&hook).await;
        assert_eq!(received.header("webhook-id"), delivery["id"].as_str());
        assert_eq!((&delivery["eventId"], &delivery["type"]), (&json!("evt-1"), &body["type"]));
        assert_eq!((&delivery["status"], &delivery["attempts"]), (&json!("delivered"), &json!(1)));
        let log = api.log(&delivery).await;
        assert_eq!(log.len(), 1, "{log:?}");
        assert_eq!(
            (&log[0]["attemptNumber"], &log[0]["status"], &log[0]["workerResponse"]),
            (&json!(1), &json!("success"), &json!("{\"processed\":true}"))
        );
        assert_eq!((&log[0]["deliveryId"], &log[0]["subscriptionId"]), (&delivery["id"], &json!(hook.id)));
        let expected = Stats { delivered: 1, attempts: 1, ..Stats::default() };
        assert_eq!(api.stats(&hook).await, expected);
    }
}

#[tokio::test]
async fn an_event_without_an_id_gets_one_and_each_hook_a_delivery_of_its_own() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let one = api.hears("orders.*", &endpoint).await;
    let other = api.hears("**", &endpoint).await;
    api.hears("users.*", &endpoint).await;
    api.publishes("orders.paid", json!({ "n": 7 })).await;
    let received = endpoint.receives(2).await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 2, "the third hook hears something else");
    let body = |n: usize| received[n].json();
    assert_eq!(body(0)["id"], body(1)["id"]);
    assert_eq!(body(0)["id"].as_str().map(str::len), Some(26));
    let mut ids: Vec<_> = received.iter().map(|one| one.header("webhook-id").expect("an id")).collect();
    let mut expected = texts(&[api.delivery(&one).await, api.delivery(&other).await], "id");
    ids.sort_unstable();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn each_format_has_its_body_and_its_headers() {
    let server = Harness::start().await;
    set_to_system_time(&server);
    let (api, endpoint) = (Api::of(&server).within("shop"), Endpoint::start().await);
    let event = api.event("orders.paid", json!({ "amount": 7, "id": "evt \"1\" ü" }));
    let mut payload = event.clone();
    payload["_namespace"] = "shop".into();
    let cloud_event = json!({
        "specversion": "1.0", "id": "evt \"1\" ü", "source": "/v1/shop", "type": "orders.paid",
        "time": event["ts"], "datacontenttype": "application/json", "data": payload,
    });
    let envelope =
        json!({ "id": "evt \"1\" ü", "type": "orders.paid", "ts": event["ts"], "payload": payload });
    let formats = [
        ("envelope", "application/json", envelope),
        ("raw", "application/json", payload.clone()),
        ("cloudevents-structured", "application/cloudevents+json", cloud_event),
        ("cloudevents-binary", "application/json", payload),
    ];
    let mut hooks = Vec::new();
    for (format, _, _) in &formats {
        let settings =
            json!({ "url": endpoint.url(&format!("/{format}")), "pattern": "orders.*", "format": format });
        hooks.push(api.subscribes(settings).await);
    }
    api.ingests(vec![event.clone()]).await;
    let all = endpoint.receives(4).await;
    for ((format, content_type, body), hook) in formats.iter().zip(&hooks) {
        let received = all.iter().find(|one| one.path == format!("/{format}")).expect("one of each");
        assert_eq!(received.json(), *body, "{format}");
        assert_eq!(received.header("content-type"), Some(*content_type), "{format}");
        assert!(verifies(received, &hook.secret), "{format}");
        let attributes: Vec<_> = ["ce-specversion", "ce-id", "ce-source", "ce-type", "ce-time"]
            .iter()
            .map(|name| received.header(name))
            .collect();
        let expected = match *format {
            "cloudevents-binary" => {
                vec![
                    Some("1.0"),
                    Some("evt%20%221%22%20%C3%BC"),
                    Some("/v1/shop"),
                    Some("orders.paid"),
                    event["ts"].as_str(),
                ]
            }
            _ => vec![None; 5],
        };
        assert_eq!(attributes, expected, "{format}");
    }
}

#[tokio::test]
async fn both_secrets_sign_during_a_rotation_and_only_the_new_one_after_it() {
    let server = Harness::start().await;
    set_to_system_time(&server);
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let hook = api.hears("a", &endpoint).await;
    let rotate = format!("/subscriptions/{}/rotate-secret", hook.id);
    let rotated = api.post(&rotate, &json!({ "overlapSeconds": 60 })).await;
    let new = rotated["secret"].as_str().expect("a secret").to_owned();
    assert_ne!(new, hook.secret);
    api.publishes("a", json!({})).await;
    let received = endpoint.receives(1).await.remove(0);
    assert!(verifies(&received, &hook.secret) && verifies(&received, &new));
    passes(&server, 60 * SECOND).await;
    api.publishes("a", json!({})).await;
    let received = endpoint.receives(2).await.remove(1);
    assert!(verifies(&received, &new) && !verifies(&received, &hook.secret));
    // An overlap lasts a day unless it is said.
    api.post(&rotate, &json!({})).await;
    for (time, signatures) in [(DAY - SECOND, 2), (SECOND, 1)] {
        passes(&server, time).await;
        let before = endpoint.received().len();
        api.publishes("a", json!({})).await;
        let received = endpoint.receives(before + 1).await.remove(before);
        let header = received.header("webhook-signature").expect("signatures");
        assert_eq!(header.split(' ').filter(|one| one.starts_with("v1,")).count(), signatures, "{header}");
    }
    rests(&server).await;
    set_to_system_time(&server);
    let new = api.post(&rotate, &json!({ "overlapSeconds": 0 })).await;
    let new = new["secret"].as_str().expect("a secret").to_owned();
    let before = endpoint.received().len();
    // Without an overlap the old one ends at once, also for deliveries that were queued before.
    endpoint.usually(Behaviour::status(500));
    api.publishes("a", json!({})).await;
    endpoint.receives(before + 1).await;
    let rotated = api.post(&rotate, &json!({ "overlapSeconds": 0 })).await;
    let newest = rotated["secret"].as_str().expect("a secret").to_owned();
    rests(&server).await;
    passes(&server, 2 * SECOND).await;
    let received = endpoint.receives(before + 2).await.remove(before + 1);
    assert!(verifies(&received, &newest) && !verifies(&received, &new));
}

#[tokio::test]
async fn custom_headers_are_sent_as_the_owner_wrote_them() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let headers =
        json!({ "Authorization": "Bearer of-the-endpoint", "X-Tags": "a, b", "User-Agent": "shop/1" });
    api.subscribes(json!({ "url": endpoint.url("/"), "pattern": "a", "headers": headers })).await;
    api.publishes("a", json!({})).await;
    let received = endpoint.receives(1).await.remove(0);
    assert_eq!(received.header("authorization"), Some("Bearer of-the-endpoint"));
    assert_eq!(received.header("x-tags"), Some("a, b"));
    assert_eq!(received.header("user-agent"), Some("shop/1"));
    assert_eq!(received.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn a_worker_and_its_method_become_a_url_by_the_template() {
    let endpoint = Endpoint::start().await;
    let template = endpoint.url("/{workerId}/rpc/{rpcMethod}");
    let server = with_options(|options| options.target_template = template).await;
    let api = Api::of(&server);
    let hook =
        api.subscribes(json!({ "workerId": "mailer", "pattern": "a", "rpcMethod": "handleUser" })).await;
    api.publishes("a", json!({})).await;
    assert_eq!(endpoint.receives(1).await[0].path, "/mailer/rpc/handleUser");
    let (status, _) = api
        .call(Method::PUT, &format!("/subscriptions/{}", hook.id), Some(&json!({ "rpcMethod": "other" })))
        .await;
    assert_eq!(status, 200);
    api.publishes("a", json!({})).await;
    assert_eq!(endpoint.receives(2).await[1].path, "/mailer/rpc/other");
}

#[tokio::test]
async fn an_event_id_is_delivered_once_to_each_hook_also_to_one_that_was_made_in_between() {
    for server in both_stores(|_| {}).await {
        let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
        let first = api.hears("a.*", &endpoint).await;
        api.publishes("a.b", json!({ "id": "evt", "n": 1 })).await;
        let second = api.hears("**", &endpoint).await;
        api.publishes("a.b", json!({ "id": "evt", "n": 2 })).await;
        api.publishes("a.b", json!({ "id": "evt", "n": 3 })).await;
        api.publishes("a.b", json!({ "n": 4 })).await;
        endpoint.receives(4).await;
        rests(&server).await;
        assert_eq!(api.deliveries(&first).await.len(), 2);
        assert_eq!(api.deliveries(&second).await.len(), 2);
        let mut numbers = numbers(&endpoint.received());
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 4, 4]);
    }
}

#[tokio::test]
async fn a_filter_keeps_events_away_whose_content_does_not_match() {
    let server = Harness::start().await;
    let (api, endpoint) = (Api::of(&server), Endpoint::start().await);
    let filter = json!({ "/amount": { "gt": 100 }, "/user/country": { "in": ["DE", "FR"] } });
    let hook =
        api.subscribes(json!({ "url": endpoint.url("/"), "pattern": "orders.*", "filter": filter })).await;
    for (n, amount, country) in [(1, 101, "DE"), (2, 100, "DE"), (3, 500, "US"), (4, 101, "FR")] {
        api.publishes("orders.paid", json!({ "n": n, "amount": amount, "user": { "country": country } }))
            .await;
    }
    api.publishes("orders.paid", json!({ "n": 5 })).await;
    rests(&server).await;
    let mut numbers = numbers(&endpoint.received());
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 4]);
    assert_eq!(api.stats(&hook).await, Stats { delivered: 2, attempts: 2, ..Stats::default() });
}
