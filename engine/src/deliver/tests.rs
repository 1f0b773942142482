use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tidings_model::{CommitNumber, LogId, Position, Timestamp};

use super::{Batch, Channels, Encode, Frame, FrameChunks, Join, Limits, Lost, Source, Step, Subscription};
use crate::log::contract::Notes;
use crate::log::{
    Append, Boundary, Commit, Commits, Logs, Memory, Operation, Page, Positions, Record, Span, Then,
};
use crate::{Bus, ManualClock};

struct OfLog(Memory<Notes>, LogId);

impl Source for OfLog {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        async move { self.0.read(self.1, span).await.map_err(Lost::from) }.boxed()
    }
}

/// Writes payloads one behind the other, `!` at the end of a closed log, and counts how often it was asked.
#[derive(Default)]
struct Plain {
    encoded: AtomicU64,
    stamp: AtomicU64,
}

impl Encode for Plain {
    fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::SeqCst)
    }

    fn encode(&self, batch: &Batch<'_>, _: u64) -> FrameChunks {
        self.encoded.fetch_add(1, Ordering::SeqCst);
        let mut out = Vec::new();
        batch.records.iter().for_each(|record| out.extend_from_slice(&record.payload));
        if batch.closed {
            out.push(b'!');
        }
        Bytes::from(out).into()
    }
}

struct World {
    store: Memory<Notes>,
    channels: Channels,
    encode: Arc<Plain>,
    log: LogId,
}

impl World {
    async fn new(ring_bytes: usize) -> Self {
        let bus = Bus::new();
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1)));
        let store = Memory::<Notes>::new(bus.clone(), clock);
        let log = store.reserve().await.expect("a number");
        store.commit(Commit::new().with(Operation::create(log))).await.expect("a new log");
        let channels =
            Channels::new(bus, Limits { ring_bytes, read_bytes: 64, own_bytes: 48, ..Limits::default() });
        Self { store, channels, encode: Arc::default(), log }
    }

    async fn append(&self, text: &str) {
        let append = Append::new(self.log, vec![Bytes::copy_from_slice(text.as_bytes())]);
        self.store.commit(Commit::new().with(append)).await.expect("appended");
    }

    async fn close(&self) {
        let append = Append { then: Then::Close, ..Append::new(self.log, Vec::new()) };
        self.store.commit(Commit::new().with(append)).await.expect("closed");
    }

    async fn join(&self, after: Position, stamp: u64) -> Subscription {
        let tail = self.store.status(self.log).await.expect("there").tail;
        self.channels.join(Join {
            log: self.log,
            form: "plain",
            source: Arc::new(OfLog(self.store.clone(), self.log)),
            encode: self.encode.clone(),
            tail,
            after,
            stamp,
        })
    }
}

async fn hear(subscription: &mut Subscription) -> String {
    let mut frames = Vec::new();
    assert_eq!(subscription.next(0, |frame| frames.push(frame.clone())).await, Step::Frames);
    text(&frames)
}

fn text(frames: &[Frame]) -> String {
    let chunks = frames.iter().flat_map(|frame| frame.bytes.as_slice());
    chunks.map(|chunk| std::str::from_utf8(chunk).expect("text")).collect()
}

#[tokio::test]
async fn a_record_is_encoded_once_for_all_readers_of_the_ring() {
    let world = World::new(1024).await;
    let mut readers = Vec::new();
    for _ in 0..10 {
        let mut reader = world.join(Position::ZERO, 0).await;
        assert_eq!(hear(&mut reader).await, "", "the first frame tells where it is");
        readers.push(reader);
    }
    let before = world.encode.encoded.load(Ordering::SeqCst);
    world.append("a").await;
    for reader in &mut readers {
        assert_eq!(hear(reader).await, "a");
    }
    assert_eq!(world.encode.encoded.load(Ordering::SeqCst), before + 1);
    assert_eq!(world.channels.readers(world.log), 10);
}

/// Panics whenever it is woken, and counts that.
#[derive(Default)]
struct Broken(AtomicU64);

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a waker that panics");
    }
}

#[tokio::test]
async fn a_waker_that_panics_costs_its_reader_and_nobody_else() {
    let world = World::new(1024).await;
    let mut broken = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut broken).await, "");
    let waker = Arc::new(Broken::default());
    let waiting = Waker::from(waker.clone());
    let polled = broken.poll_frames(&mut Context::from_waker(&waiting), 0, &mut |_| {});
    assert!(polled.is_pending());
    let mut well = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut well).await, "");
    for word in ["a", "b", "c"] {
        world.append(word).await;
        assert_eq!(hear(&mut well).await, word);
    }
    assert_eq!(waker.0.load(Ordering::SeqCst), 1, "it was not woken again");
    drop(broken);
    assert_eq!(world.channels.readers(world.log), 1);
    // Those who come later hear, too, and so do those of other logs, whom the same task looks after.
    let mut late = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut late).await, "abc");
    world.close().await;
    assert_eq!((hear(&mut well).await, hear(&mut late).await), ("!".into(), "!".into()));
}

