//! Which events a subscription hears: patterns and filters, row by row.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tidings_model::limits;

use super::*;

/// A pattern, types that it matches, and types that it does not match.
type Row = (&'static str, &'static [&'static str], &'static [&'static str]);

const TABLE: &[Row] = &[
    ("exact.match", &["exact.match"], &["exact", "exact.match.more", "exact.other", "Exact.match"]),
    ("prefix.*", &["prefix.a", "prefix.xyz"], &["prefix", "prefix.a.b.c"]),
    ("prefix.**", &["prefix", "prefix.a", "prefix.a.b.c"], &["prefixes.a"]),
    ("*.middle.*", &["a.middle.b", "x.middle.y"], &["middle.b", "a.middle", "a.middle.b.c"]),
    ("**", &["one", "webhook.github.push", "custom.my-event", "1.2.3.4.5.6.7.8.9.10"], &[]),
    ("*", &["one", "webhook"], &["webhook.github"]),
    ("*.x", &["a.x", "custom.x"], &["x", "a.b.x"]),
    (
        "webhook.github.*",
        &["webhook.github.push", "webhook.github.pull_request"],
        &["webhook.github.push.v1", "webhook.github"],
    ),
    (
        "webhook.**",
        &["webhook", "webhook.github", "webhook.github.push", "webhook.github.push.v1"],
        &["webhooks.github"],
    ),
    (
        "webhook.**.push",
        &["webhook.push", "webhook.github.push", "webhook.github.v1.push"],
        &["webhook.github.pull"],
    ),
    ("*.**", &["one", "a.x", "webhook.github.push.v1"], &[]),
    ("a.*.**", &["a.b", "a.b.c"], &["a"]),
    ("a.foo*", &["a.foo", "a.foobar"], &["a.foo.b", "a.fo"]),
    ("a.f*r", &["a.fr", "a.four"], &["a.f.r", "a.fours"]),
    ("a.x**y", &["a.xy", "a.xzy"], &["a.x.y"]),
    // Each of these types in several ways.
    ("**.n.**", &["n", "n.n.n", "a.n.b"], &["a.b"]),
    ("**.**", &["one", "n.n.n"], &[]),
    ("webhook.GitHub.*", &["webhook.GitHub.push"], &["webhook.github.push"]),
];

fn types() -> BTreeSet<&'static str> {
    TABLE.iter().flat_map(|(_, matching, others)| matching.iter().chain(*others)).copied().collect()
}

/// Types of the events that are queued for a subscription.
async fn heard(client: &Client<'_>, id: &str) -> Vec<String> {
    let page = client.gets(&format!("/subscriptions/{id}/deliveries?limit=1000")).await;
    let deliveries = page["deliveries"].as_array().expect("an array").clone();
    deliveries.iter().map(|one| one["type"].as_str().expect("a type").to_owned()).collect()
}

#[tokio::test]
async fn a_pattern_hears_the_types_that_the_table_says_once_each_and_match_finds_the_same() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let mut subscribed = Vec::new();
    for (row @ (pattern, ..), n) in TABLE.iter().zip(0..) {
        subscribed.push((acme.subscribes(&format!("w{n}"), pattern).await, row));
    }
    let types = types();
    acme.ingests(types.iter().copied().map(event).collect()).await;
    let mut all = Vec::new();
    for (id, (pattern, matching, others)) in &subscribed {
        let heard = heard(&acme, id).await;
        let times = |name: &str| heard.iter().filter(|heard| *heard == name).count();
        for name in *matching {
            assert_eq!(times(name), 1, "{pattern} on {name}");
        }
        for name in *others {
            assert_eq!(times(name), 0, "{pattern} on {name}");
        }
        if *pattern == "**" {
            assert_eq!(heard.len(), types.len(), "it hears all");
        }
        all.push((id, heard));
    }
    for name in types {
        let found = acme.gets(&format!("/subscriptions/match?eventType={name}")).await;
        let expected = all.iter().filter(|(_, heard)| heard.iter().any(|heard| heard == name));
        let expected: Vec<_> = expected.map(|(id, _)| (*id).clone()).collect();
        assert_eq!(ids(&found["subscriptions"]), expected, "{name}, in the order of their creation");
        let found = acme.gets(&format!("/v1/acme/hooks/match?type={name}")).await;
        assert_eq!(ids(&found["hooks"]), expected, "{name}");
    }
    for (id, before) in all {
        assert_eq!(heard(&acme, id).await, before, "trying a type delivers nothing");
    }
}

#[tokio::test]
async fn the_rules_of_patterns_are_the_same_on_both_paths() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    assert_eq!((limits::HOOK_PATTERN_BYTES, limits::EVENT_TYPE_SEGMENTS), (256, 10));
    let letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.*";
    let (long, longer) = ("x".repeat(limits::HOOK_PATTERN_BYTES), "x".repeat(limits::HOOK_PATTERN_BYTES + 1));
    let deep = ["x"; limits::EVENT_TYPE_SEGMENTS].join(".");
    let deeper = ["x"; limits::EVENT_TYPE_SEGMENTS + 1].join(".");
    let whole = "*.".repeat(limits::HOOK_PATTERN_WILDCARDS);
    let whole = whole.trim_end_matches('.');
    let created = async |pattern: &str| {
        let body = json!({ "url": "https://example.com/", "pattern": pattern });
        let here = acme.post("/v1/acme/hooks", body).await;
        let body = json!({ "workerId": "w", "rpcMethod": "m", "pattern": pattern });
        let there = acme.post("/subscriptions/subscribe", body).await;
        (here, there)
    };
    for good in [letters, &long, &deep, whole, "a.*x.*x.*x.*x.*x.*x", "a.**.b.**.c.**"] {
        let (here, there) = created(good).await;
        assert_eq!((here.status, there.status), (201, 200), "{good}: {here:?} {there:?}");
    }
    let too_many = format!("{whole}.*");
    let characters = [" ", "/", ":", "?", "#", "%", "+", "ä", "\u{0}", "\n", "{", "\\"];
    let characters = characters.map(|character| format!("a{character}b"));
    let bad = ["***", "a.***.b", "a****", ".a", "a.", ".", "..", "a..b", &longer, &deeper, &too_many];
    for bad in bad.into_iter().chain(characters.iter().map(String::as_str)) {
        let (here, there) = created(bad).await;
        assert_eq!((here.status, &here.json()["error"]["code"]), (400, &json!("invalid_hook")), "{bad:?}");
        let error = there.json()["error"].as_str().expect("text").to_owned();
        assert!(there.status == 400 && error.starts_with("Invalid pattern: "), "{bad:?}: {there:?}");
    }
}

