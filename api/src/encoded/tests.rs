use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::deliver::{
    Batch, Channels, Encode, FrameChunks, Join, Limits, Lost, Source, Step, Subscription,
};
use tidings_engine::log::{Boundary, Origin, Page, Record, Span, Status};
use tidings_engine::{Bus, ManualClock};
use tidings_model::{CommitNumber, LogId, Position, Timestamp, limits};
use tidings_streams::ContentType;

use super::{Encoded, Form};
use crate::live::Framing;
use crate::messages::Messages;
use crate::sse::{Encoding, Sse};

const EVENT: Form = Form::Event(Encoding::Json, Framing::Plain);

fn position(number: u64) -> Position {
    Position::in_commit(CommitNumber::from_number(number), 0)
}

/// A record of a session that refers to record `origin` of log 1.
fn reference(at: u64, origin: u64, payload: impl Into<Bytes>) -> Record {
    Record {
        position: position(at),
        commit: CommitNumber::from_number(at),
        at: Timestamp::from_millis(5),
        payload: payload.into(),
        head: None,
        origin: Some(Origin {
            log: LogId::new(1),
            position: position(origin),
            at: Timestamp::from_millis(4),
        }),
        boundary: Boundary::Last,
    }
}

fn large(fill: char) -> String {
    format!("\"{}\"", fill.to_string().repeat(limits::SHARED_RECORD_BYTES))
}

/// Whether they are written when they are asked for; none if that is each one's own affair.
fn is_written(encoded: &Encoded, form: Form, records: &[Record]) -> Option<bool> {
    let mut written = false;
    let write = || {
        written = true;
        records[0].payload.clone()
    };
    encoded.records(form, records, write).map(|_| written)
}

#[test]
fn only_what_is_written_alike_is_shared() {
    let encoded = Encoded::default();
    let one = reference(7, 3, large('a'));
    assert_eq!(is_written(&encoded, EVENT, std::slice::from_ref(&one)), Some(true));
    let elsewhere = Record { position: position(9), commit: CommitNumber::from_number(9), ..one.clone() };
    assert_eq!(is_written(&encoded, EVENT, &[elsewhere]), Some(false), "another session's own place");

    let inside = |record: &Record| Record { boundary: Boundary::Inside, ..record.clone() };
    let next = reference(8, 4, large('b'));
    let other_log = one.origin.map(|origin| Origin { log: LogId::new(2), ..origin });
    let head = Some(r#"{"payload":"#.into());
    let others = [
        ("another record", vec![reference(7, 4, large('a'))]),
        ("another log's", vec![Record { origin: other_log, ..one.clone() }]),
        ("in an envelope", vec![Record { head, ..one.clone() }]),
        ("with another one", vec![inside(&one), next.clone()]),
        ("with yet another one", vec![inside(&one), reference(8, 5, large('b'))]),
        ("with both", vec![inside(&one), inside(&next), reference(8, 5, large('b'))]),
    ];
    for (case, records) in &others {
        assert_eq!(is_written(&encoded, EVENT, records), Some(true), "{case}");
        assert_eq!(is_written(&encoded, EVENT, records), Some(false), "{case}, again");
    }
    let forms = [
        Form::Event(Encoding::Text, Framing::Plain),
        Form::Event(Encoding::Json, Framing::Chunked),
        Form::Message { json: true, text: true },
        Form::Message { json: false, text: true },
        Form::JsonBody,
    ];
    for form in forms {
        assert_eq!(is_written(&encoded, form, std::slice::from_ref(&one)), Some(true), "{form:?}");
    }
}

#[test]
fn what_is_small_or_no_reference_or_no_whole_append_is_nobody_elses() {
    let encoded = Encoded::default();
    let one = reference(7, 3, large('a'));
    let inside = Record { boundary: Boundary::Inside, ..one.clone() };
    let other_log = one.origin.map(|origin| Origin { log: LogId::new(2), ..origin });
    let cases = [
        ("nothing", vec![]),
        ("no reference", vec![Record { origin: None, ..one.clone() }]),
        ("small", vec![reference(7, 3, "1")]),
        ("small on the whole", vec![Record { payload: "1".into(), ..inside.clone() }, one.clone()]),
        ("two appends", vec![one.clone(), reference(8, 4, large('b'))]),
        ("half an append", vec![inside.clone()]),
        ("from two logs", vec![inside.clone(), Record { origin: other_log, ..one.clone() }]),
        ("not all of them references", vec![inside, Record { origin: None, ..one }]),
    ];
    for (case, records) in cases {
        assert_eq!(is_written(&encoded, EVENT, &records), None, "{case}");
    }
    assert!(encoded.lock().young.pieces.is_empty());
}

/// Bytes that are kept, counted anew.
fn kept(encoded: &Encoded) -> usize {
    let kept = encoded.lock();
    [&kept.young, &kept.old]
        .map(|some| {
            let bytes = some.pieces.iter().map(|(key, piece)| key.bytes() + piece.len()).sum();
            assert_eq!(some.bytes, bytes);
            bytes
        })
        .iter()
        .sum()
}

#[test]
fn what_is_kept_is_bounded_and_goes_with_time() {
    let encoded = Encoded::default();
    let payload = Bytes::from(vec![b'x'; 100_000]);
    for n in 0..100 {
        let record = [reference(n, n, payload.clone())];
        assert_eq!(is_written(&encoded, EVENT, &record), Some(true));
        assert_eq!(is_written(&encoded, EVENT, &record), Some(false));
        assert!(kept(&encoded) <= limits::SHARED_BYTES);
    }
    assert!(kept(&encoded) > limits::SHARED_BYTES / 2 - 200_000);

    let huge = Bytes::from(vec![b'x'; 2 * limits::SHARED_BYTES]);
    for n in 200..203 {
        let record = [reference(n, n, huge.clone())];
        assert_eq!(is_written(&encoded, EVENT, &record), Some(true));
        assert_eq!(is_written(&encoded, EVENT, &record), Some(false));
        assert!(kept(&encoded) <= huge.len() + limits::SHARED_BYTES / 2);
    }
    encoded.sweep();
    assert_eq!(is_written(&encoded, EVENT, &[reference(202, 202, huge)]), Some(false));
    encoded.sweep();
    assert_eq!(kept(&encoded), 0);
}

/// A session whose records lie in memory.
#[derive(Default)]
struct Session(Mutex<Vec<Record>>);

impl Source for Session {
    fn read(&self, span: Span) -> BoxFuture<'_, Result<Page, Lost>> {
        let all = self.0.lock().expect("nobody panics");
        let wanted = |record: &&Record| record.position > span.after && record.position <= span.through;
        let records = all.iter().filter(wanted).cloned().collect();
        let tail = all.last().map_or(Position::ZERO, |record| record.position);
        std::future::ready(Ok(Page { records, status: Status { tail, ..Status::default() } })).boxed()
    }
}

