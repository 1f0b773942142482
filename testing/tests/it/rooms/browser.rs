//! A real browser's `EventSource`.

use tidings_testing::Process;
use tidings_testing::http;

use super::proxy::{Proxy, Way};
use super::*;
use crate::browser::{self, Site};

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
    site: Site,
    _browser: browser::Browser,
}

impl Browser {
    /// A browser that follows what is at an address.
    async fn follow(url: &str) -> Self {
        let site = Site::start(|_| [("/", PAGE.to_owned())].into()).await;
        let encoded: String = url.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let _browser = browser::Browser::open(&site.url("127.0.0.1", &format!("/?{encoded}")));
        Self { site, _browser }
    }

    /// What the page tells next.
    async fn tells(&mut self) -> Value {
        self.site.tells().await
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
    until("it has gone", || server.server().live_connections().is_empty()).await;
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
    assert_eq!(server.server().live_connections().len(), 1);
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
    until("it has gone", || server.server().live_connections().is_empty()).await;
    let missed = tell(&server, reaction("1", "bob", "+1", "add")).await;
    browser.comes_again(|| proxy.set(Way::Open(server.address()))).await;
    assert_eq!(browser.hears("reactionEvent", &missed).await, missed);
    let seen = body(server.get("/v1/p/rooms/r/seen").await).await;
    assert_eq!(seen["cursor"], json!(passed), "with this it came");
}
