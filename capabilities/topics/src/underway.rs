//! The part of a connection's state that an operation is about to change.

use std::collections::HashSet;
use std::sync::Arc;

use crate::draft::Draft;
use crate::error::{ErrorDetails, PubSubError, PubSubErrorCode};
use crate::inner::{Inner, Settings};
use crate::operation::{Request, refused};
use crate::state::{Changing, State};

/// What an operation is about to change. The topics count as pending until it is dropped.
pub(crate) struct Underway {
    inner: Arc<Inner>,
    /// Topics to add, in the order in which they were asked for.
    pub(crate) additions: Vec<Arc<str>>,
    /// Topics to remove, in the order in which they were asked for or subscribed to.
    pub(crate) removals: Vec<Arc<str>>,
    reserved: usize,
    /// Places of the hub that are taken for the additions, beyond those of the removals.
    places: usize,
    /// Whether the additions are counted at their topics.
    is_counted: bool,
}

/// What an operation has changed.
pub(crate) struct Committed {
    pub(crate) added: Vec<Arc<str>>,
    pub(crate) removed: Vec<Arc<str>>,
    pub(crate) total: usize,
}

impl Underway {
    /// Compares what is asked for with what there is. `Ok(Err(total))` if they are the same.
    pub(crate) fn begin(
        inner: &Arc<Inner>,
        request: Request<'_>,
    ) -> Result<Result<Self, usize>, PubSubError> {
        let request = match request {
            Request::Update(change) => {
                let mut draft = Draft::new(&*inner.gate, inner.lock().snapshot());
                change(&mut draft);
                Request::Set(draft.into_topics())
            }
            other => other,
        };
        let mut state = inner.lock();
        let (additions, removals) = difference(&state, request);
        if additions.is_empty() && removals.is_empty() {
            return Ok(Err(state.len()));
        }
        if state.closed {
            return Err(PubSubError::closed());
        }
        for topic in &additions {
            state.changing.insert(topic.clone(), Changing::Adding { refused: None });
        }
        for topic in &removals {
            state.changing.insert(topic.clone(), Changing::Removing);
        }
        drop(state);
        Ok(Ok(Self { inner: inner.clone(), additions, removals, reserved: 0, places: 0, is_counted: false }))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// All topics that change, and whether they are subscribed to afterwards.
    pub(crate) fn topics(&self) -> Vec<(Arc<str>, bool)> {
        let removals = self.removals.iter().map(|topic| (topic.clone(), false));
        removals.chain(self.additions.iter().map(|topic| (topic.clone(), true))).collect()
    }

    /// Checks the limits and reserves the places of the additions. The error of a set has other details.
    pub(crate) fn reserve(&mut self, is_set: bool) -> Result<(), PubSubError> {
        let mut state = self.inner.lock();
        if state.closed {
            return Err(PubSubError::closed());
        }
        self.check_refused(&state)?;
        let to_add = self.additions.len();
        let to_remove = self.removals.iter().filter(|topic| state.contains(topic)).count();
        let current = state.len() + state.reserved;
        if let Some(limit) = self.inner.settings.rules.max_per_connection()
            && to_add > 0
            && current + to_add > limit + to_remove
        {
            let details = if is_set {
                ErrorDetails::SetLimit { limit, current, to_add, to_remove }
            } else {
                ErrorDetails::Limit { limit, current, requested: to_add }
            };
            let message = format!("a connection subscribes to at most {limit} topics");
            return Err(PubSubError::new(PubSubErrorCode::TopicLimitExceeded, message, details));
        }
        self.inner.settings.crowd.enter(&self.inner.settings.rules, &self.additions)?;
        self.is_counted = true;
        let places = to_add.saturating_sub(to_remove);
        if let Err(limit) = self.inner.settings.places.take(places) {
            let message = format!("all connections together hold at most {limit} subscriptions");
            let details = ErrorDetails::HubLimit { limit, requested: to_add };
            return Err(PubSubError::new(PubSubErrorCode::TopicLimitExceeded, message, details));
        }
        self.places = places;
        state.reserved += to_add;
        self.reserved = to_add;
        Ok(())
    }

    /// Changes the state, unless the connection was closed or a topic was taken away meanwhile.
    pub(crate) fn commit(&mut self) -> Result<Committed, PubSubError> {
        let mut state = self.inner.lock();
        if state.closed {
            return Err(PubSubError::closed());
        }
        self.check_refused(&state)?;
        let removed: Vec<Arc<str>> =
            self.removals.iter().filter(|topic| state.remove(topic)).cloned().collect();
        let added: Vec<Arc<str>> =
            self.additions.iter().filter(|topic| state.insert((*topic).clone())).cloned().collect();
        state.reserved -= std::mem::take(&mut self.reserved);
        let reserved = std::mem::take(&mut self.places);
        let Settings { places, crowd, rules, .. } = &*self.inner.settings;
        places.exchange(reserved, added.len(), removed.len());
        crowd.leave(rules, &removed);
        // What is there already was counted then.
        self.is_counted = false;
        if added.len() < self.additions.len() {
            crowd.leave(rules, self.additions.iter().filter(|topic| !added.contains(topic)));
        }
        for topic in &added {
            state.changing.insert(topic.clone(), Changing::Confirming);
        }
        for topic in &self.removals {
            state.changing.remove(topic);
        }
        let total = state.len();
        Ok(Committed { added, removed, total })
    }

    /// Notes that a topic is not pending any more.
    pub(crate) fn confirmed(&mut self, topic: &Arc<str>) {
        self.inner.lock().changing.remove(topic);
    }

    fn check_refused(&self, state: &State) -> Result<(), PubSubError> {
        for topic in &self.additions {
            if let Some(Changing::Adding { refused: Some(reason) }) = state.changing.get(topic) {
                return Err(refused(topic, reason));
            }
        }
        Ok(())
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.reserved -= self.reserved;
        self.inner.settings.places.give_back(self.places);
        if self.is_counted {
            self.inner.settings.crowd.leave(&self.inner.settings.rules, &self.additions);
        }
        for topic in self.additions.iter().chain(&self.removals) {
            state.changing.remove(topic);
        }
        if state.changing.is_empty() {
            state.changing.shrink_to_fit();
        }
    }
}

/// What must be added and removed.
fn difference(state: &State, request: Request<'_>) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
    match request {
        Request::Add(topics) => {
            (topics.into_iter().filter(|topic| !state.contains(topic)).collect(), Vec::new())
        }
        Request::Remove(topics) => {
            (Vec::new(), topics.into_iter().filter(|topic| state.contains(topic)).collect())
        }
        Request::Set(topics) => {
            let desired: HashSet<&Arc<str>> = topics.iter().collect();
            let mut removals = state.snapshot();
            removals.retain(|topic| !desired.contains(topic));
            drop(desired);
            (topics.into_iter().filter(|topic| !state.contains(topic)).collect(), removals)
        }
        Request::Update(_) => unreachable!("the draft was applied"),
    }
}
