//! The deliveries of one hook that are not finished. Pure: it says what to read and what to begin, and is told what came of
//! it.
//!
//! A delivery is in the queue and not read yet; or it may begin, with its event in memory (`fresh`, `retries`) or without
//! (`unloaded`); or it is `behind` an earlier one of its lane; or an attempt is running; or it waits for the time of its
//! retry (`parked`). When it is settled, what came of it is among the `results` until it is recorded.
//!
//! Read `begin` (whose turn it is), then `settle` (what came of it), `read` (what is read from the queue) and `look` (what
//! time brings: retries that are due, deliveries that expire, queues that are too long).

mod begin;
mod look;
mod read;
mod settle;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tidings_engine::log::Status;
use tidings_model::{Position, limits};

pub(super) use begin::Turn;
pub(super) use read::Want;
pub(super) use settle::AttemptEnd;

use super::attempt::Loaded;
use super::bucket::Bucket;
use super::lanes::{Lanes, Order};
use super::moment::Moment;
use super::parked::Parked;
use super::results::Finished;
use super::window::Window;
use crate::hook::Hook;
use crate::store::Found;

/// Fewest tokens that a limited rate allows in a burst.
const BURST: u32 = 10;

/// The deliveries of one hook that are not finished.
pub(super) struct Backlog {
    hook: Arc<Hook>,
    order: Order,
    /// Nothing begins: the endpoint is gone, or this state is about to be made anew.
    is_stopped: bool,
    /// The endpoint is gone, and that is recorded: a hook that is changed afterwards may begin again.
    is_gone: bool,
    window: Window,
    parked: Parked,
    /// `None` if deliveries do not wait for each other.
    lanes: Option<Box<Lanes>>,
    /// Parked deliveries whose lanes are not known yet. Nothing begins before they are.
    laneless: BTreeSet<Position>,
    /// Nothing begins before the queue was read up to here, so that the order of the lanes is known.
    known_through: Position,
    /// Deliveries that may begin, with their events.
    fresh: BTreeMap<Position, Loaded>,
    /// Retries that may begin, with their events.
    retries: VecDeque<Loaded>,
    /// Deliveries that may begin, fresh ones or retries, whose events are not in memory.
    unloaded: VecDeque<Position>,
    /// Deliveries behind earlier ones of their lane, with their events.
    behind: BTreeMap<Position, Loaded>,
    /// Bytes of the events in memory that wait.
    bytes: usize,
    /// Attempts that are running.
    running: usize,
    /// Whether a retry has precedence over a fresh delivery.
    retry_first: bool,
    bucket: Option<Bucket>,
    /// Nothing begins before this time, for want of a token.
    tokens_at: Duration,
    /// Last position of the queue.
    tail: Position,
    /// Deliveries that were ever queued.
    queued: u64,
    /// Deliveries that were ever finished.
    finished: u64,
    /// What is being read.
    reading: Option<Want>,
    /// What is to be read next.
    wanted: Option<read::Wanted>,
    /// What came of deliveries and is not recorded.
    results: Vec<Finished>,
    /// Results that are being recorded.
    recording: usize,
    /// Time of the next look for deliveries that have expired.
    expiry_at: Duration,
}

impl Backlog {
    /// The deliveries of a hook as they are stored.
    pub(super) fn new(found: &Found, moment: &Moment<'_>) -> Self {
        let Found { hook, progress, status, .. } = found;
        let order = Order::of(&hook.settings);
        let parked = Parked::restored(&progress.parked, moment.at, moment.elapsed);
        let window = Window::new(progress.done, progress.above.iter().copied());
        let (mut lanes, mut laneless) = (None, BTreeSet::new());
        match &order {
            Order::None => {}
            Order::Whole => {
                let lane = lanes.insert(Box::<Lanes>::default());
                for position in parked.positions() {
                    lane.enter(position, Some(0));
                }
            }
            Order::Key(_) => {
                lanes = Some(Box::default());
                laneless = parked.positions().collect();
            }
        }
        let mut backlog = Self {
            known_through: if lanes.is_some() { window.ahead() } else { Position::ZERO },
            hook: hook.clone(),
            order,
            is_stopped: false,
            is_gone: false,
            window,
            parked,
            lanes,
            laneless,
            fresh: BTreeMap::new(),
            retries: VecDeque::new(),
            unloaded: VecDeque::new(),
            behind: BTreeMap::new(),
            bytes: 0,
            running: 0,
            retry_first: false,
            bucket: None,
            tokens_at: Duration::ZERO,
            tail: status.tail,
            queued: status.total.records,
            finished: progress.delivered + progress.dead,
            reading: None,
            wanted: None,
            results: Vec::new(),
            recording: 0,
            expiry_at: moment.elapsed,
        };
        backlog.set_rate(moment);
        backlog
    }

