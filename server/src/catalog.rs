//! The catalog: the tables of all capabilities, combined into one state machine.
//!
//! A store holds one state machine and applies one commit at a time, so a single commit can change several tables
//! atomically. The list at the end of this file declares the tables. From this list, the macro generates the catalog,
//! its change, refusal and row types, and their encoding.

use tidings_embedded::codec::{DecodeError, Reader, Writer};
use tidings_embedded::field::Field;
use tidings_embedded::{Access, StoredBase, StoredState};
use tidings_engine::log::{self, HasTable, Refused, Snapshots, StandsOn, StateMachine};

/// Generates the catalog from a list of `tag => field Variant: Table`. The tag is the first byte of each stored
/// change and must never be reused for another table. A table that builds on another names it with `on`; the base
/// table names each of its dependents with `base of`.
macro_rules! catalog {
    ($($tag:literal => $field:ident $variant:ident: $table:ty
        $(, base of $upper:ident: $upper_table:ty)* $(, on $base:ident: $base_table:ty)?;)*) => {
        /// The tables of all capabilities.
        #[derive(Debug, Default)]
        pub struct Catalog {
            $(#[doc = concat!("The table of ", stringify!($field), ".")] pub $field: $table,)*
        }

        /// A change of one of the tables.
        #[derive(Debug)]
        pub enum Change {
            $(#[doc = concat!("A change of ", stringify!($field), ".")]
            $variant(<$table as StateMachine>::Change),)*
        }

        /// Why one of the tables refuses a change.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Refusal {
            $(#[doc = concat!("A refusal of ", stringify!($field), ".")]
            #[error(transparent)]
            $variant(Refused<$table>),)*
        }

        /// A row of one of the tables, as a snapshot gives it.
        #[derive(Debug)]
        pub enum Row {
            $(#[doc = concat!("A row of ", stringify!($field), ".")]
            $variant(<$table as Snapshots>::Row),)*
        }

        impl log::Change for Change {
            type Refusal = Refusal;
        }

        impl StateMachine for Catalog {
            type Change = Change;

            fn validate(&self, change: &Change) -> Result<(), Refusal> {
                match change {
                    $(Change::$variant(change) => self.$field.validate(change).map_err(Refusal::$variant),)*
                }
            }

            fn apply(&mut self, change: Change) {
                match change {
                    $(Change::$variant(change) => {
                        $(StandsOn::<$table>::on_base_change(&mut self.$upper, &change);)*
                        self.$field.apply(change);
                    })*
                }
            }
        }

        $(impl HasTable<$table> for Catalog {
            fn table(&self) -> &$table {
                &self.$field
            }

            fn wrap(change: <$table as StateMachine>::Change) -> Change {
                $(let change = match <$table as StandsOn<$base_table>>::base_change(change) {
                    Ok(base) => return Change::$base(base),
                    Err(own) => own,
                };)?
                Change::$variant(change)
            }

            fn part(change: &Change) -> Option<&<$table as StateMachine>::Change> {
                match change {
                    Change::$variant(change) => Some(change),
                    _ => None,
                }
            }

            fn refused(refusal: Refusal) -> Option<Refused<$table>> {
                match refusal {
                    Refusal::$variant(refusal) => Some(refusal),
                    $(Refusal::$base(refusal) => Some(<$table as StandsOn<$base_table>>::base_refusal(refusal)),)?
                    _ => None,
                }
            }
        })*

        impl Snapshots for Catalog {
            type Row = Row;

            fn begin_snapshot(&mut self) {
                $(Snapshots::begin_snapshot(&mut self.$field);)*
            }

            fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
                $(if let Some(rows) = Snapshots::next_rows(&mut self.$field, most) {
                    return Some(rows.into_iter().map(Row::$variant).collect());
                })*
                None
            }

            fn end_snapshot(&mut self) {
                $(Snapshots::end_snapshot(&mut self.$field);)*
            }

            fn restore(row: Row, change: &mut dyn FnMut(Change)) {
                match row {
                    $(Row::$variant(row) => {
                        <$table as Snapshots>::restore(row, &mut |one| change(Change::$variant(one)));
                    })*
                }
            }
        }

        impl Field for Change {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(change) => {
                        out.byte($tag);
                        change.put(out);
                    })*
                }
            }

            fn take(reader: &mut Reader) -> Result<Self, DecodeError> {
                match reader.byte()? {
                    $($tag => Field::take(reader).map(Self::$variant),)*
                    _ => Err(DecodeError),
                }
            }
        }

        impl StoredState for Catalog {
            fn is_precondition(change: &Change) -> bool {
                match change {
                    $(Change::$variant(change) => <$table>::is_precondition(change),)*
                }
            }

            fn takes_space(&self, change: &Change) -> bool {
                match change {
                    $(Change::$variant(change) => self.$field.takes_space(change),)*
                }
            }

            fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
                match change {
                    $(Change::$variant(change) => {
                        self.$field.conflict_keys(change, touch);
                        $(<$upper_table as StoredBase<$table>>::base_conflict_keys(change, touch);)*
                    })*
                }
            }
        }
    };
}

// A base table precedes the tables that build on it, because snapshot rows are restored in this order.
catalog! {
    1 => streams Streams: tidings_streams::Table,
        base of sessions: tidings_sessions::Table, base of subscriptions: tidings_subscriptions::Table;
    3 => sessions Sessions: tidings_sessions::Table, on Streams: tidings_streams::Table;
    7 => subscriptions Subscriptions: tidings_subscriptions::Table, on Streams: tidings_streams::Table;
    4 => rooms Rooms: tidings_rooms::Table;
    5 => hooks Hooks: tidings_hooks::Table;
    6 => entities Entities: tidings_entities::Table;
    8 => topics Topics: tidings_topics::Table;
    2 => projects Projects: tidings_auth::Table;
}
