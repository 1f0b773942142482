//! The embedded store keeps the contract of each capability, whether its tables were never read back or came from the
//! write-ahead log, from a delta of the checkpoint or from its base.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_embedded::{Access, Embedded, Options, StoredBase, StoredState};
use tidings_engine::log::fixture::Fixture;
use tidings_engine::log::{HasTable, Snapshots, StateMachine};
use tidings_engine::{Bus, WallClock};
use tidings_sessions::contract::StreamsAndSessions;
use tidings_sessions::{Change, Declined};

use crate::book::small;

/// What happens to the store between writing and asking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Nothing: it stays open.
    Nothing,
    /// It is closed and opened again; the tables come from the write-ahead log.
    Reopen,
    /// Its memtable is written before it is closed; the tables come from the checkpoint.
    FlushAndReopen,
}

/// The store on a simulated disk.
struct OnDisk<T: StoredState> {
    disk: SimulatedDisk,
    options: Options,
    between: Between,
    /// None only while it is being opened again.
    store: Option<Embedded<T>>,
}

impl<T: StoredState> OnDisk<T> {
    fn new(options: Options, between: Between) -> Self {
        let disk = SimulatedDisk::new();
        let store = Some(open(&disk, &options));
        Self { disk, options, between, store }
    }
}

fn open<T: StoredState>(disk: &SimulatedDisk, options: &Options) -> Embedded<T> {
    Embedded::open(Arc::new(disk.clone()), options.clone(), Bus::new(), Arc::new(WallClock))
        .expect("the disk is good")
}

impl<T: StoredState> Fixture for OnDisk<T> {
    type Store = Embedded<T>;

    fn store(&self) -> &Embedded<T> {
        self.store.as_ref().expect("it is open")
    }

    fn reopen(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.between == Between::Nothing {
                return;
            }
            let store = self.store.take().expect("it is open");
            if self.between == Between::FlushAndReopen {
                store.flush().expect("the disk is good");
            }
            // Its threads end with the last handle.
            drop(store);
            self.store = Some(open(&self.disk, &self.options));
        })
    }
}

/// A memtable large enough that nothing is written by itself, and that a flush writes a delta of the checkpoint.
fn roomy() -> Options {
    Options { memtable_bytes: 64 << 20, ..small() }
}

/// A memtable so small that each commit fills it, and that deltas are compacted into a base as soon as they outgrow it.
fn tight() -> Options {
    Options { memtable_bytes: 16, ..small() }
}

/// Runs a contract on stores of a table, in each of the ways in which the tables can come back.
macro_rules! in_every_way {
    ($capability:ident, $table:ty, $contract:path) => {
        mod $capability {
            in_every_way!(@way running, roomy, Nothing, $table, $contract);
            in_every_way!(@way from_the_log, roomy, Reopen, $table, $contract);
            in_every_way!(@way from_a_delta, roomy, FlushAndReopen, $table, $contract);
            in_every_way!(@way from_the_base, tight, FlushAndReopen, $table, $contract);
        }
    };
    (@way $way:ident, $options:ident, $between:ident, $table:ty, $contract:path) => {
        mod $way {
            use super::super::{Between, OnDisk, $options};
            use $contract as contract;

            async fn store() -> OnDisk<$table> {
                OnDisk::new($options(), Between::$between)
            }

            contract!(store);
        }
    };
}

in_every_way!(projects, tidings_auth::Table, tidings_auth::projects_contract);
in_every_way!(streams, tidings_streams::Table, tidings_streams::streams_contract);
in_every_way!(sessions, super::super::Stored, tidings_sessions::sessions_contract);
in_every_way!(
    subscriptions,
    crate::subscription_tables::Stored,
    tidings_subscriptions::subscriptions_contract
);
in_every_way!(rooms, tidings_rooms::Table, tidings_rooms::rooms_contract);
in_every_way!(entities, tidings_entities::Table, tidings_entities::entities_contract);
in_every_way!(hooks, tidings_hooks::Table, tidings_hooks::hooks_contract);

/// The tables of streams and sessions, written down as the server's catalog has them.
#[derive(Default)]
struct Stored(StreamsAndSessions);

enum Row {
    Stream(<tidings_streams::Table as Snapshots>::Row),
    Session(<tidings_sessions::Table as Snapshots>::Row),
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

impl HasTable<tidings_sessions::Table> for Stored {
    fn table(&self) -> &tidings_sessions::Table {
        &self.0.sessions
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

impl Snapshots for Stored {
    type Row = Row;

    fn begin_snapshot(&mut self) {
        self.0.streams.begin_snapshot();
        self.0.sessions.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(rows) = self.0.streams.next_rows(most) {
            return Some(rows.into_iter().map(Row::Stream).collect());
        }
        Some(self.0.sessions.next_rows(most)?.into_iter().map(Row::Session).collect())
    }

    fn end_snapshot(&mut self) {
        self.0.streams.end_snapshot();
        self.0.sessions.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        match row {
            Row::Stream(row) => {
                tidings_streams::Table::restore(row, &mut |one| change(Change::Streams(one)));
            }
            Row::Session(row) => tidings_sessions::Table::restore(row, change),
        }
    }
}

impl StoredState for Stored {
    fn is_precondition(change: &Change) -> bool {
        match change {
            Change::Streams(change) => tidings_streams::Table::is_precondition(change),
            change => tidings_sessions::Table::is_precondition(change),
        }
    }

    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Streams(change) => self.0.streams.takes_space(change),
            change => self.0.sessions.takes_space(change),
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::Streams(change) => {
                self.0.streams.conflict_keys(change, touch);
                tidings_sessions::Table::base_conflict_keys(change, touch);
            }
            change => self.0.sessions.conflict_keys(change, touch),
        }
    }
}
