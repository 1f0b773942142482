//! Answers that are usually there at once.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

/// A future that need not be allocated when its result is known already.
pub enum Answer<'a, T> {
    /// The result; `None` after it was taken.
    Now(Option<T>),
    /// The result comes later.
    Later(BoxFuture<'a, T>),
}

impl<'a, T> Answer<'a, T> {
    /// An answer that is known.
    pub fn now(value: T) -> Self {
        Self::Now(Some(value))
    }

    /// An answer that comes later.
    pub fn later(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self::Later(Box::pin(future))
    }
}

// The value is moved out when it is taken and never pinned.
impl<T> Unpin for Answer<'_, T> {}

impl<T> Future for Answer<'_, T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.get_mut() {
            Self::Now(value) => Poll::Ready(value.take().expect("a future is not polled after its end")),
            Self::Later(future) => future.as_mut().poll(cx),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(value) => f.debug_tuple("Now").field(value).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
