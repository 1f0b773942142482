//! What the contract suites of capabilities run on: a store that can be opened again, and a way to look at it while
//! somebody writes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Logs, Memory, StateMachine};

/// A store under the contract suite of a capability.
pub trait Fixture: Send + 'static {
    /// The store, which holds the tables of the capability.
    type Store: Logs;

    /// The store as it is open now.
    fn store(&self) -> &Self::Store;

    /// Called by each promise between writing and asking. A durable store may write everything to disk, close and open
    /// again here; the answers must not depend on it.
    fn reopen(&mut self) -> BoxFuture<'_, ()>;
}

/// Nothing survives the process, so there is nothing to open again.
impl<T: StateMachine> Fixture for Memory<T> {
    type Store = Self;

    fn store(&self) -> &Self {
        self
    }

    fn reopen(&mut self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Does some work and looks at the store again and again meanwhile, and once more when the work is done.
pub async fn observe<W>(work: impl Future<Output = W>, mut look: impl AsyncFnMut()) -> W {
    let mut work = pin!(work);
    loop {
        let polled = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
        look().await;
        if let Poll::Ready(done) = polled {
            return done;
        }
        tokio::task::yield_now().await;
    }
}
