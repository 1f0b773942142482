//! What a client may have, and what is answered beyond that.

use super::*;

#[tokio::test]
async fn more_ids_than_a_message_may_name_are_refused_and_nothing_of_it_is_subscribed() {
    let server = server(|options| {
        options.entities.max_ids_per_subscribe = 3;
        options.sockets.max_ids_per_subscribe = 3;
    })
    .await;
    let mut client = Client::connect(&server).await;
    let entities = |ids: &[&str]| json!({ "entityCode": "project", "entityIds": ids, "requestId": 1 });
    let error = client.ask("SUBSCRIBE", entities(&["1", "2", "3", "4"]), "ERROR").await;
    assert_eq!((&error["code"], &error["requestId"]), (&json!("LimitExceeded"), &json!(1)));
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(0.0));
    assert_eq!(client.subscribe("project", &["1", "2", "3"]).await["count"], 3);
    let hits = server.metric(r#"tidings_limit_hits_total{limit="entity_ids_per_subscribe"}"#);
    assert_eq!(hits, Some(1.0));
}

#[tokio::test]
async fn ten_thousand_ids_are_subscribed_in_one_message_and_one_more_is_refused() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let ids: Vec<_> = (0..=10_000).map(|n| n.to_string()).collect();
    let all: Vec<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(client.subscribe("project", &all[..10_000]).await["count"], 10_000);
    let payload = json!({ "entityCode": "project", "entityIds": all });
    assert_eq!(client.refused("SUBSCRIBE", payload).await, "LimitExceeded");
    update(&server, "project", "9999").await;
    assert_eq!(super::ids(&client.changes("project").await), ["9999"]);
}

#[tokio::test]
async fn a_connection_has_so_many_subscriptions_and_no_more() {
    let server = server(|options| options.entities.max_subscriptions_per_connection = 4).await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2"]).await;
    client.subscribe("task", &[]).await;
    let payload = json!({ "entityCode": "project", "entityIds": ["3", "4"] });
    assert_eq!(client.refused("SUBSCRIBE", payload).await, "LimitExceeded");
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(3.0), "nothing of it");
    assert_eq!(
        client.subscribe("project", &["1", "2", "3"]).await["count"],
        3,
        "those that are there count once"
    );
    let whole = json!({ "entityCode": "note", "entityIds": [] });
    assert_eq!(client.refused("SUBSCRIBE", whole).await, "LimitExceeded");
    client.unsubscribe("project", &["1"]).await;
    assert_eq!(client.subscribe("note", &[]).await["count"], 1);
    let hits = server.metric(r#"tidings_limit_hits_total{limit="entity_subscriptions"}"#);
    assert_eq!(hits, Some(2.0));
    let mut other = Client::connect(&server).await;
    assert_eq!(other.subscribe("project", &["1", "2", "3", "4"]).await["count"], 4, "each has its own");
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_connection_closed() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let most = tidings_model::limits::ENTITY_MESSAGE_BYTES;
    let fits = format!(r#"{{"type":"PING","more":"{}"}}"#, "x".repeat(most - 30));
    client.say(&fits).await;
    assert_eq!(client.answer().await["type"], "PONG");
    // The server may close before it was read to its end.
    let _ = client.socket.send(Message::text("x".repeat(most + 1))).await;
    let told = client.turned_away().await;
    assert_eq!((&*told.0, told.2), ("LimitExceeded", 1009), "{told:?}");
}

#[tokio::test]
async fn whoever_has_not_shown_a_token_may_send_little() {
    let server = closed().await;
    let mut client = Client::opened(&server, PATH, None).await;
    let _ = client.socket.send(Message::text("x".repeat(64 * 1024))).await;
    let told = client.turned_away().await;
    assert_eq!((&*told.0, told.2), ("LimitExceeded", 1009), "{told:?}");
    let mut client = Client::opened(&server, PATH, None).await;
    client.send("AUTH", json!({ "token": token(&server, "alice") })).await;
    let mut client = client.admitted().await;
    let ids: Vec<_> = (0..5000).map(|n| n.to_string()).collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(client.subscribe("project", &ids).await["count"], 5000, "and afterwards more");
}
