//! What the pages of a browser may do: with what others have stored, and with a server in dev mode.

use serde_json::{Value, json};
use tidings_server::ObserveOptions;
use tidings_testing::{ADMIN_KEY, Doors, Harness, Setup, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::browser::{Browser, ELSEWHERE, Site};
use crate::sockets::used_before;

/// The head of an answer.
struct Head {
    status: u16,
    lines: Vec<String>,
}

impl Head {
    fn header(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| {
            let (named, value) = line.split_once(':')?;
            named.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// How a request comes to the server.
#[derive(Clone, Copy, Debug)]
enum Connection {
    /// As the first of its connection, which the server may keep from hyper.
    New,
    /// On a connection that hyper has.
    UsedBefore,
}

const CONNECTIONS: [Connection; 2] = [Connection::New, Connection::UsedBefore];

/// Sends a request, byte for byte, and reads the head of the answer.
async fn ask(server: &Harness, connection: Connection, line: &str, headers: &[&str]) -> Head {
    let mut socket = match connection {
        Connection::New => TcpStream::connect(server.address()).await.expect("a connection"),
        Connection::UsedBefore => used_before(server).await,
    };
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let (line, body) = line.split_once(" < ").unwrap_or((line, ""));
    let length = if body.is_empty() { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let request = format!("{line} HTTP/1.1\r\n{headers}{length}\r\n{body}");
    socket.write_all(request.as_bytes()).await.expect("sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.expect("a head"));
    }
    let head = String::from_utf8(head).expect("text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Head { status, lines: head.lines().map(str::to_owned).collect() }
}

const LOCAL: &str = "host: 127.0.0.1:4437";
const UPGRADE: [&str; 4] = [
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
];

async fn json_of(server: &Harness, path: &str) -> Value {
    server.get(path).await.json().await.expect("JSON")
}

async fn no_project_exists(server: &Harness) {
    assert_eq!(json_of(server, "/v1/projects").await, json!({ "projects": [] }));
}

/// A server in dev mode with a stream, a session that has heard something, and a room.
async fn dev() -> Harness {
    let server = Harness::start().await;
    server.create_text("/v1/p/stream/s").await;
    let subscribe = server.post("/v1/p/subscribe").json(&json!({ "sessionId": "me", "streamId": "s" }));
    assert_eq!(subscribe.send().await.expect("an answer").status(), 201);
    server.append_text("/v1/p/stream/s", "<script>0</script>").await;
    for members in ["/v1/p/rooms/r/members", "/v1/_default/rooms/r/members"] {
        let add = server.post(members).json(&json!({ "add": ["dev"] }));
        assert_eq!(add.send().await.expect("an answer").status(), 200);
    }
    server
}

#[tokio::test]
async fn every_read_of_a_stream_is_sandboxed_and_not_sniffed() {
    let server = dev().await;
    let etag = ask(&server, Connection::New, "GET /v1/p/stream/s", &[LOCAL]).await;
    let known = format!("if-none-match: {}", etag.header("etag").expect("an etag"));
    let reads = [
        ("GET /v1/p/stream/s", "", 200),
        ("GET /v1/p/stream/s?offset=now", "", 200),
        ("GET /v1/p/stream/s", known.as_str(), 304),
        ("HEAD /v1/p/stream/s", "", 200),
        ("GET /v1/p/stream/s?offset=-1&live=long-poll", "", 200),
        ("GET /v1/p/stream/s?offset=-1&live=sse", "", 200),
        ("GET /v1/p/stream/s?live=sse", "last-event-id: x", 400),
        ("GET /v1/p/stream/me", "", 200),
        ("GET /v1/p/stream/session:me?offset=-1&live=sse", "", 200),
        ("HEAD /v1/p/stream/me", "", 200),
        ("GET /v1/p/stream/none", "", 404),
        ("GET /v1/p/stream/none?offset=-1&live=sse", "", 404),
        ("HEAD /v1/p/stream/none", "", 404),
        ("GET /v1/p/stream/s?offset=x", "", 400),
        ("GET /v1/p/stream/s?offset=-1&live=websocket", "", 426),
        ("GET /v1/stream/none", "", 404),
    ];
    for connection in CONNECTIONS {
        for (line, header, status) in reads {
            let headers: Vec<&str> =
                [LOCAL, header].into_iter().filter(|header| !header.is_empty()).collect();
            is_inert(
                &ask(&server, connection, line, &headers).await,
                status,
                &format!("{line}, {connection:?}"),
            );
        }
        let headers = [&[LOCAL][..], &UPGRADE].concat();
        let converse = "GET /v1/p/stream/s?offset=-1&live=websocket";
        is_inert(&ask(&server, connection, converse, &headers).await, 101, converse);
    }
}

#[tokio::test]
async fn reads_are_sandboxed_where_credentials_are_needed_too() {
    let doors = Doors::Closed { created: vec![("app", "the-signing-key-of-app")], given: Vec::new() };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let create = server.put("/v1/app/stream/s").bearer_auth(ADMIN_KEY).header("content-type", "text/html");
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let authorization = format!("authorization: Bearer {ADMIN_KEY}");
    for connection in CONNECTIONS {
        for (line, status) in [
            ("GET /v1/app/stream/s", 200),
            ("HEAD /v1/app/stream/s", 200),
            ("GET /v1/app/stream/s?offset=-1&live=sse", 200),
            ("GET /v1/app/stream/none", 404),
        ] {
            let headers = ["host: tidings.example", &authorization];
            is_inert(&ask(&server, connection, line, &headers).await, status, line);
        }
        let without = "GET /v1/app/stream/s?offset=-1&live=sse";
        is_inert(&ask(&server, connection, without, &["host: tidings.example"]).await, 401, without);
    }
}

fn is_inert(head: &Head, status: u16, what: &str) {
    assert_eq!(head.status, status, "{what}");
    assert_eq!(head.header("content-security-policy"), Some("sandbox"), "{what}");
    assert_eq!(head.header("x-content-type-options"), Some("nosniff"), "{what}");
}

/// Requests on all ways into the server, and what each is answered with when a program of this machine sends it.
const USES: [(&str, u16); 15] = [
    ("POST /v1/p/stream/s < x", 204),
    ("POST /v1/p/rooms/r/events < {\"type\":\"typingEvent\",\"payload\":{\"isTyping\":true}}", 200),
    ("POST /v1/p/publish/s < x", 204),
    ("PUT /v1/p/stream/s", 200),
    ("GET /v1/p/stream/s", 200),
    ("HEAD /v1/p/stream/s", 200),
    ("GET /v1/p/stream/s?offset=-1&live=long-poll", 200),
    ("GET /v1/p/stream/s?offset=-1&live=sse", 200),
    ("GET /v1/p/stream/s?offset=-1&live=websocket", 101),
    ("GET /v1/p/rooms/r/events", 200),
    ("GET /x/blue.catbird.mls.subscribeConvoEvents.ws?convoId=r", 101),
    ("GET /v1/p/streams", 200),
    ("GET /v1/p/session/me", 200),
    ("GET /health", 200),
    ("GET /nowhere", 404),
];

/// Requests that administer, and what each is answered with when a program sends it. None leaves a project behind.
const ADMINISTRATION: [(&str, u16); 10] = [
    ("GET /v1/projects", 200),
    ("POST /v1/projects < {}", 400),
    ("DELETE /v1/projects/none", 404),
    ("POST /v1/projects/none/keys", 404),
    ("DELETE /v1/projects/none/keys/k", 404),
    ("POST /v1/projects/none/tokens < {}", 400),
    ("GET /v1/config/p", 200),
    ("PUT /v1/config/p < {\"x\":0}", 400),
    ("GET /metrics", 200),
    ("HEAD /metrics", 200),
];

/// Sends a request as somebody, on both kinds of connections, and expects this status or a refusal.
async fn is_answered(server: &Harness, line: &str, sender: &[&str], status: u16) {
    let kind = if line.contains("/rooms/") { "application/json" } else { "text/plain" };
    let content_type = format!("content-type: {kind}");
    let mut headers = [&[content_type.as_str()], sender].concat();
    if line.contains("websocket") || line.contains(".ws") {
        headers.extend(UPGRADE);
    }
    for connection in CONNECTIONS {
        let head = ask(server, connection, line, &headers).await;
        assert_eq!(head.status, status, "{line} from {sender:?}, {connection:?}");
        if status == 403 {
            assert_eq!(head.header("access-control-allow-origin"), None, "{line} from {sender:?}");
        }
    }
}

#[tokio::test]
async fn in_dev_pages_of_elsewhere_are_refused_on_every_way_in() {
    let server = dev().await;
    let strangers = [
        &[LOCAL, "origin: https://evil.example"][..],
        &[LOCAL, "origin: http://localhost.evil.example"],
        &[LOCAL, "origin: null"],
        &[LOCAL, "origin: http://10.0.0.1:4437"],
        &[LOCAL, "origin: http://localhost:5173", "origin: https://evil.example"],
        &["host: evil.example"],
        &["host: evil.example:4437", "origin: http://evil.example:4437"],
        &["host: 192.168.0.7:4437"],
    ];
    for (line, _) in USES.into_iter().chain(ADMINISTRATION) {
        for stranger in strangers {
            is_answered(&server, line, stranger, 403).await;
        }
    }
    no_project_exists(&server).await;
}

#[tokio::test]
async fn in_dev_programs_and_pages_of_this_machine_use_everything() {
    let server = dev().await;
    let near = [
        &[LOCAL][..],
        &["host: localhost:4437"],
        &["host: [::1]:4437"],
        &[LOCAL, "origin: http://127.0.0.1:4437"],
        &[LOCAL, "origin: http://localhost:5173"],
        &["host: localhost:4437", "origin: http://[::1]:3000"],
        &[LOCAL, "origin: https://127.9.9.9"],
        // Led here by a link, or shown as an image: the page is not shown what it gets.
        &[LOCAL, "sec-fetch-site: cross-site"],
    ];
    for (line, status) in USES {
        for somebody in near {
            is_answered(&server, line, somebody, status).await;
        }
    }
    let read = server.request(http::Method::GET, "/v1/p/stream/s").header("origin", "http://localhost:5173");
    assert_eq!(read.send().await.expect("an answer").headers()["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn in_dev_only_programs_and_its_own_pages_administer() {
    let server = dev().await;
    let own = [
        &[LOCAL][..],
        &[LOCAL, "origin: http://127.0.0.1:4437"],
        &["host: localhost:4437", "origin: http://localhost:4437", "sec-fetch-site: same-origin"],
        &[LOCAL, "sec-fetch-site: none"],
    ];
    let others = [
        &[LOCAL, "origin: http://localhost:5173"][..],
        &[LOCAL, "origin: http://localhost:4437"],
        &[LOCAL, "origin: http://127.0.0.1:5173"],
        &[LOCAL, "origin: https://127.0.0.1:4437"],
        &[LOCAL, "sec-fetch-site: cross-site"],
        &[LOCAL, "sec-fetch-site: same-site"],
    ];
    for (line, status) in ADMINISTRATION {
        for somebody in own {
            is_answered(&server, line, somebody, status).await;
        }
        for somebody in others {
            is_answered(&server, line, somebody, 403).await;
        }
    }
}

#[tokio::test]
async fn in_dev_a_credential_decides_and_not_the_page_that_sends_it() {
    let server = dev().await;
    let create = server.post("/v1/projects").json(&json!({ "project": "app" }));
    assert_eq!(create.send().await.expect("an answer").status(), 201);
    let sign = server.post("/v1/projects/app/tokens").json(&json!({ "scope": "manage" }));
    let signed: Value = sign.send().await.expect("an answer").json().await.expect("JSON");
    let good = format!("authorization: Bearer {}", signed["token"].as_str().expect("a token"));
    let page = [LOCAL, "origin: https://app.example"];
    for (line, status) in [
        ("PUT /v1/app/stream/s", 201),
        ("POST /v1/app/stream/s < x", 204),
        ("GET /v1/app/stream/s?offset=-1&live=sse", 200),
        ("GET /v1/config/app", 200),
        ("GET /v1/projects", 403),
        ("GET /metrics", 403),
    ] {
        let headers = [&page[..], &[&good, "content-type: text/plain"]].concat();
        let head = ask(&server, Connection::New, line, &headers).await;
        assert_eq!(head.status, status, "{line}");
    }
    // Any text is no credential.
    for line in [
        "POST /v1/app/stream/s?token=x < x",
        "GET /v1/app/stream/s?offset=-1&live=sse&token=x",
        "GET /v1/app/stream/s?token=",
        "POST /v1/projects?token=x < {\"project\":\"evil\"}",
        "GET /v1/config/app?token=x",
        "GET /metrics?token=x",
    ] {
        assert_eq!(ask(&server, Connection::New, line, &page).await.status, 401, "{line}");
    }
}

#[tokio::test]
async fn in_dev_a_preflight_is_answered_where_what_follows_may_be_allowed() {
    let server = dev().await;
    let page = [LOCAL, "origin: https://app.example"];
    let announcing = [&page[..], &["access-control-request-headers: content-type, Authorization"]].concat();
    let silent = [&page[..], &["access-control-request-headers: content-type"]].concat();
    let rebound = ["host: evil.example", "origin: http://evil.example"];
    for (path, headers, status) in [
        ("/v1/app/stream/s", &announcing[..], 204),
        ("/v1/app/stream/s", &silent, 204),
        ("/v1/app/stream/s", &rebound, 403),
        ("/v1/config/app", &announcing, 204),
        ("/v1/config/app", &silent, 403),
        ("/v1/projects", &silent, 403),
        ("/metrics", &silent, 403),
    ] {
        let asked = ask(&server, Connection::New, &format!("OPTIONS {path}"), headers).await;
        let allowed = asked.header("access-control-allow-origin");
        assert_eq!((asked.status, allowed), (status, (status == 204).then_some("*")), "{path} {headers:?}");
    }
}

#[tokio::test]
async fn in_dev_open_metrics_are_not_for_pages_whatever_they_send() {
    let observe =
        ObserveOptions { metrics_listen: Some(([127, 0, 0, 1], 0).into()), ..ObserveOptions::default() };
    let server = Harness::with(Setup { observe, ..Setup::default() }).await;
    let url = format!("http://{}/metrics", server.server().metrics_address().expect("it listens"));
    let client = http::Client::new();
    let status = async |request: http::RequestBuilder| request.send().await.expect("an answer").status();
    assert_eq!(status(client.get(&url)).await, 200);
    for query in ["", "?token=x"] {
        let get = || client.get(format!("{url}{query}"));
        assert_eq!(status(get().header("origin", "http://localhost:5173")).await, 403);
        assert_eq!(status(get().header("host", "evil.example")).await, 403);
    }
}

#[tokio::test]
async fn without_dev_pages_are_told_by_their_credentials_alone() {
    let doors = Doors::Closed { created: vec![("app", "the-signing-key-of-app")], given: Vec::new() };
    let server = Harness::with(Setup { doors, ..Setup::default() }).await;
    let put = server.put("/v1/app/stream/s").bearer_auth(ADMIN_KEY).header("origin", "https://app.example");
    assert_eq!(put.header("host", "tidings.example").send().await.expect("an answer").status(), 201);
    let without = server.put("/v1/app/stream/s").header("origin", "https://app.example");
    assert_eq!(without.send().await.expect("an answer").status(), 401);
}

/// A stored page that administers if its script runs as a page of the server, and then tells that it was shown. A request
/// that a script waits for is over when the rest of the page is read.
fn stored(site: &str, name: &str) -> String {
    format!(
        r#"<!doctype html><title>stored</title><script>
for (const [where, what] of [["/v1/projects", {{ project: "evil" }}], ["{site}/told", {{ ran: "{name}" }}]]) {{
  const request = new XMLHttpRequest();
  request.open("POST", where, false);
  try {{ request.send(JSON.stringify(what)) }} catch {{}}
}}
</script><img src="{site}/told?shown-{name}">"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_page_does_not_run_its_scripts_in_a_browser() {
    let server = Harness::start().await;
    let stream = server.url("/v1/p/stream/page");
    let mut site = Site::start(|address| {
        // The same page, served without the headers, shows that its script does what it is to do.
        let frames = format!(
            r#"<!doctype html><iframe src="/control"></iframe><iframe src="{stream}"></iframe>
            <script>onload = () => {{ if (!location.hash) location = "{stream}" }}</script>"#
        );
        let own = format!("http://{address}");
        [("/", frames), ("/control", stored(&own, "control"))].into()
    })
    .await;
    let page = stored(&site.url("127.0.0.1", ""), "stream");
    let put = server.put("/v1/p/stream/page").header("content-type", "text/html").body(page);
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let _browser = Browser::open(&site.url("127.0.0.1", "/"));
    let mut told = Vec::new();
    // In a frame, and as the page that is shown.
    while told.iter().filter(|told| **told == "shown-stream").count() < 2 {
        told.push(site.tells().await);
    }
    assert!(told.contains(&json!({ "ran": "control" })), "{told:?}");
    assert!(!told.contains(&json!({ "ran": "stream" })), "{told:?}");
    no_project_exists(&server).await;
}

/// Tries everything with a server in dev mode and tells what came of it: a status, `opaque` if the page was not shown the
/// answer, `open`, or `error`.
fn trying(server: &str) -> String {
    let page = r#"<!doctype html><title>tries</title><iframe name="hidden"></iframe><form method="POST"
  enctype="text/plain" target="hidden" action="SERVER/v1/projects"><input
  name='{"project":"form","key":"0123456789abcdef' value='"}'></form><script>
const server = "SERVER";
const asked = (path, options) => async () => {
  const answer = await fetch(server + path, options);
  return answer.type === "opaque" ? "opaque" : answer.status;
};
const first = (source, good, bad) => new Promise(resolve => {
  source["on" + good] = () => { source.close(); resolve("open") };
  source["on" + bad] = () => { source.close(); resolve("error") };
});
const text = { "content-type": "text/plain" };
const json = { "content-type": "application/json" };
const tries = {
  create: asked("/v1/p/stream/new", { method: "PUT", headers: { "content-type": "text/html" }, body: "x" }),
  append: asked("/v1/p/stream/s", { method: "POST", headers: text, body: "appended" }),
  blind: asked("/v1/p/stream/s", { method: "POST", mode: "no-cors", body: "blind" }),
  read: asked("/v1/p/stream/s"),
  sse: () => first(new EventSource(server + "/v1/p/stream/s?offset=-1&live=sse"), "open", "error"),
  socket: () => first(new WebSocket(server.replace("http", "ws") + "/v1/p/stream/s?offset=-1&live=websocket"),
    "open", "error"),
  projects: asked("/v1/projects"),
  project: asked("/v1/projects", { method: "POST", headers: json, body: '{"project":"seen"}' }),
  unseen: asked("/v1/projects", { method: "POST", mode: "no-cors", body: '{"project":"unseen"}' }),
  config: asked("/v1/config/p", { method: "PUT", headers: json, body: '{"public":["**"]}' }),
  metrics: asked("/metrics"),
  form: () => new Promise(resolve => {
    document.querySelector("iframe").onload = () => resolve("sent");
    document.forms[0].submit();
  }),
};
(async () => {
  const told = {};
  for (const [name, attempt] of Object.entries(tries)) told[name] = await attempt().catch(() => "error");
  fetch("/told", { method: "POST", body: JSON.stringify(told) });
})();
</script>"#;
    page.replace("SERVER", server)
}

/// What comes of the tries of a page that is at a host of this name, and what the stream has then.
async fn tried_at(host: &str) -> (Value, String) {
    let server = Harness::start().await;
    server.create_text("/v1/p/stream/s").await;
    let page = trying(&server.url(""));
    let mut site = Site::start(|_| [("/", page)].into()).await;
    let _browser = Browser::open(&site.url(host, "/"));
    let told = site.tells().await;
    // Whatever the page was shown: this is what it must not have done.
    no_project_exists(&server).await;
    assert_eq!(json_of(&server, "/v1/config/p").await["public"], json!([]));
    (told, server.get("/v1/p/stream/s").await.text().await.expect("text"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_elsewhere_gets_nothing_done_in_a_browser() {
    let (told, stream) = tried_at(ELSEWHERE).await;
    let expected = json!({
        "create": "error", "append": "error", "blind": "opaque", "read": "error", "sse": "error", "socket": "error",
        "projects": "error", "project": "error", "unseen": "opaque", "config": "error", "metrics": "error",
        "form": "sent",
    });
    assert_eq!(told, expected);
    assert_eq!(stream, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_developers_page_on_localhost_just_works_and_does_not_administer() {
    let (told, stream) = tried_at("localhost").await;
    let expected = json!({
        "create": 201, "append": 204, "blind": "opaque", "read": 200, "sse": "open", "socket": "open",
        "projects": "error", "project": "error", "unseen": "opaque", "config": "error", "metrics": "error",
        "form": "sent",
    });
    assert_eq!(told, expected);
    assert_eq!(stream, "appendedblind");
}
