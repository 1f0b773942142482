use http_body_util::BodyExt;
use serde_json::json;
use tidings_topics::Sent;

use super::*;

async fn told(result: PublishResult) -> (u16, Value) {
    let response = written(&result);
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, serde_json::from_slice(&body).expect("JSON"))
}

#[tokio::test]
async fn each_failure_has_the_status_of_the_protocol_also_those_of_a_bus() {
    let table = [
        (PublishError::Validation, 400, "VALIDATION", false),
        (PublishError::AclPublish, 403, "ACL_PUBLISH", false),
        (PublishError::State, 409, "STATE", false),
        (PublishError::Backpressure, 429, "BACKPRESSURE", true),
        (PublishError::PayloadTooLarge, 413, "PAYLOAD_TOO_LARGE", false),
        (PublishError::Unsupported, 501, "UNSUPPORTED", false),
        (PublishError::AdapterError, 503, "ADAPTER_ERROR", true),
        (PublishError::ConnectionClosed, 503, "CONNECTION_CLOSED", true),
    ];
    assert_eq!(table.map(|(error, ..)| error), PublishError::ALL);
    for (error, status, code, retryable) in table {
        let failure =
            PublishFailure::new(error).with("known", 7).by("bus").because(Invalid("a cause".into()));
        let expected = json!({
            "ok": false, "error": code, "retryable": retryable, "adapter": "bus",
            "details": { "known": 7 }, "cause": "a cause",
        });
        assert_eq!(told(failure.into()).await, (status, expected));
    }
}

#[tokio::test]
async fn a_publish_that_reached_a_number_that_is_unknown_has_none() {
    let sent = told(Ok(Sent::unknown()).into()).await;
    assert_eq!(sent, (200, json!({ "ok": true, "capability": "unknown" })));
}

#[tokio::test]
async fn the_answer_to_a_success_is_that_of_the_protocol_byte_for_byte() {
    for sent in [Sent::exact(0), Sent::exact(u64::MAX), Sent::at_least(7), Sent::unknown()] {
        let result = PublishResult::Sent(sent);
        let response = written(&result);
        assert_eq!((response.status(), response.headers().len()), (StatusCode::OK, 1));
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body, result.to_json().to_string());
    }
}