#[tokio::test]
async fn a_reader_that_falls_out_of_the_ring_goes_on_from_the_log() {
    let world = World::new(16).await;
    let mut slow = world.join(Position::ZERO, 0).await;
    let mut quick = world.join(Position::ZERO, 0).await;
    assert_eq!((hear(&mut slow).await, hear(&mut quick).await), (String::new(), String::new()));
    let mut said = String::new();
    for n in 0..100 {
        let word = format!("{n},");
        world.append(&word).await;
        assert_eq!(hear(&mut quick).await, word);
        said += &word;
    }
    let mut heard = String::new();
    while heard.len() < said.len() {
        heard += &hear(&mut slow).await;
    }
    assert_eq!(heard, said);
    world.append("live again").await;
    assert_eq!((hear(&mut slow).await, hear(&mut quick).await), ("live again".into(), "live again".into()));
}

#[tokio::test]
async fn a_closed_log_ends_its_readers_after_the_last_record() {
    let world = World::new(1024).await;
    let mut early = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut early).await, "");
    world.append("last").await;
    world.close().await;
    let mut heard = String::new();
    while !heard.ends_with('!') {
        heard += &hear(&mut early).await;
    }
    assert_eq!(heard, "last!");
    assert_eq!(early.next(0, |_| {}).await, Step::Closed);
    let mut late = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut late).await, "last!");
    assert_eq!(late.next(0, |_| {}).await, Step::Closed);
}

#[tokio::test]
async fn a_log_that_is_deleted_lets_its_readers_go() {
    let world = World::new(1024).await;
    let mut reader = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut reader).await, "");
    world.store.commit(Commit::new().with(Operation::Delete(world.log))).await.expect("deleted");
    assert_eq!(reader.next(0, |_| {}).await, Step::Lost(Lost::Gone));
}

#[tokio::test]
async fn a_reader_is_not_shown_a_lower_stamp_than_it_asked_for_while_that_is_near() {
    let world = World::new(1024).await;
    world.encode.stamp.store(6, Ordering::SeqCst);
    let mut reader = world.join(Position::ZERO, 7).await;
    let mut other = world.join(Position::ZERO, 0).await;
    assert_eq!(hear(&mut other).await, "");
    let mut frames = Vec::new();
    for word in ["a", "b"] {
        world.append(word).await;
        assert_eq!(hear(&mut other).await, word);
    }
    while text(&frames) != "ab" {
        assert_eq!(reader.next(0, |frame| frames.push(frame.clone())).await, Step::Frames);
    }
    world.encode.stamp.store(9, Ordering::SeqCst);
    world.append("c").await;
    assert_eq!(reader.next(0, |frame| frames.push(frame.clone())).await, Step::Frames);
    assert_eq!(text(&frames), "abc");
    let stamps: Vec<u64> = frames.iter().map(|frame| frame.stamp).collect();
    assert!(stamps.is_sorted() && stamps[0] == 7 && stamps.last() == Some(&9), "{stamps:?}");
}

#[tokio::test]
async fn a_reader_that_is_far_ahead_in_time_is_soon_shown_what_all_are() {
    let world = World::new(1024).await;
    let mut reader = world.join(Position::ZERO, 1_000_000).await;
    let mut frames = Vec::new();
    assert_eq!(reader.next(0, |frame| frames.push(frame.clone())).await, Step::Frames);
    assert_eq!(frames[0].stamp, 1_000_000);
    world.encode.stamp.store(1, Ordering::SeqCst);
    assert!(reader.next(0, |_| {}).now_or_never().is_none(), "it is in the ring now");
    let before = world.encode.encoded.load(Ordering::SeqCst);
    world.append("a").await;
    assert_eq!(hear(&mut reader).await, "a");
    assert_eq!(world.encode.encoded.load(Ordering::SeqCst), before + 1);
}

