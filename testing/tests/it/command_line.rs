//! The binary: how it starts, what it refuses, how it ends.

use tidings_testing::Process;

#[tokio::test]
async fn serving_without_dev_says_what_is_missing() {
    let exit = Process::run(&["serve"]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("tidings serve --dev"), "{}", exit.stderr);
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
    let client = reqwest::Client::new();
    let created = client.put(server.url("/v1/stream/s")).send().await.expect("an answer");
    assert_eq!(created.status(), 201);
    let mut reader =
        client.get(server.url("/v1/stream/s?offset=-1&live=sse")).send().await.expect("an answer");
    reader.chunk().await.expect("readable").expect("a control event");
    assert_eq!(server.terminate().await.code(), Some(0));
    assert_eq!(reader.chunk().await.expect("the answer ended properly"), None);
}

#[tokio::test]
async fn a_killed_server_starts_again() {
    let mut server = Process::serve(&[]).await;
    server.kill().await;
    assert!(reqwest::get(server.url("/health")).await.is_err());
    let server = Process::serve(&[]).await.restart().await;
    assert_eq!(reqwest::get(server.url("/health")).await.expect("an answer").status(), 200);
}
