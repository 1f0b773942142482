//! What comes before what.

use super::*;

#[tokio::test]
async fn the_reply_to_a_subscribe_comes_before_the_first_message_and_none_after_the_reply_to_an_unsubscribe()
{
    let server = Harness::start().await;
    let mut publisher = Client::connect(&server).await;
    let mut client = Client::connect(&server).await;
    let publishing = tokio::spawn(async move {
        for n in 0.. {
            publisher.publish("t", json!(n)).await;
        }
    });
    let mut all = 0;
    for round in 0..300 {
        let subscribe = client.begin("$subscribe", json!({ "topic": "t" })).await;
        let mut unsubscribe = None;
        let (mut subscribed, mut heard) = (false, 0);
        loop {
            // Sometimes both are under way at once, sometimes messages come in between.
            if unsubscribe.is_none() && heard == round % 4 {
                unsubscribe = Some(client.begin("$unsubscribe", json!({ "topic": "t" })).await);
            }
            let frame = client.text().await;
            match frame["meta"]["correlationId"].as_str() {
                Some(id) if id == subscribe => subscribed = true,
                Some(id) if Some(id) == unsubscribe.as_deref() => break,
                Some(other) => panic!("an answer to {other}"),
                None => {
                    assert!(subscribed, "a message came before the reply: {frame}");
                    heard += 1;
                }
            }
        }
        all += heard;
        // Nothing of the topic comes after that reply, until it is subscribed to again.
        let list = client.begin("$list", json!({})).await;
        let frame = client.text().await;
        assert_eq!(frame["meta"]["correlationId"], json!(list), "a message came after the reply");
    }
    publishing.abort();
    assert!(all >= 75 * (1 + 2 + 3), "many messages were heard: {all}");
}

#[tokio::test]
async fn messages_of_one_publisher_come_in_order_and_once() {
    const MESSAGES: usize = 2000;
    let server = Harness::start().await;
    let mut subscribers = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect(&server).await;
        client.done("$set", json!({ "topics": ["a", "b"] })).await;
        subscribers.push(tokio::spawn(async move {
            let mut next = [[0; 2]; 2];
            for _ in 0..MESSAGES * 2 {
                let frame = client.text().await;
                let topic = usize::from(frame["meta"]["topic"] == "b");
                let publisher = frame["payload"]["publisher"].as_u64().expect("a number") as usize;
                assert_eq!(frame["payload"]["n"], next[topic][publisher], "{frame}");
                next[topic][publisher] += 1;
            }
        }));
    }
    let publishers = [0, 1].map(|publisher| {
        let connecting = Client::connect(&server);
        async move {
            let mut client = connecting.await;
            let mut counts = [0; 2];
            for n in 0..MESSAGES {
                let (at, topic) = if n % 3 == 0 { (1, "b") } else { (0, "a") };
                let payload = json!({ "publisher": publisher, "n": counts[at] });
                counts[at] += 1;
                let message = json!({ "type": "T", "payload": payload });
                let frame = json!({ "type": "$publish", "payload": { "topic": topic, "message": message } });
                client.say(frame.to_string()).await;
            }
            client.list().await;
        }
    });
    futures_util::future::join_all(publishers).await;
    for subscriber in subscribers {
        subscriber.await.expect("each message, in order, once");
    }
}

#[tokio::test]
async fn requests_take_effect_in_the_order_of_their_frames() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    let mut ids = Vec::new();
    for n in 0..500 {
        let (kind, payload) = match n % 5 {
            0 => ("$subscribe", json!({ "topic": "a" })),
            1 => ("$set", json!({ "topics": ["b", "c"] })),
            2 => ("$publish", json!({ "topic": "b", "message": { "type": "T", "payload": n } })),
            3 => ("$unsubscribe", json!({ "topic": "b" })),
            _ => ("$clear", json!({})),
        };
        ids.push(client.begin(kind, payload).await);
    }
    for (n, id) in ids.iter().enumerate() {
        let answer = client.answer_to(id).await.expect("good");
        let expected = match n % 5 {
            0 => json!({ "added": 1, "total": 1 }),
            1 => json!({ "added": 2, "removed": 1, "total": 2 }),
            2 => json!({ "ok": true, "capability": "exact", "matched": 1 }),
            3 => json!({ "removed": 1, "total": 1 }),
            _ => json!({ "removed": 1 }),
        };
        assert_eq!(answer, expected, "{n}");
    }
}