#[tokio::test]
async fn a_frame_from_before_the_time_that_a_reader_waits_for_does_not_make_it_turn_in_circles() {
    let world = World::new(1024).await;
    let mut reader = world.join(Position::ZERO, 1).await;
    let mut other = world.join(Position::ZERO, 0).await;
    assert_eq!((hear(&mut reader).await, hear(&mut other).await), (String::new(), String::new()));
    // Now `other` reads the ring, and keeps the frame there that is stamped with the time before.
    assert!(other.next(0, |_| {}).now_or_never().is_none());
    world.append("a").await;
    while world.encode.encoded.load(Ordering::SeqCst) < 3 {
        tokio::task::yield_now().await;
    }
    world.encode.stamp.store(9, Ordering::SeqCst);
    assert_eq!(hear(&mut reader).await, "a");
}

#[tokio::test]
async fn a_reader_that_is_ahead_in_time_hears_that_the_log_is_closed() {
    let world = World::new(1024).await;
    let mut reader = world.join(Position::ZERO, 1).await;
    assert_eq!(hear(&mut reader).await, "");
    assert!(reader.next(0, |_| {}).now_or_never().is_none());
    world.close().await;
    assert_eq!(hear(&mut reader).await, "!");
    assert_eq!(reader.next(0, |_| {}).await, Step::Closed);
}

