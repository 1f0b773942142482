use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use proptest::prelude::*;
use tidings_model::limits;

use super::*;
use crate::Bus;

fn rings() -> Rings {
    Rings::beside(&Channels::new(Bus::new(), Limits::default()))
}

fn text(bytes: &str) -> FrameChunks {
    Bytes::copy_from_slice(bytes.as_bytes()).into()
}

/// A client that counts how often it is woken.
struct Client {
    bundle: Bundle,
    reader: BundleReader,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Client {
    fn of(rings: &Rings) -> Self {
        Self::behind_at_most(rings, u64::MAX)
    }

    fn behind_at_most(rings: &Rings, behind_max: u64) -> Self {
        let (bundle, reader) = rings.bundle(behind_max);
        Self { bundle, reader, woken: Arc::default() }
    }

    fn enters(&self, names: &[&str]) {
        for name in names {
            assert_eq!(self.bundle.enter(name), Ok(true), "{name}");
        }
        self.bundle.reply(FrameChunks::from(Bytes::new()), names.iter().copied());
    }

    /// What can be taken at once.
    fn takes(&mut self) -> Vec<String> {
        let (frames, step) = self.polls(usize::MAX);
        assert_ne!(step, Poll::Ready(Step::TooSlow));
        frames
    }

    /// What can be taken with little room. Frames that end with a semicolon are told apart where several were
    /// joined.
    fn polls(&mut self, room: usize) -> (Vec<String>, Poll<Step>) {
        let (pieces, step) = self.polls_pieces(room);
        let frames = pieces.iter().flat_map(|piece| piece.split_inclusive(';'));
        (frames.map(str::to_owned).collect(), step)
    }

    /// What can be taken at once, as it would be written to a socket.
    fn takes_pieces(&mut self) -> Vec<String> {
        self.polls_pieces(usize::MAX).0
    }

    fn polls_pieces(&mut self, room: usize) -> (Vec<String>, Poll<Step>) {
        let waker = Waker::from(self.woken.clone());
        let mut pieces = Vec::new();
        let step = self.reader.poll_frames(&mut Context::from_waker(&waker), room, &mut |frame| {
            pieces.push(String::from_utf8(frame.bytes.clone().joined().to_vec()).expect("text"));
        });
        (pieces, step)
    }

    fn times_woken(&self) -> usize {
        self.woken.0.load(Ordering::SeqCst)
    }
}

/// Lets the pumps do what they have to.
async fn pumped() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_frame_reaches_all_who_subscribe_to_its_name_and_nobody_else() {
    let rings = rings();
    let (mut first, mut second, mut other) = (Client::of(&rings), Client::of(&rings), Client::of(&rings));
    first.enters(&["a", "b"]);
    second.enters(&["a"]);
    other.enters(&["c"]);
    assert_eq!(rings.publish("a", text("1")), 2);
    assert_eq!(rings.publish("b", text("2")), 1);
    assert_eq!(rings.publish("nobody", text("3")), 0);
    pumped().await;
    let mut taken = first.takes();
    taken.sort();
    assert_eq!(taken, ["1", "2"], "names are not ordered among each other");
    assert_eq!(second.takes(), ["1"]);
    assert_eq!(other.takes(), [""; 0]);
}

#[tokio::test]
async fn a_sender_that_is_left_out_is_not_counted() {
    let rings = rings();
    let (mut sender, mut receiver) = (Client::of(&rings), Client::of(&rings));
    sender.enters(&["a"]);
    assert_eq!(sender.bundle.publish_to_others("a", text("to nobody")), 0);
    receiver.enters(&["a"]);
    assert_eq!(sender.bundle.publish_to_others("a", text("1")), 1);
    assert_eq!(rings.publish("a", text("2")), 2);
    let stranger = Client::of(&rings);
    assert_eq!(stranger.bundle.publish_to_others("a", text("3")), 2);
    pumped().await;
    assert_eq!(sender.takes(), ["2", "3"]);
    assert_eq!(receiver.takes(), ["1", "2", "3"]);
}

#[tokio::test]
async fn frames_that_came_together_are_taken_in_one_piece_by_those_who_receive_all() {
    let rings = rings();
    let (mut sender, mut receiver) = (Client::of(&rings), Client::of(&rings));
    sender.enters(&["a"]);
    receiver.enters(&["a"]);
    sender.bundle.publish_to_others("a", text("1;"));
    rings.publish("a", text("2;"));
    rings.publish("a", text("3;"));
    pumped().await;
    rings.publish("a", text("4;"));
    pumped().await;
    assert_eq!(sender.takes_pieces(), ["2;", "3;", "4;"]);
    assert_eq!(receiver.takes_pieces(), ["1;2;3;", "4;"], "what came later is another piece");
    assert_eq!(rings.kept("a"), 0);
}

#[tokio::test]
async fn frames_that_are_not_to_be_joined_are_taken_as_they_were_published() {
    let rings = Rings::unjoined(&Channels::new(Bus::new(), Limits::default()));
    let (mut first, mut second) = (Client::of(&rings), Client::of(&rings));
    first.enters(&["a"]);
    second.enters(&["a"]);
    rings.publish("a", text("1;"));
    rings.publish("a", text("2;"));
    pumped().await;
    assert_eq!(first.takes_pieces(), ["1;", "2;"]);
    assert_eq!(second.takes_pieces(), ["1;", "2;"]);
}

#[tokio::test]
async fn a_client_that_comes_between_frames_that_are_joined_gets_the_later_ones() {
    let rings = rings();
    let (mut early, mut late) = (Client::of(&rings), Client::of(&rings));
    early.enters(&["a"]);
    rings.publish("a", text("1;"));
    rings.publish("a", text("2;"));
    late.enters(&["a"]);
    rings.publish("a", text("3;"));
    rings.publish("a", text("4;"));
    pumped().await;
    assert_eq!(early.takes_pieces(), ["1;2;3;4;"]);
    assert_eq!(late.takes_pieces(), ["3;", "4;"]);
}

#[tokio::test]
async fn long_frames_are_not_joined_and_neither_are_more_than_a_write_should_have() {
    let rings = rings();
    let (mut first, second) = (Client::of(&rings), Client::of(&rings));
    first.enters(&["a"]);
    second.enters(&["a"]);
    let frames = |count: usize, bytes: usize| vec![format!("{};", "x".repeat(bytes - 1)); count];
    for frame in [frames(20, 1024), frames(2, 5000), frames(2, 10)].concat() {
        rings.publish("a", text(&frame));
    }
    pumped().await;
    let lengths: Vec<_> = first.takes_pieces().iter().map(String::len).collect();
    assert_eq!(lengths, [16 * 1024, 4 * 1024, 5000, 5000, 20]);
}

#[tokio::test]
async fn frames_of_a_name_follow_the_reply_that_tells_of_the_subscription() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["before"]);
    assert_eq!(client.bundle.enter("a"), Ok(true));
    assert_eq!(client.bundle.enter("a"), Ok(false), "it subscribes already");
    rings.publish("a", text("held"));
    rings.publish("before", text("free"));
    pumped().await;
    assert_eq!(client.takes(), ["free"]);
    client.bundle.reply(text("reply"), ["a"]);
    rings.publish("a", text("later"));
    pumped().await;
    assert_eq!(client.takes(), ["reply", "held", "later"]);
}

