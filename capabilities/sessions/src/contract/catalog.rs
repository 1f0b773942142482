//! The tables of streams and sessions as one catalog.

use tidings_engine::log::{HasTable, StandsOn, StateMachine};

use crate::table::{Change, Declined, Table};

/// The tables of streams and of sessions, for stores that hold tables in memory. A change of
/// sessions may carry one of streams, so those of sessions are all there are.
#[derive(Debug, Default)]
pub struct StreamsAndSessions {
    /// Of streams.
    pub streams: tidings_streams::Table,
    /// Of sessions.
    pub sessions: Table,
}

impl StateMachine for StreamsAndSessions {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        match change {
            Change::Streams(change) => self.streams.validate(change).map_err(Declined::Streams),
            change => self.sessions.validate(change),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Streams(change) => {
                self.sessions.on_base_change(&change);
                self.streams.apply(change);
            }
            change => self.sessions.apply(change),
        }
    }
}

impl HasTable<Table> for StreamsAndSessions {
    fn table(&self) -> &Table {
        &self.sessions
    }

    fn wrap(change: Change) -> Change {
        change
    }

    fn part(change: &Change) -> Option<&Change> {
        Some(change)
    }

    fn refused(refusal: Declined) -> Option<Declined> {
        Some(refusal)
    }
}

impl HasTable<tidings_streams::Table> for StreamsAndSessions {
    fn table(&self) -> &tidings_streams::Table {
        &self.streams
    }

    fn wrap(change: tidings_streams::Change) -> Change {
        Change::Streams(change)
    }

    fn part(change: &Change) -> Option<&tidings_streams::Change> {
        match change {
            Change::Streams(change) => Some(change),
            _ => None,
        }
    }

    fn refused(refusal: Declined) -> Option<tidings_streams::table::Declined> {
        match refusal {
            Declined::Streams(declined) => Some(declined),
            _ => None,
        }
    }
}
