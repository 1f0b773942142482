use futures_util::FutureExt;
use tidings_engine::bus::messages::{Arrival, Arrivals};

use super::*;

/// A state, one node, and what it hears.
struct World {
    state: State,
    node: u64,
    arrivals: Arrivals,
}

impl World {
    fn connected() -> Self {
        let (arriving, arrivals) = Arrivals::new(1 << 20);
        let mut state = State::default();
        let node = state.join(arriving);
        state.connected();
        Self { state, node, arrivals }
    }

    fn subscribe(&mut self, name: &str) -> oneshot::Receiver<Result<(), BusError>> {
        let (answer, answered) = oneshot::channel();
        self.state.subscribe(self.node, name, answer);
        answered
    }

    fn unsubscribe(&mut self, name: &str) {
        self.state.unsubscribe(self.node, name);
    }

    /// What the broker is told, as `+name number` or `-name`.
    fn told(&mut self) -> Vec<String> {
        let changes = std::iter::from_fn(|| self.state.next_change());
        changes
            .map(|change| match change {
                Change::Subscribe(name, number) => format!("+{name} {number}"),
                Change::Unsubscribe(name) => format!("-{name}"),
            })
            .collect()
    }

    fn confirmed(&mut self, name: &str, number: u64) {
        self.state.answered(&name.into(), number, Ok(()));
    }

    fn hears(&mut self) -> Option<Arrival> {
        self.arrivals.next().now_or_never().flatten()
    }
}

const GAP: Option<Arrival> = Some(Arrival::Lost { at_least: 0 });

#[test]
fn the_broker_is_told_only_what_has_changed_in_the_end() {
    let mut world = World::connected();
    for _ in 0..10 {
        drop(world.subscribe("a"));
        drop(world.subscribe("b"));
        world.unsubscribe("a");
    }
    assert_eq!(world.told(), ["+b 1"]);
    world.confirmed("b", 1);
    world.unsubscribe("b");
    let again = world.subscribe("b");
    assert_eq!(world.told(), Vec::<String>::new(), "it was in effect all the time");
    assert_eq!(again.now_or_never(), Some(Ok(Ok(()))));
    world.unsubscribe("b");
    assert_eq!(world.told(), ["-b"]);
}

#[test]
fn an_answer_to_an_earlier_subscription_is_not_taken_for_that_to_a_later_one() {
    let mut world = World::connected();
    let first = world.subscribe("a");
    assert_eq!(world.told(), ["+a 1"]);
    world.unsubscribe("a");
    assert!(first.now_or_never().is_some_and(|ended| ended.is_err()), "whoever waits is told");
    assert_eq!(world.told(), ["-a"]);
    let second = world.subscribe("a");
    assert_eq!(world.told(), ["+a 2"]);
    world.confirmed("a", 1);
    assert!(!world.state.is_in_effect(world.node, "a"));
    world.confirmed("a", 2);
    assert!(world.state.is_in_effect(world.node, "a"));
    assert_eq!(second.now_or_never(), Some(Ok(Ok(()))));
}

#[test]
fn a_subscription_that_is_refused_leaves_nothing() {
    let mut world = World::connected();
    let answered = world.subscribe("a");
    world.told();
    world.state.answered(&"a".into(), 1, Err(BusError::Failed("no".to_owned())));
    assert!(answered.now_or_never().is_some_and(|answer| answer.is_ok_and(|result| result.is_err())));
    assert!(world.state.channels.is_empty());
    assert!(world.state.nodes[&world.node].channels.is_empty());
}

#[test]
fn a_gap_is_told_when_all_that_was_lost_is_in_effect_again() {
    let mut world = World::connected();
    for name in ["a", "b", "c"] {
        drop(world.subscribe(name));
    }
    world.told();
    world.confirmed("a", 1);
    world.confirmed("b", 2);
    world.state.away();
    assert!(!world.state.is_in_effect(world.node, "a"));
    world.state.connected();
    assert_eq!(world.told().len(), 3);
    let numbers: HashMap<Arc<str>, u64> = world
        .state
        .channels
        .iter()
        .filter_map(|(name, channel)| match channel.at_broker {
            AtBroker::Told(number) => Some((name.clone(), number)),
            AtBroker::Nothing | AtBroker::InEffect => None,
        })
        .collect();
    world.confirmed("a", numbers["a"]);
    world.state.deliver("a", &Bytes::from_static(b"x"));
    assert!(matches!(world.hears(), Some(Arrival::Message { .. })), "before the gap is told");
    assert_eq!(world.hears(), None, "`b` is not in effect yet");
    world.confirmed("b", numbers["b"]);
    assert_eq!(world.hears(), GAP, "`c` never was in effect");
    assert_eq!(world.hears(), None);
}

