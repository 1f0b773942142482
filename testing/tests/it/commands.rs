//! The commands beside `serve`, on the streams of a running server; and what the help of all says.

use std::process::Stdio;

use tidings_testing::{Exit, Process, binary, http};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::Command;

/// Runs `tidings stream` against a server. It must end well; what it prints is returned.
async fn stream(server: &Process, arguments: &[&str]) -> String {
    let exit = try_stream(server, arguments).await;
    assert_eq!(exit.status.code(), Some(0), "{arguments:?}: {}", exit.stderr);
    exit.stdout
}

async fn try_stream(server: &Process, arguments: &[&str]) -> Exit {
    Process::run(&[&["stream", "--server", &server.url("")], arguments].concat()).await
}

#[tokio::test]
async fn a_stream_is_created_appended_to_read_and_deleted_by_commands() {
    let server = Process::serve(&[]).await;
    let create = ["create", "team/50% off", "--content-type", "application/json", "--ttl", "1h"];
    assert_eq!(stream(&server, &create).await, "created team/50% off\n");
    assert_eq!(stream(&server, &create).await, "was there: team/50% off\n");
    let offset = stream(&server, &["append", "team/50% off", r#"[{"id":1},{"id": 2}]"#]).await;
    stream(&server, &["append", "team/50% off", r#"{"id":3}"#]).await;
    let read = stream(&server, &["read", "team/50% off"]).await;
    assert_eq!(read, "{\"id\":1}\n{\"id\": 2}\n{\"id\":3}\n");
    let read = stream(&server, &["read", "team/50% off", "--offset", offset.trim()]).await;
    assert_eq!(read, "{\"id\":3}\n");
    let head = http::Client::new().head(server.url("/v1/stream/team/50%25%20off")).send().await;
    assert_eq!(head.expect("an answer").headers()["stream-ttl"], "3600");
    assert_eq!(stream(&server, &["delete", "team/50% off"]).await, "deleted team/50% off\n");
    let exit = try_stream(&server, &["read", "team/50% off"]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("refuses: ") && exit.stderr.contains("404"), "{}", exit.stderr);
}

#[tokio::test]
async fn what_comes_on_standard_input_is_appended_and_bytes_are_printed_as_they_are() {
    let server = Process::serve(&[]).await;
    stream(&server, &["create", "s", "--project", "app"]).await;
    let mut child = Command::new(binary())
        .args(["stream", "append", "s", "--project", "app", "--server", &server.url("")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut input = child.stdin.take().expect("piped");
    let bytes: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    input.write_all(&bytes).await.expect("written");
    drop(input);
    assert!(child.wait().await.expect("it ends").success());
    let read = Command::new(binary())
        .args(["stream", "read", "s", "--project", "app", "--server", &server.url("")])
        .output()
        .await
        .expect("the binary starts");
    assert!(read.stdout == bytes, "{} bytes of {}", read.stdout.len(), bytes.len());
}

#[tokio::test]
async fn following_prints_what_comes_and_ends_when_the_stream_is_closed() {
    let server = Process::serve(&[]).await;
    stream(&server, &["create", "s", "--content-type", "text/plain"]).await;
    stream(&server, &["append", "s", "first\n"]).await;
    let mut child = Command::new(binary())
        .args(["stream", "read", "s", "--follow", "--server", &server.url("")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).await.expect("readable");
    assert_eq!(line, "first\n");
    stream(&server, &["append", "s", "second\n"]).await;
    let close = http::Client::new().post(server.url("/v1/stream/s")).header("stream-closed", "true");
    assert_eq!(close.send().await.expect("an answer").status(), 204);
    let mut rest = String::new();
    output.read_to_string(&mut rest).await.expect("readable");
    assert_eq!(rest, "second\n");
    assert!(child.wait().await.expect("it ends").success());
}

#[tokio::test]
async fn all_pages_of_the_list_are_printed() {
    let pages = [
        r#"{"streams":[{"id":"a b","contentType":"text/plain","closed":true}],"nextCursor":"c/1"}"#,
        r#"{"streams":[{"id":"z","contentType":"application/json","closed":false}]}"#,
    ];
    for (form, printed) in [
        (&[][..], "a b  text/plain  closed\nz  application/json\n".to_owned()),
        (
            &["--json"],
            pages.map(|page| page[12..].split_once(']').expect("a list").0.to_owned() + "\n").concat(),
        ),
    ] {
        let (url, asked) = answering(pages).await;
        let arguments = ["stream", "list", "--prefix", "a ", "--project", "app", "--server", &url];
        let exit = Process::run(&[&arguments[..], form].concat()).await;
        assert_eq!(exit.status.code(), Some(0), "{}", exit.stderr);
        let order = |text: &str| -> Vec<serde_json::Value> {
            text.lines().map(|line| line.parse().unwrap_or(line.into())).collect()
        };
        assert_eq!(order(&exit.stdout), order(&printed));
        assert_eq!(
            asked.await.expect("it was asked twice"),
            [
                "GET /v1/app/streams?prefix=a%20 HTTP/1.1",
                "GET /v1/app/streams?prefix=a%20&cursor=c/1 HTTP/1.1"
            ]
        );
    }
}

/// A server that answers so, one connection after the other, and the first lines of what it was asked.
async fn answering(bodies: [&'static str; 2]) -> (String, tokio::task::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let answering = async move {
        let mut asked = Vec::new();
        for body in bodies {
            let (socket, _) = listener.accept().await.expect("a connection");
            let mut socket = BufReader::new(socket);
            let mut head = Vec::new();
            while head.last().is_none_or(|line: &String| line != "\r\n") {
                let mut line = String::new();
                socket.read_line(&mut line).await.expect("readable");
                head.push(line);
            }
            asked.push(head.swap_remove(0).trim_end().to_owned());
            let head =
                format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            socket.write_all((head + body).as_bytes()).await.expect("written");
        }
        asked
    };
    (url, tokio::spawn(answering))
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_told() {
    let exit = Process::run(&["stream", "read", "s", "--server", "http://127.0.0.1:1"]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("no answer from http://127.0.0.1:1"), "{}", exit.stderr);
    let variables = [("TIDINGS_TOKEN", "two\nlines")];
    let exit = Process::run_with(&["stream", "read", "s"], &variables).await;
    assert_eq!(exit.status.code(), Some(1));
    assert_eq!(exit.stderr, "tidings: the credential in TIDINGS_TOKEN is not plain text in one line\n");
}

#[tokio::test]
async fn the_help_of_tokens_explains_patterns() {
    let help = Process::run(&["token", "--help"]).await.stdout;
    assert!(help.contains("`.`, `:` and `/` separate") && help.contains("`**`"), "{help}");
}

#[tokio::test]
async fn the_help_of_every_command_has_an_example() {
    let mut waiting = vec![vec![]];
    let mut seen = 0;
    while let Some(command) = waiting.pop() {
        let exit = Process::run(&[&command[..], &["--help"]].concat()).await;
        assert_eq!(exit.status.code(), Some(0), "{command:?}: {}", exit.stderr);
        assert!(exit.stdout.contains("\nExample"), "{command:?} has no example:\n{}", exit.stdout);
        seen += 1;
        let verbs = exit.stdout.split_once("Commands:\n").map_or("", |(_, verbs)| verbs);
        for line in verbs.lines().take_while(|line| !line.is_empty()) {
            let verb = line.split_whitespace().next().expect("a line of a command names it");
            if line.starts_with("  ") && !line.starts_with("   ") && verb != "help" {
                waiting.push([&command[..], &[leaked(verb)]].concat());
            }
        }
    }
    assert!(seen > 10, "only {seen} commands were found");
}

/// The names of commands are few, and the test is over soon.
fn leaked(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}
