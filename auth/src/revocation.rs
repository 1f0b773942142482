//! Revocations: tokens, or topics of tokens, that count no more although the key that signed them does.
//!
//! A [`Revocation`] names a user or a token, and touches what was issued up to its moment. [`Revocations`] is the part of
//! the table of projects that keeps them, ordered by whom they touch, so that checking a token takes two look-ups
//! however many there are. Each is dropped [`limits::REVOCATION_LIFETIME`] after its moment, by the next revocation in
//! its project. Nodes that do not share a store tell each other theirs (`exchange`).

pub(crate) mod digests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use tidings_engine::log::SnapshotMap;
use tidings_model::{Pattern, ProjectId, Timestamp, limits};

use self::digests::{BucketSet, Digests};
use crate::table::Declined;
use crate::topics::Wanted;

/// Whose tokens are touched by a revocation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// All tokens of the user with this id.
    User(Arc<str>),
    /// The tokens with this id (claim `jti`).
    Token(Arc<str>),
}

/// A revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The project of the tokens.
    pub project: ProjectId,
    /// Whose tokens are touched.
    pub subject: Subject,
    /// The topics that are refused to them; `None` if the tokens count no more at all.
    pub topics: Option<Vec<Pattern>>,
    /// Moment of the revocation. It touches tokens that were issued up to then, or do not tell when.
    pub at: Timestamp,
}

/// What of a token a revocation is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    pub(crate) user: Option<Arc<str>>,
    pub(crate) id: Option<Arc<str>>,
    pub(crate) issued_at: Option<Timestamp>,
}

impl Holder {
    fn subjects(&self) -> impl Iterator<Item = Subject> {
        let user = self.user.clone().map(Subject::User);
        user.into_iter().chain(self.id.clone().map(Subject::Token))
    }

    fn was_issued_up_to(&self, at: Timestamp) -> bool {
        self.issued_at.is_none_or(|issued_at| issued_at <= at)
    }

    pub(crate) fn is_touched_by(&self, revocation: &Revocation) -> bool {
        self.was_issued_up_to(revocation.at) && self.subjects().any(|own| own == revocation.subject)
    }
}

/// What was revoked of one token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// The token counts no more.
    Everything,
    /// These topics are refused to it; usually none.
    Topics(Vec<Pattern>),
}

impl Revoked {
    pub(crate) fn nothing() -> Self {
        Self::Topics(Vec::new())
    }

    /// Whether a topic, or some topic of a pattern, was revoked.
    pub(crate) fn has(&self, wanted: Wanted<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Topics(topics) => topics.iter().any(|revoked| match wanted {
                Wanted::Topic(topic) => revoked.matches(topic),
                Wanted::Pattern(pattern) => revoked.overlaps(pattern),
            }),
        }
    }
}

/// One thing that is revoked: everything, or the topics of one pattern.
pub(crate) type Key = (ProjectId, Subject, Option<Pattern>);

/// A [`Key`] and the moment of its revocation.
pub(crate) type Row = (Key, Timestamp);

/// Some rows of the revocations, in order.
pub(crate) struct RowPage {
    pub(crate) rows: Vec<Row>,
    /// Where the next page begins; `None` after the last one.
    pub(crate) next: Option<Key>,
}

/// The revocations of all projects, each with its moment.
#[derive(Debug, Default)]
pub(crate) struct Revocations {
    pub(crate) rows: SnapshotMap<Key, Timestamp>,
    /// Those of each project, oldest first.
    by_age: BTreeMap<ProjectId, BTreeSet<(Timestamp, Subject, Option<Pattern>)>>,
    digests: Digests,
}

impl Revocation {
    pub(crate) fn of_row((project, subject, topic): Key, at: Timestamp) -> Self {
        Self { project, subject, topics: topic.map(|topic| vec![topic]), at }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.keys().map(|key| (key, self.at))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let everything = self.topics.is_none().then_some(None);
        let topics = self.topics.iter().flatten().cloned().map(Some);
        let key = |topic| (self.project.clone(), self.subject.clone(), topic);
        everything.into_iter().chain(topics).map(key)
    }
}

impl Revocations {
    /// What was revoked of a token.
    pub(crate) fn of(&self, project: &ProjectId, holder: &Holder) -> Revoked {
        let mut topics = Vec::new();
        for (topic, at) in holder.subjects().flat_map(|subject| self.of_subject(project, subject)) {
            match topic {
                _ if !holder.was_issued_up_to(at) => {}
                None => return Revoked::Everything,
                Some(topic) => topics.push(topic.clone()),
            }
        }
        Revoked::Topics(topics)
    }

