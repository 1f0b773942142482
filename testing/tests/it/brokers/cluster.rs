//! Several servers with one broker: what clients of one hear of clients of the other. Each test is called for each broker.

use futures_util::future::join_all;
use serde_json::{Value, json};
use tidings_testing::brokers::{BrokerKind, BrokerServer};
use tidings_testing::{Doors, Harness, Launch, Process, Setup, eventually};

use crate::topics::{Client, grants, post};

/// A node of a cluster.
async fn node(broker: &BrokerServer) -> Harness {
    Harness::with(Setup { bus: Some(broker.url()), wall_clock: true, ..Setup::default() }).await
}

async fn two_nodes(broker: &BrokerServer) -> (Harness, Harness) {
    (node(broker).await, node(broker).await)
}

/// Subscribes, and waits until messages of other nodes arrive.
async fn settled(client: &mut Client, topic: &str) {
    client.done("$subscribe", json!({ "topic": topic, "options": { "waitFor": "settled" } })).await;
}

/// Publishes. The result says whether it has succeeded.
async fn publish(client: &mut Client, topic: &str, payload: Value) -> Result<Value, Value> {
    let result = client.publish(topic, payload).await;
    if result["ok"] == true { Ok(result) } else { Err(result) }
}

async fn a_message_reaches_subscribers_of_every_node_once(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut here = Client::connect(&one).await;
    let mut there = Client::connect(&two).await;
    settled(&mut here, "room").await;
    settled(&mut there, "room").await;
    let answer = here.publish("room", json!({ "text": "hi" })).await;
    assert_eq!(answer, json!({ "ok": true, "capability": "estimate", "matched": 1 }), "a lower bound");
    for client in [&mut here, &mut there] {
        assert_eq!(client.hear().await["payload"], json!({ "text": "hi" }));
    }
    // Somebody who has no socket, on a node where nobody subscribes to this.
    settled(&mut there, "orders").await;
    let (status, answer) = post(&one, "orders", &json!({ "type": "PAID", "meta": { "by": "x" } })).await;
    assert_eq!((status, &answer["capability"], &answer["matched"]), (200, &json!("estimate"), &json!(0)));
    assert_eq!(there.hear().await, json!({ "type": "PAID", "meta": { "by": "x", "topic": "orders" } }));
    there.publish("room", json!("end")).await;
    assert_eq!(here.message("room").await, "end", "nothing came twice");
    assert_eq!(there.message("room").await, "end");
}

async fn a_pattern_hears_messages_of_every_node_once(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut publisher = Client::connect(&one).await;
    let mut there = Client::connect(&two).await;
    // By topic too, so that two copies of each message arrive at the node.
    settled(&mut there, "room:1").await;
    settled(&mut there, "room:*").await;
    for number in 1..=3 {
        publish(&mut publisher, "other", json!(number)).await.expect("it is sent");
        publish(&mut publisher, "room:1", json!(number)).await.expect("it is sent");
    }
    let (status, _) = post(&one, "room:2", &json!({ "type": "SAID", "payload": 4 })).await;
    assert_eq!(status, 200);
    for number in 1..=3 {
        assert_eq!(there.message("room:1").await, number);
    }
    assert_eq!(there.message("room:2").await, 4);
    there.done("$unsubscribe", json!({ "topic": "room:1" })).await;
    publish(&mut publisher, "room:1", json!(5)).await.expect("it is sent");
    assert_eq!(there.message("room:1").await, 5);
}

