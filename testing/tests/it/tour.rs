//! The README's tour works as it is written.

use std::path::Path;
use std::process::Stdio;

use tidings_testing::Process;
use tokio::process::Command;

/// The address that the README uses.
const README_ADDRESS: &str = "http://127.0.0.1:4437";

#[tokio::test]
async fn every_command_of_the_readme_tour_answers_as_the_readme_says() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).expect("there is a README");
    let steps = steps(&readme);
    assert!(steps.len() >= 6, "the tour has {} steps", steps.len());
    let server = Process::serve(&[]).await;
    for (command, expected) in steps {
        let script = command.replace(README_ADDRESS, &server.url(""));
        let output = Command::new("bash").args(["-euc", &script]).stderr(Stdio::inherit()).output().await;
        let output = String::from_utf8(output.expect("bash is there").stdout).expect("text");
        for line in &expected {
            assert!(
                output.lines().any(|printed| printed.trim_end() == line),
                "{command}\nprinted:\n{output}\nnot: {line}"
            );
        }
        assert!(!expected.is_empty(), "a step says what to expect: {command}");
    }
}

/// Commands of ```` ```console ```` blocks: a line after `$ `, with those it goes on in, then lines of its output.
/// A line `…` stands for output that differs from run to run.
fn steps(readme: &str) -> Vec<(String, Vec<String>)> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    let mut inside = false;
    for line in readme.lines() {
        match line {
            "```console" => inside = true,
            "```" => inside = false,
            _ if !inside || line == "…" => {}
            _ => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push((command.to_owned(), Vec::new())),
                (None, Some((command, _))) if command.ends_with('\\') => {
                    *command = format!("{command}\n{line}")
                }
                (None, Some((_, expected))) => expected.push(line.trim_end().to_owned()),
                (None, None) => panic!("output before the first command: {line}"),
            },
        }
    }
    steps
}
