//! Ownership of rooms: only the leader may write, in an epoch that begins with each term it leads.
//!
//! A node that becomes leader raises the epoch ([`Change::TakeOver`]) before its first write, and each of its commits
//! requires that epoch ([`Change::Owned`]). A follower does not raise the epoch, and learns it from applied changes.

use std::sync::{Arc, RwLock};

use tidings_engine::duty::{Leadership, Term};
use tidings_engine::log::{Commit, CommitError, Committed, StoreError};
use tokio::sync::{Mutex, OnceCell};

use crate::caches::Caches;
use crate::rooms::Inner;
use crate::{Change, Declined, RoomError, Store};

/// Whether, and in which epoch, this node owns the rooms. Clones share the same state.
#[derive(Clone)]
pub(crate) struct Ownership {
    store: Arc<dyn Store>,
    leadership: Leadership,
    caches: Arc<Caches>,
    /// Last tenure of this node, possibly over.
    tenure: Arc<RwLock<Option<Arc<Tenure>>>>,
    /// Serializes the start of a tenure, so that concurrent callers share one.
    beginning: Arc<Mutex<()>>,
}

/// One term in which this node owns the rooms.
pub(crate) struct Tenure {
    term: Term,
    epoch: u64,
    /// Whether this node owns the epoch. Unset until the take-over could be stored.
    ours: OnceCell<bool>,
}

impl Ownership {
    pub(crate) fn new(store: Arc<dyn Store>, leadership: Leadership, caches: Arc<Caches>) -> Self {
        Self { store, leadership, caches, tenure: Arc::default(), beginning: Arc::default() }
    }

    /// Epoch of this node while it leads, otherwise the last applied epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.current().map_or_else(|| self.caches.epoch(), |tenure| tenure.epoch)
    }

    /// Returns the tenure of this node, and begins one if the node leads and has none in this term. Returns `None` if
    /// it does not lead.
    pub(crate) async fn tenure(&self) -> Result<Option<Arc<Tenure>>, StoreError> {
        if let Some(tenure) = self.current() {
            return Ok(Some(tenure));
        }
        if !self.leadership.is_held() {
            return Ok(None);
        }
        let this = self.clone();
        // Runs in its own task: if the caller were cancelled, nothing else would know whether this node took over.
        let beginning = tokio::spawn(async move { this.begin().await });
        beginning.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    fn current(&self) -> Option<Arc<Tenure>> {
        let tenure = self.tenure.read().expect("nobody panics while writing");
        tenure.as_ref().filter(|tenure| !tenure.term.is_over()).cloned()
    }

    async fn begin(&self) -> Result<Option<Arc<Tenure>>, StoreError> {
        let _beginning = self.beginning.lock().await;
        if let Some(tenure) = self.current() {
            return Ok(Some(tenure));
        }
        let Some(term) = self.leadership.term() else { return Ok(None) };
        let (epoch, ours) = match self.take_over().await {
            // Rooms can be read without the take-over. It is retried with each write until there is space.
            Err(StoreError::NoSpace) => (self.store.epoch().await?.saturating_add(1), OnceCell::new()),
            taken => (taken?, OnceCell::new_with(Some(true))),
        };
        // The previous leader may have written since the rooms were loaded. Writes of this node from an earlier term
        // are refused, so no write in progress still relies on a loaded room.
        self.caches.active.forget();
        let tenure = Arc::new(Tenure { term, epoch, ours });
        *self.tenure.write().expect("nobody panics while writing") = Some(tenure.clone());
        Ok(Some(tenure))
    }

    /// Takes the rooms over and returns the new epoch.
    async fn take_over(&self) -> Result<u64, StoreError> {
        loop {
            let epoch = self.store.epoch().await?.saturating_add(1);
            match self.store.commit(Commit::new().changing(Change::TakeOver { epoch })).await {
                Ok(_) => return Ok(epoch),
                // Another node took over concurrently; try the next epoch.
                Err(CommitError::Declined(_)) => {}
                Err(CommitError::Store(error)) => return Err(error),
                Err(CommitError::Refused(refusal)) => {
                    return Err(StoreError::Unavailable(refusal.to_string()));
                }
            }
        }
    }

    /// Whether the tenure lasts and this node owns its epoch. Stores the take-over now if there was no space before.
    async fn is_ours(&self, tenure: &Arc<Tenure>) -> Result<bool, CommitError<Declined>> {
        if tenure.term.is_over() {
            return Ok(false);
        }
        if let Some(ours) = tenure.ours.get() {
            return Ok(*ours);
        }
        let (tenure, store, epoch) = (tenure.clone(), self.store.clone(), tenure.epoch);
        let take_over = move || async move {
            match store.commit(Commit::new().changing(Change::TakeOver { epoch })).await {
                Ok(_) => Ok(true),
                // Another node has taken this epoch or a later one.
                Err(CommitError::Declined(_)) => Ok(false),
                Err(error) => Err(error),
            }
        };
        // Runs in its own task: if the caller were cancelled, nothing else would know whether this node took over.
        let taking_over = tokio::spawn(async move { tenure.ours.get_or_try_init(take_over).await.copied() });
        taking_over.await.map_err(|error| CommitError::Store(StoreError::Unavailable(error.to_string())))?
    }
}

impl Inner {
    /// The tenure to use for a write, from its start to its commit. Fails if this node does not lead.
    pub(crate) async fn writing(&self) -> Result<Arc<Tenure>, RoomError> {
        let tenure = self.ownership.tenure().await?;
        tenure.ok_or_else(|| {
            self.counts.fenced.count();
            RoomError::Fenced
        })
    }

    /// Makes a commit, provided that this node leads and no other node has taken over.
    pub(crate) async fn commit(&self, commit: Commit<Change>) -> Result<Committed, CommitError<Declined>> {
        match self.ownership.tenure().await.map_err(CommitError::Store)? {
            Some(tenure) => self.commit_in(&tenure, commit).await,
            None => Err(self.fenced()),
        }
    }

    /// Makes a commit, provided that the tenure lasts and no other node has taken over.
    pub(crate) async fn commit_in(
        &self,
        tenure: &Arc<Tenure>,
        commit: Commit<Change>,
    ) -> Result<Committed, CommitError<Declined>> {
        if !self.ownership.is_ours(tenure).await? {
            return Err(self.fenced());
        }
        match self.store.commit(commit.changing(Change::Owned { by: tenure.epoch })).await {
            Err(CommitError::Declined(Declined::Fenced)) => Err(self.fenced()),
            committed => committed,
        }
    }

    fn fenced(&self) -> CommitError<Declined> {
        self.counts.fenced.count();
        CommitError::Declined(Declined::Fenced)
    }
}