async fn messages_of_one_publisher_arrive_in_order_on_another_node(kind: BrokerKind) {
    const MESSAGES: u64 = 200;
    let broker = BrokerServer::start(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut publisher = Client::connect(&one).await;
    let mut there = Client::connect(&two).await;
    settled(&mut there, "room").await;
    let mut begun = Vec::new();
    for number in 0..MESSAGES {
        let message = json!({ "type": "SAID", "payload": number });
        begun.push(publisher.begin("$publish", json!({ "topic": "room", "message": message })).await);
        // As many as a connection may have under way.
        if begun.len() == 32 {
            for id in begun.drain(..) {
                let result = publisher.answer_to(&id).await.expect("an answer");
                assert_eq!(result["ok"], true, "{result}");
            }
        }
    }
    for number in 0..MESSAGES {
        assert_eq!(there.message("room").await, number);
    }
}

async fn projects_do_not_hear_each_other(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut other = Client::at(&two, "/v1/other/topics", None).await.expect("a WebSocket");
    let mut there = Client::connect(&two).await;
    settled(&mut other, "room").await;
    settled(&mut there, "room").await;
    Client::connect(&one).await.publish("room", json!("for app")).await;
    assert_eq!(there.message("room").await, "for app");
    let mut same = Client::at(&one, "/v1/other/topics", None).await.expect("a WebSocket");
    same.publish("room", json!("for other")).await;
    assert_eq!(other.message("room").await, "for other");
}

async fn an_end_of_a_subscription_holds_for_messages_of_other_nodes(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut publisher = Client::connect(&one).await;
    let mut there = Client::connect(&two).await;
    settled(&mut there, "room").await;
    there.done("$unsubscribe", json!({ "topic": "room" })).await;
    settled(&mut there, "end").await;
    publisher.publish("room", json!("x")).await;
    publisher.publish("end", json!("end")).await;
    assert_eq!(there.message("end").await, "end");
}

async fn a_broker_that_is_away_fails_publishes_and_nothing_else(kind: BrokerKind) {
    let mut broker = BrokerServer::private(kind).await;
    let (one, two) = two_nodes(&broker).await;
    let mut here = Client::connect(&one).await;
    let mut there = Client::connect(&two).await;
    settled(&mut there, "room").await;
    broker.kill().await;
    let mut failed = Value::Null;
    eventually("a publish fails", async || match publish(&mut here, "room", json!("lost")).await {
        Ok(_) => false,
        Err(error) => {
            failed = error;
            true
        }
    })
    .await;
    assert_eq!((&failed["error"], &failed["retryable"]), (&json!("ADAPTER_ERROR"), &json!(true)), "{failed}");
    let (status, answer) = post(&one, "room", &json!({ "type": "SAID" })).await;
    assert_eq!((status, &answer["error"]), (503, &json!("ADAPTER_ERROR")), "{answer}");
    eventually("the drift is seen", async || {
        let verified = there.done("$verify", json!({ "topic": "room", "mode": "best-effort" })).await;
        verified["kind"] == "error"
    })
    .await;
    // Everything else goes on.
    assert_eq!(there.list().await, json!(["room"]));
    there.subscribe("later").await;
    broker.start_again().await;
    eventually("a publish works again", async || publish(&mut here, "other", json!(0)).await.is_ok()).await;
    eventually("the subscription is in effect again", async || {
        let verified = there.done("$verify", json!({ "topic": "room", "mode": "best-effort" })).await;
        verified["kind"] == "subscribed"
    })
    .await;
    settled(&mut there, "later").await;
    for topic in ["room", "later"] {
        here.publish(topic, json!("back")).await;
        assert_eq!(there.message(topic).await, "back");
    }
}

async fn a_node_that_dies_disturbs_nobody(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let launch = || Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &[("TIDINGS_BUS_URL", &broker.url())]);
    let started = join_all((0..3).map(|_| Process::launch(launch()))).await;
    let mut nodes: Vec<Process> = started;
    let mut clients = Vec::new();
    for node in &nodes {
        let url = node.url("/v1/app/topics").replace("http://", "ws://");
        let (socket, _) = tokio_tungstenite::connect_async(url).await.expect("a WebSocket");
        let mut client = Client::on(socket).await;
        settled(&mut client, "room").await;
        clients.push(client);
    }
    clients[0].publish("room", json!("to all")).await;
    for client in &mut clients {
        assert_eq!(client.message("room").await, "to all");
    }
    nodes[1].kill().await;
    let answer = clients[0].publish("room", json!("to the rest")).await;
    assert_eq!(answer["matched"], 1, "its own subscriber");
    assert_eq!(clients[0].message("room").await, "to the rest");
    assert_eq!(clients[2].message("room").await, "to the rest");
    for node in [nodes.remove(2), nodes.remove(0)] {
        node.stop().await;
    }
}

