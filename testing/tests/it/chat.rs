//! `examples/chat` in a real browser: two pages that chat with each other.

use std::collections::HashMap;

use serde_json::{Value, json};
use tidings_testing::{Harness, Process};

use crate::browser::{Browser, Site};
use crate::rooms::proxy::{Proxy, Way};

/// Shows the chat twice, uses it as people would, and tells what they see.
const HOST: &str = r##"<!doctype html><title>two chats</title><script type="module">
const server = decodeURIComponent(location.search.slice(1));
const tell = what => fetch("/told", { method: "POST", body: JSON.stringify(what) });
const until = async condition => { while (!condition()) await new Promise(resolve => setTimeout(resolve, 20)) };

class Person {
  async open(name) {
    const frame = document.createElement("iframe");
    frame.src = `/index.html?${new URLSearchParams({ server, project: "p", room: "lobby", name })}`;
    document.body.append(frame);
    await new Promise(resolve => frame.onload = resolve);
    this.page = frame.contentDocument;
    await this.is("online");
    await until(() => this.lines.includes(`${name} joined lobby`));
    return this;
  }
  get lines() { return [...this.page.querySelectorAll("#said li")].map(line => line.textContent) }
  is(status) { return until(() => this.page.querySelector("#status").dataset.status === status) }
  say(text) {
    this.page.querySelector("#say input").value = text;
    this.page.querySelector("#say").requestSubmit();
  }
  hears(text) { return until(() => this.lines.some(line => line.endsWith(text))) }
}

const [ann, bob] = [await new Person().open("ann"), await new Person().open("bob")];
const talk = async (first, second) => {
  ann.say(first);
  await bob.hears(first);
  bob.say(second);
  await ann.hears(second);
  await bob.hears(second);
  await ann.hears(first);
  await tell({ ann: ann.lines, bob: bob.lines });
};
await talk("hello", "<b>hi</b>");
await Promise.all([ann.is("offline"), bob.is("offline")]);
ann.say("lost");
await ann.hears("not sent: not connected");
await tell("away");
await Promise.all([ann.is("online"), bob.is("online")]);
await talk("again", "and you");
</script>"##;

/// A browser that shows two chats of a server.
struct TwoChats {
    site: Site,
    _browser: Browser,
}

impl TwoChats {
    async fn at(server: &str) -> Self {
        let pages = HashMap::from([
            ("/", HOST.to_owned()),
            ("/index.html", include_str!("../../../examples/chat/index.html").to_owned()),
            ("/chat.js", include_str!("../../../examples/chat/chat.js").to_owned()),
            ("/connection.js", include_str!("../../../examples/chat/connection.js").to_owned()),
        ]);
        let site = Site::start(|_| pages).await;
        let encoded: String = server.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let _browser = Browser::open(&site.url("127.0.0.1", &format!("/?{encoded}")));
        Self { site, _browser }
    }

    async fn tell(&mut self) -> Value {
        self.site.tells().await
    }
}

fn first_talk() -> Value {
    json!({
        "ann": ["ann joined lobby", "annhello", "bob<b>hi</b>"],
        "bob": ["bob joined lobby", "annhello", "bob<b>hi</b>"],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn two_pages_chat_with_each_other() {
    let server = Harness::start().await;
    let mut chats = TwoChats::at(&server.url("")).await;
    assert_eq!(chats.tell().await, first_talk());
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_come_again_after_the_server_restarts_and_chat_on() {
    let mut process = Process::serve(&[]).await;
    let address = |process: &Process| process.url("").replace("http://", "").parse().expect("an address");
    let proxy = Proxy::start(Way::Open(address(&process))).await;
    let mut chats = TwoChats::at(&format!("http://{}", proxy.address)).await;
    assert_eq!(chats.tell().await, first_talk());
    proxy.set(Way::Closed);
    process.kill().await;
    assert_eq!(chats.tell().await, json!("away"));
    process = process.restart().await;
    proxy.set(Way::Open(address(&process)));
    let away = ["not sent: not connected", "connected again; what was said meanwhile is not shown"];
    let expected = json!({
        "ann": ["ann joined lobby", "annhello", "bob<b>hi</b>", away[0], away[1], "annagain", "boband you"],
        "bob": ["bob joined lobby", "annhello", "bob<b>hi</b>", away[1], "annagain", "boband you"],
    });
    assert_eq!(chats.tell().await, expected);
}
