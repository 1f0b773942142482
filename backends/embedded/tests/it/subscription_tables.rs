//! The tables of streams and subscriptions, written down as the server's catalog has them.

use tidings_embedded::{Access, StoredBase, StoredState};
use tidings_engine::log::{HasTable, Snapshots, StateMachine};
use tidings_subscriptions::contract::StreamsAndSubscriptions;
use tidings_subscriptions::{Change, Declined, Table};

/// The tables of streams and subscriptions.
#[derive(Default)]
pub struct Stored(StreamsAndSubscriptions);

pub enum Row {
    Stream(<tidings_streams::Table as Snapshots>::Row),
    Subscription(<Table as Snapshots>::Row),
}

impl StateMachine for Stored {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Declined> {
        self.0.validate(change)
    }

    fn apply(&mut self, change: Change) {
        self.0.apply(change);
    }
}

impl HasTable<Table> for Stored {
    fn table(&self) -> &Table {
        &self.0.subscriptions
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

impl HasTable<tidings_streams::Table> for Stored {
    fn table(&self) -> &tidings_streams::Table {
        &self.0.streams
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

impl Snapshots for Stored {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.0.streams.begin_snapshot();
        self.0.subscriptions.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(rows) = self.0.streams.next_rows(most) {
            return Some(rows.into_iter().map(Row::Stream).collect());
        }
        Some(self.0.subscriptions.next_rows(most)?.into_iter().map(Row::Subscription).collect())
    }

    fn end_snapshot(&mut self) {
        self.0.streams.end_snapshot();
        self.0.subscriptions.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        match row {
            Row::Stream(row) => {
                tidings_streams::Table::restore(row, &mut |one| change(Change::Streams(one)));
            }
            Row::Subscription(row) => Table::restore(row, change),
        }
    }
}

impl StoredState for Stored {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Streams(change) => self.0.streams.takes_space(change),
            change => self.0.subscriptions.takes_space(change),
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::Streams(change) => {
                self.0.streams.conflict_keys(change, touch);
                Table::base_conflict_keys(change, touch);
            }
            change => self.0.subscriptions.conflict_keys(change, touch),
        }
    }
}
