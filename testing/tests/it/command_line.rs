//! The binary: how it starts, what it refuses, how it ends.

use std::sync::Arc;

use tidings_embedded::{DirectoryLock, Embedded, Options};
use tidings_engine::log::{Commit, Commits, RowChange, RowTable};
use tidings_engine::{Bus, WallClock};
use tidings_server::Catalog;
use tidings_testing::{Process, binary, http, until};
use tokio::process::Command;

#[tokio::test]
async fn serving_without_dev_says_what_is_missing() {
    let data = tempfile::TempDir::new().expect("a folder");
    let data = data.path().to_str().expect("plain text");
    let exit = Process::run(&["serve", "--listen", "127.0.0.1:0", "--data", data]).await;
    assert_eq!(exit.status.code(), Some(1));
    let commands = ["tidings project create NAME --data", "tidings admin-key --data", "tidings serve --dev"];
    for command in commands {
        assert!(exit.stderr.contains(command), "{}", exit.stderr);
    }
}

#[tokio::test]
async fn dev_refuses_to_listen_on_the_network() {
    for address in ["0.0.0.0:4437", "[::]:4437", "192.168.1.1:4437"] {
        let exit = Process::run(&["serve", "--dev", "--listen", address]).await;
        assert_eq!(exit.status.code(), Some(1), "{address}");
        assert!(exit.stderr.contains("127.0.0.1"), "{}", exit.stderr);
    }
}

#[tokio::test]
async fn an_address_in_use_is_told() {
    let server = Process::serve(&[]).await;
    let address = server.url("").replace("http://", "");
    let exit = Process::run(&["serve", "--dev", "--listen", &address]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains(&format!("cannot listen on {address}")), "{}", exit.stderr);
}

#[tokio::test]
async fn a_signal_drains_and_ends_well_while_a_reader_waits() {
    let server = Process::serve(&[]).await;
    let client = http::Client::new();
    let created = client.put(server.url("/v1/stream/s")).send().await.expect("an answer");
    assert_eq!(created.status(), 201);
    let mut reader =
        client.get(server.url("/v1/stream/s?offset=-1&live=sse")).send().await.expect("an answer");
    reader.chunk().await.expect("readable").expect("a control event");
    assert_eq!(server.terminate().await.code(), Some(0));
    assert_eq!(reader.chunk().await.expect("the answer ended properly"), None);
}

#[tokio::test]
async fn a_signal_that_comes_while_the_server_starts_ends_it_well() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let pipe = folder.path().join("cert.pem");
    let made = Command::new("mkfifo").arg(&pipe).status().await.expect("mkfifo is there");
    assert!(made.success());
    let mut child = Command::new(binary())
        .args(["serve", "--dev", "--listen", "127.0.0.1:0", "--tls-key", "key.pem", "--tls-cert"])
        .arg(&pipe)
        .current_dir(folder.path())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    // Opens when the server reads the other end, and then lets it wait.
    let writer = tokio::task::spawn_blocking(move || std::fs::File::create(pipe));
    let _writer = writer.await.expect("no panic").expect("the pipe opens");
    let id = child.id().expect("it is running").to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().await.expect("kill is there").success());
    assert!(child.wait().await.expect("it ends").success());
}

#[tokio::test]
async fn a_signal_right_after_the_greeting_ends_it_well_and_a_hang_up_without_tls_is_told() {
    for _ in 0..5 {
        assert!(Process::serve(&[]).await.terminate().await.success());
    }
    let server = Process::serve(&[]).await;
    server.signal("HUP").await;
    until("it is told", || server.log().contains("nothing to renew")).await;
    assert!(server.terminate().await.success());
}

#[tokio::test]
async fn a_killed_server_starts_again() {
    let mut server = Process::serve(&[]).await;
    server.kill().await;
    assert!(http::get(server.url("/health")).await.is_err());
    let server = Process::serve(&[]).await.restart().await;
    assert_eq!(http::get(server.url("/health")).await.expect("an answer").status(), 200);
}

#[tokio::test]
async fn a_folder_in_use_is_told_to_a_second_server() {
    let server = Process::serve(&[]).await;
    let data = server.data().to_str().expect("a path in UTF-8");
    let exit = Process::run(&["serve", "--dev", "--listen", "127.0.0.1:0", "--data", data]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("in use by another process"), "{}", exit.stderr);
    let exit = Process::run(&["store", "check", data]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("in use by another process"), "{}", exit.stderr);
}

