//! Projects, keys and tokens by command: on a stopped store, and against a running server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;
use tempfile::TempDir;
use tidings_testing::http::{Client, StatusCode};
use tidings_testing::{Exit, Launch, Process};

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().expect("a path in UTF-8")
}

/// Runs a command that must end well, and returns what it prints.
async fn run(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let exit = Process::run_with(arguments, variables).await;
    assert_eq!(exit.status.code(), Some(0), "{arguments:?}: {}", exit.stderr);
    exit.stdout.trim_end().to_owned()
}

async fn run_json(arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let printed = run(&[arguments, &["--json"]].concat(), variables).await;
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"))
}

fn assert_refused(exit: &Exit, told: &str) {
    assert_eq!(exit.status.code(), Some(1), "{}", exit.stdout);
    assert!(exit.stderr.starts_with("tidings: ") && exit.stderr.contains(told), "{}", exit.stderr);
}

/// The status of creating a stream with a token.
async fn create_stream(server: &Process, project: &str, stream: &str, token: &str) -> StatusCode {
    let put = Client::new().put(server.url(&format!("/v1/{project}/stream/{stream}"))).bearer_auth(token);
    put.send().await.expect("an answer").status()
}

#[tokio::test]
async fn the_first_start_names_the_commands_that_lead_to_a_working_server_and_token() {
    let data = folder();
    let start = ["serve", "--listen", "127.0.0.1:0", "--data", path(&data)];
    let exit = Process::run(&start).await;
    assert_refused(&exit, "no project and no admin key");
    let commands =
        exit.stderr.lines().filter_map(|line| line.split_once(": ")?.1.trim().strip_prefix("tidings "));
    let mut printed = Vec::new();
    for command in commands.filter(|command| !command.starts_with("serve")) {
        let command = command.replace("NAME", "shop");
        let arguments: Vec<_> = command.split(' ').collect();
        printed.push(run(&arguments, &[]).await);
    }
    let [project, admin_key] = &printed[..] else { panic!("two commands, not {printed:?}") };
    assert!(project.starts_with("project  shop\nkid "), "{project}");
    let mut server = Process::serve_guarded(data, &[]).await;
    let (_data, _try) = (server.line().await, server.line().await);
    let mint = server.line().await;
    let mint = mint.split("tidings ").nth(1).expect("how to mint a token").trim_end_matches(')').to_owned();
    let mint: Vec<_> = mint.split(' ').collect();
    let token = run(&mint, &[("TIDINGS_ADMIN_KEY", admin_key)]).await;
    assert_eq!(create_stream(&server, "shop", "s", &token).await, 201);
    assert_eq!(create_stream(&server, "shop", "t", &token[1..]).await, 401);
    assert_eq!(create_stream(&server, "other", "t", &token).await, 401, "there is no such project");
    assert_eq!(server.terminate().await.code(), Some(0));
}

