//! What happens in rooms, counted.

use tidings_engine::metrics::{Counter, Metrics, Name};

use crate::Kind;

const WRITTEN: Name = Name { name: "tidings_room_events_total", help: "Events written to rooms, by kind." };
const DROPPED: Name =
    Name { name: "tidings_room_typing_dropped_total", help: "Typing events that nobody was told." };
const COLLAPSED: Name = Name {
    name: "tidings_room_reactions_collapsed_total",
    help: "Reactions left out because a later one replaces them.",
};
const TRIMMED: Name =
    Name { name: "tidings_room_trims_total", help: "How often events of a room went because of their age." };
const SEEN: Name = Name {
    name: "tidings_room_seen_writes_total",
    help: "How often it was stored how far somebody has seen.",
};
const SEEN_DROPPED: Name = Name {
    name: "tidings_room_seen_dropped_total",
    help: "Last-seen cursors that were not stored because too many waited to be.",
};
const FENCED: Name =
    Name { name: "tidings_room_fenced_total", help: "Writes refused because another server has taken over." };
const CLOCK: Name = Name {
    name: "tidings_room_clock_alarms_total",
    help: "How often the clock was behind the cursors, or ahead of time, by which.",
};

/// Counters of all events.
pub(crate) struct Counts {
    /// In the order of the kinds.
    written: [Counter; 3],
    pub(crate) typing_dropped: Counter,
    pub(crate) collapsed: Counter,
    pub(crate) trimmed: Counter,
    pub(crate) seen: Counter,
    pub(crate) seen_dropped: Counter,
    pub(crate) fenced: Counter,
    /// The cursors of a room are more than a few seconds ahead of the clock.
    pub(crate) clock_behind: Counter,
    /// The clock has jumped ahead and is not followed yet.
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

    /// Some events were written.
    pub(crate) fn written(&self, kinds: impl IntoIterator<Item = Kind>) {
        for kind in kinds {
            self.written[kind as usize].count();
        }
    }
}
