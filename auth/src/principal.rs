//! Principals: actors, and the rules that say what they may do.

use std::sync::Arc;

use tidings_model::{Pattern, ProjectId, StreamId};

use crate::topics::TopicGrants;

/// The scope of a token. Each scope includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// May read.
    Read,
    /// May change the data of the project.
    Write,
    /// May change the settings of the project.
    Manage,
}

impl Scope {
    /// The scope of this name.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "read" => Some(Self::Read),
            "write" => Some(Self::Write),
            "manage" => Some(Self::Manage),
            _ => None,
        }
    }

    /// The name of the scope, as it stands in a token.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Manage => "manage",
        }
    }
}

/// The action of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read a stream, once or live, or its metadata.
    Read,
    /// Create a stream.
    Create,
    /// Append to a stream, or close it.
    Append,
    /// Delete a stream.
    Delete,
    /// List streams.
    List,
    /// Append to a source and deliver to its subscribers.
    Publish,
    /// Subscribe a session to a source.
    Subscribe,
    /// Unsubscribe a session from a source.
    Unsubscribe,
    /// Read the metadata of a session.
    GetSession,
    /// Renew a session.
    TouchSession,
    /// Delete a session.
    DeleteSession,
    /// Submit an event from outside.
    Ingest,
    /// Create, change or delete hooks, or what they did: retry, replay.
    Hooks,
    /// Read hooks, their deliveries and dead letters.
    ReadHooks,
    /// Read or change the settings of the project.
    Configure,
    /// Open a socket of topics, or ask about a topic or publish to it. Every credential of the project may; what it may
    /// do with a topic is asked of the [`Pass`](crate::Pass).
    UseTopics,
    /// Revoke tokens, or topics of tokens.
    Revoke,
    /// Open a socket of entities. Every credential of the project may; what it may watch is asked of the
    /// [`Pass`](crate::Pass).
    WatchEntities,
    /// Publish changes of entities. Which ones is asked of the [`Pass`](crate::Pass).
    ChangeEntities,
    /// See who watches what.
    EntityStats,
}

impl Action {
    /// The lowest scope that allows the action.
    pub fn needs(self) -> Scope {
        match self {
            Self::Read
            | Self::List
            | Self::Subscribe
            | Self::GetSession
            | Self::TouchSession
            | Self::ReadHooks
            | Self::UseTopics
            | Self::WatchEntities => Scope::Read,
            Self::Create
            | Self::Append
            | Self::Delete
            | Self::Publish
            | Self::Unsubscribe
            | Self::DeleteSession
            | Self::Ingest
            | Self::Hooks
            | Self::ChangeEntities => Scope::Write,
            Self::Configure | Self::Revoke | Self::EntityStats => Scope::Manage,
        }
    }

    /// Whether the action concerns the project as a whole, whatever resource is named: a hook may hear everything in
    /// it, an event from outside belongs to nothing in it, a revocation ends access to all of it, and statistics show all.
    fn concerns_all(self) -> bool {
        matches!(self, Self::Ingest | Self::Hooks | Self::ReadHooks | Self::Revoke | Self::EntityStats)
    }
}

/// The resource on which a request acts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The project as a whole.
    Project,
    /// A stream.
    Stream(StreamId),
    /// A session.
    Session(Arc<str>),
    /// The subscription of a session to a source.
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

/// An actor and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// The only project in which it may act.
    pub project: ProjectId,
    /// Id of the application's user, if the credential names one.
    pub user: Option<Arc<str>>,
    /// Upper bound of its rights.
    pub scope: Scope,
    /// The resources to which its rights extend.
    pub grants: Grants,
}

/// The kinds of streams to which a principal's rights extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All streams.
    All,
    /// Streams that are not those of sessions. Claims and public patterns that name streams do not cover
    /// sessions.
    PlainStreams,
    /// Streams of sessions. A plain stream with the id of the session is not covered.
    Sessions,
}

/// The resources to which a principal's rights extend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grants {
    /// Everything in the project.
    Project,
    /// What an API key is for: submitting events, hooks, publishing.
    Publishing,
    /// The resources named by claims.
    Named(Box<Resources>),
}

/// The resource claims of a token. Each restricts its kind; if there is any, kinds without a claim are denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Allows only the stream with this id.
    pub stream_id: Option<Box<str>>,
    /// Allows only streams that match one of these patterns.
    pub streams: Option<Vec<Pattern>>,
    /// Allows only the topics that these grants have.
    pub topics: Option<TopicGrants>,
    /// Allows only rooms that match one of these patterns.
    pub rooms: Option<Vec<Pattern>>,
    /// Allows only entities that match one of these patterns.
    pub entities: Option<Vec<Pattern>>,
    /// Allows only this session: to read, get and renew it and to choose its subscriptions.
    pub session: Option<Box<str>>,
}

