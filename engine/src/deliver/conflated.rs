//! Conflated inboxes: of each key only one value waits for the client, however often it changes.
//!
//! Whoever produces puts values under keys. While the client has not taken the value of a key, a later one is joined with
//! it. So what waits is bounded by the number of keys, and a slow client costs nobody else anything. Values are encoded when
//! they are taken, several at a time, in the order in which their keys began to wait. Replies go first.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::sync::{Mutex, MutexGuard, PoisonError};
use super::{Frame, FrameChunks, Step};

/// Values that are encoded together.
const TOGETHER: usize = 256;

/// Length of the order from which on stale entries are looked for.
const ORDER_MIN: usize = 64;

/// What is put into an inbox, how values are joined, and how they are encoded.
pub trait Conflate: Send + Sync + 'static {
    /// What a value belongs to.
    type Key: Clone + Eq + Hash + Send + 'static;
    /// What the client is to be told of a key.
    type Value: Send + 'static;
    /// What the client may be told when nothing waits any more.
    type Mark;

    /// Joins a value that waits with one that was put later.
    fn join(&self, waiting: &mut Self::Value, later: Self::Value);

    /// Returns the mark of everything that was put before this call.
    fn mark(&self) -> Self::Mark;

    /// Encodes values, in the order in which their keys began to wait. With them, the client has everything up to the mark,
    /// if there is one. Called without any lock.
    fn encode(
        &self,
        values: Vec<(Self::Key, Self::Value)>,
        complete: Option<Self::Mark>,
        take: &mut dyn FnMut(FrameChunks),
    );
}

/// The sending side of an inbox. Clones share it.
pub struct Conflated<C: Conflate> {
    shared: Arc<Shared<C>>,
}

/// The receiving side of a [`Conflated`].
pub struct ConflatedReader {
    inbox: Arc<dyn Drain>,
    /// Called after the reader was dropped.
    dropped: Option<Box<dyn FnOnce() + Send>>,
}

/// So many keys wait that another one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// An inbox without the types of what is in it.
trait Drain: Send + Sync {
    fn poll_frames(&self, cx: &mut Context<'_>, room: usize, take: &mut dyn FnMut(&Frame)) -> Poll<Step>;
    fn take_replies(&self, take: &mut dyn FnMut(&Frame));
    fn reply_bytes(&self) -> usize;
    fn is_pending(&self) -> bool;
    fn close(&self);
}

struct Shared<C: Conflate> {
    conflate: C,
    state: Mutex<State<C::Key, C::Value>>,
}

struct State<K, V> {
    /// What waits, and when its key began to wait.
    waiting: HashMap<K, (u64, V)>,
    /// Keys in the order in which they began to wait. An entry whose number is another one is stale.
    order: VecDeque<(u64, K)>,
    /// Number of the next key that begins to wait.
    next: u64,
    replies: VecDeque<FrameChunks>,
    reply_bytes: usize,
    /// Set while the reader waits.
    waker: Option<Waker>,
    closed: bool,
}

impl<C: Conflate> Conflated<C> {
    /// Creates an empty inbox.
    pub fn new(conflate: C) -> (Self, ConflatedReader) {
        let state = State {
            waiting: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
            replies: VecDeque::new(),
            reply_bytes: 0,
            waker: None,
            closed: false,
        };
        let shared = Arc::new(Shared { conflate, state: Mutex::new(state) });
        (Self { shared: shared.clone() }, ConflatedReader { inbox: shared, dropped: None })
    }

    /// Puts a value under a key, or joins it with the one that waits there. A new key is refused if `most` keys wait
    /// already. Returns the reader's waker if the reader waits; call it without holding a lock, because it may write to a
    /// socket.
    pub fn put(&self, key: C::Key, value: C::Value, most: usize) -> Result<Option<Waker>, Full> {
        let mut state = self.shared.lock();
        if state.closed {
            return Ok(None);
        }
        if let Some((_, waiting)) = state.waiting.get_mut(&key) {
            self.shared.conflate.join(waiting, value);
            return Ok(state.waker.take());
        }
        if state.waiting.len() >= most {
            return Err(Full);
        }
        let number = state.next;
        state.next += 1;
        state.waiting.insert(key.clone(), (number, value));
        state.add_to_order(number, key);
        Ok(state.waker.take())
    }

    /// Removes what waits under a key.
    pub fn remove(&self, key: &C::Key) -> Option<C::Value> {
        self.shared.lock().waiting.remove(key).map(|(_, value)| value)
    }

    /// Removes what waits and is not to be kept.
    pub fn retain(&self, mut keep: impl FnMut(&C::Key, &mut C::Value) -> bool) {
        self.shared.lock().waiting.retain(|key, (_, value)| keep(key, value));
    }

