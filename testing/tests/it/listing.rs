//! Which streams a project has: in order, page by page, and only those that can be used.

use std::time::Duration;

use serde_json::{Value, json};
use tidings_testing::http::Method;
use tidings_testing::{Harness, Setup, TestStore};

async fn listed(server: &Harness, path: &str) -> Value {
    let answer = server.get(path).await;
    assert_eq!(answer.status(), 200, "{path}");
    answer.json().await.expect("JSON")
}

fn ids(listing: &Value) -> Vec<&str> {
    let streams = listing["streams"].as_array().expect("an array");
    streams.iter().map(|stream| stream["id"].as_str().expect("an id")).collect()
}

async fn in_both_stores() -> [Harness; 2] {
    let embedded = Setup { store: TestStore::Embedded, ..Setup::default() };
    [Harness::start().await, Harness::with(embedded).await]
}

#[tokio::test]
async fn streams_are_listed_by_id_page_by_page_under_a_prefix() {
    for server in in_both_stores().await {
        for id in ["b", "a/2", "a/10", "a/1", "a", "ä", "c%20d"] {
            server.create_text(&format!("/v1/app/stream/{id}")).await;
        }
        server.create_text("/v1/other/stream/a/3").await;
        let all = listed(&server, "/v1/app/streams").await;
        assert_eq!(ids(&all), ["a", "a/1", "a/10", "a/2", "b", "c d", "ä"]);
        assert!(all.get("nextCursor").is_none());
        let first = listed(&server, "/v1/app/streams?prefix=a/&limit=2").await;
        assert_eq!(ids(&first), ["a/1", "a/10"]);
        let cursor = first["nextCursor"].as_str().expect("there is more");
        let rest = listed(&server, &format!("/v1/app/streams?prefix=a/&limit=2&cursor={cursor}")).await;
        assert_eq!((ids(&rest), rest.get("nextCursor")), (vec!["a/2"], None));
        assert_eq!(ids(&listed(&server, "/v1/nobody/streams?sessions=true").await), [""; 0]);
    }
}

#[tokio::test]
async fn an_entry_tells_type_tail_end_and_times() {
    for server in in_both_stores().await {
        server.create_text("/v1/stream/plain").await;
        let tail = server.append_text("/v1/stream/plain", "x").await;
        let request = server.put("/v1/_default/stream/short").header("stream-ttl", "60");
        let request = request.header("content-type", "application/json").header("stream-closed", "true");
        assert_eq!(request.send().await.expect("an answer").status(), 201);
        let now = 1_763_294_400_123_u64;
        let expected = json!({ "streams": [
            { "id": "plain", "contentType": "text/plain", "nextOffset": tail, "closed": false, "createdAt": now },
            { "id": "short", "contentType": "application/json", "closed": true, "createdAt": now,
              "nextOffset": "0000000000000000_0000000000000000", "expiresAt": now + 60_000 },
        ] });
        assert_eq!(listed(&server, "/v1/_default/streams").await, expected);
    }
}

#[tokio::test]
async fn streams_that_have_ended_are_not_listed() {
    let server = Harness::start().await;
    for id in ["deleted", "held", "kept"] {
        server.create_text(&format!("/v1/stream/{id}")).await;
    }
    let expiring = server.put("/v1/stream/expired").header("stream-ttl", "1").send().await;
    assert_eq!(expiring.expect("an answer").status(), 201);
    let fork = server.put("/v1/stream/fork").header("stream-forked-from", "/v1/stream/held").send().await;
    assert_eq!(fork.expect("an answer").status(), 201);
    for id in ["deleted", "held"] {
        let deleted = server.request(Method::DELETE, &format!("/v1/stream/{id}")).send().await;
        assert_eq!(deleted.expect("an answer").status(), 204);
    }
    server.clock.advance(Duration::from_secs(1));
    let listing = listed(&server, "/v1/_default/streams?limit=2").await;
    assert_eq!((ids(&listing), listing.get("nextCursor")), (vec!["fork", "kept"], None));
}

#[tokio::test]
async fn a_list_that_makes_no_sense_is_refused() {
    let server = Harness::start().await;
    for (query, code) in [
        ("limit=0", "invalid_limit"),
        ("limit=1001", "invalid_limit"),
        ("limit=many", "invalid_limit"),
        ("cursor=!", "invalid_cursor"),
        ("sessions=perhaps", "invalid_query"),
        ("prefix=a&prefix=b", "invalid_query"),
    ] {
        let answer = server.get(&format!("/v1/app/streams?{query}")).await;
        assert_eq!(answer.status(), 400, "{query}");
        let error: Value = answer.json().await.expect("JSON");
        assert_eq!(error["error"]["code"], code, "{query}");
    }
    assert_eq!(server.get("/v1/b%20ad/streams").await.status(), 400);
    assert_eq!(server.post("/v1/app/streams").send().await.expect("an answer").status(), 405);
}
