//! What a token that is confined to something may watch: the entities that it names, and nothing else.

use tidings_auth::TopicGrants;

use super::*;

fn globs(texts: &[&str]) -> Option<Vec<Pattern>> {
    Some(texts.iter().map(|text| Pattern::parse(text).expect("a pattern")).collect())
}

/// A client whose token has these resources.
async fn confined(server: &Harness, resources: Resources) -> Client {
    let token = signed(&Claims { resources, ..claims(server, "alice", Scope::Manage) });
    Client::with_token(server, &token).await
}

/// Ids of an answer that were denied, all of them forbidden.
fn forbidden(answer: &Value) -> Vec<String> {
    let denied = answer["denied"].as_array().cloned().unwrap_or_default();
    let id = |one: &Value| {
        assert_eq!(one["code"], "Forbidden", "{answer}");
        one["entityId"].as_str().expect("an id").to_owned()
    };
    denied.iter().map(id).collect()
}

#[tokio::test]
async fn what_a_claim_names_is_subscribed_and_the_rest_is_forbidden_id_by_id() {
    let server = closed().await;
    let entities = globs(&["project:1", "project:a-*", "task:**"]);
    let mut client = confined(&server, Resources { entities, ..Resources::default() }).await;
    let answer = client.subscribe("project", &["1", "2", "a-7", "b-7", "a-7.x"]).await;
    let mut denied = forbidden(&answer);
    denied.sort();
    assert_eq!((&answer["count"], denied), (&json!(2), vec!["2".into(), "a-7.x".into(), "b-7".into()]));
    let answer = client.subscribe("note", &["1"]).await;
    assert_eq!((&answer["count"], forbidden(&answer)), (&json!(0), vec!["1".to_owned()]));
    assert_eq!(client.subscribe("task", &["x.y"]).await["count"], 1);
    assert_eq!(client.subscribe("task", &[]).await["count"], 1, "all of it is named");
    let whole = json!({ "entityCode": "project", "entityIds": [], "requestId": 7 });
    let error = client.ask("SUBSCRIBE", whole, "ERROR").await;
    assert_eq!((&error["code"], &error["requestId"]), (&json!("Forbidden"), &json!(7)));
    let changes = ["2", "b-7", "1", "a-7"].map(|id| change("project", id, "UPDATE"));
    publish(&server, &changes).await;
    let told = client.until("a-7").await;
    assert_eq!(ids(&told), ["1", "a-7"], "nothing of what is forbidden");
}

#[tokio::test]
async fn a_token_for_anything_else_connects_and_everything_is_forbidden() {
    let server = closed().await;
    let none = Resources::default;
    for (what, resources) in [
        ("streams", Resources { streams: globs(&["**"]), ..none() }),
        ("a stream", Resources { stream_id: Some("project:1".into()), ..none() }),
        ("topics", Resources { topics: globs(&["**"]).map(TopicGrants::both), ..none() }),
        ("rooms", Resources { rooms: globs(&["**"]), ..none() }),
        ("a session", Resources { session: Some("project:1".into()), ..none() }),
        ("no entities", Resources { entities: globs(&[]), ..none() }),
    ] {
        let mut client = confined(&server, resources).await;
        let answer = client.subscribe("project", &["1"]).await;
        assert_eq!((&answer["count"], forbidden(&answer)), (&json!(0), vec!["1".to_owned()]), "{what}");
        let whole = json!({ "entityCode": "project", "entityIds": [] });
        assert_eq!(client.refused("SUBSCRIBE", whole).await, "Forbidden", "{what}");
        let since = client.connected["cursor"].clone();
        update(&server, "project", "1").await;
        let answer = client.resume("project", &["1"], &since).await;
        assert_eq!(answer["count"], 0, "{what}");
        client.ask("PING", json!({}), "PONG").await;
        assert!(client.heard.is_empty(), "{what}: {:?}", client.heard);
    }
}

#[tokio::test]
async fn without_claims_and_without_an_authoriser_every_entity_may_be_watched() {
    let server = closed().await;
    for scope in [Scope::Read, Scope::Write, Scope::Manage] {
        let mut client = Client::with_token(&server, &signed(&claims(&server, "alice", scope))).await;
        let answer = client.subscribe("project", &["1", "2"]).await;
        assert_eq!((&answer["count"], answer.get("denied")), (&json!(2), None), "{scope:?}");
        assert_eq!(client.subscribe("project", &[]).await["count"], 1);
    }
}

#[tokio::test]
async fn on_every_route_of_entities_a_claim_gains_what_it_names_and_nothing_else() {
    let server = closed().await;
    let none = Resources::default;
    let everything = Resources { entities: globs(&["**"]), ..none() };
    // Of each claim: whether it lets a change be published, and statistics be seen.
    for (what, resources, changes, stats) in [
        ("no claims", none(), 200, 200),
        ("every entity", everything, 200, 403),
        ("this entity", Resources { entities: globs(&["project:1"]), ..none() }, 200, 403),
        ("another entity", Resources { entities: globs(&["project:2"]), ..none() }, 403, 403),
        ("streams", Resources { streams: globs(&["**"]), ..none() }, 403, 403),
        ("rooms", Resources { rooms: globs(&["**"]), ..none() }, 403, 403),
        ("topics", Resources { topics: globs(&["**"]).map(TopicGrants::both), ..none() }, 403, 403),
        ("a session", Resources { session: Some("alice".into()), ..none() }, 403, 403),
    ] {
        let token = signed(&Claims { resources, ..claims(&server, "alice", Scope::Manage) });
        let body = json!([change("project", "1", "UPDATE")]);
        assert_eq!(post_to(&server, "app", Some(&token), &body).await.0, changes, "{what}");
        for path in ["/v1/app/entities/stats", "/v1/app/entities/stats/alice"] {
            let answer = server.request(Method::GET, path).bearer_auth(&token).send().await;
            assert_eq!(answer.expect("an answer").status().as_u16(), stats, "{what}: {path}");
        }
    }
}
