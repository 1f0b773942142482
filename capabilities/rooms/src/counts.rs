//! Metrics of rooms.

use tidings_engine::metrics::{Counter, Metrics, Name};

use crate::Kind;

const WRITTEN: Name = Name { name: "tidings_room_events_total", help: "Events written to rooms, by kind." };
const DROPPED: Name = Name {
    name: "tidings_room_typing_dropped_total",
    help: "Typing events dropped before any reader got them.",
};
const COLLAPSED: Name = Name {
    name: "tidings_room_reactions_collapsed_total",
    help: "Reactions removed by compaction because a later one replaces them.",
};
const TRIMMED: Name = Name {
    name: "tidings_room_trims_total",
    help: "Trims of rooms whose oldest events exceeded the retention time.",
};
const SEEN: Name = Name {
    name: "tidings_room_seen_writes_total",
    help: "Read receipts (last-seen cursors) written to the store.",
};
const SEEN_DROPPED: Name = Name {
    name: "tidings_room_seen_dropped_total",
    help: "Last-seen cursors dropped because too many were waiting to be stored.",
};
const FENCED: Name =
    Name { name: "tidings_room_fenced_total", help: "Writes refused because another server owns the room." };
const CLOCK: Name = Name {
    name: "tidings_room_clock_alarms_total",
    help: "Clock corrections while assigning cursors, by direction (behind, ahead).",
};

/// The counters of the rooms.
pub(crate) struct Counts {
    /// Events written, in the order of [`Kind`].
    written: [Counter; 3],
    pub(crate) typing_dropped: Counter,
    pub(crate) collapsed: Counter,
    pub(crate) trimmed: Counter,
    pub(crate) seen: Counter,
    pub(crate) seen_dropped: Counter,
    pub(crate) fenced: Counter,
    /// Counts cursors that were more than a few seconds ahead of the clock.
    pub(crate) clock_behind: Counter,
    /// Counts forward jumps of the clock that were not followed at once.
    pub(crate) clock_ahead: Counter,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            written: Kind::ALL.map(|kind| metrics.counter(WRITTEN, &[("kind", kind.name())])),
            typing_dropped: metrics.counter(DROPPED, &[]),
            collapsed: metrics.counter(COLLAPSED, &[]),
            trimmed: metrics.counter(TRIMMED, &[]),
            seen: metrics.counter(SEEN, &[]),
            seen_dropped: metrics.counter(SEEN_DROPPED, &[]),
            fenced: metrics.counter(FENCED, &[]),
            clock_behind: metrics.counter(CLOCK, &[("clock", "behind")]),
            clock_ahead: metrics.counter(CLOCK, &[("clock", "ahead")]),
        }
    }

    /// Counts written events by kind.
    pub(crate) fn written(&self, kinds: impl IntoIterator<Item = Kind>) {
        for kind in kinds {
            self.written[kind as usize].count();
        }
    }
}
