//! A real browser's `EventSource`.

use std::convert::Infallible;
use std::process::Stdio;
use tidings_testing::http;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidings_testing::Process;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::proxy::{Proxy, Way};
use super::*;

/// How long a browser may take for anything. It starts slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells whoever serves it, in order, what an `EventSource` hears.
const PAGE: &str = r#"<!doctype html><title>room</title><script>
let telling = Promise.resolve();
const tell = what => telling = telling.then(() => fetch("/told", { method: "POST", body: JSON.stringify(what) }));
const source = new EventSource(decodeURIComponent(location.search.slice(1)));
source.onopen = () => tell({ open: source.readyState });
source.onerror = () => tell({ error: source.readyState });
for (const kind of ["message", "messageEvent", "reactionEvent", "typingEvent", "infoEvent"])
  source.addEventListener(kind, event =>
    tell({ kind, id: event.lastEventId, data: JSON.parse(event.data), state: source.readyState }));
</script>"#;

/// A browser that shows the page.
struct Browser {
    told: mpsc::UnboundedReceiver<Value>,
    serving: JoinHandle<()>,
    _child: Child,
    _profile: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Browser {
    /// A browser that follows what is at an address.
    async fn follow(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let encoded: String = url.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let page = format!("http://{}/?{encoded}", listener.local_addr().expect("an address"));
        let (tell, told) = mpsc::unbounded_channel();
        let serving = tokio::spawn(serve(listener, tell));
        let profile = tempfile::tempdir().expect("a folder");
        let child = Command::new("chromium")
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(page)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("chromium is installed, as `make test` does");
        Self { told, serving, _child: child, _profile: profile }
    }

    /// What the page tells next.
    async fn tells(&mut self) -> Value {
        let told = tokio::time::timeout(PATIENCE, self.told.recv()).await;
        told.expect("the browser tells something").expect("it is there")
    }

    /// The page hears this next, from an open connection. Tells the id that it is then at.
    async fn hears(&mut self, kind: &str, cursor: &str) -> String {
        let told = self.tells().await;
        assert_eq!((&told["kind"], &told["data"]["cursor"]), (&json!(kind), &json!(cursor)), "{told}");
        assert_eq!(told["state"], json!(1), "it is open: {told}");
        told["id"].as_str().expect("an id").to_owned()
    }

    /// The connection is lost, once or several times, and the page comes again by itself.
    async fn comes_again(&mut self, open: impl FnOnce()) {
        assert_eq!(self.tells().await, json!({ "error": 0 }), "it tries again, it has not given up");
        open();
        loop {
            let told = self.tells().await;
            if told == json!({ "open": 1 }) {
                return;
            }
            assert_eq!(told, json!({ "error": 0 }), "it has not given up");
        }
    }
}

async fn serve(listener: TcpListener, tell: mpsc::UnboundedSender<Value>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.expect("a connection");
        let tell = tell.clone();
        let answer = move |request: hyper::Request<Incoming>| answer_page(request, tell.clone());
        connections.spawn(async move {
            // A browser opens connections that it does not use.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service_fn(answer)).await;
        });
    }
}

async fn answer_page(
    request: hyper::Request<Incoming>,
    tell: mpsc::UnboundedSender<Value>,
) -> Result<hyper::Response<Full<Bytes>>, Infallible> {
    let body = match (request.method().as_str(), request.uri().path()) {
        ("POST", "/told") => {
            let told = request.into_body().collect().await.expect("a body").to_bytes();
            // The test may be over.
            let _ = tell.send(serde_json::from_slice(&told).expect("JSON"));
            ""
        }
        (_, "/") => PAGE,
        _ => "",
    };
    let answer = hyper::Response::builder().header("content-type", "text/html").body(Full::from(body));
    Ok(answer.expect("an answer"))
}

/// Writes an event to the room that the browser follows, as the user `dev`; tells its cursor.
async fn tell(server: &Harness, event: Value) -> String {
    let answer = answer(server.post("/v1/p/rooms/r/events").json(&event)).await;
    assert_eq!(answer.status(), 200);
    body(answer).await["cursor"].as_str().expect("a cursor").to_owned()
}

