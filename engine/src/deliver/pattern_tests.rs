use std::collections::{BTreeMap, BTreeSet};
use std::task::{Context, Waker};

use bytes::Bytes;
use proptest::prelude::*;
use tidings_model::Pattern;

use super::*;
use crate::Bus;

fn rings() -> Rings {
    Rings::beside(&Channels::new(Bus::new(), Limits::default()))
}

fn text(bytes: impl Into<String>) -> FrameChunks {
    Bytes::from(bytes.into()).into()
}

struct Client {
    bundle: Bundle,
    reader: BundleReader,
    patterns: Patterns,
}

impl Client {
    fn of(patterns: &Patterns, rings: &Rings) -> Self {
        let (bundle, reader) = rings.bundle(u64::MAX);
        Self { bundle, reader, patterns: patterns.clone() }
    }

    /// Subscribes to a name, or to a pattern if it has a star.
    fn enters(&self, name: &str) -> bool {
        match name.contains('*') {
            true => {
                let pattern = Pattern::parse(name).expect("a pattern");
                self.bundle.enter_pattern(&self.patterns, name, &pattern).expect("it is open")
            }
            false => self.bundle.enter(name).expect("it is open"),
        }
    }

    fn leaves(&self, name: &str) -> bool {
        if name.contains('*') { self.bundle.leave_pattern(name) } else { self.bundle.leave(name) }
    }

    fn subscribes(&self, names: &[&str]) {
        names.iter().for_each(|name| assert!(self.enters(name), "{name}"));
        self.replies("", names);
    }

    fn replies(&self, reply: &str, names: &[&str]) {
        self.bundle.reply(text(reply), names.iter().copied());
    }

    fn takes(&mut self, room: usize) -> Vec<String> {
        let mut taken = String::new();
        let mut cx = Context::from_waker(Waker::noop());
        let _ = self.reader.poll_frames(&mut cx, room, &mut |frame| {
            taken += std::str::from_utf8(&frame.bytes.clone().joined()).expect("text");
        });
        taken.split_inclusive(';').map(str::to_owned).collect()
    }
}

