//! Who is let in: the socket is opened first and judged then.

use tidings_server::LimitOptions;

use super::*;

#[tokio::test]
async fn a_connection_is_told_its_id_a_cursor_and_the_heartbeat_before_anything_else() {
    let server = Harness::start().await;
    let client = Client::connect(&server).await;
    let id = client.connected["connectionId"].as_str().expect("text").to_owned();
    assert!((1..=50).contains(&id.len()), "it fits the column: {id}");
    assert!(client.connected["cursor"].is_string(), "{}", client.connected);
    assert_eq!(client.connected["heartbeatMs"], 15_000);
    let other = Client::connect(&server).await;
    assert_ne!(other.connected["connectionId"], id, "each has its own");
    assert_eq!(server.metric("tidings_entity_connections"), Some(2.0));
    client.leave().await;
    other.leave().await;
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_token_comes_by_header_by_query_or_by_the_first_message_and_names_the_user() {
    let server = closed().await;
    let token = token(&server, "alice");
    let in_header = Client::with_token(&server, &token).await;
    let in_query = Client::opened(&server, &format!("{PATH}?token={token}"), None).await.admitted().await;
    let mut in_message = Client::opened(&server, PATH, None).await;
    in_message.send("AUTH", json!({ "token": token })).await;
    let in_message = in_message.admitted().await;
    let mut connected = Vec::new();
    for mut client in [in_header, in_query, in_message] {
        assert_eq!(client.subscribe("project", &["1"]).await["count"], 1);
        connected.push(client);
    }
    let stats = server.request(Method::GET, "/v1/app/entities/stats/alice").bearer_auth(&token);
    let stats: Value = stats.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(stats, json!({ "project": 3 }), "all are alice's");
}

#[tokio::test]
async fn whoever_shows_no_token_is_told_so_and_closed_with_4001() {
    let server = closed().await;
    for first in [
        r#"{"type":"PING"}"#,
        r#"{"type":"SUBSCRIBE","payload":{"entityCode":"a","entityIds":["1"]}}"#,
        r#"{"type":"AUTH"}"#,
        "hello",
        "",
    ] {
        let mut client = Client::opened(&server, PATH, None).await;
        client.say(first).await;
        let told = client.turned_away().await;
        assert_eq!(told, ("MissingToken".into(), "Missing token".into(), 4001), "{first}");
    }
}

#[tokio::test]
async fn whoever_is_refused_leaves_nothing_of_the_project_that_was_named() {
    let server = closed().await;
    for project in ["app", "nobody", "knows", "these"] {
        for token in [None, Some("no token")] {
            let path = format!("/v1/{project}/sync");
            let mut client = Client::opened(&server, &path, token).await;
            if token.is_none() {
                client.send("AUTH", json!({ "token": "no token either" })).await;
            }
            assert_eq!(client.turned_away().await.2, 4002);
        }
    }
    assert_eq!(server.metric("tidings_entity_projects"), Some(0.0));
    let token = token(&server, "alice");
    let _client = Client::with_token(&server, &token).await;
    assert_eq!(server.metric("tidings_entity_projects"), Some(1.0));
}

#[tokio::test]
async fn whoever_says_nothing_for_five_seconds_has_shown_no_token() {
    let server = closed().await;
    let mut silent = Client::opened(&server, PATH, None).await;
    until("it waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(Duration::from_millis(4999));
    until("it still waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(silent.turned_away().await, ("MissingToken".into(), "Missing token".into(), 4001));
    drop(silent);
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn a_token_that_is_not_good_is_told_so_and_closed_with_4002() {
    let server = closed().await;
    let good = claims(&server, "alice", Scope::Manage);
    let expired = signed(&Claims { expires_at: server.clock.now(), ..good.clone() });
    let early = signed(&Claims { not_before: Some(server.clock.now() + HOUR), ..good.clone() });
    let foreign = good.sign(&Key::parse(OTHER_KEY).expect("a key"));
    let nameless = signed(&Claims { user: None, ..good.clone() });
    let good = signed(&good);
    for (path, token, code) in [
        (PATH, "nonsense", "InvalidToken"),
        (PATH, &*expired, "TokenExpired"),
        (PATH, &early, "InvalidToken"),
        (PATH, &foreign, "InvalidToken"),
        (PATH, &nameless, "UserRequired"),
        ("/v1/other/sync", &good, "InvalidToken"),
        ("/v1/missing/sync", &good, "InvalidToken"),
    ] {
        let expected = (code.to_owned(), "Invalid token".to_owned(), 4002);
        let mut in_header = Client::opened(&server, path, Some(token)).await;
        assert_eq!(in_header.turned_away().await, expected, "{path} {token}");
        let mut in_query = Client::opened(&server, &format!("{path}?token={token}"), None).await;
        assert_eq!(in_query.turned_away().await, expected, "{path} {token}");
        let mut in_message = Client::opened(&server, path, None).await;
        in_message.send("AUTH", json!({ "token": token })).await;
        assert_eq!(in_message.turned_away().await, expected, "{path} {token}");
    }
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn an_api_key_opens_no_socket_because_it_names_no_user() {
    let server = closed().await;
    let created = server.post("/v1/projects/app/keys").bearer_auth(tidings_testing::ADMIN_KEY).send().await;
    let created: Value = created.expect("an answer").json().await.expect("JSON");
    let key = created["apiKey"].as_str().expect("a key");
    let mut client = Client::opened(&server, PATH, Some(key)).await;
    assert_eq!(client.turned_away().await, ("UserRequired".into(), "Invalid token".into(), 4002));
}

#[tokio::test]
async fn in_dev_mode_whoever_shows_no_token_is_the_user_dev() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1", "2"]).await;
    let stats: Value = server.get("/v1/app/entities/stats/dev").await.json().await.expect("JSON");
    assert_eq!(stats, json!({ "project": 2 }));
    assert_eq!(client.refused("AUTH", json!({ "token": "x" })).await, "InvalidMessage");
    let mut wrong = Client::opened(&server, PATH, Some("nonsense")).await;
    assert_eq!(wrong.turned_away().await.2, 4002, "a token that is sent must be good");
}

#[tokio::test]
async fn what_is_wrong_with_the_request_itself_is_told_before_the_socket_is_opened() {
    let server = closed().await;
    let token = token(&server, "alice");
    for (path, status) in [
        ("/v1/a%20b/sync", "400"),
        (&*format!("/v1/{}/sync", "x".repeat(200)), "400"),
        ("/v1/app/sync?takeover=yes", "400"),
    ] {
        let refused = Client::at(&server.url(path), Some(&token)).await.err().expect("refused");
        assert!(refused.to_string().contains(status), "{path}: {refused}");
    }
    let plain = server.request(Method::GET, PATH).bearer_auth(&token).send().await.expect("an answer");
    assert_eq!(plain.status(), StatusCode::UPGRADE_REQUIRED);
}

#[tokio::test]
async fn a_page_of_an_origin_that_is_not_allowed_opens_no_socket() {
    let server = closed().await;
    let token = token(&server, "alice");
    let handshake = async |origin: &str| {
        let mut request: Request<()> =
            server.url(PATH).replace("http://", "ws://").into_client_request().expect("an address");
        request.headers_mut().insert("origin", origin.parse().expect("a header"));
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        tokio_tungstenite::connect_async(request).await.map(drop)
    };
    let refused = handshake("https://evil.example").await.expect_err("not allowed");
    assert!(refused.to_string().contains("403"), "{refused}");
    let config = json!({ "corsOrigins": ["https://app.example"] });
    let set = server.put("/v1/config/app").bearer_auth(&token).json(&config).send().await;
    assert_eq!(set.expect("an answer").status(), 200);
    handshake("https://app.example").await.expect("allowed");
    assert!(handshake("https://evil.example").await.is_err());
}

#[tokio::test]
async fn a_server_that_stops_closes_its_sockets_with_1001() {
    let server = Harness::start().await;
    let mut client = Client::connect(&server).await;
    client.subscribe("project", &["1"]).await;
    let mut waiting = Client::opened(&server, PATH, Some("nonsense")).await;
    waiting.turned_away().await;
    let (closed, ()) = tokio::join!(client.closed(), server.stop());
    assert_eq!(closed, (1001, "Server shutting down".into()));
}

#[tokio::test]
async fn a_socket_works_on_a_connection_that_was_used_before() {
    let server = Harness::start().await;
    let socket = crate::sockets::used_before(&server).await;
    let url = server.url(PATH).replace("http://", "ws://");
    let socket = MaybeTlsStream::Plain(socket);
    let (socket, _) = tokio_tungstenite::client_async(url, socket).await.expect("a WebSocket");
    let mut client = Client { socket, connected: Value::Null, heard: VecDeque::new() }.admitted().await;
    client.subscribe("project", &["1"]).await;
    update(&server, "project", "1").await;
    assert_eq!(ids(&client.changes("project").await), ["1"]);
    client.leave().await;
    nobody_is_left(&server).await;
}

#[tokio::test]
async fn beyond_the_connections_of_the_server_a_client_is_not_let_in() {
    let limits = LimitOptions { connections: 2, ..LimitOptions::default() };
    let server = Harness::with(Setup { limits, ..Setup::default() }).await;
    let first = Client::connect(&server).await;
    let _second = Client::connect(&server).await;
    let refused = Client::at(&server.url(PATH), None).await.err().expect("there is no room");
    assert!(refused.to_string().contains("503"), "{refused}");
    first.leave().await;
    until("there is room", || server.server().live_connections().len() == 1).await;
    Client::connect(&server).await;
}

#[tokio::test]
async fn a_token_in_the_query_is_logged_nowhere() {
    use tidings_testing::Process;
    let server = Process::serve_logging("trace", &[]).await;
    let secret = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0.c2VjcmV0";
    let mut client =
        Client::at(&server.url(&format!("{PATH}?token={secret}")), None).await.expect("a WebSocket");
    assert_eq!(client.turned_away().await.2, 4002);
    let answered = http::get(server.url("/health")).await.expect("an answer");
    assert_eq!(answered.status(), 200);
    assert!(server.log().contains("/v1/{project}/sync"), "the request was logged");
    assert!(!server.log().contains(secret), "its token was not");
}
