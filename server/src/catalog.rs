//! All tables of the server as one value, so that a store keeps them together and one commit can change several.

use tidings_embedded::codec::{DecodeError, Reader, Writer};
use tidings_embedded::{Access, StoredState};
use tidings_engine::log::{self, HasTable, StateMachine};

/// The tables of every part.
#[derive(Debug, Default)]
pub struct Catalog {
    /// Of streams.
    pub streams: tidings_streams::Table,
    /// Of sessions.
    pub sessions: tidings_sessions::Table,
    /// Of rooms.
    pub rooms: tidings_rooms::Table,
    /// Of projects.
    pub projects: tidings_auth::Table,
}

/// A change of one part.
#[derive(Debug)]
pub enum Change {
    /// Of streams.
    Streams(tidings_streams::Change),
    /// Of sessions.
    Sessions(tidings_sessions::Change),
    /// Of rooms.
    Rooms(tidings_rooms::Change),
    /// Of projects.
    Projects(tidings_auth::Change),
}

/// A part refuses a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Streams do.
    #[error(transparent)]
    Streams(tidings_streams::table::Declined),
    /// Sessions do.
    #[error(transparent)]
    Sessions(tidings_sessions::Declined),
    /// Rooms do.
    #[error(transparent)]
    Rooms(tidings_rooms::Declined),
    /// Projects do.
    #[error(transparent)]
    Projects(tidings_auth::Declined),
}

impl log::Change for Change {
    type Refusal = Refusal;
}

impl StateMachine for Catalog {
    type Change = Change;

    fn validate(&self, change: &Change) -> Result<(), Refusal> {
        match change {
            Change::Streams(change) => self.streams.validate(change).map_err(Refusal::Streams),
            Change::Sessions(change) => self.sessions.validate(change).map_err(Refusal::Sessions),
            Change::Rooms(change) => self.rooms.validate(change).map_err(Refusal::Rooms),
            Change::Projects(change) => self.projects.validate(change).map_err(Refusal::Projects),
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Streams(change) => {
                // What is known of a stream as a session or a source ends with it.
                self.sessions.heed(&change);
                self.streams.apply(change);
            }
            Change::Sessions(change) => self.sessions.apply(change),
            Change::Rooms(change) => self.rooms.apply(change),
            Change::Projects(change) => self.projects.apply(change),
        }
    }
}

impl HasTable<tidings_streams::Table> for Catalog {
    fn table(&self) -> &tidings_streams::Table {
        &self.streams
    }

    fn wrap(change: tidings_streams::Change) -> Change {
        Change::Streams(change)
    }

    fn refused(refusal: Refusal) -> Option<tidings_streams::table::Declined> {
        match refusal {
            Refusal::Streams(declined) => Some(declined),
            Refusal::Sessions(_) | Refusal::Rooms(_) | Refusal::Projects(_) => None,
        }
    }
}

impl HasTable<tidings_sessions::Table> for Catalog {
    fn table(&self) -> &tidings_sessions::Table {
        &self.sessions
    }

    fn wrap(change: tidings_sessions::Change) -> Change {
        match change {
            tidings_sessions::Change::Streams(change) => Change::Streams(change),
            change => Change::Sessions(change),
        }
    }

    fn refused(refusal: Refusal) -> Option<tidings_sessions::Declined> {
        match refusal {
            Refusal::Sessions(declined) => Some(declined),
            Refusal::Streams(declined) => Some(tidings_sessions::Declined::Streams(declined)),
            Refusal::Rooms(_) | Refusal::Projects(_) => None,
        }
    }
}

impl HasTable<tidings_rooms::Table> for Catalog {
    fn table(&self) -> &tidings_rooms::Table {
        &self.rooms
    }

    fn wrap(change: tidings_rooms::Change) -> Change {
        Change::Rooms(change)
    }

    fn refused(refusal: Refusal) -> Option<tidings_rooms::Declined> {
        match refusal {
            Refusal::Rooms(declined) => Some(declined),
            Refusal::Streams(_) | Refusal::Sessions(_) | Refusal::Projects(_) => None,
        }
    }
}

impl HasTable<tidings_auth::Table> for Catalog {
    fn table(&self) -> &tidings_auth::Table {
        &self.projects
    }

    fn wrap(change: tidings_auth::Change) -> Change {
        Change::Projects(change)
    }