#[tokio::test]
async fn readers_who_begin_at_the_same_place_share_what_they_read_there() {
    let world = World::new(1024).await;
    for n in 0..20 {
        world.append(&format!("record {n},")).await;
    }
    let mut readers = Vec::new();
    for _ in 0..10 {
        let mut reader = world.join(Position::ZERO, 0).await;
        assert!(hear(&mut reader).await.starts_with("record 0,"));
        readers.push(reader);
    }
    assert_eq!(world.encode.encoded.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nothing_is_left_of_readers_that_went_away() {
    let world = World::new(1024).await;
    let mut readers = Vec::new();
    for _ in 0..3 {
        let mut reader = world.join(Position::ZERO, 0).await;
        hear(&mut reader).await;
        readers.push(reader);
    }
    assert_eq!((world.channels.len(), world.store.bus().listened()), (1, 1));
    drop(readers);
    while !world.channels.is_empty() {
        // The pump may be holding the channel for a moment.
        tokio::task::yield_now().await;
    }
    assert_eq!(world.store.bus().listened(), 0);
}

#[tokio::test]
async fn a_reader_knows_how_far_behind_it_is_once_it_has_had_all() {
    let world = World::new(16).await;
    for word in ["a", "b", "c"] {
        world.append(word).await;
    }
    let mut reader = world.join(Position::ZERO, 0).await;
    assert_eq!(reader.lag(), None, "what was before it came does not count");
    assert_eq!(hear(&mut reader).await, "abc");
    assert!(reader.next(0, |_| {}).now_or_never().is_none());
    assert_eq!(reader.lag(), Some(0));
    let reached = reader.position();
    let mut other = world.join(reached, 0).await;
    assert_eq!(hear(&mut other).await, "");
    for n in 0..50 {
        world.append(&format!("{n:02}")).await;
        assert_eq!(hear(&mut other).await, format!("{n:02}"));
    }
    assert_eq!((reader.lag(), other.lag()), (Some(50), Some(0)));
    assert_eq!(world.channels.furthest_behind(world.log), Some(reached));
    assert_eq!(reader.next(0, |_| {}).await, Step::Frames);
    let left = reader.lag().expect("it has caught up once");
    assert!(left > 0 && left < 50, "what it reads from the log counts as well: {left}");
    while reader.next(0, |_| {}).now_or_never().is_some() {}
    assert_eq!(reader.lag(), Some(0));
    assert_eq!(world.channels.furthest_behind(world.log), Some(other.position()));
    drop((reader, other));
    assert_eq!(world.channels.furthest_behind(world.log), None);
}

/// A log, and words that only those hear who are there, each at a position of its own.
struct WithAsides(OfLog, std::sync::Mutex<Vec<Record>>);

impl Source for WithAsides {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        self.0.read(span)
    }

    fn fresh(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        async move {
            let mut page = self.0.read(span).await?;
            let asides = self.1.lock().expect("no panic");
            page.records.extend(asides.iter().filter(|aside| aside.position > span.after).cloned());
            page.records.sort_by_key(|record| record.position);
            page.status.tail = page.last(page.status.tail);
            Ok(page)
        }
        .boxed()
    }
}

#[tokio::test]
async fn what_is_only_for_those_who_are_there_is_heard_in_its_place_and_by_nobody_later() {
    let world = World::new(1024).await;
    let of_log = OfLog(world.store.clone(), world.log);
    let source = Arc::new(WithAsides(of_log, std::sync::Mutex::default()));
    let join = |after| {
        let (log, encode, source) = (world.log, world.encode.clone(), source.clone());
        world.channels.join(Join { log, form: "plain", source, encode, tail: after, after, stamp: 0 })
    };
    let give = |at: u128, text: &str| {
        let payload = Bytes::copy_from_slice(text.as_bytes());
        let positions = Positions::Given(vec![Position::new(at)]);
        let append = Append { positions, ..Append::new(world.log, vec![payload]) };
        world.store.commit(Commit::new().with(append))
    };
    give(10, "a").await.expect("appended");
    let mut there = join(Position::new(10));
    assert_eq!(hear(&mut there).await, "");
    source.1.lock().expect("no panic").push(Record {
        position: Position::new(15),
        commit: CommitNumber::ZERO,
        at: Timestamp::from_millis(1),
        payload: Bytes::from_static(b"(aside)"),
        head: None,
        origin: None,
        boundary: Boundary::Last,
    });
    give(20, "b").await.expect("appended");
    let mut heard = hear(&mut there).await;
    while !heard.ends_with('b') {
        heard += &hear(&mut there).await;
    }
    assert_eq!(heard, "(aside)b");
    assert!(there.next(0, |_| {}).now_or_never().is_none());
    assert_eq!(there.lag(), Some(0), "an aside is nothing to be behind with");
    for (after, expected) in [(0, "ab"), (10, "b"), (15, "b"), (17, "b")] {
        let mut late = join(Position::new(after));
        assert_eq!(hear(&mut late).await, expected, "after {after}");
    }
}

/// What happens next in a random play.
#[derive(Clone, Debug)]
enum Act {
    Append(String),
    Join,
    Leave(usize),
    /// One reader takes what there is, so many bytes at most.
    Hear(usize, usize),
    /// The pump gets some turns.
    Pump(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => "[a-z]{1,20}".prop_map(|text| Act::Append(format!("{text}."))),
        1 => Just(Act::Join),
        1 => (0usize..8).prop_map(Act::Leave),
        4 => (0usize..8, 0usize..64).prop_map(|(who, room)| Act::Hear(who, room)),
        3 => (0usize..4).prop_map(Act::Pump),
    ];
    proptest::collection::vec(act, 1..80)
}

/// A reader, what it has heard, and from where on.
struct Listening {
    subscription: Subscription,
    from: usize,
    heard: String,
}

async fn play(acts: Vec<Act>) {
    let world = World::new(40).await;
    let (mut said, mut readers): (String, Vec<Listening>) = (String::new(), Vec::new());
    for act in acts {
        match act {
            Act::Append(text) => {
                world.append(&text).await;
                said += &text;
            }
            Act::Join => {
                let tail = world.store.status(world.log).await.expect("there").tail;
                let (after, from) =
                    if readers.len() % 2 == 0 { (Position::ZERO, 0) } else { (tail, said.len()) };
                let subscription = world.join(after, 0).await;
                readers.push(Listening { subscription, from, heard: String::new() });
            }
            Act::Leave(who) if !readers.is_empty() => drop(readers.remove(who % readers.len())),
            Act::Hear(who, room) if !readers.is_empty() => {
                let at = who % readers.len();
                let mut frames = Vec::new();
                let take = |frame: &Frame| frames.push(frame.clone());
                let step = readers[at].subscription.next(room, take).now_or_never();
                assert!(step.is_none_or(|step| step == Step::Frames));
                readers[at].heard += &text(&frames);
                assert!(said[readers[at].from..].starts_with(&readers[at].heard), "in order, once");
            }
            Act::Pump(turns) => {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
            }
            Act::Leave(_) | Act::Hear(..) => {}
        }
    }
    for reader in &mut readers {
        while reader.heard.len() < said.len() - reader.from {
            reader.heard += &hear(&mut reader.subscription).await;
        }
        assert_eq!(reader.heard, said[reader.from..]);
    }
}

proptest! {
    #[test]
    fn every_reader_hears_everything_in_order_once_however_slow_it_is(acts in acts()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            tokio::time::timeout(std::time::Duration::from_secs(20), play(acts)).await.expect("nobody waits in vain");
        });
    }
}

#[test]
fn a_frame_of_one_piece_is_no_larger_for_those_of_two() {
    assert_eq!(size_of::<FrameChunks>(), size_of::<Bytes>());
    let chunks = FrameChunks::from([Bytes::from_static(b"shared, "), Bytes::from_static(b"own")]);
    assert_eq!((chunks.len(), chunks.is_empty()), (11, false));
    assert_eq!(chunks.joined(), "shared, own");
}
