//! What the matcher promises beside finding the right keys: its size, its order, and readers beside a writer.

use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use tidings_engine::matching::Matcher;
use tidings_model::{Pattern, limits};

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).expect("a valid pattern")
}

fn matches<K: Copy + Ord>(matcher: &Matcher<K>, name: &str) -> Vec<K> {
    let mut keys = Vec::new();
    matcher.matches(name, &mut keys);
    keys
}

#[test]
fn stars_stand_for_segments() {
    for (text, name, expected) in [
        ("webhook.github.push", "webhook.github.push", true),
        ("webhook.github.push", "webhook.github.pull", false),
        ("webhook.github.push", "webhook.github", false),
        ("webhook.github.push", "webhook.github.push.now", false),
        ("webhook.github.push", "Webhook.github.push", false),
        ("webhook.*.push", "webhook.github.push", true),
        ("webhook.*.push", "webhook.push", false),
        ("webhook.*.push", "webhook.a.b.push", false),
        ("webhook.**", "webhook", true),
        ("webhook.**", "webhook.github.push", true),
        ("webhook.**", "webhooks.github", false),
        ("**.push", "push", true),
        ("**.push", "webhook.github.push", true),
        ("**.push", "webhook.github.pushed", false),
        ("webhook.**.push", "webhook.push", true),
        ("webhook.**.push", "webhook.a.b.c.push", true),
        ("webhook.**.push", "webhook.a.b.c", false),
        ("*", "webhook", true),
        ("*", "webhook.push", false),
        ("**", "any.thing.at.all", true),
        ("*.**", "a", true),
        ("**.*", "a", true),
        ("a.*.**", "a.b", true),
        ("a.*.**", "a", false),
        ("a.**.*", "a.b.c.d", true),
        ("a.**.*", "a", false),
        ("**.**", "a", true),
        ("a.foo*", "a.foo", true),
        ("a.foo*", "a.football", true),
        ("a.foo*", "a.foo.bar", false),
        ("a.f*r", "a.for", true),
        ("a.f*r", "a.fr", true),
        ("a.f*r", "a.f", false),
        ("*.middle.*", "a.middle.b", true),
        ("*.middle.*", "middle.b", false),
        ("**.*", "a:b.c", true),
        ("*.**", "a:b.c", false),
        ("room:**", "room:1.a", true),
        ("room:**", "room.1", false),
        ("a.", "a.", true),
        ("a.*", "a.", true),
        ("a..b", "a..b", true),
    ] {
        let matcher = Matcher::from_iter([(pattern(text), ())]);
        assert_eq!(!matches(&matcher, name).is_empty(), expected, "{text} loaded, {name}");
        let matcher = Matcher::new();
        matcher.insert(&pattern(text), ());
        assert_eq!(!matches(&matcher, name).is_empty(), expected, "{text} added, {name}");
        assert_eq!(pattern(text).matches(name), expected, "{text} by itself, {name}");
    }
}

#[test]
fn a_key_under_several_matching_patterns_is_found_once_until_it_is_removed_from_all() {
    let matcher = Matcher::new();
    let patterns =
        ["orders.*", "orders.**", "**", "**.**", "orders.**.*", "orders.*.**", "orders.**.**"].map(pattern);
    for pattern in &patterns {
        assert!(matcher.insert(pattern, "hook"));
        assert!(!matcher.insert(pattern, "hook"), "{pattern} has it already");
    }
    assert_eq!(matcher.len(), patterns.len());
    for pattern in &patterns {
        assert_eq!(matches(&matcher, "orders.paid"), ["hook"]);
        assert!(matcher.remove(pattern, "hook"));
        assert!(!matcher.remove(pattern, "hook"), "{pattern} has lost it already");
    }
    assert!(matcher.is_empty());
    assert!(matches(&matcher, "orders.paid").is_empty());
}

