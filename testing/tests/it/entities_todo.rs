//! `examples/entities-todo`, as `make example-entities` runs it, in two windows of a real browser.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tidings_testing::postgres::connect;
use tidings_testing::{binary, eventually, http};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

/// The example, until it is dropped.
struct Example {
    child: Child,
    page: String,
    database: String,
}

impl Example {
    async fn run() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut child = Command::new(root.join("examples/entities-todo/run"))
            .env("TIDINGS", binary())
            .envs([("PORT", "0"), ("SYNC_PORT", "0")])
            .env_remove("DATABASE_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the script starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut database = None;
        loop {
            let line = tokio::time::timeout(Duration::from_secs(120), lines.next_line()).await;
            let line = line.expect("it starts in time").expect("text").expect("it does not end before");
            if let Some((_, url)) = line.split_once("PostgreSQL on ") {
                database = Some(url.to_owned());
            }
            if let Some(page) = line.strip_prefix("open ").and_then(|rest| rest.split(' ').next()) {
                let database = database.expect("it says so first");
                return Self { child, page: page.to_owned(), database };
            }
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        if let Some(id) = self.child.id() {
            // It takes its processes with it.
            let _ = std::process::Command::new("kill").arg(id.to_string()).status();
        }
    }
}

/// A window of a browser, driven from outside.
struct Window {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    asked: u64,
    _browser: Child,
    _profile: tempfile::TempDir,
}

impl Window {
    async fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let browser = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--remote-debugging-port=0", "--window-size=560,420"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromium is installed, as `make test` does");
        let file = profile.path().join("DevToolsActivePort");
        let mut port = None;
        eventually("the browser is there", async || {
            port =
                std::fs::read_to_string(&file).ok().and_then(|text| text.lines().next()?.parse::<u16>().ok());
            port.is_some()
        })
        .await;
        let list = format!("http://127.0.0.1:{}/json/list", port.expect("a port"));
        let mut page = None;
        eventually("the page is there", async || {
            let Ok(answer) = http::Client::new().get(&list).send().await else { return false };
            let pages: Value = answer.json().await.expect("JSON");
            let found = pages.as_array().expect("a list").iter().find(|one| one["type"] == "page");
            page = found.and_then(|one| one["webSocketDebuggerUrl"].as_str().map(str::to_owned));
            page.is_some()
        })
        .await;
        let (socket, _) = connect_async(page.expect("an address")).await.expect("a WebSocket");
        Self { socket, asked: 0, _browser: browser, _profile: profile }
    }

    async fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.asked += 1;
        let question = json!({ "id": self.asked, "method": method, "params": parameters });
        self.socket.send(Message::text(question.to_string())).await.expect("sent");
        loop {
            let Some(Ok(message)) = self.socket.next().await else { panic!("the browser is gone") };
            let Message::Text(text) = message else { continue };
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            if answer["id"] == self.asked {
                return answer["result"].clone();
            }
        }
    }

    /// Value of an expression in the page.
    async fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        self.ask("Runtime.evaluate", asked).await["result"]["value"].clone()
    }

    /// Waits until the page shows these todos.
    async fn shows(&mut self, expected: &[&str]) {
        let shown = "[...document.querySelectorAll('#todos li')]
            .map(line => (line.className ? '✓ ' : '') + line.querySelector('span').textContent)";
        let mut last = Value::Null;
        for _ in 0..600 {
            last = self.value(shown).await;
            if last == json!(expected) {
                return;
            }
            let pause = "new Promise(resolve => setTimeout(resolve, 100))";
            self.ask("Runtime.evaluate", json!({ "expression": pause, "awaitPromise": true })).await;
        }
        panic!("expected {expected:?}, and it shows {last}");
    }

    async fn add(&mut self, text: &str) {
        let text = json!(text);
        self.value(&format!(
            "document.querySelector('#add input').value = {text}; document.querySelector('#add').requestSubmit()"
        ))
        .await;
    }

    /// Clicks on a part of a todo.
    async fn click(&mut self, todo: usize, part: &str) {
        self.value(&format!(
            "document.querySelectorAll('#todos li')[{todo}].querySelector('{part}').click()"
        ))
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_windows_show_what_either_does_and_what_sql_does() {
    let example = Example::run().await;
    let (mut one, mut other) = (Window::open(&example.page).await, Window::open(&example.page).await);
    for window in [&mut one, &mut other] {
        window.shows(&[]).await;
        let online = "document.querySelector('#status').dataset.status === 'online'";
        while window.value(online).await != json!(true) {}
    }
    one.add("buy milk").await;
    other.shows(&["buy milk"]).await;
    other.add("it's <b>'; DROP TABLE todo; --</b>").await;
    for window in [&mut one, &mut other] {
        window.shows(&["buy milk", "it's <b>'; DROP TABLE todo; --</b>"]).await;
    }
    other.click(0, "input").await;
    one.shows(&["✓ buy milk", "it's <b>'; DROP TABLE todo; --</b>"]).await;
    one.click(1, "button").await;
    other.shows(&["✓ buy milk"]).await;
    let sql = connect(&example.database).await;
    sql.batch_execute("INSERT INTO todo (text) VALUES ('write by SQL')").await.expect("inserted");
    for window in [&mut one, &mut other] {
        window.shows(&["✓ buy milk", "write by SQL"]).await;
    }
    if let Some(file) = std::env::var_os("TODO_SCREENSHOT") {
        let picture = one.ask("Page.captureScreenshot", json!({ "format": "png" })).await;
        let picture = STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64");
        std::fs::write(file, picture).expect("written");
    }
    sql.batch_execute("TRUNCATE todo").await.expect("emptied");
    for window in [&mut one, &mut other] {
        window.shows(&[]).await;
    }
}
