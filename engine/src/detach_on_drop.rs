//! Writes that go on when their client disconnects.
//!
//! A commit in the store's queue is made whether or not anybody still waits for it. If the request's future
//! were simply dropped, the work that follows the commit would never be done, and memory that the commit
//! still uses would be counted as free.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

/// A future that continues in a task of its own if it is dropped after its first poll. No task is spawned
/// otherwise.
pub struct DetachOnDrop<T: Send + 'static> {
    /// `None` once the future has completed.
    work: Option<BoxFuture<'static, T>>,
    begun: bool,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Wraps a future.
    pub fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), begun: false }
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let work = self.work.as_mut().expect("a future is not polled after its end");
        let done = ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        // Without a runtime the process is stopping, and nobody is left to notice.
        if let Some(work) = self.work.take().filter(|_| self.begun)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_that_has_begun_is_finished_although_nobody_waits_for_it() {
        let (allow, allowed) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = DetachOnDrop::new(async move {
            allowed.await.expect("it is allowed");
            done.send(7).expect("the test waits");
        });
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        allow.send(()).expect("it goes on");
        assert_eq!(is_done.await, Ok(7));
        assert_eq!(DetachOnDrop::new(async { 8 }).await, 8);
    }

    #[tokio::test]
    async fn work_that_has_not_begun_is_not_done() {
        let (done, is_done) = oneshot::channel::<()>();
        drop(DetachOnDrop::new(async move { done.send(()) }));
        assert!(is_done.await.is_err());
    }
}
