//! Writes that go on when their client leaves.
//!
//! Once a commit is in the store's queue it is made, whoever still waits for it. If the request were dropped with its client,
//! what it holds would be forgotten while it is still there: the memory reserved for its body would be given away a second time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

/// Does something to its end, also if nobody waits for it any more once it has begun.
pub fn to_the_end<T: Send + 'static>(write: impl Future<Output = T> + Send + 'static) -> ToTheEnd<T> {
    ToTheEnd { write: Some(Box::pin(write)), begun: false }
}

/// Something that is done to its end.
pub struct ToTheEnd<T: Send + 'static> {
    /// None when it is done.
    write: Option<BoxFuture<'static, T>>,
    begun: bool,
}

impl<T: Send + 'static> Future for ToTheEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.begun = true;
        let write = self.write.as_mut().expect("it is not asked again after its end");
        let done = ready!(write.as_mut().poll(cx));
        self.write = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for ToTheEnd<T> {
    fn drop(&mut self) {
        if let Some(write) = self.write.take().filter(|_| self.begun)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move { drop(write.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn what_has_begun_is_done_although_nobody_waits_for_it() {
        let (allow, allowed) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut write = to_the_end(async move {
            allowed.await.expect("it is allowed");
            done.send(()).expect("the test waits");
        });
        assert!((&mut write).now_or_never().is_none());
        drop(write);
        allow.send(()).expect("it goes on");
        is_done.await.expect("it was done");
    }

    #[tokio::test]
    async fn what_has_not_begun_is_not_done() {
        let (done, is_done) = oneshot::channel::<()>();
        drop(to_the_end(async move { done.send(()) }));
        assert!(is_done.await.is_err());
    }
}
