//! Time limits of a request.

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tidings_engine::Clock;

use crate::error::{Phase, SendError};

/// The moment by which something must be done.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    clock: &'a dyn Clock,
    /// Time from the beginning to the deadline.
    after: Duration,
    /// What [`Clock::elapsed`] will be at the deadline.
    end: Duration,
}

/// Wakes whoever waits when a deadline is reached. It starts when it is first polled.
pub(crate) struct Timer<'a> {
    deadline: Deadline<'a>,
    sleep: Option<BoxFuture<'static, ()>>,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, after: Duration) -> Self {
        Self { clock, after, end: clock.elapsed().saturating_add(after) }
    }

    /// The deadline of a part that begins now and may take `after`, but not longer than the whole.
    pub(crate) fn part(self, after: Duration) -> Self {
        let part = Self::new(self.clock, after);
        if part.end < self.end { part } else { self }
    }

    /// Time that is left.
    pub(crate) fn left(self) -> Duration {
        self.end.saturating_sub(self.clock.elapsed())
    }

    /// The error of a request that reached the deadline.
    pub(crate) fn reached(self, phase: Phase) -> SendError {
        SendError::Timeout { phase, after: self.after }
    }

    pub(crate) fn timer(self) -> Timer<'a> {
        Timer { deadline: self, sleep: None }
    }

    /// Runs a future until the deadline, for at most `1 / parts` of the time that is left. `None` means that the time is
    /// over.
    pub(crate) async fn limit<T>(self, parts: u32, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        let mut timer = self.part(self.left() / parts).timer();
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => timer.poll(cx).map(|()| None),
        })
        .await
    }
}

impl Timer<'_> {
    /// The deadline that is waited for.
    pub(crate) fn deadline(&self) -> Deadline<'_> {
        self.deadline
    }

    /// Whether the deadline is reached.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        self.sleep.get_or_insert_with(|| deadline.clock.sleep(deadline.left())).as_mut().poll(cx)
    }
}
