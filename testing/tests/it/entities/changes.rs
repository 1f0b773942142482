//! Publishing changes over HTTP, and what clients are told of them.

use super::*;

#[tokio::test]
async fn a_change_is_told_with_type_id_action_version_time_and_cursor() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2", "3"]).await;
    let mut last = 0;
    for (id, action) in [("1", "CREATE"), ("2", "UPDATE"), ("3", "DELETE")] {
        let cursor = publish(&server, &[change("project", id, action)]).await;
        let payload = client.hear_a("INVALIDATE").await;
        let [(told, did, version)] = &told(&payload)[..] else { panic!("{payload}") };
        assert_eq!((&**told, &**did), (id, action));
        assert!(*version > last && *version < 1 << 53, "{payload}");
        last = *version;
        assert_eq!(payload["entityCode"], "project");
        assert_eq!(payload["timestamp"], "2025-11-16T12:00:00.123Z");
        assert_eq!(payload["cursor"], cursor, "whoever has heard it resumes here");
        let mut names: Vec<_> = payload.as_object().expect("an object").keys().collect();
        names.sort();
        assert_eq!(names, ["changes", "cursor", "entityCode", "timestamp"]);
        let one = payload["changes"][0].as_object().expect("an object");
        assert_eq!(one.keys().collect::<Vec<_>>(), ["action", "entityId", "version"]);
    }
}

#[tokio::test]
async fn an_answer_says_how_many_were_accepted_and_where_to_resume() {
    let server = Harness::start().await;
    let (status, answer) = post_to(&server, "app", None, &json!([])).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(0)), "{answer}");
    let both = json!([change("a", "1", "CREATE"), change("b", "1", "DELETE")]);
    let (status, answer) = post_to(&server, "app", None, &both).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(2)), "{answer}");
    let mut client = Client::connect(&server).await;
    assert_eq!(client.connected["cursor"], answer["cursor"]);
    let resumed = client.resume("a", &[], &answer["cursor"]).await;
    assert_eq!(resumed["cursor"], answer["cursor"]);
    update(&server, "a", "2").await;
    assert_eq!(ids(&client.until("2").await), ["2"], "nothing of what was before");
}

#[tokio::test]
async fn changes_need_the_scope_write_and_the_entities_that_a_token_names() {
    let server = closed().await;
    let body = json!([change("project", "1", "UPDATE"), change("project", "2", "UPDATE")]);
    for (scope, status) in [(Scope::Read, 403), (Scope::Write, 200), (Scope::Manage, 200)] {
        let token = signed(&claims(&server, "alice", scope));
        assert_eq!(post_to(&server, "app", Some(&token), &body).await.0, status, "{scope:?}");
        assert_eq!(post_to(&server, "other", Some(&token), &body).await.0, 403, "another project");
    }
    assert_eq!(post_to(&server, "app", None, &body).await.0, 401);
    let mut client = Client::with_token(&server, &token(&server, "carol")).await;
    client.subscribe("project", &[]).await;
    for (globs, status) in [
        (&["project:*"][..], 200),
        (&["project:1", "project:2"], 200),
        (&["project:1"], 403),
        (&["task:**"], 403),
        (&[], 403),
    ] {
        let token = token_for(&server, "bob", globs);
        let (told, answer) = post_to(&server, "app", Some(&token), &body).await;
        assert_eq!(told, status, "{globs:?}: {answer}");
        if status == 200 {
            assert_eq!(client.until("2").await.len(), 2, "all of it");
        }
    }
    update(&server, "project", "last").await;
    assert_eq!(ids(&client.until("last").await), ["last"], "and nothing of what was refused");
}

#[tokio::test]
async fn an_api_key_publishes_changes() {
    let server = closed().await;
    let created = server.post("/v1/projects/app/keys").bearer_auth(tidings_testing::ADMIN_KEY).send().await;
    let created: Value = created.expect("an answer").json().await.expect("JSON");
    let key = created["apiKey"].as_str().expect("a key");
    let (status, answer) = post_to(&server, "app", Some(key), &json!([change("a", "1", "UPDATE")])).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(1)), "{answer}");
}

