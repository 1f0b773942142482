//! The embedded store keeps the contract about cold rows, wherever they lie: in the current memtable, in one that was replayed,
//! in one file, or in many that are merged.

use futures_util::future::BoxFuture;
use tidings_embedded::Options;
use tidings_embedded::simulation::SimulatedDisk;
use tidings_engine::log::fixture::Fixture;

use crate::book::small;
use crate::contract::HoldableStore;

/// What happens to the store between writing and asking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    /// Nothing: it stays open.
    Nothing,
    /// It is closed and opened again; the rows come from the write-ahead log.
    Reopen,
    /// Its memtable is written; the rows come from files, or from the memtable that is kept.
    Flush,
    /// Its memtable is written before it is closed; the rows come from files.
    FlushAndReopen,
    /// Its memtable is written and files are merged before it is closed.
    MergeAndReopen,
}

struct OnDisk {
    disk: SimulatedDisk,
    options: Options,
    between: Between,
    /// None only while it is being opened again.
    store: Option<HoldableStore>,
}

impl OnDisk {
    fn new(options: Options, between: Between) -> Self {
        let disk = SimulatedDisk::new();
        let store = Some(HoldableStore::open(&disk, options.clone()));
        Self { disk, options, between, store }
    }
}

impl Fixture for OnDisk {
    type Store = HoldableStore;

    fn store(&self) -> &HoldableStore {
        self.store.as_ref().expect("it is open")
    }

    fn reopen(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if self.between == Between::Nothing {
                return;
            }
            let embedded = self.store().embedded();
            if self.between != Between::Reopen {
                embedded.flush().expect("the disk is good");
            }
            if self.between == Between::Flush {
                return;
            }
            if self.between == Between::MergeAndReopen {
                embedded.merge_now().expect("the disk is good");
            }
            // Its threads end with the last handle.
            self.store = None;
            self.store = Some(HoldableStore::open(&self.disk, self.options.clone()));
        })
    }
}

/// A memtable large enough that nothing is written by itself.
fn roomy() -> Options {
    Options { memtable_bytes: 64 << 20, ..small() }
}

/// A memtable so small that each commit fills it.
fn tight() -> Options {
    Options { memtable_bytes: 16, ..small() }
}

macro_rules! in_every_way {
    ($($way:ident: $options:ident, $between:ident;)+) => {
        $(
            mod $way {
                use super::{Between, OnDisk, $options};

                async fn store() -> OnDisk {
                    OnDisk::new($options(), Between::$between)
                }

                tidings_engine::rows_contract!(store);
            }
        )+
    };
}

in_every_way! {
    in_memory: roomy, Nothing;
    from_the_log: roomy, Reopen;
    beside_files: roomy, Flush;
    from_files: roomy, FlushAndReopen;
    while_merging: tight, Nothing;
    merged: tight, MergeAndReopen;
}
