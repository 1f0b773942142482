//! Several connections of one user.

use super::*;

#[tokio::test]
async fn two_tabs_of_a_user_both_hear_and_closing_one_leaves_the_other() {
    let server = Harness::start().await;
    let mut first = Client::connect(&server).await;
    let mut second = Client::connect(&server).await;
    first.subscribe("project", &["1"]).await;
    second.subscribe("project", &["1"]).await;
    let stats = async || -> Value { server.get("/v1/app/entities/stats").await.json().await.expect("JSON") };
    assert_eq!(stats().await["project"], json!({ "entities": 1, "users": 1, "subscriptions": 2 }));
    update(&server, "project", "1").await;
    assert_eq!(ids(&first.changes("project").await), ["1"]);
    assert_eq!(ids(&second.changes("project").await), ["1"]);
    second.leave().await;
    until("it is gone", || server.metric("tidings_entity_subscriptions") == Some(1.0)).await;
    assert_eq!(stats().await["project"], json!({ "entities": 1, "users": 1, "subscriptions": 1 }));
    update(&server, "project", "1").await;
    assert_eq!(ids(&first.changes("project").await), ["1"]);
}

#[tokio::test]
async fn unsubscribing_in_one_tab_leaves_the_other_subscribed() {
    let server = Harness::start().await;
    let mut first = Client::connect(&server).await;
    let mut second = Client::connect(&server).await;
    for client in [&mut first, &mut second] {
        client.subscribe("project", &["1", "2"]).await;
    }
    assert_eq!(second.unsubscribe("project", &["1"]).await, 1);
    update(&server, "project", "1").await;
    update(&server, "project", "2").await;
    assert_eq!(ids(&first.until("2").await), ["1", "2"]);
    assert_eq!(ids(&second.until("2").await), ["2"]);
    second.ask("UNSUBSCRIBE_ALL", json!({}), "UNSUBSCRIBED").await;
    update(&server, "project", "2").await;
    assert_eq!(ids(&first.until("2").await), ["2"]);
}

#[tokio::test]
async fn a_connection_that_takes_over_closes_the_users_older_ones_with_4000_and_no_others() {
    let server = closed().await;
    let (alice, bob) = (token(&server, "alice"), token(&server, "bob"));
    let mut older = Client::with_token(&server, &alice).await;
    let mut old = Client::with_token(&server, &alice).await;
    let mut other = Client::with_token(&server, &bob).await;
    for client in [&mut older, &mut old, &mut other] {
        client.subscribe("project", &["1"]).await;
    }
    let path = format!("{PATH}?takeover=1");
    let mut newest = Client::opened(&server, &path, Some(&alice)).await.admitted().await;
    newest.subscribe("project", &["1"]).await;
    for client in [&mut older, &mut old] {
        assert_eq!(client.closed().await, (4000, "New connection".into()), "nothing comes before it");
    }
    drop((older, old));
    until("they are gone", || server.metric("tidings_entity_connections") == Some(2.0)).await;
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(2.0));
    update(&server, "project", "1").await;
    assert_eq!(ids(&newest.changes("project").await), ["1"]);
    assert_eq!(ids(&other.changes("project").await), ["1"]);
}

#[tokio::test]
async fn a_user_has_twenty_connections_and_one_more_is_closed_with_4429() {
    let server = closed().await;
    let alice = token(&server, "alice");
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Client::with_token(&server, &alice).await);
    }
    let mut one_more = Client::opened(&server, PATH, Some(&alice)).await;
    let told = one_more.turned_away().await;
    assert_eq!((&*told.0, told.2), ("LimitExceeded", 4429), "{told:?}");
    let hits = server.metric(r#"tidings_limit_hits_total{limit="entity_connections_per_user"}"#);
    assert_eq!(hits, Some(1.0));
    Client::with_token(&server, &token(&server, "bob")).await;
    clients.pop().expect("one of them").leave().await;
    until("there is room", || server.metric("tidings_entity_connections") == Some(19.0)).await;
    let mut again = Client::with_token(&server, &alice).await;
    for client in &mut clients {
        client.subscribe("project", &["1"]).await;
    }
    again.subscribe("project", &["1"]).await;
    let mut taking =
        Client::opened(&server, &format!("{PATH}?takeover=1"), Some(&alice)).await.admitted().await;
    taking.subscribe("project", &["1"]).await;
    assert_eq!(again.closed().await.0, 4000, "who takes over needs no room");
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_nothing_behind() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2"]).await;
    client.subscribe("task", &[]).await;
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(3.0));
    drop(client);
    nobody_is_left(&server).await;
    let stats: Value = server.get("/v1/app/entities/stats").await.json().await.expect("JSON");
    assert_eq!(stats, json!({}));
}
