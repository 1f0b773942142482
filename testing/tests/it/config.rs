//! Configuration: where a value comes from, what is refused and how it is told.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tidings_testing::{Launch, Process, http};

/// A folder with a configuration in it.
fn with_file(text: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tidings.toml");
    std::fs::write(&path, text).expect("written");
    (folder, text_of(&path))
}

fn text_of(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// The folder of data of a server started so.
async fn data_of(arguments: &[&str], variables: &[(&str, &str)]) -> PathBuf {
    let always = ["--dev", "--listen", "127.0.0.1:0"];
    let mut server = Process::launch(Launch::new(&[&always, arguments].concat(), variables)).await;
    let line = server.line().await;
    let folder = server.data().join(line.strip_prefix("data: ").expect("the second line tells it"));
    assert!(folder.join("MANIFEST").is_file(), "the data really lies in {}", folder.display());
    PathBuf::from(line.strip_prefix("data: ").expect("the second line tells it"))
}

#[tokio::test]
async fn flags_win_over_variables_these_over_the_file_and_the_file_over_defaults() {
    let (_folder, file) = with_file("data = 'from-file'");
    let named = ["--config", &file];
    let variable = [("TIDINGS_DATA", "from-variable")];
    assert_eq!(data_of(&[], &[]).await, Path::new("./tidings-data"));
    assert_eq!(data_of(&named, &[]).await, Path::new("from-file"));
    assert_eq!(data_of(&[], &[("TIDINGS_CONFIG", &file)]).await, Path::new("from-file"));
    assert_eq!(data_of(&named, &variable).await, Path::new("from-variable"));
    let flag = ["--config", &file, "--data", "from-flag"];
    assert_eq!(data_of(&flag, &variable).await, Path::new("from-flag"));
}

#[tokio::test]
async fn what_is_set_of_streams_is_so() {
    let (_folder, file) = with_file("listen = '127.0.0.1:0'\ndev = true\n[streams]\nmax_append_bytes = 4");
    for (variables, accepted) in [(&[][..], 4), (&[("TIDINGS_STREAMS_MAX_APPEND_BYTES", "6")][..], 6)] {
        let server = Process::launch(Launch::new(&["--config", &file], variables)).await;
        let client = http::Client::new();
        let put = |bytes: usize| {
            let put =
                client.put(server.url(&format!("/v1/stream/{bytes}"))).header("content-type", "text/plain");
            put.body("x".repeat(bytes)).send()
        };
        assert_eq!(put(accepted).await.expect("an answer").status(), 201);
        assert_eq!(put(accepted + 1).await.expect("an answer").status(), 413);
    }
}

#[tokio::test]
async fn a_commit_window_delays_and_loses_nothing() {
    let variables = [("TIDINGS_STORE_COMMIT_WINDOW_US", "2000"), ("TIDINGS_DEV", "true")];
    let launch = Launch::new(&["--listen", "127.0.0.1:0"], &variables);
    let server = Process::launch(launch).await;
    let client = http::Client::new();
    let put = client.put(server.url("/v1/stream/s")).header("content-type", "text/plain").body("kept");
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let server = server.restart().await;
    let answer = client.get(server.url("/v1/stream/s")).send().await.expect("an answer");
    assert_eq!(answer.text().await.expect("text"), "kept");
}

#[tokio::test]
async fn an_unknown_key_is_told_with_file_line_and_key_by_serve_and_by_check_config() {
    let (_folder, file) = with_file("# mine\n\n[streams]\nsse_max_minutes = 1\n");
    for command in ["serve", "check-config"] {
        let exit = Process::run(&[command, "--config", &file]).await;
        assert_eq!(exit.status.code(), Some(1), "{command}");
        let told = format!("tidings: {file}:4: streams.sse_max_minutes is not a key; known in [streams]:");
        assert!(exit.stderr.starts_with(&told), "{}", exit.stderr);
    }
}

#[tokio::test]
async fn an_unknown_variable_is_a_warning_and_a_service_of_kubernetes_is_none() {
    let unknown = ("TIDINGS_LISTN", "127.0.0.1:0");
    let service = [
        ("TIDINGS_PORT", "tcp://10.0.171.239:4437"),
        ("TIDINGS_PORT_4437_TCP_ADDR", "10.0.171.239"),
        ("TIDINGS_SERVICE_HOST", "10.0.171.239"),
    ];
    let (_folder, file) = with_file("dev = true");
    for (variables, warned) in [(&[unknown][..], true), (&service[..], false)] {
        let exit = Process::run_with(&["check-config", "--config", &file], variables).await;
        assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);
        assert_eq!(exit.stderr.contains("TIDINGS_"), warned, "{}", exit.stderr);
        let server = Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0"], variables)).await;
        assert_eq!(tidings_testing::http::get(server.url("/health")).await.expect("an answer").status(), 200);
        let log = server.log();
        assert_eq!(log.contains("TIDINGS_"), warned, "{log}");
        assert_eq!(log.contains("TIDINGS_LISTN is not a variable of tidings"), warned, "{log}");
    }
    let wrong = [("TIDINGS_LISTEN", "tcp://10.0.171.239:4437")];
    let exit = Process::run_with(&["check-config", "--config", &file], &wrong).await;
    assert_eq!(exit.status.code(), Some(1), "a known variable must be right");
    assert!(exit.stderr.contains("TIDINGS_LISTEN must be an address and a port"), "{}", exit.stderr);
}

