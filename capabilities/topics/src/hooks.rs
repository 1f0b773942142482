//! Hooks of topics that are made of typed arguments: a policy that calls functions when their subscriptions come and go.

use std::borrow::Cow;

use crate::answer::Answer;
use crate::policy::{Action, Connection, Decision, ObserverError, Policy, Removal};
use crate::typed::TypedTopic;

/// A policy with functions that are called for the topics of a [`TypedTopic`], with the arguments of which the topic was made.
/// They are called after the policy's own observers, in the order in which they were added, and a failure is logged and
/// changes nothing, as with [`Policy::subscribed`]. The close of a connection calls none.
///
/// ```
/// use std::sync::Arc;
/// use tidings_engine::WallClock;
/// use tidings_topics::router::{NoPubSub, Router};
/// use tidings_topics::{AllowAll, Hub, TopicHooks, TopicRules, TypedTopic};
///
/// const ROOM: TypedTopic<u32> =
///     TypedTopic::new("room", |id| format!("room:{id}")).parsed(|topic| topic.strip_prefix("room:")?.parse().ok());
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let policy = TopicHooks::new(AllowAll)
///     .subscribed(&ROOM, |id, connection| {
///         println!("{:?} hears room {id}", connection.client_id);
///         Ok(())
///     })
///     .unsubscribed(&ROOM, |id, why, _| {
///         println!("somebody left room {id}: {why:?}");
///         Ok(())
///     });
/// let hub = Hub::in_memory(TopicRules::default(), Arc::new(policy), Arc::new(WallClock));
/// let router = Router::<(), NoPubSub>::new().with_pub_sub(hub);
/// # drop(router);
/// # }
/// ```
pub struct TopicHooks<P, D> {
    policy: P,
    subscribed: Vec<Subscribed<D>>,
    unsubscribed: Vec<Unsubscribed<D>>,
}

type Subscribed<D> = Box<dyn Fn(&str, &Connection<D>) -> Result<(), ObserverError> + Send + Sync>;
type Unsubscribed<D> = Box<dyn Fn(&str, Removal, &Connection<D>) -> Result<(), ObserverError> + Send + Sync>;

impl<D, P: Policy<D>> TopicHooks<P, D> {
    /// A policy without functions.
    pub fn new(policy: P) -> Self {
        Self { policy, subscribed: Vec::new(), unsubscribed: Vec::new() }
    }

    /// Adds a function that is called when a connection has subscribed to a topic of this kind.
    ///
    /// # Panics
    ///
    /// If the kind has no way back from a topic to its arguments: a mistake in the program.
    pub fn subscribed<A: 'static>(
        mut self,
        kind: &'static TypedTopic<A>,
        hook: impl Fn(A, &Connection<D>) -> Result<(), ObserverError> + Send + Sync + 'static,
    ) -> Self {
        assert!(kind.can_parse(), "topics of the kind `{}` have no way back", kind.name());
        self.subscribed.push(Box::new(move |topic, connection| match kind.parse(topic) {
            Some(arguments) => hook(arguments, connection),
            None => Ok(()),
        }));
        self
    }

    /// Adds a function that is called when a subscription to a topic of this kind has ended, unless the connection was closed.
    ///
    /// # Panics
    ///
    /// If the kind has no way back from a topic to its arguments: a mistake in the program.
    pub fn unsubscribed<A: 'static>(
        mut self,
        kind: &'static TypedTopic<A>,
        hook: impl Fn(A, Removal, &Connection<D>) -> Result<(), ObserverError> + Send + Sync + 'static,
    ) -> Self {
        assert!(kind.can_parse(), "topics of the kind `{}` have no way back", kind.name());
        self.unsubscribed.push(Box::new(move |topic, why, connection| match kind.parse(topic) {
            Some(arguments) => hook(arguments, why, connection),
            None => Ok(()),
        }));
        self
    }
}

/// Calls each, whatever the others come to. The first failure is the result.
fn all(results: impl Iterator<Item = Result<(), ObserverError>>) -> Result<(), ObserverError> {
    results.fold(Ok(()), Result::and)
}

impl<D: Send + Sync + 'static, P: Policy<D>> Policy<D> for TopicHooks<P, D> {
    fn normalize<'t>(&self, topic: &'t str, connection: Option<&Connection<D>>) -> Cow<'t, str> {
        self.policy.normalize(topic, connection)
    }

    fn authorize<'a>(
        &'a self,
        action: Action,
        topic: &'a str,
        connection: &'a Connection<D>,
    ) -> Answer<'a, Decision> {
        self.policy.authorize(action, topic, connection)
    }

    fn invalidate(&self, connection: &Connection<D>) {
        self.policy.invalidate(connection);
    }

    fn subscribed(&self, topic: &str, connection: &Connection<D>) -> Result<(), ObserverError> {
        let own = self.policy.subscribed(topic, connection);
        own.and(all(self.subscribed.iter().map(|hook| hook(topic, connection))))
    }

    fn unsubscribed(
        &self,
        topic: &str,
        why: Removal,
        connection: &Connection<D>,
    ) -> Result<(), ObserverError> {
        let own = self.policy.unsubscribed(topic, why, connection);
        own.and(all(self.unsubscribed.iter().map(|hook| hook(topic, why, connection))))
    }
}
