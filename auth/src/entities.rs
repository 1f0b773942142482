//! Rights on entities: which ones a credential lets its holder watch or change.
//!
//! A socket of entities is opened once and then names many, so its rights are asked of its [`Pass`](crate::Pass):
//! [`may_watch_entities`](crate::Pass::may_watch_entities) and [`may_change_entity`](crate::Pass::may_change_entity). Patterns
//! match the text `code:id`, where a `:` in the code is written `%3A`, and a `%` there `%25`.

use std::borrow::Cow;

use tidings_model::Pattern;

use crate::principal::{Grants, Principal, Resources, Scope};

/// What somebody wants to watch.
#[derive(Clone, Copy, Debug)]
pub enum WantedEntities<'a> {
    /// One entity.
    One {
        /// Code of its type.
        code: &'a str,
        /// Its id.
        id: &'a str,
    },
    /// All entities of a type, also future ones.
    WholeType {
        /// Code of the type.
        code: &'a str,
        /// Whether an id can contain a separator of patterns. UUIDs cannot.
        ids: Segments,
    },
}

/// How many segments of a pattern an id has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segments {
    /// One, so that `code:*` matches every id.
    One,
    /// Any number, so that it takes `code:**` to match every id.
    Any,
}

/// A code without `:`, so that no part of it can pass for an id.
fn one_segment(code: &str) -> Cow<'_, str> {
    match code.contains([':', '%']) {
        true => code.replace('%', "%25").replace(':', "%3A").into(),
        false => code.into(),
    }
}

impl WantedEntities<'_> {
    fn is_covered_by(self, grants: &[Pattern]) -> bool {
        match self {
            Self::One { code, id } => {
                let name = format!("{}:{id}", one_segment(code));
                grants.iter().any(|grant| grant.matches(&name))
            }
            Self::WholeType { code, ids } => {
                let stars = if ids == Segments::One { "*" } else { "**" };
                // A code that is no part of a pattern is one of which nobody can be granted everything.
                let Ok(wanted) = Pattern::parse(&format!("{}:{stars}", one_segment(code))) else {
                    return grants.iter().any(|grant| grant.as_str() == "**");
                };
                grants.iter().any(|grant| grant.covers(&wanted))
            }
        }
    }
}

/// Whether patterns allow what is wanted; `None` allows everything.
pub(crate) fn allow(grants: Option<&[Pattern]>, wanted: WantedEntities<'_>) -> bool {
    grants.is_none_or(|grants| wanted.is_covered_by(grants))
}

impl Principal {
    /// Whether the principal may watch these entities. Every scope includes that.
    pub(crate) fn may_watch_entities(&self, wanted: WantedEntities<'_>) -> bool {
        match &self.grants {
            Grants::Project => true,
            Grants::Publishing => false,
            Grants::Named(resources) => resources.allow_entities(wanted),
        }
    }

    /// Whether the principal may publish changes of an entity.
    pub(crate) fn may_change_entity(&self, code: &str, id: &str) -> bool {
        let granted = match &self.grants {
            Grants::Project | Grants::Publishing => true,
            Grants::Named(resources) => resources.allow_entities(WantedEntities::One { code, id }),
        };
        granted && self.scope >= Scope::Write
    }
}

