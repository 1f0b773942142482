//! Sessions: publish once, and every subscriber finds it in its own durable stream.

mod access;
mod claims;
mod envelope;
mod fanout;
mod hearing;
mod life;
mod power;
mod registry;
mod store;
mod survival;

use serde_json::{Value, json};
use tidings_testing::http::{Method, RequestBuilder, Response};
use tidings_testing::{Harness, Setup, TestStore, eventually};

/// A server with sessions set in their own way.
async fn server_with(sessions: tidings_sessions::Options) -> Harness {
    Harness::with(Setup { sessions, ..Setup::default() }).await
}

/// The same promises on both stores.
async fn both_stores() -> [Harness; 2] {
    let on = |store| Harness::with(Setup { store, ..Setup::default() });
    [on(TestStore::Memory).await, on(TestStore::Embedded).await]
}

async fn answer(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

async fn body(answer: Response) -> Value {
    answer.json().await.expect("JSON")
}

fn header<'a>(answer: &'a Response, name: &str) -> &'a str {
    let value = answer.headers().get(name).unwrap_or_else(|| panic!("no {name}"));
    value.to_str().expect("plain text")
}

/// The code of an answer that says no with this status.
async fn refused(request: RequestBuilder, status: u16) -> String {
    let answer = answer(request).await;
    assert_eq!(answer.status(), status);
    let body = body(answer).await;
    assert!(body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    body["error"]["code"].as_str().expect("a code").to_owned()
}

async fn create(server: &Harness, id: &str, content_type: &str) {
    let created = server.put(&format!("/v1/app/stream/{id}")).header("content-type", content_type);
    assert_eq!(answer(created).await.status(), 201, "{id}");
}

fn subscribing(server: &Harness, session: &str, source: &str) -> RequestBuilder {
    server.post("/v1/app/subscribe").json(&json!({ "sessionId": session, "streamId": source }))
}

/// Subscribes, and tells what was answered.
async fn subscribe(server: &Harness, session: &str, source: &str) -> Value {
    let answer = answer(subscribing(server, session, source)).await;
    assert!(answer.status().is_success(), "{}", answer.status());
    body(answer).await
}

fn unsubscribing(server: &Harness, session: &str, source: &str) -> RequestBuilder {
    let pair = json!({ "sessionId": session, "streamId": source });
    server.request(Method::DELETE, "/v1/app/unsubscribe").json(&pair)
}

fn publishing(server: &Harness, source: &str, text: &str) -> RequestBuilder {
    let request = server.post(&format!("/v1/app/publish/{source}")).header("content-type", "text/plain");
    request.body(text.to_owned())
}

/// What a publish tells of its fan-out: mode, subscribers, successes, failures.
type Told = (String, usize, usize, usize);

fn told(answer: &Response) -> Told {
    let number = |name| header(answer, name).parse().expect("a number");
    (
        header(answer, "stream-fanout-mode").to_owned(),
        number("stream-fanout-count"),
        number("stream-fanout-successes"),
        number("stream-fanout-failures"),
    )
}

fn inline(count: usize) -> Told {
    ("inline".to_owned(), count, count, 0)
}

fn left(mode: &str, count: usize) -> Told {
    (mode.to_owned(), count, 0, 0)
}

/// Publishes text, which must be accepted.
async fn publish(server: &Harness, source: &str, text: &str) -> Told {
    let answer = answer(publishing(server, source, text)).await;
    assert_eq!(answer.status(), 204);
    told(&answer)
}

/// Everything that a stream or a session has, as text.
async fn content(server: &Harness, id: &str) -> String {
    let mut content = String::new();
    let mut offset = "-1".to_owned();
    loop {
        let page = server.get(&format!("/v1/app/stream/{id}?offset={offset}")).await;
        assert_eq!(page.status(), 200, "{id}");
        offset = header(&page, "stream-next-offset").to_owned();
        let done = page.headers().contains_key("stream-up-to-date");
        content += &page.text().await.expect("text");
        if done {
            return content;
        }
    }
}

/// Waits until a stream has this content.
async fn comes_to_have(server: &Harness, id: &str, expected: &str) {
    eventually("it has been delivered", async || content(server, id).await.len() >= expected.len()).await;
    assert_eq!(content(server, id).await, expected, "{id}");
}

async fn session(server: &Harness, id: &str) -> Value {
    let answer = server.get(&format!("/v1/app/session/{id}")).await;
    assert_eq!(answer.status(), 200, "{id}");
    body(answer).await
}

async fn status(server: &Harness, path: &str) -> u16 {
    server.get(path).await.status().as_u16()
}
