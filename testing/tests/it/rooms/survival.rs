//! Nothing that was acknowledged is lost and no cursor comes twice, whatever happens to the server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tidings_testing::http::Client;
use tidings_testing::{Launch, Process};

use super::*;

/// Kills in every run of the tests; `make test-all` sets more.
const ROUNDS: u64 = 8;

fn rounds() -> u64 {
    std::env::var("TIDINGS_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS)
}

fn address(process: &Process) -> SocketAddr {
    process.url("").replace("http://", "").parse().expect("an address")
}

/// The user `dev`, in a room of a process.
fn dev(process: &Process, wire: Wire, asked: &str) -> Guest {
    Guest::at(address(process), wire, "/v1/p/rooms/r/events").asking(asked)
}

async fn with_room(process: &Process) {
    let members =
        Client::new().post(process.url("/v1/p/rooms/r/members")).json(&json!({ "add": ["dev", "bob"] }));
    assert_eq!(answer(members).await.status(), 200);
}

/// All that a room of a process has: cursors and what was written.
async fn everything(process: &Process) -> BTreeMap<String, String> {
    let mut reader = dev(process, Wire::Sse, "cursor=oldest&caughtUp=1").comes().await;
    let (mut events, mut last) = (BTreeMap::new(), String::new());
    loop {
        let event = reader.hears().await;
        if event.kind == "infoEvent" {
            return events;
        }
        assert!(event.cursor() > last.as_str(), "{} after {last}", event.cursor());
        last = event.cursor().to_owned();
        let id = event.payload()["messageView"]["id"].as_str().expect("an id").to_owned();
        assert!(!events.values().any(|known| *known == id), "{id} is there twice");
        events.insert(last.clone(), id);
    }
}

/// What writers were told.
#[derive(Default)]
struct Told {
    /// Of messages, with what was written.
    messages: BTreeMap<String, String>,
    /// Of what was typed.
    typed: BTreeSet<String>,
}

/// Writes and types until the server does not answer any more.
async fn write_until_killed(url: String, writer: String, told: Arc<Mutex<Told>>) {
    let client = Client::new();
    for n in 0.. {
        let id = format!("{writer}.{n}");
        let is_typing = n % 3 == 2;
        let event = if is_typing { typing(&writer) } else { message(&id) };
        let Ok(answer) = client.post(&url).json(&event).send().await else { return };
        assert_eq!(answer.status(), 200);
        let Ok(written) = answer.json::<Value>().await else { return };
        let cursor = written["cursor"].as_str().expect("a cursor").to_owned();
        let mut told = told.lock().expect("nobody panics");
        if is_typing {
            assert!(told.typed.insert(cursor));
        } else {
            assert_eq!(told.messages.insert(cursor, id), None);
        }
    }
}

/// Follows a room until the server is gone; tells all it has heard of what is kept.
async fn follow_until_killed(mut reader: Reader) -> Vec<(String, String)> {
    let events = reader.rest().await.into_iter().filter(|event| event.kind == "messageEvent");
    let heard = events.map(|event| {
        let id = event.payload()["messageView"]["id"].as_str().expect("an id").to_owned();
        (event.cursor().to_owned(), id)
    });
    heard.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_under_load_lose_nothing_that_was_answered_or_heard_and_give_no_cursor_twice() {
    let mut process = Process::serve(&[]).await;
    with_room(&process).await;
    let told = Arc::new(Mutex::new(Told::default()));
    let mut heard: [Vec<(String, String)>; 2] = Default::default();
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..rounds() {
        let mut readers = Vec::new();
        for (wire, heard) in [Wire::Sse, Wire::WebSocket].into_iter().zip(&heard) {
            let at = heard.last().map_or("oldest", |(cursor, _)| cursor.as_str());
            let reader = dev(&process, wire, &format!("cursor={at}")).comes().await;
            readers.push(tokio::spawn(follow_until_killed(reader)));
        }
        let before = told.lock().expect("nobody panics").messages.len();
        let url = process.url("/v1/p/rooms/r/events");
        let writers: Vec<_> = (0..4)
            .map(|n| tokio::spawn(write_until_killed(url.clone(), format!("{round}.{n}"), told.clone())))
            .collect();
        let wanted = before + rng.usize(1..80);
        until("enough is written", || told.lock().expect("nobody panics").messages.len() >= wanted).await;
        process.kill().await;
        for writer in writers {
            writer.await.expect("nothing was wrong");
        }
        for (heard, reader) in heard.iter_mut().zip(readers) {
            heard.extend(reader.await.expect("nothing was wrong"));
        }
        process = process.restart().await;
        let all = everything(&process).await;
        let told = told.lock().expect("nobody panics");
        for (cursor, id) in &told.messages {
            assert_eq!(all.get(cursor), Some(id), "what was answered is there");
        }
        for heard in &heard {
            // Exactly the beginning of what there is: nobody was shown what was lost, and nobody missed anything.
            let kept = all.iter().take(heard.len()).map(|(cursor, id)| (cursor.clone(), id.clone()));
            assert!(kept.eq(heard.iter().cloned()), "{} of {}", heard.len(), all.len());
        }
        assert!(told.typed.iter().all(|cursor| !all.contains_key(cursor)), "typing has cursors of its own");
    }
    let all = everything(&process).await;
    for (wire, heard) in [Wire::Sse, Wire::WebSocket].into_iter().zip(heard) {
        let at = heard.last().map_or("oldest", |(cursor, _)| cursor.as_str());
        let mut reader = dev(&process, wire, &format!("cursor={at}")).comes().await;
        for cursor in all.keys().skip(heard.len()) {
            assert_eq!(reader.hears().await.cursor(), cursor);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_holds_the_cursor_of_typing_resumes_after_a_crash_and_it_is_never_used_again() {
    let mut process = Process::serve(&[]).await;
    with_room(&process).await;
    let client = Client::new();
    let write = async |process: &Process, event: Value| {
        let written = answer(client.post(process.url("/v1/p/rooms/r/events")).json(&event)).await;
        body(written).await["cursor"].as_str().expect("a cursor").to_owned()
    };
    let mut highest = write(&process, message(0)).await;
    for n in 1..4 {
        let mut reader = dev(&process, Wire::Sse, "").comes().await;
        let mut typed = String::new();
        for _ in 0..5 {
            typed = write(&process, typing("bob")).await;
            assert_eq!(reader.hears().await.cursor(), typed);
            assert!(typed > highest);
            highest = typed.clone();
        }
        process.kill().await;
        process = process.restart().await;
        // It was the last thing that anybody had heard, and nobody has written it down.
        let mut readers = Vec::new();
        for wire in WIRES {
            readers.push(dev(&process, wire, &format!("cursor={typed}")).comes().await);
            readers.push(dev(&process, wire, "").having_heard(&typed).comes().await);
        }
        readers.push(dev(&process, Wire::WebSocket, "").resuming(&typed).comes().await);
        let next = write(&process, message(n)).await;
        assert!(next > highest, "{next} after {highest}");
        highest = next.clone();
        for reader in &mut readers {
            assert_eq!(reader.hears().await.cursor(), next);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_last_seen_and_answers_to_producers_survive_a_crash() {
    let mut process = Process::serve(&[]).await;
    with_room(&process).await;
    let client = Client::new();
    let post = |process: &Process, what: &str, sent: &Value| {
        client.post(process.url(&format!("/v1/p/rooms/r/{what}"))).json(sent)
    };
    let produce = |process: &Process| {
        let request = post(process, "events", &json!([message(1), message(2)]));
        request.header("producer-id", "p").header("producer-epoch", 0).header("producer-seq", 0)
    };
    let written = body(answer(produce(&process)).await).await;
    let change = json!({ "add": ["carol"], "remove": ["bob"] });
    assert_eq!(
        body(answer(post(&process, "members", &change)).await).await,
        json!({ "members": ["carol", "dev"] })
    );
    let seen = json!({ "cursor": written[0]["cursor"], "deviceId": "phone" });
    let seen = body(answer(post(&process, "seen", &seen)).await).await;
    process.kill().await;
    process = process.restart().await;
    let get = |what: &str| client.get(process.url(&format!("/v1/p/rooms/r/{what}")));
    assert_eq!(body(answer(get("members")).await).await, json!({ "members": ["carol", "dev"] }));
    assert_eq!(body(answer(get("seen?deviceId=phone")).await).await, seen);
    assert_eq!(body(answer(produce(&process)).await).await, written, "the same answer");
    let mut reader = dev(&process, Wire::Sse, "cursor=last&deviceId=phone").comes().await;
    assert_eq!(reader.hears().await.body["cursor"], written[1]["cursor"]);
    let next = body(answer(post(&process, "events", &message(3))).await).await;
    assert_eq!(reader.hears().await.body["cursor"], next["cursor"], "and nothing was added");
    let epoch = reader.head["stream-epoch"].to_str().expect("text").parse::<u64>().expect("a number");
    let process = process.restart().await;
    let reader = dev(&process, Wire::Sse, "").comes().await;
    let later = reader.head["stream-epoch"].to_str().expect("text").parse::<u64>().expect("a number");
    assert!(later > epoch, "{later} after {epoch}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_tells_a_thousand_streams_to_come_again_each_at_another_time() {
    let variables = [("TIDINGS_ROOMS_MAX_STREAMS_PER_USER", "2000")];
    let process = Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &variables)).await;
    with_room(&process).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let mut readers = Vec::new();
    for n in 0..1000 {
        let (wire, begun) = (WIRES[n % 3], begun.clone());
        let mut reader = dev(&process, wire, "caughtUp=1").comes().await;
        readers.push(tokio::spawn(async move {
            reader.is_told("caught-up").await;
            begun.fetch_add(1, Ordering::SeqCst);
            let info = reader.is_told("server-restart").await;
            let wait = (info.detail()["retryAfter"].as_f64().expect("seconds") * 1000.0).round() as u64;
            let close = reader.ends().await;
            match wire {
                Wire::WebSocket => assert_eq!(close, Some(1012)),
                Wire::Sse | Wire::SseLater => assert_eq!(reader.retries[1..], [wait]),
            }
            wait
        }));
    }
    until("all have begun", || begun.load(Ordering::SeqCst) == 1000).await;
    let status = process.terminate().await;
    assert!(status.success(), "{status}");
    let mut waits = Vec::new();
    for reader in readers {
        waits.push(reader.await.expect("it was told"));
    }
    assert!(waits.iter().all(|wait| (250..=1000).contains(wait)));
    for fifth in 0..5 {
        let (from, to) = (250 + fifth * 150, 400 + fifth * 150);
        let count = waits.iter().filter(|wait| (from..to).contains(*wait)).count();
        assert!((100..300).contains(&count), "{count} of 1000 come between {from} and {to} ms");
    }
}