async fn hear(subscription: &mut Subscription) -> FrameChunks {
    let mut frames = Vec::new();
    assert_eq!(subscription.next(0, |frame| frames.push(frame.bytes.clone())).await, Step::Frames);
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

/// The body that a client sees.
fn unframed(framing: Framing, bytes: &[u8]) -> Vec<u8> {
    if framing == Framing::Plain {
        return bytes.to_vec();
    }
    let (mut body, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let line = rest.windows(2).position(|two| two == b"\r\n").expect("a line with a length");
        let length = std::str::from_utf8(&rest[..line]).expect("a number");
        let length = usize::from_str_radix(length, 16).expect("a number");
        body.extend_from_slice(&rest[line + 2..][..length]);
        rest = rest[line + 2 + length..].strip_prefix(b"\r\n").expect("the end of the chunk");
    }
    body
}

#[tokio::test]
async fn readers_of_many_sessions_hear_a_record_that_was_written_once() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1)));
    let types = ["application/json", "text/plain", "application/octet-stream"];
    let kinds = types
        .iter()
        .flat_map(|kind| [(kind, Some(Framing::Plain)), (kind, Some(Framing::Chunked)), (kind, None)]);
    for (kind, framing) in kinds {
        let content_type = ContentType::parse(kind).expect("a type");
        let encoder = |encoded: &Arc<Encoded>| -> Arc<dyn Encode> {
            match framing {
                Some(framing) => Arc::new(Sse::new(&content_type, framing, clock.clone(), encoded.clone())),
                None => Arc::new(Messages::new(&content_type, encoded.clone())),
            }
        };
        let (bus, encoded) = (Bus::new(), Arc::<Encoded>::default());
        let channels = Channels::new(bus.clone(), Limits::default());
        let mut sessions = Vec::new();
        for n in 0..100 {
            let (log, session) = (LogId::new(n + 10), Arc::<Session>::default());
            let (source, tail, after) = (session.clone(), Position::ZERO, Position::ZERO);
            let join = Join { log, form: "any", source, encode: encoder(&encoded), tail, after, stamp: 0 };
            let mut reader = channels.join(join);
            hear(&mut reader).await;
            assert!(reader.next(0, |_| {}).now_or_never().is_none(), "it is at the tail");
            sessions.push((log, session, reader));
        }
        // Each has a place of its own for it.
        for (log, session, _) in &sessions {
            session.0.lock().expect("nobody panics").push(reference(log.get(), 3, large('a')));
            bus.wake(*log);
        }
        let mut shared = None;
        for (log, session, reader) in &mut sessions {
            let heard = hear(reader).await;
            let [records, _] = heard.as_slice() else { panic!("two pieces: {heard:?}") };
            let shared: &Bytes = shared.get_or_insert_with(|| records.clone());
            assert_eq!(records.as_ptr(), shared.as_ptr(), "the same bytes in memory for {log:?}");
            // As if it were a record of their own.
            let mut own = session.0.lock().expect("nobody panics").clone();
            own[0].origin = None;
            let batch = Batch { records: &own, next: own[0].position, up_to_date: true, closed: false };
            let alone = encoder(&encoded).encode(&batch, 0);
            assert!(matches!(alone, FrameChunks::One(_)));
            let seen = |pieces: FrameChunks| unframed(framing.unwrap_or(Framing::Plain), &pieces.joined());
            assert_eq!(seen(heard), seen(alone));
        }
    }
}
