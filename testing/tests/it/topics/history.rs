//! Topics with history: positions, what is replayed to whom, what is kept, and that it outlives the process.

use tidings_model::Pattern;
use tidings_testing::http::Method;
use tidings_testing::{ADMIN_KEY, Doors, Process, TestStore, until};
use tidings_topics::{Keep, TopicRule};

use super::grants::{self, grants, token};
use super::*;

/// A server whose topics `chat:*` have a history.
async fn keeping(messages: u64, age: Option<Duration>) -> Harness {
    let mut setup = Setup::default();
    keeps(&mut setup.topics, messages, age);
    Harness::with(setup).await
}

fn keeps(options: &mut TopicOptions, messages: u64, age: Option<Duration>) {
    let rule = |pattern: &str, history| {
        let pattern = Pattern::parse(pattern).expect("a pattern");
        TopicRule { history, ..TopicRule::new(pattern) }
    };
    let rules = [rule("chat:plain", None), rule("chat:*", Some(Keep { messages, age }))];
    options.rules = options.rules.clone().with_rules(rules);
}

/// Publishes numbers and returns the epoch and the last offset.
async fn publish_numbers(
    client: &mut Client,
    topic: &str,
    numbers: std::ops::RangeInclusive<u64>,
) -> (String, u64) {
    let mut last = (String::new(), 0);
    for number in numbers {
        let sent = client.publish(topic, json!(number)).await;
        assert_eq!(sent["ok"], true, "{sent}");
        last = (
            sent["epoch"].as_str().expect("an epoch").to_owned(),
            sent["offset"].as_u64().expect("an offset"),
        );
    }
    last
}

fn recover(topic: &str, epoch: &str, offset: u64) -> Value {
    json!({ "topic": topic, "recover": { "epoch": epoch, "offset": offset } })
}

/// Offset and payload of the next message.
async fn next(client: &mut Client) -> (u64, u64) {
    let frame = client.hear().await;
    (frame["meta"]["offset"].as_u64().expect("an offset"), frame["payload"].as_u64().expect("a number"))
}

