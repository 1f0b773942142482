//! How a room speaks to somebody who stays: heartbeats, why it ends, and what a WebSocket client may say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tidings_engine::Rng;
use tidings_engine::deliver::Subscription;
use tidings_model::{DeviceId, Position, Timestamp, UserId};
use tidings_rooms::{Cursor, MembershipLease, ReaderKey, ReaderPermit, Room, Rooms};

use super::begin::{Beginning, Channel, Known, Missed, OnStale, Wish};
use super::encode::{Dialect, Info, Kinds, RoomEncoder};
use super::error::seconds;
use crate::live::{CaughtUp, End, FeedProtocol, LastWord, Reply};
use crate::websocket::{Close, Code};

/// When a client may come again whom nothing is wrong with, in milliseconds. Not all at once.
const RETRY_MS: std::ops::RangeInclusive<u64> = 250..=1000;
/// How long a WebSocket client may take to say where it wants to begin.
pub const RESUME_TIME: Duration = Duration::from_secs(1);

/// The end of a WebSocket whose place in the room is gone.
const GONE: u16 = 4410;
/// Of one that was too slow.
const SLOW: u16 = 4409;
/// Of one that is no member any more.
const NOT_MEMBER: u16 = 4403;
/// Of one whose token does not count any more.
const NO_TOKEN: u16 = 4401;

/// When a client may come again whom nothing is wrong with.
pub fn come_again(rng: &Rng) -> Duration {
    Duration::from_millis(rng.within(RETRY_MS))
}

/// Somebody who listens to a room.
pub struct Listener {
    pub rooms: Rooms,
    pub room: Room,
    pub user: UserId,
    /// Under what its place is remembered.
    pub device: DeviceId,
    /// Under what it is known if it is too slow.
    pub key: ReaderKey,
    /// Its membership; none for who manages.
    pub lease: Option<MembershipLease>,
    pub dialect: Dialect,
    pub kinds: Kinds,
    pub known: Known,
    pub on_stale: Option<OnStale>,
    pub overlap: bool,
    /// Whether it has said where to begin in a way that counts for more than a `resume`.
    pub is_decided: bool,
    /// Whether it may have been told with a status that it missed something, and not in the stream yet.
    pub may_be_marked: bool,
    /// Whether it wants to be told when it has had all.
    pub tells_caught_up: bool,
    pub rng: Arc<Rng>,
    /// Counts its streams.
    pub _permit: ReaderPermit,
}

impl Listener {
    /// What it is told first.
    pub fn greeting(&self, beginning: &Beginning, now: Timestamp) -> Vec<Bytes> {
        // Where it begins is its place until it hears something.
        let place = match self.dialect {
            Dialect::Events(_) => {
                let retry = come_again(&self.rng).as_millis();
                Some(Bytes::from(format!("retry: {retry}\nid: {}\n\n", beginning.after)))
            }
            Dialect::Messages => None,
        };
        let info = beginning.info(&self.known).map(|info| self.write(&info, now));
        place.into_iter().chain(info).collect()
    }

    /// What it hears.
    pub fn listen(&self, beginning: &Beginning) -> Subscription {
        let encoder = RoomEncoder::new(&self.room.id, self.dialect, self.kinds);
        let form = encoder.form();
        self.rooms.listen(&self.room, &self.known.bounds, beginning.after, form, Arc::new(encoder))
    }

    /// In the protocol of who has decided where to begin.
    pub fn begun(self) -> Box<dyn FeedProtocol> {
        Box::new(Talk { listener: self, waiting: None, told: Position::ZERO })
    }

    /// In the protocol of who may still say where.
    pub fn waiting(self, otherwise: Beginning, now: Timestamp) -> Box<dyn FeedProtocol> {
        Box::new(Talk { listener: self, waiting: Some((otherwise, now + RESUME_TIME)), told: Position::ZERO })
    }

    fn write(&self, info: &Info, now: Timestamp) -> Bytes {
        info.write(self.dialect, &self.room.id, now)
    }
}

struct Talk {
    listener: Listener,
    /// Where it begins if it does not say, and until when it may.
    waiting: Option<(Beginning, Timestamp)>,
    /// The last place that a heartbeat has told.
    told: Position,
}

/// What a WebSocket client may say.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Said {
    Resume { cursor: String },
    Ack { cursor: String },
    Ping,
}

fn close(number: u16, reason: &str) -> Close {
    Close::new(Code::new(number).unwrap_or(Code::POLICY_VIOLATION), reason)
}

/// The client has said what it may not.
fn violation(reason: &str) -> Reply {
    Reply::Close(Close::new(Code::POLICY_VIOLATION, reason))
}

impl Talk {
    /// Begins where the client did not say otherwise.
    fn start_unasked(&self, beginning: Beginning, answer: Option<Bytes>, now: Timestamp) -> Reply {
        let Listener { rooms, key, may_be_marked, .. } = &self.listener;
        let is_marked = *may_be_marked && rooms.reader_limits().take_mark(key);
        let because = if is_marked { Some(Missed::Compacted(None)) } else { beginning.because };
        self.start(&Beginning { because, ..beginning }, answer, now)
    }

    fn start(&self, beginning: &Beginning, answer: Option<Bytes>, now: Timestamp) -> Reply {
        let words = self.listener.greeting(beginning, now);
        Reply::Begin(answer.into_iter().chain(words).collect(), self.listener.listen(beginning))
    }

