//! Policies: what topics are called, who may use them, and who hears of changes. In one place.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use crate::answer::Answer;

/// Identifies a connection. No two connections that are open at the same time have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(Arc<str>);

/// A connection, or whoever publishes without one, as policies see it.
#[derive(Clone, Debug)]
pub struct Connection<D> {
    /// The connection; `None` for a publisher without one.
    pub client_id: Option<ClientId>,
    /// What the application knows of it.
    pub data: D,
}

/// What is authorized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Hear a topic from now on.
    Subscribe,
    /// Hear it no more.
    Unsubscribe,
    /// Send a message.
    Publish,
}

/// The answer of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The operation may go on.
    Allow,
    /// The operation fails.
    Deny(Denial),
}

/// Why a policy denies something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Whether credentials are missing or do not suffice.
    pub kind: DenialKind,
    /// A reason for programs.
    pub reason: String,
    /// Name of the policy.
    pub policy: Option<String>,
}

/// Whether credentials are missing or do not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DenialKind {
    /// There are no credentials, or no valid ones.
    Unauthorized,
    /// The credentials do not suffice.
    Forbidden,
}

/// Why a subscription ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Removal {
    /// The connection asked for it.
    Requested,
    /// The application took it away.
    Removed,
    /// Its time was over.
    Expired,
    /// The driver refused later what it had accepted.
    Refused,
}

/// Normalizes topics, authorizes operations and hears of changes. All methods have a default.
///
/// The topic that is authorized is the one that the driver sees. Nothing is asked or told of an operation that
/// changes nothing, nor when a connection is closed.
pub trait Policy<D>: Send + Sync + 'static {
    /// Turns a topic into its normal form. `connection` is `None` if the application itself publishes.
    fn normalize<'t>(&self, topic: &'t str, _connection: Option<&Connection<D>>) -> Cow<'t, str> {
        Cow::Borrowed(topic)
    }

    /// Decides about an operation on a normalized topic.
    fn authorize<'a>(
        &'a self,
        _action: Action,
        _topic: &'a str,
        _connection: &'a Connection<D>,
    ) -> Answer<'a, Decision> {
        Answer::now(Decision::Allow)
    }

    /// Called when the rights of a connection have changed: a policy that remembers decisions forgets them.
    fn invalidate(&self, _connection: &Connection<D>) {}

    /// Called after a subscription was added. A failure is logged and changes nothing.
    fn subscribed(&self, _topic: &str, _connection: &Connection<D>) -> Result<(), ObserverError> {
        Ok(())
    }

    /// Called after a subscription was removed, unless the connection was closed. A failure is logged and
    /// changes nothing.
    fn unsubscribed(
        &self,
        _topic: &str,
        _why: Removal,
        _connection: &Connection<D>,
    ) -> Result<(), ObserverError> {
        Ok(())
    }
}

/// A failure of an observer.
pub type ObserverError = Box<dyn Error + Send + Sync>;

/// The policy that allows everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllowAll;

impl<D> Policy<D> for AllowAll {}

/// A policy and a connection that it is asked about.
pub(crate) trait Gate: Send + Sync + 'static {
    fn normalize<'t>(&self, topic: &'t str) -> Cow<'t, str>;
    fn authorize<'a>(&'a self, action: Action, topic: &'a str) -> Answer<'a, Decision>;
    fn invalidate(&self);
    fn subscribed(&self, topic: &str);
    fn unsubscribed(&self, topic: &str, why: Removal);
}

pub(crate) struct Gated<D> {
    pub(crate) policy: Arc<dyn Policy<D>>,
    pub(crate) connection: Connection<D>,
}

impl<D: Send + Sync + 'static> Gate for Gated<D> {
    fn normalize<'t>(&self, topic: &'t str) -> Cow<'t, str> {
        self.policy.normalize(topic, Some(&self.connection))
    }

    fn authorize<'a>(&'a self, action: Action, topic: &'a str) -> Answer<'a, Decision> {
        self.policy.authorize(action, topic, &self.connection)
    }

    fn invalidate(&self) {
        self.policy.invalidate(&self.connection);
    }

    fn subscribed(&self, topic: &str) {
        observe(topic, || self.policy.subscribed(topic, &self.connection));
    }

    fn unsubscribed(&self, topic: &str, why: Removal) {
        observe(topic, || self.policy.unsubscribed(topic, why, &self.connection));
    }
}

/// Calls an observer, whose failure is nobody else's.
fn observe(topic: &str, observer: impl FnOnce() -> Result<(), ObserverError>) {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(observer)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(topic, %error, "an observer of subscriptions failed"),
        Err(_) => tracing::error!(topic, "an observer of subscriptions panicked"),
    }
}

impl ClientId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<Arc<str>>> From<T> for ClientId {
    fn from(id: T) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Action {
    /// The action as it is written in details.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Subscribe => "subscribe",
            Self::Unsubscribe => "unsubscribe",
            Self::Publish => "publish",
        }
    }
}

impl DenialKind {
    /// The kind as it is written in details.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
        }
    }
}

impl Denial {
    /// Credentials that do not suffice.
    pub fn forbidden(reason: impl Into<String>) -> Self {
        Self { kind: DenialKind::Forbidden, reason: reason.into(), policy: None }
    }

    /// Credentials that are missing or not valid.
    pub fn unauthorized(reason: impl Into<String>) -> Self {
        Self { kind: DenialKind::Unauthorized, reason: reason.into(), policy: None }
    }
}