/// A server that lets everybody in, with a room.
async fn open_to_all(rooms: Options) -> Harness {
    let server = Harness::with(Setup { rooms, ..Setup::default() }).await;
    let members = server.post("/v1/p/rooms/r/members").json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_whose_place_is_gone_is_told_and_stays_connected() {
    let rooms = Options { retention: DAY, sweep_interval: Duration::from_secs(60), ..Options::default() };
    let server = open_to_all(rooms.clone()).await;
    let proxy = Proxy::start(Way::Open(server.address())).await;
    let mut browser = Browser::follow(&format!("http://{}/v1/p/rooms/r/events", proxy.address)).await;
    assert_eq!(browser.tells().await, json!({ "open": 1 }));
    let first = tell(&server, message(1)).await;
    assert_eq!(browser.hears("messageEvent", &first).await, first);
    proxy.set(Way::Closed);
    until("it has gone", || server.server().lives().is_empty()).await;
    let missed = tell(&server, message(2)).await;
    let_age(&server, &rooms).await;
    browser.comes_again(|| proxy.set(Way::Open(server.address()))).await;
    let told = browser.tells().await;
    assert_eq!(
        (&told["kind"], &told["data"]["reason"]),
        (&json!("infoEvent"), &json!("compacted")),
        "{told}"
    );
    assert_eq!(told["data"]["detail"]["requested"], json!(first), "it came with the id it had");
    assert_eq!(
        (&told["data"]["cursor"], &told["id"]),
        (&json!(missed), &json!(missed)),
        "and has another now"
    );
    let next = tell(&server, message(3)).await;
    assert_eq!(browser.hears("messageEvent", &next).await, next, "the same connection goes on");
    assert_eq!(server.server().lives().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_comes_again_after_a_crash_of_the_server_and_misses_nothing() {
    let mut process = Process::serve(&[]).await;
    let client = http::Client::new();
    let address = |process: &Process| process.url("").replace("http://", "").parse().expect("an address");
    let write = async |process: &Process, n: usize| {
        let request = client.post(process.url("/v1/p/rooms/r/events")).json(&message(n));
        body(answer(request).await).await["cursor"].as_str().expect("a cursor").to_owned()
    };
    let members = client.post(process.url("/v1/p/rooms/r/members")).json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let proxy = Proxy::start(Way::Open(address(&process))).await;
    let mut browser = Browser::follow(&format!("http://{}/v1/p/rooms/r/events", proxy.address)).await;
    assert_eq!(browser.tells().await, json!({ "open": 1 }));
    for n in 0..3 {
        let cursor = write(&process, n).await;
        assert_eq!(browser.hears("messageEvent", &cursor).await, cursor);
    }
    proxy.set(Way::Closed);
    process.kill().await;
    process = process.restart().await;
    let mut missed = Vec::new();
    for n in 3..6 {
        missed.push(write(&process, n).await);
    }
    browser.comes_again(|| proxy.set(Way::Open(address(&process)))).await;
    for cursor in &missed {
        assert_eq!(browser.hears("messageEvent", cursor).await, *cursor);
    }
    let live = write(&process, 6).await;
    browser.hears("messageEvent", &live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_without_data_moves_a_browsers_place_and_is_no_event() {
    let server = open_to_all(Options::default()).await;
    let proxy = Proxy::start(Way::Open(server.address())).await;
    let url = format!("http://{}/v1/p/rooms/r/events?types=reactionEvent,typingEvent", proxy.address);
    let mut browser = Browser::follow(&url).await;
    assert_eq!(browser.tells().await, json!({ "open": 1 }));
    let passed = tell(&server, message(1)).await;
    let_pass(&server, 16).await;
    let typed = tell(&server, typing("bob")).await;
    assert_eq!(browser.hears("typingEvent", &typed).await, passed, "nothing was heard, but it has moved");
    proxy.set(Way::Closed);
    until("it has gone", || server.server().lives().is_empty()).await;
    let missed = tell(&server, reaction("1", "bob", "+1", "add")).await;
    browser.comes_again(|| proxy.set(Way::Open(server.address()))).await;
    assert_eq!(browser.hears("reactionEvent", &missed).await, missed);
    let seen = body(server.get("/v1/p/rooms/r/seen").await).await;
    assert_eq!(seen["cursor"], json!(passed), "with this it came");
}
