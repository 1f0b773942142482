//! What owners do with hooks: create, change, deactivate, reactivate, remove, test.

use std::sync::Arc;
use std::time::Duration;

use tidings_egress::custom_headers;
use tidings_engine::log::{Append, Commit, CommitError, Committed, Operation};
use tidings_model::{CommitNumber, Position, ProjectId, limits};

use crate::delivery::{DeliveryId, IdMask};
use crate::hook::{Hook, HookId, HookState, Settings};
use crate::hooks::is_within;
use crate::ingest::time_text;
use crate::matchers::ProjectMatcher;
use crate::rows::{attempts, dead_letters};
use crate::signature::{Secret, Secrets};
use crate::store::Found;
use crate::table::{Declined, Replay};
use crate::{Change, Event, HookError, Hooks, pattern};

/// Times that a change is tried while others change the same hook.
const ATTEMPTS: usize = 16;
/// Hooks of a removed project that are removed before others get their turn.
const CLEARED_AT_A_TIME: usize = 1000;

/// A hook that was created.
#[derive(Clone, Debug)]
pub struct Created {
    /// The hook.
    pub hook: Arc<Hook>,
    /// Its secret, to be shown this once.
    pub secret: Secret,
}

/// What was removed together with a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Deliveries.
    pub deliveries: u64,
    /// Attempts.
    pub attempts: u64,
    /// Dead letters.
    pub dead_letters: u64,
}

/// A hook after a change, and the number of the commit that changed it.
struct Edited {
    hook: Arc<Hook>,
    number: CommitNumber,
}

/// What happens to the events that arrived while a hook was inactive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// They are not delivered.
    Skipped,
    /// They are delivered now.
    Replayed,
}