#[tokio::test]
async fn no_frame_follows_the_end_of_a_subscription() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["a", "b"]);
    rings.publish("a", text("1"));
    rings.publish("b", text("2"));
    pumped().await;
    assert!(client.bundle.leave("a"));
    assert!(!client.bundle.leave("a"));
    client.bundle.reply(text("left"), []);
    assert_eq!(client.takes(), ["left", "2"]);
    client.enters(&["a"]);
    assert_eq!(client.takes(), [""; 0], "what was published before is not of this subscription");
    rings.publish("a", text("3"));
    pumped().await;
    assert_eq!(client.takes(), ["3"]);
}

#[tokio::test]
async fn a_client_is_woken_once_until_it_has_taken_what_there_is() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["a"]);
    assert_eq!(client.takes(), [""; 0]);
    for round in 1..4 {
        for _ in 0..5 {
            rings.publish("a", text("x"));
            pumped().await;
        }
        assert_eq!(client.times_woken(), round);
        assert_eq!(client.takes().len(), 5);
        assert_eq!(client.takes().len(), 0);
    }
}

#[tokio::test]
async fn rings_take_turns_when_a_client_takes_little_at_a_time() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["a", "b"]);
    for number in 0..3 {
        rings.publish("a", text(&format!("a{number}")));
        rings.publish("b", text(&format!("b{number}")));
    }
    pumped().await;
    let mut taken = Vec::new();
    while let (frames, Poll::Ready(Step::Frames)) = client.polls(1) {
        assert_eq!(frames.len(), 1);
        taken.extend(frames);
    }
    let names: String = taken.iter().filter_map(|frame| frame.chars().next()).collect();
    assert!(names == "ababab" || names == "bababa", "{names}");
    taken.sort();
    assert_eq!(taken, ["a0", "a1", "a2", "b0", "b1", "b2"]);
}

