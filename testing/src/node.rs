//! Runs Node programs: the official suite, the official client, and the tests of the TypeScript client.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokio::process::Command;

/// Results of a vitest run.
#[derive(Debug)]
pub struct Report {
    /// Number of tests that passed.
    pub passed: u64,
    /// Number of tests that were skipped.
    pub skipped: u64,
    /// Full names of tests that failed, with the first line of the reason.
    pub failed: Vec<String>,
}

/// Runs a test file of `testing/conformance` against a server.
///
/// # Panics
/// If vitest is not installed (`make test` installs it) or cannot run the file.
pub async fn vitest(file: &str, server: &str, environment: &[(&str, &str)]) -> Report {
    let folder = conformance();
    let runner = folder.join("node_modules/vitest/vitest.mjs");
    assert!(runner.exists(), "vitest is not installed; `make test` installs it");
    let report = tempfile::NamedTempFile::new().expect("a file for the report");
    let output = Command::new("node")
        .arg(&runner)
        .args(["run", file, "--reporter=json", "--outputFile"])
        .arg(report.path())
        .current_dir(&folder)
        .env("TIDINGS_URL", server)
        .envs(environment.iter().copied())
        .output()
        .await
        .expect("node is there");
    let text = std::fs::read_to_string(report.path()).expect("the report is readable");
    let json: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("no report ({error}): {}", String::from_utf8_lossy(&output.stderr)));
    Report::from(&json)
}

/// Runs parts of the tests of `clients/typescript` against a server binary.
///
/// # Panics
/// If the client's packages are not installed (`make test` installs them).
pub async fn client_tests(parts: &[&str], server: &Path) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/typescript");
    assert!(
        folder.join("node_modules/esbuild").exists(),
        "the client's packages are not installed; `make test` installs them"
    );
    let output = Command::new("node")
        .arg("scripts/test.mjs")
        .args(parts)
        .current_dir(&folder)
        .env("TIDINGS_BINARY", server)
        .kill_on_drop(true)
        .output()
        .await
        .expect("node is there");
    let report = Report::from_tap(&String::from_utf8_lossy(&output.stdout));
    let silent = report.failed.is_empty() && !output.status.success();
    assert!(!silent, "the tests did not end well: {}", String::from_utf8_lossy(&output.stderr));
    report
}

impl Report {
    /// Reads what Node's test runner prints: a line for each test, and lines of details after one that failed.
    fn from_tap(text: &str) -> Self {
        let mut report = Self { passed: 0, skipped: 0, failed: Vec::new() };
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            if line.starts_with("ok ") {
                let skipped = line.contains("# SKIP") || line.contains("# TODO");
                *if skipped { &mut report.skipped } else { &mut report.passed } += 1;
            } else if line.starts_with("not ok ") {
                let details: Vec<&str> =
                    std::iter::from_fn(|| lines.next_if(|line| line.starts_with("  "))).collect();
                report.failed.push([&[line], &details[..]].concat().join("\n"));
            }
        }
        report
    }
}

impl From<&Value> for Report {
    fn from(json: &Value) -> Self {
        let count = |name: &str| json[name].as_u64().unwrap_or_default();
        let tests = json["testResults"].as_array().into_iter().flatten();
        let tests = tests.flat_map(|file| file["assertionResults"].as_array().into_iter().flatten());
        let failed = tests.filter(|test| test["status"] == "failed").map(|test| {
            let why =
                test["failureMessages"][0].as_str().unwrap_or_default().lines().next().unwrap_or_default();
            format!("{}: {why}", test["fullName"].as_str().unwrap_or("a test"))
        });
        Self { passed: count("numPassedTests"), skipped: count("numPendingTests"), failed: failed.collect() }
    }
}

fn conformance() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}