#[test]
fn a_gap_is_told_also_when_the_rest_of_what_was_lost_is_not_wanted_any_more() {
    let mut world = World::connected();
    drop(world.subscribe("a"));
    world.told();
    world.confirmed("a", 1);
    world.state.away();
    // Twice, as when connecting fails.
    world.state.away();
    world.unsubscribe("a");
    world.state.connected();
    assert_eq!(world.hears(), GAP);
    assert_eq!(world.told(), Vec::<String>::new());
}

#[test]
fn changes_while_the_broker_is_away_leave_only_what_is_wanted() {
    let mut world = World::connected();
    world.state.away();
    for round in 0..10_000 {
        let name = format!("c{round}");
        drop(world.subscribe(&name));
        drop(world.subscribe("stays"));
        world.unsubscribe(&name);
    }
    let State { channels, changed, nodes, .. } = &world.state;
    assert_eq!((channels.len(), changed.len(), nodes[&world.node].channels.len()), (1, 0, 1));
    assert!(channels["stays"].waiting.len() < 10, "those who are gone do not wait");
    world.state.connected();
    assert_eq!(world.told(), ["+stays 1"]);
}

#[test]
fn changes_while_the_connection_takes_nothing_are_bounded() {
    let mut world = World::connected();
    for round in 0..100_000 {
        let name = format!("c{round}");
        drop(world.subscribe(&name));
        world.unsubscribe(&name);
    }
    assert!(world.state.changed.len() < 5000 && world.state.channels.is_empty());
    drop(world.subscribe("stays"));
    assert_eq!(world.told(), ["+stays 1"]);
}

#[test]
fn a_node_whose_arrivals_are_gone_leaves_nothing() {
    let mut world = World::connected();
    drop(world.subscribe("a"));
    world.told();
    world.confirmed("a", 1);
    drop(std::mem::replace(&mut world.arrivals, Arrivals::new(0).1));
    world.state.deliver("a", &Bytes::from_static(b"x"));
    assert_eq!(world.told(), ["-a"]);
    assert!(world.state.channels.is_empty() && world.state.nodes.is_empty());
}

#[test]
fn a_queue_has_a_limit_of_bytes_and_of_messages_and_takes_one_message_of_any_size() {
    let add = |queue: &mut Queue, bytes: usize, at: u64| {
        let message = Bytes::from(vec![0; bytes]);
        queue.add("a", message, oneshot::channel().0, Duration::from_secs(at), (100, 3))
    };
    let mut queue = Queue::default();
    assert_eq!(add(&mut queue, 200, 0), Ok(()));
    assert_eq!(add(&mut queue, 0, 0), Err(BusError::Full));
    assert!(queue.take().is_some());
    for at in 1..=3 {
        assert_eq!(add(&mut queue, 10, at), Ok(()));
    }
    assert_eq!(add(&mut queue, 1, 4), Err(BusError::Full));
    let older = Duration::from_secs(2);
    assert!(queue.take_older(older).is_some() && queue.take_older(older).is_some());
    assert!(queue.take_older(older).is_none());
    assert_eq!(queue.bytes, 10);
}

#[test]
fn nothing_can_be_subscribed_to_after_the_end() {
    let mut world = World::connected();
    let waiting = world.subscribe("a");
    world.state.end();
    assert!(waiting.now_or_never().is_some_and(|ended| ended.is_err()));
    assert!(world.subscribe("b").now_or_never().is_some_and(|ended| ended.is_err()));
    assert!(world.state.channels.is_empty());
    assert_eq!(world.arrivals.next().now_or_never(), Some(None));
}