#[tokio::test]
async fn a_body_with_one_bad_change_is_refused_as_a_whole_and_says_which() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a", &[]).await;
    for bad in [
        json!({}),
        json!(7),
        json!({ "entityCode": "a", "entityId": "1" }),
        change("", "1", "UPDATE"),
        change("a", "", "UPDATE"),
        change("a", "1", "TRUNCATE"),
        change(&"x".repeat(101), "1", "UPDATE"),
        change("a", &"x".repeat(129), "UPDATE"),
        change("a\u{0}", "1", "UPDATE"),
    ] {
        let body = json!([change("a", "good", "UPDATE"), bad]);
        let (status, answer) = post_to(&server, "app", None, &body).await;
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("invalid_change")), "{bad}: {answer}");
        assert_eq!(answer["error"]["details"], json!({ "index": 1 }), "{answer}");
    }
    for body in ["", "{}", "[", "7", "[{}"] {
        let answer = server.post("/v1/app/changes").body(body).send().await.expect("an answer");
        assert_eq!(answer.status(), 400, "{body}");
    }
    update(&server, "a", "last").await;
    assert_eq!(ids(&client.until("last").await), ["last"], "nothing of it was published");
}

#[tokio::test]
async fn ten_thousand_changes_are_accepted_and_told_and_one_more_is_413() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("a", &[]).await;
    let most = tidings_model::limits::ENTITY_CHANGES_PER_POST;
    let changes: Vec<_> = (0..=most).map(|n| change("a", &n.to_string(), "UPDATE")).collect();
    let (status, answer) = post_to(&server, "app", None, &json!(changes)).await;
    assert_eq!((status, &answer["error"]["code"]), (413, &json!("too_many_changes")));
    let hits = server.metric(r#"tidings_limit_hits_total{limit="entity_changes_per_post"}"#);
    assert_eq!(hits, Some(1.0));
    let (status, answer) = post_to(&server, "app", None, &json!(changes[..most])).await;
    assert_eq!((status, &answer["accepted"]), (200, &json!(most)));
    let mut told = client.until(&(most - 1).to_string()).await;
    told.sort_by_key(|change| change.2);
    let expected: Vec<_> = (0..most).map(|n| n.to_string()).collect();
    assert_eq!(ids(&told), expected, "all of them, once");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_413() {
    let server = Harness::start().await;
    let body = vec![b' '; tidings_model::limits::ENTITY_CHANGES_BYTES + 1];
    let answer = server.post("/v1/app/changes").body(body).send().await.expect("an answer");
    assert_eq!(answer.status(), 413);
}

#[tokio::test]
async fn changes_nobody_watches_are_passed_over() {
    let server = Harness::start().await;
    for n in 0..100 {
        update(&server, "a", &n.to_string()).await;
    }
    let mut client = Client::connect(&server).await;
    client.subscribe("a", &["100"]).await;
    update(&server, "a", "100").await;
    assert_eq!(ids(&client.changes("a").await), ["100"]);
}

#[tokio::test]
async fn what_is_read_and_told_can_be_seen_in_the_metrics() {
    let server = Harness::start().await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(&server).await;
        client.subscribe("a", &["1"]).await;
        clients.push(client);
    }
    publish(&server, &[change("a", "1", "UPDATE"), change("a", "2", "UPDATE")]).await;
    for client in &mut clients {
        assert_eq!(ids(&client.changes("a").await), ["1"]);
    }
    assert_eq!(server.metric(r#"tidings_entity_messages_total{type="INVALIDATE"}"#), Some(3.0));
    assert_eq!(server.metric("tidings_entity_told_total"), Some(3.0));
    let subscribed = server.metric(r#"tidings_entity_requests_total{type="SUBSCRIBE",result="ok"}"#);
    assert_eq!(subscribed, Some(3.0));
}
