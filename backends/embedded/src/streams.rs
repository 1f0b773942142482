//! How the tables of streams are kept.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tidings_model::{ProjectId, StreamId};
use tidings_streams::table::{Below, Cause, Row};
use tidings_streams::{
    Change, ContentType, Expiry, Floor, Fork, Owner, Retained, Retention, Segment, Stream, StreamKey,
    StreamState, Table,
};

use crate::checkpoint::{put_option, put_totals, take_option, take_totals};
use crate::codec::{DecodeError, Reader, Writer};
use crate::stored_state::{Access, StoredState};

const CREATE: u8 = 1;
const RENEW: u8 = 2;
const RETIRE: u8 = 3;
const REMOVE: u8 = 4;
const TRIM: u8 = 5;
const EXPECT: u8 = 6;
const RESTORE: u8 = 7;

impl StoredState for Table {
    type Row = Row;

    fn encode(change: &Change, out: &mut Vec<u8>) {
        match change {
            Change::Create { key, stream } => {
                out.byte(CREATE);
                put_key(out, key);
                put_stream(out, stream);
            }
            Change::Expect { key, log } => {
                out.byte(EXPECT);
                put_key(out, key);
                out.log(*log);
            }
            Change::Renew { key, log, expires_at } => {
                out.byte(RENEW);
                put_key(out, key);
                out.log(*log);
                out.number(expires_at.as_millis());
            }
            Change::Trim { key, log, floor, below } => {
                out.byte(TRIM);
                put_key(out, key);
                out.log(*log);
                put_floor(out, floor);
                out.byte(u8::from(*below == Below::Held));
            }
            Change::Retire { key, log, cause } => {
                out.byte(RETIRE);
                put_key(out, key);
                out.log(*log);
                put_cause(out, *cause);
            }
            Change::Remove { key, log, cause } => {
                out.byte(REMOVE);
                put_key(out, key);
                out.log(*log);
                put_cause(out, *cause);
            }
            Change::Restore { key, stream } => {
                out.byte(RESTORE);
                put_key(out, key);
                put_stream(out, stream);
                out.number(u64::from(stream.forks));
            }
        }
    }

    fn decode(mut reader: Reader) -> Result<Change, DecodeError> {
        let tag = reader.byte()?;
        let key = take_key(&mut reader)?;
        let change = match tag {
            CREATE => Change::Create { key, stream: take_stream(&mut reader)? },
            EXPECT => Change::Expect { key, log: reader.log()? },
            RENEW => Change::Renew { key, log: reader.log()?, expires_at: reader.time()? },
            TRIM => Change::Trim {
                key,
                log: reader.log()?,
                floor: take_floor(&mut reader)?,
                below: if reader.byte()? == 0 { Below::Gone } else { Below::Held },
            },
            RETIRE => Change::Retire { key, log: reader.log()?, cause: take_cause(&mut reader)? },
            REMOVE => Change::Remove { key, log: reader.log()?, cause: take_cause(&mut reader)? },
            RESTORE => {
                let mut stream = take_stream(&mut reader)?;
                stream.forks = u32::try_from(reader.number()?).map_err(|_| DecodeError)?;
                Change::Restore { key, stream }
            }
            _ => return Err(DecodeError),
        };
        if reader.is_empty() { Ok(change) } else { Err(DecodeError) }
    }

    fn takes_space(&self, change: &Change) -> bool {
        match change {
            Change::Create { .. } | Change::Restore { .. } => true,
            Change::Expect { .. }
            | Change::Renew { .. }
            | Change::Trim { .. }
            | Change::Retire { .. }
            | Change::Remove { .. } => false,
        }
    }

    fn begin_snapshot(&mut self) {
        Table::begin_snapshot(self);
    }

    fn next_rows(&mut self, most: usize) -> Option<Vec<Row>> {
        Table::next_rows(self, most)
    }

    fn end_snapshot(&mut self) {
        Table::end_snapshot(self);
    }

    fn restore((key, stream): Row, change: &mut dyn FnMut(Change)) {
        change(Change::Restore { key, stream: Stream::clone(&stream) });
    }

