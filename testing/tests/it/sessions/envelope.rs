//! Envelopes: which stream a message came from, for who hears many in one.

use tidings_engine::Clock;
use tidings_testing::sse::Events;

use super::*;

async fn subscribe_enveloped(server: &Harness, session: &str, source: &str, envelope: bool) {
    let wanted = json!({ "sessionId": session, "streamId": source, "envelope": envelope });
    let answer = answer(server.post("/v1/app/subscribe").json(&wanted)).await;
    assert!(answer.status().is_success(), "{}", answer.status());
}

/// Publishes JSON; tells the source's offset after it.
async fn publish_json(server: &Harness, source: &str, json: &str) -> String {
    let request =
        server.post(&format!("/v1/app/publish/{source}")).header("content-type", "application/json");
    let answer = answer(request.body(json.to_owned())).await;
    assert_eq!(answer.status(), 204);
    header(&answer, "stream-next-offset").to_owned()
}

async fn messages(server: &Harness, id: &str) -> Vec<Value> {
    let content = content(server, id).await;
    serde_json::from_str(&content).unwrap_or_else(|error| panic!("{error} in {content}"))
}

#[tokio::test]
async fn each_message_says_where_it_comes_from() {
    for server in both_stores().await {
        for source in ["orders", "team/\"quoted\""] {
            create(&server, &source.replace('"', "%22"), "application/json").await;
        }
        subscribe_enveloped(&server, "alice", "orders", true).await;
        subscribe_enveloped(&server, "alice", "team/\"quoted\"", true).await;
        subscribe_enveloped(&server, "bob", "orders", false).await;
        let ts = server.clock.now().as_millis();
        let last = publish_json(&server, "orders", r#"[{"id": 1},2]"#).await;
        let other = publish_json(&server, "team/%22quoted%22", "null").await;
        let got = messages(&server, "alice").await;
        assert_eq!(got.len(), 3);
        let first = got[0]["offset"].as_str().expect("an offset").to_owned();
        let envelope = |stream: &str, offset: &str, payload: Value| json!({ "stream": stream, "offset": offset, "ts": ts, "payload": payload });
        assert_eq!(got[0], envelope("orders", &first, json!({ "id": 1 })));
        assert_eq!(got[1], envelope("orders", &last, json!(2)));
        assert_eq!(got[2], envelope("team/\"quoted\"", &other, Value::Null));
        assert_eq!(messages(&server, "bob").await, [json!({ "id": 1 }), json!(2)], "bare without");
        let rest = server.get(&format!("/v1/app/stream/orders?offset={first}")).await;
        assert_eq!(
            body(rest).await,
            json!([2]),
            "a read of the source from the offset begins with the next one"
        );
    }
}

#[tokio::test]
async fn a_session_may_have_both_and_change_its_mind() {
    for server in both_stores().await {
        for source in ["a", "b"] {
            create(&server, source, "application/json").await;
        }
        subscribe_enveloped(&server, "alice", "a", true).await;
        subscribe(&server, "alice", "b").await;
        publish_json(&server, "a", "1").await;
        publish_json(&server, "b", "2").await;
        // Left out, it stays as it is.
        subscribe(&server, "alice", "a").await;
        publish_json(&server, "a", "3").await;
        subscribe_enveloped(&server, "alice", "a", false).await;
        publish_json(&server, "a", "4").await;
        subscribe_enveloped(&server, "alice", "a", true).await;
        publish_json(&server, "a", "5").await;
        let shown = || async {
            let all = messages(&server, "alice").await;
            all.iter()
                .map(|one| (one.is_object(), one.get("payload").unwrap_or(one).clone()))
                .collect::<Vec<_>>()
        };
        let mut expected =
            vec![(true, json!(1)), (false, json!(2)), (true, json!(3)), (false, json!(4)), (true, json!(5))];
        assert_eq!(shown().await, expected);
        // It stays readable as it was when the subscription and the source are gone.
        assert_eq!(answer(unsubscribing(&server, "alice", "a")).await.status(), 204);
        assert_eq!(shown().await, expected);
        subscribe(&server, "alice", "a").await;
        assert_eq!(session(&server, "alice").await["subscriptions"][1]["envelope"], false, "a new beginning");
        publish_json(&server, "a", "6").await;
        expected.push((false, json!(6)));
        assert_eq!(shown().await, expected);
        let deleted = server.request(Method::DELETE, "/v1/app/stream/a");
        assert_eq!(answer(deleted).await.status(), 204);
        assert_eq!(shown().await, expected);
        let fork = server.put("/v1/app/stream/fork").header("stream-forked-from", "/v1/app/stream/alice");
        assert_eq!(answer(fork).await.status(), 201);
        assert_eq!(messages(&server, "fork").await, messages(&server, "alice").await);
        assert_eq!(answer(server.request(Method::DELETE, "/v1/app/session/alice")).await.status(), 204);
        assert_eq!(messages(&server, "fork").await.len(), 6);
        assert_eq!(messages(&server, "fork").await[0]["stream"], "a");
    }
}

#[tokio::test]
async fn what_was_delivered_keeps_its_form_however_often_it_is_changed() {
    for server in both_stores().await {
        create(&server, "a", "application/json").await;
        let most = tidings_model::limits::ENVELOPE_CHANGES;
        let mut envelope = false;
        subscribe_enveloped(&server, "alice", "a", envelope).await;
        publish_json(&server, "a", "0").await;
        for n in 1..=most {
            envelope = !envelope;
            subscribe_enveloped(&server, "alice", "a", envelope).await;
            // Changed back and forth with nothing in between it is not changed.
            subscribe_enveloped(&server, "alice", "a", !envelope).await;
            subscribe_enveloped(&server, "alice", "a", envelope).await;
            publish_json(&server, "a", &n.to_string()).await;
        }
        let wanted = json!({ "sessionId": "alice", "streamId": "a", "envelope": !envelope });
        let change = || server.post("/v1/app/subscribe").json(&wanted);
        assert_eq!(refused(change(), 429).await, "too_many_envelope_changes");
        let hits = server.metric("tidings_limit_hits_total{limit=\"envelope_changes\"}");
        assert_eq!(hits, Some(1.0));
        subscribe(&server, "alice", "a").await;
        let all = messages(&server, "alice").await;
        assert_eq!(all.len(), most + 1);
        for (n, message) in all.iter().enumerate() {
            assert_eq!(message.is_object(), n % 2 == 1, "message {n}: {message}");
        }
    }
}

#[tokio::test]
async fn live_readers_and_what_the_follower_delivers_have_envelopes_too() {
    let sessions = tidings_sessions::Options { fanout_queue_threshold: 0, ..Default::default() };
    let server = server_with(sessions).await;
    create(&server, "orders", "application/json").await;
    subscribe_enveloped(&server, "alice", "orders", true).await;
    let mut events = Events::of(server.get("/v1/app/stream/alice?offset=-1&live=sse").await);
    assert!(events.next().await.is_some_and(|event| event.name == "control"));
    let offset = publish_json(&server, "orders", r#"{"id":7}"#).await;
    let heard = events.next().await.expect("an event").json();
    assert_eq!(heard[0]["stream"], "orders");
    assert_eq!(heard[0]["offset"], offset);
    assert_eq!(heard[0]["payload"], json!({ "id": 7 }));
    assert_eq!(messages(&server, "alice").await, heard.as_array().expect("a list").clone());
}

#[tokio::test]
async fn a_session_hears_so_many_streams_at_a_time_and_any_number_one_after_the_other() {
    let server = Harness::start().await;
    let most = tidings_model::limits::SOURCES_PER_SESSION;
    for n in 0..=most {
        create(&server, &format!("s{n}"), "application/json").await;
    }
    for n in 0..most {
        subscribe_enveloped(&server, "alice", &format!("s{n}"), true).await;
    }
    publish_json(&server, "s0", "1").await;
    let one_more = format!("s{most}");
    assert_eq!(refused(subscribing(&server, "alice", &one_more), 429).await, "too_many_subscriptions");
    for n in 0..most {
        assert_eq!(answer(unsubscribing(&server, "alice", &format!("s{n}"))).await.status(), 204);
    }
    subscribe_enveloped(&server, "alice", &one_more, true).await;
    publish_json(&server, &one_more, "2").await;
    let streams: Vec<_> = messages(&server, "alice").await.iter().map(|one| one["stream"].clone()).collect();
    assert_eq!(streams, [json!("s0"), json!(one_more)]);
}