#[tokio::test]
async fn frames_are_kept_only_while_somebody_needs_them() {
    let rings = rings();
    let (mut quick, mut slow) = (Client::of(&rings), Client::of(&rings));
    quick.enters(&["a"]);
    slow.enters(&["a"]);
    rings.publish("a", text("12345"));
    pumped().await;
    assert_eq!(quick.takes().len(), 1);
    assert_eq!(rings.kept("a"), 5);
    assert_eq!(slow.takes().len(), 1);
    assert_eq!(rings.kept("a"), 0);
}

#[tokio::test]
async fn a_client_that_is_too_far_behind_ends_and_pins_nothing() {
    let rings = rings();
    let (mut quick, mut slow) = (Client::of(&rings), Client::behind_at_most(&rings, 10_000));
    quick.enters(&["a", "b"]);
    slow.enters(&["a", "b"]);
    let frame = "x".repeat(1000);
    for round in 0..200 {
        // Its limit is for all names together.
        rings.publish(if round % 2 == 0 { "a" } else { "b" }, text(&frame));
        pumped().await;
        assert_eq!(quick.takes().len(), 1);
        assert_eq!(slow.reader.is_too_slow(), round >= 10, "{round}");
        assert!(rings.kept("a") + rings.kept("b") <= 2 * limits::BROADCAST_REVIEW_BYTES + 20_000);
    }
    assert_eq!(slow.polls(usize::MAX), (Vec::new(), Poll::Ready(Step::TooSlow)));
    drop(slow);
    assert_eq!(rings.subscribers("a"), 1);
    rings.publish("a", text("end"));
    pumped().await;
    assert_eq!(quick.takes(), ["end"]);
    assert_eq!(rings.kept("a") + rings.kept("b"), 0);
}

/// A publisher that is never interrupted, so that the pump has no chance.
#[tokio::test]
async fn a_burst_before_the_pump_runs_is_bounded_too() {
    let rings = rings();
    let mut slow = Client::behind_at_most(&rings, 100_000);
    slow.enters(&["a"]);
    let frame = "x".repeat(1000);
    for _ in 0..5000 {
        rings.publish("a", text(&frame));
        assert!(rings.kept("a") <= 100_000 + 2 * limits::BROADCAST_REVIEW_BYTES + 1000);
    }
    assert_eq!(slow.polls(usize::MAX).1, Poll::Ready(Step::TooSlow));
}

