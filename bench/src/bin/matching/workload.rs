//! Patterns as subscribers have them, and names that match them.

use std::collections::HashSet;

use clap::ValueEnum;
use fastrand::Rng;
use tidings_model::Pattern;

/// What the patterns are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Four segments of few words: 60 % without wildcards, 20 % `a.b.c.*`, 12 % `a.b.**`, 6 % `a.b.*.d`, 2 %
    /// `a.**.c.d`, and a few `*.b.c.d`.
    Mixed,
    /// Each pattern has an id that no other has: `kind.id.verb`, `kind.id.*`, `kind.id.**`.
    Entities,
}

impl Workload {
    /// Name of the workload in reports and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Entities => "entities",
        }
    }

    /// Distinct patterns.
    pub fn patterns(self, count: usize) -> Vec<String> {
        let mut random = Rng::with_seed(7);
        let mut known = HashSet::with_capacity(count);
        let mut patterns = Vec::with_capacity(count);
        while patterns.len() < count {
            let pattern = match self {
                Self::Mixed => mixed(&mut random),
                Self::Entities => entity(&mut random, patterns.len()),
            };
            if known.insert(pattern.clone()) {
                patterns.push(pattern);
            }
        }
        patterns
    }

    /// As many distinct names as there are patterns, each matched by at least one of them, in random order.
    pub fn names(self, patterns: &[String]) -> Vec<String> {
        let mut random = Rng::with_seed(8);
        let mut known = HashSet::with_capacity(patterns.len());
        let mut names = Vec::with_capacity(patterns.len());
        // With few patterns that have wildcards the distinct names run out.
        for _ in 0..4 * patterns.len() {
            if names.len() == patterns.len() {
                break;
            }
            let pattern = &patterns[random.usize(..patterns.len())];
            let name = filled(&mut random, pattern);
            if known.insert(name.clone()) {
                names.push(name);
            }
        }
        names
    }
}

/// The pattern that a text is.
pub fn parsed(text: &str) -> Pattern {
    Pattern::parse(text).expect("patterns of the benchmark are valid")
}

fn a(random: &mut Rng) -> String {
    format!("svc{}", random.u32(..200))
}

fn b(random: &mut Rng) -> String {
    format!("entity{}", random.u32(..500))
}

fn c(random: &mut Rng) -> String {
    format!("act{}", random.u32(..100))
}

fn d(random: &mut Rng) -> String {
    format!("v{}", random.u32(..100))
}

fn mixed(random: &mut Rng) -> String {
    let (a, b, c, d) = (a(random), b(random), c(random), d(random));
    match random.u32(..1000) {
        0..600 => format!("{a}.{b}.{c}.{d}"),
        600..800 => format!("{a}.{b}.{c}.*"),
        800..919 => format!("{a}.{b}.**"),
        919..979 => format!("{a}.{b}.*.{d}"),
        979..999 => format!("{a}.**.{c}.{d}"),
        _ => format!("*.{b}.{c}.{d}"),
    }
}

fn entity(random: &mut Rng, index: usize) -> String {
    // Ids in an order that has nothing to do with that of the patterns.
    let id = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    let kind = ["customer", "invoice", "order", "device"][random.usize(..4)];
    match random.u32(..10) {
        0..5 => format!("{kind}.{id:012x}.updated"),
        5..8 => format!("{kind}.{id:012x}.*"),
        _ => format!("{kind}.{id:012x}.**"),
    }
}

/// A name that a pattern matches.
fn filled(random: &mut Rng, pattern: &str) -> String {
    let mut segments = Vec::new();
    for (index, segment) in pattern.split('.').enumerate() {
        let mut word = || match index {
            0 => a(random),
            1 => b(random),
            2 => c(random),
            _ => d(random),
        };
        match segment {
            "*" => segments.push(word()),
            "**" => segments.extend((0..2).map(|_| word())),
            literal => segments.push(literal.to_owned()),
        }
    }
    segments.join(".")
}