#[tokio::test]
async fn messages_have_positions_and_who_was_away_hears_what_it_has_missed() {
    let server = keeping(100, None).await;
    let mut alice = Client::connect(&server).await;
    let first = alice.subscribe("chat:1").await;
    assert_eq!((&first["added"], &first["total"], &first["offset"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!(first.get("recovered"), None);
    let (epoch, last) = publish_numbers(&mut alice, "chat:1", 1..=3).await;
    assert_eq!((first["epoch"].as_str(), last), (Some(&*epoch), 3));
    for number in 1..=3 {
        let frame = alice.hear().await;
        let meta = json!({ "topic": "chat:1", "epoch": epoch, "offset": number });
        assert_eq!((&frame["meta"], &frame["payload"]), (&meta, &json!(number)));
    }
    let mut bob = Client::connect(&server).await;
    let answer = bob.done("$subscribe", recover("chat:1", &epoch, 1)).await;
    let expected = json!({ "added": 1, "total": 1, "epoch": epoch, "offset": 3, "recovered": true });
    assert_eq!(answer, expected);
    publish_numbers(&mut alice, "chat:1", 4..=4).await;
    for number in 2..=4 {
        assert_eq!(next(&mut bob).await, (number, number));
    }
    assert_eq!(bob.done("$subscribe", recover("chat:1", &epoch, 1)).await, json!({ "added": 0, "total": 1 }));
    // Other topics have none.
    let plain = bob.publish("chat:plain", json!(1)).await;
    assert_eq!(plain, json!({ "ok": true, "capability": "exact", "matched": 0 }));
    assert_eq!(bob.done("$subscribe", recover("x", &epoch, 1)).await["recovered"], false);
    // By HTTP, and bytes.
    let (_, sent) =
        post(&server, "chat:1", &json!({ "type": "T", "meta": { "offset": 77 }, "payload": 5 })).await;
    assert_eq!((&sent["epoch"], &sent["offset"], &sent["matched"]), (&json!(epoch), &json!(5), &json!(2)));
    assert_eq!(next(&mut bob).await, (5, 5));
    let counted: Value = server.get(&format!("{PATH}/chat:1")).await.json().await.expect("JSON");
    assert_eq!(counted["history"], json!({ "epoch": epoch, "offset": 5, "count": 5 }));
}

#[tokio::test]
async fn what_cannot_be_recovered_is_said_and_live_begins_after_the_offset() {
    let server = keeping(3, None).await;
    let mut alice = Client::connect(&server).await;
    let (epoch, _) = publish_numbers(&mut alice, "chat:1", 1..=10).await;
    let mut places = vec![(epoch.clone(), 7, true), (epoch.clone(), 10, true)];
    places.extend([(epoch.clone(), 6, false), (epoch.clone(), 11, false), (epoch.clone(), 0, false)]);
    places.extend([("0.0".to_owned(), 10, false), (String::new(), 9, false)]);
    let mut clients = Vec::new();
    for (epoch, offset, recovered) in &places {
        let mut client = Client::connect(&server).await;
        let answer = client.done("$subscribe", recover("chat:1", epoch, *offset)).await;
        assert_eq!(
            (&answer["recovered"], &answer["offset"]),
            (&json!(recovered), &json!(10)),
            "{epoch} {offset}"
        );
        clients.push(client);
    }
    publish_numbers(&mut alice, "chat:1", 11..=11).await;
    for (client, (_, offset, recovered)) in clients.iter_mut().zip(&places) {
        let first = if *recovered { offset + 1 } else { 11 };
        for number in first..=11 {
            assert_eq!(next(client).await, (number, number));
        }
    }
    let state: Value = server.get(&format!("{PATH}/chat:1")).await.json().await.expect("JSON");
    assert_eq!(state["history"]["count"], 3);
}

#[tokio::test]
async fn several_topics_recover_at_once_each_from_its_place() {
    let server = keeping(100, None).await;
    let mut alice = Client::connect(&server).await;
    let (first, _) = publish_numbers(&mut alice, "chat:1", 1..=2).await;
    let (second, _) = publish_numbers(&mut alice, "chat:2", 1..=2).await;
    assert_ne!(first, second, "each topic has its own epoch");
    for kind in ["$set", "$subscribeMany"] {
        let mut client = Client::connect(&server).await;
        let places = json!({
            "chat:1": { "epoch": first, "offset": 1 },
            "chat:2": { "epoch": "lost", "offset": 1 },
            "news": { "epoch": "e", "offset": 1 },
        });
        let topics = ["chat:1", "chat:2", "chat:3", "news", "plain"];
        let answer = client.done(kind, json!({ "topics": topics, "recover": places })).await;
        let positions = &answer["positions"];
        assert_eq!(positions["chat:1"], json!({ "epoch": first, "offset": 2, "recovered": true }));
        assert_eq!(positions["chat:2"], json!({ "epoch": second, "offset": 2, "recovered": false }));
        assert_eq!(
            (&positions["chat:3"]["offset"], &positions["chat:3"].get("recovered")),
            (&json!(0), &None)
        );
        assert_eq!(positions["news"], json!({ "recovered": false }));
        assert_eq!(positions.as_object().expect("an object").len(), 4, "{positions}");
        assert_eq!(next(&mut client).await, (2, 2));
    }
}

#[tokio::test]
async fn the_sender_that_is_excluded_does_not_hear_itself_in_a_replay_either() {
    let server = keeping(100, None).await;
    let mut alice = Client::connect(&server).await;
    let session = alice.hello["session"].as_str().expect("a session").to_owned();
    let mut epoch = Value::Null;
    for (number, exclude) in [(1, true), (2, false), (3, true)] {
        let message = json!({ "type": "T", "payload": number });
        let publish = json!({ "topic": "chat:1", "message": message, "excludeSelf": exclude });
        epoch = alice.done("$publish", publish).await["epoch"].clone();
    }
    publish_numbers(&mut Client::connect(&server).await, "chat:1", 4..=4).await;
    let epoch = epoch.as_str().expect("an epoch");
    let mut again = Client::at(&server, &format!("{PATH}?session={session}"), None).await.expect("a socket");
    again.done("$subscribe", recover("chat:1", epoch, 0)).await;
    assert_eq!((next(&mut again).await, next(&mut again).await), ((2, 2), (4, 4)));
    let mut other = Client::connect(&server).await;
    other.done("$subscribe", recover("chat:1", epoch, 0)).await;
    for number in 1..=4 {
        assert_eq!(next(&mut other).await, (number, number));
    }
}

#[tokio::test]
async fn messages_published_during_a_recovery_are_heard_once_and_in_order() {
    const BEFORE: u64 = 300;
    const AFTER: u64 = 300;
    let server = keeping(10_000, None).await;
    let mut alice = Client::connect(&server).await;
    // Together more than a client may be behind.
    let body = "x".repeat(8 * 1024);
    let mut epoch = String::new();
    for number in 1..=BEFORE {
        let sent = alice.publish("chat:1", json!([number, body])).await;
        epoch = sent["epoch"].as_str().expect("an epoch").to_owned();
    }
    let mut readers = Vec::new();
    for offset in [0, 1, 150, 299, 300] {
        let mut client = Client::connect(&server).await;
        let epoch = epoch.clone();
        readers.push(tokio::spawn(async move {
            let answer = client.done("$subscribe", recover("chat:1", &epoch, offset)).await;
            assert_eq!(answer["recovered"], true, "{answer}");
            for expected in offset + 1..=BEFORE + AFTER {
                let frame = client.hear().await;
                assert_eq!(frame["meta"]["offset"], expected, "from {offset}");
                assert_eq!(frame["payload"][0], expected);
            }
        }));
    }
    for number in BEFORE + 1..=BEFORE + AFTER {
        alice.publish("chat:1", json!([number, "y"])).await;
    }
    for reader in readers {
        reader.await.expect("it heard all of it");
    }
}

#[tokio::test]
async fn concurrent_publishers_get_each_offset_once_and_subscribers_hear_them_in_order() {
    let server = keeping(10_000, None).await;
    let mut reader = Client::connect(&server).await;
    reader.done("$set", json!({ "topics": ["chat:1", "chat:*"] })).await;
    let mut publishers = Vec::new();
    for _ in 0..8 {
        let mut client = Client::connect(&server).await;
        publishers.push(tokio::spawn(async move {
            let mut offsets = Vec::new();
            for number in 0..25 {
                offsets.push(
                    client.publish("chat:1", json!(number)).await["offset"].as_u64().expect("an offset"),
                );
            }
            offsets
        }));
    }
    let mut offsets = Vec::new();
    for publisher in publishers {
        let own = publisher.await.expect("offsets");
        assert!(own.is_sorted(), "{own:?}");
        offsets.extend(own);
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (1..=200).collect::<Vec<u64>>());
    for expected in 1..=200 {
        assert_eq!(next(&mut reader).await.0, expected);
    }
}

#[tokio::test]
async fn a_history_can_be_asked_for() {
    let server = keeping(5, Some(Duration::from_secs(60))).await;
    let mut client = Client::connect(&server).await;
    let (epoch, _) = publish_numbers(&mut client, "chat:1", 1..=8).await;
    let history = async |client: &mut Client, more: Value| {
        let mut payload = json!({ "topic": "chat:1" });
        payload.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let answer = client.done("$history", payload).await;
        assert_eq!((&answer["epoch"], &answer["offset"]), (&json!(epoch), &json!(8)));
        let messages = answer["messages"].as_array().expect("messages");
        let offsets: Vec<u64> =
            messages.iter().map(|message| message["meta"]["offset"].as_u64().expect("an offset")).collect();
        (offsets, answer.get("recovered").cloned())
    };
    let since = |offset: u64| json!({ "since": { "epoch": epoch, "offset": offset }, "limit": 2 });
    assert_eq!(history(&mut client, json!({})).await, (vec![4, 5, 6, 7, 8], None));
    assert_eq!(history(&mut client, json!({ "limit": 2 })).await, (vec![7, 8], None));
    assert_eq!(history(&mut client, since(5)).await, (vec![6, 7], Some(json!(true))));
    assert_eq!(history(&mut client, since(8)).await, (vec![], Some(json!(true))));
    assert_eq!(
        history(&mut client, since(2)).await,
        (vec![4, 5], Some(json!(false))),
        "the oldest that there is"
    );
    let answer = client.done("$history", json!({ "topic": "chat:1", "limit": 1 })).await;
    let expected =
        json!({ "type": "SAID", "meta": { "topic": "chat:1", "epoch": epoch, "offset": 8 }, "payload": 8 });
    assert_eq!(answer["messages"], json!([expected]));
    let error = client.fails("$history", json!({ "topic": "news" })).await;
    assert_eq!(error["code"], "FAILED_PRECONDITION");
    // What is too old is not kept.
    server.clock.advance(Duration::from_secs(30));
    publish_numbers(&mut client, "chat:1", 9..=9).await;
    server.clock.advance(Duration::from_secs(31));
    let answer = client.done("$history", json!({ "topic": "chat:1" })).await;
    assert_eq!(answer["messages"].as_array().expect("messages").len(), 1, "{answer}");
    let answer = client.done("$subscribe", recover("chat:1", &epoch, 7)).await;
    assert_eq!((&answer["recovered"], &answer["offset"]), (&json!(false), &json!(9)));
    let state: Value = server.get(&format!("{PATH}/chat:1")).await.json().await.expect("JSON");
    assert_eq!(state["history"]["count"], 1);
}

#[tokio::test]
async fn a_history_needs_the_grant_to_subscribe() {
    let mut setup = Setup {
        doors: Doors::Closed { created: vec![("app", grants::KEY)], given: vec![] },
        ..Setup::default()
    };
    keeps(&mut setup.topics, 10, None);
    let server = Harness::with(setup).await;
    let mut client = Client::with_token(&server, &token(&server, grants(&["chat:1"], &["chat:*"]))).await;
    publish_numbers(&mut client, "chat:2", 1..=1).await;
    let error = client.fails("$history", json!({ "topic": "chat:2" })).await;
    assert_eq!(error["code"], "PERMISSION_DENIED");
    assert_eq!(client.done("$history", json!({ "topic": "chat:1" })).await["messages"], json!([]));
}

#[tokio::test]
async fn an_unsubscribe_ends_a_replay() {
    let server = keeping(10_000, None).await;
    let mut client = Client::connect(&server).await;
    let body = "x".repeat(64 * 1024);
    let mut epoch = Value::Null;
    for _ in 0..40 {
        epoch = client.publish("chat:1", json!(body)).await["epoch"].clone();
    }
    let epoch = epoch.as_str().expect("an epoch");
    let subscribing = client.begin("$subscribe", recover("chat:1", epoch, 0)).await;
    let unsubscribing = client.begin("$unsubscribe", json!({ "topic": "chat:1" })).await;
    assert_eq!(client.answer_to(&subscribing).await.expect("an answer")["recovered"], true);
    assert_eq!(client.answer_to(&unsubscribing).await.expect("an answer")["removed"], 1);
    // What comes before the answer may have been sent; afterwards nothing comes.
    client.heard.clear();
    client.subscribe("end").await;
    client.publish("end", json!("end")).await;
    assert_eq!(client.message("end").await, "end");
}

/// A process that keeps histories, and its configuration file.
async fn process() -> (Process, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let config = "[[topics.rules]]\npattern = \"chat:*\"\nhistory_messages = 1000\n";
    std::fs::write(file.path(), config).expect("written");
    let path = file.path().to_str().expect("a path in UTF-8").to_owned();
    (Process::serve(&["--config", &path]).await, file)
}

async fn connect(process: &Process) -> Client {
    let (socket, _) = tokio_tungstenite::connect_async(process.url(PATH).replace("http://", "ws://"))
        .await
        .expect("a socket");
    Client::on(socket).await
}

#[tokio::test]
async fn acknowledged_messages_survive_a_kill_with_their_positions_and_come_once_over_reconnects() {
    let (mut process, _config) = process().await;
    let (mut epoch, mut acknowledged, mut heard) = (String::new(), 0_u64, 0_u64);
    for round in 0..3 {
        let mut reader = connect(&process).await;
        let answer = reader.done("$subscribe", recover("chat:1", &epoch, heard)).await;
        // At the first time there is nothing to go on from.
        assert_eq!(answer["recovered"], round > 0, "{answer}");
        assert!(answer["offset"].as_u64().expect("an offset") >= acknowledged, "{answer}");
        epoch = answer["epoch"].as_str().expect("an epoch").to_owned();
        let mut publisher = connect(&process).await;
        // Requests are under way when the process is killed.
        let mut begun = Vec::new();
        for _ in 0..100 {
            begun.push(
                publisher.begin("$publish", json!({ "topic": "chat:1", "message": { "type": "T" } })).await,
            );
        }
        for id in &begun[..60] {
            let sent = publisher.answer_to(id).await.expect("an answer");
            assert_eq!((&sent["ok"], &sent["epoch"]), (&json!(true), &json!(epoch)), "{sent}");
            acknowledged = acknowledged.max(sent["offset"].as_u64().expect("an offset"));
        }
        // A part of it, exactly in order.
        for _ in 0..40 {
            let frame = reader.hear().await;
            heard += 1;
            assert_eq!(frame["meta"]["offset"], heard, "{frame}");
        }
        process.kill().await;
        process = process.restart().await;
    }
    let mut reader = connect(&process).await;
    let answer = reader.done("$subscribe", recover("chat:1", &epoch, heard)).await;
    assert_eq!((&answer["recovered"], &answer["epoch"]), (&json!(true), &json!(epoch)));
    let head = answer["offset"].as_u64().expect("an offset");
    assert!(head >= acknowledged, "{head} < {acknowledged}");
    while heard < head {
        heard += 1;
        assert_eq!(reader.hear().await["meta"]["offset"], heard);
    }
    let sent = reader.publish("chat:1", json!("next")).await;
    assert_eq!(sent["offset"], head + 1, "numbers go on");
}

#[tokio::test]
async fn a_project_takes_its_histories_along() {
    let doors = Doors::Closed { created: vec![("app", grants::KEY)], given: vec![] };
    let mut setup = Setup { doors, ..Setup::default() };
    keeps(&mut setup.topics, 10, None);
    let server = Harness::with(setup).await;
    let granted = || token(&server, grants(&["chat:*"], &["chat:*"]));
    let mut client = Client::with_token(&server, &granted()).await;
    let (epoch, _) = publish_numbers(&mut client, "chat:1", 1..=3).await;
    let remove = server.request(Method::DELETE, "/v1/projects/app").bearer_auth(ADMIN_KEY);
    assert_eq!(remove.send().await.expect("an answer").status(), 204);
    until("the project is removed", || server.projects().removing().is_empty()).await;
    let body = json!({ "project": "app", "key": grants::KEY });
    let create = server.post("/v1/projects").bearer_auth(ADMIN_KEY).json(&body);
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let mut again = Client::with_token(&server, &granted()).await;
    let answer = again.done("$subscribe", recover("chat:1", &epoch, 1)).await;
    assert_eq!((&answer["recovered"], &answer["offset"]), (&json!(false), &json!(0)), "nothing is left");
    assert_ne!(answer["epoch"], json!(epoch));
}

#[tokio::test]
async fn a_history_survives_a_restart_and_a_bus_is_refused_beside_it() {
    let mut setup = Setup { store: TestStore::Embedded, ..Setup::default() };
    keeps(&mut setup.topics, 10, None);
    let server = Harness::with(setup).await;
    let mut client = Client::connect(&server).await;
    let (epoch, _) = publish_numbers(&mut client, "chat:1", 1..=12).await;
    let server = server.restart().await;
    let mut client = Client::connect(&server).await;
    let answer = client.done("$subscribe", recover("chat:1", &epoch, 10)).await;
    let expected = json!({ "added": 1, "total": 1, "epoch": epoch, "offset": 12, "recovered": true });
    assert_eq!(answer, expected);
    assert_eq!((next(&mut client).await, next(&mut client).await), ((11, 11), (12, 12)));
    assert_eq!(publish_numbers(&mut client, "chat:1", 13..=13).await, (epoch, 13));

    let config = "[bus]\nurl = \"nats://127.0.0.1:4222\"\n[[topics.rules]]\nhistory_seconds = 60\n";
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), config).expect("written");
    let exit = Process::run(&["check-config", "--config", file.path().to_str().expect("UTF-8")]).await;
    assert!(!exit.status.success(), "{exit:?}");
    assert!(exit.stderr.contains("topics.rules cannot give topics a history beside bus.url"), "{exit:?}");
}