    fn of_subject(
        &self,
        project: &ProjectId,
        subject: Subject,
    ) -> impl Iterator<Item = (Option<&Pattern>, Timestamp)> {
        let first = (project.clone(), subject, None);
        let rows = self.rows.range(first.clone()..);
        let same = move |row: &(&Key, &Timestamp)| row.0.0 == first.0 && row.0.1 == first.1;
        rows.take_while(same).map(|((_, _, topic), at)| (topic.as_ref(), *at))
    }

    /// Number of revocations of a project.
    pub(crate) fn count(&self, project: &ProjectId) -> usize {
        self.by_age.get(project).map_or(0, BTreeSet::len)
    }

    /// Those of a project that no token needs any more at some moment, oldest first.
    fn expired(
        &self,
        project: &ProjectId,
        now: Timestamp,
    ) -> impl Iterator<Item = &(Timestamp, Subject, Option<Pattern>)> {
        let all = self.by_age.get(project).into_iter().flatten();
        all.take_while(move |(at, ..)| has_expired(*at, now))
    }

    pub(crate) fn validate(&self, revocation: &Revocation) -> Result<(), Declined> {
        let Revocation { project, subject, at: now, .. } = revocation;
        let is_kept = |at: Timestamp| !has_expired(at, *now);
        let new = revocation.keys().filter(|key| !self.rows.get(key).is_some_and(|at| is_kept(*at))).count();
        let of_subject = self.of_subject(project, subject.clone());
        let topics = of_subject.filter(|(topic, at)| topic.is_some() && is_kept(*at)).count();
        if revocation.topics.is_some() && topics + new > limits::REVOKED_TOPICS {
            return Err(Declined::TooManyRevokedTopics);
        }
        let kept = self.count(project) - self.expired(project, *now).count();
        if kept + new > limits::REVOCATIONS_PER_PROJECT {
            return Err(Declined::TooManyRevocations);
        }
        Ok(())
    }

    /// Adds a revocation, and drops those of its project that have expired at its moment.
    pub(crate) fn apply(&mut self, revocation: Revocation) {
        let Revocation { ref project, at, .. } = revocation;
        let expired: Vec<_> = self.expired(project, at).cloned().collect();
        for (_, subject, topic) in expired {
            self.remove(&(project.clone(), subject, topic));
        }
        for key in revocation.keys() {
            // A clock that was set back does not weaken what was revoked before.
            let at = self.rows.get(&key).map_or(at, |before| at.max(*before));
            self.remove(&key);
            let (project, subject, topic) = key.clone();
            self.by_age.entry(project).or_default().insert((at, subject, topic));
            self.digests.add(&key, at);
            self.rows.insert(key, at);
        }
    }

    fn remove(&mut self, key: &Key) {
        let Some(at) = self.rows.remove(key) else { return };
        self.digests.remove(key, at);
        let (project, subject, topic) = key;
        if let Some(all) = self.by_age.get_mut(project) {
            all.remove(&(at, subject.clone(), topic.clone()));
            if all.is_empty() {
                self.by_age.remove(project);
            }
        }
    }

    /// Drops all of a project.
    pub(crate) fn clear(&mut self, project: &ProjectId) {
        for (at, subject, topic) in self.by_age.remove(project).into_iter().flatten() {
            let key = (project.clone(), subject, topic);
            self.digests.remove(&key, at);
            self.rows.remove(&key);
        }
    }

    /// Digests of all revocations.
    pub(crate) fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The moment up to which something is revoked.
    pub(crate) fn moment(&self, key: &Key) -> Option<Timestamp> {
        self.rows.get(key).copied()
    }

    /// Those of some buckets, from a key on. Looks at so many rows at most.
    pub(crate) fn page(&self, from: Option<&Key>, buckets: &BucketSet, most: usize) -> RowPage {
        let begin = from.map_or(Bound::Unbounded, |from| Bound::Included(from.clone()));
        let mut rest = self.rows.range((begin, Bound::Unbounded));
        let wanted = |(key, at): (&Key, &Timestamp)| buckets.has(key).then(|| (key.clone(), *at));
        let rows = rest.by_ref().take(most).filter_map(wanted).collect();
        RowPage { rows, next: rest.next().map(|(key, _)| key.clone()) }
    }

    /// The same revocations, to be changed apart from these.
    pub(crate) fn copied(&self) -> Self {
        let (by_age, digests) = (self.by_age.clone(), self.digests.clone());
        let mut copy = Self { by_age, digests, ..Self::default() };
        for (key, at) in self.rows.range(..) {
            copy.rows.insert(key.clone(), *at);
        }
        copy
    }
}

/// Whether no token needs a revocation of some moment any more.
pub(crate) fn has_expired(at: Timestamp, now: Timestamp) -> bool {
    now.since(at) >= limits::REVOCATION_LIFETIME
}

#[cfg(test)]
mod tests;
