//! Decides where a client begins in a room. Pure, so that the table of cases can be tested as a whole.

use serde_json::{Value, json};
use tidings_rooms::{Bounds, Cursor, InvalidCursor};

use super::encode::Info;

/// Where a client asks to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedStart {
    /// At the head: only new events.
    Head,
    /// At the oldest stored event.
    Oldest,
    /// After the last cursor that the server knows the device has seen.
    Last,
    /// After an event; or at it, when an overlap is requested.
    After(Cursor),
}

impl RequestedStart {
    /// Parses a cursor, or one of the words `head`, `oldest` and `last`.
    pub fn parse(text: &str) -> Result<Self, InvalidCursor> {
        Ok(match text {
            "head" => Self::Head,
            "oldest" => Self::Oldest,
            "last" => Self::Last,
            text => Self::After(Cursor::parse(text)?),
        })
    }
}

/// How a client has asked where to begin. It decides the default when that is impossible: a browser's
/// `EventSource` does not reconnect after an error status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// By `cursor=` in the query, or not at all.
    Parameter,
    /// By `Last-Event-ID`.
    Header,
    /// By a `resume` message on a WebSocket.
    Message,
}

/// What to do with a client whose cursor cannot be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStale {
    /// Refuse it.
    Error,
    /// Begin at the head.
    Head,
    /// Begin at the oldest stored event.
    Oldest,
}

impl OnStale {
    /// The default, when the client does not say.
    pub fn of(channel: Channel) -> Self {
        match channel {
            Channel::Parameter => Self::Error,
            Channel::Header | Channel::Message => Self::Head,
        }
    }
}

/// The state of a room and a client when it connects.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The readable range of the room.
    pub bounds: Bounds,
    /// The client sees nothing up to this cursor: the room's floor, or where its membership began.
    pub floor: Cursor,
    /// The last cursor that the client has seen.
    pub last: Option<Cursor>,
    /// Epoch of the rooms.
    pub epoch: u64,
}

/// Where a client begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartPoint {
    /// The client gets the events after this cursor.
    pub after: Cursor,
    /// Why this is not what the client asked for.
    pub because: Option<Missed>,
}

/// Why a client cannot begin where it asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Events after this cursor were removed.
    Compacted(Option<Cursor>),
    /// The cursor was never assigned: the room was restored from a backup, or the cursor belongs to another
    /// room.
    Future(Cursor),
    /// The text is not a cursor.
    Unreadable,
}

impl Missed {
    /// The reason in the `infoEvent`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Compacted(_) => "compacted",
            Self::Future(_) | Self::Unreadable => "reset",
        }
    }

    /// The name of the error.
    pub fn error(self) -> &'static str {
        match self {
            Self::Compacted(_) => "CursorCompacted",
            Self::Future(_) | Self::Unreadable => "FutureCursor",
        }
    }

    /// The message of the error.
    pub fn message(self) -> &'static str {
        match self {
            Self::Compacted(_) => {
                "what came after this cursor is no longer kept; begin at `oldest` or at `head`"
            }
            Self::Future(_) | Self::Unreadable => {
                "this cursor was never given out; begin at `oldest` or at `head`"
            }
        }
    }

    fn requested(self) -> Option<Cursor> {
        match self {
            Self::Compacted(cursor) => cursor,
            Self::Future(cursor) => Some(cursor),
            Self::Unreadable => None,
        }
    }
}

impl Known {
    /// The same state with a higher ceiling, when cursors may have been assigned since.
    #[must_use]
    pub fn with_ceiling(&self, ceiling: Option<Cursor>) -> Self {
        let ceiling = ceiling.unwrap_or_default().max(self.bounds.ceiling);
        Self { bounds: Bounds { ceiling, ..self.bounds }, ..*self }
    }

    /// Decides where a client begins, or that it is refused.
    pub fn choose(
        &self,
        requested: RequestedStart,
        overlap: bool,
        on_stale: OnStale,
    ) -> Result<StartPoint, Missed> {
        let head = self.bounds.head.max(self.floor);
        let begin = |after| Ok(StartPoint { after, because: None });
        let cursor = match requested {
            RequestedStart::Head => return begin(head),
            RequestedStart::Oldest => return begin(self.floor),
            RequestedStart::Last => match self.last {
                Some(cursor) => cursor,
                None => return begin(head),
            },
            RequestedStart::After(cursor) => cursor,
        };
        let missed = if cursor < self.floor {
            Missed::Compacted(Some(cursor))
        } else if cursor > self.bounds.ceiling.max(self.floor) {
            Missed::Future(cursor)
        } else {
            // The event itself, if it still exists, is the first one after the cursor just below it.
            let before =
                Cursor::from(tidings_model::Position::new(cursor.position().get().saturating_sub(1)));
            return begin(if overlap { before.max(self.floor) } else { cursor });
        };
        self.instead(missed, on_stale)
    }

