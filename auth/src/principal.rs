//! An actor and what it may do.

use std::sync::Arc;

use tidings_model::{Pattern, ProjectId, StreamId};

/// How much a token may do at all. Each implies those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Look.
    Read,
    /// Change what is in the project.
    Write,
    /// Change how the project is set.
    Manage,
}

impl Scope {
    /// The scope of that name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            "manage" => Some(Self::Manage),
            _ => None,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Manage => "manage",
        }
    }
}

/// What a request wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read a stream, at once or live, or what is known of it.
    Read,
    /// Create a stream.
    Create,
    /// Append to a stream, or close it.
    Append,
    /// Delete a stream.
    Delete,
    /// Ask which streams there are.
    List,
    /// Append to a source and let its subscribers hear it.
    Publish,
    /// Let a session hear a source.
    Subscribe,
    /// End that.
    Unsubscribe,
    /// Ask what is known of a session.
    GetSession,
    /// Keep a session alive.
    TouchSession,
    /// End a session.
    DeleteSession,
    /// Hand in an event from outside.
    Ingest,
    /// Do anything with hooks.
    Hooks,
    /// Look at or change how the project is set.
    Configure,
}

impl Action {
    /// The least scope that allows it.
    pub fn needs(self) -> Scope {
        match self {
            Self::Read | Self::List | Self::Subscribe | Self::GetSession | Self::TouchSession => Scope::Read,
            Self::Create
            | Self::Append
            | Self::Delete
            | Self::Publish
            | Self::Unsubscribe
            | Self::DeleteSession
            | Self::Ingest
            | Self::Hooks => Scope::Write,
            Self::Configure => Scope::Manage,
        }
    }
}

/// What it wants to do that to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The project as a whole.
    Project,
    /// A stream.
    Stream(StreamId),
    /// A session.
    Session(Arc<str>),
    /// A session that hears a source.
    Subscription {
        /// The session.
        session: Arc<str>,
        /// The source.
        source: StreamId,
    },
    /// A topic.
    Topic(Arc<str>),
    /// A room.
    Room(Arc<str>),
    /// An entity.
    Entity(Arc<str>),
}

/// Who acts, and with which rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// In this project and no other.
    pub project: ProjectId,
    /// As this user of the application, if the credential names one.
    pub user: Option<Arc<str>>,
    /// At most this much
    pub scope: Scope,
    /// with these.
    pub grants: Grants,
}

/// Which kinds of streams somebody's rights are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of them.
    All,
    /// Streams that are no session's: what names streams, or makes them public, says nothing of sessions.
    PlainStreams,
    /// Streams of sessions: a stream that has the name of the session and is none is not meant.
    Sessions,
}

/// What a principal's rights extend to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grants {
    /// Everything in the project.
    Project,
    /// What an API key is for: handing in events, hooks, publishing.
    Publishing,
    /// The named resources.
    Named(Box<Resources>),
}

/// The resource claims of a token: each restricts its kind, and kinds without one are denied once there is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Only the stream of this id.
    pub stream_id: Option<Box<str>>,
    /// Only streams that one of these matches.
    pub streams: Option<Vec<Pattern>>,
    /// Only topics that one of these matches.
    pub topics: Option<Vec<Pattern>>,
    /// Only rooms that one of these matches.
    pub rooms: Option<Vec<Pattern>>,
    /// Only entities that one of these matches.
    pub entities: Option<Vec<Pattern>>,
    /// Only this session: to read, get and touch it and to choose what it hears.
    pub session: Option<Box<str>>,
}

impl Principal {
    /// Whoever may do everything in a project.
    pub fn admin_of(project: ProjectId) -> Self {
        Self { project, user: None, scope: Scope::Manage, grants: Grants::Project }
    }

    /// Which kinds of streams its rights are about. Whether a name is that of a session is only known where streams are
    /// looked up, so whoever looks one up asks this once more.
    pub fn reach(&self) -> Reach {
        match &self.grants {
            Grants::Project => Reach::All,
            Grants::Named(resources) if resources.session.is_some() => Reach::Sessions,
            Grants::Publishing | Grants::Named(_) => Reach::PlainStreams,
        }
    }

