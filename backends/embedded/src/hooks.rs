//! Encoding of the tables of hooks: their changes in frames and deltas, and their rows in the checkpoint.

use std::hash::{DefaultHasher, Hash, Hasher};

use tidings_hooks::delivery::IdMask;
use tidings_hooks::hook::{Format, Hook, HookId, HookState, Ordering, Settings};
use tidings_hooks::signature::{Secret, Secrets};
use tidings_hooks::table::{Cursor, Feed, Parked, Partly, Progress, Replay, Settled};
use tidings_hooks::{Change, Table};
use tidings_model::Ulid;

use crate::codec::{DecodeError, Reader, Writer};
use crate::field::{Field, stored};
use crate::stored_state::{Access, StoredState};

stored! {
    enum Change {
        1 => Open { project, feed },
        2 => Close { project },
        3 => Expect { project, version },
        4 => Advance { project, was, now },
        5 => Create { queue, hook, most },
        6 => Set { queue, was, hook },
        7 => Deactivate { queue, since, at },
        8 => Remove { queue },
        9 => Settle { queue, settled },
        10 => Forget { queue, dead_letters, deliveries, attempts },
        11 => BeginReplay { queue, replay, most },
        12 => AdvanceReplay { replay, was, now },
        13 => RestoreProgress { queue, progress },
        14 => RestoreReplay { id, replay },
    }
    struct Feed { events, journal, cursor, version }
    struct Cursor { done, partly }
    struct Partly { after, through, reached }
    struct Replay { cursor, through }
    struct Parked { attempts, due, delay_ms }
    struct Settled { done, above, parked, unparked, delivered, dead, attempts }
    struct Progress {
        done, above, parked, delivered, dead, attempts, dead_letters, forgotten_deliveries, forgotten_attempts,
    }
    struct Hook { id, project, settings, secrets, state, id_mask, created_at, updated_at }
    struct Settings {
        pattern, worker_id, worker_binding, rpc_method, url, max_retries, timeout_ms, format, retry_schedule, ordering,
        ordering_key, rate_limit, concurrency, filter, headers,
    }
    struct Secrets { current, previous }
    enum HookState {
        0 => Active,
        1 => Inactive { since },
    }
    enum Format {
        0 => Envelope,
        1 => Raw,
        2 => CloudEventsStructured,
        3 => CloudEventsBinary,
    }
    enum Ordering {
        0 => None,
        1 => Subscription,
        2 => Key,
    }
}

impl Field for HookId {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.get().to_le_bytes());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        let bytes: [u8; 16] = reader.exactly(16)?.as_ref().try_into().map_err(|_| DecodeError)?;
        Ok(Self(Ulid::new(u128::from_le_bytes(bytes))))
    }
}

impl Field for IdMask {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_le_bytes());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        let bytes: [u8; 16] = reader.exactly(16)?.as_ref().try_into().map_err(|_| DecodeError)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }
}

impl Field for Secret {
    fn put(&self, out: &mut Vec<u8>) {
        out.bytes(self.as_bytes());
    }

    fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self::from_bytes(&reader.bytes()?))
    }
}