    /// The hook.
    pub(super) fn hook(&self) -> &Arc<Hook> {
        &self.hook
    }

    /// Takes over what changed in the hook and its queue. Returns false if the state must be made anew, because deliveries
    /// wait for others than before.
    pub(super) fn refresh(&mut self, found: &Found, moment: &Moment<'_>) -> bool {
        self.grown(found.status);
        let hook = found.hook.clone();
        if Arc::ptr_eq(&hook, &self.hook) {
            return true;
        }
        if !self.hook.is_active() && hook.is_active() {
            self.parked.make_due(moment.elapsed);
        }
        if std::mem::take(&mut self.is_gone) {
            self.is_stopped = false;
        }
        let same_order = Order::of(&hook.settings) == self.order;
        let same_rate = hook.settings.rate_limit == self.hook.settings.rate_limit;
        self.hook = hook;
        if !same_rate {
            self.set_rate(moment);
        }
        same_order
    }

    /// Lets nothing begin any more: this state is about to be made anew.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// It is recorded that the endpoint is gone and the hook inactive.
    pub(super) fn gone_recorded(&mut self) {
        self.is_gone = true;
    }

    /// Whether anything is left to deliver or to record.
    pub(super) fn has_work(&self) -> bool {
        !self.window.is_empty()
            || self.window.read() < self.tail
            || !self.parked.is_empty()
            || self.running > 0
            || self.has_results()
            || self.window.lags()
    }

    /// Whether there is something to record.
    pub(super) fn is_dirty(&self) -> bool {
        !self.results.is_empty() || self.window.lags()
    }

    /// Whether no attempt is running, nothing is being read, and everything is recorded.
    pub(super) fn is_quiet(&self) -> bool {
        self.running == 0 && self.reading.is_none() && !self.has_results()
    }

    /// Bytes of the events in memory that wait.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time at which the rate allows a full burst again; not after `elapsed` if it does.
    pub(super) fn rested_at(&mut self, elapsed: Duration) -> Duration {
        self.bucket.as_mut().map_or(elapsed, |bucket| bucket.full(elapsed))
    }

    fn set_rate(&mut self, moment: &Moment<'_>) {
        self.tokens_at = Duration::ZERO;
        self.bucket = self.hook.settings.rate_limit.map(|rate| {
            let burst = f64::from(rate.max(BURST));
            Bucket::new(f64::from(rate), burst, moment.elapsed)
        });
    }

    fn grown(&mut self, status: Status) {
        self.tail = self.tail.max(status.tail);
        self.queued = self.queued.max(status.total.records);
    }

    fn has_results(&self) -> bool {
        !self.results.is_empty() || self.recording > 0
    }

    /// Whether the queue was read as far as the order of the lanes requires.
    fn is_known(&self) -> bool {
        self.window.read() >= self.known_through.min(self.tail)
    }

    /// Whether the number of deliveries that wait for a retry allows to begin others.
    fn may_begin_fresh(&self) -> bool {
        self.parked.len() + self.running < limits::HOOK_PARKED
    }

    /// Whether no earlier delivery of its lane is unfinished.
    fn is_first(&self, position: Position) -> bool {
        self.lanes.as_ref().is_none_or(|lanes| lanes.is_first(position))
    }
}

#[cfg(test)]
mod tests;