    /// Number of keys that wait.
    pub fn len(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Whether no key waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What decides how values are joined and encoded.
    pub fn conflate(&self) -> &C {
        &self.shared.conflate
    }

    /// Sends a reply, which may write to the client's socket. Replies precede all values that wait.
    pub fn reply(&self, reply: impl Into<FrameChunks>) {
        if let Some(waker) = self.queue_reply(reply) {
            waker.wake();
        }
    }

    /// As [`reply`](Self::reply), but the caller wakes the reader, or polls it. The result is the reader's waker if it waits.
    pub fn queue_reply(&self, reply: impl Into<FrameChunks>) -> Option<Waker> {
        let mut state = self.shared.lock();
        let reply = reply.into();
        if state.closed || reply.is_empty() {
            return None;
        }
        state.reply_bytes += reply.len();
        state.replies.push_back(reply);
        state.waker.take()
    }

    /// Bytes of replies that the client has not taken.
    pub fn reply_bytes(&self) -> usize {
        self.shared.lock().reply_bytes
    }

    /// Whether the client is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }
}

impl<C: Conflate> Clone for Conflated<C> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl ConflatedReader {
    /// Calls a function once the reader was dropped.
    pub fn when_dropped(&mut self, call: impl FnOnce() + Send + 'static) {
        self.dropped = Some(Box::new(call));
    }

    /// Passes replies and then encoded values to `take`, until they have at least `room` bytes. Pending when nothing
    /// waits; the waker may also be called spuriously.
    pub fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        take: &mut impl FnMut(&Frame),
    ) -> Poll<Step> {
        self.inbox.poll_frames(cx, room, take)
    }

    /// Passes the replies to `take`, and no values.
    pub fn take_replies(&mut self, take: &mut impl FnMut(&Frame)) {
        self.inbox.take_replies(take);
    }

    /// Bytes of replies that were not taken yet.
    pub fn reply_bytes(&self) -> usize {
        self.inbox.reply_bytes()
    }

    /// Whether there is anything that was not taken yet.
    pub fn is_pending(&self) -> bool {
        self.inbox.is_pending()
    }
}

impl Drop for ConflatedReader {
    fn drop(&mut self) {
        self.inbox.close();
        if let Some(call) = self.dropped.take() {
            call();
        }
    }
}

impl<C: Conflate> Shared<C> {
    /// Locks the state, ignoring poison: whoever produces for many clients must go on.
    fn lock(&self) -> MutexGuard<'_, State<C::Key, C::Value>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Conflate> Drain for Shared<C> {
    fn poll_frames(&self, cx: &mut Context<'_>, room: usize, take: &mut dyn FnMut(&Frame)) -> Poll<Step> {
        let mut bytes = 0;
        loop {
            // Before anything is taken: what is put meanwhile must not be behind the mark.
            let mark = self.conflate.mark();
            let (values, is_complete) = {
                let mut state = self.lock();
                bytes += state.take_replies(take);
                if bytes >= room || state.waiting.is_empty() {
                    state.shrink();
                    if bytes > 0 {
                        return Poll::Ready(Step::Frames);
                    }
                    let before = state.waker.replace(cx.waker().clone());
                    drop(state);
                    drop(before);
                    return Poll::Pending;
                }
                (state.take_values(TOGETHER), state.waiting.is_empty())
            };
            self.conflate.encode(values, is_complete.then_some(mark), &mut |chunks| {
                bytes += chunks.len();
                take(&Frame::ephemeral(chunks));
            });
        }
    }

    fn take_replies(&self, take: &mut dyn FnMut(&Frame)) {
        self.lock().take_replies(take);
    }

    fn reply_bytes(&self) -> usize {
        self.lock().reply_bytes
    }

    fn is_pending(&self) -> bool {
        let state = self.lock();
        !state.replies.is_empty() || !state.waiting.is_empty()
    }

    fn close(&self) {
        let _dropped_without_the_lock = {
            let mut state = self.lock();
            state.closed = true;
            state.reply_bytes = 0;
            (
                std::mem::take(&mut state.waiting),
                std::mem::take(&mut state.order),
                std::mem::take(&mut state.replies),
                state.waker.take(),
            )
        };
    }
}

impl<K: Clone + Eq + Hash, V> State<K, V> {
    /// Passes the replies to `take`. Returns their bytes.
    fn take_replies(&mut self, take: &mut dyn FnMut(&Frame)) -> usize {
        while let Some(reply) = self.replies.pop_front() {
            take(&Frame::ephemeral(reply));
        }
        std::mem::take(&mut self.reply_bytes)
    }

    /// Takes the values of the keys that have waited longest.
    fn take_values(&mut self, most: usize) -> Vec<(K, V)> {
        let mut values = Vec::with_capacity(most.min(self.waiting.len()));
        while values.len() < most
            && let Some((number, key)) = self.order.pop_front()
        {
            if self.waiting.get(&key).is_some_and(|(since, _)| *since == number)
                && let Some((_, value)) = self.waiting.remove(&key)
            {
                values.push((key, value));
            }
        }
        values
    }

    /// Notes that a key has begun to wait. Stale entries are forgotten before they outnumber the others.
    fn add_to_order(&mut self, number: u64, key: K) {
        if self.order.len() >= ORDER_MIN.max(2 * self.waiting.len()) {
            let Self { waiting, order, .. } = self;
            order.retain(|(number, key)| waiting.get(key).is_some_and(|(since, _)| since == number));
        }
        self.order.push_back((number, key));
    }

    /// Gives back memory when nothing waits.
    fn shrink(&mut self) {
        if self.waiting.is_empty() {
            self.order.clear();
            self.order.shrink_to(ORDER_MIN);
            self.waiting.shrink_to(ORDER_MIN);
        }
        if self.replies.is_empty() {
            self.replies.shrink_to(0);
        }
    }
}

#[cfg(test)]
mod tests;
