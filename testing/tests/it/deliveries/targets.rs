//! Where deliveries may go: nowhere that is not public, unless the operator allows it.

use tidings_egress::AllowList;

use super::*;

/// A server that is not in dev mode, with what its operator allows.
async fn closed(allow: Option<&[&str]>) -> Harness {
    let entries = |allow: &[&str]| allow.iter().map(|&entry| entry.to_owned()).collect::<Vec<_>>();
    let allow_targets = allow.map(|allow| AllowList::parse(&entries(allow)).expect("a list"));
    let hooks = HookOptions { allow_targets, ..HookOptions::default() };
    let doors = Doors::Closed { created: vec![], given: vec![] };
    Harness::with(Setup { hooks, doors, ..Setup::default() }).await
}

async fn registered(api: &Api, url: &str) -> (u16, Value) {
    let settings = json!({ "url": url, "pattern": "a", "maxRetries": 1 });
    api.call(Method::POST, "/subscriptions/subscribe", Some(&settings)).await
}

const FORBIDDEN: &[&str] = &[
    "127.0.0.1",
    "127.1",
    "0x7f000001",
    "2130706433",
    "0177.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[fe80::1]",
    "[fc00::1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[ff02::1]",
    "[2001:db8::1]",
    "[100::1]",
];

#[tokio::test]
async fn an_address_that_is_not_public_is_refused_when_the_hook_is_made_or_changed() {
    let server = closed(None).await;
    let api = Api::of(&server).with_key(ADMIN_KEY);
    let (status, good) = registered(&api, "https://example.com/in").await;
    assert_eq!(status, 200, "{good}");
    let hook = good["subscriptionId"].as_str().expect("an id");
    for host in FORBIDDEN {
        for url in [format!("http://{host}/"), format!("https://{host}:8443/x?y")] {
            let (status, answer) = registered(&api, &url).await;
            assert_eq!(status, 400, "{url}: {answer}");
            let change = json!({ "url": url });
            let (status, answer) =
                api.call(Method::PUT, &format!("/subscriptions/{hook}"), Some(&change)).await;
            assert_eq!(status, 400, "{url}: {answer}");
        }
    }
    let listed = api.get("/subscriptions/list").await;
    assert_eq!(listed["subscriptions"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["subscriptions"][0]["url"], "https://example.com/in");
}

#[tokio::test]
async fn a_name_that_resolves_to_a_private_address_is_a_failed_attempt_and_nobody_is_called() {
    for allow in [None, Some(&[][..]), Some(&["10.0.0.0/8", "other.example"][..])] {
        let server = closed(allow).await;
        let (api, endpoint) = (Api::of(&server).with_key(ADMIN_KEY), Endpoint::start().await);
        let url = endpoint.url("/").replace("127.0.0.1", "localhost");
        let hook = api.subscribes(json!({ "url": url, "pattern": "a", "maxRetries": 2 })).await;
        api.publishes("a", json!({})).await;
        rests(&server).await;
        let delivery = api.delivery(&hook).await;
        let error = delivery["lastError"].as_str().expect("an error");
        assert!(error.starts_with("target not allowed"), "{error}");
        assert!(!error.contains("127.0.0.1"), "who chose the name is not told what it resolves to: {error}");
        passes(&server, 2 * SECOND).await;
        assert_eq!(api.stats(&hook).await, Stats { dead: 1, attempts: 2, ..Stats::default() });
        assert_eq!(endpoint.connections(), 0, "not even a connection");
    }
}

#[tokio::test]
async fn the_operator_can_allow_networks_and_names() {
    for (allow, host) in [
        ("127.0.0.0/8", "127.0.0.1"),
        ("127.0.0.1/32", "127.0.0.1"),
        ("127.0.0.1/32", "[::ffff:127.0.0.1]"),
        ("localhost", "localhost"),
    ] {
        let server = closed(Some(&[allow])).await;
        let (api, endpoint) = (Api::of(&server).with_key(ADMIN_KEY), Endpoint::start().await);
        let url = endpoint.url("/").replace("127.0.0.1", host);
        let hook = api.subscribes(json!({ "url": url, "pattern": "a" })).await;
        api.publishes("a", json!({})).await;
        endpoint.receives(1).await;
        rests(&server).await;
        assert_eq!(api.stats(&hook).await, Stats { delivered: 1, attempts: 1, ..Stats::default() });
        let (status, _) = registered(&api, "http://169.254.169.254/latest").await;
        assert_eq!(status, 400, "and nothing else");
    }
}

#[tokio::test]
async fn in_dev_mode_loopback_is_allowed_unless_the_operator_says_what_is() {
    let dev = Harness::start().await;
    let api = Api::of(&dev);
    assert_eq!(registered(&api, "http://127.0.0.1:9000/").await.0, 200);
    assert_eq!(registered(&api, "http://[::1]:9000/").await.0, 200);
    for host in ["10.0.0.1", "169.254.169.254", "192.168.0.1", "[fe80::1]"] {
        assert_eq!(registered(&api, &format!("http://{host}/")).await.0, 400, "{host}");
    }
    let hooks = HookOptions { allow_targets: Some(AllowList::default()), ..HookOptions::default() };
    let strict = Harness::with(Setup { hooks, ..Setup::default() }).await;
    assert_eq!(registered(&Api::of(&strict), "http://127.0.0.1:9000/").await.0, 400);
}

#[tokio::test]
async fn a_target_that_was_allowed_once_is_not_after_the_operator_forbids_it() {
    let endpoint = Endpoint::start().await;
    let server = on(TestStore::Embedded, |_| {}).await;
    let api = Api::of(&server);
    let settings = json!({ "url": endpoint.url("/"), "pattern": "a", "maxRetries": 1 });
    let hook = api.subscribes(settings).await;
    api.publishes("a", json!({})).await;
    endpoint.receives(1).await;
    rests(&server).await;
    let forbid = |setup: &mut Setup| setup.hooks.allow_targets = Some(AllowList::default());
    let server = server.restart_with(forbid).await;
    let api = Api::of(&server);
    api.publishes("a", json!({})).await;
    rests(&server).await;
    assert_eq!(endpoint.received().len(), 1);
    let error = texts(&api.dead_letters(&hook).await, "lastError").remove(0);
    assert!(error.starts_with("target not allowed"), "{error}");
}
