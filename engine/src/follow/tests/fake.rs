//! Work that the test makes up.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use tidings_model::LogId;
use tokio::sync::Notify;

use crate::follow::{Delivered, Work};

/// Sources with some batches left, and what was delivered of them.
#[derive(Default)]
pub(super) struct Fake {
    progress: Mutex<Progress>,
    script: Mutex<Script>,
    released: Notify,
}

#[derive(Default)]
struct Progress {
    /// Batches left of each source that has some.
    left: BTreeMap<LogId, usize>,
    /// The source of each batch, in the order of delivery.
    delivered: Vec<LogId>,
    /// How often a batch of each source was tried.
    tried: BTreeMap<LogId, usize>,
}

/// What goes wrong.
#[derive(Clone, Copy, Default)]
pub(super) struct Script {
    /// Batches of this source cannot be delivered.
    pub(super) fails: Option<LogId>,
    /// Work on this source waits until it is released.
    pub(super) hangs: Option<(LogId, Hang)>,
    pub(super) seen: Seen,
}

/// Where work on a source waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hang {
    BeforeDelivery,
    /// After it has seen that nothing is left.
    AtTheEnd,
}

/// What the follower sees of the sources when it asks which have something left.
#[derive(Clone, Copy, Default)]
pub(super) enum Seen {
    #[default]
    All,
    Nothing,
    Fails,
}

impl Fake {
    pub(super) fn with(left: &[(LogId, usize)]) -> Self {
        let fake = Self::default();
        left.iter().for_each(|(source, batches)| fake.add(*source, *batches));
        fake
    }

    pub(super) fn add(&self, source: LogId, batches: usize) {
        *self.progress().left.entry(source).or_default() += batches;
    }

    pub(super) fn left(&self) -> Vec<LogId> {
        self.progress().left.keys().copied().collect()
    }

    pub(super) fn delivered(&self) -> Vec<LogId> {
        self.progress().delivered.clone()
    }

    pub(super) fn tried(&self, source: LogId) -> usize {
        self.progress().tried.get(&source).copied().unwrap_or_default()
    }

    /// Lets one go on that hangs.
    pub(super) fn release(&self) {
        self.released.notify_one();
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().expect("nobody panics while holding it")
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().expect("nobody panics while holding it")
    }

    async fn hang(&self, source: LogId, hang: Hang) {
        let hangs = self.script().hangs == Some((source, hang));
        if hangs {
            self.released.notified().await;
        }
    }
}

impl Work for Fake {
    const NAME: &'static str = "tests";
    const SOURCES_AT_A_TIME: usize = 2;

    type Batch = ();
    type Error = &'static str;

    async fn backlog(&self) -> Result<Vec<LogId>, &'static str> {
        match self.script().seen {
            Seen::All => Ok(self.left()),
            Seen::Nothing => Ok(Vec::new()),
            Seen::Fails => Err("what is left cannot be seen"),
        }
    }

    async fn next(&self, source: LogId, _: Option<()>) -> Result<Option<()>, &'static str> {
        let next = self.progress().left.contains_key(&source).then_some(());
        if next.is_none() {
            self.hang(source, Hang::AtTheEnd).await;
        }
        Ok(next)
    }

    async fn deliver(&self, source: LogId, (): &()) -> Result<Delivered, &'static str> {
        *self.progress().tried.entry(source).or_default() += 1;
        if self.script().fails == Some(source) {
            return Err("it cannot be delivered");
        }
        self.hang(source, Hang::BeforeDelivery).await;
        let mut progress = self.progress();
        progress.delivered.push(source);
        let left = progress.left.get_mut(&source).expect("the batch was there");
        *left -= 1;
        if *left == 0 {
            progress.left.remove(&source);
        }
        Ok(Delivered::Yes)
    }
}
