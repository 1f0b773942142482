//! `examples/entities-rxdb`: the real RxDB, kept fresh by a real server.

use std::path::Path;
use std::process::Stdio;

use tidings_testing::Process;
use tokio::process::Command;

#[tokio::test]
async fn replicas_of_rxdb_pull_what_changed_when_they_are_told_and_only_then() {
    let server = Process::serve(&[]).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/entities-rxdb");
    assert!(folder.join("node_modules/rxdb").exists(), "RxDB is not installed; `make test` installs it");
    let output = Command::new("node")
        .arg("check.mjs")
        .current_dir(&folder)
        .env("TIDINGS_URL", server.url(""))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("node is there");
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{errors}");
    let told: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("ok: ")).collect();
    let expected = [
        "a replica has what was there before",
        "an update is pulled when it is told",
        "what is new comes and what is deleted goes",
        "a hundred updates end with the last",
        "nothing is pulled while nothing changes",
    ];
    assert_eq!(told, expected);
}
