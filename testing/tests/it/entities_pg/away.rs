//! A database that is away when the server starts.

use tidings_testing::postgres::{Fsync, Postgres, Stop};

use super::*;

#[tokio::test]
async fn a_server_starts_without_its_database_says_so_serves_the_rest_and_recovers() {
    let database = Postgres::start(Fsync::Off).await;
    let url = database.url("postgres");
    install(&url).await;
    database.stop(Stop::Fast).await;
    let server = server(&url, &[]).await;
    let http = http::Client::new();
    let ready = async || {
        let answer = http.get(server.url("/ready")).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    eventually("it says that a database is away", async || {
        ready().await == (200, json!({ "status": "ready", "unavailableSources": 1 }))
    })
    .await;
    let stream = http.put(server.url("/v1/stream/hello")).header("content-type", "text/plain");
    assert_eq!(stream.send().await.expect("an answer").status(), 201, "streams are served");
    let mut elsewhere = client_of(&server, "other").await;
    assert_eq!(
        elsewhere.subscribe("project", &["7"]).await["count"],
        1,
        "so are projects without a database"
    );
    let change = json!([{ "entityCode": "project", "entityId": "7", "action": "UPDATE" }]);
    let other = http.post(server.url("/v1/other/changes")).json(&change).send().await.expect("an answer");
    assert_eq!(other.status(), 200);
    assert_eq!(elsewhere.until("7").await.len(), 1);
    let id = Uuid::new_v4();
    let change = json!([{ "entityCode": "project", "entityId": id.to_string(), "action": "UPDATE" }]);
    let refused =
        http.post(server.url("/v1/_default/changes")).json(&change).send().await.expect("an answer");
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let mut early = Client::at(&server.url("/v1/_default/sync"), None).await.expect("a WebSocket");
    let told_unavailable = loop {
        let message = early.message().await;
        if message["type"] == "ERROR" {
            break message["payload"].clone();
        }
        early.send("SUBSCRIBE", json!({ "entityCode": "project", "entityIds": [id.to_string()] })).await;
    };
    assert_eq!(told_unavailable["code"], "Unavailable");
    assert!(told_unavailable["message"].is_string(), "{told_unavailable}");
    assert!(
        told_unavailable["retryAfter"].as_f64().is_some_and(|seconds| seconds > 0.0),
        "{told_unavailable}"
    );
    database.start_again().await;
    eventually("it says that all is well", async || ready().await == (200, json!({ "status": "ready" })))
        .await;
    let mut client = client(&server).await;
    assert_eq!(subscribe(&mut client, "project", &[id]).await["count"], 1);
    log(&connect(&url).await, id, 1).await;
    assert_eq!(told(&mut client, "project").await, is(id, "UPDATE"));
}
