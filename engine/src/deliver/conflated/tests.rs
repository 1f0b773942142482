use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;
use bytes::Bytes;

/// Values are numbers of which the highest counts. The mark is the number of values ever put.
#[derive(Default)]
struct Highest {
    put: Arc<AtomicU64>,
}

impl Conflate for Highest {
    type Key = u16;
    type Value = u64;
    type Mark = u64;

    fn join(&self, waiting: &mut u64, later: u64) {
        *waiting = (*waiting).max(later);
    }

    fn mark(&self) -> u64 {
        self.put.load(Ordering::SeqCst)
    }

    fn encode(&self, values: Vec<(u16, u64)>, complete: Option<u64>, take: &mut dyn FnMut(FrameChunks)) {
        assert!(values.len() <= TOGETHER);
        let mut text = String::new();
        for (key, value) in values {
            text += &format!("{key}={value};");
        }
        if let Some(mark) = complete {
            text += &format!("all={mark};");
        }
        take(Bytes::from(text).into());
    }
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const MOST: usize = 1000;

/// Takes everything within `room`; `None` if it has to wait.
fn taken(reader: &mut ConflatedReader, woken: &Arc<Woken>, room: usize) -> Option<String> {
    let waker = Waker::from(woken.clone());
    let mut text = Vec::new();
    let mut take = |frame: &Frame| text.extend_from_slice(&frame.bytes.clone().joined());
    match reader.poll_frames(&mut Context::from_waker(&waker), room, &mut take) {
        Poll::Ready(Step::Frames) => Some(String::from_utf8(text).expect("text")),
        Poll::Ready(step) => panic!("{step:?}"),
        Poll::Pending => None,
    }
}

fn put(inbox: &Conflated<Highest>, key: u16, value: u64) {
    let waker = inbox.put(key, value, MOST).expect("there is room");
    inbox.conflate().put.fetch_add(1, Ordering::SeqCst);
    waker.into_iter().for_each(Waker::wake);
}

#[test]
fn a_slow_client_has_one_value_of_each_key_to_take() {
    let (inbox, mut reader) = Conflated::new(Highest::default());
    for change in 0..1_000_000 {
        put(&inbox, (change % 100) as u16, change);
    }
    assert_eq!(inbox.len(), 100);
    assert!(inbox.shared.lock().order.len() <= 200);
    let text = taken(&mut reader, &Arc::default(), usize::MAX).expect("something waits");
    assert_eq!(text.matches('=').count(), 101);
    assert!(text.starts_with("0=999900;1=999901;"), "{text}");
    assert!(text.ends_with("99=999999;all=1000000;"), "{text}");
    assert!(inbox.is_empty() && !reader.is_pending());
}

#[test]
fn replies_go_first_and_the_reader_is_woken_once() {
    let (inbox, mut reader) = Conflated::new(Highest::default());
    let woken = Arc::<Woken>::default();
    assert_eq!(taken(&mut reader, &woken, 100), None);
    put(&inbox, 1, 5);
    put(&inbox, 2, 6);
    inbox.reply(Bytes::from_static(b"hello;"));
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    assert!(reader.is_pending());
    assert_eq!(reader.reply_bytes(), 6);
    assert_eq!(taken(&mut reader, &woken, 100).as_deref(), Some("hello;1=5;2=6;all=2;"));
    assert_eq!(reader.reply_bytes(), 0);
    assert_eq!(taken(&mut reader, &woken, 100), None);
    inbox.reply(Bytes::from_static(b"hello;"));
    put(&inbox, 1, 7);
    assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    let mut replies = 0;
    reader.take_replies(&mut |frame| replies += frame.bytes.len());
    assert_eq!((replies, inbox.len()), (6, 1));
}

#[test]
fn no_more_keys_wait_than_may() {
    let (inbox, mut reader) = Conflated::new(Highest::default());
    assert!(inbox.put(1, 1, 2).is_ok() && inbox.put(2, 1, 2).is_ok());
    assert_eq!(inbox.put(3, 1, 2).err(), Some(Full));
    assert!(inbox.put(2, 9, 2).is_ok(), "it waits already");
    assert_eq!(inbox.remove(&1), Some(1));
    assert!(inbox.put(3, 1, 2).is_ok());
    inbox.retain(|key, _| *key == 3);
    assert_eq!(taken(&mut reader, &Arc::default(), 1).as_deref(), Some("3=1;all=0;"));
}

#[test]
fn a_client_that_takes_little_at_a_time_is_told_the_mark_with_the_last_values() {
    let (inbox, mut reader) = Conflated::new(Highest::default());
    for value in 0..1000 {
        put(&inbox, value as u16, value);
    }
    let texts: Vec<_> = std::iter::from_fn(|| taken(&mut reader, &Arc::default(), 1)).collect();
    assert_eq!(texts.iter().map(|text| text.matches(';').count()).collect::<Vec<_>>(), [256, 256, 256, 233]);
    let complete: Vec<_> = texts.iter().map(|text| text.contains("all=1000;")).collect();
    assert_eq!(complete, [false, false, false, true]);
}

#[test]
fn a_client_that_is_gone_leaves_nothing_behind() {
    let (inbox, mut reader) = Conflated::new(Highest::default());
    let woken = Arc::<Woken>::default();
    assert_eq!(taken(&mut reader, &woken, 1), None);
    put(&inbox, 1, 1);
    let gone = Arc::<Woken>::default();
    let told = gone.clone();
    reader.when_dropped(move || told.wake());
    drop(reader);
    assert_eq!(gone.0.load(Ordering::SeqCst), 1);
    put(&inbox, 2, 2);
    inbox.reply(Bytes::from_static(b"hello"));
    assert!(inbox.is_closed() && inbox.is_empty());
    assert_eq!(inbox.reply_bytes(), 0);
    assert_eq!(Arc::strong_count(&woken), 1, "its waker was dropped");
}

#[derive(Clone, Debug)]
enum Action {
    Put(u16, u64),
    Remove(u16),
    RemoveAbove(u16),
    Reply,
    Take(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..20u16, any::<u64>()).prop_map(|(key, value)| Action::Put(key, value)),
        2 => (0..20u16).prop_map(Action::Remove),
        1 => (0..20u16).prop_map(Action::RemoveAbove),
        2 => Just(Action::Reply),
        4 => (1..60usize).prop_map(Action::Take),
    ]
}

