//! How the tables of rooms are kept.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tidings_engine::log::{Carries, StoreError};
use tidings_model::{DeviceId, LogId, Position, ProjectId, RoomId, Timestamp, UserId};
use tidings_rooms::table::{Back, Devices, Found, Row, Silent};
use tidings_rooms::{Change, Store, Table};

use crate::Embedded;
use crate::codec::{Garbled, Put, Take};
use crate::tables::{StoredTables, Touch};

const TAKE_OVER: u8 = 1;
const OWNED: u8 = 2;
const CREATE: u8 = 3;
const REMOVE: u8 = 4;
const MEMBERS: u8 = 5;
const RESERVE: u8 = 6;
const COLLAPSE: u8 = 7;
const PRUNE: u8 = 8;
const SEE: u8 = 9;
const SEE_BACK: u8 = 10;
const FORGET: u8 = 11;

impl<T: StoredTables + Carries<Table>> Store for Embedded<T> {
    fn epoch(&self) -> BoxFuture<'_, Result<u64, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().epoch()))).boxed()
    }

    fn room<'a>(
        &'a self,
        project: &'a ProjectId,
        id: &'a RoomId,
    ) -> BoxFuture<'a, Result<Option<LogId>, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().room(project, id)))).boxed()
    }

    fn found(&self, log: LogId) -> BoxFuture<'_, Result<Option<Found>, StoreError>> {
        std::future::ready(Ok(self.look(|tables, status| tables.part().found(log, status)))).boxed()
    }

    fn rooms(&self, after: Option<LogId>, most: usize) -> BoxFuture<'_, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().rooms(after, most)))).boxed()
    }

    fn rooms_of<'a>(
        &'a self,
        project: &'a ProjectId,
        most: usize,
    ) -> BoxFuture<'a, Result<Vec<LogId>, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().rooms_of(project, most)))).boxed()
    }

    fn seen<'a>(
        &'a self,
        log: LogId,
        user: &'a UserId,
    ) -> BoxFuture<'a, Result<Option<Arc<Devices>>, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().seen(log, user).cloned()))).boxed()
    }

    fn silent<'a>(
        &'a self,
        after: Option<&'a (LogId, UserId)>,
        before: Timestamp,
        most: usize,
    ) -> BoxFuture<'a, Result<Silent, StoreError>> {
        std::future::ready(Ok(self.look(|tables, _| tables.part().silent(after, before, most)))).boxed()
    }
}

impl StoredTables for Table {
    fn encode(change: &Change, out: &mut Vec<u8>) {
        match change {
            Change::TakeOver { epoch } => {
                out.byte(TAKE_OVER);
                out.number(*epoch);
            }
            Change::Owned { by } => {
                out.byte(OWNED);
                out.number(*by);
            }
            Change::Create { log, row } => {
                put_log(out, CREATE, *log);
                put_row(out, row);
            }
            Change::Remove { log } => put_log(out, REMOVE, *log),
            Change::Members { log, add, remove, joined, most } => {
                put_log(out, MEMBERS, *log);
                put_users(out, add);
                put_users(out, remove);
                out.position(*joined);
                out.number(*most as u64);
            }
            Change::Reserve { log, through } => {
                put_log(out, RESERVE, *log);
                out.position(*through);
            }
            Change::Collapse { log, positions } => {
                put_log(out, COLLAPSE, *log);
                put_positions(out, positions);
            }
            Change::Prune { log, through } => {
                put_log(out, PRUNE, *log);
                out.position(*through);
            }
            Change::See { log, user, device, through, at, back } => {
                put_log(out, if *back == Back::Go { SEE_BACK } else { SEE }, *log);
                out.text(user.as_str());
                out.text(device.as_str());
                out.position(*through);
                out.number(at.as_millis());
            }
            Change::Forget { log, user, before } => {
                put_log(out, FORGET, *log);
                out.text(user.as_str());
                out.number(before.as_millis());
            }
        }
    }

    fn decode(mut take: Take) -> Result<Change, Garbled> {
        let tag = take.byte()?;
        let change = match tag {
            TAKE_OVER => Change::TakeOver { epoch: take.number()? },
            OWNED => Change::Owned { by: take.number()? },
            _ => of_room(tag, &mut take)?,
        };
        if take.is_empty() { Ok(change) } else { Err(Garbled) }
    }

    fn dump(&self) -> Vec<Change> {
        self.written()
    }

