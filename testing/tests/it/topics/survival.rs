//! What outlives a connection and a process: nothing but what was revoked.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_auth::{Allowed, Authorize, Claims, Credential, Denied, Key, Route, Scope};
use tidings_model::{ProjectId, Timestamp};
use tidings_testing::{Doors, Process, http, until};
use tokio::sync::Semaphore;

use super::*;

const KEY: &str = "the-signing-key-of-app";

/// A socket of a server in a process of its own.
async fn connect(process: &Process, token: &str) -> Result<Client, tungstenite::Error> {
    let url = process.url(&format!("{PATH}?token={token}")).replace("http://", "ws://");
    let (socket, _) = tokio_tungstenite::connect_async(url).await?;
    Ok(Client::on(socket).await)
}

#[tokio::test]
async fn what_was_revoked_stays_revoked_when_the_process_is_killed() {
    let mut process = Process::serve(&[]).await;
    let client = http::Client::new();
    let create = client.post(process.url("/v1/projects")).json(&json!({ "project": "app", "key": KEY }));
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let token = |user: &str| {
        let app = ProjectId::parse("app").expect("an id");
        let claims = Claims::new(app, Scope::Write, Timestamp::from_millis(4_000_000_000_000));
        Claims { user: Some(user.into()), ..claims }.sign(&Key::parse(KEY).expect("a key"))
    };
    let (alice, bob) = (token("alice"), token("bob"));
    let mut sockets = Vec::new();
    for user in [&alice, &bob] {
        let mut socket = connect(&process, user).await.expect("a WebSocket");
        socket.done("$set", json!({ "topics": ["room:1", "news"] })).await;
        sockets.push(socket);
    }
    for body in [json!({ "user": "alice", "topics": ["room:*"] }), json!({ "user": "bob" })] {
        let revoke = client.post(process.url("/v1/app/revocations")).json(&body);
        assert_eq!(revoke.send().await.expect("an answer").status(), 200, "{body}");
    }
    assert_eq!(sockets[0].hear().await["type"], "$unsubscribed");
    assert_eq!(sockets[1].closed().await["code"], 4403);
    for _ in 0..2 {
        process.kill().await;
        process = process.restart().await;
        let refused = connect(&process, &bob).await.err().expect("refused");
        assert!(refused.to_string().contains("401"), "{refused}");
        let mut alice = connect(&process, &alice).await.expect("a WebSocket");
        assert_eq!(alice.list().await, json!([]), "subscriptions do not survive");
        let error = alice.fails("$set", json!({ "topics": ["news", "room:1"] })).await;
        assert_eq!(error["details"]["reason"], "revoked");
        alice.subscribe("news").await;
    }
}

#[tokio::test]
async fn a_server_stops_in_the_middle_of_every_kind_of_request_and_tells_each_client() {
    let server = Harness::start().await;
    let requests = [
        ("$subscribe", json!({ "topic": "a" })),
        ("$subscribeMany", json!({ "topics": ["a", "b"] })),
        ("$unsubscribe", json!({ "topic": "a" })),
        ("$unsubscribeMany", json!({ "topics": ["a"] })),
        ("$set", json!({ "topics": ["a", "c"] })),
        ("$update", json!({ "add": ["d"] })),
        ("$clear", json!({})),
        ("$list", json!({})),
        ("$settle", json!({})),
        ("$verify", json!({ "topic": "a" })),
        ("$localStatus", json!({ "topic": "a" })),
        ("$history", json!({ "topic": "a" })),
        ("$auth", json!({ "token": "nonsense" })),
        ("$publish", json!({ "topic": "a", "message": { "type": "T" } })),
    ];
    let mut talking = Vec::new();
    for (kind, payload) in requests {
        let mut client = Client::connect(&server).await;
        talking.push(tokio::spawn(async move {
            let mut asked = 0_u64;
            loop {
                asked += 1;
                let meta = json!({ "correlationId": asked.to_string() });
                let frame = json!({ "type": kind, "meta": meta, "payload": payload });
                if client.socket.send(Message::text(frame.to_string())).await.is_err() {
                    break;
                }
                if asked >= 50 {
                    tokio::task::yield_now().await;
                }
                if asked == 2000 {
                    break;
                }
            }
            let close = client.closed().await;
            assert_eq!(close["code"], 1001, "{kind}");
            // Answers are an unbroken prefix of what was asked.
            let answered = client.heard.iter().filter(|frame| frame["meta"]["correlationId"].is_string());
            for (n, frame) in answered.enumerate() {
                assert_eq!(frame["meta"]["correlationId"], json!((n + 1).to_string()), "{kind}");
            }
        }));
    }
    until("they talk", || {
        server.metric(r#"tidings_topics_requests_total{type="$list",result="ok"}"#) > Some(50.0)
    })
    .await;
    server.stop().await;
    for client in talking {
        client.await.expect("told so");
    }
}

/// An application that takes its time to look at the token `slow`.
struct Thinking {
    done: Semaphore,
}

impl Authorize for Thinking {
    fn authorize<'a>(
        &'a self,
        _: &'a Route,
        credential: Option<&'a Credential>,
    ) -> BoxFuture<'a, Result<Allowed, Denied>> {
        Box::pin(async move {
            match credential.map(Credential::reveal) {
                Some("slow") => {
                    self.done.acquire().await.expect("not closed").forget();
                    Ok(Allowed::default())
                }
                Some("bad") => Err(Denied::Unauthenticated("who are you?".into())),
                _ => Ok(Allowed::default()),
            }
        })
    }
}

#[tokio::test]
async fn what_follows_a_token_that_is_being_verified_waits_for_it() {
    let thinking = Arc::new(Thinking { done: Semaphore::new(0) });
    let doors = Doors::Custom(thinking.clone());
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let mut client = Client::with_token(&server, "quick").await;
    let mut other = Client::with_token(&server, "quick").await;
    client.subscribe("t").await;
    let auth = client.begin("$auth", json!({ "token": "slow" })).await;
    let mut ids = Vec::new();
    for n in 0..300 {
        // More than one read from the socket brings.
        ids.push(client.begin("$subscribe", json!({ "topic": format!("{}:{n}", "x".repeat(100)) })).await);
    }
    let second = client.begin("$auth", json!({ "token": "slow" })).await;
    let list = client.begin("$list", json!({})).await;
    // Messages come meanwhile, answers do not.
    other.publish("t", json!(1)).await;
    let first = client.text().await;
    assert_eq!(first["meta"]["topic"], "t", "{first}");
    thinking.done.add_permits(1);
    assert!(client.answer_to(&auth).await.is_ok());
    for id in &ids {
        assert_eq!(client.answer_to(id).await.expect("good")["added"], 1);
    }
    assert!(client.heard.is_empty(), "the rest waits: {:?}", client.heard);
    thinking.done.add_permits(1);
    assert!(client.answer_to(&second).await.is_ok());
    assert_eq!(client.answer_to(&list).await.expect("good")["total"], 301);
    assert_eq!(client.fails("$auth", json!({ "token": "bad" })).await["code"], "UNAUTHENTICATED");

    // A connection that ends while it waits leaves nothing, when the application has made up its mind.
    client.begin("$auth", json!({ "token": "slow" })).await;
    client.begin("$subscribe", json!({ "topic": "late" })).await;
    drop((client, other));
    thinking.done.add_permits(1);
    nobody_is_left(&server).await;
}
