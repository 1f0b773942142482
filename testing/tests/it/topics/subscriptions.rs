//! What a connection holds, and what it takes to change that.

use super::*;

/// A day of the server's clock.
const DAY: Duration = Duration::from_secs(24 * 3600);

fn topics(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("t:{n}")).collect()
}

#[tokio::test]
async fn lists_that_are_set_shortened_and_emptied_answer_what_they_changed() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let settled = json!({ "waitFor": "settled", "timeoutMs": 5000, "verify": "strict" });
    for (kind, payload, answer) in [
        (
            "$set",
            json!({ "topics": ["room:123", "system:announcements"] }),
            json!({ "added": 2, "removed": 0, "total": 2 }),
        ),
        (
            "$set",
            json!({ "topics": ["system:announcements"] }),
            json!({ "added": 0, "removed": 1, "total": 1 }),
        ),
        ("$unsubscribeMany", json!({ "topics": [] }), json!({ "removed": 0, "total": 1 })),
        ("$set", json!({ "topics": [] }), json!({ "added": 0, "removed": 1, "total": 0 })),
        ("$set", json!({ "topics": [] }), json!({ "added": 0, "removed": 0, "total": 0 })),
        ("$unsubscribeMany", json!({ "topics": [] }), json!({ "removed": 0, "total": 0 })),
        (
            "$set",
            json!({ "topics": ["room:old"], "options": settled }),
            json!({ "added": 1, "removed": 0, "total": 1 }),
        ),
        (
            "$update",
            json!({ "remove": ["room:old"], "add": ["room:new", "room:announcements"], "options": settled }),
            json!({ "added": 2, "removed": 1, "total": 2 }),
        ),
        ("$list", json!({}), json!({ "topics": ["room:new", "room:announcements"], "total": 2 })),
    ] {
        assert_eq!(client.done(kind, payload.clone()).await, answer, "{kind} {payload}");
    }
    for kind in ["$set", "$update"] {
        let payload = json!({ "topics": ["a"], "add": ["a"], "options": { "timeoutMs": 60_001 } });
        let error = client.fails(kind, payload).await;
        assert_eq!(error["details"], json!({ "reason": "payload", "field": "options.timeoutMs" }), "{kind}");
    }
}

#[tokio::test]
async fn an_update_with_a_bad_topic_removes_nothing_either() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("room:old").await;
    let update = json!({ "remove": ["room:old"], "add": ["room:new", "no spaces"] });
    assert_eq!(client.fails("$update", update).await["code"], "INVALID_TOPIC");
    assert_eq!(client.list().await, json!(["room:old"]));
    assert_eq!(subscribers(&server, "room:old").await, 1);
    assert_eq!(subscribers(&server, "room:new").await, 0);
}

#[tokio::test]
async fn one_by_one_or_as_a_set_the_topics_are_the_same_and_repeating_them_changes_nothing() {
    let server = Harness::start().await;
    let wanted = ["room:1", "room:2", "news"];
    let mut one_by_one = Client::connect(&server).await;
    for (n, topic) in wanted.iter().enumerate() {
        assert_eq!(one_by_one.subscribe(topic).await, json!({ "added": 1, "total": n + 1 }));
    }
    let list = one_by_one.list().await;
    one_by_one.leave().await;
    // After it has come again it does not ask what it holds, but says all of it again.
    let mut again = Client::connect(&server).await;
    for round in [1, 0] {
        for topic in wanted {
            assert_eq!(again.subscribe(topic).await["added"], round, "{topic}");
        }
    }
    let mut as_a_set = Client::connect(&server).await;
    for added in [3, 0] {
        let counts = as_a_set.done("$set", json!({ "topics": wanted })).await;
        assert_eq!(counts, json!({ "added": added, "removed": 0, "total": 3 }));
    }
    assert_eq!((again.list().await, as_a_set.list().await), (list.clone(), list));
    for topic in wanted {
        assert_eq!(post(&server, topic, &json!({ "type": "T" })).await.1["matched"], 2, "{topic}");
        assert_eq!(again.hear().await["meta"]["topic"], topic);
        assert_eq!(as_a_set.hear().await["meta"]["topic"], topic);
    }
}