#[tokio::test]
async fn projects_and_keys_are_administered_in_a_stopped_store() {
    let data = folder();
    let at = ["--data", path(&data)];
    let with = |arguments: &[&'static str]| [arguments, &at].concat();
    assert_refused(&Process::run(&with(&["project", "list"])).await, "is not a store's folder");
    let made = run_json(&with(&["project", "create", "shop"]), &[]).await;
    assert_eq!(made["project"], "shop");
    let api_key = made["apiKey"].as_str().expect("text");
    assert!(api_key.starts_with("ns_shop_"), "{api_key}");
    let first = made["kid"].as_str().expect("text").to_owned();
    let old_token = run(&with(&["token", "--project", "shop", "--scope", "read"]), &[]).await;
    let rotated = run_json(&with(&["project", "rotate-key", "shop"]), &[]).await;
    let second = rotated["kid"].as_str().expect("text").to_owned();
    assert_ne!((&first, &made["key"]), (&second, &rotated["key"]));
    let listed = run_json(&with(&["project", "list"]), &[]).await;
    assert_eq!(listed["projects"][0]["kids"], serde_json::json!([second, first]), "newest first");
    let by_variable = run_json(&["project", "list"], &[("TIDINGS_DATA", path(&data))]).await;
    assert_eq!(by_variable, listed);
    let server = Process::serve_guarded(data, &[]).await;
    let read = |token: String, server: &Process| {
        let get = Client::new().get(server.url("/v1/shop/stream/none")).bearer_auth(token);
        async { get.send().await.expect("an answer").status() }
    };
    assert_eq!(read(old_token.clone(), &server).await, 404, "both keys are valid");
    let data = server.stop().await;
    let at = ["--data", path(&data)];
    let remove = [&["project", "remove-key", "shop", &first], &at[..]].concat();
    assert_eq!(run(&remove, &[]).await, format!("removed key {first} of shop"));
    assert_refused(&Process::run(&remove).await, "no key with this id");
    let server = Process::serve_guarded(data, &[]).await;
    assert_eq!(read(old_token, &server).await, 401, "the key that signed it is gone");
}

#[tokio::test]
async fn a_running_server_is_administered_with_the_admin_key() {
    let data = folder();
    let admin_key = run(&["admin-key", "--data", path(&data)], &[]).await;
    let admin = [("TIDINGS_ADMIN_KEY", admin_key.as_str())];
    let server = Process::serve_guarded(data, &[]).await;
    let url = server.url("");
    let with = |arguments: &[&'static str]| -> Vec<&str> { [arguments, &["--server", &url]].concat() };
    let list = with(&["project", "list"]);
    assert_eq!(run(&list, &admin).await, "there are no projects; create one: tidings project create NAME");
    let made = run_json(&with(&["project", "create", "shop"]), &admin).await;
    let rotated = run_json(&with(&["project", "rotate-key", "shop"]), &admin).await;
    let kid = made["kid"].as_str().expect("text");
    let listed = run_json(&list, &admin).await;
    assert_eq!(listed["projects"][0]["kids"], serde_json::json!([rotated["kid"], kid]));
    let remove = ["project", "remove-key", "shop", kid, "--server", &url];
    assert_eq!(run(&remove, &admin).await, format!("removed key {kid} of shop"));
    let mint = ["token", "--project", "shop", "--scope", "write", "--stream", "orders/*", "--user", "alice"];
    let token = run(&[&mint[..], &["--ttl", "5m", "--server", &url]].concat(), &admin).await;
    assert_eq!(create_stream(&server, "shop", "orders/1", &token).await, 201);
    assert_eq!(create_stream(&server, "shop", "other", &token).await, 403);
    let stream = ["stream", "read", "orders/1", "--project", "shop", "--server", &url];
    assert_eq!(run(&stream, &[("TIDINGS_TOKEN", &token)]).await, "");
    assert_refused(&Process::run(&stream).await, "401");
    assert_eq!(run(&with(&["project", "remove", "shop"]), &admin).await, "removed project shop");
    assert_eq!(create_stream(&server, "shop", "orders/2", &token).await, 401);
    for wrong in [&[][..], &[("TIDINGS_ADMIN_KEY", "not-the-admin-key")]] {
        let exit = Process::run_with(&list, wrong).await;
        assert_refused(&exit, "401");
        assert_refused(&exit, "TIDINGS_ADMIN_KEY");
    }
}

#[tokio::test]
async fn what_cannot_be_done_is_refused_in_words() {
    let data = folder();
    let at = ["--data", path(&data)];
    run(&[&["project", "create", "shop"], &at[..]].concat(), &[]).await;
    for (arguments, told) in [
        (&["project", "create", "shop"][..], "the project exists"),
        (&["project", "create", "_mine"], "begin with `_`"),
        (&["project", "create", "stream"], "begin with `_`"),
        (&["project", "create", "other", "--key", "short"], "at least 16 bytes"),
        (&["project", "rotate-key", "other"], "does not exist"),
        (&["project", "remove", "other"], "does not exist"),
        (&["token", "--project", "other", "--scope", "read"], "does not exist"),
        (&["token", "--project", "shop", "--scope", "read", "--ttl", "0s"], "--ttl"),
    ] {
        assert_refused(&Process::run(&[arguments, &at].concat()).await, told);
    }
    for arguments in [
        &["token", "--project", "shop", "--scope", "own"][..],
        &["token", "--project", "a/b", "--scope", "read"],
        &["token", "--project", "shop", "--scope", "read", "--ttl", "soon"],
        &["project", "list", "--server", "http://127.0.0.1:1"],
    ] {
        let exit = Process::run(&[arguments, &at].concat()).await;
        assert_eq!(exit.status.code(), Some(2), "{arguments:?}: {}", exit.stderr);
    }
    run(&[&["project", "remove", "shop"], &at[..]].concat(), &[]).await;
    let again = Process::run(&[&["project", "create", "shop"], &at[..]].concat()).await;
    assert_refused(&again, "Start the server once");
}

#[tokio::test]
async fn a_store_in_use_is_told_to_every_command_that_needs_it_stopped() {
    let server = Process::serve(&[]).await;
    let data = server.data().to_str().expect("a path in UTF-8");
    for arguments in [
        &["project", "list"][..],
        &["project", "create", "shop"],
        &["admin-key"],
        &["token", "--project", "shop", "--scope", "read"],
    ] {
        let exit = Process::run(&[arguments, &["--data", data]].concat()).await;
        assert_refused(&exit, "is in use by a running server. Stop it, or ask it: --server");
    }
}

#[tokio::test]
async fn keys_of_the_configuration_are_those_of_several_servers() {
    const KEY: &str = "the-same-key-on-several-servers";
    let (data, other) = (folder(), folder());
    let create = ["project", "create", "shop", "--key", KEY, "--data", path(&other)];
    let made = run_json(&create, &[]).await;
    assert_eq!(made["key"], KEY);
    let mint = ["token", "--project", "shop", "--scope", "write", "--data", path(&other)];
    let token = run(&mint, &[]).await;
    let file = data.path().with_extension("toml");
    let text = format!(
        "[auth]\nadmin_key = 'the-key-of-administration'\nprojects = [{{ id = 'shop', keys = ['{KEY}'] }}]"
    );
    std::fs::write(&file, text).expect("written");
    let file_name = file.to_str().expect("a path in UTF-8");
    let arguments = ["--config", file_name, "--listen", "127.0.0.1:0", "--data", path(&data)];
    // Of the file's project, in a store that knows nothing of it.
    run(&["admin-key", "--data", path(&data)], &[]).await;
    let mint =
        ["token", "--project", "shop", "--scope", "write", "--config", file_name, "--data", path(&data)];
    let own = run(&mint, &[]).await;
    let list = ["project", "list", "--data", path(&data)];
    let listed = run_json(&list, &[("TIDINGS_CONFIG", file_name)]).await;
    assert_eq!(listed["projects"][0]["kids"], serde_json::json!([made["kid"]]));
    assert_eq!(run_json(&list, &[]).await["projects"], serde_json::json!([]));
    let server = Process::launch(Launch::new(&arguments, &[])).await;
    assert_eq!(create_stream(&server, "shop", "own", &own).await, 201);
    std::fs::remove_file(&file).expect("it was there");
    assert_eq!(create_stream(&server, "shop", "s", &token).await, 201);
    let admin = [("TIDINGS_ADMIN_KEY", "the-key-of-administration")];
    let listed = run_json(&["project", "list", "--server", &server.url("")], &admin).await;
    assert_eq!(listed["projects"][0]["kids"], serde_json::json!([made["kid"]]));
}

/// The claims of a token.
fn claims_of(token: &str) -> Value {
    let claims = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64")).expect("JSON")
}

#[tokio::test]
async fn a_token_that_a_command_signs_has_its_date_its_id_and_topics_for_each_way() {
    let data = folder();
    let admin_key = run(&["admin-key", "--data", path(&data)], &[]).await;
    run(&["project", "create", "shop", "--data", path(&data)], &[]).await;
    let mint = ["token", "--project", "shop", "--scope", "write", "--jti", "t-1", "--topics", "room:*"];
    let mint = [&mint[..], &["--subscribe", "news.**", "--publish", "inbox/me"]].concat();
    let by_store = run(&[&mint[..], &["--data", path(&data)]].concat(), &[]).await;
    let server = Process::serve_guarded(data, &[]).await;
    let admin = [("TIDINGS_ADMIN_KEY", admin_key.as_str())];
    let by_server = run(&[&mint[..], &["--server", &server.url("")]].concat(), &admin).await;
    for token in [by_store, by_server] {
        let claims = claims_of(&token);
        let [issued_at, expires_at] =
            ["iat", "exp"].map(|name| claims[name].as_u64().unwrap_or_else(|| panic!("{claims}")));
        assert!((3600..=3601).contains(&(expires_at - issued_at)), "{claims}");
        assert_eq!(claims["jti"], "t-1");
        let topics =
            serde_json::json!({ "subscribe": ["room:*", "news.**"], "publish": ["room:*", "inbox/me"] });
        assert_eq!(claims["topics"], topics);
    }
}
