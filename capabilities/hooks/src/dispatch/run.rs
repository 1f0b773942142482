//! Drives the [`Scheduler`]: reads, commits, attempts, timers and news meet in one task that owns everything.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tidings_engine::log::{CommitError, Page, ReadError, Span, StoreError};
use tidings_engine::{Clock, DetachOnDrop};
use tidings_model::{LogId, Position};

use super::attempt::Attempts;
use super::backlog::Want;
use super::breaker::BreakerOptions;
use super::counters::Counters;
use super::destination::AttemptLimits;
use super::inbox::{Alone, Inbox, Taken};
use super::moment::Rules;
use super::results::Batch;
use super::scheduler::{Means, Now, Read, Scheduler, Trouble};
use super::workers::Workers;
use super::{Context, Notices};
use crate::store::{Examined, Found, Store};
use crate::table::Declined;
use crate::{Change, HookError};

/// Hooks that are examined under one lock.
const EXAMINED: usize = 1024;
/// Lookups that are under way while all hooks are examined, beyond which examining waits.
const FINDING: usize = 4096;
/// Time after which all hooks are examined again if that failed.
const EXAMINE_AGAIN: Duration = Duration::from_secs(1);
/// Workers, at most.
const WORKERS: usize = 4;

/// Dispatches deliveries. Never returns, and may be dropped at any time.
pub(super) async fn run(inbox: &Arc<Inbox>, context: Context) {
    // An earlier run may still be recording something.
    let alone = Arc::new(inbox.alone().await);
    inbox.begin();
    Driver::new(inbox.clone(), context, alone).run().await
}

/// Futures that are polled together.
type UnderWay<T> = FuturesUnordered<BoxFuture<'static, T>>;

/// Everything that is under way.
struct Driver {
    inbox: Arc<Inbox>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    notices: Arc<dyn Notices>,
    scheduler: Scheduler,
    workers: Workers,
    alone: Arc<Alone>,
    finds: UnderWay<(LogId, Result<Option<Found>, StoreError>)>,
    reads: UnderWay<(Read, Result<Page, ReadError>)>,
    commit: Option<DetachOnDrop<(Batch, Result<(), Trouble>)>>,
    /// The examination of all hooks that have work, until it is complete.
    examining: Option<BoxFuture<'static, Result<Examined, StoreError>>>,
    /// Wakes this at a time on the monotonic clock.
    sleep: Option<(Duration, BoxFuture<'static, ()>)>,
}

impl Driver {
    fn new(inbox: Arc<Inbox>, context: Context, alone: Arc<Alone>) -> Self {
        let Context { store, clock, rng, fresh_id, sender, options, notices, metrics } = context;
        let breaker = BreakerOptions { failures: options.breaker_failures, open: options.breaker_open };
        let limits =
            AttemptLimits { all: options.max_attempts, each: options.max_attempts_per_destination, breaker };
        let rules = Rules { retention: options.event_retention, max_queue: options.max_queue };
        let counters = Counters::new(&metrics);
        let attempts = Arc::new(Attempts { sender: sender.clone(), clock: clock.clone() });
        let count = tokio::runtime::Handle::current().metrics().num_workers().min(WORKERS);
        let workers = Workers::start(count, &attempts, &inbox);
        let scheduler = Scheduler::new(Means { sender, rng, fresh_id, counters, rules, limits });
        let mut driver = Self {
            inbox,
            store,
            clock,
            notices,
            scheduler,
            workers,
            alone,
            finds: FuturesUnordered::new(),
            reads: FuturesUnordered::new(),
            commit: None,
            examining: None,
            sleep: None,
        };
        driver.examine(None, Duration::ZERO);
        driver
    }

    async fn run(mut self) {
        poll_fn(|cx| {
            self.step(cx);
            Poll::Pending::<()>
        })
        .await;
    }

    /// Does everything that can be done now.
    fn step(&mut self, cx: &mut task::Context<'_>) {
        loop {
            let now = self.now();
            let mut progress = self.take_news(cx, now);
            progress |= self.take_finished(cx, now);
            self.scheduler.tick(now);
            self.scheduler.begin(now);
            progress |= self.carry_out(now);
            progress |= self.record(now);
            if !progress && !self.fall_asleep(cx) {
                break;
            }
        }
        if self.scheduler.is_at_rest() && self.reads.is_empty() && self.examining.is_none() {
            self.inbox.rest(self.scheduler.wakes_at(), &self.clock);
        } else {
            self.inbox.work();
        }
    }

    fn now(&self) -> Now {
        Now { at: self.clock.now(), elapsed: self.clock.elapsed() }
    }

    fn take_news(&mut self, cx: &task::Context<'_>, now: Now) -> bool {
        let taken = self.inbox.take(cx.waker());
        let came = !taken.is_empty();
        let Taken { notified, forgotten, ended } = taken;
        for ended in ended {
            self.scheduler.ended(ended, now);
        }
        forgotten.into_iter().for_each(|forgotten| self.scheduler.forget(forgotten));
        notified.into_iter().for_each(|queue| self.scheduler.notified(queue));
        came
    }

