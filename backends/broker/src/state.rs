//! What a bus knows: its nodes, their channels, and what waits to be sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tidings_engine::bus::messages::{Arriving, BusError};
use tokio::sync::oneshot;

/// Tells whether something has succeeded.
pub(crate) type Answer = oneshot::Sender<Result<(), BusError>>;

/// What a bus knows.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) queue: Queue,
    nodes: HashMap<u64, Node>,
    next_node: u64,
    channels: HashMap<Arc<str>, Channel>,
    /// Channels of which the broker may have to be told, each once.
    changed: VecDeque<Arc<str>>,
    /// Number of subscriptions that the broker was told of, so that an answer is not taken for that to a later one.
    told: u64,
    /// Channels that were in effect before the connection was lost and are not yet again.
    unrestored: usize,
    /// Nodes that have to be told of a gap when all is in effect again.
    gaps: HashSet<u64>,
}

/// Whether the bus is connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is not.
    #[default]
    Away,
    /// It is.
    Connected,
    /// It has ended.
    Ended,
}

/// Messages that wait to be sent.
#[derive(Default)]
pub(crate) struct Queue {
    messages: VecDeque<Publish>,
    bytes: usize,
}

/// A message that waits to be sent.
pub(crate) struct Publish {
    pub(crate) channel: Arc<str>,
    pub(crate) message: Bytes,
    pub(crate) answer: Answer,
    /// When it was queued, on the monotonic clock.
    at: Duration,
}

struct Node {
    arriving: Arriving,
    channels: HashSet<Arc<str>>,
}

#[derive(Default)]
struct Channel {
    nodes: Vec<(u64, Arriving)>,
    /// Those who wait until it is in effect, with their node.
    waiting: Vec<(u64, Answer)>,
    at_broker: AtBroker,
    /// Whether it is in `changed`.
    is_changed: bool,
    /// Whether it is counted in `unrestored`.
    is_restoring: bool,
}

/// What the broker knows of a channel.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum AtBroker {
    #[default]
    Nothing,
    /// It was told, with this number, and has not answered.
    Told(u64),
    InEffect,
}

/// What the broker is to be told of a channel.
pub(crate) enum Change {
    Subscribe(Arc<str>, u64),
    Unsubscribe(Arc<str>),
}

impl Queue {
    /// Adds a message, unless there is no room.
    pub(crate) fn add(
        &mut self,
        channel: &str,
        message: Bytes,
        answer: Answer,
        at: Duration,
        room: (usize, usize),
    ) -> Result<(), BusError> {
        let (bytes_max, messages_max) = room;
        // A message that is larger than all of the room is sent when nothing else waits.
        let has_room = self.bytes + message.len() <= bytes_max || self.messages.is_empty();
        if !has_room || self.messages.len() >= messages_max {
            return Err(BusError::Full);
        }
        self.bytes += message.len();
        self.messages.push_back(Publish { channel: channel.into(), message, answer, at });
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Option<Publish> {
        let publish = self.messages.pop_front()?;
        self.bytes -= publish.message.len();
        Some(publish)
    }

    /// Takes a message that was queued before this moment.
    pub(crate) fn take_older(&mut self, than: Duration) -> Option<Publish> {
        self.messages.front().filter(|publish| publish.at <= than)?;
        self.take()
    }
}

impl State {
    pub(crate) fn join(&mut self, arriving: Arriving) -> u64 {
        let number = self.next_node;
        self.next_node += 1;
        if matches!(self.phase, Phase::Ended) {
            arriving.end();
        }
        self.nodes.insert(number, Node { arriving, channels: HashSet::new() });
        number
    }

    /// Forgets a node.
    pub(crate) fn leave(&mut self, number: u64) {
        let Some(node) = self.nodes.remove(&number) else { return };
        self.gaps.remove(&number);
        for channel in node.channels {
            self.leave_channel(number, &channel);
        }
    }

    /// Subscribes a node. The answer comes when it is in effect.
    pub(crate) fn subscribe(&mut self, number: u64, name: &str, answer: Answer) {
        if self.phase == Phase::Ended {
            // Whoever waits is told, because the answer is dropped.
            return;
        }
        let Some(node) = self.nodes.get_mut(&number) else { return };
        let name = match self.channels.get_key_value(name) {
            Some((name, _)) => name.clone(),
            None => Arc::from(name),
        };
        let channel = self.channels.entry(name.clone()).or_default();
        if node.channels.insert(name.clone()) {
            channel.nodes.push((number, node.arriving.clone()));
        }
        if channel.at_broker == AtBroker::InEffect {
            // Whoever has dropped the future is not interested.
            let _ = answer.send(Ok(()));
            return;
        }
        if channel.waiting.len() == channel.waiting.capacity() {
            channel.waiting.retain(|(_, answer)| !answer.is_closed());
        }
        channel.waiting.push((number, answer));
        self.mark(&name);
    }

    pub(crate) fn unsubscribe(&mut self, number: u64, name: &str) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        if let Some(name) = node.channels.take(name) {
            self.leave_channel(number, &name);
        }
    }

