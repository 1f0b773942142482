//! Sets of patterns that were chosen to be slow.

use std::hint::black_box;
use std::time::Duration;

use tidings_bench::{grouped, report};
use tidings_engine::matching::Matcher;
use tidings_model::limits;

use crate::repeated;
use crate::workload::parsed;

const MATCHING: Duration = Duration::from_millis(500);

pub fn run() {
    println!("#### Crafted sets of patterns\n");
    println!("| patterns, and the name | measured | goal | |");
    println!("|---|---|---|---|");
    for segments in [10, 20, 40] {
        let pattern = format!("{}z", "**.a.**.".repeat(segments / 4));
        one(
            &format!("{} times `**.a.**` and `z`; `a` {segments} times", segments / 4),
            [pattern],
            &a(segments),
        );
    }
    one("all of nine `a`, `*`, `**`, and `z`; `a` ten times", words(&["a", "*", "**"], 9, 9), &a(10));
    one("the same with at most five wildcards", words(&["a", "*", "**"], 9, 5), &a(10));
    let name = "a.b.c.d.e.f.g.h.i.j";
    one("random patterns for ten letters that end in `z`; the letters", letters(), name);
    let deep = (0..100_000).map(|n| format!("**.w{n}.**"));
    one("100,000 `**.w_i.**`; ten of the words", deep, "w1.w20.w300.w4000.w50000.w6.w70.w800.w9000.w99");
    let globs = (0..10_000).map(|n| format!("team-{n}*"));
    one("10,000 `team-i*`; `team-123456`", globs, "team-123456");
    let globs = (1..2_000).map(|n| format!("*{}b*", "a".repeat(n % 120)));
    one("2,000 globs that are searched for; 127 times `a`", globs, &"a".repeat(127));
    admitted();
    let matcher = Matcher::from_iter((0..100_000u64).map(|key| (parsed("a.*"), key)));
    let mut keys = Vec::new();
    let time = repeated(&["a.b".to_owned()], MATCHING, |name| matcher.matches(name, black_box(&mut keys)));
    assert_eq!(keys.len(), 100_000);
    print("100,000 keys of one pattern", matcher.complexity(), time);
    println!();
}

fn one(what: &str, patterns: impl IntoIterator<Item = String>, name: &str) {
    let matcher = Matcher::from_iter(patterns.into_iter().map(|text| parsed(&text)).zip(0u64..));
    let mut keys = Vec::new();
    let time = repeated(&[name.to_owned()], MATCHING, |name| matcher.matches(name, black_box(&mut keys)));
    print(&format!("{what} ({} patterns)", grouped(matcher.len())), matcher.complexity(), time);
}

fn print(what: &str, complexity: u32, time: Duration) {
    let us = time.as_secs_f64() * 1e6;
    let text = format!("{us:.1} us; complexity {}", grouped(complexity as usize));
    // The last pattern that is admitted may be beyond the limit.
    if complexity < limits::PATTERN_COMPLEXITY * 2 {
        report(what, &text, "< 1,000 us", us < 1_000.0);
    } else {
        println!("| {what} | {text} | none: not admitted |  |");
    }
}

/// What a matcher takes of the sets above before it admits no more.
fn admitted() {
    let sets: [(&str, Vec<String>, String); 3] = [
        ("nine `a`, `*`, `**`, and `z`", words(&["a", "*", "**"], 9, 5).collect(), a(10)),
        ("ten letters", letters().collect(), "a.b.c.d.e.f.g.h.i.j".to_owned()),
        ("globs", (1..20_000).map(|n| format!("*{}b{n}*", "a".repeat(n % 120))).collect(), "a".repeat(127)),
    ];
    for (what, patterns, name) in sets {
        let matcher = Matcher::new();
        for (text, key) in patterns.iter().zip(0u64..) {
            let pattern = parsed(text);
            if matcher.admits(&pattern) {
                matcher.insert(&pattern, key);
            }
            if matcher.compact_due() {
                matcher.compact();
            }
        }
        let mut keys = Vec::new();
        let time = repeated(&[name], MATCHING, |name| matcher.matches(name, black_box(&mut keys)));
        let what = format!("what is admitted of: {what} ({} patterns)", grouped(matcher.len()));
        print(&what, matcher.complexity(), time);
    }
}

fn a(segments: usize) -> String {
    vec!["a"; segments].join(".")
}

/// All patterns of `length` of the words and then `z`, with at most so many wildcards.
fn words(words: &'static [&str], length: u32, wildcards: usize) -> impl Iterator<Item = String> {
    (0..words.len().pow(length)).filter_map(move |number| {
        let digits = (0..length).map(|place| words[number / words.len().pow(place) % words.len()]);
        let used = digits.clone().filter(|word| word.contains('*')).count();
        (used <= wildcards).then(|| digits.chain(["z"]).collect::<Vec<_>>().join("."))
    })
}

/// Patterns of nine segments and `z`, random among those whose first nine match ten different letters.
fn letters() -> impl Iterator<Item = String> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut known = std::collections::HashSet::new();
    let patterns = std::iter::repeat_with(move || {
        let mut letters = "abcdefghij".chars();
        let mut segments: Vec<String> = Vec::new();
        let mut wildcards = 0;
        while segments.len() < 9 {
            match random.u8(..6) {
                0 if wildcards < 5 => {
                    letters.next();
                    wildcards += 1;
                    segments.push("*".to_owned());
                }
                1 if wildcards < 5 => {
                    letters.by_ref().take(random.usize(..4)).for_each(drop);
                    wildcards += 1;
                    segments.push("**".to_owned());
                }
                _ => segments.push(letters.next().unwrap_or('z').to_string()),
            }
        }
        segments.push("z".to_owned());
        segments.join(".")
    })
    .take(1_000_000);
    patterns.filter(move |pattern| known.insert(pattern.clone()))
}
