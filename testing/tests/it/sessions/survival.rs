//! Nothing is lost and nothing comes twice, whatever happens in the middle of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidings_testing::Process;
use tidings_testing::http::Client;

use super::*;

/// Kills in every run of the tests; `make test-all` sets more.
const ROUNDS: u64 = 8;

fn rounds() -> u64 {
    std::env::var("TIDINGS_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

fn put(client: &Client, process: &Process, source: &str) -> RequestBuilder {
    let url = process.url(&format!("/v1/app/stream/{source}"));
    client.put(url).header("content-type", "text/plain")
}

async fn subscribe_at(client: &Client, process: &Process, session: &str, source: &str) {
    let pair = json!({ "sessionId": session, "streamId": source });
    let answer = answer(client.post(process.url("/v1/app/subscribe")).json(&pair)).await;
    assert!(answer.status().is_success(), "{}", answer.status());
}

async fn content_at(client: &Client, process: &Process, id: &str) -> String {
    let (mut content, mut offset) = (String::new(), "-1".to_owned());
    loop {
        let page = answer(client.get(process.url(&format!("/v1/app/stream/{id}?offset={offset}")))).await;
        assert_eq!(page.status(), 200, "{id}");
        offset = header(&page, "stream-next-offset").to_owned();
        let done = page.headers().contains_key("stream-up-to-date");
        content += &page.text().await.expect("text");
        if done {
            return content;
        }
    }
}

async fn comes_to_have_at(client: &Client, process: &Process, id: &str, expected: &str) {
    let heard = async || content_at(client, process, id).await.len() >= expected.len();
    eventually("it has been delivered", heard).await;
    assert_eq!(content_at(client, process, id).await, expected, "{id}");
}

/// Publishes to a source until the server does not answer any more, each message once or not at all for all we know.
async fn publish_until_killed(client: Client, url: String, publisher: u64, acknowledged: Arc<AtomicU64>) {
    for n in 0.. {
        let request =
            client.post(&url).header("content-type", "text/plain").body(format!("{publisher}:{n},"));
        match request.send().await {
            Ok(answer) => assert_eq!(answer.status(), 204),
            Err(_) => return,
        }
        acknowledged.fetch_add(1, Ordering::SeqCst);
    }
}

/// Kills a server at some moment while many publish, again and again; all sessions have what their source has, in its
/// order, and from where they began.
async fn kill_and_compare(arguments: &[&str], sessions: usize) {
    let client = Client::new();
    let mut process = Process::serve(arguments).await;
    assert_eq!(answer(put(&client, &process, "news")).await.status(), 201);
    let mut begins: BTreeMap<String, usize> = BTreeMap::new();
    for n in 0..sessions {
        subscribe_at(&client, &process, &format!("s{n}"), "news").await;
        begins.insert(format!("s{n}"), 0);
    }
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..rounds() {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let url = process.url("/v1/app/publish/news");
        let publishers: Vec<_> = (0..4)
            .map(|publisher| {
                let (client, acknowledged) = (Client::new(), acknowledged.clone());
                tokio::spawn(publish_until_killed(client, url.clone(), publisher, acknowledged))
            })
            .collect();
        let wanted = rng.u64(1..60);
        while acknowledged.load(Ordering::SeqCst) < wanted {
            tokio::task::yield_now().await;
        }
        process.kill().await;
        for publisher in publishers {
            publisher.await.expect("no panic");
        }
        process = process.restart().await;
        let all = content_at(&client, &process, "news").await;
        let messages = all.split_terminator(',').count() as u64;
        assert!(messages >= acknowledged.load(Ordering::SeqCst), "what was acknowledged is there");
        for (session, &begin) in &begins {
            comes_to_have_at(&client, &process, session, &all[begin..]).await;
        }
        // Somebody else comes in between and hears from here on.
        let late = format!("late{round}");
        subscribe_at(&client, &process, &late, "news").await;
        begins.insert(late, all.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_between_and_during_inline_fan_outs_lose_and_repeat_nothing() {
    kill_and_compare(&[], 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_between_the_append_and_the_followers_delivery_lose_and_repeat_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tidings.toml");
    std::fs::write(&config, "[sessions]\nfanout_queue_threshold = 0\n").expect("written");
    kill_and_compare(&["--config", config.to_str().expect("a path in UTF-8")], 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_subscribers_have_each_message_once_after_a_kill_in_the_middle() {
    let client = Client::new();
    let mut process = Process::serve(&[]).await;
    assert_eq!(answer(put(&client, &process, "news")).await.status(), 201);
    let subscribing: Vec<_> = (0..8)
        .map(|part| {
            let (client, url) = (client.clone(), process.url("/v1/app/subscribe"));
            tokio::spawn(async move {
                for n in (part..1000).step_by(8) {
                    let pair = json!({ "sessionId": format!("s{n}"), "streamId": "news" });
                    assert_eq!(answer(client.post(&url).json(&pair)).await.status(), 201);
                }
            })
        })
        .collect();
    for part in subscribing {
        part.await.expect("no panic");
    }
    for round in 0..3 {
        for n in 0..40 {
            let request =
                client.post(process.url("/v1/app/publish/news")).header("content-type", "text/plain");
            let answer = answer(request.body(format!("{round}.{n},"))).await;
            assert_eq!(told(&answer), left("queued", 1000));
        }
        // The follower has delivered some of it to some of them.
        process.kill().await;
        process = process.restart().await;
    }
    let all = content_at(&client, &process, "news").await;
    assert_eq!(all.split_terminator(',').count(), 120);
    for n in 0..1000 {
        comes_to_have_at(&client, &process, &format!("s{n}"), &all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_subscriptions_touches_and_ends_survive_a_kill() {
    let client = Client::new();
    let mut process = Process::serve(&[]).await;
    for source in ["news", "sport", "gone"] {
        assert_eq!(answer(put(&client, &process, source)).await.status(), 201);
    }
    for (session, source) in
        [("alice", "news"), ("alice", "sport"), ("alice", "gone"), ("bob", "news"), ("carol", "news")]
    {
        subscribe_at(&client, &process, session, source).await;
    }
    let unsubscribe = client.delete(process.url("/v1/app/unsubscribe"));
    let pair = json!({ "sessionId": "alice", "streamId": "news" });
    assert_eq!(answer(unsubscribe.json(&pair)).await.status(), 204);
    for path in ["/v1/app/session/carol", "/v1/app/stream/gone"] {
        assert_eq!(answer(client.delete(process.url(path))).await.status(), 204);
    }
    let touched = body(answer(client.post(process.url("/v1/app/session/alice/touch"))).await).await;
    let before = body(answer(client.get(process.url("/v1/app/session/alice"))).await).await;
    assert_eq!(before["expiresAt"], touched["expiresAt"]);
    process.kill().await;
    process = process.restart().await;
    let after = body(answer(client.get(process.url("/v1/app/session/alice"))).await).await;
    assert_eq!(after, before);
    assert_eq!(after["subscriptions"].as_array().expect("a list").len(), 1);
    assert_eq!(answer(client.get(process.url("/v1/app/session/carol"))).await.status(), 404);
    let publish = |source: &str| {
        let request = client.post(process.url(&format!("/v1/app/publish/{source}")));
        answer(request.header("content-type", "text/plain").body("x"))
    };
    assert_eq!(told(&publish("news").await), inline(1), "bob alone");
    assert_eq!(told(&publish("sport").await), inline(1), "alice alone");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_circuit_is_closed_after_a_restart() {
    let client = Client::new();
    let mut process = Process::serve(&[]).await;
    assert_eq!(answer(put(&client, &process, "news")).await.status(), 201);
    for session in ["alice", "bob"] {
        subscribe_at(&client, &process, session, "news").await;
    }
    let close = client.post(process.url("/v1/app/stream/alice")).header("stream-closed", "true");
    assert_eq!(answer(close).await.status(), 204);
    let publish = async |process: &Process| {
        let request = client.post(process.url("/v1/app/publish/news")).header("content-type", "text/plain");
        told(&answer(request.body("x")).await).0
    };
    for _ in 0..5 {
        assert_eq!(publish(&process).await, "inline");
    }
    assert_eq!(publish(&process).await, "circuit-open");
    process.kill().await;
    process = process.restart().await;
    comes_to_have_at(&client, &process, "bob", "xxxxxx").await;
    // The follower may still be about to say that it is done.
    eventually("the circuit is closed", async || {
        let mode = publish(&process).await;
        assert!(mode == "inline" || mode == "queued", "{mode}");
        mode == "inline"
    })
    .await;
}