impl Resources {
    /// A session claim allows its session and nothing else.
    fn allow_entities(&self, wanted: WantedEntities<'_>) -> bool {
        self.session.is_none() && self.entities.as_ref().is_some_and(|grants| wanted.is_covered_by(grants))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TopicGrants;
    use tidings_model::ProjectId;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).expect("a valid pattern")).collect()
    }

    fn principal(scope: Scope, grants: Grants) -> Principal {
        Principal { project: ProjectId::default_project(), user: None, scope, grants }
    }

    fn named(resources: Resources) -> Principal {
        principal(Scope::Manage, Grants::Named(Box::new(resources)))
    }

    fn entities(texts: &[&str]) -> Principal {
        named(Resources { entities: Some(patterns(texts)), ..Resources::default() })
    }

    fn one<'a>(code: &'a str, id: &'a str) -> WantedEntities<'a> {
        WantedEntities::One { code, id }
    }

    #[test]
    fn an_entity_is_allowed_by_a_pattern_that_matches_its_code_and_id() {
        let actor = entities(&["project:1", "task:a-*", "note:**"]);
        for (code, id, allowed) in [
            ("project", "1", true),
            ("project", "2", false),
            ("project", "11", false),
            ("Project", "1", false),
            ("task", "a-7", true),
            ("task", "b-7", false),
            ("task", "a-7.1", false),
            ("note", "x", true),
            ("note", "x.y:z", true),
            ("notes", "x", false),
            ("other", "1", false),
            ("note:secret", "x", false),
            ("project:1", "", false),
        ] {
            assert_eq!(actor.may_watch_entities(one(code, id)), allowed, "{code} {id}");
            assert_eq!(actor.may_change_entity(code, id), allowed, "{code} {id}");
        }
    }

    #[test]
    fn a_whole_type_needs_a_pattern_that_has_every_id_of_it() {
        let table = [
            ("project:**", "project", true, true),
            ("project:*", "project", true, false),
            ("**", "project", true, true),
            ("*:**", "project", true, true),
            ("project:1", "project", false, false),
            ("project:a*", "project", false, false),
            ("task:**", "project", false, false),
            ("**", "odd ** code", true, true),
            ("odd:**", "odd ** code", false, false),
            ("pro*:**", "pro*", true, true),
            ("pro:**", "pro*", false, false),
            ("project:**", "project:secret", false, false),
            ("project:7:**", "project:7", false, false),
            ("project%3Asecret:**", "project:secret", true, true),
        ];
        for (grant, code, of_uuids, of_texts) in table {
            let actor = entities(&[grant]);
            let whole = |ids| actor.may_watch_entities(WantedEntities::WholeType { code, ids });
            assert_eq!((whole(Segments::One), whole(Segments::Any)), (of_uuids, of_texts), "{grant} {code}");
        }
    }

    #[test]
    fn a_token_for_anything_else_has_no_entity_and_an_api_key_only_changes_them() {
        let all = || Some(patterns(&["**"]));
        let none = Resources::default;
        for resources in [
            Resources { streams: all(), ..none() },
            Resources { stream_id: Some("a".into()), ..none() },
            Resources { rooms: all(), ..none() },
            Resources { topics: all().map(TopicGrants::both), ..none() },
            Resources { session: Some("a".into()), ..none() },
            Resources { session: Some("a".into()), entities: all(), ..none() },
            Resources { entities: Some(Vec::new()), ..none() },
        ] {
            let actor = named(resources);
            assert!(!actor.may_watch_entities(one("a", "b")), "{actor:?}");
            assert!(!actor.may_change_entity("a", "b"), "{actor:?}");
            let whole = WantedEntities::WholeType { code: "a", ids: Segments::One };
            assert!(!actor.may_watch_entities(whole), "{actor:?}");
        }
        let api_key = principal(Scope::Write, Grants::Publishing);
        assert!(api_key.may_change_entity("a", "b") && !api_key.may_watch_entities(one("a", "b")));
    }

    #[test]
    fn every_scope_watches_and_changes_need_write() {
        for scope in [Scope::Read, Scope::Write, Scope::Manage] {
            let claims = Resources { entities: Some(patterns(&["**"])), ..Resources::default() };
            for actor in
                [principal(scope, Grants::Project), principal(scope, Grants::Named(Box::new(claims)))]
            {
                assert!(actor.may_watch_entities(one("a", "b")), "{actor:?}");
                assert_eq!(actor.may_change_entity("a", "b"), scope >= Scope::Write, "{actor:?}");
            }
        }
    }
}
