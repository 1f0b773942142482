//! Subscriptions by pattern: which topics they match, that a message comes once, and what they count.

use tidings_auth::Resources;
use tidings_topics::TopicRule;

use super::grants::{closed, grants, revoke, token};
use super::*;

async fn subscribes(client: &mut Client, topics: &[&str]) {
    for topic in topics {
        let answer = client.subscribe(topic).await;
        assert_eq!(answer["added"], 1, "{topic}");
    }
}

/// Publishes to each of some topics. The client hears of these, in any order, and of nothing else.
async fn hears(server: &Harness, client: &mut Client, topics: &[&str], expected: &[&str]) {
    for topic in topics {
        assert_eq!(post(server, topic, &json!({ "type": "T" })).await.0, 200, "{topic}");
    }
    client.subscribe("end").await;
    let mut expected = expected.to_vec();
    // Topics have no order among each other; the second one comes after whatever came twice.
    for end in [1, 2] {
        post(server, "end", &json!({ "type": "END" })).await;
        expected.push("end");
        let mut heard = Vec::new();
        for _ in 0..expected.len() {
            heard.push(client.hear().await["meta"]["topic"].as_str().expect("a topic").to_owned());
        }
        heard.sort();
        expected.sort_unstable();
        assert_eq!(heard, expected, "{end}");
        expected.clear();
    }
    client.done("$unsubscribe", json!({ "topic": "end" })).await;
}