#[test]
fn what_is_loaded_twice_is_there_once() {
    let pairs = ["a.**.*", "a.**.*", "a.*", "a.*"].map(pattern).into_iter().zip([2, 2, 1, 1]);
    let matcher: Matcher<i32> = pairs.collect();
    assert_eq!(matcher.len(), 2);
    assert_eq!(matches(&matcher, "a.b"), [1, 2]);
    assert!(matcher.remove(&pattern("a.**.*"), 2));
    assert_eq!(matches(&matcher, "a.b"), [1]);
    assert!(!matcher.remove(&pattern("a.**.*"), 2));
}

#[test]
fn a_pattern_may_have_many_keys() {
    let loaded = Matcher::from_iter((0..100_000).rev().map(|key| (pattern("a.*"), key)));
    let added = Matcher::new();
    for key in (0..5_000).rev() {
        added.insert(&pattern("a.*"), key);
    }
    assert!(matches(&loaded, "a.b").into_iter().eq(0..100_000), "each once, in ascending order");
    assert!(matches(&added, "a.b").into_iter().eq(0..5_000), "from many levels");
    while added.compact_due() {
        added.compact();
    }
    assert!(matches(&added, "a.b").into_iter().eq(0..5_000), "from one level");
    assert!(loaded.remove(&pattern("a.*"), 70_000));
    assert!(matches(&loaded, "a.b").into_iter().eq((0..70_000).chain(70_001..100_000)));
}

#[test]
fn memory_of_what_was_removed_is_freed() {
    let matcher = Matcher::new();
    let empty = matcher.bytes();
    let patterns: Vec<_> = (0..3_000).map(|n| pattern(&format!("customer.id{n}.*"))).collect();
    for pattern in &patterns {
        matcher.insert(pattern, 1);
    }
    for pattern in &patterns {
        matcher.remove(pattern, 1);
    }
    assert!(matcher.bytes() > 100_000);
    while matcher.compact_due() {
        matcher.compact();
    }
    assert_eq!(matcher.bytes(), empty);
}

#[test]
fn after_compaction_there_are_few_levels_however_the_patterns_came() {
    // A match costs about as much per level as levels cost memory here: their tables are never shared.
    let patterns: Vec<_> = (0..20_000).map(|n| pattern(&format!("customer.id{n}.*"))).collect();
    let added = Matcher::new();
    for (key, pattern) in patterns.iter().enumerate() {
        added.insert(pattern, key);
        if added.compact_due() {
            added.compact();
            assert!(!added.compact_due(), "one round is enough");
        }
    }
    for (key, text) in [(0, "customer.id0.x"), (9_999, "customer.id9999.x"), (19_999, "customer.id19999.x")] {
        assert_eq!(matches(&added, text), [key]);
    }
    let loaded = Matcher::from_iter(patterns.iter().zip(0usize..));
    assert!(added.bytes() < loaded.bytes() * 2, "{} beside {}", added.bytes(), loaded.bytes());
}

/// All patterns of nine words and then `z`.
fn crafted() -> Vec<Pattern> {
    let words = ["a", "*", "**"];
    let nine = (0..3usize.pow(9)).map(|n| (0..9).map(move |place| words[n / 3usize.pow(place) % 3]));
    nine.map(|nine| pattern(&nine.chain(["z"]).collect::<Vec<_>>().join("."))).collect()
}

#[test]
fn patterns_that_were_crafted_to_be_slow_are_each_found_once() {
    let patterns = crafted();
    let matcher = Matcher::from_iter(patterns.iter().zip(0usize..));
    assert_eq!(matcher.len(), patterns.len());
    for name in ["a.a.a.a.a.a.a.a.a.a", "a.a.a.a.a.a.a.a.a.z", "a.b.a.z", "z", "a:a.a.z", "a:a:a:z"] {
        let asked = patterns.iter().zip(0usize..).filter(|(pattern, _)| pattern.matches(name));
        assert_eq!(matches(&matcher, name), asked.map(|(_, key)| key).collect::<Vec<_>>(), "{name}");
    }
    let many = (0..16).map(|_| "**.a").collect::<Vec<_>>().join(".");
    let matcher = Matcher::from_iter([(pattern(&format!("{many}.**.z")), 1)]);
    assert!(matches(&matcher, &"a.".repeat(500)).is_empty());
    assert_eq!(matches(&matcher, &format!("{}z", "a.".repeat(500))), [1]);
}

