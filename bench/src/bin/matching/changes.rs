//! Changes beside a million patterns.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tidings_bench::{Times, grouped, report};
use tidings_engine::matching::Matcher;
use tidings_model::Pattern;

use crate::processor_time;
use crate::workload::{Workload, parsed};

/// Patterns that are there before.
const BASE: usize = 1_000_000;
/// Time between two compactions.
const PAUSE: Duration = Duration::from_millis(10);
/// Changes of each kind.
const CHANGES: usize = 100_000;

pub fn run() {
    println!("#### Changes\n");
    println!(
        "{} patterns are there; {} are added, as many removed, three times as many removed and added again, one after \
         the other, while another thread compacts.\n",
        grouped(BASE),
        grouped(CHANGES)
    );
    let texts = Workload::Entities.patterns(BASE + CHANGES);
    let (base, added) = texts.split_at(BASE);
    let matcher = Matcher::from_iter(base.iter().map(|text| parsed(text)).zip(0u64..));
    let patterns: Vec<Pattern> = added.iter().map(|text| parsed(text)).collect();
    let removed: Vec<Pattern> = base[..CHANGES].iter().map(|text| parsed(text)).collect();

    println!("| what | measured | goal | |");
    println!("|---|---|---|---|");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let compactor = scope.spawn(|| {
            let mut times = Times::default();
            while !is_over.load(Relaxed) {
                if matcher.compact_due() {
                    times.time(|| matcher.compact());
                }
                std::thread::sleep(PAUSE);
            }
            times
        });
        let keys = BASE as u64..;
        measured("insert", patterns.iter().zip(keys), |pattern, key| matcher.insert(pattern, key));
        measured("remove", removed.iter().zip(0..), |pattern, key| matcher.remove(pattern, key));
        let again = base[CHANGES..4 * CHANGES].iter().map(|text| parsed(text)).collect::<Vec<_>>();
        let again = again.iter().zip(CHANGES as u64..);
        measured("remove and insert", again, |pattern, key| {
            matcher.remove(pattern, key) && matcher.insert(pattern, key)
        });
        is_over.store(true, Relaxed);
        let mut times = compactor.join().expect("compaction ends");
        let (count, longest) = (times.count(), times.quantile(1.0) / 1e6);
        println!("| compactions meanwhile | {count}, the longest {longest:.2} s |  |  |");
    });
    println!();
}

fn measured<'a>(
    what: &str,
    pairs: impl Iterator<Item = (&'a Pattern, u64)>,
    mut change: impl FnMut(&Pattern, u64) -> bool,
) {
    let mut times = Times::default();
    let before = processor_time();
    for (pattern, key) in pairs {
        assert!(times.time(|| change(pattern, key)), "a change of the benchmark changes something");
    }
    let processor = (processor_time() - before).as_secs_f64() * 1e6 / times.count() as f64;
    let [half, most, all] = [0.5, 0.99, 1.0].map(|share| times.quantile(share));
    let text = format!("p50 {half:.1} us, p99 {most:.1} us, longest {all:.0} us; CPU {processor:.1} us");
    report(what, &text, "p99 <= 50 us", most <= 50.0);
}
