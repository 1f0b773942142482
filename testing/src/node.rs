//! Runs Node programs: the official suite and the official client.

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
