use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect(text)
}

fn covers(wide: &str, narrow: &str) -> bool {
    pattern(wide).covers(&pattern(narrow))
}

fn overlap(one: &str, other: &str) -> bool {
    let answers = [(one, other), (other, one)].map(|(one, other)| pattern(one).overlaps(&pattern(other)));
    assert_eq!(answers[0], answers[1], "{one} and {other}, in both orders");
    answers[0]
}

#[test]
fn a_pattern_covers_what_is_narrower_and_nothing_else() {
    for (wide, narrow) in [
        ("room:1", "room:1"),
        ("room:*", "room:1"),
        ("room:*", "room:*"),
        ("room:*", "room:a*"),
        ("room:**", "room"),
        ("room:**", "room:*"),
        ("room:**", "room:*:x.*"),
        ("room:**", "room:**:end"),
        ("**", "**:a/**"),
        ("**.**", "a:b.c"),
        ("a*", "ab*"),
        ("a*c", "ab*c"),
        ("*b*", "a*b*c"),
        ("**:x:**", "a:x:**"),
        ("**:**", "**"),
        ("*", "a*b"),
    ] {
        assert!(covers(wide, narrow), "`{wide}` covers `{narrow}`");
    }
    for (wide, narrow) in [
        ("room:1", "room:*"),
        ("room:*", "room:**"),
        ("room:*", "room"),
        ("room:*", "room.*"),
        ("room:**", "**"),
        ("room:**", "room:**.end"),
        ("room:**", "room*"),
        ("room:**", "room.**"),
        ("a.**", "a.**:b"),
        ("ab*", "a*"),
        ("a*b", "a*"),
        ("*a*a*", "*a*"),
        ("*.*", "**"),
        ("**.*", "**"),
        // Not `a.b/c`.
        ("**.*:**", "*.**"),
        ("*", "**"),
    ] {
        assert!(!covers(wide, narrow), "`{wide}` does not cover `{narrow}`");
    }
}

#[test]
fn patterns_overlap_when_a_name_matches_both() {
    for (one, other) in [
        ("room:1", "room:*"),
        ("room:*", "*:1"),
        ("room:**", "room"),
        ("room:**", "**:1"),
        ("**.a", "**:b.**"),
        ("ab*", "a*"),
        ("ab*c", "a*bc"),
        ("a*", "*b"),
        ("**", "**"),
        ("a.**:b", "a.**"),
        ("*:**", "**.*"),
    ] {
        assert!(overlap(one, other), "{one} and {other}");
    }
    for (one, other) in [
        ("room:1", "room:2"),
        ("room:*", "room.*"),
        ("room:*", "room"),
        ("room:**", "rooms:**"),
        ("a*", "b*"),
        ("*a", "*b"),
        ("a:**", "b:**"),
        ("**:a", "**.b"),
        ("*", "*:*"),
    ] {
        assert!(!overlap(one, other), "{one} and {other}");
    }
}

/// Patterns that make every kind of state within few segments.
fn patterns() -> impl Strategy<Value = Pattern> {
    let segment = prop::sample::select(vec!["*", "**", "**", "a", "b", "", "a*", "*a", "a*b", "*a*"]);
    let separator = prop::sample::select(vec![':', '.']);
    let rest = prop::collection::vec((separator, segment.clone()), 0..3);
    let text = (segment, rest).prop_map(|(first, rest)| {
        let rest = rest.into_iter().map(|(separator, segment)| format!("{separator}{segment}"));
        [first.to_owned()].into_iter().chain(rest).collect::<String>()
    });
    text.prop_filter_map("a valid pattern", |text| Pattern::parse(&text).ok())
}

