//! What a change of subscriptions comes to.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tidings_engine::deliver::FrameChunks;

use crate::local::Member;

/// A change of subscriptions that was made, or was not necessary.
#[derive(Debug)]
pub struct Change {
    /// Topics that were added.
    pub added: usize,
    /// Topics that were removed.
    pub removed: usize,
    /// Topics that the connection subscribes to afterwards.
    pub total: usize,
    /// Keeps the first frames of the added topics back. Drop it to let them follow.
    pub held: Held,
}

/// Keeps the frames of new subscriptions back until a reply is sent, or until it is dropped.
#[must_use]
pub struct Held {
    member: Member,
    topics: Vec<Arc<str>>,
}

impl Held {
    pub(crate) fn new(member: Member, topics: Vec<Arc<str>>) -> Self {
        Self { member, topics }
    }

    /// Topics whose frames are held back, in the order in which they were added.
    pub fn topics(&self) -> &[Arc<str>] {
        &self.topics
    }

    /// Sends a reply to the connection and lets the frames follow it.
    pub fn reply(self, reply: impl Into<FrameChunks>) {
        if let Some(waker) = self.queue_reply(reply) {
            waker.wake();
        }
    }

    /// As [`Held::reply`], but the caller wakes the connection's reader, or polls it. The result is its waker.
    pub fn queue_reply(mut self, reply: impl Into<FrameChunks>) -> Option<Waker> {
        let topics = std::mem::take(&mut self.topics);
        self.member.queue_reply(reply, topics.iter().map(|topic| &**topic))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.topics.is_empty() {
            self.member.reply(Bytes::new(), self.topics.iter().map(|topic| &**topic));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("topics", &self.topics).finish_non_exhaustive()
    }
}
