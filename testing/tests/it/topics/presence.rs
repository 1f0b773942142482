//! Presence: who of the subscribers of a topic is seen, and what members hear of each other.

use super::grants::{closed, grants, token};
use super::*;

async fn joins(client: &mut Client, topic: &str, presence: Value) -> Value {
    client.done("$subscribe", json!({ "topic": topic, "presence": presence })).await
}

fn id(client: &Client) -> Value {
    client.hello["memberId"].clone()
}

/// The next frame, which tells of a member.
async fn passing(client: &mut Client, kind: &str, topic: &str) -> Value {
    let frame = client.hear().await;
    assert_eq!((&frame["type"], &frame["meta"]), (&json!(kind), &json!({ "topic": topic })), "{frame}");
    frame["payload"]["member"].clone()
}

#[tokio::test]
async fn members_hear_of_each_other_and_others_do_not() {
    let server = Harness::start().await;
    let mut first = Client::connect(&server).await;
    let mut second = Client::connect(&server).await;
    let mut plain = Client::connect(&server).await;
    assert_eq!(joins(&mut first, "room:1", json!(true)).await, json!({ "added": 1, "total": 1 }));
    plain.subscribe("room:1").await;
    plain.subscribe("room:*").await;
    joins(&mut second, "room:1", json!({ "info": { "name": "Bob" } })).await;
    let member = passing(&mut first, "$join", "room:1").await;
    let since = member["since"].clone();
    assert!(since.is_u64(), "{member}");
    assert_eq!(
        member,
        json!({ "id": id(&second), "user": "dev", "info": { "name": "Bob" }, "since": since })
    );
    assert_ne!(id(&second), second.hello["clientId"]);
    let listed = plain.done("$presence", json!({ "topic": "room:1" })).await;
    assert_eq!((&listed["count"], &listed["capability"]), (&json!(2), &json!("exact")));
    assert_eq!(
        listed["members"],
        json!([{ "id": id(&first), "user": "dev", "since": listed["members"][0]["since"] }, member])
    );
    let counted: Value =
        server.get(&format!("{PATH}/room:1?presence=true")).await.json().await.expect("JSON");
    assert_eq!((&counted["members"], &counted["subscribers"]), (&listed["members"], &json!(3)));
    let without: Value = server.get(&format!("{PATH}/room:1")).await.json().await.expect("JSON");
    assert_eq!(without.get("members"), None);
    // Who unsubscribes leaves, and may come again.
    second.done("$unsubscribe", json!({ "topic": "room:1" })).await;
    assert_eq!(passing(&mut first, "$leave", "room:1").await, member);
    joins(&mut second, "room:1", json!(true)).await;
    assert_eq!(passing(&mut first, "$join", "room:1").await["id"], id(&second));
    joins(&mut second, "room:1", json!(true)).await;
    // Who was a subscriber becomes a member by subscribing again.
    assert_eq!(joins(&mut plain, "room:1", json!(true)).await, json!({ "added": 0, "total": 2 }));
    for client in [&mut first, &mut second] {
        assert_eq!(passing(client, "$join", "room:1").await["id"], id(&plain));
    }
    // A connection that closes leaves, however it does.
    second.leave().await;
    for client in [&mut first, &mut plain] {
        passing(client, "$leave", "room:1").await;
    }
    drop(plain);
    passing(&mut first, "$leave", "room:1").await;
    first.done("$set", json!({ "topics": [] })).await;
    assert_eq!(first.done("$presence", json!({ "topic": "room:1" })).await["count"], 0);
    first.leave().await;
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn what_a_member_says_of_itself_has_a_limit() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    // With quotes it has 1,024 bytes.
    let fits = "x".repeat(1022);
    joins(&mut client, "a", json!({ "info": fits })).await;
    let listed = client.done("$presence", json!({ "topic": "a" })).await;
    assert_eq!(listed["members"][0]["info"], fits);
    let payload = json!({ "topic": "b", "presence": { "info": format!("{fits}x") } });
    let error = client.fails("$subscribe", payload).await;
    assert_eq!(
        (&error["code"], &error["details"]["field"]),
        (&json!("INVALID_ARGUMENT"), &json!("presence.info"))
    );
    assert_eq!(client.list().await, json!(["a"]));
}

#[tokio::test]
async fn two_connections_of_a_user_are_two_members_and_seeing_them_needs_the_grant() {
    let server = closed().await;
    let alice = token(&server, grants(&["room:1", "room:3"], &[]));
    let mut first = Client::with_token(&server, &alice).await;
    let mut second = Client::with_token(&server, &alice).await;
    joins(&mut first, "room:1", json!(true)).await;
    joins(&mut second, "room:1", json!(true)).await;
    let listed = first.done("$presence", json!({ "topic": "room:1" })).await;
    let users: Vec<&Value> =
        listed["members"].as_array().expect("members").iter().map(|m| &m["user"]).collect();
    assert_eq!(users, [&json!("alice"), &json!("alice")]);
    assert_ne!(listed["members"][0]["id"], listed["members"][1]["id"]);
    let error = first.fails("$presence", json!({ "topic": "room:2" })).await;
    assert_eq!(error["code"], "PERMISSION_DENIED");
    assert_eq!(first.done("$presence", json!({ "topic": "room:3" })).await["members"], json!([]));
    // A token that does not grant the topic any more ends the membership with the subscription.
    passing(&mut first, "$join", "room:1").await;
    let narrower = token(&server, grants(&["room:3"], &[]));
    second.done("$auth", json!({ "token": narrower })).await;
    passing(&mut first, "$leave", "room:1").await;
}

#[tokio::test]
async fn a_member_that_is_silent_for_too_long_leaves() {
    let server = server(|options| {
        options.heartbeat = Duration::from_secs(5);
        options.heartbeat_timeout = Duration::from_secs(12);
    })
    .await;
    let mut first = Client::connect(&server).await;
    // Nobody reads from it, so nobody answers its pings.
    let mut silent = Client::connect(&server).await;
    joins(&mut first, "room:1", json!(true)).await;
    joins(&mut silent, "room:1", json!(true)).await;
    passing(&mut first, "$join", "room:1").await;
    for _ in 0..15 {
        let_pass(&server, 1).await;
        first.list().await;
        if first.heard.iter().any(|frame| frame["type"] == "$leave") {
            break;
        }
    }
    let_pass(&server, 1).await;
    assert_eq!(passing(&mut first, "$leave", "room:1").await["id"], id(&silent));
}
