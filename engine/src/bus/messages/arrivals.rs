//! What arrives at a node: a queue with a limit, which says so when something had no place.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use bytes::Bytes;

/// What arrives at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A message.
    Message {
        /// The channel on which it was published.
        channel: Arc<str>,
        /// The message.
        message: Bytes,
    },
    /// Messages were lost, or may have been. After a failure of the broker it comes when all subscriptions of the node are
    /// in effect again, so whoever then looks at what the messages are about misses nothing.
    Lost {
        /// Number of messages that are known to be lost, because they had no room. 0 after a failure of the broker, where
        /// nobody knows.
        at_least: u64,
    },
}

/// The messages that have arrived at a node. The sending side is an [`Arriving`].
pub struct Arrivals(Arc<Queue>);

/// Puts messages into a node's [`Arrivals`]. Clones put them into the same.
#[derive(Clone)]
pub struct Arriving(Arc<Queue>);

struct Queue {
    bytes_max: usize,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    messages: VecDeque<(Arc<str>, Bytes)>,
    bytes: usize,
    /// Messages lost since the last message that is queued; 0 if some may have been.
    lost: Option<u64>,
    waker: Option<Waker>,
    /// Set when the receiving side is gone.
    closed: bool,
    /// Set when nothing will arrive any more.
    ended: bool,
}

impl Arrivals {
    /// Creates an empty queue for at most so many bytes.
    pub fn new(bytes_max: usize) -> (Arriving, Self) {
        let queue = Arc::new(Queue { bytes_max, state: Mutex::default() });
        (Arriving(queue.clone()), Self(queue))
    }

    /// Takes what has arrived next. `None` after the bus has ended.
    pub async fn next(&mut self) -> Option<Arrival> {
        std::future::poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some((channel, message)) = state.messages.pop_front() {
                state.bytes -= cost(&message);
                return Poll::Ready(Some(Arrival::Message { channel, message }));
            }
            if let Some(at_least) = state.lost.take() {
                return Poll::Ready(Some(Arrival::Lost { at_least }));
            }
            if state.ended {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Bytes that a queued message counts: it and its place in the queue, so that empty messages count too.
fn cost(message: &Bytes) -> usize {
    message.len() + size_of::<(Arc<str>, Bytes)>()
}

impl Arriving {
    /// Adds a message. Returns whether the node still wants messages; if there is no room it loses this one.
    pub fn put(&self, channel: &Arc<str>, message: Bytes) -> bool {
        let waker = {
            let mut state = self.0.lock();
            if state.closed {
                return false;
            }
            // Once something is lost, so is everything until the node has seen that.
            let cost = cost(&message);
            if state.lost.is_some() || state.bytes + cost > self.0.bytes_max {
                *state.lost.get_or_insert_default() += 1;
            } else {
                state.bytes += cost;
                state.messages.push_back((channel.clone(), message));
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Tells the node that messages may be missing, after those that have arrived.
    pub fn put_gap(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.lost.get_or_insert_default();
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the queue: after what has arrived, nothing more will.
    pub fn end(&self) {
        let waker = {
            let mut state = self.0.lock();
            state.ended = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Queue {
    /// Locks the state, ignoring poison: no operation is left half done.
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        *state = QueueState { closed: true, ..QueueState::default() };
    }
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn taken(arrivals: &mut Arrivals) -> Vec<String> {
        let mut taken = Vec::new();
        while let Some(Some(arrival)) = arrivals.next().now_or_never() {
            taken.push(match arrival {
                Arrival::Message { channel, message } => {
                    format!("{channel} {}", String::from_utf8_lossy(&message))
                }
                Arrival::Lost { at_least } => format!("lost {at_least}"),
            });
        }
        taken
    }

    #[test]
    fn a_gap_is_told_after_what_has_arrived_before_it() {
        let (arriving, mut arrivals) = Arrivals::new(1000);
        arriving.put(&"a".into(), Bytes::from_static(b"1"));
        arriving.put_gap();
        assert_eq!(taken(&mut arrivals), ["a 1", "lost 0"]);
        arriving.put_gap();
        arriving.put(&"a".into(), Bytes::from_static(b"2"));
        arriving.put_gap();
        assert_eq!(taken(&mut arrivals), ["lost 1"], "what had no place before it was told is lost");
    }

    #[test]
    fn empty_messages_take_room_too() {
        let (arriving, mut arrivals) = Arrivals::new(1000);
        for _ in 0..1000 {
            arriving.put(&"a".into(), Bytes::new());
        }
        let taken = taken(&mut arrivals);
        assert!(taken.len() < 30 && taken.last().is_some_and(|last| last.starts_with("lost 9")), "{taken:?}");
    }

    #[test]
    fn a_bus_that_ends_is_heard_to_its_end() {
        let (arriving, mut arrivals) = Arrivals::new(100);
        arriving.put(&"a".into(), Bytes::from_static(b"1"));
        arriving.end();
        assert_eq!(taken(&mut arrivals), ["a 1"]);
        assert_eq!(arrivals.next().now_or_never(), Some(None));
    }
}
