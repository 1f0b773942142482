//! The form of topics: how long they may be, which characters they may have, how many may be held.

use std::sync::Arc;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};
use tidings_model::Pattern;

use crate::error::{ErrorDetails, PubSubError, PubSubErrorCode};

/// What topics must look like. Lengths are in characters.
#[derive(Clone, Debug)]
pub struct TopicRules {
    max_length: usize,
    form: Form,
    max_per_connection: Option<usize>,
    max_subscriptions: Option<usize>,
    max_payload_bytes: Option<usize>,
    rules: Arc<[TopicRule]>,
    limits_subscribers: bool,
    has_history: bool,
}

/// A rule for the topics that match a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRule {
    /// The topics.
    pub pattern: Pattern,
    /// Connections that may subscribe to each of them, on one node. `None` is no limit.
    pub max_subscribers: Option<usize>,
    /// What their history keeps. `None` is no history.
    pub history: Option<Keep>,
}

/// What a history keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The last so many messages.
    pub messages: u64,
    /// Of those, what is not older. `None` is any age.
    pub age: Option<Duration>,
}

#[derive(Clone, Debug)]
enum Form {
    /// [`TopicRules::PATTERN`], checked without an expression.
    Default,
    Expression(Regex),
}

/// A pattern that is not a regular expression.
#[derive(Clone, Debug, thiserror::Error)]
#[error("topic pattern `{pattern}` is not a regular expression: {source}")]
pub struct InvalidTopicPattern {
    /// The pattern.
    pub pattern: String,
    source: regex::Error,
}

impl TopicRule {
    /// A rule that changes nothing.
    pub fn new(pattern: Pattern) -> Self {
        Self { pattern, max_subscribers: None, history: None }
    }
}

impl Default for TopicRules {
    fn default() -> Self {
        Self {
            max_length: Self::MAX_LENGTH,
            form: Form::Default,
            max_per_connection: None,
            max_subscriptions: None,
            max_payload_bytes: None,
            rules: Arc::default(),
            limits_subscribers: false,
            has_history: false,
        }
    }
}

impl TopicRules {
    /// Characters of a topic, if not configured otherwise.
    pub const MAX_LENGTH: usize = 128;
    /// The expression that topics must match, if not configured otherwise.
    pub const PATTERN: &str = "(?i)^[a-z0-9:_./-]+$";

    /// Changes the number of characters that a topic may have.
    pub fn with_max_length(self, max_length: usize) -> Self {
        Self { max_length, ..self }
    }

    /// Changes the expression that topics must match. It is searched for anywhere in the topic unless it has
    /// anchors, and it sees bytes: `(?i)` and classes like `\w` are ASCII.
    pub fn with_pattern(self, pattern: &str) -> Result<Self, InvalidTopicPattern> {
        let form = if pattern == Self::PATTERN {
            Form::Default
        } else {
            let built = RegexBuilder::new(pattern).unicode(false).build();
            Form::Expression(
                built.map_err(|source| InvalidTopicPattern { pattern: pattern.to_owned(), source })?,
            )
        };
        Ok(Self { form, ..self })
    }

    /// Changes the number of topics that a connection may hold. `None` is no limit.
    pub fn with_max_per_connection(self, max_per_connection: Option<usize>) -> Self {
        Self { max_per_connection, ..self }
    }

    /// Changes the number of subscriptions that all connections of a hub may hold together. `None` is no limit.
    pub fn with_max_subscriptions(self, max_subscriptions: Option<usize>) -> Self {
        Self { max_subscriptions, ..self }
    }

    /// Changes the bytes that the payload of a message may have. `None` is no limit.
    pub fn with_max_payload_bytes(self, max_payload_bytes: Option<usize>) -> Self {
        Self { max_payload_bytes, ..self }
    }

    /// Changes the rules for some topics. The first one whose pattern matches a topic counts.
    pub fn with_rules(self, rules: impl IntoIterator<Item = TopicRule>) -> Self {
        let rules: Arc<[TopicRule]> = rules.into_iter().collect();
        let limits_subscribers = rules.iter().any(|rule| rule.max_subscribers.is_some());
        let has_history = rules.iter().any(|rule| rule.history.is_some());
        Self { rules, limits_subscribers, has_history, ..self }
    }