    /// Where a client begins that cannot begin where it asked.
    pub fn instead(&self, missed: Missed, on_stale: OnStale) -> Result<StartPoint, Missed> {
        let head = self.bounds.head.max(self.floor);
        match on_stale {
            OnStale::Error => Err(missed),
            OnStale::Head => Ok(StartPoint { after: head, because: Some(missed) }),
            OnStale::Oldest => Ok(StartPoint { after: self.floor, because: Some(missed) }),
        }
    }

    /// The `detail` for a client that cannot begin where it asked.
    pub fn detail(&self, missed: Missed) -> Value {
        let known = |cursor: Cursor| (cursor > Cursor::ZERO).then(|| cursor.to_string());
        // A client must not learn of events below its floor: to it, the room begins there.
        let oldest = self.bounds.oldest.map(|oldest| oldest.max(self.floor));
        json!({
            "floor": known(self.floor),
            "oldest": oldest.map(|oldest| oldest.to_string()),
            "head": self.bounds.head.to_string(),
            "epoch": self.epoch,
            "requested": missed.requested().map(|cursor| cursor.to_string()),
        })
    }
}

impl StartPoint {
    /// The `infoEvent` that the client gets first.
    pub fn info(&self, known: &Known) -> Option<Info> {
        let because = self.because?;
        Some(Info { reason: because.reason(), cursor: self.after, detail: known.detail(because) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_model::Position;

    fn cursor(number: u128) -> Cursor {
        Cursor::at(Position::new(number))
    }

    /// Events 101 to 200 are kept; 205 was given to one that is not.
    fn known() -> Known {
        let bounds =
            Bounds { floor: cursor(100), oldest: Some(cursor(101)), head: cursor(200), ceiling: cursor(205) };
        Known { bounds, floor: cursor(100), last: None, epoch: 1 }
    }

    #[test]
    fn a_client_begins_where_it_was_unless_that_is_gone_or_never_was() {
        let begins = |requested, on_stale| known().choose(requested, false, on_stale);
        let at = |number| Ok(StartPoint { after: cursor(number), because: None });
        let instead = |number, missed| Ok(StartPoint { after: cursor(number), because: Some(missed) });
        for policy in [OnStale::Error, OnStale::Head, OnStale::Oldest] {
            for (asked, after) in [(100, 100), (101, 101), (150, 150), (200, 200), (205, 205)] {
                assert_eq!(begins(RequestedStart::After(cursor(asked)), policy), at(after), "{asked}");
            }
            assert_eq!(begins(RequestedStart::Head, policy), at(200));
            assert_eq!(begins(RequestedStart::Oldest, policy), at(100));
            assert_eq!(begins(RequestedStart::Last, policy), at(200), "nothing is stored");
        }
        for (asked, missed) in [(99, Missed::Compacted(Some(cursor(99)))), (206, Missed::Future(cursor(206)))]
        {
            let requested = RequestedStart::After(cursor(asked));
            assert_eq!(begins(requested, OnStale::Error), Err(missed));
            assert_eq!(begins(requested, OnStale::Head), instead(200, missed));
            assert_eq!(begins(requested, OnStale::Oldest), instead(100, missed));
        }
    }

    #[test]
    fn what_the_server_remembers_is_a_cursor_like_any_other() {
        let last = |number| Known { last: Some(cursor(number)), ..known() };
        let choose = |known: Known| known.choose(RequestedStart::Last, false, OnStale::Error);
        assert_eq!(choose(last(150)).map(|start_point| start_point.after), Ok(cursor(150)));
        assert_eq!(choose(last(99)), Err(Missed::Compacted(Some(cursor(99)))));
    }

    #[test]
    fn with_overlap_the_event_itself_comes_again() {
        let after = |number| known().choose(RequestedStart::After(cursor(number)), true, OnStale::Error);
        assert_eq!(after(150).map(|start_point| start_point.after), Ok(cursor(149)));
        assert_eq!(after(100).map(|start_point| start_point.after), Ok(cursor(100)), "that one is gone");
    }

    #[test]
    fn who_joined_late_sees_nothing_from_before() {
        let late = Known { floor: cursor(180), ..known() };
        assert_eq!(
            late.choose(RequestedStart::Oldest, false, OnStale::Error).map(|b| b.after),
            Ok(cursor(180))
        );
        assert_eq!(
            late.choose(RequestedStart::After(cursor(150)), false, OnStale::Error),
            Err(Missed::Compacted(Some(cursor(150))))
        );
        assert_eq!(
            late.choose(RequestedStart::After(cursor(180)), true, OnStale::Error).map(|b| b.after),
            Ok(cursor(180))
        );
        let missed = Missed::Compacted(Some(cursor(150)));
        assert_eq!(late.detail(missed)["oldest"], json!(cursor(180).to_string()));
        assert_eq!(known().detail(missed)["oldest"], json!(cursor(101).to_string()));
    }
}