    fn refused(refusal: Refusal) -> Option<tidings_auth::Declined> {
        match refusal {
            Refusal::Projects(declined) => Some(declined),
            Refusal::Streams(_) | Refusal::Sessions(_) | Refusal::Rooms(_) => None,
        }
    }
}

/// Which part a written change belongs to. Numbers are never used for another part.
const STREAMS: u8 = 1;
const PROJECTS: u8 = 2;
const SESSIONS: u8 = 3;
const ROOMS: u8 = 4;

/// A row of one part.
#[derive(Debug)]
pub enum Row {
    /// Of streams.
    Streams(tidings_streams::table::Row),
    /// Of sessions.
    Sessions(tidings_sessions::table::Row),
    /// Of rooms.
    Rooms(tidings_rooms::table::Kept),
    /// Of projects.
    Projects(tidings_auth::table::Row),
}

impl StoredState for Catalog {
    type Row = Row;

    fn encode(change: &Change, out: &mut Vec<u8>) {
        match change {
            Change::Streams(change) => {
                out.byte(STREAMS);
                tidings_streams::Table::encode(change, out);
            }
            Change::Sessions(change) => {
                out.byte(SESSIONS);
                tidings_sessions::Table::encode(change, out);
            }
            Change::Rooms(change) => {
                out.byte(ROOMS);
                tidings_rooms::Table::encode(change, out);
            }
            Change::Projects(change) => {
                out.byte(PROJECTS);
                tidings_auth::Table::encode(change, out);
            }
        }
    }

    fn decode(mut reader: Reader) -> Result<Change, DecodeError> {
        match reader.byte()? {
            STREAMS => tidings_streams::Table::decode(reader).map(Change::Streams),
            SESSIONS => tidings_sessions::Table::decode(reader).map(Change::Sessions),
            ROOMS => tidings_rooms::Table::decode(reader).map(Change::Rooms),
            PROJECTS => tidings_auth::Table::decode(reader).map(Change::Projects),
            _ => Err(DecodeError),
        }
    }

    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Streams(change) => self.streams.takes_space(change),
            Change::Sessions(change) => self.sessions.takes_space(change),
            Change::Rooms(change) => self.rooms.takes_space(change),
            Change::Projects(change) => self.projects.takes_space(change),
        }
    }

    fn begin_snapshot(&mut self) {
        self.streams.begin_snapshot();
        self.sessions.begin_snapshot();
        self.rooms.begin_snapshot();
        self.projects.begin_snapshot();
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        if let Some(rows) = self.streams.next_rows(most) {
            return Some(rows.into_iter().map(Row::Streams).collect());
        }
        if let Some(rows) = self.sessions.next_rows(most) {
            return Some(rows.into_iter().map(Row::Sessions).collect());
        }
        if let Some(rows) = self.rooms.next_rows(most) {
            return Some(rows.into_iter().map(Row::Rooms).collect());
        }
        Some(self.projects.next_rows(most)?.into_iter().map(Row::Projects).collect())
    }

    fn end_snapshot(&mut self) {
        self.streams.end_snapshot();
        self.sessions.end_snapshot();
        self.rooms.end_snapshot();
        self.projects.end_snapshot();
    }

    fn restore(row: Row, change: &mut dyn FnMut(Change)) {
        match row {
            Row::Streams(row) => {
                tidings_streams::Table::restore(row, &mut |one| change(Change::Streams(one)));
            }
            Row::Sessions(row) => {
                tidings_sessions::Table::restore(row, &mut |one| change(Change::Sessions(one)));
            }
            Row::Rooms(row) => tidings_rooms::Table::restore(row, &mut |one| change(Change::Rooms(one))),
            Row::Projects(row) => {
                tidings_auth::Table::restore(row, &mut |one| change(Change::Projects(one)));
            }
        }
    }

    fn is_precondition(change: &Change) -> bool {
        match change {
            Change::Streams(change) => tidings_streams::Table::is_precondition(change),
            Change::Sessions(change) => tidings_sessions::Table::is_precondition(change),
            Change::Rooms(change) => tidings_rooms::Table::is_precondition(change),
            Change::Projects(change) => tidings_auth::Table::is_precondition(change),
        }
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        match change {
            Change::Streams(change) => {
                self.streams.conflict_keys(change, touch);
                tidings_embedded::ended(change, touch);
            }
            Change::Sessions(change) => self.sessions.conflict_keys(change, touch),
            Change::Rooms(change) => self.rooms.conflict_keys(change, touch),
            Change::Projects(change) => self.projects.conflict_keys(change, touch),
        }
    }
}
