//! Paths, ids and projects.

use serde_json::Value;
use tidings_testing::Harness;
use tidings_testing::http::Method;

async fn refused(server: &Harness, method: Method, path: &str) -> (u16, String) {
    let answer = server.request(method, path).send().await.expect("an answer");
    let status = answer.status().as_u16();
    let body: Value = answer.json().await.expect("errors are JSON");
    assert!(body["error"]["message"].is_string(), "{body}");
    (status, body["error"]["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn a_stream_belongs_to_its_project() {
    let server = Harness::start().await;
    server.create_text("/v1/one/stream/notes").await;
    server.append_text("/v1/one/stream/notes", "of one").await;
    assert_eq!(server.get("/v1/two/stream/notes").await.status(), 404);
    server.create_text("/v1/two/stream/notes").await;
    assert_eq!(server.get("/v1/two/stream/notes").await.text().await.expect("text"), "");
    assert_eq!(server.get("/v1/one/stream/notes").await.text().await.expect("text"), "of one");
}

#[tokio::test]
async fn a_path_without_a_project_is_the_default_project() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/notes").await;
    server.append_text("/v1/_default/stream/notes", "the same").await;
    assert_eq!(server.get("/v1/stream/notes").await.text().await.expect("text"), "the same");
}

#[tokio::test]
async fn a_stream_id_may_have_slashes_and_anything_percent_encoded_but_control_characters() {
    let server = Harness::start().await;
    for path in [
        "/v1/stream/Room-1_a:b.c",
        "/v1/stream/a/b/c",
        "/v1/stream/%C3%BCbung%201",
        "/v1/stream/stream/x",
        "/v1/p/stream/a%2Fb",
    ] {
        server.create_text(path).await;
    }
    assert_eq!(server.get("/v1/p/stream/a/b").await.status(), 200, "an encoded slash is a slash");
    for bad in ["/v1/stream/a%00b", "/v1/stream/a%0Ab", "/v1/stream/%FF"] {
        assert_eq!(refused(&server, Method::PUT, bad).await.0, 400, "{bad}");
    }
    let (longest, longer) = ("x".repeat(512), "x".repeat(513));
    server.create_text(&format!("/v1/stream/{longest}")).await;
    let refusal = refused(&server, Method::PUT, &format!("/v1/stream/{longer}")).await;
    assert_eq!(refusal, (400, "invalid_id".to_owned()));
}

#[tokio::test]
async fn a_malformed_project_is_a_bad_request() {
    let server = Harness::start().await;
    for bad in ["/v1/a.b/stream/x", "/v1/a%20b/stream/x", "/v1/%C3%A4/stream/x"] {
        assert_eq!(refused(&server, Method::PUT, bad).await, (400, "invalid_id".to_owned()), "{bad}");
    }
}

#[tokio::test]
async fn reserved_ids_cannot_be_created() {
    let server = Harness::start().await;
    for path in ["/v1/app/stream/session:alice", "/v1/stream/__ds/other/a", "/v1/stream/__ds"] {
        assert_eq!(refused(&server, Method::PUT, path).await, (400, "reserved_id".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn what_is_not_served_is_told_as_json() {
    let server = Harness::start().await;
    for path in ["/", "/v1", "/v1/stream", "/v1/stream/", "/v1/app/streams/x", "/v2/stream/x"] {
        let (status, code) = refused(&server, Method::GET, path).await;
        assert_eq!((status, code.as_str()), (404, "no_such_path"), "{path}");
    }
    let refusal = refused(&server, Method::PATCH, "/v1/stream/x").await;
    assert_eq!(refusal, (405, "no_such_method".to_owned()));
}

#[tokio::test]
async fn every_answer_has_the_headers_browsers_need() {
    let server = Harness::start().await;
    server.create_text("/v1/stream/a").await;
    let answers = [
        (Method::GET, "/v1/stream/a", 200),
        (Method::GET, "/v1/stream/none", 404),
        (Method::GET, "/nowhere", 404),
        (Method::PATCH, "/v1/stream/a", 405),
        (Method::GET, "/v1/stream/a?offset=x", 400),
        (Method::OPTIONS, "/v1/stream/a", 204),
        (Method::GET, "/health", 200),
    ];
    for (method, path, status) in answers {
        let request = server.request(method.clone(), path).header("origin", "http://localhost:5173");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{method} {path}");
        let headers = answer.headers();
        assert_eq!(headers["x-content-type-options"], "nosniff", "{method} {path}");
        assert_eq!(headers["cross-origin-resource-policy"], "cross-origin", "{method} {path}");
        if !path.starts_with("/v1/") {
            assert!(!headers.contains_key("access-control-allow-origin"), "{path} is of no project");
            continue;
        }
        assert_eq!(headers["access-control-allow-origin"], "*", "{method} {path}");
        let exposed = headers["access-control-expose-headers"].to_str().expect("text");
        assert!(exposed.contains("stream-next-offset") && exposed.contains("producer-expected-seq"));
    }
}

#[tokio::test]
async fn health_needs_nothing() {
    let server = Harness::start().await;
    let body: Value = server.get("/health").await.json().await.expect("JSON");
    assert_eq!(body["status"], "ok");
}
