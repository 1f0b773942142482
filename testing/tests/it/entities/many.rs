//! Many connections that watch as much as each may.

use tidings_testing::{Launch, Process};

use super::*;

/// Subscriptions of a connection, as many as the default allows.
const EACH: usize = 50_000;
/// Ids in a message, as many as the default allows.
const IN_ONE: usize = 10_000;
/// Bytes that a subscription to an entity takes that nobody else watches, with room for an allocator that is generous.
const BYTES: u64 = 320;

/// Connections: 200 with `TIDINGS_ENTITY_CONNECTIONS=200`.
fn connections() -> usize {
    std::env::var("TIDINGS_ENTITY_CONNECTIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(10)
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_with_fifty_thousand_subscriptions_each_take_bounded_memory_and_hear() {
    let count = connections();
    let limit = count.to_string();
    // Connections that have subscribed read nothing until all have, not even pings.
    let variables =
        [("TIDINGS_ENTITIES_CONNECTIONS_PER_USER", &*limit), ("TIDINGS_ENTITIES_HEARTBEAT", "1h")];
    let process =
        Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0", "--data", "data"], &variables))
            .await;
    let url = process.url("/v1/app/sync");
    let before = process.memory();
    let mut clients = Vec::new();
    for connection in 0..count {
        let mut client = Client::at(&url, None).await.expect("a WebSocket").admitted().await;
        for part in 0..EACH / IN_ONE {
            // Nobody else watches them, which takes the most memory.
            let id = |n| format!("{connection}-{}", part * IN_ONE + n);
            let ids: Vec<String> = (0..IN_ONE).map(id).collect();
            let payload = json!({ "entityCode": "project", "entityIds": ids });
            assert_eq!(client.ask("SUBSCRIBE", payload, "SUBSCRIBED").await["count"], IN_ONE);
        }
        clients.push(client);
    }
    let more = json!({ "entityCode": "project", "entityIds": ["one more"] });
    assert_eq!(clients[0].refused("SUBSCRIBE", more).await, "LimitExceeded");
    let subscriptions = (count * EACH) as u64;
    let taken = process.memory().saturating_sub(before);
    println!(
        "{count} connections, {subscriptions} subscriptions: {} MB, {} bytes each",
        taken / 1_000_000,
        taken / subscriptions
    );
    assert!(taken < subscriptions * BYTES + (64 << 20), "{taken} bytes for {subscriptions} subscriptions");
    // Everything that one of them watches changes, and it reads nothing meanwhile; then it and the last hear.
    let http = http::Client::new();
    for part in 0..EACH / IN_ONE {
        let changes: Vec<_> =
            (0..IN_ONE).map(|n| change("project", &format!("0-{}", part * IN_ONE + n), "UPDATE")).collect();
        let answer = http
            .post(process.url("/v1/app/changes"))
            .json(&Value::from(changes))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    let last = format!("{}-{}", count - 1, EACH - 1);
    let answer = http
        .post(process.url("/v1/app/changes"))
        .json(&json!([change("project", &last, "DELETE")]))
        .send()
        .await;
    assert_eq!(answer.expect("an answer").status(), 200);
    assert_eq!(clients[count - 1].until(&last).await.len(), 1, "of the others' entities nothing");
    let mut heard = std::collections::HashSet::new();
    while heard.len() < EACH {
        heard.extend(clients[0].changes("project").await.into_iter().map(|(id, ..)| id));
    }
    let with_pending = process.memory().saturating_sub(before);
    println!("with 50,000 changes told: {} MB", with_pending / 1_000_000);
    assert!(with_pending < subscriptions * BYTES + (192 << 20), "{with_pending} bytes");
}
