//! The protocol of live readers of a room: heartbeats, the reason of the end, and messages of WebSocket
//! clients.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tidings_engine::Rng;
use tidings_engine::deliver::Subscription;
use tidings_model::{DeviceId, Position, Timestamp, UserId};
use tidings_rooms::{Cursor, MembershipLease, ReaderKey, ReaderPermit, Room, Rooms};

use super::begin::{Channel, Known, Missed, OnStale, RequestedStart, StartPoint};
use super::encode::{Dialect, Info, Kinds, RoomEncoder};
use super::error::seconds;
use crate::live::{CaughtUp, End, FeedProtocol, FinalTexts, Reply};
use crate::websocket::{Close, Code, Text};

/// Range of the random delay after which a client should reconnect, in milliseconds; spreads the load of a
/// restart.
const RETRY_MS: std::ops::RangeInclusive<u64> = 250..=1000;
/// Time in which a WebSocket client may say where to begin.
pub const RESUME_TIME: Duration = Duration::from_secs(1);

/// Close code: the cursor cannot be resumed.
const GONE: u16 = 4410;
/// Close code: the client was too slow.
const SLOW: u16 = 4409;
/// Close code: the client is not a member any more.
const NOT_MEMBER: u16 = 4403;
/// Close code: the token is no longer valid.
const NO_TOKEN: u16 = 4401;

/// A random delay after which a client should reconnect.
pub fn reconnect_delay(rng: &Rng) -> Duration {
    Duration::from_millis(rng.within(RETRY_MS))
}

/// A live reader of a room.
pub struct Listener {
    pub rooms: Rooms,
    pub room: Room,
    pub user: UserId,
    /// The device under which its read receipts are stored.
    pub device: DeviceId,
    /// Key of its limits and cool-downs.
    pub key: ReaderKey,
    /// Lease of its membership; `None` for callers that manage rooms.
    pub lease: Option<MembershipLease>,
    pub dialect: Dialect,
    pub kinds: Kinds,
    pub known: Known,
    pub on_stale: Option<OnStale>,
    pub overlap: bool,
    /// Whether it has said where to begin in a way that takes precedence over a `resume` message.
    pub is_decided: bool,
    /// Whether it may be marked as refused because its events were removed, see `ReaderLimits::mark_compacted`.
    pub may_be_marked: bool,
    /// Whether it asked for an `infoEvent` when it has caught up.
    pub tells_caught_up: bool,
    pub rng: Arc<Rng>,
    /// Counts as one of the user's streams.
    pub _permit: ReaderPermit,
}

impl Listener {
    /// The first texts that it gets.
    pub fn greeting(&self, start_point: &StartPoint, now: Timestamp) -> Vec<Bytes> {
        // The place where it begins is where it resumes until it receives an event.
        let place = match self.dialect {
            Dialect::Events(_) => {
                let retry = reconnect_delay(&self.rng).as_millis();
                Some(Bytes::from(format!("retry: {retry}\nid: {}\n\n", start_point.after)))
            }
            Dialect::Messages => None,
        };
        let info = start_point.info(&self.known).map(|info| self.write(&info, now));
        place.into_iter().chain(info).collect()
    }

    /// Subscribes it to the room.
    pub fn listen(&self, start_point: &StartPoint) -> Subscription {
        let encoder = RoomEncoder::new(&self.room.id, self.dialect, self.kinds);
        let form = encoder.form();
        self.rooms.listen(&self.room, &self.known.bounds, start_point.after, form, Arc::new(encoder))
    }

    /// The protocol of a reader for which it is decided where to begin.
    pub fn begun(self) -> Box<dyn FeedProtocol> {
        Box::new(RoomProtocol { listener: self, waiting: None, told: Position::ZERO })
    }

    /// The protocol of a reader that may still say where to begin.
    pub fn waiting(self, otherwise: StartPoint, now: Timestamp) -> Box<dyn FeedProtocol> {
        Box::new(RoomProtocol {
            listener: self,
            waiting: Some((otherwise, now + RESUME_TIME)),
            told: Position::ZERO,
        })
    }

    fn write(&self, info: &Info, now: Timestamp) -> Bytes {
        info.write(self.dialect, &self.room.id, now)
    }
}

struct RoomProtocol {
    listener: Listener,
    /// Where it begins if it does not say, and its deadline to say so.
    waiting: Option<(StartPoint, Timestamp)>,
    /// The last position that a heartbeat contained.
    told: Position,
}

/// A message of a WebSocket client.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum ClientMessage {
    Resume { cursor: String },
    Ack { cursor: String },
    Ping,
}

fn close(number: u16, reason: &str) -> Close {
    Close::new(Code::new(number).unwrap_or(Code::POLICY_VIOLATION), reason)
}

/// Closes the connection of a client that sent an invalid message.
fn violation(reason: &str) -> Reply {
    Reply::Close(Close::new(Code::POLICY_VIOLATION, reason))
}

impl RoomProtocol {
    /// Begins at the default place, because the client did not say where.
    fn start_unasked(&self, start_point: StartPoint, answer: Option<Bytes>, now: Timestamp) -> Reply {
        let Listener { rooms, key, may_be_marked, .. } = &self.listener;
        let is_marked = *may_be_marked && rooms.reader_limits().take_mark(key);
        let because = if is_marked { Some(Missed::Compacted(None)) } else { start_point.because };
        self.start(&StartPoint { because, ..start_point }, answer, now)
    }

