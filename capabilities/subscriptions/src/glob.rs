//! Globs on stream ids: `events/*`, `users/**/inbox`.

use std::fmt;

use tidings_model::{InvalidPattern, Pattern, limits, pattern};

/// Stand-ins for the separators of [`Pattern`] that are no separators of a glob. No stream id contains control characters.
const STAND_INS: [(char, char); 2] = [('.', '\u{1}'), (':', '\u{2}')];

/// Why a text is not a valid glob. The message is meant for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGlob {
    /// The text is not a pattern.
    #[error(transparent)]
    Pattern(#[from] InvalidPattern),
    /// The glob has an empty segment.
    #[error("a pattern has no empty segments")]
    EmptySegment,
    /// The glob has a control character.
    #[error("a pattern has no control characters")]
    Control,
    /// The glob has more wildcards than [`limits::SUBSCRIPTION_WILDCARDS`].
    #[error("a pattern has at most {} segments with wildcards", limits::SUBSCRIPTION_WILDCARDS)]
    Wildcards,
}

/// A glob on stream ids. Only `/` separates segments: `*` is one segment, or any characters inside one; `**` is any number of
/// segments.
///
/// ```
/// # use tidings_subscriptions::Glob;
/// let glob = Glob::parse("/events/*/").unwrap();
/// assert_eq!(glob.as_str(), "events/*");
/// assert!(glob.matches("events/a.b:c") && !glob.matches("events/a/b"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    pattern: Pattern,
}

impl Glob {
    /// Parses a glob. Slashes at its beginning and end are ignored.
    pub fn parse(text: &str) -> Result<Self, InvalidGlob> {
        let text = text.trim_matches('/');
        if text.chars().any(char::is_control) {
            return Err(InvalidGlob::Control);
        }
        if text.split('/').any(str::is_empty) {
            return Err(if text.is_empty() {
                InvalidPattern::Empty.into()
            } else {
                InvalidGlob::EmptySegment
            });
        }
        if text.split('/').filter(|segment| segment.contains('*')).count() > limits::SUBSCRIPTION_WILDCARDS {
            return Err(InvalidGlob::Wildcards);
        }
        let pattern = Pattern::normalised(&name(text))?;
        Ok(Self { text: text.into(), pattern })
    }

    /// The glob as text, without slashes at its beginning and end.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text that every stream id begins with that the glob matches.
    pub fn prefix(&self) -> &str {
        let literal = &self.text[..self.text.find('*').unwrap_or(self.text.len())];
        // `a/**` matches `a`, too.
        let deep = self.text[literal.len()..].starts_with("**");
        literal.strip_suffix('/').filter(|_| deep).unwrap_or(literal)
    }

    /// The pattern that an index of globs has for this one. It matches the [`name`]s of streams.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Whether the glob matches a stream id.
    pub fn matches(&self, id: &str) -> bool {
        self.pattern.matches(&name(id))
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Glob").field(&self.text).finish()
    }
}

/// The name under which an index of globs knows a stream id.
pub fn name(id: &str) -> String {
    debug_assert!(STAND_INS.iter().all(|(separator, _)| pattern::SEPARATORS.contains(separator)));
    let stand_in =
        |c| STAND_INS.iter().find(|(separator, _)| *separator == c).map_or(c, |(_, stand_in)| *stand_in);
    id.chars().map(stand_in).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_slashes_separate_segments() {
        for (glob, matching, other) in [
            (
                "events/*",
                &["events/a", "events/a.b", "events/a:b.c"][..],
                &["events", "events/a/b", "x/a"][..],
            ),
            ("**", &["a", "a/b.c"], &[]),
            ("a/**/z", &["a/z", "a/b/z", "a/b.c/d/z"], &["a", "az", "a/z/b"]),
            ("a/**", &["a", "a/b"], &["a.b", "b"]),
            ("user-*/inbox", &["user-1/inbox", "user-a.b/inbox"], &["user-1", "user/inbox"]),
            ("a.b", &["a.b"], &["a:b", "a/b"]),
            ("/a/*/", &["a/b"], &["/a/b/"]),
        ] {
            let parsed = Glob::parse(glob).expect("valid");
            assert!(matching.iter().all(|id| parsed.matches(id)), "{glob}");
            assert!(!other.iter().any(|id| parsed.matches(id)), "{glob}");
        }
    }

    #[test]
    fn what_a_glob_matches_begins_with_its_prefix() {
        let prefix = |text: &str| Glob::parse(text).expect("valid").prefix().to_owned();
        for (glob, expected) in [
            ("a/b", "a/b"),
            ("a/*", "a/"),
            ("a/b-*", "a/b-"),
            ("a/**", "a"),
            ("a/**/b", "a"),
            ("**", ""),
            ("*/a", ""),
        ] {
            assert_eq!(prefix(glob), expected, "{glob}");
        }
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        let error = |text: &str| Glob::parse(text).expect_err(text);
        assert_eq!(error(""), InvalidGlob::Pattern(InvalidPattern::Empty));
        assert_eq!(error("///"), InvalidGlob::Pattern(InvalidPattern::Empty));
        assert_eq!(error("a//b"), InvalidGlob::EmptySegment);
        assert_eq!(error("a\u{1}"), InvalidGlob::Control);
        assert_eq!(error("*/*/*/*/*/*"), InvalidGlob::Wildcards);
        assert_eq!(error(&"a".repeat(600)), InvalidGlob::Pattern(InvalidPattern::TooLong));
    }
}