    /// Whether it may do this, in its project.
    pub fn may(&self, action: Action, resource: &Resource) -> bool {
        let enough = self.scope >= action.needs();
        match &self.grants {
            Grants::Project => enough,
            Grants::Publishing => {
                enough && matches!(action, Action::Publish | Action::Ingest | Action::Hooks)
            }
            Grants::Named(resources) => match &resources.session {
                // It stands in for scope.
                Some(session) => resources.let_session(session, action, resource),
                None => enough && resources.name(resource),
            },
        }
    }
}

impl Resources {
    /// Whether nothing is restricted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn name(&self, resource: &Resource) -> bool {
        match resource {
            // Acting on a session takes a claim for it.
            Resource::Project | Resource::Session(_) | Resource::Subscription { .. } => false,
            Resource::Stream(id) => self.name_stream(id.as_str()),
            Resource::Topic(topic) => any(&self.topics, topic),
            Resource::Room(room) => any(&self.rooms, room),
            Resource::Entity(entity) => any(&self.entities, entity),
        }
    }

    fn name_stream(&self, id: &str) -> bool {
        self.restrict_streams() && self.allow_stream(id)
    }

    fn restrict_streams(&self) -> bool {
        self.stream_id.is_some() || self.streams.is_some()
    }

    fn allow_stream(&self, id: &str) -> bool {
        self.stream_id.as_ref().is_none_or(|only| **only == *id)
            && self.streams.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.matches(id)))
    }

    fn let_session(&self, own: &str, action: Action, resource: &Resource) -> bool {
        match (action, resource) {
            (Action::Read, Resource::Stream(id)) => {
                id.as_str().strip_prefix("session:").unwrap_or(id.as_str()) == own
            }
            (Action::GetSession | Action::TouchSession, Resource::Session(session)) => **session == *own,
            (Action::Subscribe | Action::Unsubscribe, Resource::Subscription { session, source }) => {
                **session == *own && self.allow_stream(source.as_str())
            }
            _ => false,
        }
    }
}