#[tokio::test]
async fn a_pattern_matches_segments_as_the_reference_says() {
    const TOPICS: [&str; 9] =
        ["room", "room:1", "room:1:a", "room.1", "room:abc", "room:b", "news/x", "news", "a.b:c/d"];
    let server = Harness::start().await;
    for (pattern, expected) in [
        ("room:*", vec!["room:1", "room:abc", "room:b"]),
        ("room:a*", vec!["room:abc"]),
        ("room:**", vec!["room", "room:1", "room:1:a", "room:abc", "room:b"]),
        ("news/**", vec!["news/x", "news"]),
        ("*", vec!["room", "news"]),
        ("a.*:c/d", vec!["a.b:c/d"]),
    ] {
        let mut client = Client::connect(&server).await;
        subscribes(&mut client, &[pattern]).await;
        hears(&server, &mut client, &TOPICS, &expected).await;
    }
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_message_comes_once_and_counts_once_however_it_is_subscribed_to() {
    let server = Harness::start().await;
    let mut both = Client::connect(&server).await;
    let mut exact = Client::connect(&server).await;
    subscribes(&mut both, &["room:1", "room:*", "**"]).await;
    subscribes(&mut exact, &["room:1"]).await;
    let (_, answer) = post(&server, "room:1", &json!({ "type": "T" })).await;
    assert_eq!(answer, json!({ "ok": true, "capability": "exact", "matched": 2 }));
    assert_eq!(subscribers(&server, "room:1").await, 2);
    assert_eq!((subscribers(&server, "room:2").await, subscribers(&server, "x").await), (1, 1));
    // `**` also hears of the end.
    both.done("$unsubscribe", json!({ "topic": "**" })).await;
    hears(&server, &mut both, &["room:1", "room:2", "x"], &["room:1", "room:1", "room:2"]).await;
    hears(&server, &mut exact, &["room:1", "room:2"], &["room:1", "room:1", "room:1"]).await;
    both.done("$unsubscribe", json!({ "topic": "room:1" })).await;
    // What `exact` was sent has gone to it too.
    hears(&server, &mut both, &["x", "room:2"], &["room:1", "room:2", "room:2"]).await;
    both.done("$unsubscribe", json!({ "topic": "room:*" })).await;
    hears(&server, &mut both, &["room:1", "room:2"], &[]).await;
}

#[tokio::test]
async fn the_sender_that_is_excluded_hears_nothing_by_topic_or_by_pattern() {
    let server = Harness::start().await;
    let mut sender = Client::connect(&server).await;
    let mut other = Client::connect(&server).await;
    subscribes(&mut sender, &["room:*", "room:1", "**"]).await;
    subscribes(&mut other, &["room:*"]).await;
    for (topic, matched) in [("room:1", 1), ("room:2", 1), ("x", 0)] {
        let publish =
            json!({ "topic": topic, "message": { "type": "T", "payload": topic }, "excludeSelf": true });
        assert_eq!(sender.done("$publish", publish).await["matched"], matched, "{topic}");
    }
    sender.publish("room:3", json!("end")).await;
    assert_eq!(sender.message("room:3").await, "end");
    assert_eq!(other.message("room:1").await, "room:1");
    assert_eq!(other.message("room:2").await, "room:2");
}

#[tokio::test]
async fn a_pattern_is_one_topic_in_lists_and_limits() {
    let server = server(|options| {
        options.rules = options.rules.clone().with_max_per_connection(Some(2));
    })
    .await;
    let mut client = Client::connect(&server).await;
    subscribes(&mut client, &["room:*", "x"]).await;
    assert_eq!(client.list().await, json!(["room:*", "x"]));
    let error = client.fails("$subscribe", json!({ "topic": "**" })).await;
    let details = json!({ "scope": "connection", "limit": 2, "current": 2, "requested": 1 });
    assert_eq!((&error["code"], &error["details"]), (&json!("TOPIC_LIMIT_EXCEEDED"), &details));
    let set = client.done("$set", json!({ "topics": ["**", "x"] })).await;
    assert_eq!(set, json!({ "added": 1, "removed": 1, "total": 2 }));
    let status = client.done("$localStatus", json!({ "topic": "**" })).await;
    assert_eq!(status, json!({ "status": "settled", "has": true }));
    assert_eq!(client.done("$verify", json!({ "topic": "**" })).await["kind"], "subscribed");
    assert_eq!(client.subscribe("**").await, json!({ "added": 0, "total": 2 }));
}

#[tokio::test]
async fn what_is_no_pattern_is_refused_and_a_pattern_has_no_history_and_no_presence() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for odd in ["***", "a:b**", "no spaces*"] {
        let error = client.fails("$subscribe", json!({ "topic": odd })).await;
        let details = json!({ "reason": "pattern", "topic": odd });
        assert_eq!((&error["code"], &error["details"]), (&json!("INVALID_TOPIC"), &details));
    }
    let recover = json!({ "epoch": "e", "offset": 1 });
    for (kind, payload, field) in [
        ("$subscribe", json!({ "topic": "a*", "recover": recover }), "recover"),
        ("$subscribeMany", json!({ "topics": ["a*"], "recover": { "a*": recover } }), "recover"),
        ("$set", json!({ "topics": ["a*"], "recover": { "a*": recover } }), "recover"),
        ("$subscribe", json!({ "topic": "a*", "presence": true }), "presence"),
    ] {
        let error = client.fails(kind, payload).await;
        assert_eq!((&error["code"], &error["details"]["field"]), (&json!("INVALID_ARGUMENT"), &json!(field)));
    }
    assert_eq!(client.list().await, json!([]));
}

#[tokio::test]
async fn a_pattern_needs_one_grant_that_covers_all_that_it_matches() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, grants(&["room:*", "news:**"], &[]))).await;
    for (pattern, granted) in [
        ("room:*", true),
        ("room:a*", true),
        ("room:**", false),
        ("news:*", true),
        ("news:**", true),
        ("**", false),
        ("*:1", false),
    ] {
        match (client.ask("$subscribe", json!({ "topic": pattern })).await, granted) {
            (Ok(answer), true) => assert_eq!(answer["added"], 1, "{pattern}"),
            (Err(error), false) => {
                let details =
                    json!({ "op": "subscribe", "kind": "forbidden", "reason": "grant", "topic": pattern });
                assert_eq!((&error["code"], &error["details"]), (&json!("ACL_SUBSCRIBE"), &details));
            }
            (answer, _) => panic!("{pattern}: {answer:?}"),
        }
    }
    // A token with other grants takes patterns away that it does not cover.
    let narrower = token(&server, grants(&["room:*", "news:*"], &[]));
    let answer = client.done("$auth", json!({ "token": narrower })).await;
    assert_eq!(answer["removed"], json!(["news:**"]));
}