impl Principal {
    /// A principal that may do everything in a project.
    pub fn admin_of(project: ProjectId) -> Self {
        Self { project, user: None, scope: Scope::Manage, grants: Grants::Project }
    }

    /// The kinds of streams to which its rights extend. Only the look-up of a stream tells whether its id is
    /// that of a session, so the caller checks this after the look-up.
    pub fn reach(&self) -> Reach {
        match &self.grants {
            Grants::Project => Reach::All,
            Grants::Named(resources) if resources.session.is_some() => Reach::Sessions,
            Grants::Publishing | Grants::Named(_) => Reach::PlainStreams,
        }
    }

    /// Whether the principal may do this in its project.
    pub fn may(&self, action: Action, resource: &Resource) -> bool {
        if matches!(action, Action::UseTopics | Action::WatchEntities) {
            return true;
        }
        let enough = self.scope >= action.needs();
        match &self.grants {
            Grants::Project => enough,
            Grants::Publishing => {
                enough
                    && (matches!(action, Action::Publish | Action::ChangeEntities) || action.concerns_all())
            }
            Grants::Named(_) if action.concerns_all() => false,
            Grants::Named(resources) if action == Action::ChangeEntities => {
                enough && resources.session.is_none() && resources.entities.is_some()
            }
            Grants::Named(resources) => match &resources.session {
                // A session claim stands in for the scope.
                Some(session) => resources.let_session(session, action, resource),
                None => enough && resources.name(resource),
            },
        }
    }
}

impl Resources {
    /// Whether there are no resource claims.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn name(&self, resource: &Resource) -> bool {
        match resource {
            // Acting on a session takes a claim for that session.
            Resource::Project | Resource::Session(_) | Resource::Subscription { .. } => false,
            // Only actions on topics concern them, and those are asked of the pass.
            Resource::Topic(_) => false,
            Resource::Stream(id) => self.name_stream(id.as_str()),
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

    const ALL: [Action; 20] = [
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
        Action::ReadHooks,
        Action::Configure,
        Action::UseTopics,
        Action::Revoke,
        Action::WatchEntities,
        Action::ChangeEntities,
        Action::EntityStats,
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
        let news = globs(&["news.**"]).map(TopicGrants::both);
        let topics = Resources { topics: news, ..Resources::default() };
        let actor = principal(Scope::Manage, topics);
        assert!(!actor.may(Action::Read, &stream("news.today")));
        assert!(!actor.may(Action::GetSession, &Resource::Session("news.today".into())));
        let nothing = principal(Scope::Manage, Resources { streams: Some(vec![]), ..Resources::default() });
        for action in ALL {
            let asked_later = matches!(action, Action::UseTopics | Action::WatchEntities);
            assert_eq!(nothing.may(action, &stream("s")), asked_later, "{action:?}");
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
            let for_it = [
                Action::Publish,
                Action::Ingest,
                Action::Hooks,
                Action::ReadHooks,
                Action::UseTopics,
                Action::WatchEntities,
                Action::ChangeEntities,
            ];
            for resource in [stream("s"), Resource::Project] {
                assert_eq!(key.may(action, &resource), for_it.contains(&action), "{action:?}");
            }
        }
    }

    #[test]
    fn hooks_and_events_from_outside_take_a_credential_of_the_whole_project() {
        let everything = [
            Resource::Project,
            stream("s"),
            Resource::Session("s".into()),
            subscription("s", "s"),
            Resource::Topic("s".into()),
            Resource::Room("s".into()),
            Resource::Entity("s".into()),
        ];
        let all = || globs(&["**"]);
        let topics = || all().map(TopicGrants::both);
        let confined = [
            Resources { stream_id: Some("s".into()), ..Resources::default() },
            Resources { streams: all(), ..Resources::default() },
            Resources { topics: topics(), ..Resources::default() },
            Resources { rooms: all(), ..Resources::default() },
            Resources { entities: all(), ..Resources::default() },
            Resources { session: Some("s".into()), ..Resources::default() },
            Resources {
                streams: all(),
                topics: topics(),
                rooms: all(),
                entities: all(),
                ..Resources::default()
            },
        ];
        for action in [Action::Hooks, Action::ReadHooks, Action::Ingest, Action::Revoke] {
            for resource in &everything {
                for resources in &confined {
                    let actor = principal(Scope::Manage, resources.clone());
                    assert!(!actor.may(action, resource), "{action:?} {resource:?} {resources:?}");
                }
            }
            for (scope, least) in
                [Scope::Read, Scope::Write, Scope::Manage].map(|scope| (scope, action.needs()))
            {
                let whole = principal(scope, Resources::default());
                assert_eq!(whole.may(action, &Resource::Project), scope >= least, "{action:?} {scope:?}");
            }
        }
        assert_eq!([Action::Hooks, Action::ReadHooks].map(Action::needs), [Scope::Write, Scope::Read]);
    }
}
