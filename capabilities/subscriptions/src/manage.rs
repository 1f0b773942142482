//! What owners do with subscriptions: create, look, link streams, revive, remove.

use std::sync::Arc;

use tidings_egress::{Host, Scheme, Target};
use tidings_engine::log::{Commit, CommitError};
use tidings_model::{LogId, Position, ProjectId, StreamId, limits};
use tidings_streams::{Change as StreamChange, ListRequest, Owner, StreamError, StreamKey};

use crate::store::Numbered;
use crate::subscription::{Config, Delivery, Phase, State, Subscription, SubscriptionId};
use crate::table::{Change, Declined, LinkKind, Linked, NewLink};
use crate::{SubscriptionError, Subscriptions};

/// Times that a change is tried while others change the same things.
pub(crate) const ATTEMPTS: usize = 32;
/// Subscriptions of a removed project that are ended before others get their turn.
const CLEARED_AT_A_TIME: usize = 1000;

/// Subscriptions that are read under one lock when some are selected.
const SELECTED_PAGE: usize = 1000;
/// Pages that one selection reads.
const SELECTED_PAGES: usize = 10;

/// A request to create a subscription.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// Id of the subscription.
    pub id: SubscriptionId,
    /// What its owner chooses.
    pub config: Config,
    /// Streams that are linked explicitly.
    pub streams: Vec<StreamId>,
    /// URL of the root of the project's streams, as the owner reached it.
    pub root: String,
}

/// What a request to create a subscription did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The subscription was created.
    New,
    /// The subscription existed with the same configuration.
    Existing,
}

/// A page of a subscription's links.
#[derive(Clone, Debug)]
pub struct Links {
    /// The links, in the order of the streams' ids.
    pub links: Vec<Linked>,
    /// The id after which the next page begins; `None` on the last page.
    pub next: Option<StreamId>,
    /// Number of all links.
    pub count: usize,
}

/// Some of the subscriptions of a project.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The subscriptions, in the order of their ids.
    pub subscriptions: Vec<Numbered>,
    /// The id after which the next page begins; `None` on the last page.
    pub next: Option<SubscriptionId>,
}

impl Subscriptions {
    /// Creates a subscription, or confirms that it exists with this configuration. Streams that exist are linked at their tails.
    pub async fn create(
        &self,
        project: &ProjectId,
        request: CreateRequest,
    ) -> Result<(Created, Numbered), SubscriptionError> {
        let digest = request.config.digest(&request.streams);
        for _ in 0..ATTEMPTS {
            if let Some((number, existing)) = self.0.store.find(project, &request.id).await? {
                if existing.digest != digest {
                    return Err(SubscriptionError::Exists);
                }
                // Whoever created it was interrupted.
                self.link_all(number, &request.streams).await?;
                return Ok((Created::Existing, self.numbered(number).await?));
            }
            self.check(project, &request).await?;
            self.keys(project).await?;
            let number = self.0.store.reserve().await?;
            let subscription = Subscription {
                project: project.clone(),
                id: request.id.clone(),
                config: Arc::new(request.config.clone()),
                digest: digest.clone(),
                root: request.root.as_str().into(),
                created_at: self.now(),
                phase: Phase::Linking { after: None },
                state: State::default(),
                unlinked: 0,
            };
            let (most, subscription) = (self.0.options.max_per_project, Arc::new(subscription));
            match self.commit(Change::Create { number, subscription, most }).await {
                Ok(()) => {}
                Err(CommitError::Declined(Declined::Exists)) => continue,
                Err(CommitError::Declined(Declined::TooMany)) => {
                    return Err(SubscriptionError::TooMany { most });
                }
                Err(error) => return Err(error.into()),
            }
            if let Err(error) = self.link_all(number, &request.streams).await {
                if matches!(error, SubscriptionError::TooManyLinks) {
                    self.commit(Change::End { number }).await?;
                }
                return Err(error);
            }
            return Ok((Created::New, self.numbered(number).await?));
        }
        Err(SubscriptionError::Contended)
    }

    /// The subscription of this id.
    pub async fn get(&self, project: &ProjectId, id: &SubscriptionId) -> Result<Numbered, SubscriptionError> {
        self.0.store.find(project, id).await?.ok_or(SubscriptionError::NotFound)
    }

    /// Subscriptions of a project whose ids sort after this one, in order, at most so many.
    pub async fn list(
        &self,
        project: &ProjectId,
        after: Option<&SubscriptionId>,
        most: usize,
    ) -> Result<Vec<Numbered>, SubscriptionError> {
        Ok(self.0.store.list(project, after, most).await?)
    }

