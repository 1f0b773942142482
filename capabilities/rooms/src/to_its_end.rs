use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Something that is done also if whoever waits for it goes away. Until then it costs no task.
pub(crate) struct ToItsEnd<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> ToItsEnd<T> {
    pub(crate) fn new(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Some(work.boxed()))
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let work = self.0.as_mut().expect("not polled after its end");
        let done = work.poll_unpin(cx);
        if done.is_ready() {
            self.0 = None;
        }
        done
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
    fn drop(&mut self) {
        // Without a runtime the server has stopped, and nobody is left to see a difference.
        if let (Some(work), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn it_goes_on_when_nobody_waits_any_more() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut work = ToItsEnd::new(async move {
            gone.await.expect("it is told");
            done.send(7).expect("somebody listens");
        });
        assert!((&mut work).now_or_never().is_none());
        drop(work);
        go.send(()).expect("it is still there");
        assert_eq!(is_done.await, Ok(7));
        assert_eq!(ToItsEnd::new(async { 8 }).await, 8);
    }
}
