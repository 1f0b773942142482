//! Who may write to rooms: the node that leads, in an epoch that it begins with each term in which it leads.
//!
//! A node that becomes leader raises the epoch ([`Change::TakeOver`]) before its first write, and all that it commits rests
//! on that epoch ([`Change::Owned`]). A node that only follows raises nothing, and knows the epoch from what is applied.

use std::sync::{Arc, RwLock};

use tidings_engine::duty::{Leadership, Term};
use tidings_engine::log::{Commit, CommitError, Committed, StoreError};
use tokio::sync::{Mutex, OnceCell};

use crate::caches::Caches;
use crate::rooms::Inner;
use crate::{Change, Declined, RoomError, Store};

/// Whether and in which epoch this node owns the rooms. Clones are the same.
#[derive(Clone)]
pub(crate) struct Ownership {
    store: Arc<dyn Store>,
    leadership: Leadership,
    caches: Arc<Caches>,
    /// The last one that this node had.
    tenure: Arc<RwLock<Option<Arc<Tenure>>>>,
    /// One begins at a time; the others find it done.
    beginning: Arc<Mutex<()>>,
}

/// One term in which this node owns the rooms.
pub(crate) struct Tenure {
    term: Term,
    epoch: u64,
    /// Whether the epoch is ours; unknown until it could be written down.
    ours: OnceCell<bool>,
}

impl Ownership {
    pub(crate) fn new(store: Arc<dyn Store>, leadership: Leadership, caches: Arc<Caches>) -> Self {
        Self { store, leadership, caches, tenure: Arc::default(), beginning: Arc::default() }
    }

    /// The epoch of this node while it leads, otherwise that of whoever does, as far as it was applied.
    pub(crate) fn epoch(&self) -> u64 {
        self.current().map_or_else(|| self.caches.epoch(), |tenure| tenure.epoch)
    }

    /// The tenure of this node, which begins if the node leads and has none in this term. None if it does not lead.
    pub(crate) async fn tenure(&self) -> Result<Option<Arc<Tenure>>, StoreError> {
        if let Some(tenure) = self.current() {
            return Ok(Some(tenure));
        }
        if !self.leadership.is_held() {
            return Ok(None);
        }
        let this = self.clone();
        // In a task of its own: if the caller goes away nobody else could tell whether it was us.
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
            // Rooms can be read all the same. They are taken over with the first write for which there is space.
            Err(StoreError::NoSpace) => (self.store.epoch().await?.saturating_add(1), OnceCell::new()),
            taken => (taken?, OnceCell::new_with(Some(true))),
        };
        // Whoever led before may have written since rooms were read. What this node writes from an earlier term is refused,
        // so nobody holds on to one of them for a write that is still made.
        self.caches.active.forget();
        let tenure = Arc::new(Tenure { term, epoch, ours });
        *self.tenure.write().expect("nobody panics while writing") = Some(tenure.clone());
        Ok(Some(tenure))
    }

    /// Makes the rooms ours; returns the epoch that they are then in.
    async fn take_over(&self) -> Result<u64, StoreError> {
        loop {
            let epoch = self.store.epoch().await?.saturating_add(1);
            match self.store.commit(Commit::new().changing(Change::TakeOver { epoch })).await {
                Ok(_) => return Ok(epoch),
                // Somebody else does the same at the same time, and one of us is first.
                Err(CommitError::Declined(_)) => {}
                Err(CommitError::Store(error)) => return Err(error),
                Err(CommitError::Refused(refusal)) => {
                    return Err(StoreError::Unavailable(refusal.to_string()));
                }
            }
        }
    }

    /// Whether a tenure lasts and its epoch is ours. It is written down now if there was no space for it before.
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
                // Somebody else came meanwhile, and has the epoch that would have been ours, or a later one.
                Err(CommitError::Declined(_)) => Ok(false),
                Err(error) => Err(error),
            }
        };
        // In a task of its own: if the caller goes away nobody else could tell whether it was us.
        let taking_over = tokio::spawn(async move { tenure.ours.get_or_try_init(take_over).await.copied() });
        taking_over.await.map_err(|error| CommitError::Store(StoreError::Unavailable(error.to_string())))?
    }
}

impl Inner {
    /// The tenure in which a write is made from its beginning to its commit.
    pub(crate) async fn writing(&self) -> Result<Arc<Tenure>, RoomError> {
        let tenure = self.ownership.tenure().await?;
        tenure.ok_or_else(|| {
            self.counts.fenced.count();
            RoomError::Fenced
        })
    }

    /// Makes a commit, if this node leads and nobody else has taken over.
    pub(crate) async fn commit(&self, commit: Commit<Change>) -> Result<Committed, CommitError<Declined>> {
        match self.ownership.tenure().await.map_err(CommitError::Store)? {
            Some(tenure) => self.commit_in(&tenure, commit).await,
            None => Err(self.fenced()),
        }
    }

    /// Makes a commit, if a tenure lasts and nobody else has taken over.
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