    fn conflict_keys(&self, change: &Change, touch: &mut dyn FnMut(Access, u64)) {
        let (Change::Create { key, .. }
        | Change::Expect { key, .. }
        | Change::Renew { key, .. }
        | Change::Trim { key, .. }
        | Change::Retire { key, .. }
        | Change::Remove { key, .. }
        | Change::Restore { key, .. }) = change;
        let access = if matches!(change, Change::Expect { .. }) { Access::Reads } else { Access::Writes };
        touch(access, hash(key));
        // A fork that comes or goes changes its source.
        let fork = match change {
            Change::Create { stream, .. } => stream.fork.as_ref(),
            Change::Remove { key, .. } => self.get(key).and_then(|stream| stream.fork.as_ref()),
            Change::Expect { .. }
            | Change::Renew { .. }
            | Change::Trim { .. }
            | Change::Retire { .. }
            | Change::Restore { .. } => None,
        };
        if let Some(fork) = fork {
            touch(Access::Writes, hash(&fork.source));
        }
    }
}

fn hash(key: &StreamKey) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

pub(crate) fn put_key(out: &mut Vec<u8>, key: &StreamKey) {
    out.text(key.project.as_str());
    out.text(key.id.as_str());
}

pub(crate) fn take_key(reader: &mut Reader) -> Result<StreamKey, DecodeError> {
    let project = ProjectId::parse(&reader.text()?).map_err(|_| DecodeError)?;
    Ok(StreamKey { project, id: StreamId::parse(&reader.text()?).map_err(|_| DecodeError)? })
}

fn put_cause(out: &mut Vec<u8>, cause: Cause) {
    match cause {
        Cause::Deleted => out.byte(0),
        Cause::Expired(now) => {
            out.byte(1);
            out.number(now.as_millis());
        }
        Cause::Unreferenced => out.byte(2),
    }
}

fn take_cause(reader: &mut Reader) -> Result<Cause, DecodeError> {
    match reader.byte()? {
        0 => Ok(Cause::Deleted),
        1 => Ok(Cause::Expired(reader.time()?)),
        2 => Ok(Cause::Unreferenced),
        _ => Err(DecodeError),
    }
}

fn put_stream(out: &mut Vec<u8>, stream: &Stream) {
    let Stream { log, content_type, expiry, expires_at, created_at, fork, forks: _, state, owner, retained } =
        stream;
    out.log(*log);
    out.text(content_type.as_str());
    match expiry {
        Expiry::Never => out.byte(0),
        Expiry::Idle(ttl) => {
            out.byte(1);
            out.number(ttl.as_secs());
        }
        Expiry::At(at) => {
            out.byte(2);
            out.number(at.as_millis());
        }
    }
    put_option(out, expires_at.as_ref(), |out, at| out.number(at.as_millis()));
    out.number(created_at.as_millis());
    put_option(out, fork.as_ref(), |out, fork| put_fork(out, fork));
    out.byte(u8::from(*state == StreamState::Retired) | u8::from(*owner == Owner::Session) << 1);
    put_option(out, retained.as_ref(), |out, retained| put_retained(out, retained));
}

fn take_stream(reader: &mut Reader) -> Result<Stream, DecodeError> {
    let mut stream = Stream {
        log: reader.log()?,
        content_type: ContentType::parse(&reader.text()?).ok_or(DecodeError)?,
        expiry: match reader.byte()? {
            0 => Expiry::Never,
            1 => Expiry::Idle(Duration::from_secs(reader.number()?)),
            2 => Expiry::At(reader.time()?),
            _ => return Err(DecodeError),
        },
        expires_at: take_option(reader, Reader::time)?,
        created_at: reader.time()?,
        fork: take_option(reader, take_fork)?.map(Arc::new),
        forks: 0,
        state: StreamState::Active,
        owner: Owner::Clients,
        retained: None,
    };
    let flags = reader.byte()?;
    if flags > 3 {
        return Err(DecodeError);
    }
    if flags & 1 != 0 {
        stream.state = StreamState::Retired;
    }
    if flags & 2 != 0 {
        stream.owner = Owner::Session;
    }
    stream.retained = take_option(reader, take_retained)?.map(Box::new);
    Ok(stream)
}

fn put_retained(out: &mut Vec<u8>, retained: &Retained) {
    let Retained { limits: Retention { age, bytes, messages }, inherited, floor } = retained;
    for limit in [age.map(|age| age.as_secs()), *bytes, *messages] {
        put_option(out, limit, |out, limit| out.number(limit));
    }
    put_totals(out, *inherited);
    put_floor(out, floor);
}

