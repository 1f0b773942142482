//! Subscribing and unsubscribing: what is answered, and what is subscribed afterwards.

use super::*;

/// Subscriptions of the user `dev`, by type.
async fn held(server: &Harness) -> Value {
    server.get("/v1/app/entities/stats/dev").await.json().await.expect("JSON")
}

#[tokio::test]
async fn an_answer_tells_how_many_of_which_type_and_a_cursor() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let fifty: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let fifty: Vec<&str> = fifty.iter().map(String::as_str).collect();
    let answer = client.subscribe("project", &fifty).await;
    assert_eq!((&answer["count"], &answer["entityCode"]), (&json!(50), &json!("project")));
    assert!(answer["cursor"].is_string() && answer.get("denied").is_none(), "{answer}");
    assert_eq!(client.subscribe("task", &["a"]).await["count"], 1);
    assert_eq!(held(&server).await, json!({ "project": 50, "task": 1 }));
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(51.0));
}

#[tokio::test]
async fn the_id_of_a_request_is_repeated_in_every_answer() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let entities = |ids: &[&str], id: Value| json!({ "entityCode": "a", "entityIds": ids, "requestId": id });
    for (kind, payload, answer, id) in [
        ("PING", json!({ "requestId": "p" }), "PONG", json!("p")),
        ("SUBSCRIBE", entities(&["1"], json!("s-1")), "SUBSCRIBED", json!("s-1")),
        ("SUBSCRIBE", entities(&[], json!(2)), "SUBSCRIBED", json!(2)),
        ("UNSUBSCRIBE", entities(&["1"], json!("ü")), "UNSUBSCRIBED", json!("ü")),
        ("UNSUBSCRIBE_ALL", json!({ "requestId": 1.5 }), "UNSUBSCRIBED", json!(1.5)),
        ("TOKEN_REFRESH", json!({ "token": "x", "requestId": "t" }), "ERROR", json!("t")),
        ("SUBSCRIBE", json!({ "entityCode": "a", "requestId": "e" }), "ERROR", json!("e")),
        ("NONSENSE", json!({ "requestId": "u" }), "ERROR", json!("u")),
    ] {
        let told = client.ask(kind, payload.clone(), answer).await;
        assert_eq!(told["requestId"], id, "{kind} {payload}: {told}");
    }
    client.say(r#"{"type":"PING","requestId":"beside"}"#).await;
    assert_eq!(client.answer().await["payload"]["requestId"], "beside");
    let without = client.ask("PING", json!({}), "PONG").await;
    assert_eq!(without.get("requestId"), None);
}

#[tokio::test]
async fn the_same_id_counts_once_and_subscribing_again_changes_nothing() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let answer = client.subscribe("project", &["1", "2", "1", "1"]).await;
    assert_eq!((&answer["count"], answer.get("denied")), (&json!(2), None));
    assert_eq!(client.subscribe("project", &["1", "2"]).await["count"], 2, "those that were there count");
    assert_eq!(held(&server).await, json!({ "project": 2 }));
    update(&server, "project", "1").await;
    let told = client.changes("project").await;
    assert_eq!(ids(&told), ["1"], "told once");
}

#[tokio::test]
async fn unsubscribing_by_id_ends_these_and_of_a_type_all_of_it() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2", "3", "4"]).await;
    client.subscribe("task", &["1"]).await;
    assert_eq!(client.unsubscribe("project", &["1", "2", "9", "1"]).await, 2);
    assert_eq!(held(&server).await, json!({ "project": 2, "task": 1 }));
    assert_eq!(client.unsubscribe("project", &["1"]).await, 0);
    client.subscribe("project", &[]).await;
    let payload = json!({ "entityCode": "project" });
    let told = client.ask("UNSUBSCRIBE", payload, "UNSUBSCRIBED").await;
    assert_eq!(told, json!({ "count": 3, "entityCode": "project" }), "two ids and the type");
    assert_eq!(held(&server).await, json!({ "task": 1 }));
    client.subscribe("project", &["1"]).await;
    assert_eq!(client.unsubscribe("project", &[]).await, 1, "an empty list is everything, too");
    client.subscribe("project", &["1", "2"]).await;
    let told = client.ask("UNSUBSCRIBE_ALL", json!({}), "UNSUBSCRIBED").await;
    assert_eq!(told, json!({ "count": 3 }));
    assert_eq!(held(&server).await, json!({}));
    client.send("UNSUBSCRIBE_ALL", json!(null)).await;
    assert_eq!(client.answer().await["payload"], json!({ "count": 0 }), "of nothing");
}