#[tokio::test]
async fn a_client_that_takes_what_it_is_given_is_never_too_slow() {
    let rings = rings();
    let mut client = Client::behind_at_most(&rings, 1000);
    client.enters(&["a"]);
    for _ in 0..1000 {
        rings.publish("a", text(&"x".repeat(900)));
        pumped().await;
        assert_eq!(client.takes().len(), 1);
    }
}

#[tokio::test]
async fn one_frame_and_the_next_are_never_too_much_however_large_they_are() {
    let rings = rings();
    let mut client = Client::behind_at_most(&rings, 1000);
    client.enters(&["a", "b"]);
    let large = "x".repeat(100_000);
    for _ in 0..10 {
        for (name, frame) in [("a", large.as_str()), ("b", "small"), ("a", &large[6..])] {
            rings.publish(name, text(frame));
            pumped().await;
            assert!(!client.reader.is_too_slow(), "{name}");
        }
        assert_eq!(client.takes().len(), 3);
    }
    for _ in 0..2 {
        rings.publish("a", text(&large));
    }
    rings.publish("b", text("small"));
    pumped().await;
    assert!(client.reader.is_too_slow(), "but a third is");
}

#[tokio::test]
async fn names_that_a_client_has_left_do_not_pile_up_while_it_takes_nothing() {
    let rings = rings();
    let (mut client, other) = (Client::of(&rings), Client::of(&rings));
    other.enters(&["shared"]);
    client.enters(&["first"]);
    for round in 0..2000 {
        for name in ["shared", &format!("own {round}")] {
            client.enters(&[name]);
            rings.publish(name, text(name));
            pumped().await;
            assert!(client.bundle.leave(name));
        }
        rings.publish("first", text("1"));
        assert!(client.bundle.ready() <= 130, "{round}: {}", client.bundle.ready());
    }
    client.enters(&["last"]);
    rings.publish("last", text("z"));
    pumped().await;
    let taken = client.takes();
    assert_eq!((taken.concat().len(), taken.last().map(String::as_str)), (2001, Some("z")));
    assert_eq!(client.bundle.ready(), 0);
}

#[tokio::test]
async fn nothing_is_left_of_a_client_that_is_gone() {
    let rings = rings();
    let client = Client::of(&rings);
    let names: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    client.enters(&names.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((rings.len(), client.bundle.len()), (100, 100));
    let bundle = client.bundle.clone();
    let woken = client.woken.clone();
    drop(client);
    assert!(rings.is_empty() && bundle.is_empty() && bundle.is_closed());
    assert_eq!(bundle.enter("again"), Err(Closed));
    bundle.reply(text("too late"), []);
    assert_eq!(bundle.reply_bytes(), 0);
    assert!(rings.is_empty());
    assert_eq!(Arc::strong_count(&woken), 1, "its waker is dropped");
}

#[tokio::test]
async fn a_waker_that_panics_costs_its_own_client_only() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a client's waker");
        }
    }
    let rings = rings();
    let (mut broken, mut healthy) = (Client::of(&rings), Client::of(&rings));
    broken.enters(&["a"]);
    healthy.enters(&["a"]);
    let waker = Waker::from(Arc::new(Panics));
    let polled = broken.reader.poll_frames(&mut Context::from_waker(&waker), 0, &mut |_| {});
    assert_eq!(polled, Poll::Pending);
    assert_eq!(healthy.takes().len(), 0);
    rings.publish("a", text("1"));
    pumped().await;
    rings.publish("a", text("2"));
    pumped().await;
    assert_eq!(healthy.takes(), ["1", "2"]);
}

