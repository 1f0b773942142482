//! The wait of a long-poll: until there is something to respond with, the time is over or the server stops.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use tidings_auth::{Denied, Pass};
use tidings_engine::deliver::{Frame, Step, Subscription};

use crate::Api;
use crate::error::ApiError;
use crate::wire::{cursor, header as names};

/// Waits for a frame with records, or with the end of the stream. After the timeout it is the last frame without; `None`
/// means that the subscription ended: whoever reads then is told how.
pub async fn wait(
    api: &Api,
    pass: &Pass,
    subscription: &mut Subscription,
) -> Result<Option<Frame>, ApiError> {
    let clock = api.streams.clock();
    let timeout = clock.sleep(api.streams.options().long_poll_timeout);
    let _counted = api.observe.long_poll_readers.hold();
    let mut drained = api.drained.clone();
    // What is there is waited for, however long the disk takes; only what is not there yet has its time.
    let mut last = None;
    let first = subscription.next(0, |frame| last = Some(frame.clone())).await;
    let told = first != Step::Frames || last.as_ref().is_some_and(is_news);
    let step = tokio::select! {
        biased;
        () = std::future::ready(()), if told => first,
        () = pass.ended(&**clock) => return Err(Denied::Revoked.into()),
        step = news(subscription, &mut last) => step,
        () = timeout => Step::Frames,
        () = drained.wait() => Step::Frames,
    };
    Ok(last.filter(|_| step == Step::Frames))
}

/// Puts the cursor for the next long-poll, and makes the response if there is nothing to tell.
pub fn finish(api: &Api, asked: Option<u64>, frame: &Frame, headers: &mut HeaderMap) -> Option<Response> {
    let cursor = cursor::next(api.streams.clock().now(), asked, &api.rng);
    headers.insert(names::STREAM_CURSOR, cursor.into());
    (frame.records == 0).then(|| {
        headers.remove(header::CONTENT_TYPE);
        (StatusCode::NO_CONTENT, std::mem::take(headers)).into_response()
    })
}

/// Waits until there are records or the subscription ends. `last` holds the last frame that was read.
async fn news(subscription: &mut Subscription, last: &mut Option<Frame>) -> Step {
    loop {
        match subscription.next(0, |frame| *last = Some(frame.clone())).await {
            Step::Frames if !last.as_ref().is_some_and(is_news) => {}
            end => return end,
        }
    }
}

/// Whether a read found something to respond with: records, or the end of the stream.
fn is_news(frame: &Frame) -> bool {
    frame.records > 0 || frame.closed
}
