//! Requests of one connection, one after the other: while one waits for something, those behind it wait, too.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tidings_auth::{Denied, Pass};
use tokio::task::JoinSet;

use crate::live::{Panicked, Running, poll_once};

/// A message of the client.
pub enum Input<T> {
    /// Text, which may be anything.
    Text(T),
    /// Bytes, which no message consists of.
    Binary,
}

/// What became of a token that was verified.
pub type Verified = Result<Result<Pass, Denied>, Panicked>;

/// The requests of one connection. When it is dropped, the one that runs is cancelled.
pub struct Lane<T> {
    tasks: JoinSet<()>,
    shared: Arc<Shared>,
    /// Messages that came while a request ran. There are no more than one read from the socket brings.
    deferred: VecDeque<Input<T>>,
}

/// What the connection shares with its task, and with whoever may ask for its end.
#[derive(Default)]
pub struct Shared {
    /// Whoever sends; woken when there is something to do.
    sender: AtomicWaker,
    is_running: AtomicBool,
    has_verified: AtomicBool,
    verified: Mutex<Option<Verified>>,
    is_taken_over: AtomicBool,
}

impl Shared {
    /// Asks for the connection to be closed, because another one takes its place.
    pub fn take_over(&self) {
        self.is_taken_over.store(true, Ordering::SeqCst);
        self.sender.wake();
    }

    /// Whether another connection takes the place of this one.
    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over.load(Ordering::SeqCst)
    }
}

impl<T> Lane<T> {
    /// A lane on which nothing runs.
    pub fn new() -> Self {
        Self { tasks: JoinSet::new(), shared: Arc::default(), deferred: VecDeque::new() }
    }

    /// What is shared with others.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Runs a request that answers by itself, in a task if it has to wait. If it panics, `failed` answers.
    pub fn run(
        &mut self,
        request: impl Future<Output = ()> + Send + 'static,
        failed: impl FnOnce() + Send + 'static,
    ) {
        match poll_once(request) {
            Ok(Ok(())) => {}
            Ok(Err(Panicked)) => failed(),
            Err(running) => self.drive(running, move |ended| {
                if ended.is_err() {
                    failed();
                }
            }),
        }
    }

    /// Verifies a token. If that has to wait, the result is `None`, and [`verified`](Self::verified) has it later.
    pub fn verify(
        &mut self,
        verifying: impl Future<Output = Result<Pass, Denied>> + Send + 'static,
    ) -> Option<Verified> {
        match poll_once(verifying) {
            Ok(verified) => Some(verified),
            Err(running) => {
                let shared = self.shared.clone();
                self.drive(running, move |verified| {
                    *shared.verified.lock().unwrap_or_else(PoisonError::into_inner) = Some(verified);
                    shared.has_verified.store(true, Ordering::SeqCst);
                });
                None
            }
        }
    }

    fn drive<R: Send + 'static>(
        &mut self,
        running: Running<R>,
        end: impl FnOnce(Result<R, Panicked>) + Send + 'static,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let shared = self.shared.clone();
        shared.is_running.store(true, Ordering::SeqCst);
        self.tasks.spawn(async move {
            let ended = running.await;
            end(ended);
            shared.is_running.store(false, Ordering::SeqCst);
            shared.sender.wake();
        });
    }

    /// The token that was verified meanwhile.
    pub fn verified(&mut self) -> Option<Verified> {
        if !self.shared.has_verified.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.shared.verified.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a message has to wait for a request before it.
    pub fn must_defer(&self) -> bool {
        self.is_busy() || !self.deferred.is_empty()
    }

    /// Keeps a message for later.
    pub fn defer(&mut self, input: Input<T>) {
        self.deferred.push_back(input);
    }

    /// The next message that was kept, if it is its turn.
    pub fn deferred(&mut self) -> Option<Input<T>> {
        if self.is_busy() { None } else { self.deferred.pop_front() }
    }

    /// Whether a verified token or a message waits to be looked at, or the connection is to end.
    pub fn can_go_on(&self) -> bool {
        self.shared.is_taken_over()
            || self.shared.has_verified.load(Ordering::SeqCst)
            || (!self.deferred.is_empty() && !self.is_busy())
    }

    /// Sets who is woken when there is something to do.
    pub fn wake_with(&self, sender: &Waker) {
        self.shared.sender.register(sender);
    }

    /// Cancels what runs, and wakes nobody any more.
    pub fn end(&mut self) {
        self.tasks.abort_all();
        self.deferred.clear();
        drop(self.shared.sender.take());
    }

    fn is_busy(&self) -> bool {
        self.shared.is_running.load(Ordering::SeqCst) || self.shared.has_verified.load(Ordering::SeqCst)
    }
}
