//! Patterns on names: `orders.*.paid`, `room:**`, `team-*`.
//!
//! A name is split into segments at `:` `.` and `/`. In a pattern `*` stands for one whole segment, or for
//! any characters inside one; `**` as a whole segment stands for any number of segments, including none;
//! everything else, separators included, is literal. So `room:**` matches `room`, `room:1` and `room:1.a`,
//! but not `room.1`.

mod relation;

use std::fmt;
use std::sync::Arc;

use crate::limits;

/// Characters at which a name is split into segments.
pub const SEPARATORS: [char; 3] = [':', '.', '/'];

/// Why a text is not a valid pattern. The message is meant for the client that sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// The pattern is empty.
    #[error("a pattern is at least one character")]
    Empty,
    /// The pattern is longer than [`limits::PATTERN_BYTES`].
    #[error("a pattern is at most {} bytes", limits::PATTERN_BYTES)]
    TooLong,
    /// The pattern has more segments than [`limits::PATTERN_SEGMENTS`].
    #[error("a pattern has at most {} segments", limits::PATTERN_SEGMENTS)]
    TooManySegments,
    /// `**` shares a segment with other characters.
    #[error("`**` must be a segment of its own")]
    DoubleStarInside,
}

/// A valid pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    text: Arc<str>,
    segments: Arc<[Segment]>,
}

/// A pattern on topics. It is a pattern like any other, with this to say about topics:
///
/// - A subscription to a pattern needs one grant that [covers](Pattern::covers) it, and is refused if it
///   [overlaps](Pattern::overlaps) a pattern that is revoked.
/// - To find the subscriptions that match a topic, the engine's matcher (`engine::matching`) takes these patterns as they are.
///   Its bound on the work for one name, `Matcher::admits`, is computed for names of [`limits::TOPIC_SEGMENTS`] segments.
pub type TopicPattern = Pattern;

/// One segment of a pattern.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Segment {
    /// Separator before the segment; `None` for the first one.
    pub separator: Option<char>,
    /// What the segment matches.
    pub matcher: Matcher,
}

/// What a segment of a pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matcher {
    /// Exactly this text.
    Literal(Box<str>),
    /// Any one segment.
    One,
    /// One segment that has these parts in this order, the first at its start and the last at its end.
    Glob(Box<[Box<str>]>),
    /// Any number of segments.
    Deep,
}

impl Pattern {
    /// Parses a pattern.
    pub fn parse(text: &str) -> Result<Self, InvalidPattern> {
        if text.is_empty() {
            return Err(InvalidPattern::Empty);
        }
        if text.len() > limits::PATTERN_BYTES {
            return Err(InvalidPattern::TooLong);
        }
        let segments = segments(text)
            .map(|name| Ok(Segment { separator: name.separator, matcher: Matcher::parse(name.text)? }))
            .collect::<Result<Vec<_>, _>>()?;
        if segments.len() > limits::PATTERN_SEGMENTS {
            return Err(InvalidPattern::TooManySegments);
        }
        Ok(Self { text: text.into(), segments: segments.into() })
    }

