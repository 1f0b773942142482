//! Rights on topics: what a token grants, and why a topic is refused.
//!
//! A socket of topics is opened once and then names many topics, so its rights are asked of its [`Pass`](crate::Pass):
//! [`may_subscribe_topic`](crate::Pass::may_subscribe_topic) and
//! [`may_publish_topic`](crate::Pass::may_publish_topic). Both are cheap, and take a topic as it is after normalisation.

use tidings_model::{Pattern, TopicPattern};

use crate::principal::{Grants, Principal, Resources, Scope};

/// The topics that a token grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicGrants {
    /// Topics that match one of these may be subscribed to, if the scope includes `read`.
    pub subscribe: Vec<Pattern>,
    /// Topics that match one of these may be published to, if the scope includes `write`.
    pub publish: Vec<Pattern>,
}

/// What somebody wants to do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Subscribe,
    Publish,
}

/// What somebody wants to subscribe to.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// One topic, normalised.
    Topic(&'a str),
    /// All topics that match a pattern.
    Pattern(&'a TopicPattern),
}

/// A refusal of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopicRefusal {
    /// Whether a credential could help.
    pub kind: RefusalKind,
    /// What is missing.
    pub reason: RefusalReason,
}

/// Whether a credential could help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// There is no credential.
    Unauthorized,
    /// The credential does not allow it.
    Forbidden,
}

/// Why a topic is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// No grant of the credential has the topic; for a pattern, no grant has all topics that it matches.
    Grant,
    /// The scope of the credential does not include it.
    Scope,
    /// It was revoked; for a pattern, of some topic that it could match.
    Revoked,
}

impl RefusalKind {
    /// The kind as it is sent to clients.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
        }
    }
}

impl RefusalReason {
    /// The reason as it is sent to clients.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Scope => "scope",
            Self::Revoked => "revoked",
        }
    }
}

impl TopicGrants {
    /// Grants these topics in both ways.
    pub fn both(patterns: Vec<Pattern>) -> Self {
        Self { subscribe: patterns.clone(), publish: patterns }
    }

    pub(crate) fn allow(&self, usage: Use, wanted: Wanted<'_>) -> bool {
        let granted = match usage {
            Use::Subscribe => &self.subscribe,
            Use::Publish => &self.publish,
        };
        granted.iter().any(|grant| wanted.is_covered_by(grant))
    }
}

impl Wanted<'_> {
    fn is_covered_by(self, grant: &Pattern) -> bool {
        match self {
            Self::Topic(topic) => grant.matches(topic),
            Self::Pattern(pattern) => grant.covers(pattern),
        }
    }
}

impl Use {
    fn needs(self) -> Scope {
        match self {
            Self::Subscribe => Scope::Read,
            Self::Publish => Scope::Write,
        }
    }
}

impl Principal {
    /// Checks the grants, then the scope.
    pub(crate) fn may_use_topic(&self, usage: Use, wanted: Wanted<'_>) -> Result<(), RefusalReason> {
        let granted = match &self.grants {
            Grants::Project => true,
            Grants::Publishing => usage == Use::Publish,
            Grants::Named(resources) => resources.allow_topic(usage, wanted),
        };
        match granted {
            false => Err(RefusalReason::Grant),
            true if self.scope < usage.needs() => Err(RefusalReason::Scope),
            true => Ok(()),
        }
    }
}

impl Resources {
    /// A session claim allows its session and nothing else.
    fn allow_topic(&self, usage: Use, wanted: Wanted<'_>) -> bool {
        self.session.is_none() && self.topics.as_ref().is_some_and(|topics| topics.allow(usage, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_model::ProjectId;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).expect("a valid pattern")).collect()
    }

    fn principal(scope: Scope, grants: Grants) -> Principal {
        Principal { project: ProjectId::default_project(), user: None, scope, grants }
    }

    fn named(scope: Scope, topics: TopicGrants) -> Principal {
        let resources = Resources { topics: Some(topics), ..Resources::default() };
        principal(scope, Grants::Named(Box::new(resources)))
    }

    fn subscribes(principal: &Principal, wanted: &str) -> Result<(), RefusalReason> {
        let pattern = wanted.contains('*').then(|| Pattern::parse(wanted).expect("a valid pattern"));
        let wanted = pattern.as_ref().map_or(Wanted::Topic(wanted), Wanted::Pattern);
        principal.may_use_topic(Use::Subscribe, wanted)
    }

