//! Patterns of hooks and types of events: which texts are valid.

use tidings_model::{Pattern, limits};

/// Why a text is not a valid pattern of a hook. The message may be shown to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHookPattern {
    /// The pattern is empty.
    #[error("pattern is empty")]
    Empty,
    /// The pattern is longer than [`limits::HOOK_PATTERN_BYTES`].
    #[error("pattern is longer than {} characters", limits::HOOK_PATTERN_BYTES)]
    TooLong,
    /// The pattern has a character that types of events do not have.
    #[error("pattern may contain only letters, digits, `.`, `*`, `_` and `-`")]
    Character,
    /// The pattern has three or more asterisks in a row.
    #[error("pattern has more than two consecutive asterisks")]
    Asterisks,
    /// The pattern starts or ends with a dot.
    #[error("pattern must not start or end with a dot")]
    OuterDot,
    /// The pattern has two dots in a row.
    #[error("pattern has consecutive dots")]
    Dots,
    /// The pattern has more than [`limits::EVENT_TYPE_SEGMENTS`] segments.
    #[error("pattern has more than {} segments", limits::EVENT_TYPE_SEGMENTS)]
    Segments,
    /// Most segments of the pattern are wildcards, and there are many.
    #[error(
        "pattern has too many wildcards: more than {} and more than half of its segments",
        limits::HOOK_PATTERN_WILDCARDS
    )]
    Wildcards,
}

/// Parses the pattern of a hook.
pub fn parse(text: &str) -> Result<Pattern, InvalidHookPattern> {
    use InvalidHookPattern as Invalid;
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '*' | '_' | '-');
    if text.is_empty() {
        return Err(Invalid::Empty);
    }
    if text.len() > limits::HOOK_PATTERN_BYTES {
        return Err(Invalid::TooLong);
    }
    if !text.chars().all(allowed) {
        return Err(Invalid::Character);
    }
    if text.contains("***") {
        return Err(Invalid::Asterisks);
    }
    if text.starts_with('.') || text.ends_with('.') {
        return Err(Invalid::OuterDot);
    }
    if text.contains("..") {
        return Err(Invalid::Dots);
    }
    let segments = text.split('.').count();
    if segments > limits::EVENT_TYPE_SEGMENTS {
        return Err(Invalid::Segments);
    }
    let wildcards = text.split('.').filter(|segment| matches!(*segment, "*" | "**")).count();
    if wildcards > limits::HOOK_PATTERN_WILDCARDS && 2 * wildcards > segments {
        return Err(Invalid::Wildcards);
    }
    Ok(matching(text))
}

/// The pattern by which a valid text matches: `**` that shares a segment with other characters acts as `*`.
pub fn matching(text: &str) -> Pattern {
    Pattern::normalised(text).expect("a valid pattern of a hook is a valid pattern")
}

/// The literal part of a pattern before its first wildcard, without a dot at its end.
pub fn prefix(text: &str) -> &str {
    let literal = &text[..text.find('*').unwrap_or(text.len())];
    literal.strip_suffix('.').unwrap_or(literal)
}

/// Whether a text is a valid type of an event.
pub fn is_event_type(text: &str) -> bool {
    (1..=limits::EVENT_TYPE_BYTES).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && text.split('.').all(|segment| !segment.is_empty())
        && text.split('.').count() <= limits::EVENT_TYPE_SEGMENTS
}

/// The shards that have a name of their own.
const SHARDS: [&str; 5] = ["collection", "rpc", "do", "ws", "webhook"];

