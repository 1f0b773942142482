//! A store whose files were lost, shortened or replaced is refused by name, and a server whose folder was replaced stops.

use std::path::Path;
use std::time::Duration;

use tidings_testing::http::{Client, StatusCode};
use tidings_testing::{Exit, Launch, Process, eventually};

const RECORD: usize = 4 << 20;
/// More than two files of the log have, so that the third is in use, and has more than is left when it is shortened.
const RECORDS: u8 = 36;

/// Runs a command that must end by itself.
async fn run(what: &str, arguments: &[&str]) -> Exit {
    let ended = tokio::time::timeout(Duration::from_secs(60), Process::run(arguments)).await;
    ended.unwrap_or_else(|_| panic!("{what}: {arguments:?} goes on and on"))
}

async fn fill(server: &Process) {
    let client = Client::new();
    let url = server.url("/v1/stream/s");
    let created = client.put(&url).header("content-type", "application/octet-stream").send().await;
    assert_eq!(created.expect("an answer").status(), StatusCode::CREATED);
    for n in 0..RECORDS {
        let append = client.post(&url).header("content-type", "application/octet-stream");
        let appended = append.body(vec![n; RECORD]).send().await.expect("an answer");
        assert!(appended.status().is_success(), "{}", appended.status());
    }
}

/// Neither the server nor `store check` accepts a folder, and both name the file.
async fn is_refused(data: &Path, name: &str, what: &str) {
    let folder = data.to_str().expect("a path in UTF-8");
    let served = run(what, &["serve", "--dev", "--listen", "127.0.0.1:0", "--data", folder]).await;
    assert_eq!(served.status.code(), Some(1), "{what}: {served:?}");
    assert!(served.stderr.contains(name), "{what}: {served:?}");
    assert!(served.stderr.contains("tidings store truncate"), "{what}: {served:?}");
    let checked = run(what, &["store", "check", folder]).await;
    assert_eq!(checked.status.code(), Some(1), "{what}: {checked:?}");
    assert!(checked.stdout.contains(name), "{what}: {checked:?}");
}

/// Damages the file of the log that was in use in several ways, each time putting it back, and gives the loss up in the
/// end.
async fn damage_the_log(data: &Path) {
    let (wal, used) = (data.join("wal"), data.join("wal/000003"));
    let (aside, folder_aside) = (data.join("aside"), data.join("wal-aside"));
    std::fs::rename(&used, &aside).expect("moved");
    is_refused(data, "wal/000003", "removed").await;
    std::fs::copy(wal.join("000002"), &used).expect("copied");
    is_refused(data, "wal/000003", "replaced by a copy of another").await;
    std::fs::rename(&wal, &folder_aside).expect("moved");
    std::fs::create_dir(&wal).expect("made");
    is_refused(data, "is missing", "all removed").await;
    std::fs::remove_dir(&wal).expect("empty");
    std::fs::rename(&folder_aside, &wal).expect("moved back");
    std::fs::copy(&aside, &used).expect("put back");
    // With all put back, nothing is wrong.
    let folder = data.to_str().expect("a path in UTF-8");
    let checked = run("check", &["store", "check", folder]).await;
    assert!(checked.status.success(), "{checked:?}");
    let file = std::fs::File::options().write(true).open(&used).expect("there");
    file.set_len(20 << 20).expect("shortened");
    is_refused(data, "wal/000003", "shortened").await;
    let cut = run("truncate", &["store", "truncate", folder]).await;
    assert!(cut.status.success(), "{cut:?}");
    let checked = run("check", &["store", "check", folder]).await;
    assert!(checked.status.success(), "{checked:?}");
}

#[tokio::test]
async fn a_damaged_log_of_a_stopped_server_is_refused_by_name() {
    let server = Process::serve(&[]).await;
    fill(&server).await;
    let data = server.stop().await;
    // Zeros at the end of what was written cannot be told from a crash, but the server was stopped in order.
    let used = data.path().join("wal/000003");
    let whole = std::fs::read(&used).expect("there");
    let end = whole.iter().rposition(|&byte| byte != 0).expect("written to");
    let mut zeroed = whole.clone();
    zeroed[end / 2 / 4096 * 4096..].fill(0);
    std::fs::write(&used, &zeroed).expect("written");
    is_refused(data.path(), "wal/000003", "zeroed in its second half").await;
    std::fs::write(&used, &whole).expect("written");
    damage_the_log(data.path()).await;
}

#[tokio::test]
async fn a_damaged_log_of_a_killed_server_is_refused_by_name() {
    let mut server = Process::serve(&[]).await;
    fill(&server).await;
    server.kill().await;
    damage_the_log(server.data()).await;
    let server = server.restart().await;
    let read = tidings_testing::http::get(server.url("/v1/stream/s?offset=-1")).await.expect("an answer");
    assert_eq!(read.status(), StatusCode::OK, "what is left is served");
}

#[tokio::test]
async fn a_server_whose_folder_was_replaced_stops_and_the_next_store_is_whole() {
    let parent = tempfile::tempdir().expect("a folder");
    let folder = parent.path().join("data");
    let data = folder.to_str().expect("a path in UTF-8");
    let launch = ["--dev", "--listen", "127.0.0.1:0", "--data", data];
    let launch = Launch::new(&launch, &[]);
    let first = Process::launch(launch.clone()).await;
    let client = Client::new();
    let put = async |server: &Process, id: &str| {
        client.put(server.url(&format!("/v1/stream/{id}"))).body("x").send().await
    };
    assert_eq!(put(&first, "a").await.expect("an answer").status(), StatusCode::CREATED);
    // The server may be making its next file in it at this moment.
    eventually("the folder is removed", async || std::fs::remove_dir_all(&folder).is_ok()).await;
    let second = Process::launch(launch).await;
    assert_eq!(put(&second, "b").await.expect("an answer").status(), StatusCode::CREATED);
    let answer = put(&first, "c").await;
    assert!(!answer.is_ok_and(|answer| answer.status().is_success()), "nobody would find it again");
    eventually("the first server has ended", async || client.get(first.url("/health")).send().await.is_err())
        .await;
    assert!(first.log().contains("was removed or replaced"), "{}", first.log());
    for n in 0..20 {
        assert_eq!(put(&second, &format!("more{n}")).await.expect("an answer").status(), StatusCode::CREATED);
    }
    let _ = second.stop().await;
    let checked = run("check", &["store", "check", data]).await;
    assert!(checked.status.success(), "{checked:?}");
    let dumped = run("dump", &["store", "dump", data]).await;
    assert!(!dumped.stdout.contains("_default/a") && dumped.stdout.contains("_default/b"), "{dumped:?}");
}
