//! The policy of topics: their normal form, and the grants of tokens.

use std::borrow::Cow;

use tidings_auth::{Pass, TopicRefusal, Wanted};
use tidings_model::TopicPattern;
use tidings_topics::{Action, Answer, Connection, Decision, Denial, Policy, is_pattern};

use crate::live::PassHandle;

/// The normal form of topics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalize {
    /// They are as they were sent.
    #[default]
    None,
    /// They have no upper-case letters.
    Lowercase,
}

/// Allows what the pass of a connection grants at that moment.
pub struct GrantPolicy(pub Normalize);

impl Policy<PassHandle> for GrantPolicy {
    fn normalize<'t>(&self, topic: &'t str, _: Option<&Connection<PassHandle>>) -> Cow<'t, str> {
        match self.0 {
            Normalize::Lowercase if topic.chars().any(char::is_uppercase) => Cow::Owned(topic.to_lowercase()),
            Normalize::None | Normalize::Lowercase => Cow::Borrowed(topic),
        }
    }

    fn authorize<'a>(
        &'a self,
        action: Action,
        topic: &'a str,
        connection: &'a Connection<PassHandle>,
    ) -> Answer<'a, Decision> {
        let pass = connection.data.current();
        let allowed = match action {
            Action::Subscribe => may_subscribe(&pass, topic),
            Action::Publish => pass.may_publish_topic(topic),
            // Whoever subscribes may also hear it no more.
            Action::Unsubscribe => Ok(()),
        };
        Answer::now(match allowed {
            Ok(()) => Decision::Allow,
            Err(refusal) => Decision::Deny(denial(refusal)),
        })
    }
}

/// Whether a pass grants a topic, or all topics that a pattern matches.
pub fn may_subscribe(pass: &Pass, topic: &str) -> Result<(), TopicRefusal> {
    // Only a topic that is not valid has a star and is no pattern, and no grant matches it.
    match is_pattern(topic).then(|| TopicPattern::parse(topic)) {
        Some(Ok(pattern)) => pass.may_subscribe_topic(Wanted::Pattern(&pattern)),
        Some(Err(_)) | None => pass.may_subscribe_topic(Wanted::Topic(topic)),
    }
}

fn denial(refusal: TopicRefusal) -> Denial {
    let reason = refusal.reason.as_str();
    match refusal.kind {
        tidings_auth::RefusalKind::Unauthorized => Denial::unauthorized(reason),
        tidings_auth::RefusalKind::Forbidden => Denial::forbidden(reason),
    }
}