impl Hooks {
    /// Creates a hook. Durable when it returns: every event that is accepted from then on and matches is delivered.
    pub async fn create(&self, project: &ProjectId, settings: Settings) -> Result<Created, HookError> {
        self.check(&settings)?;
        let admits = |matcher: &ProjectMatcher| matcher.admits(&pattern::matching(&settings.pattern));
        if !self.0.matchers.of(project).is_none_or(|matcher| admits(&matcher)) {
            let why = "the project has as many patterns with wildcards as can be matched in time".to_owned();
            return Err(HookError::Invalid { field: "pattern", why });
        }
        self.open_feed(project).await?;
        let secret = Secret::draw(&*self.0.randomness);
        let queue = self.0.store.reserve().await?;
        for _ in 0..ATTEMPTS {
            let now = self.now();
            let hook = Arc::new(Hook {
                id: HookId(self.fresh_id()),
                project: project.clone(),
                settings: settings.clone(),
                secrets: Secrets { current: secret.clone(), previous: None },
                state: HookState::Active,
                id_mask: self.0.matchers.id_mask().unwrap_or_else(|| IdMask(self.random())),
                created_at: now,
                updated_at: now,
            });
            let most = self.0.options.max_per_project;
            let create = Change::Create { queue, hook: hook.clone(), most };
            let ingests_wait = self.0.changing.read().await;
            let committed =
                self.0.store.commit(Commit::new().with(Operation::create(queue)).changing(create)).await;
            drop(ingests_wait);
            match committed {
                Ok(_) => return Ok(Created { hook, secret }),
                // The first hook of the store was created meanwhile.
                Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(HookError::Contended)
    }

    /// Changes the settings of a hook, except its pattern.
    pub async fn update(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        change: impl Fn(&mut Settings) -> Result<(), HookError>,
    ) -> Result<Arc<Hook>, HookError> {
        let edit = |hook: &Hook| {
            let mut settings = hook.settings.clone();
            change(&mut settings)?;
            if settings.pattern != hook.settings.pattern {
                let why = "the pattern of a hook cannot be changed; create another hook".to_owned();
                return Err(HookError::Invalid { field: "pattern", why });
            }
            self.check(&settings)?;
            Ok(Hook { settings, ..hook.clone() })
        };
        self.edit(project, id, edit, None).await.map(|edited| edited.hook)
    }

    /// Deactivates a hook: nothing more is delivered, and what arrives is not queued.
    pub async fn deactivate(&self, project: Option<&ProjectId>, id: HookId) -> Result<(), HookError> {
        let found = self.find(project, id).await?;
        let since = self.events_tail(&found.hook.project).await?;
        let change = Change::Deactivate { queue: found.queue, since, at: self.now() };
        let _ingests_wait = self.0.changing.read().await;
        self.0.store.commit(Commit::new().changing(change)).await?;
        self.notify([found.queue]);
        Ok(())
    }

    /// Activates a hook again. Deliveries that waited are due at once. Returns how many missed events are replayed.
    pub async fn reactivate(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        missed: Missed,
    ) -> Result<u64, HookError> {
        for _ in 0..ATTEMPTS {
            match self.try_reactivate(project, id, missed).await {
                Err(HookError::Contended) => {}
                reactivated => return reactivated,
            }
        }
        Err(HookError::Contended)
    }

    async fn try_reactivate(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        missed: Missed,
    ) -> Result<u64, HookError> {
        let found = self.find(project, id).await?;
        let inactive = found.hook.state;
        let HookState::Inactive { since } = inactive else { return Ok(0) };
        let edit = |hook: &Hook| match hook.state == inactive {
            true => Ok(Hook { state: HookState::Active, ..hook.clone() }),
            false => Err(HookError::Contended),
        };
        if missed == Missed::Skipped {
            self.edit(project, id, edit, None).await?;
            return Ok(0);
        }
        let (mut events, mut cursor) = (0, since);
        let mut begin = None;
        if let Some(feed) = self.0.store.feed(&found.hook.project).await? {
            let replay = Replay { cursor, through: feed.events.tail };
            events = self.count_heard(&found, feed.feed.events, replay).await?;
            cursor = replay.through.max(since);
            let most = limits::HOOK_REPLAYS;
            begin = (events > 0).then_some(Change::BeginReplay { queue: found.queue, replay, most });
        }
        // Once the hook is active nobody knows what it has missed, so the replay begins in the same commit.
        let Edited { number, .. } = self.edit(project, id, edit, begin).await?;
        // What came since then, it missed as well: exactly the events of earlier commits. A commit of events states the hooks
        // that it rests on, so it does not share its number with a change of them.
        let through = Position::new(Position::in_commit(number, 0).get() - 1);
        let Some(feed) = self.0.store.feed(&found.hook.project).await? else { return Ok(events) };
        // It may be one more than there may be.
        let most = limits::HOOK_REPLAYS + 1;
        Ok(events + self.begin_replay(&found, feed.feed.events, Replay { cursor, through }, most).await?)
    }

    /// Replaces the secret of a hook. The old one signs, too, for `overlap`.
    pub async fn rotate_secret(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        overlap: Duration,
    ) -> Result<Secret, HookError> {
        let secret = Secret::draw(&*self.0.randomness);
        let until = self.now() + overlap;
        let edit = |hook: &Hook| {
            let previous = Some((hook.secrets.current.clone(), until)).filter(|_| !overlap.is_zero());
            Ok(Hook { secrets: Secrets { current: secret.clone(), previous }, ..hook.clone() })
        };
        self.edit(project, id, edit, None).await?;
        Ok(secret)
    }

    /// Removes a hook with its deliveries.
    pub async fn remove(&self, project: Option<&ProjectId>, id: HookId) -> Result<Removed, HookError> {
        let found = self.find(project, id).await?;
        self.remove_found(&found).await
    }

    async fn remove_found(&self, found: &Found) -> Result<Removed, HookError> {
        let queue = found.queue;
        let progress = &found.progress;
        let removed = Removed {
            deliveries: found.status.total.records.saturating_sub(progress.forgotten_deliveries),
            attempts: progress.attempts.saturating_sub(progress.forgotten_attempts),
            dead_letters: progress.dead_letters,
        };
        let ingests_wait = self.0.changing.read().await;
        let commit = Commit::new().with(Operation::Delete(queue)).changing(Change::Remove { queue });
        self.0.store.commit(commit).await?;
        drop(ingests_wait);
        // Until now the dispatcher may have recorded attempts.
        self.0.dispatcher.forget(queue).await;
        let mut commit: Commit<Change> = Commit::new();
        commit.rows = vec![attempts::remove_through(queue, Position::MAX), dead_letters::remove_all(queue)];
        self.0.store.commit(commit).await?;
        Ok(removed)
    }

    /// Sends an event to a hook, whatever its pattern, as a test. Returns the delivery.
    pub async fn send_test(&self, project: Option<&ProjectId>, id: HookId) -> Result<DeliveryId, HookError> {
        let found = self.find(project, id).await?;
        let (event_id, ts) = (self.fresh_id().to_string(), time_text(self.now()));
        let event_type = "hook.test".to_owned();
        let json = serde_json::json!({
            "type": event_type, "ts": ts, "subscriptionId": id.to_string(), "pattern": found.hook.settings.pattern,
        });
        // As if it were a notice, so that its failure raises none.
        let about = Some(found.queue);
        let event =
            Event { event_type, id: event_id, ts, about, id_chosen: false, json: json.to_string().into() };
        let append = Append::new(found.queue, vec![event.to_record()]);
        let committed: Committed = self.0.store.commit(Commit::new().with(append)).await?;
        self.notify([found.queue]);
        Ok(found.hook.delivery(found.queue, committed.appended().last))
    }

    /// Removes the hooks of a removed project, its events and what is remembered of them, some at a time. Returns whether
    /// nothing is left.
    pub async fn clear(&self, project: &ProjectId) -> Result<bool, HookError> {
        let some = self.0.store.newest(Some(project), None, CLEARED_AT_A_TIME).await?;
        for found in &some {
            match self.remove_found(found).await {
                Ok(_) | Err(HookError::NoSuchHook) => {}
                Err(error) => return Err(error),
            }
        }
        if some.len() == CLEARED_AT_A_TIME {
            return Ok(false);
        }
        if let Some(found) = self.0.store.feed(project).await? {
            let (events, journal) = (found.feed.events, found.feed.journal);
            let close = Change::Close { project: project.clone() };
            let commit: Commit<Change> = Commit::new()
                .with(Operation::Delete(events))
                .with(Operation::Delete(journal))
                .changing(close)
                .with_row(self.event_ids().forget_all(events))
                .with_row(self.batch_ids().forget_all(events));
            self.0.store.commit(commit).await?;
        }
        self.0.deferred.forget(project);
        self.0.ingest_limits.forget(project);
        Ok(true)
    }

    /// Finds a hook of a project; `None` is for whoever may act in all.
    pub(crate) async fn find(&self, project: Option<&ProjectId>, id: HookId) -> Result<Found, HookError> {
        let found = self.0.store.hook(id).await?;
        found.filter(|found| is_within(&found.hook, project)).ok_or(HookError::NoSuchHook)
    }

    /// Changes a hook, again if others changed it meanwhile. The other change is made along with it.
    async fn edit(
        &self,
        project: Option<&ProjectId>,
        id: HookId,
        edit: impl Fn(&Hook) -> Result<Hook, HookError>,
        other: Option<Change>,
    ) -> Result<Edited, HookError> {
        for _ in 0..ATTEMPTS {
            let found = self.find(project, id).await?;
            let edited = edit(&found.hook)?;
            let hook = Arc::new(Hook { updated_at: found.hook.updated_after(self.now()), ..edited });
            let set = Change::Set { queue: found.queue, was: found.hook.updated_at, hook: hook.clone() };
            let ingests_wait = self.0.changing.read().await;
            let mut commit = Commit::new().changing(set);
            commit.changes.extend(other.clone());
            let committed = self.0.store.commit(commit).await;
            drop(ingests_wait);
            match committed {
                Ok(Committed { number, .. }) => {
                    self.notify([found.queue]);
                    return Ok(Edited { hook, number });
                }
                Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(HookError::Contended)
    }

    /// Checks settings against the rules and against what this server allows.
    fn check(&self, settings: &Settings) -> Result<(), HookError> {
        settings.check()?;
        let invalid = |field, why: String| HookError::Invalid { field, why };
        let target = self.target(settings)?;
        let field = if settings.url.is_some() { "url" } else { "workerId" };
        self.0
            .guard
            .check_literal(&target)
            .map_err(|why| invalid(field, format!("target not allowed: {why}")))?;
        let headers = settings.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        custom_headers(headers).map_err(|error| invalid("headers", error.to_string()))?;
        Ok(())
    }

    /// Tail of the events of a project.
    pub(crate) async fn events_tail(&self, project: &ProjectId) -> Result<Position, HookError> {
        Ok(self.0.store.feed(project).await?.map_or(Position::ZERO, |found| found.events.tail))
    }
}
