//! Revocations on nodes that share a broker and no store: real processes, each with a store of its own.

use std::time::Duration;

use futures_util::future::join;
use serde_json::{Value, json};
use tempfile::TempDir;
use tidings_auth::{Claims, Key, Resources, Scope};
use tidings_engine::{Clock, WallClock};
use tidings_model::ProjectId;
use tidings_testing::brokers::{BrokerKind, BrokerServer};
use tidings_testing::http::Client as Http;
use tidings_testing::sse::Events;
use tidings_testing::{Launch, Process, eventually};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::topics::{Client, Heard};

const KEY: &str = "the-signing-key-of-app";

/// Nodes of one configuration.
struct Cluster {
    folder: TempDir,
    url: String,
}

impl Cluster {
    fn with(broker: &BrokerServer) -> Self {
        let folder = TempDir::new().expect("a folder");
        let file = format!("[auth]\nprojects = [{{ id = 'app', keys = ['{KEY}'] }}]");
        std::fs::write(folder.path().join("tidings.toml"), file).expect("it is written");
        Self { folder, url: broker.url() }
    }

    async fn node(&self, name: &str) -> Process {
        let path = |name: &str| self.folder.path().join(name).to_str().expect("UTF-8").to_owned();
        let (config, data) = (path("tidings.toml"), path(name));
        let arguments = ["--config", &config, "--listen", "127.0.0.1:0", "--data", &data];
        Process::launch(Launch::new(&arguments, &[("TIDINGS_BUS_URL", &self.url)])).await
    }
}

fn token(user: &str, scope: Scope) -> String {
    let (app, now) = (ProjectId::parse("app").expect("an id"), WallClock.now());
    let expires_at = now + Duration::from_secs(3600);
    let resources = Resources::default();
    let claims = Claims { user: Some(user.into()), resources, ..Claims::new(app, scope, expires_at) };
    Claims { issued_at: Some(now), ..claims }.sign(&Key::parse(KEY).expect("a key"))
}

/// Revokes on a node; what that ended there.
async fn revoke(node: &Process, what: Value) -> Value {
    let request = Http::new().post(node.url("/v1/app/revocations")).bearer_auth(token("boss", Scope::Manage));
    let answer = request.json(&what).send().await.expect("an answer");
    assert_eq!(answer.status(), 200, "{what}");
    answer.json().await.expect("JSON")
}

/// Whether a token counts on a node.
async fn counts(node: &Process, token: &str) -> bool {
    let request = Http::new().get(node.url("/v1/app/topics/room")).bearer_auth(token);
    let answer = request.send().await.expect("an answer");
    let status = answer.status().as_u16();
    if status == 200 {
        return true;
    }
    let body: Value = answer.json().await.expect("JSON");
    assert_eq!((status, &body["error"]["code"]), (401, &json!("token_revoked")), "{body}");
    false
}

async fn ends(node: &Process, token: &str) {
    eventually("the token counts no more", async || !counts(node, token).await).await;
}

async fn connect(node: &Process, token: &str) -> Client {
    let url = node.url("/v1/app/topics").replace("http://", "ws://");
    let mut request = url.into_client_request().expect("an address");
    request.headers_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
    let (socket, _) = tokio_tungstenite::connect_async(request).await.expect("a WebSocket");
    Client::on(socket).await
}

async fn what_is_revoked_on_one_node_is_cut_on_the_other(kind: BrokerKind) {
    let broker = BrokerServer::start(kind).await;
    let cluster = Cluster::with(&broker);
    let (one, two) = join(cluster.node("one"), cluster.node("two")).await;
    let (alice, bob) = (token("alice", Scope::Write), token("bob", Scope::Write));
    let (mut of_alice, mut of_bob) = (connect(&two, &alice).await, connect(&two, &bob).await);
    for topic in ["room", "secret"] {
        of_bob.subscribe(topic).await;
    }
    let stream = Http::new().put(two.url("/v1/app/stream/s")).bearer_auth(&alice);
    let created = stream.header("content-type", "text/plain").send().await.expect("an answer");
    assert_eq!(created.status(), 201);
    let live = Http::new().get(two.url("/v1/app/stream/s?offset=now&live=sse")).bearer_auth(&alice);
    let mut events = Events::of(live.send().await.expect("an answer"));
    // The node that is asked has none of her connections.
    let told = revoke(&one, json!({ "user": "alice" })).await;
    assert_eq!(told, json!({ "connections": 0, "subscriptions": 0 }));
    let last = of_alice.closed().await;
    assert_eq!((&last["code"], &last["reason"]), (&json!(4403), &json!("revoked")));
    while events.next().await.is_some() {}
    assert!(!counts(&two, &alice).await && !counts(&one, &alice).await);

    revoke(&one, json!({ "user": "bob", "topics": ["secret"] })).await;
    let told = of_bob.hear().await;
    assert_eq!(told["type"], "$unsubscribed", "{told}");
    assert_eq!(told["payload"], json!({ "topics": ["secret"], "reason": "revoked" }));
    let refused = of_bob.fails("$subscribe", json!({ "topic": "secret" })).await;
    assert_eq!(refused["details"]["reason"], "revoked", "{refused}");
    assert_eq!(of_bob.list().await, json!(["room"]), "the rest stays");
    assert!(counts(&two, &bob).await);
    for node in [one, two] {
        node.stop().await;
    }
}

async fn what_was_revoked_while_a_node_or_the_broker_was_away_is_made_up_for(kind: BrokerKind) {
    let mut broker = BrokerServer::private(kind).await;
    let cluster = Cluster::with(&broker);
    let (one, mut two) = join(cluster.node("one"), cluster.node("two")).await;
    let [alice, bob, carol, dave] = ["alice", "bob", "carol", "dave"].map(|user| token(user, Scope::Write));
    let mut of_alice = connect(&two, &alice).await;
    of_alice.subscribe("room").await;
    broker.kill().await;
    revoke(&one, json!({ "user": "alice" })).await;
    revoke(&two, json!({ "user": "bob" })).await;
    assert!(counts(&two, &alice).await && counts(&one, &bob).await, "they cannot know");
    broker.start_again().await;
    assert_eq!(of_alice.frame().await, closed_as_revoked());
    ends(&two, &alice).await;
    ends(&one, &bob).await;
    // A node that is away, and one that is there for the first time.
    two.kill().await;
    revoke(&one, json!({ "user": "carol" })).await;
    let two = cluster.node("two").await;
    let three = cluster.node("three").await;
    ends(&two, &carol).await;
    for (name, token) in [("alice", &alice), ("bob", &bob), ("carol", &carol)] {
        eventually(name, async || !counts(&three, token).await).await;
    }
    for node in [&one, &two, &three] {
        assert!(counts(node, &dave).await);
    }
    for node in [one, two, three] {
        node.stop().await;
    }
}

/// The last frame of a connection whose token was revoked.
fn closed_as_revoked() -> Heard {
    let payload = json!({ "code": 4403, "reason": "revoked", "reconnect": false });
    Heard::Text(json!({ "type": "$close", "payload": payload }))
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
    what_is_revoked_on_one_node_is_cut_on_the_other
    what_was_revoked_while_a_node_or_the_broker_was_away_is_made_up_for
);