    /// Takes what was looked up, read or recorded.
    fn take_finished(&mut self, cx: &mut task::Context<'_>, now: Now) -> bool {
        let mut progress = false;
        while let Poll::Ready(Some((queue, found))) = self.finds.poll_next_unpin(cx) {
            self.scheduler.found(queue, found, now);
            progress = true;
        }
        while let Poll::Ready(Some((read, page))) = self.reads.poll_next_unpin(cx) {
            self.scheduler.read(read, page, now);
            progress = true;
        }
        if let Some(commit) = &mut self.commit
            && let Poll::Ready((batch, made)) = commit.poll_unpin(cx)
        {
            self.commit = None;
            self.scheduler.recorded(batch, made, now);
            progress = true;
        }
        if self.finds.len() < FINDING
            && let Some(examining) = &mut self.examining
            && let Poll::Ready(examined) = examining.poll_unpin(cx)
        {
            self.examining = None;
            match examined {
                Ok(examined) => {
                    examined.with_work.iter().for_each(|queue| self.scheduler.notified(*queue));
                    if examined.last.is_some() {
                        self.examine(examined.last, Duration::ZERO);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot examine which hooks have deliveries");
                    self.examine(None, EXAMINE_AGAIN);
                }
            }
            progress = true;
        }
        progress
    }

    /// Begins what the scheduler asks for.
    fn carry_out(&mut self, now: Now) -> bool {
        let commands = self.scheduler.take_commands();
        let any = !commands.is_empty();
        for queue in commands.finds {
            // Looking up is quick with tables in memory, and harmless if it is begun twice.
            match self.store.found(queue).now_or_never() {
                Some(found) => self.scheduler.found(queue, found, now),
                None => {
                    let store = self.store.clone();
                    self.finds.push(Box::pin(async move { (queue, store.found(queue).await) }));
                }
            }
        }
        for read in commands.reads {
            let store = self.store.clone();
            self.reads.push(Box::pin(async move { (read, store.read(read.queue, span(read.want)).await) }));
        }
        commands.jobs.into_iter().for_each(|job| self.workers.begin(job));
        any
    }

    /// Begins to record results.
    fn record(&mut self, now: Now) -> bool {
        let Some(batch) = self.scheduler.batch(now) else { return false };
        let (store, notices, alone) = (self.store.clone(), self.notices.clone(), self.alone.clone());
        self.commit = Some(DetachOnDrop::new(async move {
            let made = commit(&*store, &*notices, &batch).await;
            drop(alone);
            (batch, made)
        }));
        true
    }

    /// Sees to it that this is woken in time. Returns whether the time has come already.
    fn fall_asleep(&mut self, cx: &mut task::Context<'_>) -> bool {
        let Some(wakes_at) = self.scheduler.wakes_at() else {
            self.sleep = None;
            return false;
        };
        if self.sleep.as_ref().is_none_or(|(time, _)| *time > wakes_at) {
            let left = wakes_at.saturating_sub(self.clock.elapsed());
            if left.is_zero() {
                return true;
            }
            self.sleep = Some((wakes_at, self.clock.sleep(left)));
        }
        let woken = self.sleep.as_mut().is_some_and(|(_, sleep)| sleep.poll_unpin(cx).is_ready());
        if woken {
            self.sleep = None;
        }
        woken
    }

    fn examine(&mut self, after: Option<LogId>, pause: Duration) {
        let (store, clock) = (self.store.clone(), self.clock.clone());
        self.examining = Some(Box::pin(async move {
            if !pause.is_zero() {
                clock.sleep(pause).await;
            }
            store.examine(after, EXAMINED).await
        }));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.inbox.end(self.scheduler.take_forgotten());
    }
}

/// The records to read.
fn span(want: Want) -> Span {
    match want {
        Want::Page { after, records, bytes } => Span { after, through: Position::MAX, bytes, records },
        Want::One(position, _) => {
            let before = Position::new(position.get().saturating_sub(1));
            Span { after: before, through: position, bytes: usize::MAX, records: 1 }
        }
    }
}

fn failed(error: CommitError<Declined>) -> Trouble {
    let trouble = Trouble::of(&error);
    tracing::warn!(error = %HookError::from(error), "cannot record deliveries of hooks; trying again");
    trouble
}

/// Makes the commit of a batch.
async fn commit(store: &dyn Store, notices: &dyn Notices, batch: &Batch) -> Result<(), Trouble> {
    let mut commit = batch.commit();
    for part in &batch.parts {
        if let Some(at) = part.gone() {
            let feed = store.feed(&part.hook.project).await;
            let feed = feed.map_err(|error| failed(CommitError::Store(error)))?;
            let since = feed.map_or(Position::ZERO, |found| found.events.tail);
            commit.changes.push(Change::Deactivate { queue: part.queue, since, at });
        }
    }
    let notices_of_batch = batch.notices();
    let journals: Vec<LogId> =
        notices_of_batch.iter().filter_map(|notice| notices.add(notice, &mut commit)).collect();
    store.commit(commit).await.map_err(failed)?;
    journals.into_iter().for_each(|journal| notices.added(journal));
    Ok(())
}