/// All names of up to so many segments, of which each is one of a few texts. No pattern has the separator `/`, so only
/// `**` goes over it, whatever the text behind it is.
fn names(segments: usize) -> Vec<String> {
    let texts = ["", "a", "b", "x", "ab", "xa", "axb"];
    let mut names: Vec<String> = texts.map(str::to_owned).to_vec();
    let mut longest = names.clone();
    for _ in 1..segments {
        let longer = |name: &String| {
            [":", "."]
                .iter()
                .flat_map(|separator| texts.map(|text| format!("{name}{separator}{text}")))
                .chain([format!("{name}/x")])
                .collect()
        };
        longest = longest.iter().flat_map(|name| -> Vec<String> { longer(name) }).collect();
        names.extend_from_slice(&longest);
    }
    names
}

/// Whether one pattern covers another, and whether they overlap, as far as some names tell.
fn told_by(names: &[String], one: &Pattern, other: &Pattern) -> (bool, bool) {
    let by_other = || names.iter().filter(|name| other.matches(name));
    (by_other().all(|name| one.matches(name)), by_other().any(|name| one.matches(name)))
}

#[test]
fn patterns_cover_and_overlap_as_the_names_that_they_match_say() {
    let names_of_three = names(3);
    // Enough for any two of these patterns to differ in one, if they differ, but many.
    let names_of_five = LazyLock::new(|| names(5));
    proptest!(|(one in patterns(), other in patterns())| {
        let told = (one.covers(&other), one.overlaps(&other));
        if told != told_by(&names_of_three, &one, &other) {
            prop_assert_eq!(told, told_by(&names_of_five, &one, &other), "`{}` and `{}`", one, other);
        }
        prop_assert_eq!(other.overlaps(&one), told.1, "`{}` and `{}` overlap", other, one);
    });
}

proptest! {
    /// What is too expensive to tell is not covered, whatever it is: wrongly true would grant too much.
    #[test]
    fn longer_patterns_are_never_said_to_cover_a_name_that_they_do_not_match(
        wide in "(\\*{1,2}|[ab]\\*?)([:./](\\*{1,2}|[ab]\\*?)){0,12}",
        narrow in "(\\*{1,2}|[ab]\\*?)([:./](\\*{1,2}|[ab]\\*?)){0,12}",
        fillings in prop::collection::vec(("[abx]{0,2}", "([:./][abx]){0,3}"), 13),
    ) {
        let (wide, narrow) = (pattern(&wide), pattern(&narrow));
        // A name of `narrow`: every wildcard is replaced by something that it matches.
        let mut name = String::new();
        for (segment, (run, more)) in narrow.segments().iter().zip(&fillings) {
            if segment.matcher == Matcher::Deep && more.is_empty() {
                continue;
            }
            name.extend(segment.separator);
            match &segment.matcher {
                Matcher::Literal(text) => name.push_str(text),
                Matcher::One => name.push_str(run),
                Matcher::Glob(pieces) => name.push_str(&pieces.join(run)),
                Matcher::Deep => name.push_str(&more[1..]),
            }
        }
        prop_assume!(narrow.matches(&name));
        prop_assert!(!wide.covers(&narrow) || wide.matches(&name), "`{wide}`, `{narrow}`, `{name}`");
        prop_assert!(!wide.matches(&name) || wide.overlaps(&narrow), "`{wide}`, `{narrow}`, `{name}`");
    }
}

#[test]
fn what_takes_too_long_to_tell_is_not_covered() {
    // `wide` has `*` where `narrow` has `a`, so it covers it.
    let (wide, narrow) = ("**:*:**.*", "**:*:**.a");
    let [wide, narrow] = [wide, narrow].map(|part| [part; 14].join(":"));
    let (wide, narrow) = (&*wide, &*narrow);
    assert!(covers(&wide[..39], &narrow[..39]), "of four parts it is told");
    assert!(Covering::new(&pattern(wide), &pattern(narrow)).holds(1_000_000));
    assert!(!covers(wide, narrow));
    assert!(covers(wide, wide), "equal texts are compared");
    assert!(overlap(wide, narrow), "this is told at once");
    let deep = |separator: char| ["**"; limits::PATTERN_SEGMENTS].join(&separator.to_string());
    assert!(overlap(&deep('.'), &deep(':')));
}