#[tokio::test]
async fn patterns_that_would_make_matching_slow_are_refused() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    // Every pattern of nine words and then `z` that has at most five wildcards.
    let words = ["a", "*", "**"];
    let nine = (0..3usize.pow(9)).map(|n| (0..9).map(move |place| words[n / 3usize.pow(place) % 3]));
    let crafted = nine.map(|nine| nine.chain(["z"]).collect::<Vec<_>>().join("."));
    let (mut created, mut refused) = (0, 0);
    for pattern in
        crafted.filter(|pattern| pattern.split('.').filter(|part| part.starts_with('*')).count() == 5)
    {
        let body = json!({ "url": "https://example.com/", "pattern": pattern });
        let told = acme.post("/v1/acme/hooks", body).await;
        match told.status {
            201 => created += 1,
            400 => refused += 1,
            _ => panic!("{told:?}"),
        }
        if refused == 3 {
            let why = "the project has as many patterns with wildcards as can be matched in time";
            assert!(told.text.contains(why), "{told:?}");
            break;
        }
    }
    assert!(created > 50 && refused == 3, "{created} created, {refused} refused");
    acme.subscribes("plain", "orders.paid").await;
    acme.ingests(json!([event("orders.paid"), event("a.a.a.a.a.a.a.a.a.z")])).await;
}

