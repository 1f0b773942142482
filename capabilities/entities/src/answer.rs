//! What an operation came to, and what happens once the client is told.

use std::ops::Deref;

use tidings_engine::deliver::FrameChunks;
use tokio::sync::OwnedMutexGuard;

use crate::cursor::Cursor;
use crate::entity::EntityId;
use crate::registry::Noted;
use crate::source::ResyncReason;
use crate::watch::Watch;

/// What an operation came to. Changes that belong to it are held until the answer is [sent](Self::send), and the next
/// operation of the connection waits as long.
#[must_use = "the client is not told, and nothing of what it subscribed to is noted"]
pub struct Answer<T> {
    value: T,
    end: End,
    noted: Option<Noted>,
    _turn: OwnedMutexGuard<()>,
}

/// Ends the hold of an operation when it is dropped.
struct End {
    watch: Watch,
    hold: Option<u64>,
}

/// What a subscribe came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribed {
    /// Number of subscriptions of the request that there are now, also if they were there before.
    pub count: usize,
    /// Cursor from which the client can resume what it subscribed to.
    pub cursor: Cursor,
    /// Ids that are not allowed.
    pub denied: Vec<EntityId>,
    /// Why the client has to fetch everything of the type again; to be told before the subscribe is answered.
    pub resync: Option<ResyncReason>,
}

/// What an unsubscribe came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribed {
    /// Number of subscriptions that were ended.
    pub count: usize,
}

impl<T> Answer<T> {
    pub(crate) fn new(
        value: T,
        watch: Watch,
        turn: OwnedMutexGuard<()>,
        hold: Option<u64>,
        noted: Option<Noted>,
    ) -> Self {
        Self { value, end: End { watch, hold }, noted, _turn: turn }
    }

    /// Sends replies that tell the client. What it is to be told of its subscriptions follows them.
    pub async fn send<R: Into<FrameChunks>>(self, replies: impl IntoIterator<Item = R>) {
        let Self { end, noted, _turn, .. } = self;
        let watch = end.watch.clone();
        let mut waker = None;
        for reply in replies {
            waker = watch.queue_reply(reply).or(waker);
        }
        drop(end);
        if let Some(waker) = waker {
            waker.wake();
        }
        if let Some(noted) = noted {
            watch.hub.registry.note(noted).await;
        }
    }
}

impl<T> Deref for Answer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let Some(hold) = self.hold else { return };
        let hub = &self.watch.hub;
        let mut state = hub.lock();
        let wakers = hub.release(&mut state, self.watch.slot, hold);
        drop(state);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}
