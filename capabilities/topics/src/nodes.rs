//! What the nodes of a bus know of each other, for the topics of one scope: which of them have subscribers by pattern.
//!
//! A message goes to the channel of its topic. A node that has patterns cannot name the topics that it wants, so it subscribes
//! to one channel for all, and says so, again and again, on a channel that all nodes hear. Whoever publishes sends a copy
//! there while such a node is known, or while it does not know yet. Messages are numbered, so that a node that hears both takes one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidings_engine::Clock;
use tidings_engine::bus::messages::{BusError, Interest, MessageBus};
use tidings_model::{Timestamp, limits};

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    node: u64,
    /// Whether the others should say what they have to say.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    asks: bool,
    /// Whether it wants all messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    all: bool,
}

/// The nodes of a bus as one of them sees them.
pub(crate) struct Nodes {
    pub(crate) node: u64,
    /// Channel of what nodes say of themselves.
    notes: String,
    /// Channel of all messages.
    all: String,
    bus: Arc<dyn MessageBus>,
    interest: Arc<dyn Interest>,
    clock: Arc<dyn Clock>,
    /// Time after which a node that says nothing is taken to be gone.
    lease: Duration,
    /// Number of the last message.
    sent: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Since when notes are heard; `None` if they are not.
    since: Option<Timestamp>,
    /// When each of the other nodes that want all messages has last said so.
    wanting: HashMap<u64, Timestamp>,
    /// Whether this node wants all messages.
    all: bool,
    /// Messages that were taken, by sender.
    taken: HashMap<u64, Taken>,
}

/// Which of the last messages of a sender were taken.
struct Taken {
    highest: u64,
    /// Bit by number, of the last ones.
    last: [u64; WORDS],
}

const WORDS: usize = 16;
/// Messages of a sender that may be under way between the first and the second copy of one.
const LAST: u64 = WORDS as u64 * 64;

impl Nodes {
    pub(crate) fn new(
        node: u64,
        prefix: &str,
        bus: Arc<dyn MessageBus>,
        interest: Arc<dyn Interest>,
        clock: Arc<dyn Clock>,
        lease: Duration,
    ) -> Self {
        // No topic has a star.
        let (notes, all) = (format!("{prefix}*nodes"), format!("{prefix}*all"));
        let (sent, state) = (AtomicU64::new(0), Mutex::default());
        Self { node, notes, all, bus, interest, clock, lease, sent, state }
    }

    /// The channel of all messages.
    pub(crate) fn all(&self) -> &str {
        &self.all
    }

    pub(crate) fn is_notes(&self, channel: &str) -> bool {
        channel == self.notes
    }

    /// Number of the next message.
    pub(crate) fn next_number(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How long to wait between saying something of this node.
    pub(crate) fn interval(&self) -> Duration {
        self.lease / 3
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Begins to hear the notes of others, and asks for them.
    pub(crate) async fn join(&self) {
        if let Err(error) = self.interest.subscribe(&self.notes).await {
            tracing::warn!(%error, "this node does not hear what other nodes say of themselves");
            return;
        }
        self.lock().since = Some(self.clock.now());
        self.ask().await;
    }

    /// Whether a message must also go to those who want all of them.
    pub(crate) fn is_all_wanted(&self) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        // Those that are there have said so by then.
        if state.since.is_none_or(|since| now < since + self.lease) {
            return true;
        }
        if state.wanting.is_empty() {
            return false;
        }
        state.wanting.retain(|_, said| now < *said + self.lease);
        !state.wanting.is_empty()
    }

    /// Says whether this node wants all messages. The call itself queues it.
    pub(crate) fn want_all(&self, all: bool) -> impl Future<Output = Result<(), BusError>> + Send + use<> {
        self.lock().all = all;
        self.say(Note { node: self.node, all, asks: false })
    }

    /// Says again what this node wants, if it wants something.
    pub(crate) async fn say_again(&self) {
        let all = self.lock().all;
        if all {
            // A failure is that of the bus, which tells whoever publishes; it is said again.
            let _ = self.say(Note { node: self.node, all, asks: false }).await;
        }
    }

    /// Notes may have been lost.
    pub(crate) async fn lost(&self) {
        {
            let mut state = self.lock();
            state.since = state.since.map(|_| self.clock.now());
        }
        self.ask().await;
    }

    async fn ask(&self) {
        let note = Note { node: self.node, all: self.lock().all, asks: true };
        let _ = self.say(note).await;
    }

    fn say(&self, note: Note) -> impl Future<Output = Result<(), BusError>> + Send + use<> {
        let note = Bytes::from(serde_json::to_vec(&note).expect("it is JSON"));
        let (bus, notes) = (self.bus.clone(), self.notes.clone());
        async move { bus.publish(&notes, note).await }
    }

    /// Takes what a node has said. Returns whether it wants to know of this one.
    pub(crate) fn heard(&self, note: &[u8]) -> bool {
        let note: Note = match serde_json::from_slice(note) {
            Ok(note) => note,
            Err(error) => {
                tracing::warn!(%error, "what a node says of itself is not readable");
                return false;
            }
        };
        if note.node == self.node {
            return false;
        }
        let mut state = self.lock();
        if !note.all {
            state.wanting.remove(&note.node);
        } else if state.wanting.len() < limits::BUS_NODES || state.wanting.contains_key(&note.node) {
            state.wanting.insert(note.node, self.clock.now());
        }
        note.asks
    }

    /// Whether a message of another node is taken for the first time.
    pub(crate) fn is_first(&self, node: u64, number: u64) -> bool {
        let mut state = self.lock();
        if state.taken.len() >= limits::BUS_NODES && !state.taken.contains_key(&node) {
            // Most are of nodes that are gone.
            state.taken.clear();
        }
        state.taken.entry(node).or_insert(Taken { highest: 0, last: [0; WORDS] }).take(number)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn take(&mut self, number: u64) -> bool {
        if number > self.highest {
            // What is between was not taken.
            if number - self.highest >= LAST {
                self.last = [0; WORDS];
            } else {
                (self.highest + 1..number).for_each(|skipped| self.set(skipped, false));
            }
            self.highest = number;
            self.set(number, true);
            return true;
        }
        if self.highest - number >= LAST || self.is_set(number) {
            return false;
        }
        self.set(number, true);
        true
    }

    fn place(number: u64) -> (usize, u64) {
        let at = number % LAST;
        // Less than the number of words.
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn is_set(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.last[word] & bit != 0
    }

    fn set(&mut self, number: u64, taken: bool) {
        let (word, bit) = Self::place(number);
        if taken { self.last[word] |= bit } else { self.last[word] &= !bit }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_number_is_taken_once_in_whatever_order_they_come(numbers in prop::collection::vec(1..LAST, 0..400)) {
            let mut taken = Taken { highest: 0, last: [0; WORDS] };
            let mut known = HashSet::new();
            for number in numbers {
                prop_assert_eq!(taken.take(number), known.insert(number), "{}", number);
            }
        }
    }

    #[test]
    fn what_is_too_old_to_be_known_is_not_taken() {
        let mut taken = Taken { highest: 0, last: [0; WORDS] };
        assert!(taken.take(5) && taken.take(LAST + 4) && taken.take(LAST + 5));
        assert!(!taken.take(5) && taken.take(6) && !taken.take(6));
        assert!(taken.take(10 * LAST) && !taken.take(LAST + 6) && taken.take(9 * LAST + 1));
    }
}