#[tokio::test]
async fn the_default_configuration_is_printed_and_is_good() {
    let printed = Process::run(&["default-config"]).await;
    assert_eq!(printed.status.code(), Some(0));
    let (_folder, file) = with_file(&printed.stdout);
    let exit = Process::run(&["check-config", "--config", &file]).await;
    assert_eq!((exit.status.code(), exit.stdout), (Some(0), format!("{file} is good\n")), "{}", exit.stderr);
    assert_eq!(data_of(&["--config", &file], &[]).await, Path::new("./tidings-data"));
}

#[tokio::test]
async fn a_secret_that_is_wrong_is_not_quoted() {
    let (_folder, file) = with_file("[auth]\nadmin_key = 'hunter2'\n");
    let exit = Process::run(&["check-config", "--config", &file]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert_eq!(
        exit.stderr,
        format!("tidings: {file}:2: auth.admin_key is not good: a key is at least 16 bytes\n")
    );
    let variables = [("TIDINGS_AUTH_ADMIN_KEY", "hunter2")];
    let exit = Process::run_with(&["serve", "--dev"], &variables).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(!exit.stderr.contains("hunter2"), "{}", exit.stderr);
}

#[tokio::test]
async fn dev_by_variable_or_file_refuses_the_network_too() {
    let (_folder, file) = with_file("dev = true\nlisten = '0.0.0.0:4437'");
    for exit in [
        Process::run(&["serve", "--config", &file]).await,
        Process::run(&["check-config", "--config", &file]).await,
        Process::run_with(&["serve", "--listen", "0.0.0.0:4437"], &[("TIDINGS_DEV", "true")]).await,
    ] {
        assert_eq!(exit.status.code(), Some(1));
        assert!(exit.stderr.contains("use --listen 127.0.0.1:4437"), "{}", exit.stderr);
    }
}

#[tokio::test]
async fn a_certificate_that_cannot_be_read_is_told_by_check_config() {
    let (_folder, file) = with_file("[tls]\ncert = '/no/such/cert.pem'\nkey = '/no/such/key.pem'");
    let exit = Process::run(&["check-config", "--config", &file]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("cannot read /no/such/cert.pem"), "{}", exit.stderr);
    let (_folder, file) = with_file("[tls]\n\ncert = '/no/such/cert.pem'");
    let exit = Process::run(&["check-config", "--config", &file]).await;
    assert!(exit.stderr.contains(&format!("{file}:3: tls.cert needs tls.key")), "{}", exit.stderr);
}

#[tokio::test]
async fn a_filter_of_logs_that_cannot_be_read_is_told() {
    let exit = Process::run_with(&["serve", "--dev"], &[("TIDINGS_LOG", "tidings=loud=")]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("--log (TIDINGS_LOG) is a level"), "{}", exit.stderr);
}

#[tokio::test]
async fn the_greeting_is_plain_in_a_pipe_and_its_commands_work() {
    let mut server = Process::serve(&[]).await;
    let mut lines = Vec::new();
    for _ in 0..5 {
        lines.push(server.line().await);
    }
    assert!(lines.iter().all(|line| !line.contains('\x1b')), "{lines:?}");
    assert_eq!(lines[1], "try:");
    for (line, status) in [(&lines[2], "201"), (&lines[3], "204")] {
        let output = tokio::process::Command::new("bash").args(["-c", line]).output().await.expect("bash");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains(status), "{line}: {printed}");
    }
    let follow = format!("{} --max-time 1", lines[4]);
    let output = tokio::process::Command::new("bash").args(["-c", &follow]).output().await.expect("bash");
    assert!(String::from_utf8_lossy(&output.stdout).contains("data:good tidings"), "{output:?}");
}