/// Has the pumps told everybody, on a runtime with one thread.
async fn told() {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_subscribes_to_a_pattern_hears_the_names_that_match_and_leaves_no_ring_for_them() {
    let rings = rings();
    let patterns = rings.patterns();
    let mut client = Client::of(&patterns, &rings);
    client.subscribes(&["room:*"]);
    assert_eq!(patterns.publish("room:1", "room:1", text("1;"), None), 1);
    assert_eq!(patterns.publish("room:2", "room:2", text("2;"), None), 1);
    assert_eq!(patterns.publish("room", "room", text("3;"), None), 0);
    told().await;
    assert_eq!(rings.len(), 0, "no name has a ring");
    assert_eq!(client.takes(usize::MAX), ["1;", "2;"]);
    assert!(client.leaves("room:*") && !client.leaves("room:*"));
    assert_eq!((patterns.len(), patterns.publish("room:1", "room:1", text("4;"), None)), (0, 0));
}

#[tokio::test]
async fn a_name_and_patterns_that_match_it_bring_a_frame_once_and_count_once() {
    let rings = rings();
    let patterns = rings.patterns();
    let mut clients: Vec<Client> = (0..4).map(|_| Client::of(&patterns, &rings)).collect();
    clients[0].subscribes(&["room:1", "room:*", "**", "*:1"]);
    clients[1].subscribes(&["room:1"]);
    clients[2].subscribes(&["**", "room:2"]);
    clients[3].subscribes(&["room:1", "room:*"]);
    assert_eq!(patterns.publish("room:1", "room:1", text("a;"), None), 4);
    assert_eq!(
        patterns.publish("room:1", "room:1", text("b;"), Some(&clients[3].bundle)),
        3,
        "not the sender"
    );
    assert_eq!(
        patterns.publish("x", "x", text("c;"), Some(&clients[1].bundle)),
        2,
        "who does not hear it anyway"
    );
    assert_eq!(patterns.subscribers("room:1", "room:1"), 4);
    assert_eq!(patterns.members("room:1", "room:1").len(), 4);
    assert_eq!(patterns.members("room:2", "room:2").len(), 3);
    assert!(patterns.has_subscribers("y", "y") && rings.subscribers("y") == 0);
    told().await;
    let taken: Vec<Vec<String>> = clients.iter_mut().map(|client| client.takes(usize::MAX)).collect();
    let taken: Vec<BTreeSet<String>> = taken
        .into_iter()
        .map(|frames| {
            let once: BTreeSet<String> = frames.iter().cloned().collect();
            assert_eq!(once.len(), frames.len(), "{frames:?}");
            once
        })
        .collect();
    let set = |frames: &[&str]| frames.iter().map(|frame| (*frame).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(taken, [set(&["a;", "b;", "c;"]), set(&["a;", "b;"]), set(&["a;", "b;", "c;"]), set(&["a;"])]);
}

#[tokio::test]
async fn nothing_is_left_of_the_patterns_of_a_client_that_is_gone() {
    let rings = rings();
    let patterns = rings.patterns();
    let (gone, sealed) = (Client::of(&patterns, &rings), Client::of(&patterns, &rings));
    gone.subscribes(&["a:*", "**", "a:1"]);
    sealed.subscribes(&["**", "b.*"]);
    drop(gone.reader);
    assert_eq!((patterns.len(), rings.len()), (2, 0));
    sealed.bundle.seal();
    assert_eq!(patterns.len(), 0);
    let pattern = Pattern::parse("**").expect("a pattern");
    assert_eq!(sealed.bundle.enter_pattern(&patterns, "**", &pattern), Err(Refused::Closed));
}

#[tokio::test]
async fn patterns_that_would_make_publishing_too_expensive_are_refused() {
    let rings = rings();
    let patterns = rings.patterns();
    let client = Client::of(&patterns, &rings);
    let entered = (0..10_000).find_map(|number| {
        let name = format!("**:{number}:**:x");
        let pattern = Pattern::parse(&name).expect("a pattern");
        client.bundle.enter_pattern(&patterns, &name, &pattern).err().map(|refused| (number, refused))
    });
    let (number, refused) = entered.expect("there is a limit");
    assert!(refused == Refused::TooComplex && number > 0, "{number}");
    let plain = Pattern::parse("room:1").expect("a pattern");
    assert_eq!(
        client.bundle.enter_pattern(&patterns, "room:1", &plain),
        Ok(true),
        "it costs next to nothing"
    );
}

/// What happens to rings and clients.
#[derive(Clone, Debug)]
enum Event {
    Enter {
        client: usize,
        name: usize,
    },
    Leave {
        client: usize,
        name: usize,
    },
    /// Lets the frames of all that was entered follow.
    Reply {
        client: usize,
    },
    Publish {
        topic: usize,
        except: Option<usize>,
    },
    Tell,
    Take {
        client: usize,
        room: usize,
    },
}

const TOPICS: [&str; 4] = ["a", "a:1", "a:2", "b:1"];
const NAMES: [&str; 8] = ["a", "a:1", "a:2", "b:1", "a:*", "**", "*:1", "a:**"];
const CLIENTS: usize = 3;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..CLIENTS, 0..NAMES.len()).prop_map(|(client, name)| Event::Enter { client, name }),
        3 => (0..CLIENTS, 0..NAMES.len()).prop_map(|(client, name)| Event::Leave { client, name }),
        4 => (0..CLIENTS).prop_map(|client| Event::Reply { client }),
        8 => (0..TOPICS.len(), prop::option::of(0..CLIENTS))
            .prop_map(|(topic, except)| Event::Publish { topic, except }),
        3 => Just(Event::Tell),
        4 => (0..CLIENTS, 1..40usize).prop_map(|(client, room)| Event::Take { client, room }),
    ];
    prop::collection::vec(event, 0..120)
}

