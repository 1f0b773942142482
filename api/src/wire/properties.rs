//! Property tests: anything that a client can send is understood or refused with an error of the client.

use axum::extract::FromRequestParts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::FutureExt;
use proptest::prelude::*;
use tidings_engine::log::Then;
use tidings_streams::{ContentType, Expiry};

use super::query::ReadQuery;
use super::{header as names, offset, request, time};
use crate::error::ApiError;
use crate::path::stream_at;

const HEADERS: [HeaderName; 11] = [
    names::PRODUCER_ID,
    names::PRODUCER_EPOCH,
    names::PRODUCER_SEQ,
    names::STREAM_CLOSED,
    names::STREAM_EXPIRES_AT,
    names::STREAM_FORKED_FROM,
    names::STREAM_FORK_OFFSET,
    names::STREAM_FORK_SUB_OFFSET,
    names::STREAM_SEQ,
    names::STREAM_TTL,
    axum::http::header::IF_MATCH,
];

/// Values that are valid, nearly valid, or anything that a header can hold.
fn header_value() -> impl Strategy<Value = HeaderValue> {
    let bytes = prop_oneof![
        prop::sample::select(vec!["", "0", "true", "-1", "now", "18446744073709551615", "/v1/stream/a", "*"])
            .prop_map(|text| text.as_bytes().to_vec()),
        "[0-9]{15,17}_[0-9]{15,17}".prop_map(String::into_bytes),
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\\.[0-9]{1,12})?(Z|[+-][0-9]{2}:[0-9]{2})"
            .prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    bytes.prop_filter_map("a header's value", |bytes| HeaderValue::from_bytes(&bytes).ok())
}

fn headers() -> impl Strategy<Value = HeaderMap> {
    let one = (prop::sample::select(HEADERS.to_vec()), header_value());
    prop::collection::vec(one, 0..8).prop_map(|all| {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.append(name, value);
        }
        headers
    })
}

/// Whether an error blames the client.
fn is_the_clients(error: ApiError) -> bool {
    error.into_response().status() == StatusCode::BAD_REQUEST
}

fn query(text: &str) -> Option<Result<ReadQuery, ApiError>> {
    let request = Request::get(format!("http://x/v1/stream/a?{text}")).body(()).ok()?;
    let (mut parts, ()) = request.into_parts();
    ReadQuery::from_request_parts(&mut parts, &()).now_or_never()
}

proptest! {
    #[test]
    fn headers_of_a_write_are_understood_or_refused(headers in headers(), body in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut headers = headers;
        if let Err(error) = request::create(&headers, Bytes::from(body.clone())) {
            prop_assert!(is_the_clients(error));
        }
        headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        match request::append(&headers, Bytes::from(body)) {
            Err(error) => prop_assert!(is_the_clients(error)),
            Ok(wanted) => {
                let stamps = [names::PRODUCER_ID, names::PRODUCER_EPOCH, names::PRODUCER_SEQ];
                let sent = stamps.iter().filter(|name| headers.contains_key(*name)).count();
                prop_assert_eq!(wanted.conditions.producer.is_some(), sent == 3, "all of a stamp or none");
                let closes = headers.get_all(names::STREAM_CLOSED).iter().any(|value| value == "true");
                prop_assert!(wanted.then == Then::StayOpen || closes);
            }
        }
    }

    #[test]
    fn a_time_to_live_is_kept_to_the_second(seconds in any::<u64>()) {
        let mut headers = HeaderMap::new();
        headers.insert(names::STREAM_TTL, seconds.into());
        let wanted = request::create(&headers, Bytes::new()).expect("a whole number");
        match wanted.expiry {
            Some(Expiry::Idle(ttl)) => prop_assert_eq!(ttl.as_secs(), seconds),
            other => prop_assert!(false, "{other:?}"),
        }
    }

    #[test]
    fn a_query_is_understood_or_refused(text in "[ -~]{0,60}") {
        if let Some(Err(error)) = query(&text) {
            prop_assert!(is_the_clients(error));
        }
    }

    #[test]
    fn parameters_that_nobody_knows_do_not_matter(name in "[a-z]{8,12}", value in "[a-z0-9%]{0,20}") {
        let plain = query("offset=now").expect("a query").expect("understood");
        let valid = !value.contains('%');
        if let Some(Ok(read)) = query(&format!("{name}={value}&offset=now")) {
            prop_assert_eq!(read, plain);
        } else {
            prop_assert!(!valid, "{}={}", name, value);
        }
    }

    #[test]
    fn an_offset_is_what_was_printed_and_nothing_else(text in "[0-9_ +-]{0,36}") {
        if let Some(position) = offset::parse(&text) {
            prop_assert_eq!(offset::print(position), text);
        }
    }

    #[test]
    fn a_moment_that_is_read_is_written_as_the_same_moment(text in "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{1,9})?(Z|[+-][0-2][0-9]:[0-5][0-9])") {
        if let Some(at) = time::parse(&text) {
            prop_assert_eq!(time::parse(&time::print(at)), Some(at), "{}", text);
        }
    }

    #[test]
    fn the_path_of_a_source_is_understood_or_refused(path in "(/v1)?(/[a-z_.%]{0,6})?(/stream)?/[ -~]{0,20}") {
        if let Err(error) = stream_at(&path) {
            prop_assert!(is_the_clients(error));
        }
    }

    #[test]
    fn a_content_type_is_kept_as_it_was_written(text in "[ -~]{0,40}") {
        if let Some(content_type) = ContentType::parse(&text) {
            prop_assert_eq!(content_type.as_str(), text.trim());
            prop_assert!(content_type.same_media_type(&content_type));
            prop_assert!(HeaderValue::from_str(content_type.as_str()).is_ok(), "it goes back into a header");
        }
    }

    #[test]
    fn json_is_cut_into_messages_that_join_to_the_same(values in prop::collection::vec(json(), 1..6)) {
        let body = serde_json::Value::Array(values.clone()).to_string();
        let content_type = ContentType::parse("application/json").expect("valid");
        let messages = content_type.messages(Bytes::from(body)).expect("valid JSON");
        prop_assert_eq!(messages.len(), values.len());
        for (message, value) in messages.iter().zip(&values) {
            prop_assert_eq!(&serde_json::from_slice::<serde_json::Value>(message).expect("JSON"), value);
        }
    }

    #[test]
    fn bytes_that_are_no_json_are_refused_and_never_panic(body in prop::collection::vec(any::<u8>(), 0..60)) {
        let content_type = ContentType::parse("application/json").expect("valid");
        let is_json = serde_json::from_slice::<serde_json::Value>(&body).is_ok();
        let cut = content_type.messages(Bytes::from(body));
        prop_assert!(is_json || cut.is_err());
    }
}

/// JSON values whose numbers survive writing and reading.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,10}".prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("\\PC{0,4}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}
