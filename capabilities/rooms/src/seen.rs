//! Read receipts: the last cursor that each device of a user has seen in a room.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use tidings_engine::log::{Commit, CommitError, StoreError};
use tidings_model::{DeviceId, LogId, Position, Timestamp, UserId};

use crate::rooms::Inner;
use crate::table::{Change, Devices, LowerReceipt};
use crate::{Cursor, Room, RoomError, Rooms};

/// Maximum number of receipts in one commit.
const WRITTEN_AT_ONCE: usize = 1000;
/// Minimum interval between two writes of an unchanged receipt.
const RENEWED_EVERY: Duration = Duration::from_secs(60 * 60);

/// The read receipts of a user in a room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenCursors {
    /// The last seen cursor of each device, and the time of its receipt.
    pub devices: BTreeMap<DeviceId, (Cursor, Timestamp)>,
}

impl SeenCursors {
    /// The cursor of a device, or the highest of all devices.
    pub fn last(&self, device: Option<&DeviceId>) -> Option<Cursor> {
        match device {
            Some(device) => self.devices.get(device).map(|(cursor, _)| *cursor),
            None => self.devices.values().map(|(cursor, _)| *cursor).max(),
        }
    }
}

/// Receipts that are not stored yet.
#[derive(Default)]
pub(crate) struct PendingReceipts {
    notes: Mutex<Notes>,
    /// Held while receipts are written, so that a forced receipt is not overwritten by an older pending one.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Notes {
    users: HashMap<(LogId, UserId), Devices>,
    /// Number of devices with a pending receipt.
    count: usize,
}

/// Identifies a receipt: a room's log, a user and a device.
type Key = (LogId, UserId, DeviceId);

impl Notes {
    /// Adds a receipt. Returns false when `most` are pending already.
    fn note(&mut self, (log, user, device): Key, seen: (Position, Timestamp), most: usize) -> bool {
        let known = self.users.get(&(log, user.clone())).is_some_and(|devices| devices.contains_key(&device));
        if !known && self.count >= most {
            return false;
        }
        self.count += usize::from(!known);
        let noted = self.users.entry((log, user)).or_default().entry(device).or_insert(seen);
        if seen.0 > noted.0 {
            *noted = seen;
        }
        true
    }

    /// Removes a pending receipt: the given one, or any if none is given.
    fn forget(&mut self, (log, user, device): &Key, seen: Option<(Position, Timestamp)>) {
        let key = (*log, user.clone());
        let Some(devices) = self.users.get_mut(&key) else { return };
        if devices.get(device).is_some_and(|noted| seen.is_none_or(|seen| seen == *noted)) {
            devices.remove(device);
            self.count -= 1;
        }
        if devices.is_empty() {
            self.users.remove(&key);
        }
    }

    fn all(&self) -> Vec<(Key, (Position, Timestamp))> {
        let of_user = |((log, user), devices): (&(LogId, UserId), &Devices)| {
            let one = |(device, seen): (&DeviceId, &_)| ((*log, user.clone(), device.clone()), *seen);
            devices.iter().map(one).collect::<Vec<_>>()
        };
        self.users.iter().flat_map(of_user).collect()
    }
}

impl PendingReceipts {
    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().expect("nobody panics while holding the notes")
    }
}

impl Rooms {
    /// Stores that a device has seen a room up to a cursor. Durable when it returns. A lower cursor than
    /// before is ignored unless it is forced; a cursor that was never assigned is always ignored.
    pub async fn see(
        &self,
        room: &Room,
        user: &UserId,
        device: &DeviceId,
        cursor: Cursor,
        force: bool,
    ) -> Result<(), RoomError> {
        let inner = &self.inner;
        if cursor > inner.ceiling(room.log).await? {
            return Ok(());
        }
        let key = (room.log, user.clone(), device.clone());
        let seen = (cursor.position(), inner.clock.now());
        if force {
            let _writing = inner.pending_receipts.writing.lock().await;
            inner.pending_receipts.lock().forget(&key, None);
            inner.commit(Commit::new().changing(see(key, seen, LowerReceipt::Store))).await?;
        } else if inner.is_news(&key, seen).await? {
            // Without waiting for other writers: the highest cursor wins in any order, and many receipts
            // share a commit.
            inner.commit(Commit::new().changing(see(key, seen, LowerReceipt::Ignore))).await?;
        } else {
            return Ok(());
        }
        inner.counts.seen.count();
        Ok(())
    }