proptest! {
    /// The model is a list of keys with their highest value, and a count of replies.
    #[test]
    fn what_is_taken_is_what_a_list_has(steps in prop::collection::vec(action(), 0..200)) {
        let (inbox, mut reader) = Conflated::new(Highest::default());
        let woken = Arc::<Woken>::default();
        let (mut order, mut values) = (Vec::<u16>::new(), BTreeMap::<u16, u64>::new());
        let (mut replies, mut made, mut waits, mut wakes) = (0usize, 0u64, false, 0u64);
        for step in steps {
            let mut produced = false;
            match step {
                Action::Put(key, value) => {
                    put(&inbox, key, value);
                    made += 1;
                    produced = true;
                    let known = values.entry(key).or_insert_with(|| { order.push(key); value });
                    *known = (*known).max(value);
                }
                Action::Remove(key) => {
                    prop_assert_eq!(inbox.remove(&key), values.remove(&key));
                    order.retain(|known| *known != key);
                }
                Action::RemoveAbove(key) => {
                    inbox.retain(|known, _| *known <= key);
                    values.retain(|known, _| *known <= key);
                    order.retain(|known| *known <= key);
                }
                Action::Reply => {
                    inbox.reply(Bytes::from_static(b"r;"));
                    produced = true;
                    replies += 1;
                }
                Action::Take(room) => {
                    let text = taken(&mut reader, &woken, room);
                    let mut expected = "r;".repeat(std::mem::take(&mut replies));
                    if expected.len() < room && !order.is_empty() {
                        order.drain(..).for_each(|key| expected += &format!("{key}={};", values[&key]));
                        values.clear();
                        expected += &format!("all={made};");
                    }
                    waits = expected.is_empty();
                    prop_assert_eq!(text.unwrap_or_default(), expected);
                }
            }
            if produced && std::mem::take(&mut waits) {
                wakes += 1;
            }
            prop_assert_eq!(woken.0.load(Ordering::SeqCst), wakes);
            prop_assert_eq!(inbox.len(), order.len());
            prop_assert_eq!(inbox.reply_bytes(), replies * 2);
            prop_assert_eq!(reader.is_pending(), replies > 0 || !order.is_empty());
        }
    }
}