#[tokio::test]
async fn a_pattern_that_could_match_a_revoked_topic_is_refused_and_ends() {
    let server = closed().await;
    let mut client = Client::with_token(&server, &token(&server, Resources::default())).await;
    subscribes(&mut client, &["room:*", "news:**"]).await;
    let body = json!({ "user": "alice", "topics": ["room:secret"] });
    let ended = revoke(&server, body).await;
    assert_eq!(ended["subscriptions"], 1, "{ended}");
    let told = client.hear().await;
    assert_eq!(told["payload"], json!({ "topics": ["room:*"], "reason": "revoked" }));
    let error = client.fails("$subscribe", json!({ "topic": "**" })).await;
    assert_eq!((&error["code"], &error["details"]["reason"]), (&json!("ACL_SUBSCRIBE"), &json!("revoked")));
    assert_eq!(client.list().await, json!(["news:**"]));
}

#[tokio::test]
async fn a_rule_limits_the_subscribers_of_a_topic() {
    let pattern = |text| tidings_model::Pattern::parse(text).expect("a pattern");
    let server = server(|options| {
        let few = TopicRule { max_subscribers: Some(2), ..TopicRule::new(pattern("room:*")) };
        let later = TopicRule { max_subscribers: Some(1), ..TopicRule::new(pattern("**")) };
        options.rules = options.rules.clone().with_rules([few, later]);
    })
    .await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(Client::connect(&server).await);
    }
    let [first, second, third] = &mut clients[..] else { panic!("three clients") };
    first.subscribe("room:1").await;
    second.done("$set", json!({ "topics": ["room:1", "room:2"] })).await;
    let error = third.fails("$subscribeMany", json!({ "topics": ["room:2", "room:1"] })).await;
    let details = json!({ "scope": "topic", "limit": 2, "topic": "room:1" });
    assert_eq!((&error["code"], &error["details"]), (&json!("TOPIC_LIMIT_EXCEEDED"), &details));
    assert_eq!(third.list().await, json!([]), "all or nothing");
    third.subscribe("room:*").await;
    second.done("$clear", json!({})).await;
    third.subscribe("room:1").await;
    third.subscribe("room:2").await;
    second.subscribe("other").await;
    let error = third.fails("$subscribe", json!({ "topic": "other" })).await;
    assert_eq!(
        error["details"],
        json!({ "scope": "topic", "limit": 1, "topic": "other" }),
        "the first rule counts"
    );
    // Who goes makes room.
    let [_, _, mut third] = <[Client; 3]>::try_from(clients).ok().expect("three clients");
    tidings_testing::eventually("there is room", async || {
        third.ask("$subscribe", json!({ "topic": "other" })).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn a_subscription_with_a_time_ends_unless_it_is_repeated() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let subscribe = |topic: &str| json!({ "topic": topic, "ttlMs": 10_000 });
    client.done("$subscribe", subscribe("short")).await;
    client.done("$subscribe", subscribe("kept")).await;
    client.done("$subscribe", subscribe("room:*")).await;
    client.subscribe("long").await;
    client.done("$unsubscribe", json!({ "topic": "room:*" })).await;
    client.subscribe("room:*").await;
    let_pass(&server, 6).await;
    assert_eq!(client.done("$subscribe", subscribe("kept")).await, json!({ "added": 0, "total": 4 }));
    let_pass(&server, 6).await;
    let told = client.hear().await;
    let expected =
        json!({ "type": "$unsubscribed", "payload": { "topics": ["short"], "reason": "expired" } });
    assert_eq!(told, expected);
    assert_eq!(client.list().await, json!(["kept", "long", "room:*"]));
    assert_eq!((subscribers(&server, "short").await, subscribers(&server, "kept").await), (0, 1));
    let_pass(&server, 6).await;
    assert_eq!(client.hear().await["payload"]["topics"], json!(["kept"]));
}
