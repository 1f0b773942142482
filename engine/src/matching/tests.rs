//! The matcher with levels of a few keys, so that a short history has everything in it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidings_model::{Pattern, limits};

use super::Matcher;
use super::builder::Builder;
use super::hash::Hasher;
use super::path::paths;
use super::walk::Walk;

/// A segment of a pattern.
fn segment() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab]{0,2}",
        3 => Just("*".to_owned()),
        3 => Just("**".to_owned()),
        1 => "[ab]{0,1}\\*[ab]{0,2}",
        1 => "[ab]{0,1}\\*[ab]{0,1}\\*[ab]{0,1}",
    ]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    joined(segment(), 5).prop_filter_map("not a pattern", |text| Pattern::parse(&text).ok())
}

fn name() -> impl Strategy<Value = String> {
    joined("[ab*]{0,2}", 6)
}

/// One to `most` segments, joined by any of the separators.
fn joined(segment: impl Strategy<Value = String>, most: usize) -> impl Strategy<Value = String> {
    let separated = (prop::sample::select(vec![".", ".", ":", "/"]), segment);
    prop::collection::vec(separated, 1..=most).prop_map(|parts| {
        let text: String = parts.iter().flat_map(|(separator, text)| [*separator, text]).collect();
        text[1..].to_owned()
    })
}

#[derive(Clone, Debug)]
enum Step {
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index, u8),
    BeginCompaction,
    EndCompaction,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (any::<prop::sample::Index>(), 0..3u8).prop_map(|(pattern, key)| Step::Insert(pattern, key)),
        3 => (any::<prop::sample::Index>(), 0..3u8).prop_map(|(pattern, key)| Step::Remove(pattern, key)),
        1 => Just(Step::BeginCompaction),
        1 => Just(Step::EndCompaction),
    ]
}

fn many() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(2_000), ..asked }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn after_every_change_the_matcher_finds_what_asking_every_pattern_finds(
        patterns in prop::collection::vec(pattern(), 1..10),
        names in prop::collection::vec(name(), 1..6),
        loaded in prop::collection::vec((any::<prop::sample::Index>(), 0..3u8), 0..6),
        steps in prop::collection::vec(step(), 0..40),
    ) {
        let loaded = loaded.iter().map(|(pattern, key)| (pattern.get(&patterns), *key));
        let mut pairs: BTreeSet<(&Pattern, u8)> = loaded.clone().collect();
        let mut matcher = Matcher::from_iter(loaded);
        matcher.recent_keys = 3;
        let (mut merge, mut found) = (None, Vec::new());
        for step in &steps {
            match step {
                Step::Insert(pattern, key) => {
                    let pattern = pattern.get(&patterns);
                    prop_assert_eq!(matcher.insert(pattern, *key), pairs.insert((pattern, *key)));
                }
                Step::Remove(pattern, key) => {
                    let pattern = pattern.get(&patterns);
                    prop_assert_eq!(matcher.remove(pattern, *key), pairs.remove(&(pattern, *key)));
                }
                Step::BeginCompaction => merge = merge.or_else(|| matcher.merge()),
                Step::EndCompaction => merge.take().into_iter().for_each(|merge| matcher.replace(merge)),
            }
            prop_assert_eq!(matcher.len(), pairs.len());
            for name in &names {
                matcher.matches(name, &mut found);
                let scanned: BTreeSet<u8> =
                    pairs.iter().filter(|(pattern, _)| pattern.matches(name)).map(|(_, key)| *key).collect();
                prop_assert_eq!(&found, &Vec::from_iter(scanned), "name {:?}", name);
            }
        }
    }
}

/// A segment of a pattern that most names below match.
fn crafted() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "a", "a", "*", "*", "**", "**", "a*", "*a*"])
}

proptest! {
    #[test]
    fn a_name_visits_no_more_nodes_than_the_complexity_says(
        patterns in prop::collection::vec(prop::collection::vec(crafted(), 1..=10), 1..6),
        name in prop::collection::vec(prop::sample::select(vec!["a", "a", "a", "a", "a", "a", "a", "b"]), 10),
        separator in prop::sample::select(vec![".", ":", "/"]),
    ) {
        let hasher = Hasher::random();
        let mut builder = Builder::new(hasher);
        for pattern in &patterns {
            let pattern = Pattern::parse(&pattern.join(".")).expect("a valid pattern");
            paths(&pattern, &hasher).iter().for_each(|path| builder.insert(path, ()));
        }
        let (arena, name) = (builder.finish(), name.join(separator));
        let mut walk = Walk::default();
        walk.begin(&name, &hasher);
        walk.follow(&name, &arena).for_each(drop);
        let complexity = arena.complexity(limits::EVENT_TYPE_SEGMENTS as u32);
        prop_assert!(walk.visits <= complexity as usize, "{}: {} > {}", name, walk.visits, complexity);
    }
}
