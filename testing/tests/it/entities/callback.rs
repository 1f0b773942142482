//! An application that is asked over HTTP which entities a user may watch.

use tidings_egress::Target;
use tidings_testing::{Behaviour, Endpoint};

use super::*;

/// A server that asks this endpoint.
async fn asking(endpoint: &Endpoint) -> Harness {
    closed_with(|setup| {
        let url = endpoint.url("/may-watch");
        setup.entities.authorize.callback_url = Some(Target::parse(&url).expect("a URL"));
        setup.hooks.allow_targets = Some(tidings_egress::AllowList::loopback());
    })
    .await
}

fn allowing(allowed: Value) -> Behaviour {
    Behaviour::Answer(200, Vec::new(), json!({ "allowed": allowed }).to_string())
}

/// Ids of an answer that were denied.
fn denied(answer: &Value) -> Vec<&str> {
    let denied = answer["denied"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert!(denied.iter().all(|one| one["code"] == "Forbidden"), "{answer}");
    denied.iter().map(|one| one["entityId"].as_str().expect("an id")).collect()
}

#[tokio::test]
async fn a_callback_is_asked_with_user_type_and_ids_and_its_answer_decides() {
    let endpoint = Endpoint::start().await;
    let server = asking(&endpoint).await;
    let mut client = Client::with_token(&server, &token(&server, "alice")).await;
    endpoint.usually(allowing(json!(["1", "3", "not asked for"])));
    let answer = client.subscribe("project", &["1", "2", "3"]).await;
    assert_eq!((&answer["count"], denied(&answer)), (&json!(2), vec!["2"]));
    let asked = endpoint.received().last().expect("it was asked").clone();
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/may-watch"));
    let mut body = asked.json();
    body["entityIds"].as_array_mut().expect("a list").sort_by_key(Value::to_string);
    assert_eq!(body, json!({ "user": "alice", "entityCode": "project", "entityIds": ["1", "2", "3"] }));
    publish(&server, &[change("project", "2", "UPDATE"), change("project", "3", "UPDATE")]).await;
    assert_eq!(ids(&client.until("3").await), ["3"]);
    endpoint.usually(allowing(json!([])));
    let whole = json!({ "entityCode": "project", "entityIds": [] });
    assert_eq!(client.refused("SUBSCRIBE", whole).await, "Forbidden");
    assert_eq!(endpoint.received().last().expect("asked").json()["entityIds"], json!([null]));
    endpoint.usually(allowing(json!([null])));
    assert_eq!(client.subscribe("project", &[]).await["count"], 1);
}

#[tokio::test]
async fn a_callback_that_fails_allows_nothing_and_the_connection_stays() {
    let endpoint = Endpoint::start().await;
    let server = asking(&endpoint).await;
    let mut client = Client::with_token(&server, &token(&server, "alice")).await;
    for behaviour in [
        Behaviour::status(500),
        Behaviour::status(403),
        Behaviour::Answer(302, vec![("location", endpoint.url("/other"))], String::new()),
        Behaviour::Answer(200, Vec::new(), "{}".to_owned()),
        Behaviour::Answer(200, Vec::new(), "not JSON".to_owned()),
        Behaviour::Answer(200, Vec::new(), r#"{"allowed":[1]}"#.to_owned()),
        Behaviour::Reset,
        Behaviour::Garbage,
        Behaviour::Huge(8 * 1024 * 1024),
    ] {
        endpoint.usually(behaviour.clone());
        let answer = client.subscribe("project", &["1", "2"]).await;
        let mut ids = denied(&answer);
        ids.sort_unstable();
        assert_eq!((&answer["count"], ids), (&json!(0), vec!["1", "2"]), "{behaviour:?}");
        let whole = json!({ "entityCode": "project", "entityIds": [] });
        assert_eq!(client.refused("SUBSCRIBE", whole).await, "Forbidden", "{behaviour:?}");
    }
    assert!(server.metric(r#"tidings_entity_callbacks_total{result="failed"}"#) >= Some(18.0));
    endpoint.usually(allowing(json!(["1"])));
    assert_eq!(client.subscribe("project", &["1"]).await["count"], 1, "it is asked again each time");
}

#[tokio::test]
async fn a_callback_that_never_answers_allows_nothing_and_holds_up_nobody_else() {
    let endpoint = Endpoint::start().await;
    let server = asking(&endpoint).await;
    let mut slow = Client::with_token(&server, &token(&server, "alice")).await;
    let mut other = Client::with_token(&server, &token(&server, "bob")).await;
    endpoint.usually(allowing(json!(["1"])));
    other.subscribe("project", &["1"]).await;
    endpoint.usually(Behaviour::Hang);
    slow.send("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": ["1"] })).await;
    slow.send("PING", json!({})).await;
    until("it was asked", || endpoint.received().len() == 2).await;
    update(&server, "project", "1").await;
    assert_eq!(ids(&other.changes("project").await), ["1"]);
    until("it waits", || server.clock.sleepers() > SLEEPERS + 1).await;
    server.clock.advance(tidings_model::limits::ENTITY_CALLBACK_TIMEOUT);
    let answer = slow.answer().await;
    assert_eq!((&answer["type"], &answer["payload"]["count"]), (&json!("SUBSCRIBED"), &json!(0)), "{answer}");
    assert_eq!(slow.answer().await["type"], "PONG", "answers stay in order");
}

#[tokio::test]
async fn a_callback_is_asked_only_for_what_the_token_grants() {
    let endpoint = Endpoint::start().await;
    let server = asking(&endpoint).await;
    endpoint.usually(allowing(json!(["1", "2"])));
    let mut client = Client::with_token(&server, &token_for(&server, "alice", &["project:1"])).await;
    let answer = client.subscribe("project", &["1", "2"]).await;
    assert_eq!((&answer["count"], denied(&answer)), (&json!(1), vec!["2"]));
    assert_eq!(endpoint.received().last().expect("asked").json()["entityIds"], json!(["1"]));
    let whole = json!({ "entityCode": "project", "entityIds": [] });
    assert_eq!(client.refused("SUBSCRIBE", whole).await, "Forbidden");
    assert_eq!(endpoint.received().len(), 1, "there was nothing to ask");
}

#[tokio::test]
async fn a_callback_that_may_not_be_called_is_not_and_nothing_is_allowed() {
    let endpoint = Endpoint::start().await;
    let server = closed_with(|setup| {
        let url = endpoint.url("/may-watch");
        setup.entities.authorize.callback_url = Some(Target::parse(&url).expect("a URL"));
    })
    .await;
    endpoint.usually(allowing(json!(["1"])));
    let mut client = Client::with_token(&server, &token(&server, "alice")).await;
    let answer = client.subscribe("project", &["1"]).await;
    assert_eq!((&answer["count"], denied(&answer)), (&json!(0), vec!["1"]));
    assert!(endpoint.received().is_empty(), "its address is not public");
}
