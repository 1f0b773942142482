//! API keys that are given by the configuration.

use serde_json::json;
use tempfile::{NamedTempFile, TempDir};
use tidings_testing::http::{Client, RequestBuilder};
use tidings_testing::{Process, binary};

const KEY: &str = "ns_my_shop_hunter2hunter2hunter2";

fn configuration(text: &str) -> (NamedTempFile, String) {
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let path = file.path().to_str().expect("a path in UTF-8").to_owned();
    (file, path)
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn an_api_key_of_the_configuration_publishes_to_its_project_and_is_never_logged() {
    let keys = format!(
        "[auth]\napi_keys = ['{KEY}', 'ns_other_0123456789abcdef']\nadmin_key = 'the-admin-key-of-it'"
    );
    let (_file, path) = configuration(&keys);
    let data = TempDir::new().expect("a folder");
    let server = Process::serve_guarded(data, &["--config", &path, "--log", "trace"]).await;
    let client = Client::new();
    let stream = server.url("/v1/my_shop/stream/orders");
    let put = client.put(&stream).header("content-type", "text/plain");
    assert_eq!(status(put.bearer_auth("the-admin-key-of-it")).await, 201);
    let publish = |key: &str| {
        let publish =
            client.post(server.url("/v1/my_shop/publish/orders")).header("content-type", "text/plain");
        status(publish.body("x").bearer_auth(key))
    };
    assert_eq!(publish(KEY).await, 204);
    assert_eq!(publish("ns_my_shop_hunter2hunter2hunter3").await, 401);
    assert_eq!(publish("ns_other_0123456789abcdef").await, 403);
    assert_eq!(status(client.get(&stream).bearer_auth(KEY)).await, 403);
    let by_query = client.post(server.url(&format!("/v1/my_shop/publish/orders?token={KEY}")));
    assert_eq!(status(by_query.header("content-type", "text/plain").body("y")).await, 204);
    // It submits events and manages hooks in its project, and in no other.
    let post = async |path: &str, body: serde_json::Value| {
        let answer =
            client.post(server.url(path)).bearer_auth(KEY).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("text"))
    };
    let (accepted, told) = post("/e", json!({ "events": [] })).await;
    assert_eq!((accepted, &*told), (200, r#"{"ok":true,"received":0,"namespace":"my_shop"}"#));
    let hook = json!({ "workerId": "w", "pattern": "webhook.*", "rpcMethod": "m" });
    let (created, told) = post("/subscriptions/subscribe", hook.clone()).await;
    assert!(created == 200 && told.contains(r#""shard":"my_shop:webhook""#), "{told}");
    assert_eq!(
        post("/v1/my_shop/hooks", json!({ "url": "https://a.example/", "pattern": "a" })).await.0,
        201
    );
    for path in ["/v1/other/events", "/v1/other/hooks"] {
        let (refused, told) = post(path, hook.clone()).await;
        assert!(refused == 403 && !told.contains("hunter2"), "{path}: {refused} {told}");
    }
    let list =
        client.get(server.url("/subscriptions/list")).bearer_auth(KEY).send().await.expect("an answer");
    assert!(!list.text().await.expect("text").contains("hunter2"));
    let list = client.get(server.url("/subscriptions/list")).bearer_auth("the-admin-key-of-it");
    assert_eq!(status(list).await, 200);
    let log = server.log();
    assert!(log.contains("answered") && !log.contains("hunter2"), "{log}");
}

#[tokio::test]
async fn a_server_with_nothing_but_an_api_key_starts_and_one_with_a_wrong_key_says_where_it_is() {
    let (_file, path) = configuration(&format!("[auth]\napi_keys = ['{KEY}']"));
    let server = Process::serve_guarded(TempDir::new().expect("a folder"), &["--config", &path]).await;
    let publish =
        Client::new().post(server.url("/v1/my_shop/publish/orders")).header("content-type", "text/plain");
    assert_eq!(status(publish.body("x").bearer_auth(KEY)).await, 404, "let in, but there is no stream");
    let (_file, path) = configuration(&format!("[auth]\n# keys\napi_keys = ['{KEY}', 'ns_shop_hunter2']"));
    let check =
        tokio::process::Command::new(binary()).args(["check-config", "--config", &path]).output().await;
    let told = check.expect("it runs");
    let stderr = String::from_utf8(told.stderr).expect("text");
    let what = "auth.api_keys has a wrong key, number 2: the token of an API key is at least 16 bytes";
    assert!(!told.status.success() && stderr.contains(&format!("{path}:3: {what}")), "{stderr}");
    assert!(!stderr.contains("hunter2"), "{stderr}");
}
