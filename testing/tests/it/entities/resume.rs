//! Coming back: what was missed while away is told, or the client is told to fetch everything.

use super::*;

#[tokio::test]
async fn what_was_missed_is_told_after_the_answer_for_the_ids_that_are_subscribed() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2", "3"]).await;
    update(&server, "project", "3").await;
    let since = client.hear_a("INVALIDATE").await["cursor"].clone();
    client.leave().await;
    let missed = [
        change("project", "1", "UPDATE"),
        change("task", "1", "UPDATE"),
        change("project", "2", "CREATE"),
        change("project", "9", "UPDATE"),
        change("project", "1", "DELETE"),
    ];
    publish(&server, &missed).await;
    let mut back = Client::connect(&server).await;
    let payload = json!({ "entityCode": "project", "entityIds": ["1", "2", "3"], "since": since });
    back.send("SUBSCRIBE", payload).await;
    let answer = back.message().await;
    assert_eq!(answer["type"], "SUBSCRIBED", "it comes first: {answer}");
    update(&server, "project", "3").await;
    let told = back.until("3").await;
    let of = |id: &str| told.iter().filter(|change| change.0 == id).cloned().collect::<Vec<_>>();
    assert_eq!(of("1").last().expect("told").1, "DELETE");
    assert_eq!(of("2").last().expect("told").1, "CREATE");
    assert_eq!(of("3").len(), 1, "what was heard before is not told again");
    assert!(of("9").is_empty());
}

#[tokio::test]
async fn a_client_that_has_missed_nothing_is_told_nothing() {
    let server = Harness::start().await;
    update(&server, "project", "1").await;
    let mut client = Client::connect(&server).await;
    let cursor = client.subscribe("project", &["1"]).await["cursor"].clone();
    client.leave().await;
    let mut back = Client::connect(&server).await;
    back.resume("project", &["1", "2"], &cursor).await;
    update(&server, "project", "2").await;
    assert_eq!(ids(&back.until("2").await), ["2"]);
}

#[tokio::test]
async fn a_whole_type_is_resumed_and_a_second_type_by_the_same_cursor() {
    let server = Harness::start().await;
    let client = Client::connect(&server).await;
    let cursor = client.connected["cursor"].clone();
    client.leave().await;
    publish(&server, &[change("project", "1", "CREATE"), change("task", "7", "CREATE")]).await;
    let mut back = Client::connect(&server).await;
    back.resume("project", &[], &cursor).await;
    assert_eq!(ids(&back.until("1").await), ["1"]);
    back.resume("task", &["7"], &cursor).await;
    assert_eq!(ids(&back.until("7").await), ["7"]);
}

#[tokio::test]
async fn a_since_that_is_no_cursor_is_refused_and_nothing_is_subscribed() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    for since in [json!(""), json!("nonsense"), json!("'; --"), json!("x".repeat(10_000))] {
        let payload = json!({ "entityCode": "project", "entityIds": ["1"], "since": since });
        assert_eq!(client.refused("SUBSCRIBE", payload).await, "InvalidCursor", "{since}");
    }
    let payload = json!({ "entityCode": "project", "entityIds": ["1"], "since": 7 });
    assert_eq!(client.refused("SUBSCRIBE", payload).await, "InvalidMessage");
    assert_eq!(server.metric("tidings_entity_subscriptions"), Some(0.0));
    let null = json!({ "entityCode": "project", "entityIds": ["1"], "since": null });
    client.ask("SUBSCRIBE", null, "SUBSCRIBED").await;
}

#[tokio::test]
async fn a_cursor_older_than_the_window_means_to_fetch_everything_again() {
    let server = server(|options| options.entities.since_window = Duration::from_secs(60)).await;
    let client = Client::connect(&server).await;
    let cursor = client.connected["cursor"].clone();
    client.leave().await;
    update(&server, "project", "1").await;
    let kept = update(&server, "project", "2").await;
    // The change log is trimmed from time to time.
    for _ in 0..10 {
        until("it waits", || server.clock.sleepers() == SLEEPERS).await;
        server.clock.advance(Duration::from_secs(60));
    }
    until("it waits", || server.clock.sleepers() == SLEEPERS).await;
    let mut back = Client::connect(&server).await;
    back.send("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": ["1"], "since": cursor })).await;
    assert_eq!(back.hear_a("RESYNC").await, json!({ "entityCode": "project", "reason": "cursor-expired" }));
    assert_eq!(back.answer().await["type"], "SUBSCRIBED", "and then it is subscribed");
    update(&server, "project", "1").await;
    assert_eq!(ids(&back.changes("project").await), ["1"]);
    let newest = back.resume("project", &["2"], &kept).await;
    assert_eq!(newest["count"], 1, "the end of what was removed is still a place to resume");
    assert!(back.heard.is_empty(), "{:?}", back.heard);
    let resyncs = server.metric(r#"tidings_entity_messages_total{type="RESYNC"}"#);
    assert_eq!(resyncs, Some(1.0));
}

#[tokio::test]
async fn a_cursor_that_was_never_given_out_means_to_fetch_everything_again() {
    let server = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    for n in 0..10 {
        update(&server, "project", &n.to_string()).await;
    }
    let other = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    let ahead = update(&server, "project", "1").await;
    let mut client = Client::connect(&other).await;
    client.send("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": ["1"], "since": ahead })).await;
    assert_eq!(client.hear_a("RESYNC").await, json!({ "entityCode": "project", "reason": "source-reset" }));
    assert_eq!(client.answer().await["type"], "SUBSCRIBED");
}

#[tokio::test]
async fn too_much_was_missed_to_be_told_so_everything_is_to_be_fetched_again() {
    let server = Harness::start().await;
    let client = Client::connect(&server).await;
    let cursor = client.connected["cursor"].clone();
    let most = tidings_model::limits::ENTITY_CHANGES_PER_POST;
    for round in 0..=tidings_model::limits::ENTITY_REPLAY / most {
        let changes: Vec<_> = (0..most).map(|n| change("a", &format!("{round}-{n}"), "UPDATE")).collect();
        publish(&server, &changes).await;
    }
    let mut back = Client::connect(&server).await;
    back.resume("a", &[], &cursor).await;
    let told = back.hear_a("RESYNC").await;
    assert_eq!((&told["entityCode"], &told["reason"]), (&json!("a"), &json!("overflow")));
    update(&server, "a", "last").await;
    back.until("last").await;
}

#[tokio::test]
async fn a_restart_of_the_server_is_nothing_but_a_pause_for_whoever_resumes() {
    let server = Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1"]).await;
    update(&server, "project", "1").await;
    let heard = client.hear_a("INVALIDATE").await;
    let (since, version) = (heard["cursor"].clone(), told(&heard)[0].2);
    update(&server, "project", "1").await;
    drop(client);
    let server = server.restart().await;
    let mut back = Client::connect(&server).await;
    back.resume("project", &["1"], &since).await;
    let missed = back.changes("project").await;
    assert_eq!(ids(&missed), ["1"]);
    update(&server, "project", "1").await;
    let next = back.changes("project").await;
    assert!(version < missed[0].2 && missed[0].2 < next[0].2, "versions go on");
}
