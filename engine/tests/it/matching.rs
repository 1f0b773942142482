//! The pattern index finds exactly what asking every pattern finds.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidings_engine::matching::PatternIndex;
use tidings_model::Pattern;

fn pattern_text() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        4 => "[ab]{0,2}",
        2 => Just("*".to_owned()),
        2 => Just("**".to_owned()),
        1 => "[ab]{0,1}\\*[ab]{0,2}",
    ];
    joined(segment, 5)
}

fn name() -> impl Strategy<Value = String> {
    joined("[ab]{0,2}", 6)
}

/// One to `most` segments, joined by any of the separators.
fn joined(segment: impl Strategy<Value = String>, most: usize) -> impl Strategy<Value = String> {
    let separated = (prop::sample::select(vec![':', '.', '/']), segment);
    prop::collection::vec(separated, 1..=most).prop_map(|parts| {
        let text: String =
            parts.iter().flat_map(|(separator, text)| [separator.to_string(), text.clone()]).collect();
        text[1..].to_owned()
    })
}

/// At least two thousand; more when `PROPTEST_CASES` says so.
fn many() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(2_000), ..asked }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn the_index_finds_what_a_linear_scan_finds(
        texts in prop::collection::vec(pattern_text(), 0..20),
        names in prop::collection::vec(name(), 1..10),
        removed in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let patterns: Vec<_> = texts.iter().filter_map(|text| Pattern::parse(text).ok()).collect();
        let mut index = PatternIndex::new();
        let mut kept: BTreeSet<usize> = BTreeSet::new();
        for (key, pattern) in patterns.iter().enumerate() {
            prop_assert!(index.insert(pattern, key));
            prop_assert!(!index.insert(pattern, key), "a second time changes nothing");
            kept.insert(key);
        }
        for which in removed.iter().filter(|_| !patterns.is_empty()) {
            let key = which.index(patterns.len());
            prop_assert_eq!(index.remove(&patterns[key], &key), kept.remove(&key));
        }
        prop_assert_eq!(index.len(), kept.len());
        for name in &names {
            let scanned: BTreeSet<_> = kept.iter().copied().filter(|&key| patterns[key].matches(name)).collect();
            prop_assert_eq!(index.matches(name), scanned, "name {:?} among {:?}", name, texts);
        }
    }

    #[test]
    fn an_emptied_index_holds_nothing(texts in prop::collection::vec(pattern_text(), 0..20)) {
        let patterns: Vec<_> = texts.iter().filter_map(|text| Pattern::parse(text).ok()).collect();
        let mut index = PatternIndex::new();
        for pattern in &patterns {
            index.insert(pattern, 1);
        }
        for pattern in &patterns {
            index.remove(pattern, &1);
        }
        prop_assert!(index.is_empty());
        prop_assert_eq!(format!("{index:?}"), format!("{:?}", PatternIndex::<i32>::new()), "no node is left");
    }
}

#[test]
fn a_key_under_several_matching_patterns_is_found_once() {
    let mut index = PatternIndex::new();
    for text in ["orders.*", "orders.**", "**"] {
        index.insert(&Pattern::parse(text).expect("valid"), "hook");
    }
    assert_eq!(index.len(), 3);
    assert_eq!(index.matches("orders.paid"), BTreeSet::from(["hook"]));
}
