//! Checks coverage pages, which list requirements and the tests that show them.
//!
//! A row is `| 000.1 | requirement | shown by |`. The last cell is `open`, `not applicable: ` with a reason,
//! `measured: ` with the benchmark and its result, or names of tests in backticks. A named test must have run
//! and passed.

use std::collections::BTreeSet;

/// Result of checking one page.
#[derive(Debug, Default)]
pub struct Page {
    /// Rows with a test.
    pub shown: usize,
    /// Rows without a test.
    pub open: usize,
    /// Rows that a benchmark measures.
    pub measured: usize,
    /// Rows that do not apply.
    pub not_applicable: usize,
    /// Errors in the page.
    pub faults: Vec<String>,
}

/// Checks the page with a number, such as `000`, against the names of the tests that passed.
pub fn check(seed: &str, text: &str, passed: &BTreeSet<String>) -> Page {
    let mut page = Page::default();
    let mut number = 0;
    for line in text.lines().filter(|line| line.starts_with(&format!("| {seed}."))) {
        number += 1;
        let id = format!("{seed}.{number}");
        match &cells(line)[..] {
            [row, requirement, shown_by] if *row == id && !requirement.is_empty() => {
                page.count(&id, shown_by, passed);
            }
            _ => page.faults.push(format!("expected row {id} with three cells, found: {line}")),
        }
    }
    if number == 0 {
        page.faults.push(format!("page {seed} has no rows"));
    }
    page
}

/// Names of the tests that passed, from the output of `cargo test`.
pub fn passed(log: &str) -> BTreeSet<String> {
    let ended = |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... ok")?.to_owned());
    log.lines().filter_map(ended).collect()
}

impl Page {
    fn count(&mut self, id: &str, shown_by: &str, passed: &BTreeSet<String>) {
        if shown_by == "open" {
            self.open += 1;
        } else if shown_by.strip_prefix("not applicable: ").is_some_and(|why| !why.is_empty()) {
            self.not_applicable += 1;
        } else if let Some(measured) = shown_by.strip_prefix("measured: ") {
            self.measured += 1;
            if !measured.starts_with("`make bench-") {
                self.faults.push(format!("{id}: not a benchmark: {shown_by}"));
            }
        } else {
            self.shown += 1;
            for name in shown_by.split(", ") {
                match name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) {
                    Some(name) if passed.contains(name) => {}
                    Some(name) => self.faults.push(format!("{id}: no test `{name}` ran and passed")),
                    None => self.faults.push(format!("{id}: neither open nor tests: {shown_by}")),
                }
            }
        }
    }
}

/// Splits a table row into cells. A bar inside a cell is written `\|`.
fn cells(line: &str) -> Vec<&str> {
    let mut cells = Vec::new();
    let mut start = None;
    for (at, _) in line.match_indices('|').filter(|&(at, _)| at == 0 || line.as_bytes()[at - 1] != b'\\') {
        if let Some(start) = start {
            cells.push(line[start..at].trim());
        }
        start = Some(at + 1);
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "running 2 tests\ntest append::one ... ok\ntest append::two ... FAILED\n";

    #[test]
    fn a_page_counts_its_rows() {
        let page = "| # | requirement | shown by |\n|---|---|---|\n| 000.1 | a \\| b | `append::one` |\n\
                    | 000.2 | c | open |\n| 000.3 | d | not applicable: no cloud |\n\
                    | 000.4 | e | measured: `make bench-store`, part `x`: 3 ms, met |\n";
        let page = check("000", page, &passed(LOG));
        assert_eq!((page.shown, page.open, page.measured, page.not_applicable), (1, 1, 1, 1));
        assert!(page.faults.is_empty(), "{:?}", page.faults);
    }

    #[test]
    fn a_test_that_did_not_pass_shows_nothing() {
        for bad in [
            "measured: 3 ms",
            "`append::two`",
            "`append::three`",
            "`append::one`, `append::three`",
            "append::one",
            "",
        ] {
            let page = check("000", &format!("| 000.1 | a | {bad} |"), &passed(LOG));
            assert_eq!(page.faults.len(), 1, "{bad}");
        }
    }

    #[test]
    fn rows_are_numbered_without_gaps_and_have_three_cells() {
        for bad in ["", "| 000.2 | a | open |", "| 000.1 | open |", "| 000.1 |  | open |"] {
            assert_eq!(check("000", bad, &BTreeSet::new()).faults.len(), 1, "{bad:?}");
        }
    }
}