    /// Subscriptions of a project of which this holds and whose ids sort after this one, in order, at most so many. Fewer if it holds
    /// of few: one call looks at 10,000.
    pub async fn select(
        &self,
        project: &ProjectId,
        after: Option<&SubscriptionId>,
        most: usize,
        holds: impl Fn(&Subscription) -> bool,
    ) -> Result<Selection, SubscriptionError> {
        let (mut subscriptions, mut next) = (Vec::new(), after.cloned());
        for _ in 0..SELECTED_PAGES {
            let page = self.0.store.list(project, next.as_ref(), SELECTED_PAGE).await?;
            let is_last = page.len() < SELECTED_PAGE;
            for one in page {
                if subscriptions.len() == most {
                    return Ok(Selection { subscriptions, next });
                }
                next = Some(one.1.id.clone());
                if holds(&one.1) {
                    subscriptions.push(one);
                }
            }
            if is_last {
                return Ok(Selection { subscriptions, next: None });
            }
        }
        Ok(Selection { subscriptions, next })
    }

    /// A page of the links of a subscription.
    pub async fn links(
        &self,
        number: LogId,
        after: Option<&StreamId>,
        most: usize,
    ) -> Result<Links, SubscriptionError> {
        let count = self.0.store.link_count(number).await?;
        let mut links = self.0.store.links(number, after, most + 1).await?;
        let more = links.len() > most;
        links.truncate(most);
        let next = links.last().filter(|_| more).map(|last| last.stream.clone());
        Ok(Links { links, next, count })
    }