#[tokio::test]
async fn nothing_is_heard_before_a_subscribe_after_a_clear_or_between_two_connections() {
    let server = Harness::start().await;
    let mut publisher = Client::connect(&server).await;
    let mut client = Client::connect(&server).await;
    assert_eq!(publisher.publish("a", json!("before")).await["matched"], 0);
    assert_eq!(client.list().await, json!([]));
    client.done("$set", json!({ "topics": ["a", "b"] })).await;
    assert_eq!(publisher.publish("a", json!("heard")).await["matched"], 1);
    assert_eq!(client.message("a").await, "heard", "and nothing before it");
    client.done("$clear", json!({})).await;
    for topic in ["a", "b"] {
        assert_eq!(publisher.publish(topic, json!("cleared")).await["matched"], 0);
    }
    assert_eq!(client.list().await, json!([]));
    assert!(client.heard.is_empty(), "nothing came after the answer to `$clear`");
    client.subscribe("a").await;
    client.leave().await;
    tidings_testing::eventually("it is gone", async || subscribers(&server, "a").await == 0).await;
    assert_eq!(publisher.publish("a", json!("between")).await["matched"], 0);
    let mut again = Client::connect(&server).await;
    again.subscribe("a").await;
    assert_eq!(publisher.publish("a", json!("after")).await["matched"], 1);
    assert_eq!(again.message("a").await, "after", "what was missed is not told later");
}

#[tokio::test]
async fn a_subscription_lasts_for_months_without_being_renewed() {
    let server = server(|options| {
        options.heartbeat = DAY * 1000;
        options.heartbeat_timeout = DAY * 2000;
    })
    .await;
    let mut publisher = Client::connect(&server).await;
    let mut client = Client::connect(&server).await;
    client.subscribe("t").await;
    for day in 0..100 {
        server.clock.advance(DAY);
        assert_eq!(publisher.publish("t", json!(day)).await["matched"], 1);
        assert_eq!(client.message("t").await, day);
    }
}

#[tokio::test]
async fn a_list_is_of_the_moment_at_which_it_was_asked_for() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a").await;
    let list = client.begin("$list", json!({})).await;
    let more = client.begin("$subscribeMany", json!({ "topics": ["b", "c"] })).await;
    let none = client.begin("$clear", json!({})).await;
    assert_eq!(client.answer_to(&list).await, Ok(json!({ "topics": ["a"], "total": 1 })));
    assert_eq!(client.answer_to(&more).await, Ok(json!({ "added": 2, "total": 3 })));
    assert_eq!(client.answer_to(&none).await, Ok(json!({ "removed": 3 })));
}

#[tokio::test]
async fn a_thousand_topics_are_listed_in_order() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let thousand = topics(1000);
    client.done("$set", json!({ "topics": thousand })).await;
    assert_eq!(client.done("$list", json!({})).await, json!({ "topics": thousand, "total": 1000 }));
}

#[tokio::test]
async fn a_connection_keeps_its_topics_and_itself_whatever_else_it_says() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let held = json!(["t", "u"]);
    client.done("$set", json!({ "topics": held })).await;
    let message = json!({ "type": "T", "meta": { "topic": "x", "clientId": "c" } });
    for (kind, payload) in [
        ("$publish", json!({ "topic": "other", "message": message })),
        ("$publish", json!({ "topic": "other", "message": { "type": "$unsubscribed" } })),
        ("$list", json!({ "topics": [] })),
        ("$settle", json!({ "topic": "t" })),
        ("$verify", json!({ "topic": "x", "mode": "strict" })),
        ("$localStatus", json!({ "topic": "x" })),
        ("$history", json!({ "topic": "t" })),
        ("$unsubscribed", json!({ "topics": ["t"] })),
        ("$close", json!({ "code": 1000, "reason": "x", "reconnect": true })),
        ("$hello", json!({ "clientId": "c" })),
        ("$reply", json!({ "removed": 2 })),
        ("hello", json!({ "topics": [] })),
        ("$subscribe", json!({ "topics": ["x"] })),
        ("$subscribe", json!({ "topic": "no spaces" })),
        ("$set", json!({ "topics": ["x", "no spaces"] })),
        ("$set", json!({ "topic": "x" })),
        ("$update", json!({ "add": ["no spaces"], "remove": ["t"] })),
        ("$auth", json!({ "token": "nonsense" })),
    ] {
        let _ = client.ask(kind, payload.clone()).await;
        assert_eq!(client.list().await, held, "{kind} {payload}");
    }
    for text in ["not json", "[]", r#"{"type":"__heartbeat"}"#, r#"{"type":"$clear","payload":7}"#] {
        client.say(text).await;
        assert_eq!(client.list().await, held, "{text}");
    }
    client.say_bytes(&b"\0\x10{\"type\":\"$clear\"}"[..]).await;
    client.say(r#"{"type":"$ws:abort","meta":{"correlationId":"1"}}"#).await;
    assert_eq!(client.list().await, held);
    assert_eq!(post(&server, "t", &json!({ "type": "T" })).await.1["matched"], 1);
    assert_eq!(client.list().await, held);
    assert!(client.heard.iter().all(|frame| frame["type"] != "$hello"), "{:?}", client.heard);
    client.heard.clear();
    // It is still the one that it was: what it says is left out where it asks for that.
    let own = json!({ "topic": "t", "message": { "type": "T" }, "excludeSelf": true });
    assert_eq!(client.done("$publish", own).await["matched"], 0);
}