#[tokio::test]
async fn a_store_can_be_looked_at_copied_while_it_runs_and_served_from_the_copy() {
    let mut server = Process::serve(&[]).await;
    let client = http::Client::new();
    let put = client.put(server.url("/v1/app/stream/orders")).header("content-type", "text/plain");
    assert_eq!(put.body("first\n").send().await.expect("an answer").status(), 201);
    let data = server.data().to_str().expect("a path in UTF-8").to_owned();
    let copy = tempfile::tempdir().expect("a folder");
    let copy = copy.path().join("copy");
    let copy = copy.to_str().expect("a path in UTF-8");
    let exit = Process::run(&["store", "backup", &data, copy]).await;
    assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);
    assert!(exit.stdout.contains("to restore it, serve with --data"), "{}", exit.stdout);
    let exit = Process::run(&["store", "backup", &data, copy]).await;
    assert_eq!(exit.status.code(), Some(1), "a backup does not write over another");
    server.kill().await;
    for folder in [&data, copy] {
        let exit = Process::run(&["store", "check", folder]).await;
        assert_eq!(
            (exit.status.code(), exit.stdout.as_str()),
            (Some(0), "all files can be read\n"),
            "{}",
            exit.stderr
        );
    }
    let exit = Process::run(&["store", "stats", &data]).await;
    assert!(exit.stdout.contains("streams          1\n"), "{}", exit.stdout);
    let exit = Process::run(&["store", "dump", &data, "--stream", "app/orders"]).await;
    assert!(exit.stdout.contains("6 bytes: first\\n"), "{}", exit.stdout);
    let exit = Process::run(&["store", "dump", &data, "--stream", "app/none"]).await;
    assert_eq!(exit.status.code(), Some(1));
    let exit = Process::run(&["store", "truncate", &data]).await;
    assert!(exit.stdout.contains("nothing was changed"), "{}", exit.stdout);
    // Arguments that come later win: this server has the copy.
    let restored = Process::serve(&["--data", copy]).await;
    let answer = client.get(restored.url("/v1/app/stream/orders")).send().await.expect("an answer");
    assert_eq!(answer.text().await.expect("text"), "first\n");
    let post = client
        .post(restored.url("/v1/app/stream/orders"))
        .header("content-type", "text/plain")
        .body("second\n");
    let offset = post.send().await.expect("an answer").headers()["stream-next-offset"]
        .to_str()
        .expect("text")
        .to_owned();
    assert!(offset.starts_with("001"), "the era is raised: {offset}");
}

#[tokio::test]
async fn what_is_wrong_with_the_data_folder_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("holiday.jpg"), "a beach").expect("written");
    let data = folder.path().to_str().expect("a path in UTF-8");
    let exit = Process::run(&["serve", "--dev", "--listen", "127.0.0.1:0", "--data", data]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("holiday.jpg") && exit.stderr.contains("--data"), "{}", exit.stderr);
    let exit = Process::run(&["store", "check", "/no/such/folder"]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("is not a store's folder"), "{}", exit.stderr);
}

#[tokio::test]
async fn cold_rows_are_counted_and_dumped_with_escapes() {
    let data = tempfile::TempDir::new().expect("a folder");
    let path = data.path().to_str().expect("plain text");
    let lock = DirectoryLock::take(data.path()).expect("free");
    let clock = Arc::new(WallClock);
    let store = Embedded::<Catalog>::open(Arc::new(lock.folder()), Options::default(), Bus::new(), clock);
    let store = store.expect("an empty folder");
    let row = |table, key: &'static [u8], value: &'static [u8]| RowChange::Put {
        table: RowTable(table),
        key: key.into(),
        value: value.into(),
    };
    for (n, row) in
        [row(3, b"b\0", b"in a file"), row(200, b"", b""), row(3, b"a", b"line\n")].into_iter().enumerate()
    {
        let commit = Commit::new().with_row(row);
        Commits::<Catalog>::commit(&store, commit).await.expect("made");
        if n == 0 {
            store.flush().expect("written");
        }
    }
    drop((store, lock));
    let exit = Process::run(&["store", "dump", path, "--rows"]).await;
    let expected = "table 3 a: 5 bytes: line\\n\ntable 3 b\\x00: 9 bytes: in a file\ntable 200 : 0 bytes: \n";
    assert_eq!((exit.status.code(), exit.stdout.as_str()), (Some(0), expected), "{}", exit.stderr);
    let exit = Process::run(&["store", "stats", path]).await;
    assert!(exit.stdout.contains("rows             1 files ("), "{}", exit.stdout);
    let exit = Process::run(&["store", "dump", path, "--rows", "--stream", "app/orders"]).await;
    assert_eq!(exit.status.code(), Some(2), "it is one or the other");
}