    /// Ends a subscription. Returns whether there was one.
    pub async fn remove(&self, project: &ProjectId, id: &SubscriptionId) -> Result<bool, SubscriptionError> {
        let Some((number, _)) = self.0.store.find(project, id).await? else { return Ok(false) };
        match self.commit(Change::End { number }).await {
            Ok(()) => Ok(true),
            Err(CommitError::Declined(Declined::Moved)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Links streams explicitly, at their tails. One that does not exist is linked from its beginning.
    pub async fn add_streams(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        streams: &[StreamId],
    ) -> Result<(), SubscriptionError> {
        let (number, subscription) = self.get(project, id).await?;
        refuse_own(&subscription.config, streams)?;
        self.link_explicitly(number, &subscription, streams).await
    }

    /// Removes an explicit link. A link by the pattern stays.
    pub async fn remove_stream(
        &self,
        project: &ProjectId,
        id: &SubscriptionId,
        stream: StreamId,
    ) -> Result<(), SubscriptionError> {
        let (number, _) = self.get(project, id).await?;
        match self.commit(Change::Unlink { number, stream }).await {
            Err(CommitError::Declined(Declined::Moved)) => Err(SubscriptionError::NotFound),
            done => Ok(done?),
        }
    }

    /// Lets attempts begin again, at once, after failures.
    pub async fn revive(&self, project: &ProjectId, id: &SubscriptionId) -> Result<(), SubscriptionError> {
        for _ in 0..ATTEMPTS {
            let (number, subscription) = self.get(project, id).await?;
            let (was, state) = (subscription.state.version, subscription.state.revived());
            match self.commit(Change::Update { number, was, state, acks: Vec::new() }).await {
                Err(CommitError::Declined(Declined::Moved)) => {}
                done => return Ok(done?),
            }
        }
        Err(SubscriptionError::Contended)
    }

    /// Ends subscriptions of a removed project and removes its keys. Returns whether there are none left.
    pub async fn clear(&self, project: &ProjectId) -> Result<bool, SubscriptionError> {
        let listed = self.0.store.list(project, None, CLEARED_AT_A_TIME).await?;
        for (number, _) in &listed {
            match self.commit(Change::End { number: *number }).await {
                Ok(()) | Err(CommitError::Declined(Declined::Moved)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !listed.is_empty() {
            return Ok(false);
        }
        if self.0.store.key(project).await?.is_some() {
            self.commit(Change::Forget { project: project.clone() }).await?;
        }
        Ok(true)
    }

    async fn numbered(&self, number: LogId) -> Result<Numbered, SubscriptionError> {
        let subscription = self.0.store.subscription(number).await?;
        subscription.map(|subscription| (number, subscription)).ok_or(SubscriptionError::NotFound)
    }

    async fn check(&self, project: &ProjectId, request: &CreateRequest) -> Result<(), SubscriptionError> {
        refuse_own(&request.config, &request.streams)?;
        if let Delivery::Webhook { url } = &request.config.delivery {
            self.check_url(url)?;
        }
        if let Some(pattern) = &request.config.pattern
            && !self.0.store.admits(project, pattern.pattern()).await?
        {
            let why = "the project has as many patterns with wildcards as can be matched in time";
            return Err(SubscriptionError::Invalid(why.to_owned()));
        }
        Ok(())
    }

    /// Plain HTTP is only for this machine and what the operator allows; what a name resolves to is checked when a connection is made.
    fn check_url(&self, url: &str) -> Result<Target, SubscriptionError> {
        let rejected = |why: String| SubscriptionError::UrlRejected(format!("webhook.url: {why}"));
        let target = Target::parse(url).map_err(|error| rejected(error.to_string()))?;
        let guard = self.0.egress.guard();
        let local = match target.destination().host() {
            Host::Name(name) => &**name == "localhost",
            Host::Address(address) => address.is_loopback(),
        };
        if target.destination().scheme() == Scheme::Http && !local && !guard.lists(&target) {
            return Err(rejected("must begin with https://".to_owned()));
        }
        guard.check_literal(&target).map_err(|error| rejected(error.to_string()))?;
        Ok(target)
    }

    /// Links all streams that a new subscription has from its beginning, and puts it into use.
    async fn link_all(&self, number: LogId, streams: &[StreamId]) -> Result<(), SubscriptionError> {
        let Some(subscription) = self.0.store.subscription(number).await? else {
            return Err(SubscriptionError::NotFound);
        };
        if !matches!(subscription.phase, Phase::Linking { .. }) {
            return Ok(());
        }
        self.link_explicitly(number, &subscription, streams).await?;
        let mut contended = 0;
        loop {
            let (_, subscription) = self.numbered(number).await?;
            let Phase::Linking { after } = subscription.phase.clone() else { return Ok(()) };
            match self.link_page(number, &subscription, after).await {
                Ok(()) => contended = 0,
                Err(SubscriptionError::Contended) if contended < ATTEMPTS => contended += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Links the next streams that the pattern matches.
    async fn link_page(
        &self,
        number: LogId,
        subscription: &Subscription,
        after: Option<StreamId>,
    ) -> Result<(), SubscriptionError> {
        let project = &subscription.project;
        let was = subscription.phase.clone();
        let (mut links, mut next) = (Vec::new(), None);
        if let Some(pattern) = &subscription.config.pattern {
            let listing = self
                .0
                .streams
                .list(&ListRequest {
                    project: project.clone(),
                    prefix: pattern.prefix().to_owned(),
                    after,
                    owners: &[Owner::Clients, Owner::Session],
                    limit: limits::LINKS_PER_COMMIT,
                })
                .await?;
            next = listing.next;
            for (stream, found) in listing.streams {
                if subscription.config.links(&stream) {
                    let (log, acked) = (Some(found.stream.log), found.status.tail);
                    links.push(NewLink { stream, log, acked, kind: LinkKind::Glob });
                }
            }
        }
        let now = match next {
            Some(next) => Phase::Linking { after: Some(next) },
            None => Phase::Active,
        };
        self.commit_links(number, project, links, Some((was, now))).await
    }

    async fn link_explicitly(
        &self,
        number: LogId,
        subscription: &Subscription,
        streams: &[StreamId],
    ) -> Result<(), SubscriptionError> {
        if streams.is_empty() {
            return Ok(());
        }
        for _ in 0..ATTEMPTS {
            let links = self.found(&subscription.project, streams).await?;
            let missing: Vec<_> =
                links.iter().filter(|link| link.log.is_none()).map(|link| link.stream.clone()).collect();
            match self.commit_links(number, &subscription.project, links, None).await {
                Ok(()) => {}
                Err(SubscriptionError::Contended) => continue,
                Err(error) => return Err(error),
            }
            // One that was created between look-up and commit was not linked by its creation.
            let mut late = self.found(&subscription.project, &missing).await?;
            late.retain(|link| link.log.is_some());
            if late.is_empty() {
                return Ok(());
            }
        }
        Err(SubscriptionError::Contended)
    }

    /// Explicit links to streams, as they are now.
    async fn found(
        &self,
        project: &ProjectId,
        streams: &[StreamId],
    ) -> Result<Vec<NewLink>, SubscriptionError> {
        let mut links = Vec::with_capacity(streams.len());
        for stream in streams {
            let key = StreamKey { project: project.clone(), id: stream.clone() };
            let (log, acked) = match self.0.streams.describe(&key).await {
                Ok(found) => (Some(found.stream.log), found.status.tail),
                Err(StreamError::NotFound | StreamError::Gone) => (None, Position::ZERO),
                Err(error) => return Err(error.into()),
            };
            links.push(NewLink { stream: stream.clone(), log, acked, kind: LinkKind::Explicit });
        }
        Ok(links)
    }

    /// Commits links on the condition that their streams are still there.
    async fn commit_links(
        &self,
        number: LogId,
        project: &ProjectId,
        links: Vec<NewLink>,
        phase: Option<(Phase, Phase)>,
    ) -> Result<(), SubscriptionError> {
        let mut commit = Commit::new();
        for link in &links {
            if let Some(log) = link.log {
                let key = StreamKey { project: project.clone(), id: link.stream.clone() };
                commit = commit.changing(Change::Streams(StreamChange::Expect { key, log }));
            }
        }
        match self.0.store.commit(commit.changing(Change::Link { number, links, phase })).await {
            Ok(_) => Ok(()),
            Err(CommitError::Declined(Declined::Moved))
                if self.0.store.subscription(number).await?.is_none_or(|one| one.phase == Phase::Ended) =>
            {
                Err(SubscriptionError::NotFound)
            }
            Err(error) => Err(error.into()),
        }
    }
}

fn refuse_own(config: &Config, streams: &[StreamId]) -> Result<(), SubscriptionError> {
    match &config.delivery {
        Delivery::PullWake { stream } if streams.contains(stream) => {
            let why = "wake_stream cannot be one of the streams: each wake would cause the next";
            Err(SubscriptionError::Invalid(why.to_owned()))
        }
        Delivery::PullWake { .. } | Delivery::Webhook { .. } => Ok(()),
    }
}
