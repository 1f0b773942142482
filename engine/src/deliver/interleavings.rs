//! Rings and bundles under a scheduler that tries interleavings of publishers, pump, reader and whoever subscribes: nothing is
//! lost, repeated or reordered, and nobody waits for a wake-up that never comes (the scheduler reports that as a deadlock).
//!
//! `make test-interleavings` runs them. `TIDINGS_INTERLEAVINGS` says how many schedules of each kind are tried.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Waker};

use bytes::Bytes;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread::{self, JoinHandle};
use shuttle::{check_pct, check_random};
use tidings_model::Pattern;

use super::pump::{self, Work};
use super::ring::PendingTell;
use super::*;

/// Runs a test under random schedules, and under ones with few but unlucky switches.
fn check(test: fn()) {
    let set = std::env::var("TIDINGS_INTERLEAVINGS").ok();
    let schedules = set.map_or(2_000, |set| set.parse().expect("TIDINGS_INTERLEAVINGS is a number"));
    check_random(test, schedules);
    check_pct(test, schedules, 3);
}

/// Rings, and a thread that is their pump.
struct World {
    rings: Rings,
    over: Arc<AtomicBool>,
    pump: JoinHandle<()>,
}

impl World {
    fn new() -> Self {
        let (pumps, mut work) = pump::by_hand();
        let over = Arc::new(AtomicBool::new(false));
        let ended = over.clone();
        let pump = thread::spawn(move || {
            loop {
                // Looked at before the queue: what was queued before the end is still done.
                let over = ended.load(Ordering::SeqCst);
                match work.try_recv() {
                    Ok(Work::Ring(ring)) => {
                        for PendingTell { bundle, slot } in ring.to_tell() {
                            bundle.tell(&ring, slot);
                        }
                    }
                    Ok(Work::Channel(_)) => panic!("there are no channels"),
                    Ok(Work::Bundle(bundle)) => bundle.wake(),
                    Ok(Work::Patterns(patterns)) => patterns.compact_now(),
                    Err(_) if over => return,
                    Err(_) => thread::yield_now(),
                }
            }
        });
        Self { rings: Rings::with(Arc::new(pumps), true), over, pump }
    }

    fn publisher(&self, name: &'static str, from: usize) -> JoinHandle<usize> {
        let rings = self.rings.clone();
        thread::spawn(move || (from..from + 2).map(|number| rings.publish(name, text(number))).sum())
    }

    fn end(self) -> Rings {
        self.over.store(true, Ordering::SeqCst);
        self.pump.join().expect("the pump ends");
        self.rings
    }
}

fn text(number: usize) -> FrameChunks {
    Bytes::from(format!("{number};")).into()
}

/// The numbers of frames, of which several may have been joined.
fn numbers(frame: &Frame) -> Vec<usize> {
    let joined = frame.bytes.clone().joined();
    let text = std::str::from_utf8(&joined).expect("text");
    text.split_terminator(';').map(|number| number.parse().expect("a number")).collect()
}

/// Takes until there are so many, with little room.
fn take(reader: &mut BundleReader, count: usize) -> Vec<usize> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let step = poll_fn(|cx| reader.poll_frames(cx, 1, &mut |frame| taken.extend(numbers(frame))));
        assert_eq!(shuttle::future::block_on(step), Step::Frames);
    }
    taken
}

fn entered(rings: &Rings, names: &[&str]) -> (Bundle, BundleReader) {
    let (bundle, reader) = rings.bundle(u64::MAX);
    for name in names {
        assert_eq!(bundle.enter(name), Ok(true));
    }
    bundle.reply(FrameChunks::from(Bytes::new()), names.iter().copied());
    (bundle, reader)
}

#[test]
fn a_reader_gets_each_frame_of_each_publisher_once_and_in_order() {
    check(|| {
        let world = World::new();
        let (_bundle, mut reader) = entered(&world.rings, &["a", "b"]);
        // Frames are joined for several members only.
        let (_other, _pins) = entered(&world.rings, &["a"]);
        let publishers = [world.publisher("a", 10), world.publisher("a", 20), world.publisher("b", 30)];
        let mut taken = take(&mut reader, 6);
        let reached = publishers.map(|publisher| publisher.join().expect("it ends"));
        assert_eq!(reached, [4, 4, 2], "both members of the one, the reader of the other");
        for from in [10, 20, 30] {
            let place = |number| taken.iter().position(|taken| *taken == number).expect("it was taken");
            assert!(place(from) < place(from + 1), "{taken:?}");
        }
        taken.sort_unstable();
        assert_eq!(taken, [10, 11, 20, 21, 30, 31]);
        world.end();
    });
}

