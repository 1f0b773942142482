//! The head of an HTTP/1.1 response as it goes over the wire, for sockets that hyper does not have.

use axum::http::{HeaderMap, StatusCode};
use bytes::{BufMut, Bytes, BytesMut};

/// Writes a status line and headers, up to and including the empty line.
pub fn response_head(status: StatusCode, headers: &HeaderMap) -> Bytes {
    let mut out = BytesMut::with_capacity(1024);
    let reason = status.canonical_reason().unwrap_or_default();
    out.put_slice(format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).as_bytes());
    for (name, value) in headers {
        out.put_slice(name.as_str().as_bytes());
        out.put_slice(b": ");
        out.put_slice(value.as_bytes());
        out.put_slice(b"\r\n");
    }
    out.put_slice(b"\r\n");
    out.freeze()
}
