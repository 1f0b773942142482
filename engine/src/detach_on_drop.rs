//! Writes that go on when their client leaves.
//!
//! Once a commit is in the store's queue it is made, whoever still waits for it. A request that is dropped with its client
//! would never do what follows its commit, and would give back memory that the commit still holds.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

/// A future that is finished by a task of its own if it is dropped after it was first polled. Until then it costs no task.
pub struct DetachOnDrop<T: Send + 'static> {
    /// None when it has finished.
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
        // Without a runtime the server has stopped, and nobody is left to see a difference.
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