fn take_retained(reader: &mut Reader) -> Result<Retained, DecodeError> {
    let limits = Retention {
        age: take_option(reader, Reader::number)?.map(Duration::from_secs),
        bytes: take_option(reader, Reader::number)?,
        messages: take_option(reader, Reader::number)?,
    };
    Ok(Retained { limits, inherited: take_totals(reader)?, floor: take_floor(reader)? })
}

fn put_floor(out: &mut Vec<u8>, floor: &Floor) {
    out.position(floor.position);
    put_totals(out, floor.gone);
}

fn take_floor(reader: &mut Reader) -> Result<Floor, DecodeError> {
    Ok(Floor { position: reader.position()?, gone: take_totals(reader)? })
}

fn put_fork(out: &mut Vec<u8>, fork: &Fork) {
    let Fork { source, source_log, offset, sub_offset, lineage } = fork;
    put_key(out, source);
    out.log(*source_log);
    put_option(out, offset.as_ref(), |out, offset| out.position(*offset));
    out.number(*sub_offset);
    out.number(lineage.len() as u64);
    for segment in lineage {
        out.log(segment.log);
        out.position(segment.through);
    }
}

fn take_fork(reader: &mut Reader) -> Result<Fork, DecodeError> {
    Ok(Fork {
        source: take_key(reader)?,
        source_log: reader.log()?,
        offset: take_option(reader, Reader::position)?,
        sub_offset: reader.number()?,
        lineage: (0..reader.count()?)
            .map(|_| Ok(Segment { log: reader.log()?, through: reader.position()? }))
            .collect::<Result<_, DecodeError>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_engine::log::StateMachine;
    use tidings_model::{LogId, Position, Timestamp};

    fn key(id: &str) -> StreamKey {
        let project = ProjectId::parse("shop").expect("an id");
        StreamKey { project, id: StreamId::parse(id).expect("an id") }
    }

    fn create(id: &str, log: u64, source: Option<(&str, u64)>) -> Change {
        let fork = source.map(|(source, log)| {
            let source_log = LogId::new(log);
            let lineage = vec![Segment { log: source_log, through: Position::new(3) }];
            Arc::new(Fork { source: key(source), source_log, offset: None, sub_offset: 0, lineage })
        });
        let stream = Stream {
            log: LogId::new(log),
            content_type: ContentType::octet_stream(),
            expiry: Expiry::Idle(Duration::from_secs(60)),
            expires_at: Some(Timestamp::from_millis(log)),
            created_at: Timestamp::from_millis(7),
            fork,
            forks: 0,
            state: StreamState::Active,
            owner: Owner::Clients,
            retained: None,
        };
        Change::Create { key: key(id), stream }
    }

    /// Each change goes through its written form.
    fn play(table: &mut Table, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            let mut bytes = Vec::new();
            Table::encode(&change, &mut bytes);
            let change = Table::decode(Reader(bytes.into())).expect("as it was written");
            table.validate(&change).unwrap_or_else(|refusal| panic!("{change:?}: {refusal}"));
            table.apply(change);
        }
    }

    #[test]
    fn a_snapshot_makes_the_same_table_whatever_the_names_of_forks_and_sources() {
        let mut table = Table::default();
        let retire =
            |id: &str, log: u64| Change::Retire { key: key(id), log: LogId::new(log), cause: Cause::Deleted };
        play(
            &mut table,
            [
                create("m", 1, None),
                create("a", 2, Some(("m", 1))),
                create("z", 3, Some(("m", 1))),
                create("b", 4, Some(("z", 3))),
                retire("m", 1),
                retire("z", 3),
                create("gone", 5, None),
                Change::Remove { key: key("gone"), log: LogId::new(5), cause: Cause::Deleted },
            ],
        );
        let mut again = Table::default();
        play(&mut again, crate::stored_state::snapshot_of(&mut table));
        let rows = |table: &Table| {
            let mut rows: Vec<_> = table.iter().map(|row| format!("{row:?}")).collect();
            rows.sort();
            rows
        };
        assert_eq!(rows(&again), rows(&table));
        assert_eq!(again.get(&key("m")).expect("kept for its forks").forks, 2);
        // The last fork goes, and with it what was kept for it.
        for table in [&mut table, &mut again] {
            play(table, [Change::Remove { key: key("b"), log: LogId::new(4), cause: Cause::Deleted }]);
            assert_eq!(table.due(Owner::Clients, Timestamp::from_millis(0), 9), [key("z")]);
        }
    }
}
