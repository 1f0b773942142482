//! The contract as curl speaks it.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::*;

/// A curl that runs, and what it prints.
struct Curl {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Curl {
    fn start(server: &Harness, path: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new("curl");
        command.args(["-sN", "-i", "--max-time", "60"]).args(arguments).arg(server.url(path));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("curl is there");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { _child: child, lines }
    }

    async fn line(&mut self) -> String {
        self.lines
            .next_line()
            .await
            .expect("readable")
            .expect("another line")
            .trim_end_matches('\r')
            .to_owned()
    }

    /// The status line and all headers, in small letters.
    async fn head(&mut self) -> Vec<String> {
        let mut head = Vec::new();
        loop {
            let line = self.line().await;
            if line.is_empty() {
                return head;
            }
            head.push(line.to_lowercase());
        }
    }

    /// All that is left.
    async fn rest(&mut self) -> String {
        let mut rest = String::new();
        while let Some(line) = self.lines.next_line().await.expect("readable") {
            rest += &line;
        }
        rest
    }
}

const SUBSCRIBE: &str = "/x/blue.catbird.mls.subscribeConvoEvents";

#[tokio::test]
async fn curl_follows_a_room_as_the_contract_says() {
    let server = open().await;
    let cursors = write_messages(&server, 2).await;
    let bearer = format!("Authorization: Bearer {}", token(&server, "alice"));
    let accept = "Accept: text/event-stream; charset=utf-8";
    let path = format!("{SUBSCRIBE}?convoId={ROOM}&cursor={}", cursors[0]);
    let mut curl = Curl::start(&server, &path, &["-H", &bearer, "-H", accept]);
    let head = curl.head().await;
    assert_eq!(head[0], "http/1.1 200 ok");
    for expected in [
        "content-type: text/event-stream",
        "cache-control: no-cache",
        "x-accel-buffering: no",
        &format!("last-event-id: {}", cursors[0].to_lowercase()),
        "stream-epoch: 1",
    ] {
        assert!(head.iter().any(|line| line == expected), "{expected} in {head:?}");
    }
    let retry = curl.line().await;
    let wait: u64 = retry.strip_prefix("retry: ").expect("when to come again").parse().expect("milliseconds");
    assert!((250..=1000).contains(&wait), "{wait}");
    assert_eq!(curl.line().await, format!("id: {}", cursors[0]), "its place until it hears something");
    assert_eq!(curl.line().await, "");
    assert_eq!(curl.line().await, format!("id: {}", cursors[1]));
    assert_eq!(curl.line().await, "event: messageEvent");
    let data = curl.line().await;
    let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
    assert_eq!(
        data,
        json!({
            "cursor": cursors[1],
            "convoId": ROOM,
            "emittedAt": "2025-11-16T12:00:00.123Z",
            "payload": { "messageView": { "id": "1" } },
        })
    );
    assert_eq!(curl.line().await, "");
    let live = write(&server, reaction("1", "bob", "+1", "add")).await;
    assert_eq!(curl.line().await, format!("id: {live}"));
    assert_eq!(curl.line().await, "event: reactionEvent");
    assert!(curl.line().await.starts_with("data: {"));
    assert_eq!(curl.line().await, "");
    write(&server, typing("bob")).await;
    assert_eq!(curl.line().await, "event: typingEvent");
    assert!(curl.line().await.starts_with("data: {"));
    assert_eq!(curl.line().await, "");
    let_pass(&server, 16).await;
    assert_eq!(curl.line().await, ": keep-alive");
}

#[tokio::test]
async fn curl_is_refused_as_the_contract_says() {
    let rooms = Options { retention: DAY, sweep_interval: Duration::from_secs(60), ..Options::default() };
    let server = open_with(rooms.clone()).await;
    let old = write_messages(&server, 2).await;
    let_age(&server, &rooms).await;
    let bearer = |user: &str| format!("Authorization: Bearer {}", token(&server, user));
    let path = format!("{SUBSCRIBE}?convoId={ROOM}&cursor={}", old[0]);
    for (header, status, name) in [
        (None, 401, "AuthRequired"),
        (Some(bearer("mallory")), 403, "NotMember"),
        (Some(bearer("alice")), 410, "CursorCompacted"),
    ] {
        let arguments: Vec<&str> = header.iter().flat_map(|header| ["-H", header]).collect();
        let mut curl = Curl::start(&server, &path, &arguments);
        let head = curl.head().await;
        assert!(head[0].starts_with(&format!("http/1.1 {status} ")), "{head:?}");
        assert!(head.iter().any(|line| line == "content-type: application/json"), "{head:?}");
        let body: Value = serde_json::from_str(&curl.rest().await).expect("JSON");
        assert_eq!(body["error"], json!(name));
        if status == 410 {
            assert!(head.iter().any(|line| line.starts_with("retry-after: ")), "{head:?}");
            for field in ["floor", "oldest", "head", "epoch"] {
                assert!(body["detail"].get(field).is_some(), "{field} in {body}");
            }
        }
    }
    // As the seed says: then without a cursor, and it is told.
    let mut curl = Curl::start(&server, &format!("{SUBSCRIBE}?convoId={ROOM}"), &["-H", &bearer("alice")]);
    assert_eq!(curl.head().await[0], "http/1.1 200 ok");
    assert!(curl.line().await.starts_with("retry: "));
    assert_eq!(curl.line().await, format!("id: {}", old[1]));
    assert_eq!(curl.line().await, "");
    assert_eq!(curl.line().await, "event: infoEvent");
    let data = curl.line().await;
    let info: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
    assert_eq!((&info["reason"], &info["cursor"]), (&json!("compacted"), &json!(old[1])));
    // A browser's way.
    let heard = format!("Last-Event-ID: {}", old[0]);
    let path = format!("{SUBSCRIBE}?convoId={ROOM}&token={}", token(&server, "alice"));
    let mut curl = Curl::start(&server, &path, &["-H", &heard]);
    assert_eq!(curl.head().await[0], "http/1.1 200 ok");
    while curl.line().await != "event: infoEvent" {}
    assert!(curl.line().await.contains(r#""reason":"compacted""#));
}
