//! What a store of change logs promises, and what a source promises, as suites that each implementation runs.

mod source;

use tidings_engine::log::fixture::Fixture;
use tidings_engine::log::{
    Append, Commit, CommitError, Commits, Logs, Operation, Positions, ReadError, Refusal, Span,
};
use tidings_model::{LogId, Position, ProjectId};

pub use source::*;

use crate::Store;
use crate::table::{Change, Declined, Found, Row};

/// Makes a `#[tokio::test]` of each promise of a store, on an empty one from `$make`.
#[macro_export]
macro_rules! entities_contract {
    ($make:expr) => {
        $crate::entities_contract!(@each $make;
            a_change_log_is_found_by_its_project_with_its_status
            of_two_who_create_a_change_log_one_wins
            a_removed_change_log_is_gone_and_another_can_be_created
            change_logs_are_paged_in_order_of_their_projects
            positions_have_no_gaps_however_changes_are_appended
        );
    };
    (@each $make:expr; $($promise:ident)+) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::contract::$promise($make().await).await;
            }
        )+
    };
}

fn project(text: &str) -> ProjectId {
    ProjectId::parse(text).expect("a valid id")
}

async fn create(store: &impl Store, name: &str, epoch: u64) -> Result<LogId, CommitError<Declined>> {
    let log = store.reserve().await.expect("a number");
    let creation = Change::Create { project: project(name), row: Row { log, epoch } };
    store.commit(Commit::new().with(Operation::create(log)).changing(creation)).await.map(|_| log)
}

async fn remove(store: &impl Store, name: &str, log: LogId) -> Result<(), CommitError<Declined>> {
    let removal = Change::Remove { project: project(name), log };
    store.commit(Commit::new().with(Operation::Delete(log)).changing(removal)).await.map(|_| ())
}

async fn found(store: &impl Store, name: &str) -> Option<Found> {
    store.change_log(&project(name)).await.expect("an answer")
}

fn append(log: LogId, count: usize) -> Commit<Change> {
    let positions = Positions::AtLeast(Position::new(1));
    let payloads = vec![bytes::Bytes::from_static(b"change"); count];
    Commit::new().with(Append { positions, ..Append::new(log, payloads) })
}

/// The row and the status of the log are of one moment, and are kept.
pub async fn a_change_log_is_found_by_its_project_with_its_status(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    assert_eq!(found(store, "shop").await, None);
    let log = create(store, "shop", u64::MAX).await.expect("created");
    store.commit(append(log, 2)).await.expect("appended");
    fixture.reopen().await;
    let Found { row, status } = found(fixture.store(), "shop").await.expect("there");
    assert_eq!((row, status.tail), (Row { log, epoch: u64::MAX }, Position::new(2)));
    assert_eq!(found(fixture.store(), "sho").await, None);
}

/// Two commits that are under way at the same time do not both create the log.
pub async fn of_two_who_create_a_change_log_one_wins(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let winner = match futures_util::future::join(create(store, "shop", 1), create(store, "shop", 2)).await {
        (Ok(log), Err(CommitError::Declined(Declined::Moved)))
        | (Err(CommitError::Declined(Declined::Moved)), Ok(log)) => log,
        both => panic!("{both:?}"),
    };
    fixture.reopen().await;
    assert_eq!(found(fixture.store(), "shop").await.expect("there").row.log, winner);
}

/// The log is removed with its row, and only the one that is meant.
pub async fn a_removed_change_log_is_gone_and_another_can_be_created(
    mut fixture: impl Fixture<Store: Store>,
) {
    let store = fixture.store();
    let log = create(store, "shop", 1).await.expect("created");
    remove(store, "shop", log).await.expect("removed");
    fixture.reopen().await;
    let store = fixture.store();
    assert_eq!(found(store, "shop").await, None);
    assert_eq!(store.status(log).await, Err(ReadError::NoSuchLog(log)));
    let refused = store.commit(append(log, 1)).await.expect_err("it is gone");
    assert!(matches!(refused, CommitError::Refused(Refusal::NoSuchLog(gone)) if gone == log), "{refused}");
    let next = create(store, "shop", 2).await.expect("created");
    assert_ne!(next, log);
    assert!(remove(store, "shop", log).await.is_err(), "the project has another one");
    assert_eq!(found(store, "shop").await.expect("there").row, Row { log: next, epoch: 2 });
}