    fn is_only_judged(change: &Change) -> bool {
        matches!(change, Change::Owned { .. })
    }

    fn subjects(&self, change: &Change, subject: &mut dyn FnMut(Touch, u64)) {
        match change {
            Change::TakeOver { .. } => subject(Touch::Writes, hash("epoch")),
            // What one owner commits does not stand in its own way.
            Change::Owned { .. } => subject(Touch::Reads, hash("epoch")),
            Change::Create { log, row } => {
                subject(Touch::Writes, hash(log));
                subject(Touch::Writes, hash((&row.project, &row.id)));
            }
            Change::Remove { log }
            | Change::Members { log, .. }
            | Change::Reserve { log, .. }
            | Change::Collapse { log, .. }
            | Change::Prune { log, .. } => subject(Touch::Writes, hash(log)),
            Change::See { log, user, .. } | Change::Forget { log, user, .. } => {
                subject(Touch::Reads, hash(log));
                subject(Touch::Writes, hash((log, user)));
            }
        }
    }
}

fn of_room(tag: u8, take: &mut Take) -> Result<Change, Garbled> {
    let log = take.log()?;
    Ok(match tag {
        CREATE => Change::Create { log, row: take_row(take)? },
        REMOVE => Change::Remove { log },
        MEMBERS => Change::Members {
            log,
            add: take_users(take)?,
            remove: take_users(take)?,
            joined: take.position()?,
            most: take.count()?,
        },
        RESERVE => Change::Reserve { log, through: take.position()? },
        COLLAPSE => Change::Collapse { log, positions: take_positions(take)? },
        PRUNE => Change::Prune { log, through: take.position()? },
        SEE | SEE_BACK => Change::See {
            log,
            user: take_user(take)?,
            device: DeviceId::parse(&take.text()?).map_err(|_| Garbled)?,
            through: take.position()?,
            at: take.time()?,
            back: if tag == SEE_BACK { Back::Go } else { Back::Stay },
        },
        FORGET => Change::Forget { log, user: take_user(take)?, before: take.time()? },
        _ => return Err(Garbled),
    })
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("rooms", of).hash(&mut hasher);
    hasher.finish()
}

fn put_log(out: &mut Vec<u8>, tag: u8, log: LogId) {
    out.byte(tag);
    out.log(log);
}

fn put_row(out: &mut Vec<u8>, row: &Row) {
    let Row { project, id, members, reserved, collapsed } = row;
    out.text(project.as_str());
    out.text(id.as_str());
    out.number(members.len() as u64);
    for (user, &joined) in &**members {
        out.text(user.as_str());
        out.position(joined);
    }
    out.position(*reserved);
    put_positions(out, collapsed);
}

fn take_row(take: &mut Take) -> Result<Row, Garbled> {
    let project = ProjectId::parse(&take.text()?).map_err(|_| Garbled)?;
    let id = RoomId::parse(&take.text()?).map_err(|_| Garbled)?;
    let members = (0..take.count()?).map(|_| Ok((take_user(take)?, take.position()?)));
    let members = Arc::new(members.collect::<Result<BTreeMap<_, _>, Garbled>>()?);
    let (reserved, collapsed) = (take.position()?, Arc::new(take_positions(take)?));
    Ok(Row { project, id, members, reserved, collapsed })
}

fn put_users(out: &mut Vec<u8>, users: &[UserId]) {
    out.number(users.len() as u64);
    users.iter().for_each(|user| out.text(user.as_str()));
}

fn take_users(take: &mut Take) -> Result<Vec<UserId>, Garbled> {
    (0..take.count()?).map(|_| take_user(take)).collect()
}

fn take_user(take: &mut Take) -> Result<UserId, Garbled> {
    UserId::parse(&take.text()?).map_err(|_| Garbled)
}

/// Positions in order, each by its distance from the one before.
fn put_positions(out: &mut Vec<u8>, positions: &[Position]) {
    out.number(positions.len() as u64);
    let mut last = 0u128;
    for position in positions {
        out.position(Position::new(position.get().wrapping_sub(last)));
        last = position.get();
    }
}

fn take_positions(take: &mut Take) -> Result<Vec<Position>, Garbled> {
    let mut last = 0u128;
    let count = take.count()?;
    let one = |_| {
        last = last.wrapping_add(take.position()?.get());
        Ok(Position::new(last))
    };
    (0..count).map(one).collect()
}
