//! Requests of live connections that may have to wait: polled once at once, and only then driven by a task.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;

/// A request has failed because of a fault in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panicked;

/// A request that is not done yet.
pub type Running<T> = Pin<Box<dyn Future<Output = Result<T, Panicked>> + Send>>;

/// Polls a request once: most are done then.
pub fn poll_once<T: 'static>(
    request: impl Future<Output = T> + Send + 'static,
) -> Result<Result<T, Panicked>, Running<T>> {
    let caught = AssertUnwindSafe(request).catch_unwind();
    let mut running: Running<T> = Box::pin(caught.map(|ended| {
        ended.map_err(|_| {
            tracing::error!("a request of a live connection panicked");
            Panicked
        })
    }));
    match running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ended) => Ok(ended),
        Poll::Pending => Err(running),
    }
}
