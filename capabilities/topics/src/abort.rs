//! Waiting with an end: cancellation, a timeout, and the end of the connection.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, OptionFuture};
use tidings_engine::Clock;
use tokio_util::sync::CancellationToken;

use crate::error::{AbortReason, Aborted, MutateError, PubSubError};
use crate::inner::Inner;

/// A timeout that begins to run when it is first needed, and runs on over several waits.
pub(crate) struct Timer<'a> {
    clock: &'a dyn Clock,
    after: Option<Duration>,
    running: Option<BoxFuture<'static, ()>>,
}

/// Why a wait has ended early.
pub(crate) enum Stop {
    Closed,
    Aborted(AbortReason),
}

impl<'a> Timer<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, after: Option<Duration>) -> Self {
        Self { clock, after, running: None }
    }
}

impl Stop {
    /// The error of an operation; `changed` is whether it may have changed something.
    pub(crate) fn into_error(self, changed: Option<bool>) -> MutateError {
        match self {
            Self::Closed => PubSubError::closed().into(),
            Self::Aborted(reason) => Aborted { reason, changed }.into(),
        }
    }
}

/// Waits for a future, but not longer than the connection, the token and the timer allow. Nothing is registered
/// anywhere if the future is ready at once.
pub(crate) async fn within<F: Future>(
    inner: &Inner,
    work: F,
    cancel: Option<&CancellationToken>,
    timer: &mut Timer<'_>,
) -> Result<F::Output, Stop> {
    let mut work = pin!(work);
    if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        return Ok(output);
    }
    let mut closed = pin!(inner.closing.notified());
    closed.as_mut().enable();
    if inner.is_closed() {
        return Err(Stop::Closed);
    }
    let mut cancelled = pin!(OptionFuture::from(cancel.map(CancellationToken::cancelled)));
    if timer.running.is_none()
        && let Some(after) = timer.after
    {
        timer.running = Some(timer.clock.sleep(after));
    }
    poll_fn(|cx| {
        if let Poll::Ready(output) = work.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Stop::Closed));
        }
        if cancel.is_some() && cancelled.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Stop::Aborted(AbortReason::Cancelled)));
        }
        if let Some(timer) = &mut timer.running
            && timer.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(Stop::Aborted(AbortReason::TimedOut)));
        }
        Poll::Pending
    })
    .await
}