/// The shard of a pattern: its first segment if that is a known one, otherwise `default`. A label only: a pattern is
/// matched against all events of its project.
pub fn shard(pattern: &str) -> &'static str {
    let first = pattern.split('.').next().unwrap_or_default();
    SHARDS.into_iter().find(|known| *known == first).unwrap_or("default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_of_a_pattern_are_checked_one_by_one() {
        use InvalidHookPattern as Invalid;
        for good in
            ["a", "**", "*", "a.*", "*.middle.*", "a.f*r", "a.x**y", "A-b_1.**", "1.2.3.4.5.6.7.8.9.10"]
        {
            assert!(parse(good).is_ok(), "{good}");
        }
        let long = "x".repeat(257);
        for (bad, why) in [
            ("", Invalid::Empty),
            (&*long, Invalid::TooLong),
            ("a b", Invalid::Character),
            ("a/b", Invalid::Character),
            ("ä", Invalid::Character),
            ("a.***", Invalid::Asterisks),
            (".a", Invalid::OuterDot),
            ("a.", Invalid::OuterDot),
            ("a..b", Invalid::Dots),
            ("1.2.3.4.5.6.7.8.9.10.11", Invalid::Segments),
            ("*.*.*.*.*.*", Invalid::Wildcards),
            ("a.**.*.*.*.*.*", Invalid::Wildcards),
        ] {
            assert_eq!(parse(bad), Err(why), "{bad}");
        }
        assert!(parse(&"x".repeat(256)).is_ok());
        assert!(parse("*.*.*.*.*").is_ok(), "five wildcards are never too many");
        assert!(parse("a.b.c.d.*.*.*.*.*").is_ok());
        assert!(parse("a.*x.*x.*x.*x.*x.*x").is_ok(), "only whole segments count as wildcards");
    }

    #[test]
    fn patterns_match_as_the_table_says() {
        for (pattern, name, matches) in [
            ("exact.match", "exact.match", true),
            ("exact.match", "exact", false),
            ("exact.match", "exact.match.more", false),
            ("exact.match", "exact.other", false),
            ("exact.match", "Exact.match", false),
            ("prefix.*", "prefix.a", true),
            ("prefix.*", "prefix.xyz", true),
            ("prefix.*", "prefix", false),
            ("prefix.*", "prefix.a.b", false),
            ("prefix.**", "prefix", true),
            ("prefix.**", "prefix.a.b.c", true),
            ("prefix.**", "prefixes.a", false),
            ("*.middle.*", "a.middle.b", true),
            ("*.middle.*", "x.middle.y", true),
            ("*.middle.*", "middle.b", false),
            ("**", "any.thing.at.all", true),
            ("**", "one", true),
            ("webhook.github.*", "webhook.github.push", true),
            ("webhook.github.*", "webhook.github.pull_request", true),
            ("webhook.github.*", "webhook.github.push.v1", false),
            ("webhook.github.*", "webhook.github", false),
            ("webhook.**", "webhook", true),
            ("webhook.**", "webhook.github.push.v1", true),
            ("webhook.**.push", "webhook.push", true),
            ("webhook.**.push", "webhook.github.push", true),
            ("webhook.**.push", "webhook.github.v1.push", true),
            ("webhook.**.push", "webhook.github.pull", false),
            ("*.**", "a", true),
            ("a.*.**", "a.b", true),
            ("a.foo*", "a.foobar", true),
            ("a.foo*", "a.foo", true),
            ("a.foo*", "a.foo.bar", false),
            ("a.f*r", "a.fooooor", true),
            ("a.f*r", "a.foo.r", false),
            ("a.x**y", "a.xzy", true),
            ("a.x**y", "a.x.y", false),
        ] {
            assert_eq!(parse(pattern).expect(pattern).matches(name), matches, "{pattern} on {name}");
        }
    }

    #[test]
    fn a_type_has_no_empty_segment_and_at_most_ten() {
        for good in ["a", "a.b", "A-1_x", "1.2.3.4.5.6.7.8.9.10", &"x".repeat(128)] {
            assert!(is_event_type(good), "{good}");
        }
        for bad in ["", "a..b", ".a", "a.", "a b", "a*", "1.2.3.4.5.6.7.8.9.10.11", &"x".repeat(129)] {
            assert!(!is_event_type(bad), "{bad}");
        }
    }

    #[test]
    fn a_shard_is_a_known_first_segment_or_default() {
        for (pattern, label) in [
            ("collection.users.insert", "collection"),
            ("webhook.github.push", "webhook"),
            ("rpc.UserService.getUser", "rpc"),
            ("ws.connect", "ws"),
            ("do.created", "do"),
            ("custom.my-event", "default"),
            ("**", "default"),
            ("*.x", "default"),
            ("collections.a", "default"),
        ] {
            assert_eq!(shard(pattern), label, "{pattern}");
        }
    }

    #[test]
    fn the_prefix_of_a_pattern_is_its_literal_part() {
        for (pattern, literal) in [
            ("a.b.c", "a.b.c"),
            ("a.b.*", "a.b"),
            ("a.**.c", "a"),
            ("**", ""),
            ("a.foo*", "a.foo"),
            ("*.x", ""),
        ] {
            assert_eq!(prefix(pattern), literal, "{pattern}");
        }
    }
}