macro_rules! each_broker {
    ($($test:ident)+) => {
        each_broker!(@module redis BrokerKind::Redis; $($test)+);
        each_broker!(@module nats BrokerKind::Nats; $($test)+);
        each_broker!(@module postgres BrokerKind::Postgres; $($test)+);
    };
    (@module $name:ident $kind:expr; $($test:ident)+) => {
        mod $name {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    super::$test($kind).await;
                }
            )+
        }
    };
}

each_broker!(
    a_message_reaches_subscribers_of_every_node_once
    a_pattern_hears_messages_of_every_node_once
    messages_of_one_publisher_arrive_in_order_on_another_node
    projects_do_not_hear_each_other
    an_end_of_a_subscription_holds_for_messages_of_other_nodes
    a_broker_that_is_away_fails_publishes_and_nothing_else
    a_node_that_dies_disturbs_nobody
    what_is_not_valid_or_not_granted_is_refused_and_does_not_go_to_the_bus
);

#[tokio::test]
async fn a_server_starts_without_its_broker_and_joins_it_later() {
    let mut broker = BrokerServer::stopped(BrokerKind::Nats).await;
    let server = node(&broker).await;
    let mut client = Client::connect(&server).await;
    let failed = publish(&mut client, "room", json!(1)).await.expect_err("there is no broker");
    assert_eq!(failed["error"], "ADAPTER_ERROR");
    client.subscribe("room").await;
    broker.start_again().await;
    eventually("it has joined", async || publish(&mut client, "room", json!(1)).await.is_ok()).await;
    assert_eq!(client.message("room").await, 1);
}

#[tokio::test]
async fn a_message_that_the_broker_does_not_carry_is_too_large() {
    let broker = BrokerServer::start(BrokerKind::Postgres).await;
    let server = node(&broker).await;
    let (status, answer) =
        post(&server, "room", &json!({ "type": "SAID", "payload": "x".repeat(8000) })).await;
    assert_eq!((status, &answer["error"]), (413, &json!("PAYLOAD_TOO_LARGE")), "{answer}");
    assert!(
        answer["details"]["limit"].as_u64().is_some_and(|limit| limit > 5000 && limit < 6000),
        "{answer}"
    );
    let (status, _) = post(&server, "room", &json!({ "type": "SAID", "payload": "x".repeat(5000) })).await;
    assert_eq!(status, 200);
}

async fn what_is_not_valid_or_not_granted_is_refused_and_does_not_go_to_the_bus(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let doors = Doors::Closed { created: vec![], given: vec![("app", grants::KEY)] };
    let closed = Harness::with(Setup { doors, bus: Some(broker.url()), ..Setup::default() }).await;
    let open = node(&broker).await;
    let mut there = Client::connect(&open).await;
    settled(&mut there, "secret").await;
    settled(&mut there, "room").await;
    let token = grants::token(&closed, grants::grants(&[], &["room"]));
    let mut limited = Client::with_token(&closed, &token).await;
    let refused = publish(&mut limited, "secret", json!(1)).await.expect_err("it is not granted");
    assert_eq!(refused["error"], "ACL_PUBLISH");
    let refused = publish(&mut limited, "no spaces", json!(1)).await.expect_err("it is no topic");
    assert_eq!(refused["error"], "VALIDATION");
    publish(&mut limited, "room", json!(2)).await.expect("it is granted");
    assert_eq!(there.message("room").await, 2);
}

#[tokio::test]
async fn a_url_of_an_unknown_kind_or_without_a_host_is_refused_at_the_start_without_its_password() {
    for (url, expected) in [
        ("kafka://u:hunter2@localhost", "has the scheme `kafka`, which is not known"),
        ("redis://u:hunter2@", "has no host"),
        ("localhost:6379", "must be a URL"),
    ] {
        let exit = Process::run_with(&["serve", "--dev"], &[("TIDINGS_BUS_URL", url)]).await;
        assert!(!exit.status.success());
        assert!(exit.stderr.contains("TIDINGS_BUS_URL") && exit.stderr.contains(expected), "{}", exit.stderr);
        assert!(!exit.stderr.contains("hunter2"), "{}", exit.stderr);
    }
}
