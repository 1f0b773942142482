//! Two servers on one database, from the socket to the table and back.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tidings_testing::postgres::{TestDatabase, database};
use tidings_testing::{Launch, Process, eventually};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};
use uuid::Uuid;

use super::{install, log};

struct Client(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Client {
    async fn connect(server: &Process) -> Self {
        let url = server.url("/v1/_default/sync").replace("http://", "ws://");
        let mut client = Self(connect_async(&url).await.expect("the server upgrades").0);
        client.hear("CONNECTED").await;
        client
    }

    async fn subscribe(&mut self, payload: Value) -> Value {
        let message = json!({ "type": "SUBSCRIBE", "payload": payload }).to_string();
        self.0.send(Message::text(message)).await.expect("sent");
        self.hear("SUBSCRIBED").await
    }

    /// The payload of the next message, which has to be of a type.
    async fn hear(&mut self, kind: &str) -> Value {
        let next = async {
            loop {
                match self.0.next().await {
                    Some(Ok(Message::Text(text))) => {
                        break serde_json::from_str::<Value>(&text).expect("JSON");
                    }
                    Some(Ok(_)) => {}
                    other => panic!("no {kind}: {other:?}"),
                }
            }
        };
        let message = tokio::time::timeout(Duration::from_secs(30), next).await.expect("a message");
        assert_eq!(message["type"], kind, "{message}");
        message["payload"].clone()
    }
}

async fn server(database: &TestDatabase) -> Process {
    let variables = [("TIDINGS_ENTITIES_DATABASE_URL", database.url.as_str())];
    Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0", "--data", "data"], &variables)).await
}

#[tokio::test]
async fn a_change_made_by_sql_is_heard_at_every_node_and_by_who_comes_back_to_another() {
    let database = database().await;
    install(&database.url).await;
    let sql = database.client().await;
    let mut nodes = [server(&database).await, server(&database).await];
    let mut clients = [Client::connect(&nodes[0]).await, Client::connect(&nodes[1]).await];
    let id = Uuid::new_v4();
    let mut cursor = Value::Null;
    for client in &mut clients {
        let subscribed =
            client.subscribe(json!({ "entityCode": "project", "entityIds": [id.to_string()] })).await;
        assert_eq!(subscribed["count"], 1);
    }
    eventually("both are in the table", async || {
        let rows = "SELECT count(*) FROM app.rxdb_subscription WHERE node_id IS NOT NULL";
        sql.query_one(rows, &[]).await.expect("a number").get::<_, i64>(0) == 2
    })
    .await;
    log(&sql, id, 4).await;
    for client in &mut clients {
        let heard = client.hear("INVALIDATE").await;
        assert_eq!(heard["entityCode"], "project");
        assert_eq!(heard["changes"][0]["entityId"], id.to_string());
        assert_eq!(heard["changes"][0]["action"], "CREATE");
        cursor = heard["cursor"].clone();
    }
    let killed = clients.into_iter().next();
    drop(killed);
    nodes[0].kill().await;
    log(&sql, id, 3).await;
    let mut back = Client::connect(&nodes[1]).await;
    let payload = json!({ "entityCode": "project", "entityIds": [id.to_string()], "since": cursor });
    back.subscribe(payload).await;
    let heard = back.hear("INVALIDATE").await;
    assert_eq!(heard["changes"][0]["action"], "DELETE", "{heard}");
}
