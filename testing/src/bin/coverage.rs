//! Checks the coverage pages against the output of `cargo test`: `coverage LOG PAGES`.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use tidings_testing::coverage::{check, passed};

const SEEDS: [&str; 5] = ["000", "001", "002", "003", "004"];

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, log, pages] = &arguments[..] else { return Err("usage: coverage LOG PAGES".into()) };
    let passed = passed(&std::fs::read_to_string(log)?);
    let mut faults = 0;
    for seed in SEEDS {
        let page =
            check(seed, &std::fs::read_to_string(Path::new(pages).join(format!("{seed}.md")))?, &passed);
        println!(
            "coverage {seed}: {} shown, {} measured, {} open, {} not applicable",
            page.shown, page.measured, page.open, page.not_applicable
        );
        for fault in &page.faults {
            println!("  {fault}");
        }
        faults += page.faults.len();
    }
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
