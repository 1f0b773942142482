//! `tidings hooks`: hooks managed by commands, and the receiver that prints what they deliver.

use std::process::Stdio;

use serde_json::{Value, json};
use tidings_testing::{Exit, Process, binary, http};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

/// Runs `tidings hooks` against a server. It must end well; what it prints is returned.
async fn hooks(server: &Process, arguments: &[&str]) -> String {
    let exit = try_hooks(server, arguments).await;
    assert_eq!(exit.status.code(), Some(0), "{arguments:?}: {}", exit.stderr);
    exit.stdout
}

async fn hooks_json(server: &Process, arguments: &[&str]) -> Value {
    let printed = hooks(server, &[arguments, &["--json"]].concat()).await;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"))
}

async fn try_hooks(server: &Process, arguments: &[&str]) -> Exit {
    Process::run(&[&["hooks"], arguments, &["--server", &server.url("")]].concat()).await
}

/// Creates a hook and returns its id and its secret.
async fn create(server: &Process, arguments: &[&str]) -> (String, String) {
    let made = hooks_json(server, &[&["create"], arguments].concat()).await;
    let text = |name: &str| made[name].as_str().expect("text").to_owned();
    (text("id"), text("secret"))
}

/// `tidings hooks listen`, running.
struct Receiver {
    child: Child,
    url: String,
    lines: Lines<BufReader<ChildStdout>>,
    errors: Lines<BufReader<ChildStderr>>,
}

impl Receiver {
    /// Starts on a free port.
    async fn start(arguments: &[&str]) -> Self {
        Self::start_on("0", arguments).await
    }

    async fn start_on(port: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(binary())
            .args([&["hooks", "listen", "--port", port], arguments].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the binary starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
        let greeting = errors.next_line().await.expect("readable").expect("a greeting");
        let url = greeting.split([' ', ',']).find(|word| word.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no address in {greeting}")).to_owned();
        Self { child, url, lines, errors }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url.trim_end_matches('/'))
    }

    /// Interrupts it. It must end well; what it still prints is returned.
    async fn end(mut self) -> String {
        let id = self.child.id().expect("it is running").to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().await.expect("kill is there").success());
        assert!(self.child.wait().await.expect("it ends").success());
        let mut rest = String::new();
        self.lines.into_inner().read_to_string(&mut rest).await.expect("readable");
        rest
    }

    async fn line(&mut self) -> String {
        self.lines.next_line().await.expect("readable").expect("it has not ended")
    }

    async fn json(&mut self) -> Value {
        let line = self.line().await;
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }
}

#[tokio::test]
async fn a_hook_is_created_listed_shown_changed_in_state_and_deleted_by_commands() {
    let server = Process::serve(&[]).await;
    let (id, secret) = create(&server, &["orders.*", "http://127.0.0.1:9/in", "--max-retries", "2"]).await;
    assert!(secret.starts_with("whsec_"), "{secret}");
    let printed = hooks(&server, &["create", "users.**", "--worker", "w", "--method", "m"]).await;
    assert!(printed.starts_with("id      ") && printed.contains("\nsecret  whsec_"), "{printed}");
    let worker = printed.lines().next().and_then(|line| line.split_whitespace().nth(1)).expect("an id");
    let list = hooks(&server, &["list"]).await;
    let expected =
        format!("{worker}  active  users.**  w/m\n{id}  active  orders.*  http://127.0.0.1:9/in\n");
    assert_eq!(list, expected, "the newest first");
    assert_eq!(hooks(&server, &["list", "--json"]).await.lines().count(), 2);
    assert_eq!(hooks(&server, &["list", "--project", "other"]).await, "");
    let shown = hooks(&server, &["show", &id]).await;
    for line in ["pattern           orders.*", "maxRetries        2", "delivered         0"] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
    assert!(!shown.contains("whsec_"), "{shown}");
    let matching = hooks(&server, &["match", "orders.paid"]).await;
    assert_eq!(matching, format!("{id}  active  orders.*  http://127.0.0.1:9/in\n"));
    assert_eq!(hooks(&server, &["pause", &id]).await, format!("paused {id}\n"));
    assert_eq!(hooks(&server, &["match", "orders.paid"]).await, "");
    assert!(hooks(&server, &["list"]).await.contains(&format!("{id}  paused  orders.*")));
    assert_eq!(hooks(&server, &["resume", &id]).await, format!("resumed {id}\n"));
    let rotated = hooks_json(&server, &["rotate-secret", &id, "--overlap", "0s"]).await;
    assert!(rotated["secret"].as_str().is_some_and(|new| new.starts_with("whsec_") && new != secret));
    assert_eq!(hooks(&server, &["delete", &id]).await, format!("deleted {id}\n"));
    let exit = try_hooks(&server, &["show", &id]).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("there is no such hook (404 Not Found)"), "{}", exit.stderr);
}

