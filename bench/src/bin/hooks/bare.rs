//! The baseline: signed POSTs over connections of the HTTP library, with nothing else around them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderValue};
use tidings_bench::{Cost, Failed, Posts};
use tidings_hooks::{Secret, Secrets};
use tidings_model::Timestamp;
use tokio::task::JoinSet;

use super::sink;

const ANSWER_BYTES: usize = 11;

/// Sends for some time on so many connections, from as many threads as the server has.
pub fn run(address: SocketAddr, connections: usize, lasting: Duration) -> Result<Cost, Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let event = super::server::event("load.one", 1234, "2026-11-16T17:34:37.755Z");
    let body = format!("{{\"id\":\"01K2M9Q1G7V3W8XH4ZB6N5T0RC\",\"type\":\"load.one\",\"payload\":{event}}}");
    let body = Bytes::from(body);
    let secrets = Arc::new(Secrets { current: Secret::from_bytes(&[7; 32]), previous: None });
    runtime.block_on(async {
        let posts = Posts::default();
        let mut senders = JoinSet::new();
        for _ in 0..connections {
            let (secrets, signed) = (secrets.clone(), body.clone());
            let headers = move || headers(&secrets, &signed);
            senders.spawn(posts.clone().send_bare(address, "/ok", body.clone(), ANSWER_BYTES, headers));
        }
        Ok(posts.measure(senders, lasting).await?)
    })
}

/// Headers as those of a webhook, signed anew.
fn headers(secrets: &Secrets, body: &[u8]) -> io::Result<HeaderMap> {
    const ID: &str = "01K2M9Q1G7V3W8XH4ZB6N5T0RC";
    let now = Timestamp::from_millis(sink::now() / 1_000_000);
    let signature = secrets.sign(ID, now.as_millis() / 1000, body, now);
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert("user-agent", HeaderValue::from_static("tidings"));
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("webhook-id", HeaderValue::from_static(ID));
    headers.insert("webhook-timestamp", HeaderValue::from(now.as_millis() / 1000));
    headers.insert("webhook-signature", HeaderValue::try_from(signature).map_err(io::Error::other)?);
    Ok(headers)
}