    /// Notes a receipt, to be stored within about a second together with others. It is dropped if too many
    /// are pending.
    pub fn note_seen(&self, room: &Room, user: &UserId, device: &DeviceId, cursor: Cursor) {
        // The highest pending cursor of a device is stored, so one that was never assigned must not hide the
        // real one. In-memory stores answer at once; with others, the cursor is checked when the receipt is
        // written.
        let ceiling = self.inner.ceiling(room.log).now_or_never();
        if ceiling.is_some_and(|ceiling| ceiling.is_ok_and(|ceiling| cursor > ceiling)) {
            return;
        }
        let key = (room.log, user.clone(), device.clone());
        let (seen, most) =
            ((cursor.position(), self.inner.clock.now()), self.inner.options.capacity.noted_seen);
        if !self.inner.pending_receipts.lock().note(key, seen, most) {
            self.inner.counts.seen_dropped.count();
        }
    }

    /// The read receipts of a user in a room, including pending ones.
    pub async fn seen(&self, room: &Room, user: &UserId) -> Result<SeenCursors, RoomError> {
        // Pending ones first: a receipt that is written in between is in the store by then.
        let noted = self
            .inner
            .pending_receipts
            .lock()
            .users
            .get(&(room.log, user.clone()))
            .cloned()
            .unwrap_or_default();
        let stored = self.inner.store.seen(room.log, user).await?;
        let mut devices = stored.map(|stored| stored.as_ref().clone()).unwrap_or_default();
        if !noted.is_empty() {
            let ceiling = self.inner.ceiling(room.log).await?.position();
            for (device, seen) in noted.into_iter().filter(|(_, (through, _))| *through <= ceiling) {
                let known = devices.entry(device).or_insert(seen);
                *known = (*known).max(seen);
            }
        }
        let shown = |(device, (through, at))| (device, (Cursor::at(through), at));
        Ok(SeenCursors { devices: devices.into_iter().map(shown).collect() })
    }

    /// Stores the pending receipts.
    pub async fn write_pending_receipts(&self) -> Result<(), StoreError> {
        let inner = &self.inner;
        let _writing = inner.pending_receipts.writing.lock().await;
        let notes = inner.pending_receipts.lock().all();
        for some in notes.chunks(WRITTEN_AT_ONCE) {
            let mut commit = Commit::new();
            for (key, seen) in some {
                if inner.counts_as_seen(key, *seen).await? {
                    commit = commit.changing(see(key.clone(), *seen, LowerReceipt::Ignore));
                }
            }
            if !commit.changes.is_empty() {
                let written = commit.changes.len() as u64;
                match inner.commit(commit).await {
                    Ok(_) => inner.counts.seen.add(written),
                    // They stay pending and are written later.
                    Err(CommitError::Store(error)) => return Err(error),
                    // Another server has taken over the rooms.
                    Err(CommitError::Declined(_) | CommitError::Refused(_)) => {}
                }
            }
            let mut notes = inner.pending_receipts.lock();
            for (key, seen) in some {
                notes.forget(key, Some(*seen));
            }
        }
        Ok(())
    }
}

impl Inner {
    /// Whether a receipt is higher than the stored one, or due for renewal.
    async fn is_news(&self, key: &Key, (through, at): (Position, Timestamp)) -> Result<bool, StoreError> {
        let (log, user, device) = key;
        let stored = self.store.seen(*log, user).await?;
        // Renewed several times before it would be forgotten.
        let renewed_every = RENEWED_EVERY.min(self.options.retention / 4);
        let is_old = |told: Timestamp| at.since(told) >= renewed_every;
        let is_news = |(known, told)| through > known || (through == known && is_old(told));
        Ok(stored.and_then(|devices| devices.get(device).copied()).is_none_or(is_news))
    }

    /// Whether a pending receipt is to be written: it is news, and its cursor was assigned.
    async fn counts_as_seen(&self, key: &Key, seen: (Position, Timestamp)) -> Result<bool, StoreError> {
        let ceiling = match self.ceiling(key.0).await {
            Ok(ceiling) => ceiling.position(),
            Err(RoomError::Store(error)) => return Err(error),
            // The room was deleted.
            Err(_) => return Ok(false),
        };
        Ok(seen.0 <= ceiling && self.is_news(key, seen).await?)
    }
}

fn see(key: Key, (through, at): (Position, Timestamp), lower: LowerReceipt) -> Change {
    let (log, user, device) = key;
    Change::See { log, user, device, through, at, lower }
}