    fn leave_channel(&mut self, number: u64, name: &Arc<str>) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        channel.nodes.retain(|(node, _)| *node != number);
        // Those who wait are told, because their answer is dropped.
        channel.waiting.retain(|(node, _)| *node != number);
        match (channel.nodes.is_empty(), channel.at_broker) {
            (false, _) => {}
            // The broker knows nothing of it, so nothing has to be kept.
            (true, AtBroker::Nothing) => self.forget(name),
            (true, AtBroker::Told(_) | AtBroker::InEffect) => self.mark(name),
        }
    }

    /// Notes that the broker has to be told of a channel. While it is away there is nobody to tell.
    fn mark(&mut self, name: &Arc<str>) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        if self.phase != Phase::Connected || std::mem::replace(&mut channel.is_changed, true) {
            return;
        }
        // Names of channels that were forgotten meanwhile do not pile up.
        if self.changed.len() > 1024 + 2 * self.channels.len() {
            let changed = self.channels.iter().filter(|(_, channel)| channel.is_changed);
            self.changed = changed.map(|(name, _)| name.clone()).collect();
        } else {
            self.changed.push_back(name.clone());
        }
    }

    pub(crate) fn is_in_effect(&self, number: u64, name: &str) -> bool {
        let subscribes = self.nodes.get(&number).is_some_and(|node| node.channels.contains(name));
        subscribes && self.channels.get(name).is_some_and(|channel| channel.at_broker == AtBroker::InEffect)
    }

    /// What the broker is to be told next. It is taken to be told.
    pub(crate) fn next_change(&mut self) -> Option<Change> {
        while let Some(name) = self.changed.pop_front() {
            let Some(channel) = self.channels.get_mut(&name) else { continue };
            channel.is_changed = false;
            match (channel.nodes.is_empty(), channel.at_broker) {
                (false, AtBroker::Nothing) => {
                    self.told += 1;
                    channel.at_broker = AtBroker::Told(self.told);
                    return Some(Change::Subscribe(name, self.told));
                }
                (true, AtBroker::Nothing) => self.forget(&name),
                (true, AtBroker::Told(_) | AtBroker::InEffect) => {
                    self.forget(&name);
                    return Some(Change::Unsubscribe(name));
                }
                (false, AtBroker::Told(_) | AtBroker::InEffect) => {}
            }
        }
        None
    }

    /// The broker has answered to a subscription.
    pub(crate) fn answered(&mut self, name: &Arc<str>, told: u64, result: Result<(), BusError>) {
        let Some(channel) = self.channels.get_mut(name) else { return };
        if channel.at_broker != AtBroker::Told(told) {
            return;
        }
        if result.is_ok() {
            channel.at_broker = AtBroker::InEffect;
            if std::mem::take(&mut channel.is_restoring) {
                self.unrestored -= 1;
            }
        }
        for (_, waiting) in std::mem::take(&mut channel.waiting) {
            let _ = waiting.send(result.clone());
        }
        if result.is_err() {
            for (number, _) in std::mem::take(&mut channel.nodes) {
                if let Some(node) = self.nodes.get_mut(&number) {
                    node.channels.remove(name);
                }
            }
            self.forget(name);
        }
        self.tell_of_gaps();
    }

    fn forget(&mut self, name: &Arc<str>) {
        if self.channels.remove(name).is_some_and(|channel| channel.is_restoring) {
            self.unrestored -= 1;
            self.tell_of_gaps();
        }
    }

    /// Passes a message to the nodes that subscribe to its channel.
    pub(crate) fn deliver(&mut self, name: &str, message: &Bytes) {
        let Some((name, channel)) = self.channels.get_key_value(name) else { return };
        // It may be from before the subscription, where the broker sends everything to everybody.
        if channel.at_broker != AtBroker::InEffect {
            return;
        }
        let passed = channel.nodes.iter().map(|(node, arriving)| (node, arriving.put(name, message.clone())));
        let gone: Vec<u64> = passed.filter(|(_, wanted)| !wanted).map(|(node, _)| *node).collect();
        for node in gone {
            self.leave(node);
        }
    }

    /// The bus is connected.
    pub(crate) fn connected(&mut self) {
        self.phase = Phase::Connected;
        let names: Vec<Arc<str>> = self.channels.keys().cloned().collect();
        names.iter().for_each(|name| self.mark(name));
        self.tell_of_gaps();
    }

    /// The connection has ended, or could not be made.
    pub(crate) fn away(&mut self) {
        self.phase = Phase::Away;
        self.changed.clear();
        let names: Vec<Arc<str>> = self.channels.keys().cloned().collect();
        for name in names {
            let Some(channel) = self.channels.get_mut(&name) else { continue };
            if channel.nodes.is_empty() {
                self.forget(&name);
                continue;
            }
            if channel.at_broker == AtBroker::InEffect {
                self.gaps.extend(channel.nodes.iter().map(|(node, _)| *node));
                if !std::mem::replace(&mut channel.is_restoring, true) {
                    self.unrestored += 1;
                }
            }
            channel.at_broker = AtBroker::Nothing;
            channel.is_changed = false;
        }
    }

    /// Ends everything.
    pub(crate) fn end(&mut self) {
        self.phase = Phase::Ended;
        // Whoever waits is told, because the answers are dropped.
        self.queue = Queue::default();
        self.channels.clear();
        self.changed.clear();
        for node in self.nodes.values() {
            node.arriving.end();
        }
    }

    fn tell_of_gaps(&mut self) {
        if self.unrestored > 0 || !matches!(self.phase, Phase::Connected) {
            return;
        }
        for node in self.gaps.drain() {
            if let Some(node) = self.nodes.get(&node) {
                node.arriving.put_gap();
            }
        }
    }
}

#[cfg(test)]
mod tests;
