//! Requests of one connection that wait for something: each goes on in a task of its own.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;
use tidings_auth::{Denied, Pass};
use tidings_model::limits;
use tidings_topics::CancellationToken;
use tokio::task::JoinSet;

use super::error::WireError;
use super::operation::Outcome;
use super::speaker::{Asked, Speaker};
use crate::live::{Panicked, Running};
use crate::websocket::Text;

/// A frame of the client.
pub enum Input {
    Text(Text),
    Binary(Bytes),
}

impl Input {
    /// The bytes of the frame.
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Text(text) => text.bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

/// What became of a token.
pub type Entered = Result<Result<Pass, Denied>, Panicked>;

/// The requests of one connection that wait for something. When it is dropped, they are cancelled; what has called a
/// driver runs to its end.
#[derive(Default)]
pub struct Waiting {
    tasks: JoinSet<()>,
    shared: Arc<Shared>,
    /// The `$auth` that is waited for.
    authenticating: Option<Asked>,
    /// Frames that came after it. There are no more than one read from the socket brings.
    deferred: VecDeque<Input>,
}

/// What tasks and connection share.
#[derive(Default)]
struct Shared {
    running: AtomicUsize,
    cancels: Mutex<Vec<Cancel>>,
    has_entered: AtomicBool,
    entered: Mutex<Option<Entered>>,
}

/// How a request can be cancelled.
struct Cancel {
    correlation_id: Box<str>,
    token: CancellationToken,
}

impl Waiting {
    /// Drives a request in a task, which answers it.
    pub fn drive(
        &mut self,
        speaker: Speaker,
        asked: Asked,
        cancel: Option<CancellationToken>,
        running: Running<Result<Outcome, WireError>>,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let shared = self.shared.clone();
        shared.running.fetch_add(1, Ordering::SeqCst);
        if let (Some(correlation_id), Some(token)) = (asked.correlation_id.clone(), cancel) {
            shared.cancels().push(Cancel { correlation_id, token });
        }
        self.tasks.spawn(async move {
            let ended = running.await;
            if let Some(correlation_id) = &asked.correlation_id {
                shared.forget(correlation_id);
            }
            let waker = speaker.answer(&asked, ended);
            shared.running.fetch_sub(1, Ordering::SeqCst);
            wake(waker);
        });
    }

    /// Drives the verification of a token in a task. Until it is done, all frames are deferred.
    pub fn authenticate(&mut self, speaker: Speaker, asked: Asked, entering: Running<Result<Pass, Denied>>) {
        while self.tasks.try_join_next().is_some() {}
        self.authenticating = Some(asked);
        let shared = self.shared.clone();
        self.tasks.spawn(async move {
            let entered = entering.await;
            *shared.entered.lock().unwrap_or_else(PoisonError::into_inner) = Some(entered);
            shared.has_entered.store(true, Ordering::SeqCst);
            // Nothing is said, but whoever sends looks what there is to do.
            wake(speaker.topics.queue_reply(Bytes::new()));
        });
    }

    /// Cancels the requests with this id. Those that have taken effect already go on.
    pub fn cancel(&self, correlation_id: &str) {
        let cancels = self.shared.cancels();
        let named = cancels.iter().filter(|cancel| *cancel.correlation_id == *correlation_id);
        let tokens: Vec<_> = named.map(|cancel| cancel.token.clone()).collect();
        drop(cancels);
        tokens.iter().for_each(CancellationToken::cancel);
    }

    /// Whether a frame has to wait for those before it.
    pub fn must_defer(&self) -> bool {
        self.authenticating.is_some() || !self.deferred.is_empty()
    }

    /// Keeps a frame for later.
    pub fn defer(&mut self, input: Input) {
        self.deferred.push_back(input);
    }

    /// Whether more may be read from the client.
    pub fn has_room(&self) -> bool {
        !self.must_defer() && self.shared.running.load(Ordering::SeqCst) < limits::TOPIC_REQUESTS_IN_FLIGHT
    }

    /// Whether a token was verified, or a deferred frame can be handled.
    pub fn can_go_on(&self) -> bool {
        match self.authenticating {
            Some(_) => self.shared.has_entered.load(Ordering::SeqCst),
            None => !self.deferred.is_empty(),
        }
    }

    /// The `$auth` whose token was verified.
    pub fn authenticated(&mut self) -> Option<(Asked, Entered)> {
        self.authenticating.as_ref()?;
        let entered = self.shared.entered.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.shared.has_entered.store(false, Ordering::SeqCst);
        Some((self.authenticating.take()?, entered))
    }

    /// The next deferred frame.
    pub fn deferred(&mut self) -> Option<Input> {
        if self.authenticating.is_some() { None } else { self.deferred.pop_front() }
    }

    /// Whether nothing waits any more.
    pub fn is_idle(&self) -> bool {
        !self.must_defer() && self.shared.running.load(Ordering::SeqCst) == 0
    }
}

impl Shared {
    fn cancels(&self) -> MutexGuard<'_, Vec<Cancel>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, correlation_id: &str) {
        let mut cancels = self.cancels();
        if let Some(at) = cancels.iter().position(|cancel| *cancel.correlation_id == *correlation_id) {
            cancels.swap_remove(at);
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests;
