//! Many clients come back at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidings_testing::{Launch, Process, eventually, http};

use super::*;

/// Clients in every run of the tests; `TIDINGS_TOPIC_CLIENTS` sets more. Test and server need a descriptor for each.
const CLIENTS: usize = 200;
const TOPICS: usize = 100;

fn clients() -> usize {
    std::env::var("TIDINGS_TOPIC_CLIENTS").ok().and_then(|count| count.parse().ok()).unwrap_or(CLIENTS)
}

/// All clients connect at the same time, and each sets its topics: its own, and one that all have.
async fn all_set(server: &Process) -> Vec<Client> {
    let url: Arc<str> = server.url(PATH).replace("http://", "ws://").into();
    let connecting = (0..clients()).map(|n| {
        let url = url.clone();
        tokio::spawn(async move {
            // With thousands of them on one machine, some say their first word too late.
            let mut tries = 0;
            let socket = loop {
                match tokio_tungstenite::connect_async(&*url).await {
                    Ok((socket, _)) => break socket,
                    Err(error) => assert!(tries < 5, "no WebSocket: {error}"),
                }
                tries += 1;
            };
            let mut client = Client::on(socket).await;
            let own = (0..TOPICS - 1).map(|topic| format!("c{n}:{topic}"));
            let topics: Vec<String> = own.chain(["all".to_owned()]).collect();
            let counts = client.done("$set", json!({ "topics": topics })).await;
            assert_eq!(counts, json!({ "added": TOPICS, "removed": 0, "total": TOPICS }));
            client
        })
    });
    let connected: Vec<_> = connecting.collect();
    let mut all = Vec::new();
    for client in connected {
        all.push(client.await.expect("connected"));
    }
    all
}

async fn get(server: &Process, path: &str) -> String {
    let answer = http::Client::new().get(server.url(path)).send().await.expect("an answer");
    answer.text().await.expect("text")
}

async fn metric(server: &Process, name: &str) -> usize {
    let metrics = get(server, "/metrics").await;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.expect("it is counted").trim().parse().expect("a number")
}

/// Number of topics that somebody subscribes to.
async fn subscribed(server: &Process) -> usize {
    metric(server, "tidings_topics_subscribed ").await
}

/// Publishes a number over HTTP. Returns how many it reached.
async fn publish(server: &Process, topic: &str, payload: usize) -> Value {
    let message = json!({ "type": "T", "payload": payload });
    let request = http::Client::new().post(server.url(&format!("{PATH}/{topic}"))).json(&message);
    let result: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    result["matched"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_reconnect_all_at_once_after_a_restart_have_what_they_set() {
    // Clients do not answer pings here while they wait for the others.
    let patient = [("TIDINGS_TOPICS_HEARTBEAT_TIMEOUT_MS", "3600000")];
    let mut server = Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &patient)).await;
    let before = all_set(&server).await;
    server.kill().await;
    drop(before);
    let server = server.restart().await;
    assert_eq!(subscribed(&server).await, 0, "subscriptions do not outlive the server");

    let memory = server.memory();
    let began = Instant::now();
    let mut all = all_set(&server).await;
    let took = began.elapsed();
    let grown = server.memory().saturating_sub(memory) / 1024;
    println!("{} clients set {TOPICS} topics each in {took:?}; the server grew by {grown} KiB", clients());
    let late = metric(&server, r#"tidings_limit_hits_total{limit="head_time"}"#).await;
    println!("{late} handshakes came too late");
    // A subscription to a name of its own takes a few hundred bytes, and a connection some KiB.
    assert!(grown < 128 * clients() as u64 + 32 * 1024, "{grown} KiB");
    assert_eq!(subscribed(&server).await, clients() * (TOPICS - 1) + 1);
    let count: Value = serde_json::from_str(&get(&server, &format!("{PATH}/all")).await).expect("JSON");
    assert_eq!(count["subscribers"], clients());
    assert_eq!(publish(&server, "all", 7).await, clients());
    for (n, client) in all.iter_mut().enumerate() {
        assert_eq!(client.message("all").await, 7);
        if n % 10 == 0 {
            let topic = format!("c{n}:0");
            assert_eq!(publish(&server, &topic, n).await, 1);
            assert_eq!(client.message(&topic).await, n);
        }
    }
    drop(all);
    eventually("nothing of them is left", async || subscribed(&server).await == 0).await;
    tokio::time::timeout(Duration::from_secs(60), server.stop()).await.expect("it stops");
}