    fn start(&self, start_point: &StartPoint, answer: Option<Bytes>, now: Timestamp) -> Reply {
        let words = self.listener.greeting(start_point, now);
        Reply::Begin(answer.into_iter().chain(words).collect(), self.listener.listen(start_point).into())
    }

    fn resume(&mut self, cursor: &str, now: Timestamp) -> Reply {
        let Some((otherwise, _)) = self.waiting.take() else {
            return violation("resume comes first, and once");
        };
        let Ok(requested) = RequestedStart::parse(cursor) else { return violation("this is no cursor") };
        if self.listener.is_decided {
            return self.start(&otherwise, None, now);
        }
        let Listener { rooms, room, known, on_stale, overlap, .. } = &self.listener;
        let on_stale = on_stale.unwrap_or(OnStale::of(Channel::Message));
        // The client may have received events elsewhere that were written since it connected.
        let known = known.with_ceiling(rooms.ceiling(room));
        match known.choose(requested, *overlap, on_stale) {
            Ok(start_point) => self.start(&start_point, None, now),
            Err(missed) => Reply::Close(close(GONE, missed.reason())),
        }
    }

    /// Whether its membership has been revoked.
    fn is_removed(&self) -> bool {
        self.listener.lease.as_ref().is_some_and(MembershipLease::is_revoked)
    }

    /// The `infoEvent` at the end, and the delay after which to reconnect.
    fn info(&self, end: End, resume: Position, lag: Option<u64>, now: Timestamp) -> Option<(Info, Duration)> {
        let Listener { rooms, key, rng, known, .. } = &self.listener;
        let soon = reconnect_delay(rng);
        // A client that has not begun yet resumes where it would have begun.
        let cursor = self.waiting.as_ref().map_or(resume.into(), |(start_point, _)| start_point.after);
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
            // Also a client whose removal is uncertain: it may reconnect to find out.
            End::Draining | End::Failed | End::Expelled => {
                ("server-restart", json!({ "retryAfter": seconds(soon) }), soon)
            }
            End::Lost => ("compacted", known.detail(Missed::Compacted(Some(cursor))), soon),
            End::Complete | End::TimeOver | End::Left | End::Silent | End::Misused => return None,
        };
        Some((Info { reason, cursor, detail }, retry))
    }
}

impl FeedProtocol for RoomProtocol {
    fn may_receive(&self) -> bool {
        self.listener.lease.as_ref().is_none_or(MembershipLease::holds)
    }

    fn heartbeat(&mut self, reached: Position) -> Option<Bytes> {
        const ALIVE: &[u8] = b": keep-alive\n\n";
        // A client that filters events is told how far the room has come: an id without data moves its
        // `Last-Event-ID`.
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

    fn on_text(&mut self, text: &Text, now: Timestamp) -> Reply {
        let answer = match serde_json::from_str(text.as_str()) {
            Err(_) => return violation("expected resume, ack or ping in JSON"),
            Ok(ClientMessage::Resume { cursor }) => return self.resume(&cursor, now),
            Ok(ClientMessage::Ping) => Some(Bytes::from_static(br#"{"type":"pong"}"#)),
            Ok(ClientMessage::Ack { cursor }) => {
                let Ok(cursor) = Cursor::parse(&cursor) else { return violation("this is no cursor") };
                let Listener { rooms, room, user, device, .. } = &self.listener;
                rooms.note_seen(room, user, device, cursor);
                None
            }
        };
        match (self.waiting.take(), answer) {
            (Some((start_point, _)), answer) => self.start_unasked(start_point, answer, now),
            (None, Some(answer)) => Reply::Say(answer),
            (None, None) => Reply::Nothing,
        }
    }

    fn begin_deadline(&self) -> Option<Timestamp> {
        self.waiting.as_ref().map(|(_, until)| *until)
    }

    fn is_due(&self, now: Timestamp) -> bool {
        // A clock that was set back does not make the wait longer.
        self.waiting.as_ref().is_some_and(|(_, until)| now >= *until || until.since(now) > RESUME_TIME)
    }

    fn begin(&mut self, now: Timestamp) -> Reply {
        match self.waiting.take() {
            Some((start_point, _)) => self.start_unasked(start_point, None, now),
            None => Reply::Nothing,
        }
    }

    fn final_texts(&mut self, end: End, resume: Position, lag: Option<u64>, now: Timestamp) -> FinalTexts {
        let close = match end {
            End::Slow => close(SLOW, "slow-consumer"),
            End::Revoked => close(NO_TOKEN, "token-expired"),
            End::Expelled if self.is_removed() => close(NOT_MEMBER, "membership-revoked"),
            End::Lost => close(GONE, "compacted"),
            End::Failed | End::Expelled => End::Draining.close(),
            End::Draining | End::Complete | End::TimeOver | End::Left | End::Silent | End::Misused => {
                end.close()
            }
        };
        let Some((info, retry)) = self.info(end, resume, lag, now) else {
            return FinalTexts { event: None, message: None, close };
        };
        let words = self.listener.write(&info, now);
        match self.listener.dialect {
            Dialect::Messages => FinalTexts { event: None, message: Some(words), close },
            Dialect::Events(_) => {
                let retry = format!("retry: {}\n\n", retry.as_millis());
                FinalTexts {
                    event: Some([&words[..], retry.as_bytes()].concat().into()),
                    message: None,
                    close,
                }
            }
        }
    }
}