#[test]
fn patterns_that_would_make_a_name_slow_are_not_admitted() {
    let matcher = Matcher::new();
    let (mut admitted, mut refused) = (0, 0);
    for pattern in crafted() {
        if matcher.admits(&pattern) {
            matcher.insert(&pattern, ());
            admitted += 1;
        } else {
            refused += 1;
        }
        if matcher.compact_due() {
            matcher.compact();
        }
    }
    assert!(admitted > 100 && refused > 1_000, "{admitted} admitted, {refused} refused");
    assert!(matcher.admits(&pattern("orders.paid")), "without wildcards it costs next to nothing");
    // One pattern at most is beyond the limit.
    assert!(matcher.complexity() < 2 * limits::PATTERN_COMPLEXITY, "{}", matcher.complexity());
}

#[test]
fn patterns_as_people_write_them_are_admitted_in_any_number() {
    let kinds = [
        "customer.id{}.*",
        "customer.id{}.**",
        "**.id{}.paid",
        "*.id{}.*",
        "customer.*.id{}",
        "a.**.id{}.b.**",
    ];
    let texts = (0..20_000).flat_map(|n| kinds.map(|kind| kind.replace("{}", &n.to_string())));
    let matcher = Matcher::from_iter(texts.zip(0usize..).map(|(text, key)| (pattern(&text), key)));
    assert_eq!(matcher.len(), 120_000);
    assert!(matcher.complexity() < limits::PATTERN_COMPLEXITY / 100, "{}", matcher.complexity());
}

#[test]
fn a_reader_sees_all_changes_up_to_one_moment() {
    const KEYS: u32 = 30_000;
    const WINDOW: u32 = 700;
    // Key n is added as the n-th change, under one of these; the key WINDOW before it is removed.
    let patterns = ["a.b", "a.*", "**.b", "*.**", "a.**.*", "**", "a.b*"].map(pattern);
    let of = |key: u32| &patterns[key as usize % patterns.len()];
    let matcher = Matcher::new();
    let (is_over, begin) = (AtomicBool::new(false), Barrier::new(4));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            begin.wait();
            for key in 0..KEYS {
                assert!(matcher.insert(of(key), key));
                if key >= WINDOW {
                    assert!(matcher.remove(of(key - WINDOW), key - WINDOW));
                }
            }
        });
        let compactor = scope.spawn(|| {
            let mut rounds = 0;
            begin.wait();
            while !is_over.load(SeqCst) {
                rounds += u32::from(matcher.compact_due());
                matcher.compact();
                thread::yield_now();
            }
            rounds
        });
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                let (mut keys, mut seen, mut newest) = (Vec::new(), HashSet::new(), 0);
                begin.wait();
                while !is_over.load(SeqCst) {
                    matcher.matches("a.b", &mut keys);
                    let Some((&first, &last)) = keys.first().zip(keys.last()) else { continue };
                    assert_eq!(keys.len(), (last - first + 1) as usize, "no key is missing between others");
                    assert!(
                        first == 0 || (WINDOW..=WINDOW + 1).contains(&(last - first + 1)),
                        "{first} to {last}"
                    );
                    assert!(last >= newest, "what was seen once does not come undone");
                    newest = last;
                    seen.insert(last);
                }
                seen.len()
            })
        });
        let wrote = writer.join();
        is_over.store(true, SeqCst);
        wrote.expect("every change is one");
        assert!(compactor.join().expect("compaction ends") > 0);
        for reader in readers {
            assert!(
                reader.join().expect("every reading is consistent") > 1,
                "readers read beside the writer"
            );
        }
    });
    assert_eq!(matches(&matcher, "a.b"), (KEYS - WINDOW..KEYS).collect::<Vec<_>>());
}