#[tokio::test]
async fn the_receiver_prints_each_delivery_and_verifies_its_signature() {
    let server = Process::serve(&[]).await;
    // The secret is known when the hook is there, and the port has to be known before.
    let first = Receiver::start(&[]).await;
    let (id, secret) = create(&server, &["orders.*", &first.url("/orders"), "--header", "x-shop: tea"]).await;
    let port = first.url.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned();
    first.end().await;
    let mut receiver = Receiver::start_on(&port, &["--json", "--secret", &secret]).await;
    let sent =
        hooks(&server, &["send", "orders.paid", "--data", r#"{"amount":7.10}"#, "--id", "order-1"]).await;
    assert_eq!(sent, "sent orders.paid\n");
    let delivery = receiver.json().await;
    assert_eq!(delivery["verified"], true, "{delivery}");
    assert_eq!((&delivery["type"], &delivery["id"]), (&json!("orders.paid"), &json!("order-1")));
    assert_eq!((&delivery["path"], &delivery["method"]), (&json!("/orders"), &json!("POST")));
    assert_eq!(delivery["headers"]["x-shop"], "tea");
    assert_eq!(delivery["body"]["payload"]["amount"], 7.1);
    let tested = hooks_json(&server, &["test", &id]).await;
    let test = receiver.json().await;
    assert_eq!((&test["type"], &test["verified"]), (&json!("hook.test"), &json!(true)));
    assert_eq!(test["webhookId"], tested["deliveryId"]);
    hooks(&server, &["rotate-secret", &id, "--overlap", "0s"]).await;
    hooks(&server, &["test", &id]).await;
    let refused = receiver.json().await;
    assert_eq!(refused["verified"], false, "{refused}");
    assert_eq!(refused["why"], "webhook-signature is not one of this secret");
}

#[tokio::test]
async fn deliveries_are_listed_with_their_attempts_and_those_that_failed_are_retried_by_commands() {
    let server = Process::serve(&[]).await;
    let mut receiver = Receiver::start(&["--json", "--status", "503"]).await;
    let (id, _) = create(&server, &["orders.*", &receiver.url("/"), "--max-retries", "1"]).await;
    hooks(&server, &["send", "orders.paid"]).await;
    let first = receiver.json().await;
    let listed = |name: &'static str| {
        let (server, id) = (&server, &id);
        async move {
            loop {
                let printed = hooks(server, &[name, id]).await;
                if !printed.is_empty() && !printed.contains("pending") {
                    return printed;
                }
            }
        }
    };
    let deliveries = listed("deliveries").await;
    let delivery = first["webhookId"].as_str().expect("text");
    assert!(
        deliveries.contains(&format!("{delivery}  dead         1 attempt   orders.paid")),
        "{deliveries}"
    );
    assert!(deliveries.contains("HTTP 503: answered by tidings hooks listen"), "{deliveries}");
    let attempts = hooks(&server, &["attempts", &id, delivery]).await;
    assert!(attempts.contains("  1  failed ") && attempts.contains("HTTP 503"), "{attempts}");
    let letters = listed("dead-letters").await;
    assert!(letters.contains("max_retries_exceeded  orders.paid  HTTP 503"), "{letters}");
    let letter = letters.split("  ").nth(1).expect("an id");
    let retried = hooks_json(&server, &["retry", &id, letter]).await;
    assert_eq!(receiver.json().await["webhookId"], retried["deliveryId"]);
    listed("dead-letters").await;
    assert_eq!(hooks(&server, &["retry", &id, "--error", "HTTP 404"]).await, "queued 0 dead letters again\n");
    assert_eq!(hooks(&server, &["retry", &id, "--all"]).await, "queued 1 dead letters again\n");
    assert_ne!(receiver.json().await["webhookId"], retried["deliveryId"]);
    assert_eq!(hooks(&server, &["deliveries", &id, "--status", "delivered"]).await, "");
}

#[tokio::test]
async fn events_of_the_past_are_replayed_into_a_new_hook_by_a_command() {
    let server = Process::serve(&[]).await;
    let mut receiver = Receiver::start(&["--json"]).await;
    hooks(&server, &["send", "orders.paid", "--id", "order-1"]).await;
    let (id, _) = create(&server, &["orders.*", &receiver.url("/")]).await;
    let replayed = hooks(&server, &["replay", &id, "--from", "2020-01-01T00:00:00Z"]).await;
    assert_eq!(replayed, "replaying 1 events\n");
    assert_eq!(receiver.json().await["id"], "order-1");
    hooks(&server, &["pause", &id]).await;
    hooks(&server, &["send", "orders.paid", "--id", "order-2"]).await;
    assert_eq!(
        hooks(&server, &["resume", &id, "--replay"]).await,
        format!("resumed {id}, replaying 1 events\n")
    );
    assert_eq!(receiver.json().await["id"], "order-2");
}

#[tokio::test]
async fn what_a_command_asks_for_wrongly_is_told() {
    let server = Process::serve(&[]).await;
    for (arguments, told) in [
        (&["create", "a..b", "http://127.0.0.1:9/"][..], "consecutive dots"),
        (&["create", "a.b", "http://10.0.0.1/"], "target not allowed"),
        (&["create", "a.b", "http://127.0.0.1:9/", "--ordering", "key"], "orderingKey"),
        (&["send", "a..b"], "type"),
        (&["match", "a b"], "type"),
        (&["show", "00000000000000000000000001"], "there is no such hook"),
        (&["replay", "00000000000000000000000001", "--from", "yesterday"], "ISO 8601"),
    ] {
        let exit = try_hooks(&server, arguments).await;
        assert_eq!(exit.status.code(), Some(1), "{arguments:?}: {}", exit.stdout);
        assert!(exit.stderr.starts_with("tidings: ") && exit.stderr.contains(told), "{}", exit.stderr);
    }
    for arguments in
        [&["show", "x"][..], &["send", "a.b", "--data", "[]"], &["retry", "00000000000000000000000001"]]
    {
        assert_eq!(try_hooks(&server, arguments).await.status.code(), Some(2), "{arguments:?}");
    }
    // What is wrong with a secret is told without it.
    let arguments = ["hooks", "listen", "--port", "0"];
    let secret = "whsec_nearly-a-secret";
    for exit in [
        Process::run(&[&arguments[..], &["--secret", secret]].concat()).await,
        Process::run_with(&arguments, &[("TIDINGS_HOOK_SECRET", secret)]).await,
    ] {
        assert_eq!(exit.status.code(), Some(2), "{}", exit.stderr);
        assert!(exit.stderr.contains("24 to 64 bytes in base64"), "{}", exit.stderr);
        assert!(!exit.stderr.contains("nearly"), "{}", exit.stderr);
    }
    let variables = [("TIDINGS_TOKEN", "nothing-known")];
    let exit = Process::run_with(&["hooks", "list", "--server", &server.url("")], &variables).await;
    assert_eq!(exit.status.code(), Some(1));
    assert!(exit.stderr.contains("it was sent what TIDINGS_TOKEN holds"), "{}", exit.stderr);
}

#[tokio::test]
async fn the_receiver_prints_for_people_and_ends_well_when_it_is_interrupted() {
    let mut receiver = Receiver::start(&["--status", "202"]).await;
    let warning = receiver.errors.next_line().await.expect("readable").expect("a warning");
    assert!(warning.contains("signatures are not verified"), "{warning}");
    let post = http::Client::new().post(receiver.url("/in")).header("webhook-id", "D1");
    let answer = post.body(r#"{"type":"a.b","id":"E1"}"#).send().await.expect("an answer");
    assert_eq!(answer.status(), 202);
    let title = receiver.line().await;
    assert!(title.ends_with("  a.b  E1  POST /in"), "{title}");
    assert_eq!(receiver.line().await, "  webhook-id: D1");
    assert_eq!(receiver.line().await, "  (not signed)");
    assert_eq!(receiver.line().await, "  {");
    let rest = receiver.end().await;
    assert!(rest.ends_with("\n  }\n\n"), "{rest}");
}