impl StoredState for Table {
    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Open { .. } | Change::Create { .. } | Change::Set { .. } | Change::BeginReplay { .. } => {
                true
            }
            // What came of an attempt is recorded also when space is low, so that it is not made again.
            Change::Settle { .. }
            | Change::Advance { .. }
            | Change::AdvanceReplay { .. }
            | Change::Deactivate { .. }
            | Change::Close { .. }
            | Change::Remove { .. }
            | Change::Forget { .. }
            | Change::Expect { .. }
            | Change::RestoreProgress { .. }
            | Change::RestoreReplay { .. } => false,
        }
    }

    fn is_precondition(change: &Change) -> bool {
        matches!(change, Change::Expect { .. })
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        let mut of_hook = |queue: &tidings_model::LogId| {
            touch(Access::Writes, hash(queue));
            if let Some(hook) = self.hook(*queue) {
                touch(Access::Writes, hash(&hook.project));
            }
        };
        match change {
            Change::Open { project, .. } | Change::Close { project } => touch(Access::Writes, hash(project)),
            Change::Expect { project, .. } => touch(Access::Reads, hash(project)),
            Change::Advance { project, .. } => {
                touch(Access::Reads, hash(project));
                touch(Access::Writes, hash((project, "cursor")));
            }
            Change::Create { queue, hook, .. } => {
                touch(Access::Writes, hash(queue));
                // Also for its identity, which is unique in the project.
                touch(Access::Writes, hash(&hook.project));
                if self.is_empty() {
                    // The first hook decides on the mask of all.
                    touch(Access::Writes, hash("first"));
                }
            }
            Change::Set { queue, .. } | Change::Deactivate { queue, .. } | Change::Remove { queue } => {
                of_hook(queue)
            }
            // Deliveries of a hook are recorded by one writer; together with a removal they change nothing.
            Change::Settle { queue, .. } | Change::Forget { queue, .. } => touch(Access::Reads, hash(queue)),
            Change::BeginReplay { queue, .. } => {
                touch(Access::Reads, hash(queue));
                touch(Access::Writes, hash((queue, "replays")));
            }
            Change::AdvanceReplay { replay: (queue, _), .. } => {
                touch(Access::Writes, hash((queue, "replays")))
            }
            Change::RestoreProgress { .. } | Change::RestoreReplay { .. } => {}
        }
    }
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("hooks", of).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::{LogId, Position, ProjectId, Timestamp};

    fn log(number: u64) -> LogId {
        LogId::new(number)
    }

    fn at(low: u64) -> Position {
        crate::codec::whole(3, low)
    }

    fn shop() -> ProjectId {
        ProjectId::parse("shop").expect("an id")
    }

    fn hook(id: u128, change: impl FnOnce(&mut Settings)) -> Arc<Hook> {
        let mut settings = Settings { url: Some(format!("https://a/{id}")), ..Settings::new("orders.*") };
        change(&mut settings);
        Arc::new(Hook {
            id: HookId(Ulid::new(id)),
            project: shop(),
            settings,
            secrets: Secrets {
                current: Secret::from_bytes(b"now"),
                previous: Some((Secret::from_bytes(b"before"), Timestamp::from_millis(9))),
            },
            state: HookState::Active,
            id_mask: IdMask(77),
            created_at: Timestamp::from_millis(1),
            updated_at: Timestamp::from_millis(2),
        })
    }

    fn whole(settings: &mut Settings) {
        *settings = Settings {
            worker_id: Some("w".into()),
            worker_binding: Some("B".into()),
            rpc_method: Some("m".into()),
            format: Format::CloudEventsBinary,
            retry_schedule: vec![1, 2, 3],
            ordering: Ordering::Key,
            ordering_key: Some("/a".into()),
            rate_limit: Some(7),
            filter: Some("{}".into()),
            headers: vec![("x-a".into(), "b".into())],
            ..settings.clone()
        };
    }

    /// Applies changes, each after an encoding round trip.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            change.put(&mut bytes);
            let change = Change::take_whole(Reader(bytes.into())).expect("as it was written");
            table.validate(&change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
            table.apply(change);
        }
    }

    fn filled() -> Table {
        let feed = Feed { events: log(1), journal: log(2), cursor: Cursor::default(), version: 0 };
        let parked = Parked { attempts: 2, due: Timestamp::from_millis(77), delay_ms: 4000 };
        let settled = Settled {
            done: at(4),
            above: vec![at(6), at(9)],
            parked: vec![(at(2), parked), (at(3), parked)],
            unparked: vec![],
            delivered: 3,
            dead: 1,
            attempts: 8,
        };
        let unparked = Settled { unparked: vec![at(3)], attempts: 1, ..Settled::default() };
        let partly = Some(Partly { after: at(1), through: at(8), reached: Some(log(11)) });
        let mut table = Table::default();
        play(
            &mut table,
            [
                Change::Open { project: shop(), feed },
                Change::Create { queue: log(10), hook: hook(5, whole), most: 9 },
                Change::Create { queue: log(11), hook: hook(6, |_| {}), most: 9 },
                Change::Create { queue: log(12), hook: hook(7, |_| {}), most: 9 },
                Change::Set {
                    queue: log(10),
                    was: Timestamp::from_millis(2),
                    hook: hook(5, |settings| settings.max_retries = 1),
                },
                Change::Deactivate { queue: log(11), since: at(5), at: Timestamp::from_millis(30) },
                Change::Settle { queue: log(10), settled },
                Change::Settle { queue: log(10), settled: unparked },
                Change::Forget { queue: log(10), dead_letters: 1, deliveries: 2, attempts: 3 },
                Change::BeginReplay {
                    queue: log(10),
                    replay: Replay { cursor: at(1), through: at(9) },
                    most: 2,
                },
                Change::BeginReplay {
                    queue: log(10),
                    replay: Replay { cursor: at(2), through: at(9) },
                    most: 2,
                },
                Change::AdvanceReplay { replay: (log(10), 0), was: at(1), now: at(9) },
                Change::AdvanceReplay { replay: (log(10), 1), was: at(2), now: at(3) },
                Change::Advance {
                    project: shop(),
                    was: Cursor::default(),
                    now: Cursor { done: at(7), partly },
                },
                Change::Remove { queue: log(12) },
            ],
        );
        table
    }

    #[test]
    fn a_dump_makes_the_same_table() {
        let mut table = filled();
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        for table in [&table, &again] {
            assert_eq!(table.len(), 2);
            assert_eq!(table.feed(&shop()).expect("open").version, 6);
            assert_eq!(table.progress(log(10)).expect("settled").above, [at(6), at(9)].into());
            assert_eq!(table.progress(log(10)).expect("settled").parked.len(), 1);
            assert_eq!(table.replays().map(|(id, _)| id).collect::<Vec<_>>(), [(log(10), 1)]);
            let taken = Change::Create { queue: log(20), hook: hook(6, |_| {}), most: 9 };
            assert!(table.validate(&taken).is_err(), "such a hook exists");
        }
        assert_eq!(table.feed(&shop()), again.feed(&shop()));
        for queue in [10, 11] {
            assert_eq!(table.hook(log(queue)), again.hook(log(queue)));
            assert_eq!(table.progress(log(queue)), again.progress(log(queue)));
        }
        let newest =
            |table: &Table| table.newest(Some(&shop()), None).map(|(queue, _)| queue).collect::<Vec<_>>();
        assert_eq!((newest(&table), newest(&again)), (vec![log(11), log(10)], vec![log(11), log(10)]));
    }

    #[test]
    fn only_what_makes_the_table_larger_takes_space() {
        let table = filled();
        let replay = Replay { cursor: at(1), through: at(2) };
        let settled = Settled::default();
        assert!(table.takes_space(&Change::Create { queue: log(30), hook: hook(8, |_| {}), most: 9 }));
        assert!(table.takes_space(&Change::BeginReplay { queue: log(10), replay, most: 9 }));
        for free in [Change::Settle { queue: log(10), settled }, Change::Remove { queue: log(10) }] {
            assert!(!table.takes_space(&free), "{free:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_change_are_refused() {
        let mut bytes = Vec::new();
        Change::Create { queue: log(1), hook: hook(5, whole), most: 9 }.put(&mut bytes);
        for length in 0..bytes.len() {
            assert!(Change::take_whole(Reader(bytes[..length].to_vec().into())).is_err(), "{length} bytes");
        }
    }
}
