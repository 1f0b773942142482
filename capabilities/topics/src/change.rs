//! What a change of subscriptions comes to.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tidings_engine::deliver::FrameChunks;

use crate::history::Position;
use crate::local::Member;
use crate::replay::Replay;

/// A change of subscriptions that was made, or was not necessary.
#[derive(Debug)]
pub struct Change {
    /// Topics that were added.
    pub added: usize,
    /// Topics that were removed.
    pub removed: usize,
    /// Topics that the connection subscribes to afterwards.
    pub total: usize,
    /// Where the added topics that have a history begin.
    pub positions: Vec<Begins>,
    /// Keeps the first frames of the added topics back. Drop it to let them follow.
    pub held: Held,
}

/// Where the subscription to a topic with history begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begins {
    /// The topic.
    pub topic: Arc<str>,
    /// The last message that it does not hear live.
    pub position: Position,
    /// Whether all that was missed comes first; `None` if that was not asked for.
    pub recovered: Option<bool>,
}

/// Keeps the frames of new subscriptions back until a reply is sent, or until it is dropped.
#[must_use]
pub struct Held {
    member: Member,
    topics: Vec<Arc<str>>,
    replays: Vec<Replay>,
}

impl Held {
    pub(crate) fn new(member: Member, topics: Vec<Arc<str>>) -> Self {
        Self { member, topics, replays: Vec::new() }
    }

    /// Has replays come before the frames of their topics.
    pub(crate) fn replaying(self, replays: Vec<Replay>) -> Self {
        let mut held = self;
        held.replays = replays;
        held
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
        self.begin(reply, &topics)
    }

    /// Queues a reply, and lets follow it what does not wait for a replay.
    fn begin(&mut self, reply: impl Into<FrameChunks>, topics: &[Arc<str>]) -> Option<Waker> {
        let replays = std::mem::take(&mut self.replays);
        let waits = |topic: &Arc<str>| replays.iter().any(|replay| replay.topic == *topic);
        let at_once = topics.iter().filter(|topic| !waits(topic)).map(|topic| &**topic);
        let waker = self.member.queue_reply(reply, at_once);
        for replay in replays {
            tokio::spawn(replay.run());
        }
        waker
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.topics.is_empty() {
            let topics = std::mem::take(&mut self.topics);
            if let Some(waker) = self.begin(Bytes::new(), &topics) {
                waker.wake();
            }
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("topics", &self.topics).finish_non_exhaustive()
    }
}