/// What a client must and may receive.
#[derive(Default)]
struct Expected {
    subscribed: BTreeSet<&'static str>,
    held: Vec<&'static str>,
    /// Messages by number: their topic, and the reply after which they must not come any more.
    messages: BTreeMap<usize, (&'static str, Option<usize>)>,
    /// Messages that may be missing: what brought them was given up before its first reply.
    optional: BTreeSet<usize>,
    received: Vec<String>,
}

impl Expected {
    fn hears(&self, topic: &str) -> bool {
        self.subscribed.iter().any(|name| Pattern::parse(name).expect("a pattern").matches(topic))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The sequential model: a message goes once, in order, to everybody who subscribes to anything that matches, and it comes
    /// unless all that matches has been unsubscribed from meanwhile; then it does not come after the answer to that.
    #[test]
    fn what_clients_receive_is_what_the_sequential_model_says(events in events()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(run(events))?;
    }
}

async fn run(events: Vec<Event>) -> Result<(), TestCaseError> {
    let rings = rings();
    let patterns = rings.patterns();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| Client::of(&patterns, &rings)).collect();
    let mut expected: Vec<Expected> = (0..CLIENTS).map(|_| Expected::default()).collect();
    let mut number = 0;
    for event in events {
        match event {
            Event::Enter { client, name } => {
                let is_new = expected[client].subscribed.insert(NAMES[name]);
                prop_assert_eq!(clients[client].enters(NAMES[name]), is_new);
                if is_new {
                    expected[client].held.push(NAMES[name]);
                }
            }
            Event::Leave { client, name } => {
                let model = &mut expected[client];
                let was_there = model.subscribed.remove(NAMES[name]);
                prop_assert_eq!(clients[client].leaves(NAMES[name]), was_there);
                if model.held.contains(&NAMES[name]) {
                    model.held.retain(|held| *held != NAMES[name]);
                    let left = Pattern::parse(NAMES[name]).expect("a pattern");
                    let gone = model.messages.iter().filter(|(_, (topic, _))| left.matches(topic));
                    model.optional.extend(gone.map(|(number, _)| *number));
                }
                number += 1;
                clients[client].replies(&format!("={number};"), &[]);
                let heard: Vec<&str> = TOPICS.into_iter().filter(|topic| model.hears(topic)).collect();
                for (topic, until) in model.messages.values_mut() {
                    if until.is_none() && !heard.contains(topic) {
                        *until = Some(number);
                    }
                }
            }
            Event::Reply { client } => {
                let held = std::mem::take(&mut expected[client].held);
                clients[client].replies("", &held);
            }
            Event::Publish { topic, except } => {
                number += 1;
                let topic = TOPICS[topic];
                let mut receivers = 0;
                for (client, model) in expected.iter_mut().enumerate() {
                    if model.hears(topic) && except != Some(client) {
                        model.messages.insert(number, (topic, None));
                        receivers += 1;
                    }
                }
                let all = expected.iter().filter(|model| model.hears(topic)).count();
                prop_assert_eq!(patterns.subscribers(topic, topic), all);
                prop_assert_eq!(patterns.members(topic, topic).len(), all);
                let except = except.map(|client| &clients[client].bundle);
                let frame = text(format!("{number};"));
                prop_assert_eq!(patterns.publish(topic, topic, frame, except), receivers);
            }
            Event::Tell => told().await,
            Event::Take { client, room } => {
                let taken = clients[client].takes(room);
                expected[client].received.extend(taken);
            }
        }
    }
    for (client, model) in clients.iter_mut().zip(&mut expected) {
        client.replies("", &std::mem::take(&mut model.held));
        told().await;
        loop {
            let taken = client.takes(usize::MAX);
            if taken.is_empty() {
                break;
            }
            model.received.extend(taken);
        }
        check(model)?;
    }
    for (client, model) in clients.iter().zip(&expected) {
        model.subscribed.iter().for_each(|name| assert!(client.leaves(name)));
        prop_assert!(client.bundle.is_empty());
    }
    prop_assert_eq!((patterns.len(), rings.len()), (0, 0));
    Ok(())
}

fn check(model: &Expected) -> Result<(), TestCaseError> {
    let mut last = BTreeMap::new();
    let mut replied = 0;
    let mut missing: BTreeSet<usize> =
        model.messages.iter().filter(|(_, (_, until))| until.is_none()).map(|(number, _)| *number).collect();
    for frame in &model.received {
        let frame = frame.trim_end_matches(';');
        if let Some(reply) = frame.strip_prefix('=') {
            replied = reply.parse::<usize>().expect("a number");
            continue;
        }
        let number: usize = frame.parse().expect("a number");
        let Some((topic, until)) = model.messages.get(&number) else {
            return Err(TestCaseError::fail(format!("{number} was not for this client")));
        };
        prop_assert!(until.is_none_or(|until| replied < until), "{} came after its end", number);
        prop_assert!(
            last.insert(topic, number).is_none_or(|last| last < number),
            "{} is out of order",
            number
        );
        missing.remove(&number);
    }
    missing.retain(|number| !model.optional.contains(number));
    prop_assert!(missing.is_empty(), "{:?} did not come", missing);
    Ok(())
}