    /// The rules for some topics.
    pub fn rules(&self) -> &[TopicRule] {
        &self.rules
    }

    /// The rule for a topic.
    pub fn rule_of(&self, topic: &str) -> Option<&TopicRule> {
        self.rules.iter().find(|rule| rule.pattern.matches(topic))
    }

    /// Whether some topics may have only so many subscribers.
    pub(crate) fn limits_subscribers(&self) -> bool {
        self.limits_subscribers
    }

    /// What the history of a topic keeps; `None` if it has none.
    pub fn history(&self, topic: &str) -> Option<Keep> {
        // Most servers have no such topics, and this is asked with each message.
        if !self.has_history || is_pattern(topic) {
            return None;
        }
        self.rule_of(topic)?.history
    }

    /// Whether some topics have a history.
    pub fn has_history(&self) -> bool {
        self.has_history
    }

    /// Connections that may subscribe to a topic. A subscription by pattern does not count.
    pub fn max_subscribers(&self, topic: &str) -> Option<usize> {
        if is_pattern(topic) { None } else { self.rule_of(topic)?.max_subscribers }
    }

    /// Characters that a topic may have.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Topics that a connection may hold.
    pub fn max_per_connection(&self) -> Option<usize> {
        self.max_per_connection
    }

    /// Subscriptions that all connections of a hub may hold together.
    pub fn max_subscriptions(&self) -> Option<usize> {
        self.max_subscriptions
    }

    /// Bytes that the payload of a message may have.
    pub fn max_payload_bytes(&self) -> Option<usize> {
        self.max_payload_bytes
    }

    /// Checks what is subscribed to, normalized: a topic, or a pattern. A pattern has the characters that topics may have, and
    /// `*`.
    pub fn check_subscription(&self, topic: &str) -> Result<(), PubSubError> {
        if !is_pattern(topic) {
            return self.check(topic);
        }
        let odd = |message: String| {
            let details = ErrorDetails::Pattern { topic: topic.to_owned() };
            PubSubError::new(PubSubErrorCode::InvalidTopic, message, details)
        };
        self.check_length(topic)?;
        if let Err(error) = Pattern::parse(topic) {
            return Err(odd(format!("the pattern is not valid: {error}")));
        }
        // An expression cannot be asked about a part of a topic. What is odd in a pattern matches nothing.
        if matches!(self.form, Form::Default) && !topic.bytes().all(|byte| byte == b'*' || is_plain(byte)) {
            return Err(odd("the pattern has a character that is not allowed".to_owned()));
        }
        Ok(())
    }

    /// Checks a normalized topic: its length first, then its characters. A topic with `*` is never valid.
    pub fn check(&self, topic: &str) -> Result<(), PubSubError> {
        self.check_length(topic)?;
        if !self.has_valid_form(topic) || is_pattern(topic) {
            return Err(PubSubError::new(
                PubSubErrorCode::InvalidTopic,
                "the topic has a character that is not allowed, or not in this place".to_owned(),
                ErrorDetails::Pattern { topic: topic.to_owned() },
            ));
        }
        Ok(())
    }

    fn check_length(&self, topic: &str) -> Result<(), PubSubError> {
        // Bytes are at least as many as characters.
        let length = if topic.len() <= self.max_length { topic.len() } else { topic.chars().count() };
        if length == 0 || length > self.max_length {
            let max = self.max_length;
            let message = if length == 0 {
                "a topic has at least one character".to_owned()
            } else {
                format!("a topic has at most {max} characters, this one has {length}")
            };
            return Err(PubSubError::new(
                PubSubErrorCode::InvalidTopic,
                message,
                ErrorDetails::Length { length, max },
            ));
        }
        Ok(())
    }

    fn has_valid_form(&self, topic: &str) -> bool {
        match &self.form {
            Form::Default => topic.bytes().all(is_plain),
            Form::Expression(expression) => expression.is_match(topic.as_bytes()),
        }
    }
}