    fn publishes(principal: &Principal, topic: &str) -> Result<(), RefusalReason> {
        principal.may_use_topic(Use::Publish, Wanted::Topic(topic))
    }

    #[test]
    fn grants_are_for_each_way_and_an_absent_one_is_none() {
        let both = TopicGrants::both(patterns(&["room:*", "news.**"]));
        let apart =
            TopicGrants { subscribe: patterns(&["room:*"]), publish: patterns(&["room:*:said", "inbox/me"]) };
        let hears = TopicGrants { subscribe: patterns(&["**"]), ..TopicGrants::default() };
        let says = TopicGrants { publish: patterns(&["**"]), ..TopicGrants::default() };
        // Each with a topic, and whether it may be subscribed and published to.
        for (grants, topic, hearing, saying) in [
            (&both, "room:1", true, true),
            (&both, "news", true, true),
            (&both, "news.a.b", true, true),
            (&both, "room.1", false, false),
            (&both, "room:1:said", false, false),
            (&apart, "room:1", true, false),
            (&apart, "room:1:said", false, true),
            (&apart, "inbox/me", false, true),
            (&apart, "Room:1", false, false),
            (&hears, "any", true, false),
            (&says, "any", false, true),
            (&TopicGrants::default(), "any", false, false),
        ] {
            let actor = named(Scope::Write, grants.clone());
            let answer = |is_granted: bool| if is_granted { Ok(()) } else { Err(RefusalReason::Grant) };
            assert_eq!(subscribes(&actor, topic), answer(hearing), "{topic}");
            assert_eq!(publishes(&actor, topic), answer(saying), "{topic}");
        }
    }

    #[test]
    fn a_pattern_needs_one_grant_with_every_topic_that_it_matches() {
        let actor = named(Scope::Read, TopicGrants::both(patterns(&["room:*", "news.a", "news.b.**"])));
        for covered in ["room:*", "room:a*", "news.b.**", "news.b.*", "news.b.c.**"] {
            assert_eq!(subscribes(&actor, covered), Ok(()), "{covered}");
        }
        for beyond in ["**", "room:**", "room.*", "news.*", "news.**", "*"] {
            assert_eq!(subscribes(&actor, beyond), Err(RefusalReason::Grant), "{beyond}");
        }
        // Together these two have all of it, but none of them alone.
        let halves = named(Scope::Read, TopicGrants::both(patterns(&["a:*", "a:*:**", "a"])));
        assert_eq!(subscribes(&halves, "a:**"), Err(RefusalReason::Grant));
    }

    #[test]
    fn the_scope_read_subscribes_and_the_scope_write_publishes_too() {
        let wide = TopicGrants::both(patterns(&["**"]));
        for (scope, publishing) in
            [(Scope::Read, Err(RefusalReason::Scope)), (Scope::Write, Ok(())), (Scope::Manage, Ok(()))]
        {
            for actor in [named(scope, wide.clone()), principal(scope, Grants::Project)] {
                assert_eq!(subscribes(&actor, "a"), Ok(()), "{scope:?}");
                assert_eq!(subscribes(&actor, "**"), Ok(()), "{scope:?}");
                assert_eq!(publishes(&actor, "a"), publishing, "{scope:?}");
            }
        }
    }

    #[test]
    fn a_token_for_anything_else_has_no_topic_and_an_api_key_only_publishes() {
        let all = || Some(patterns(&["**"]));
        let none = Resources::default;
        for resources in [
            Resources { streams: all(), ..none() },
            Resources { stream_id: Some("a".into()), ..none() },
            Resources { rooms: all(), ..none() },
            Resources { entities: all(), ..none() },
            Resources { session: Some("a".into()), ..none() },
            Resources {
                session: Some("a".into()),
                topics: Some(TopicGrants::both(patterns(&["**"]))),
                ..none()
            },
        ] {
            let actor = principal(Scope::Manage, Grants::Named(Box::new(resources)));
            for wanted in ["a", "**"] {
                assert_eq!(subscribes(&actor, wanted), Err(RefusalReason::Grant), "{actor:?}");
            }
            assert_eq!(publishes(&actor, "a"), Err(RefusalReason::Grant), "{actor:?}");
        }
        let api_key = principal(Scope::Write, Grants::Publishing);
        assert_eq!(publishes(&api_key, "a"), Ok(()));
        assert_eq!(subscribes(&api_key, "a"), Err(RefusalReason::Grant));
    }
}
