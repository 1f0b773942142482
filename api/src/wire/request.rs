//! Converts headers and bodies of writes to requests of the capability.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};
use bytes::Bytes;
use tidings_engine::log::{Conditions, Then};
use tidings_model::{Position, Producer, limits};
use tidings_streams::{
    AppendRequest, Body as Content, ContentType, CreateRequest, Expiry, ForkRequest, Retention,
};

use super::{header as names, offset, time};
use crate::error::ApiError;
use crate::path::stream_at;

/// The request of a `PUT`.
pub fn create(headers: &HeaderMap, body: Bytes) -> Result<CreateRequest, ApiError> {
    Ok(CreateRequest {
        // An invalid content type counts as absent.
        content_type: names::text(headers, &header::CONTENT_TYPE).ok().flatten().and_then(ContentType::parse),
        expiry: expiry(headers)?,
        retention: retention(headers)?,
        body,
        then: then(headers),
        fork: fork(headers)?,
    })
}

/// The request of a `POST`.
pub fn append(headers: &HeaderMap, body: Bytes) -> Result<AppendRequest, ApiError> {
    let then = then(headers);
    let body = if body.is_empty() && then == Then::Close {
        Content::Nothing
    } else {
        let text = names::text(headers, &header::CONTENT_TYPE)?;
        let missing =
            || ApiError::bad_request("content_type_required", "an append needs a valid Content-Type");
        Content::Content(text.and_then(ContentType::parse).ok_or_else(missing)?, body)
    };
    let conditions =
        Conditions { producer: producer(headers)?, order: order(headers)?, tail: expected_tail(headers)? };
    Ok(AppendRequest { body, conditions, then })
}

/// The stamp of an idempotent producer: all three headers or none.
pub fn producer(headers: &HeaderMap) -> Result<Option<Producer>, ApiError> {
    let id = names::text(headers, &names::PRODUCER_ID)?;
    let epoch = names::text(headers, &names::PRODUCER_EPOCH)?;
    let sequence = names::text(headers, &names::PRODUCER_SEQ)?;
    match (id, epoch, sequence) {
        (None, None, None) => Ok(None),
        (Some(id), Some(epoch), Some(sequence)) => Ok(Some(Producer::parse(id, epoch, sequence)?)),
        _ => {
            let message = "Producer-Id, Producer-Epoch and Producer-Seq go together";
            Err(ApiError::bad_request("invalid_producer", message))
        }
    }
}

fn order(headers: &HeaderMap) -> Result<Option<Box<str>>, ApiError> {
    match names::text(headers, &names::STREAM_SEQ)? {
        Some(text) if text.len() > limits::STREAM_SEQUENCE_BYTES => {
            let message = format!("Stream-Seq is at most {} bytes", limits::STREAM_SEQUENCE_BYTES);
            Err(ApiError::bad_request("invalid_sequence", message))
        }
        text => Ok(text.map(Box::from)),
    }
}

/// `If-Match: "<offset>"`, quoted or not: the expected tail. `*` only requires that the stream exists.
fn expected_tail(headers: &HeaderMap) -> Result<Option<Position>, ApiError> {
    match names::text(headers, &header::IF_MATCH)? {
        None | Some("*") => Ok(None),
        Some(text) => offset::required("If-Match", text.trim_matches('"')).map(Some),
    }
}

fn then(headers: &HeaderMap) -> Then {
    if names::is_true(headers, &names::STREAM_CLOSED) { Then::Close } else { Then::StayOpen }
}

fn expiry(headers: &HeaderMap) -> Result<Option<Expiry>, ApiError> {
    let ttl = names::text(headers, &names::STREAM_TTL)?;
    let at = names::text(headers, &names::STREAM_EXPIRES_AT)?;
    match (ttl, at) {
        (None, None) => Ok(None),
        (Some(ttl), None) => match whole_number(ttl) {
            Some(seconds) => Ok(Some(Expiry::Idle(Duration::from_secs(seconds)))),
            None => Err(ApiError::bad_request("invalid_ttl", "Stream-TTL is a whole number of seconds")),
        },
        (None, Some(at)) => match time::parse(at) {
            Some(at) => Ok(Some(Expiry::At(at))),
            None => {
                let message = "Stream-Expires-At is a time as in RFC 3339, with `Z` or a numeric zone";
                Err(ApiError::bad_request("invalid_expires_at", message))
            }
        },
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "invalid_expiry",
            "Stream-TTL and Stream-Expires-At exclude each other",
        )),
    }
}

fn retention(headers: &HeaderMap) -> Result<Retention, ApiError> {
    let limit = |name: HeaderName| match names::text(headers, &name)?.map(whole_number) {
        None => Ok(None),
        Some(Some(number)) if number > 0 => Ok(Some(number)),
        Some(_) => {
            Err(ApiError::bad_request("invalid_retention", format!("{name} is a whole number, at least 1")))
        }
    };
    Ok(Retention {
        age: limit(names::STREAM_MAX_AGE)?.map(Duration::from_secs),
        bytes: limit(names::STREAM_MAX_BYTES)?,
        messages: limit(names::STREAM_MAX_MESSAGES)?,
    })
}

fn fork(headers: &HeaderMap) -> Result<Option<ForkRequest>, ApiError> {
    let source = names::text(headers, &names::STREAM_FORKED_FROM)?;
    let at = names::text(headers, &names::STREAM_FORK_OFFSET)?;
    let sub = names::text(headers, &names::STREAM_FORK_SUB_OFFSET)?;
    let Some(source) = source else {
        if at.is_some() || sub.is_some() {
            let message = "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From";
            return Err(ApiError::bad_request("invalid_fork", message));
        }
        return Ok(None);
    };
    let at = at.map(|text| offset::required("Stream-Fork-Offset", text)).transpose()?;
    let sub_offset = match sub.map(whole_number) {
        None => 0,
        Some(Some(number)) => number,
        Some(None) => {
            return Err(ApiError::bad_request("invalid_fork", "Stream-Fork-Sub-Offset is a whole number"));
        }
    };
    if sub_offset > 0 && at.is_none() {
        return Err(ApiError::bad_request("invalid_fork", "Stream-Fork-Sub-Offset needs Stream-Fork-Offset"));
    }
    Ok(Some(ForkRequest { source: stream_at(source)?, offset: at, sub_offset }))
}

/// Parses `0|[1-9][0-9]*` that fits into 64 bits.
fn whole_number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}