/// Whether a topic may have a character, if not configured otherwise.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_' | b'.' | b'/' | b'-')
}

/// Whether what is subscribed to is a pattern: it has a `*`.
pub fn is_pattern(topic: &str) -> bool {
    topic.contains('*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(rules: &TopicRules, topic: &str) -> Option<serde_json::Value> {
        rules.check(topic).err().map(|error| {
            assert_eq!(error.code, PubSubErrorCode::InvalidTopic);
            serde_json::Value::Object(error.details.to_json())
        })
    }

    #[test]
    fn letters_digits_and_some_punctuation_make_a_topic_in_either_case() {
        let rules = TopicRules::default();
        for topic in ["room:123", "system:announcements", "ROOM:1", "a_b.c/d-e:9", "x"] {
            assert_eq!(reason(&rules, topic), None, "{topic}");
        }
    }

    #[test]
    fn other_characters_are_refused_with_the_topic() {
        let rules = TopicRules::default();
        let odd = ["no spaces", "é", "room\n", "room\0", "\u{212A}", "ſ", "room:*", "a,b", "a\\b"];
        for topic in odd {
            let expected = serde_json::json!({ "reason": "pattern", "topic": topic });
            assert_eq!(reason(&rules, topic), Some(expected), "{topic:?}");
        }
    }

    #[test]
    fn a_pattern_is_subscribed_to_and_is_no_topic() {
        let rules = TopicRules::default();
        let refused = |text: &str| rules.check_subscription(text).err().map(|error| error.details.to_json());
        for pattern in ["room:*", "news:**", "*", "**", "team-*", "a*b:c", "room:1"] {
            assert_eq!(refused(pattern), None, "{pattern}");
        }
        for odd in ["***", "a:b**", "no spaces:*", "é*", "room:*\n"] {
            let details = refused(odd).expect(odd);
            assert_eq!((&details["reason"], &details["topic"]), (&"pattern".into(), &odd.into()));
        }
        let long = format!("{}*", "a".repeat(128));
        assert_eq!(refused(&long).expect("it is too long")["reason"], "length");
        assert!(rules.check("room:*").is_err());
        let digits = TopicRules::default().with_pattern("^room:[0-9]+$").expect("an expression");
        assert!(digits.check_subscription("room:*").is_ok() && digits.check_subscription("room:x").is_err());
    }

    #[test]
    fn the_length_is_checked_first_and_told() {
        let rules = TopicRules::default();
        assert_eq!(reason(&rules, &"a".repeat(128)), None);
        for (topic, length) in [("a".repeat(129), 129), (" ".repeat(200), 200), (String::new(), 0)] {
            let expected = serde_json::json!({ "reason": "length", "length": length, "max": 128 });
            assert_eq!(reason(&rules, &topic), Some(expected), "{length}");
        }
    }

    #[test]
    fn length_is_counted_in_characters() {
        let rules = TopicRules::default().with_pattern("^.+$").expect("a pattern").with_max_length(3);
        assert_eq!(reason(&rules, "äöü"), None);
        let expected = serde_json::json!({ "reason": "length", "length": 4, "max": 3 });
        assert_eq!(reason(&rules, "äöüß"), Some(expected));
    }

    #[test]
    fn a_configured_pattern_counts_and_is_ascii() {
        let rules = TopicRules::default().with_pattern("(?i)^[a-z0-9:_/-]{1,128}$").expect("a pattern");
        assert_eq!(reason(&rules, "A:b"), None);
        assert!(reason(&rules, "a.b").is_some(), "without the dot");
        assert!(reason(&rules, "\u{212A}").is_some(), "the sign for kelvin is no k");
        assert!(reason(&rules, "a\n").is_some(), "the end is the end");
        let all = TopicRules::default().with_pattern(".").expect("a pattern");
        assert!(reason(&all, "a*").is_some(), "a pattern is no topic");
    }

    #[test]
    fn what_is_no_expression_is_refused_with_its_text() {
        let error = TopicRules::default().with_pattern("[a-").expect_err("no expression");
        assert!(error.to_string().starts_with("topic pattern `[a-` is not a regular expression"), "{error}");
    }
}