    fn resume(&mut self, cursor: &str, now: Timestamp) -> Reply {
        let Some((otherwise, _)) = self.waiting.take() else {
            return violation("resume comes first, and once");
        };
        let Ok(wish) = Wish::parse(cursor) else { return violation("this is no cursor") };
        if self.listener.is_decided {
            return self.start(&otherwise, None, now);
        }
        let Listener { rooms, room, known, on_stale, overlap, .. } = &self.listener;
        let on_stale = on_stale.unwrap_or(OnStale::of(Channel::Message));
        // It may have heard elsewhere what was written since it came.
        let known = known.rising(rooms.ceiling(room));
        match known.choose(wish, *overlap, on_stale) {
            Ok(beginning) => self.start(&beginning, None, now),
            Err(missed) => Reply::Close(close(GONE, missed.reason())),
        }
    }

    /// Whether it is known to be no member any more.
    fn is_removed(&self) -> bool {
        self.listener.lease.as_ref().is_some_and(MembershipLease::is_revoked)
    }

    /// What is said last, in the stream.
    fn info(&self, end: End, resume: Position, lag: Option<u64>, now: Timestamp) -> Option<(Info, Duration)> {
        let Listener { rooms, key, rng, known, .. } = &self.listener;
        let soon = come_again(rng);
        // Who has not begun yet has not been anywhere.
        let cursor = self.waiting.as_ref().map_or(resume.into(), |(beginning, _)| beginning.after);
        let (reason, detail, retry) = match end {
            End::Slow => {
                let retry = rooms.reader_limits().cut(key.clone(), now);
                let detail = json!({
                    "status": 409,
                    "resume": cursor.to_string(),
                    "lag": lag,
                    "retryAfter": seconds(retry),
                });
                ("slow-consumer", detail, retry)
            }
            End::Revoked => ("token-expired", json!({ "status": 401 }), soon),
            End::Expelled if self.is_removed() => ("membership-revoked", json!({ "status": 403 }), soon),
            // Also who was to be removed and perhaps was not: it may come again to see.
            End::Draining | End::Failed | End::Expelled => {
                ("server-restart", json!({ "retryAfter": seconds(soon) }), soon)
            }
            End::Lost => ("compacted", known.detail(Missed::Compacted(Some(cursor))), soon),
            End::Complete | End::TimeOver | End::Left => return None,
        };
        Some((Info { reason, cursor, detail }, retry))
    }
}

impl FeedProtocol for Talk {
    fn may_hear(&self) -> bool {
        self.listener.lease.as_ref().is_none_or(MembershipLease::holds)
    }

    fn heartbeat(&mut self, reached: Position) -> Option<Bytes> {
        const ALIVE: &[u8] = b": keep-alive\n\n";
        // Who hears only some of what happens is told how far all has come: an id without data moves its place.
        if self.listener.kinds == Kinds::ALL || reached <= self.told {
            return Some(Bytes::from_static(ALIVE));
        }
        self.told = reached;
        Some([ALIVE, format!("id: {}\n\n", Cursor::from(reached)).as_bytes()].concat().into())
    }

    fn caught_up(&mut self, reached: Position, now: Timestamp) -> CaughtUp {
        if Cursor::from(reached) < self.listener.known.bounds.head {
            return CaughtUp::NotYet;
        }
        if !self.listener.tells_caught_up {
            return CaughtUp::Silently;
        }
        let info = Info { reason: "caught-up", cursor: reached.into(), detail: json!({}) };
        CaughtUp::Saying(self.listener.write(&info, now))
    }

    fn heard(&mut self, text: &str, now: Timestamp) -> Reply {
        let answer = match serde_json::from_str(text) {
            Err(_) => return violation("expected resume, ack or ping in JSON"),
            Ok(Said::Resume { cursor }) => return self.resume(&cursor, now),
            Ok(Said::Ping) => Some(Bytes::from_static(br#"{"type":"pong"}"#)),
            Ok(Said::Ack { cursor }) => {
                let Ok(cursor) = Cursor::parse(&cursor) else { return violation("this is no cursor") };
                let Listener { rooms, room, user, device, .. } = &self.listener;
                rooms.note_seen(room, user, device, cursor);
                None
            }
        };
        match (self.waiting.take(), answer) {
            (Some((beginning, _)), answer) => self.start_unasked(beginning, answer, now),
            (None, Some(answer)) => Reply::Say(answer),
            (None, None) => Reply::Nothing,
        }
    }

    fn begins_at(&self) -> Option<Timestamp> {
        self.waiting.as_ref().map(|(_, until)| *until)
    }

    fn is_due(&self, now: Timestamp) -> bool {
        // A clock that was set back does not make it wait longer.
        self.waiting.as_ref().is_some_and(|(_, until)| now >= *until || until.since(now) > RESUME_TIME)
    }

    fn begin(&mut self, now: Timestamp) -> Reply {
        match self.waiting.take() {
            Some((beginning, _)) => self.start_unasked(beginning, None, now),
            None => Reply::Nothing,
        }
    }

    fn last_word(&mut self, end: End, resume: Position, lag: Option<u64>, now: Timestamp) -> LastWord {
        let close = match end {
            End::Slow => close(SLOW, "slow-consumer"),
            End::Revoked => close(NO_TOKEN, "token-expired"),
            End::Expelled if self.is_removed() => close(NOT_MEMBER, "membership-revoked"),
            End::Lost => close(GONE, "compacted"),
            End::Failed | End::Expelled => End::Draining.close(),
            End::Draining | End::Complete | End::TimeOver | End::Left => end.close(),
        };
        let Some((info, retry)) = self.info(end, resume, lag, now) else {
            return LastWord { event: None, message: None, close };
        };
        let words = self.listener.write(&info, now);
        match self.listener.dialect {
            Dialect::Messages => LastWord { event: None, message: Some(words), close },
            Dialect::Events(_) => {
                let retry = format!("retry: {}\n\n", retry.as_millis());
                LastWord { event: Some([&words[..], retry.as_bytes()].concat().into()), message: None, close }
            }
        }
    }
}
