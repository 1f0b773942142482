//! Who hears what, and how changes are joined.

use super::*;

#[tokio::test]
async fn each_client_hears_its_own_entities_and_no_others() {
    let server = Harness::start().await;
    let mut a = Client::connect(&server).await;
    let mut b = Client::connect(&server).await;
    let mut nobody = Client::connect(&server).await;
    a.subscribe("project", &["1", "end"]).await;
    b.subscribe("project", &["1", "5", "end"]).await;
    b.subscribe("task", &["100"]).await;
    nobody.subscribe("project", &["2", "end"]).await;
    // The example of the seed.
    publish(
        &server,
        &[
            change("project", "1", "UPDATE"),
            change("project", "5", "UPDATE"),
            change("task", "100", "CREATE"),
        ],
    )
    .await;
    update(&server, "project", "end").await;
    assert_eq!(ids(&a.until("end").await), ["1", "end"]);
    assert_eq!(ids(&nobody.until("end").await), ["end"]);
    let (mut projects, mut tasks) = (Vec::new(), Vec::new());
    while !projects.contains(&"end".to_owned()) || tasks.is_empty() {
        let payload = b.hear_a("INVALIDATE").await;
        let heard = told(&payload).into_iter().map(|change| change.0);
        match payload["entityCode"].as_str() {
            Some("project") => projects.extend(heard),
            Some("task") => tasks.extend(heard),
            _ => panic!("{payload}"),
        }
    }
    assert_eq!((projects, tasks), (vec!["1".into(), "5".into(), "end".into()], vec!["100".into()]));
}

#[tokio::test]
async fn two_users_and_the_editor_itself_hear_a_change_on_every_connection() {
    let server = closed().await;
    let mut clients = Vec::new();
    for user in ["alice", "alice", "bob"] {
        let mut client = Client::with_token(&server, &token(&server, user)).await;
        client.subscribe("project", &["1"]).await;
        clients.push(client);
    }
    let alice = token(&server, "alice");
    let body = json!([change("project", "1", "UPDATE")]);
    assert_eq!(post_to(&server, "app", Some(&alice), &body).await.0, 200);
    for client in &mut clients {
        assert_eq!(ids(&client.changes("project").await), ["1"]);
    }
}

#[tokio::test]
async fn changes_of_one_type_share_a_message_and_those_of_two_do_not() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &[]).await;
    client.subscribe("task", &[]).await;
    let of = |code: &str, ids: [&str; 3]| ids.map(|id| change(code, id, "UPDATE"));
    publish(&server, &[of("project", ["1", "2", "3"]), of("task", ["4", "5", "6"])].concat()).await;
    let (mut first, mut second) = (client.hear_a("INVALIDATE").await, client.hear_a("INVALIDATE").await);
    if first["entityCode"] == "task" {
        std::mem::swap(&mut first, &mut second);
    }
    assert_eq!((&first["entityCode"], ids(&told(&first))), (&json!("project"), vec!["1", "2", "3"]));
    assert_eq!((&second["entityCode"], ids(&told(&second))), (&json!("task"), vec!["4", "5", "6"]));
}

#[tokio::test]
async fn several_changes_of_an_entity_are_joined_and_the_last_word_is_the_newest() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "end"]).await;
    for _ in 0..50 {
        let steps = ["CREATE", "UPDATE", "DELETE"].map(|action| change("project", "1", action));
        publish(&server, &steps).await;
    }
    update(&server, "project", "end").await;
    let all = client.until("end").await;
    let of_one: Vec<_> = all.iter().filter(|change| change.0 == "1").collect();
    assert!(of_one.windows(2).all(|two| two[0].2 < two[1].2), "never an older one: {of_one:?}");
    assert_eq!(of_one.last().expect("it was told").1, "DELETE");
    assert!(of_one.len() <= 50, "three that came together are one: {of_one:?}");
}

#[tokio::test]
async fn versions_of_an_entity_grow_whoever_hears_them_and_however_often_one_connects() {
    let server = Harness::start().await;
    let mut last = 0;
    for _ in 0..5 {
        let mut client = Client::connect(&server).await;
        client.subscribe("project", &["1"]).await;
        for _ in 0..3 {
            update(&server, "project", "1").await;
            for (_, _, version) in client.changes("project").await {
                assert!(version > last, "{version} after {last}");
                last = version;
            }
        }
    }
}

#[tokio::test]
async fn a_minute_with_more_than_500_changes_loses_none() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &[]).await;
    for n in 0..30 {
        let changes: Vec<_> = (0..100).map(|m| change("project", &format!("{n}-{m}"), "UPDATE")).collect();
        publish(&server, &changes).await;
    }
    let told: std::collections::BTreeSet<_> =
        client.until("29-99").await.into_iter().map(|change| change.0).collect();
    assert_eq!(told.len(), 3000);
}

#[tokio::test]
async fn a_change_after_the_answer_to_a_subscribe_is_never_missed() {
    let server = Harness::start().await;
    let publisher = tokio::spawn({
        let client = http::Client::new();
        let url = server.url("/v1/app/changes");
        async move {
            for n in 0..400 {
                let body =
                    json!([change("project", "1", "UPDATE"), change("noise", &n.to_string(), "UPDATE")]);
                let answer = client.post(&url).json(&body).send().await.expect("an answer");
                assert_eq!(answer.status(), 200);
            }
        }
    });
    for _ in 0..40 {
        let mut client = Client::connect(&server).await;
        client.subscribe("noise", &[]).await;
        client.subscribe("project", &["1"]).await;
        let mine = update(&server, "project", "1").await;
        loop {
            let payload = client.hear_a("INVALIDATE").await;
            if payload["entityCode"] == "project" && payload.get("cursor").is_none_or(|at| *at == mine) {
                break;
            }
            if payload["entityCode"] == "project" {
                break;
            }
        }
    }
    publisher.await.expect("all were published");
}