#[tokio::test]
async fn a_filter_hears_the_events_that_the_table_says() {
    let server = closed().await;
    let acme = Client::of(&server, "acme");
    let events = [
        json!({ "id": "e0", "amount": 150, "currency": "EUR", "user": { "id": "u-1" }, "gone": null }),
        json!({ "id": "e1", "amount": 50, "currency": "USD", "user": { "id": "m-1" }, "list": [1, 2] }),
        json!({ "id": "e2", "amount": "150", "currency": "EURO", "a/b": { "m~n": true } }),
    ];
    let mut subscribed = Vec::new();
    for (filter, expected) in [
        (json!({}), vec!["e0", "e1", "e2"]),
        (json!({ "/currency": { "eq": "EUR" } }), vec!["e0"]),
        (json!({ "/amount": { "eq": 150 } }), vec!["e0"]),
        (json!({ "/amount": { "eq": "150" } }), vec!["e2"]),
        (json!({ "/list": { "eq": [1, 2] } }), vec!["e1"]),
        (json!({ "/list/1": { "eq": 2 } }), vec!["e1"]),
        (json!({ "/currency": { "in": ["USD", "EUR", 7] } }), vec!["e0", "e1"]),
        (json!({ "/currency": { "in": [] } }), vec![]),
        (json!({ "/amount": { "gt": 50 } }), vec!["e0"]),
        (json!({ "/amount": { "gt": 49.5 } }), vec!["e0", "e1"]),
        (json!({ "/amount": { "lt": 150 } }), vec!["e1"]),
        (json!({ "/amount": { "gt": 50, "lt": 150 } }), vec![]),
        (json!({ "/currency": { "prefix": "EUR" } }), vec!["e0", "e2"]),
        (json!({ "/amount": { "prefix": "15" } }), vec!["e2"]),
        (json!({ "/gone": { "exists": true } }), vec!["e0"]),
        (json!({ "/user": { "exists": false } }), vec!["e2"]),
        (json!({ "/a~1b/m~0n": { "eq": true } }), vec!["e2"]),
        (json!({ "/currency": { "prefix": "E" }, "/user/id": { "exists": true } }), vec!["e0"]),
        (json!({ "/currency": { "prefix": "E" }, "/user/id": { "eq": "m-1" } }), vec![]),
    ] {
        let body = json!({
            "url": format!("https://example.com/{}", subscribed.len()), "pattern": "a", "filter": filter,
        });
        let told = acme.post("/subscriptions/subscribe", body).await;
        let id = told.json()["subscriptionId"].as_str().expect("an id").to_owned();
        subscribed.push((id, filter, expected));
    }
    let complete = |mut one: Value| {
        one["type"] = "a".into();
        one["ts"] = TS.into();
        one
    };
    acme.ingests(events.map(complete).into_iter().collect()).await;
    for (id, filter, expected) in subscribed {
        let page = acme.gets(&format!("/subscriptions/{id}/deliveries")).await;
        let heard = page["deliveries"].as_array().expect("an array").iter();
        let heard: Vec<_> = heard.map(|one| one["eventId"].as_str().expect("an id")).collect();
        assert_eq!(heard, expected, "{filter}");
    }
    for bad in [
        json!({ "a": { "eq": 1 } }),
        json!({ "/a~2": { "eq": 1 } }),
        json!({ "/a": { "like": "x" } }),
        json!({ "/a": { "in": 7 } }),
        json!({ "/a": { "lt": "x" } }),
        json!({ "/a": { "prefix": 7 } }),
        json!({ "/a": { "exists": "yes" } }),
        json!({ "/a": 7 }),
        json!([]),
    ] {
        let body = json!({ "url": "https://example.com/bad", "pattern": "a", "filter": bad });
        let told = acme.post("/subscriptions/subscribe", body).await;
        let error = told.json()["error"].as_str().expect("text").to_owned();
        assert!(told.status == 400 && error.starts_with("Invalid field: filter: "), "{bad}: {told:?}");
    }
}