#[test]
fn a_reader_that_takes_frames_before_the_pump_looks_again_is_told_of_later_ones() {
    check(|| {
        let world = World::new();
        let (_bundle, mut reader) = entered(&world.rings, &["a"]);
        let rings = world.rings.clone();
        let publisher =
            thread::spawn(move || (0..3).map(|number| rings.publish("a", text(number))).sum::<usize>());
        let mut taken = Vec::new();
        while taken.len() < 3 {
            let step =
                poll_fn(|cx| reader.poll_frames(cx, usize::MAX, &mut |frame| taken.extend(numbers(frame))));
            assert_eq!(shuttle::future::block_on(step), Step::Frames);
        }
        assert_eq!((taken, publisher.join().expect("it ends")), (vec![0, 1, 2], 3));
        world.end();
    });
}

#[test]
fn a_subscription_that_is_new_hears_what_counted_it_and_after_its_reply() {
    check(|| {
        let world = World::new();
        let (bundle, mut reader) = world.rings.bundle(u64::MAX);
        let publisher = world.publisher("a", 10);
        let subscriber = thread::spawn(move || {
            assert_eq!(bundle.enter("a"), Ok(true));
            bundle.reply(text(0), ["a"]);
            bundle
        });
        assert_eq!(take(&mut reader, 1)[0], 0, "the reply is first");
        let reached = publisher.join().expect("it ends");
        let heard = take(&mut reader, reached);
        assert_eq!(heard, (12 - reached..12).collect::<Vec<_>>(), "the last ones");
        drop(subscriber.join().expect("it ends"));
        world.end();
    });
}

#[test]
fn after_a_leave_nothing_is_taken_and_a_new_subscription_is_a_new_one() {
    check(|| {
        let world = World::new();
        let (bundle, mut reader) = entered(&world.rings, &["a"]);
        let publisher = world.publisher("a", 10);
        assert!(bundle.leave("a"));
        let mut cx = Context::from_waker(Waker::noop());
        let mut nothing = |frame: &Frame| panic!("{:?}", numbers(frame));
        assert!(reader.poll_frames(&mut cx, usize::MAX, &mut nothing).is_pending());
        assert_eq!(bundle.enter("a"), Ok(true));
        bundle.reply(text(0), ["a"]);
        let reached = publisher.join().expect("it ends");
        let fresh = world.rings.publish("a", text(99));
        assert_eq!(fresh, 1);
        let mut heard = take(&mut reader, 2);
        while heard.last() != Some(&99) {
            heard.extend(take(&mut reader, 1));
        }
        assert_eq!(heard[0], 0);
        let of_publisher = &heard[1..heard.len() - 1];
        assert!(of_publisher.len() <= reached, "{heard:?}");
        assert!(
            of_publisher.is_sorted() && of_publisher.iter().all(|number| (10..12).contains(number)),
            "{heard:?}"
        );
        world.end();
    });
}

#[test]
fn nothing_is_left_of_a_reader_that_goes_while_frames_come() {
    check(|| {
        let world = World::new();
        let (bundle, reader) = entered(&world.rings, &["a"]);
        let (_other, mut stays) = entered(&world.rings, &["a"]);
        let publisher = world.publisher("a", 10);
        let goes = thread::spawn(move || drop(reader));
        assert_eq!(take(&mut stays, 2), [10, 11]);
        assert!(publisher.join().expect("it ends") >= 2);
        goes.join().expect("it ends");
        assert!(bundle.is_closed());
        assert_eq!(bundle.enter("b"), Err(Closed));
        drop(stays);
        assert!(world.end().is_empty());
    });
}

/// A client that hears a name, by it or by a pattern, all the time, however it changes: it misses nothing.
#[test]
fn who_changes_between_a_name_and_patterns_gets_each_frame_once_and_in_order() {
    check(|| {
        let world = World::new();
        let patterns = world.rings.patterns();
        let (bundle, mut reader) = entered(&world.rings, &["a"]);
        let publishes = patterns.clone();
        let publisher = thread::spawn(move || {
            (0..3).for_each(|number| assert_eq!(publishes.publish("a", "a", text(number), None), 1));
        });
        let changes = thread::spawn(move || {
            let nothing = || FrameChunks::from(Bytes::new());
            for pattern in ["*", "**"] {
                let parsed = Pattern::parse(pattern).expect("a pattern");
                assert_eq!(bundle.enter_pattern(&patterns, pattern, &parsed), Ok(true));
                bundle.reply(nothing(), [pattern]);
            }
            assert!(bundle.leave("a") && bundle.leave_pattern("*"));
            bundle
        });
        assert_eq!(take(&mut reader, 3), [0, 1, 2]);
        publisher.join().expect("it ends");
        drop(changes.join().expect("it ends"));
        drop(reader);
        assert!(world.end().is_empty());
    });
}