#[tokio::test]
async fn what_was_unsubscribed_is_not_told_any_more() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2"]).await;
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
    // Another page is shown.
    client.unsubscribe("project", &["1", "2"]).await;
    client.subscribe("project", &["3"]).await;
    publish(&server, &[change("project", "1", "UPDATE"), change("project", "2", "DELETE")]).await;
    update(&server, "project", "3").await;
    assert_eq!(ids(&client.until("3").await), ["3"]);
}

#[tokio::test]
async fn a_whole_type_is_heard_also_what_is_created_later_and_an_id_under_it_is_told_once() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    assert_eq!(client.subscribe("project", &[]).await["count"], 1);
    assert_eq!(client.subscribe("project", &["1"]).await["count"], 1);
    publish(&server, &[change("task", "1", "UPDATE"), change("project", "new", "CREATE")]).await;
    assert_eq!(ids(&client.until("new").await), ["new"]);
    publish(&server, &[change("project", "1", "UPDATE"), change("project", "last", "UPDATE")]).await;
    assert_eq!(ids(&client.until("last").await), ["1", "last"], "by its id and its type, but once");
    assert_eq!(client.unsubscribe("project", &["1"]).await, 1, "its own subscription ends");
    assert_eq!(client.unsubscribe("project", &["1"]).await, 0, "it has none, and the type stays");
    publish(&server, &[change("project", "1", "UPDATE"), change("project", "last", "UPDATE")]).await;
    assert_eq!(ids(&client.until("last").await), ["1", "last"], "there is no exception to a type");
}

#[tokio::test]
async fn ids_that_are_none_are_denied_one_by_one_and_the_rest_is_subscribed() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let long = "ä".repeat(129);
    let payload =
        json!({ "entityCode": "project", "entityIds": ["good", "", long, 7, null, { "a": 1 }, "a\u{0}b"] });
    let answer = client.ask("SUBSCRIBE", payload, "SUBSCRIBED").await;
    let denied = |id: Value| json!({ "entityId": id, "code": "InvalidId" });
    let expected: Vec<_> =
        [json!(""), json!(long), json!(7), json!(null), json!({ "a": 1 }), json!("a\u{0}b")]
            .map(denied)
            .into();
    assert_eq!((&answer["count"], &answer["denied"]), (&json!(1), &json!(expected)));
    let none =
        client.ask("SUBSCRIBE", json!({ "entityCode": "task", "entityIds": [""] }), "SUBSCRIBED").await;
    assert_eq!((&none["count"], none["denied"].as_array().map(Vec::len)), (&json!(0), Some(1)));
    assert_eq!(held(&server).await, json!({ "project": 1 }), "and not the whole type `task`");
    let gone =
        client.ask("UNSUBSCRIBE", json!({ "entityCode": "project", "entityIds": [""] }), "UNSUBSCRIBED");
    assert_eq!(gone.await["count"], 0, "nor is the whole type ended");
}

#[tokio::test]
async fn an_id_is_any_text_of_up_to_128_characters_whatever_it_looks_like() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let longest = "ü".repeat(128);
    let odd = [
        "'; DROP TABLE app.rxdb_subscription; --",
        "1' OR '1'='1",
        "$1",
        "*",
        "a:b.c/**",
        "\\\"{}",
        " ",
        "😀",
        &longest,
    ];
    let answer = client.subscribe("pro'ject \"x\"", &odd).await;
    assert_eq!((&answer["count"], answer.get("denied")), (&json!(odd.len()), None));
    for id in odd {
        update(&server, "pro'ject \"x\"", id).await;
        assert_eq!(ids(&client.changes("pro'ject \"x\"").await), [id], "it and nothing else");
    }
    update(&server, "project", "'; DROP TABLE app.rxdb_subscription; --").await;
    update(&server, "pro'ject \"x\"", "😀").await;
    assert_eq!(ids(&client.until("😀").await), ["😀"]);
}

#[tokio::test]
async fn requests_of_a_connection_are_answered_in_their_order() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for n in 0..200 {
        let kind = ["SUBSCRIBE", "UNSUBSCRIBE", "PING"][n % 3];
        let ids = [n.to_string()];
        client.send(kind, json!({ "entityCode": "a", "entityIds": ids, "requestId": n })).await;
    }
    for n in 0..200 {
        assert_eq!(client.answer().await["payload"]["requestId"], n);
    }
}