/// Publishers, a client that comes and goes, and readers on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_or_reordered_when_all_happens_at_once() {
    const EACH: usize = 2000;
    let rings = rings();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let (bundle, mut reader) = rings.bundle(u64::MAX);
        for name in ["a", "b"] {
            bundle.enter(name).expect("open");
        }
        bundle.reply(FrameChunks::from(Bytes::new()), ["a", "b"]);
        readers.push(tokio::spawn(async move {
            let mut seen: BTreeMap<(String, usize), usize> = BTreeMap::new();
            let mut count = 0;
            while count < 2 * 2 * EACH {
                let mut take = |frame: &Frame| {
                    let joined = String::from_utf8(frame.bytes.clone().joined().to_vec()).expect("text");
                    for frame in joined.split_terminator(';') {
                        let (name, rest) = frame.split_once(' ').expect("three parts");
                        let (publisher, number) = rest.split_once(' ').expect("three parts");
                        let (publisher, number): (usize, usize) =
                            (publisher.parse().expect("a number"), number.parse().expect("a number"));
                        let last = seen.entry((name.into(), publisher)).or_default();
                        assert_eq!(*last, number, "in order, without a gap");
                        *last += 1;
                        count += 1;
                    }
                };
                let step = std::future::poll_fn(|cx| reader.poll_frames(cx, 64, &mut take)).await;
                assert_eq!(step, Step::Frames);
            }
            drop(bundle);
        }));
    }
    let churn = {
        let rings = rings.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                let (bundle, reader) = rings.bundle(1000);
                bundle.enter("a").expect("open");
                bundle.reply(FrameChunks::from(Bytes::new()), ["a"]);
                tokio::task::yield_now().await;
                bundle.leave("a");
                drop(reader);
            }
        })
    };
    let publishers = (0..2).map(|publisher| {
        let rings = rings.clone();
        tokio::spawn(async move {
            for number in 0..EACH {
                for name in ["a", "b"] {
                    assert!(rings.publish(name, text(&format!("{name} {publisher} {number};"))) >= 4);
                }
                if number % 16 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        })
    });
    for task in publishers.chain([churn]).collect::<Vec<_>>().into_iter().chain(readers) {
        task.await.expect("no task panics");
    }
    assert!(rings.is_empty());
}

#[derive(Clone, Debug)]
enum Act {
    Enter(usize, usize),
    Release(usize),
    Leave(usize, usize),
    Publish(usize, Option<usize>),
    Take(usize, usize),
    Pump,
    Close(usize),
}

const CLIENTS: usize = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (client, name) = (0..CLIENTS, 0..NAMES.len());
    let act = prop_oneof![
        3 => (client.clone(), name.clone()).prop_map(|(client, name)| Act::Enter(client, name)),
        3 => client.clone().prop_map(Act::Release),
        1 => (client.clone(), name.clone()).prop_map(|(client, name)| Act::Leave(client, name)),
        6 => (name, proptest::option::of(client.clone())).prop_map(|(name, from)| Act::Publish(name, from)),
        4 => (client.clone(), 1..40usize).prop_map(|(client, room)| Act::Take(client, room)),
        4 => Just(Act::Pump),
        1 => client.prop_map(Act::Close),
    ];
    proptest::collection::vec(act, 0..60)
}

/// A client in the sequential model: each name has a queue.
#[derive(Default)]
struct Model {
    queues: BTreeMap<usize, VecDeque<String>>,
    held: BTreeSet<usize>,
    closed: bool,
}

