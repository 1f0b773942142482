//! The dispatcher: wakes workers, ends leases, repeats what failed.
//!
//! One task decides ([`step`]) and has it done by tasks of its own ([`attempt`]), at most one for each subscription at a time
//! and so many for each destination ([`lanes`]). It is woken by what changes and by timers, and keeps nothing that is not in the
//! store: it may be dropped at any time and run again, also on another node.

mod attempt;
mod lanes;
mod step;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use tidings_model::{LogId, Timestamp};
use tokio::task::JoinSet;

use self::lanes::{Lane, Lanes};
use self::step::Step;
use crate::subscription::{Delivery, Subscription};
use crate::{SubscriptionError, Subscriptions};
use tidings_egress::Target;

/// Pause after an error of the store.
const PAUSE: Duration = Duration::from_secs(1);
/// Subscriptions that are read under one lock at the start.
const PAGE: usize = 1024;

/// What a task did.
struct Ended {
    number: LogId,
    lane: Option<Lane>,
    result: Result<(), SubscriptionError>,
}

/// The state of a dispatcher.
struct Run<'a> {
    subscriptions: &'a Subscriptions,
    /// When a subscription is to be looked at again.
    timers: BTreeSet<(Timestamp, LogId)>,
    due: HashMap<LogId, Timestamp>,
    /// Subscriptions that wait for a task or have one.
    busy: HashSet<LogId>,
    lanes: Lanes,
    tasks: JoinSet<Ended>,
}

impl Subscriptions {
    /// Wakes workers. Never returns.
    pub async fn dispatch(self) {
        let options = &self.0.options;
        let mut run = Run {
            subscriptions: &self,
            timers: BTreeSet::new(),
            due: HashMap::new(),
            busy: HashSet::new(),
            lanes: Lanes::new(options.max_attempts, options.max_attempts_per_destination),
            tasks: JoinSet::new(),
        };
        while let Err(error) = run.begin().await {
            tracing::warn!(%error, "could not see which subscriptions there are; trying again");
            self.0.clock.sleep(PAUSE).await;
        }
        loop {
            if let Err(error) = run.look().await {
                tracing::warn!(%error, "could not see what subscriptions have to do; trying again");
                self.0.clock.sleep(PAUSE).await;
                continue;
            }
            run.start_attempts();
            run.wait().await;
        }
    }
}

impl Run<'_> {
    /// Looks at all subscriptions: this node may not have done so before.
    async fn begin(&mut self) -> Result<(), SubscriptionError> {
        let mut after = None;
        loop {
            let numbers = self.subscriptions.0.store.numbers(after, PAGE).await?;
            for number in &numbers {
                self.look_at(*number).await?;
            }
            after = numbers.last().copied();
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Looks at what has changed and at what is due.
    async fn look(&mut self) -> Result<(), SubscriptionError> {
        let inner = &self.subscriptions.0;
        let changed: HashSet<LogId> = inner.pending.changed(&*inner.store).await?;
        for number in changed {
            // Kept until it was looked at.
            self.set_timer(number, Some(Timestamp::from_millis(0)));
        }
        let now = inner.clock.now();
        while let Some((_, number)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.look_at(number).await?;
        }
        Ok(())
    }

    /// Decides what is to be done for a subscription.
    async fn look_at(&mut self, number: LogId) -> Result<(), SubscriptionError> {
        if self.busy.contains(&number) {
            // Looked at again when its task has ended.
            self.set_timer(number, None);
            return Ok(());
        }
        let inner = &self.subscriptions.0;
        let Some(subscription) = inner.store.subscription(number).await? else {
            self.set_timer(number, None);
            return Ok(());
        };
        let pending = self.subscriptions.has_pending(number).await?;
        let step = Step::of(&subscription, pending, inner.clock.now());
        self.set_timer(
            number,
            match step {
                Step::Wait(until) => Some(until),
                Step::Rest | Step::Expire | Step::Attempt | Step::Clear => None,
            },
        );
        match step {
            Step::Rest | Step::Wait(_) => {}
            Step::Attempt => {
                self.busy.insert(number);
                self.lanes.push(lane(&subscription), number);
            }
            Step::Expire | Step::Clear => {
                self.busy.insert(number);
                let subscriptions = self.subscriptions.clone();
                self.tasks.spawn(async move {
                    let result = match step {
                        Step::Clear => subscriptions.clear_links(number).await,
                        _ => subscriptions.expire(number).await,
                    };
                    Ended { number, lane: None, result }
                });
            }
        }
        Ok(())
    }

    /// Begins the attempts whose turn it is.
    fn start_attempts(&mut self) {
        while let Some((lane, number)) = self.lanes.begin() {
            let subscriptions = self.subscriptions.clone();
            self.tasks.spawn(async move {
                let _under_way = subscriptions.0.counts.under_way.hold();
                let result = subscriptions.attempt(number).await;
                Ended { number, lane: Some(lane), result }
            });
        }
    }

    /// Waits until something has changed, is due, or was done.
    async fn wait(&mut self) {
        let inner = &self.subscriptions.0;
        let next = self.timers.first().map(|(at, _)| *at);
        let timer = async {
            match next {
                Some(at) => inner.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            () = inner.notes.changed.notified() => None,
            () = timer => None,
            Some(ended) = self.tasks.join_next() => Some(ended),
        };
        match ended {
            None => {}
            Some(Ok(ended)) => self.end(ended),
            // Ends the duty, and with it the server: the work of a task that panicked would be neglected.
            Some(Err(error)) => panic!("a task of the dispatcher has failed: {error}"),
        }
        while let Some(ended) = self.tasks.try_join_next() {
            self.end(ended.unwrap_or_else(|error| panic!("a task of the dispatcher has failed: {error}")));
        }
    }

    fn end(&mut self, ended: Ended) {
        let Ended { number, lane, result } = ended;
        self.busy.remove(&number);
        if let Some(lane) = lane {
            self.lanes.end(&lane);
        }
        let again = match result {
            Ok(()) => Timestamp::from_millis(0),
            Err(error) => {
                let number = number.get();
                tracing::warn!(%error, number, "could not wake the workers of a subscription; trying again");
                self.subscriptions.now() + PAUSE
            }
        };
        self.set_timer(number, Some(again));
    }

    fn set_timer(&mut self, number: LogId, at: Option<Timestamp>) {
        if let Some(before) = self.due.remove(&number) {
            self.timers.remove(&(before, number));
        }
        if let Some(at) = at {
            self.due.insert(number, at);
            self.timers.insert((at, number));
        }
    }
}

/// What the attempts of a subscription share with others.
fn lane(subscription: &Subscription) -> Lane {
    match &subscription.config.delivery {
        Delivery::PullWake { .. } => format!("streams of {}", subscription.project),
        Delivery::Webhook { url } => {
            Target::parse(url).map_or_else(|_| url.to_string(), |target| target.destination().to_string())
        }
    }
}
