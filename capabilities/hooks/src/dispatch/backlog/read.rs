//! What is read from the queue of a hook.

use bytes::Bytes;
use tidings_engine::log::{Record, Status};
use tidings_model::{Position, Timestamp};

use super::Backlog;
use crate::delivery::DeathReason;
use crate::dispatch::attempt::Loaded;
use crate::dispatch::moment::Moment;

/// Bytes of events that are read from a queue at once.
const PAGE_BYTES: usize = 256 * 1024;
/// Events that are read from a queue at once: twice as many as may run at a time, but within these bounds.
const PAGE_RECORDS: std::ops::RangeInclusive<usize> = 16..=256;

/// What is to be read from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Want {
    /// The deliveries after a position.
    Page {
        /// The position.
        after: Position,
        /// Deliveries, at most.
        records: usize,
        /// Bytes of their events, at most.
        bytes: usize,
    },
    /// One delivery.
    One(Position, Purpose),
}

/// Why a single delivery is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::dispatch) enum Purpose {
    /// To begin it.
    Begin,
    /// To learn its lane.
    Lane,
    /// To learn when it was queued.
    Age,
}

/// What is to be read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The next deliveries.
    Page,
    /// One delivery.
    One(Position, Purpose),
}

impl Backlog {
    /// What to read now. Nothing else is asked for until it was read, or was not.
    pub(in crate::dispatch) fn take_want(&mut self) -> Option<Want> {
        if self.reading.is_none() {
            self.reading = self.wanted.take().map(|wanted| match wanted {
                Wanted::One(position, purpose) => Want::One(position, purpose),
                Wanted::Page => {
                    let records = self.page_records().min(self.window.room());
                    Want::Page { after: self.window.read(), records, bytes: PAGE_BYTES }
                }
            });
            return self.reading;
        }
        None
    }

    /// What is being read could not be read. It will be asked for again.
    pub(in crate::dispatch) fn not_read(&mut self) {
        if let Some(Want::One(position, Purpose::Begin)) = self.reading.take() {
            self.unloaded.push_front(position);
        }
    }

    /// Records were read after a position, as [`Want::Page`] asked.
    pub(in crate::dispatch) fn read_page(
        &mut self,
        after: Position,
        records: Vec<Record>,
        status: Status,
        moment: &Moment<'_>,
    ) {
        self.reading = None;
        self.grown(status);
        if after != self.window.read() {
            // What was read before it was taken out of memory meanwhile, so there would be a gap.
            return;
        }
        if records.is_empty() {
            self.window.skip_to(status.tail);
        }
        for record in records {
            if self.window.push(record.position) {
                self.admit(loaded(record, 0), moment);
            }
        }
    }

    /// Records up to a position are gone.
    pub(in crate::dispatch) fn trimmed(&mut self, floor: Position) {
        self.reading = None;
        self.window.skip_to(floor);
    }

    /// One record was read, as [`Want::One`] asked. `None` if it is gone.
    pub(in crate::dispatch) fn read_one(
        &mut self,
        position: Position,
        purpose: Purpose,
        record: Option<Record>,
        moment: &Moment<'_>,
    ) {
        self.reading = None;
        let is_laneless = self.laneless.remove(&position);
        let attempts = self.parked.attempts(position);
        let waits = match attempts {
            Some(_) => !self.parked.is_running(position),
            None => purpose == Purpose::Begin && self.window.is_waiting(position),
        };
        if !waits {
            // It went on meanwhile, or will be read again with others.
            return;
        }
        let attempts = attempts.unwrap_or_default();
        let Some(record) = record else {
            self.forget_loaded(position);
            let (at, record) = (Timestamp::from_millis(0), Bytes::new());
            let gone = Loaded { position, at, attempts, record, origin: None };
            return self.give_up(&gone, DeathReason::Expired, moment);
        };
        let loaded = loaded(record, attempts);
        self.parked.queued_at(position, loaded.at);
        if is_laneless && let Some(lanes) = &mut self.lanes {
            lanes.enter(position, self.order.lane(&loaded.record));
        }
        if moment.has_expired(loaded.at) {
            self.forget_loaded(position);
            self.give_up(&loaded, DeathReason::Expired, moment);
        } else if purpose == Purpose::Begin {
            self.bytes += loaded.record.len();
            if attempts == 0 {
                self.fresh.insert(position, loaded);
            } else {
                self.retries.push_back(loaded);
            }
        }
    }

    pub(super) fn can_read(&self) -> bool {
        self.window.read() < self.tail && self.window.room() > 0
    }

    pub(super) fn page_records(&self) -> usize {
        let wanted = 2 * self.hook.settings.concurrency as usize;
        wanted.clamp(*PAGE_RECORDS.start(), *PAGE_RECORDS.end())
    }

    /// Lets a delivery that was read begin, or wait for earlier ones.
    fn admit(&mut self, loaded: Loaded, moment: &Moment<'_>) {
        if self.surplus(moment.rules) > 0 {
            return self.give_up(&loaded, DeathReason::QueueFull, moment);
        }
        if moment.has_expired(loaded.at) {
            return self.give_up(&loaded, DeathReason::Expired, moment);
        }
        self.bytes += loaded.record.len();
        let is_first = match &mut self.lanes {
            Some(lanes) => lanes.enter(loaded.position, self.order.lane(&loaded.record)),
            None => true,
        };
        if is_first {
            self.fresh.insert(loaded.position, loaded);
        } else {
            self.behind.insert(loaded.position, loaded);
        }
    }

    /// Forgets that a delivery may begin.
    fn forget_loaded(&mut self, position: Position) {
        self.unloaded.retain(|unloaded| *unloaded != position);
        if let Some(at) = self.retries.iter().position(|retry| retry.position == position)
            && let Some(retry) = self.retries.remove(at)
        {
            self.bytes -= retry.record.len();
        }
    }
}

fn loaded(record: Record, attempts: u32) -> Loaded {
    let Record { position, at, payload, origin, .. } = record;
    let origin = origin.map(|origin| (origin.log, origin.position));
    Loaded { position, at, attempts, record: payload, origin }
}