proptest! {
    /// What a client takes of each name is, in order, what a queue per client and name would hold; and when
    /// the pumps have run, all of it can be taken.
    #[test]
    fn a_bundle_is_like_a_queue_for_each_name(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let rings = rings();
            let mut clients: Vec<_> = (0..CLIENTS).map(|_| Some(Client::of(&rings))).collect();
            let mut models: Vec<_> = (0..CLIENTS).map(|_| Model::default()).collect();
            let mut number = 0;
            for act in acts.into_iter().chain((0..CLIENTS).map(Act::Release)).chain([Act::Pump]) {
                match act {
                    Act::Enter(client, name) => {
                        let Some(client_) = &clients[client] else { continue };
                        let new = !models[client].queues.contains_key(&name);
                        assert_eq!(client_.bundle.enter(NAMES[name]), Ok(new));
                        if new {
                            models[client].queues.insert(name, VecDeque::new());
                            models[client].held.insert(name);
                        }
                    }
                    Act::Release(client) => {
                        let Some(client_) = &clients[client] else { continue };
                        let held = std::mem::take(&mut models[client].held);
                        let names = held.iter().map(|name| NAMES[*name]);
                        client_.bundle.reply(FrameChunks::from(Bytes::new()), names);
                    }
                    Act::Leave(client, name) => {
                        let Some(client_) = &clients[client] else { continue };
                        let was = models[client].queues.remove(&name).is_some();
                        models[client].held.remove(&name);
                        assert_eq!(client_.bundle.leave(NAMES[name]), was);
                    }
                    Act::Publish(name, from) => {
                        number += 1;
                        let frame = format!("{} {number};", NAMES[name]);
                        let from = from.filter(|from| clients[*from].is_some());
                        let mut matched = 0;
                        for (client, model) in models.iter_mut().enumerate() {
                            if model.closed || from == Some(client) {
                                continue;
                            }
                            if let Some(queue) = model.queues.get_mut(&name) {
                                queue.push_back(frame.clone());
                                matched += 1;
                            }
                        }
                        let told = match from.and_then(|from| clients[from].as_ref()) {
                            Some(client) => client.bundle.publish_to_others(NAMES[name], text(&frame)),
                            None => rings.publish(NAMES[name], text(&frame)),
                        };
                        assert_eq!(told, matched);
                    }
                    Act::Take(client, room) => {
                        let Some(client_) = &mut clients[client] else { continue };
                        let (frames, _) = client_.polls(room);
                        for frame in frames {
                            let name = NAMES.iter().position(|name| frame.starts_with(name)).expect("a name");
                            assert!(!models[client].held.contains(&name));
                            let queue = models[client].queues.get_mut(&name).expect("a subscription");
                            assert_eq!(queue.pop_front(), Some(frame));
                        }
                    }
                    Act::Pump => pumped().await,
                    Act::Close(client) => {
                        clients[client] = None;
                        models[client].closed = true;
                    }
                }
            }
            for (client, model) in clients.iter_mut().zip(models) {
                let Some(client) = client else { continue };
                let mut rest: BTreeMap<usize, VecDeque<String>> = BTreeMap::new();
                for frame in client.takes() {
                    let name = NAMES.iter().position(|name| frame.starts_with(name)).expect("a name");
                    rest.entry(name).or_default().push_back(frame);
                }
                let expected = model.queues.into_iter().filter(|(_, queue)| !queue.is_empty());
                assert_eq!(rest, expected.collect::<BTreeMap<_, _>>());
            }
            pumped().await;
            for name in NAMES {
                assert_eq!(rings.kept(name), 0, "all was taken");
            }
            drop(clients);
            assert!(rings.is_empty());
        });
    }
}

#[tokio::test]
async fn a_sealed_bundle_takes_replies_and_no_names() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["a"]);
    assert_eq!(rings.publish("a", text("lost")), 1);
    client.bundle.seal();
    assert_eq!(client.bundle.enter("b"), Err(Closed));
    assert_eq!(rings.publish("a", text("nobody")), 0);
    assert!(rings.is_empty());
    client.bundle.reply(text("bye"), []);
    assert_eq!(client.takes(), ["bye"]);
}

#[tokio::test]
async fn who_asks_is_told_that_a_reader_was_dropped_after_its_names_are_free() {
    let rings = rings();
    let mut client = Client::of(&rings);
    client.enters(&["a"]);
    assert_eq!(rings.members("a"), [client.bundle.number()]);
    let (told, seen) = std::sync::mpsc::channel();
    let at_drop = rings.clone();
    client.reader.when_dropped(move || told.send(at_drop.len()).expect("the test listens"));
    drop(client);
    assert_eq!(seen.recv(), Ok(0));
    assert!(rings.members("a").is_empty());
}