/// No change log is left out and none comes twice, however large the pages.
pub async fn change_logs_are_paged_in_order_of_their_projects(mut fixture: impl Fixture<Store: Store>) {
    for (epoch, name) in ["c", "a", "_b", "b"].into_iter().enumerate() {
        create(fixture.store(), name, epoch as u64).await.expect("created");
    }
    fixture.reopen().await;
    for most in [1, 3, 4, 100] {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = fixture.store().change_logs(after.as_ref(), most).await.expect("a page");
            assert!(page.len() <= most);
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            names.extend(page.iter().map(|(project, row)| (project.to_string(), row.epoch)));
        }
        let expected = [("_b", 2), ("a", 1), ("b", 3), ("c", 0)];
        assert_eq!(names, expected.map(|(name, epoch)| (name.to_owned(), epoch)));
    }
}

/// Versions are positions, and whoever trims counts on it that there are no gaps.
pub async fn positions_have_no_gaps_however_changes_are_appended(mut fixture: impl Fixture<Store: Store>) {
    let store = fixture.store();
    let log = create(store, "shop", 1).await.expect("created");
    let appends = (1..=20).map(|count| store.commit(append(log, count)));
    for appended in futures_util::future::join_all(appends).await {
        appended.expect("appended");
    }
    fixture.reopen().await;
    let store = fixture.store();
    store.commit(append(log, 1)).await.expect("appended");
    let page = store.read(log, Span::after(Position::ZERO)).await.expect("a page");
    let positions = page.records.iter().map(|record| record.position.get()).collect::<Vec<_>>();
    assert_eq!(positions, (1..=211).collect::<Vec<_>>());
}

#[cfg(test)]
mod in_memory {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use tidings_engine::journal::Journals;
    use tidings_engine::log::Memory;
    use tidings_engine::{Bus, ManualClock, Metrics, Rng, WallClock};
    use tidings_model::{ProjectId, Timestamp};

    use super::SourceFixture;
    use crate::{ChangeLog, Entities, EntityId, IdForm, Options, Parts, Source, Table};

    async fn empty() -> Memory<Table> {
        Memory::new(Bus::new(), Arc::new(WallClock))
    }

    crate::entities_contract!(empty);

    mod change_logs {
        use super::InMemory;

        async fn source() -> InMemory {
            InMemory::new()
        }

        crate::source_contract!(source);
    }

    /// The change log of a project in a store in memory, which lives on when the log is opened again.
    struct InMemory {
        store: Arc<Memory<Table>>,
        bus: Bus,
        clock: ManualClock,
        rng: Arc<Rng>,
        log: ChangeLog,
    }

    impl InMemory {
        fn new() -> Self {
            let (bus, clock) = (Bus::new(), ManualClock::at(Timestamp::from_millis(1_700_000_000_000)));
            let store = Arc::new(Memory::new(bus.clone(), Arc::new(clock.clone())));
            let rng = Arc::new(Rng::seeded(5));
            let log = open(&store, &bus, &clock, &rng);
            Self { store, bus, clock, rng, log }
        }
    }

    fn project() -> ProjectId {
        ProjectId::parse("shop").expect("an id")
    }

    fn open(store: &Arc<Memory<Table>>, bus: &Bus, clock: &ManualClock, rng: &Arc<Rng>) -> ChangeLog {
        let (store, clock) = (store.clone(), Arc::new(clock.clone()));
        ChangeLog::new(&project(), store, bus.clone(), clock, rng.clone(), Journals::default())
    }

    impl SourceFixture for InMemory {
        fn source(&self) -> &dyn Source {
            &self.log
        }

        fn id(&self, number: u64) -> EntityId {
            IdForm::Text.parse(&format!("id {number}")).expect("an id")
        }

        fn reopen(&mut self) -> BoxFuture<'_, ()> {
            self.log = open(&self.store, &self.bus, &self.clock, &self.rng);
            std::future::ready(()).boxed()
        }

        fn expire(&mut self) -> BoxFuture<'_, ()> {
            async {
                let options = Options::default();
                self.clock.advance(options.since_window + Duration::from_millis(1));
                let entities = Entities::new(Parts {
                    store: self.store.clone(),
                    bus: self.bus.clone(),
                    clock: Arc::new(self.clock.clone()),
                    rng: self.rng.clone(),
                    journals: Journals::default(),
                    metrics: Metrics::new(),
                    options,
                    backings: Default::default(),
                    authorize: None,
                });
                assert!(entities.trim().await.expect("trimmed") > 0);
            }
            .boxed()
        }

        fn replace(&mut self) -> BoxFuture<'_, ()> {
            async { self.log.clear().await.expect("cleared") }.boxed()
        }
    }
}
