//! The bus of a single process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::BoxFuture;

use super::{Arrivals, Arriving, BusError, Interest, Joined, MessageBus};

/// A bus within the process. Clones are the same bus.
#[derive(Clone, Default)]
pub struct LocalMessages(Arc<Shared>);

/// The number and the queue of each node that subscribes to a channel.
type Channels = HashMap<Arc<str>, Vec<(u64, Arriving)>>;

#[derive(Default)]
struct Shared {
    /// Nodes by channel.
    channels: Mutex<Channels>,
    nodes: AtomicU64,
}

struct LocalInterest {
    shared: Arc<Shared>,
    node: u64,
    arriving: Arriving,
}

impl LocalMessages {
    /// Creates a bus without nodes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of channels that a node has subscribed to.
    pub fn channels(&self) -> usize {
        self.0.lock().len()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MessageBus for LocalMessages {
    fn publish<'a>(&'a self, channel: &'a str, message: Bytes) -> BoxFuture<'a, Result<(), BusError>> {
        // Under the lock, so that messages of different publishers arrive everywhere in the same order.
        let mut channels = self.0.lock();
        if let Some((name, nodes)) = channels.get_key_value(channel) {
            let name = name.clone();
            let gone: Vec<u64> = nodes
                .iter()
                .filter(|(_, arriving)| !arriving.put(&name, message.clone()))
                .map(|(node, _)| *node)
                .collect();
            if !gone.is_empty() {
                leave(&mut channels, channel, |node| gone.contains(&node));
            }
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn join(&self, bytes_max: usize) -> Joined {
        let node = self.0.nodes.fetch_add(1, Ordering::Relaxed);
        let (arriving, arrivals) = Arrivals::new(bytes_max);
        let interest: Arc<dyn Interest> = Arc::new(LocalInterest { shared: self.0.clone(), node, arriving });
        Joined { interest, arrivals }
    }
}

/// Removes nodes from a channel, and the channel if none is left.
fn leave(channels: &mut Channels, channel: &str, leaves: impl Fn(u64) -> bool) {
    let Some(nodes) = channels.get_mut(channel) else { return };
    nodes.retain(|(node, _)| !leaves(*node));
    if nodes.is_empty() {
        channels.remove(channel);
    }
}

impl Interest for LocalInterest {
    fn subscribe(&self, channel: &str) -> BoxFuture<'static, Result<(), BusError>> {
        let mut channels = self.shared.lock();
        let nodes = match channels.get_mut(channel) {
            Some(nodes) => nodes,
            None => channels.entry(channel.into()).or_default(),
        };
        if !nodes.iter().any(|(node, _)| *node == self.node) {
            nodes.push((self.node, self.arriving.clone()));
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn unsubscribe(&self, channel: &str) {
        leave(&mut self.shared.lock(), channel, |node| node == self.node);
    }

    fn is_in_effect(&self, channel: &str) -> bool {
        let channels = self.shared.lock();
        channels.get(channel).is_some_and(|nodes| nodes.iter().any(|(node, _)| *node == self.node))
    }
}

impl Drop for LocalInterest {
    fn drop(&mut self) {
        self.shared.lock().retain(|_, nodes| {
            nodes.retain(|(node, _)| *node != self.node);
            !nodes.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::bus::messages::Arrival;

    fn now<F: Future>(future: F) -> F::Output {
        future.now_or_never().expect("it is ready at once")
    }

    fn node(bus: &LocalMessages, channels: &[&str]) -> (Arc<dyn Interest>, Arrivals) {
        let Joined { interest, arrivals } = bus.join(160);
        for channel in channels {
            now(interest.subscribe(channel)).expect("a subscription");
        }
        (interest, arrivals)
    }

    fn publish(bus: &LocalMessages, channel: &str, message: &'static str) {
        now(bus.publish(channel, Bytes::from_static(message.as_bytes()))).expect("it is accepted");
    }

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

    mod contract {
        use super::*;
        use crate::bus::contract::Buses;

        async fn buses() -> Buses {
            let bus = Arc::new(LocalMessages::new());
            Buses { one: bus.clone(), two: bus, message_bytes_max: 1 << 20, guard: Box::new(()) }
        }

        crate::bus_contract!(buses);
    }

    #[test]
    fn a_message_reaches_the_nodes_that_subscribed_once_and_in_order() {
        let bus = LocalMessages::new();
        let (first, mut at_first) = node(&bus, &["a", "b", "a"]);
        let (_second, mut at_second) = node(&bus, &["b"]);
        for (channel, message) in [("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")] {
            publish(&bus, channel, message);
        }
        assert_eq!(taken(&mut at_first), ["a 1", "b 2", "a 3"]);
        assert_eq!(taken(&mut at_second), ["b 2"]);
        first.unsubscribe("a");
        publish(&bus, "a", "5");
        assert_eq!(taken(&mut at_first), Vec::<String>::new());
        assert_eq!(bus.channels(), 1);
    }

    #[test]
    fn a_node_that_does_not_take_its_messages_is_told_how_many_it_lost() {
        let bus = LocalMessages::new();
        let (_interest, mut arrivals) = node(&bus, &["a"]);
        for message in ["1", "2", "3", "x", "y"] {
            publish(&bus, "a", message);
        }
        assert_eq!(taken(&mut arrivals), ["a 1", "a 2", "a 3", "lost 2"]);
        publish(&bus, "a", "z");
        assert_eq!(taken(&mut arrivals), ["a z"]);
    }

    #[test]
    fn nothing_is_left_of_a_node_that_is_gone() {
        let bus = LocalMessages::new();
        let (interest, arrivals) = node(&bus, &["a"]);
        drop(arrivals);
        publish(&bus, "a", "1");
        assert_eq!(bus.channels(), 0, "a publisher has noticed");
        let (kept, _arrivals) = node(&bus, &["b"]);
        drop((interest, kept));
        assert_eq!(bus.channels(), 0);
    }
}