fn any(globs: &Option<Vec<Pattern>>, name: &str) -> bool {
    globs.as_ref().is_some_and(|globs| globs.iter().any(|glob| glob.matches(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Action; 14] = [
        Action::Read,
        Action::Create,
        Action::Append,
        Action::Delete,
        Action::List,
        Action::Publish,
        Action::Subscribe,
        Action::Unsubscribe,
        Action::GetSession,
        Action::TouchSession,
        Action::DeleteSession,
        Action::Ingest,
        Action::Hooks,
        Action::Configure,
    ];

    fn stream(id: &str) -> Resource {
        Resource::Stream(StreamId::parse(id).expect("a valid id"))
    }

    fn subscription(session: &str, source: &str) -> Resource {
        Resource::Subscription {
            session: session.into(),
            source: StreamId::parse(source).expect("a valid id"),
        }
    }

    fn globs(texts: &[&str]) -> Option<Vec<Pattern>> {
        Some(texts.iter().map(|text| Pattern::parse(text).expect("a valid glob")).collect())
    }

    fn principal(scope: Scope, resources: Resources) -> Principal {
        let grants = if resources.is_empty() { Grants::Project } else { Grants::Named(Box::new(resources)) };
        Principal { project: ProjectId::default_project(), user: None, scope, grants }
    }

    #[test]
    fn a_token_without_resource_claims_may_what_its_scope_says() {
        let any = stream("s");
        for (action, least) in ALL.iter().map(|&action| (action, action.needs())) {
            for scope in [Scope::Read, Scope::Write, Scope::Manage] {
                let may = principal(scope, Resources::default()).may(action, &any);
                assert_eq!(may, scope >= least, "{action:?} with {scope:?}");
            }
        }
    }

    #[test]
    fn stream_claims_restrict_reads_and_writes_and_deny_other_kinds() {
        let one = Resources { stream_id: Some("orders".into()), ..Resources::default() };
        let many = Resources { streams: globs(&["orders", "team/*"]), ..Resources::default() };
        for resources in [one.clone(), many.clone()] {
            let actor = principal(Scope::Write, resources);
            for action in [Action::Read, Action::Create, Action::Append, Action::Delete, Action::Publish] {
                assert!(actor.may(action, &stream("orders")), "{action:?}");
                assert!(!actor.may(action, &stream("other")), "{action:?}");
            }
            for action in [Action::Subscribe, Action::Unsubscribe] {
                assert!(!actor.may(action, &subscription("s", "orders")), "{action:?}");
            }
            for action in [Action::GetSession, Action::TouchSession, Action::DeleteSession] {
                assert!(!actor.may(action, &Resource::Session("orders".into())), "{action:?}");
            }
            assert_eq!(actor.reach(), Reach::PlainStreams);
            for other in
                [Resource::Topic("orders".into()), Resource::Room("orders".into()), Resource::Project]
            {
                assert!(!actor.may(Action::Read, &other), "{other:?}");
            }
            assert!(!actor.may(Action::List, &Resource::Project));
            assert!(!actor.may(Action::Ingest, &Resource::Project));
        }
        assert!(principal(Scope::Read, many.clone()).may(Action::Read, &stream("team/1")));
        assert!(!principal(Scope::Read, many.clone()).may(Action::Append, &stream("team/1")));
        let both = Resources { stream_id: one.stream_id, ..many };
        assert!(!principal(Scope::Read, both).may(Action::Read, &stream("team/1")), "each restricts");
    }

    #[test]
    fn a_claim_of_another_kind_denies_streams_and_an_empty_one_denies_all() {
        let topics = Resources { topics: globs(&["news.**"]), ..Resources::default() };
        let actor = principal(Scope::Manage, topics);
        assert!(actor.may(Action::Subscribe, &Resource::Topic("news.today".into())));
        assert!(!actor.may(Action::Subscribe, &Resource::Topic("weather".into())));
        assert!(!actor.may(Action::Read, &stream("news.today")));
        assert!(!actor.may(Action::GetSession, &Resource::Session("news.today".into())));
        let nothing = principal(Scope::Manage, Resources { streams: Some(vec![]), ..Resources::default() });
        for action in ALL {
            assert!(!nothing.may(action, &stream("s")), "{action:?}");
        }
    }

    #[test]
    fn a_session_claim_gives_its_own_session_whatever_the_scope_and_nothing_else() {
        let own: Arc<str> = "alice".into();
        let claim = Resources { session: Some("alice".into()), ..Resources::default() };
        for scope in [Scope::Read, Scope::Write, Scope::Manage] {
            let actor = principal(scope, claim.clone());
            assert_eq!(actor.reach(), Reach::Sessions);
            assert!(actor.may(Action::Read, &stream("alice")));
            assert!(actor.may(Action::Read, &stream("session:alice")));
            assert!(!actor.may(Action::Read, &stream("bob")));
            assert!(actor.may(Action::GetSession, &Resource::Session(own.clone())));
            assert!(actor.may(Action::TouchSession, &Resource::Session(own.clone())));
            assert!(!actor.may(Action::GetSession, &Resource::Session("bob".into())));
            assert!(!actor.may(Action::DeleteSession, &Resource::Session(own.clone())));
            for action in [Action::Subscribe, Action::Unsubscribe] {
                assert!(actor.may(action, &subscription("alice", "any")));
                assert!(!actor.may(action, &subscription("bob", "any")));
            }
            for action in [Action::Create, Action::Append, Action::Delete, Action::Publish] {
                assert!(!actor.may(action, &stream("alice")), "{action:?}");
            }
            assert!(!actor.may(Action::Configure, &Resource::Project));
        }
        let narrow = Resources { streams: globs(&["orders.*"]), ..claim };
        let actor = principal(Scope::Manage, narrow);
        assert!(actor.may(Action::Subscribe, &subscription("alice", "orders.1")));
        assert!(!actor.may(Action::Subscribe, &subscription("alice", "other")));
        assert!(!actor.may(Action::Read, &stream("orders.1")), "its streams are sources only");
        assert!(actor.may(Action::Read, &stream("alice")));
    }

    #[test]
    fn an_api_key_is_for_publishing_only() {
        let key = Principal {
            project: ProjectId::default_project(),
            user: None,
            scope: Scope::Write,
            grants: Grants::Publishing,
        };
        assert_eq!(key.reach(), Reach::PlainStreams);
        for action in ALL {
            let expected = matches!(action, Action::Publish | Action::Ingest | Action::Hooks);
            assert_eq!(key.may(action, &stream("s")), expected, "{action:?}");
        }
    }
}