    /// Parses a pattern in which several `*` in a row act as one where they share a segment with other characters:
    /// `a**b` is `a*b`.
    pub fn normalised(text: &str) -> Result<Self, InvalidPattern> {
        if text.len() > limits::PATTERN_BYTES {
            return Err(InvalidPattern::TooLong);
        }
        let mut normalised = String::with_capacity(text.len());
        for segment in segments(text) {
            normalised.extend(segment.separator);
            let is_wildcard = segment.text.bytes().all(|byte| byte == b'*');
            let mut before = None;
            let mut is_repeated = |c: char| before.replace(c) == Some('*') && c == '*';
            normalised.extend(segment.text.chars().filter(|c| is_wildcard || !is_repeated(*c)));
        }
        Self::parse(&normalised)
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Segments of the pattern, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether the pattern matches a name.
    ///
    /// Runs in time linear in the name's length: bit *i* of `at` says that the first *i* segments of the
    /// pattern have matched, bit *i* of `inside` that segment *i* is a `**` that has matched at least one
    /// segment.
    pub fn matches(&self, name: &str) -> bool {
        let mut at = self.skip_deep(1);
        let mut inside = 0u128;
        for part in segments(name) {
            let mut next = 0u128;
            let mut next_inside = inside;
            for (i, segment) in self.segments.iter().enumerate() {
                if at & (1 << i) == 0 || !part.follows(segment.separator) {
                    continue;
                }
                match &segment.matcher {
                    Matcher::Deep => next_inside |= 1 << i,
                    matcher if matcher.accepts(part.text) => next |= 1 << (i + 1),
                    _ => {}
                }
            }
            at = self.skip_deep(next | (next_inside << 1));
            inside = next_inside;
        }
        at & (1 << self.segments.len()) != 0
    }

    /// Adds the states that are reached when `**` matches nothing.
    fn skip_deep(&self, mut at: u128) -> u128 {
        for (i, segment) in self.segments.iter().enumerate() {
            if at & (1 << i) != 0 && segment.matcher == Matcher::Deep {
                at |= 1 << (i + 1);
            }
        }
        at
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Matcher {
    fn parse(text: &str) -> Result<Self, InvalidPattern> {
        match text {
            "**" => Ok(Self::Deep),
            "*" => Ok(Self::One),
            _ if text.contains("**") => Err(InvalidPattern::DoubleStarInside),
            _ if text.contains('*') => Ok(Self::Glob(text.split('*').map(Box::from).collect())),
            _ => Ok(Self::Literal(text.into())),
        }
    }

    /// Whether one segment of a name is accepted. `**` accepts each of the segments it stands for.
    pub fn accepts(&self, segment: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *segment,
            Self::One | Self::Deep => true,
            Self::Glob(pieces) => in_order(pieces, segment),
        }
    }
}

/// Whether `text` starts with the first part, ends with the last, and has the others between them in order.
/// Matching each part at its earliest place leaves most room for the rest, so no backtracking is needed.
fn in_order(pieces: &[Box<str>], text: &str) -> bool {
    let [first, middle @ .., last] = pieces else { return false };
    let Some(mut rest) = text.strip_prefix(&**first) else { return false };
    for piece in middle {
        match rest.find(&**piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(&**last)
}

/// One segment of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameSegment<'a> {
    /// Separator before the segment; `None` for the first one.
    pub separator: Option<char>,
    /// Text of the segment; may be empty.
    pub text: &'a str,
}

impl NameSegment<'_> {
    /// Whether the segment can match one that has `separator` in a pattern. The first segment of a name has
    /// no separator and can always: `**.paid` matches `paid`.
    pub fn follows(&self, separator: Option<char>) -> bool {
        self.separator.is_none() || self.separator == separator
    }
}

/// Splits a name into its segments, of which there is always at least one.
pub fn segments(name: &str) -> impl Iterator<Item = NameSegment<'_>> {
    let mut rest = Some((None, name));
    std::iter::from_fn(move || {
        let (separator, text) = rest.take()?;
        let Some(end) = text.find(SEPARATORS) else { return Some(NameSegment { separator, text }) };
        // All separators are one byte long.
        rest = Some((text[end..].chars().next(), &text[end + 1..]));
        Some(NameSegment { separator, text: &text[..end] })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).expect("a valid pattern").matches(name)
    }

    #[test]
    fn a_star_is_one_segment() {
        assert!(matches("orders.*", "orders.paid"));
        assert!(!matches("orders.*", "orders"));
        assert!(!matches("orders.*", "orders.paid.twice"));
        assert!(matches("*", "anything"));
        assert!(matches("a.*.c", "a..c"));
    }

    #[test]
    fn a_star_inside_a_segment_is_a_run_of_characters() {
        assert!(matches("team-*", "team-7"));
        assert!(matches("team-*", "team-"));
        assert!(!matches("team-*", "team-7:a"));
        assert!(matches("a*b*c", "abc"));
        assert!(matches("a*b*c", "a-b-b-c"));
        assert!(!matches("a*b*c", "acb"));
        assert!(!matches("ab*ba", "aba"), "pieces do not overlap");
    }

    #[test]
    fn a_double_star_is_any_number_of_segments() {
        for name in ["webhook", "webhook.a", "webhook.a.b.c"] {
            assert!(matches("webhook.**", name), "{name}");
        }
        assert!(matches("webhook.**.push", "webhook.push"));
        assert!(matches("webhook.**.push", "webhook.github.acme.push"));
        assert!(!matches("webhook.**.push", "webhook.github.pull"));
        assert!(matches("**.push", "push"));
        assert!(matches("**", "a:b.c/d"));
        assert!(matches("**.**", "a"));
    }

    #[test]
    fn separators_are_literal() {
        assert!(matches("room:**", "room"));
        assert!(matches("room:**", "room:1.a"));
        assert!(!matches("room:**", "room.1"));
        assert!(!matches("a.b", "a:b"));
        assert!(matches("**:a:**", "a.b:a:c"), "the first `**` must be able to take more than the least");
    }

    #[test]
    fn a_normalised_pattern_has_single_stars_inside_segments() {
        for (text, normalised) in [
            ("a.x**y", "a.x*y"),
            ("**a:**:b**/***c***d", "*a:**:b*/*c*d"),
            ("a*b.*.**", "a*b.*.**"),
            ("", ""),
        ] {
            assert_eq!(Pattern::normalised(text), Pattern::parse(normalised), "{text}");
        }
        assert_eq!(
            Pattern::normalised("a.***"),
            Err(InvalidPattern::DoubleStarInside),
            "neither `*` nor `**`"
        );
        assert_eq!(Pattern::normalised(&"*a".repeat(257)), Err(InvalidPattern::TooLong));
        assert_eq!(Pattern::normalised(&format!("a{}", "*".repeat(512))), Err(InvalidPattern::TooLong));
    }

    #[test]
    fn what_is_not_a_pattern_says_why() {
        assert_eq!(Pattern::parse(""), Err(InvalidPattern::Empty));
        assert_eq!(Pattern::parse("***"), Err(InvalidPattern::DoubleStarInside));
        assert_eq!(Pattern::parse("a.b**"), Err(InvalidPattern::DoubleStarInside));
        assert_eq!(Pattern::parse(&"a".repeat(513)), Err(InvalidPattern::TooLong));
        assert_eq!(Pattern::parse(&"a.".repeat(64)), Err(InvalidPattern::TooManySegments));
        assert!(Pattern::parse(&["a"; 64].join(".")).expect("64 are allowed").matches(&["a"; 64].join(".")));
    }
}
