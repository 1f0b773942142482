//! Readers that do not keep up: borne as long as it costs nobody anything, then told, cut and let back in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidings_testing::{Launch, Process, http};

use super::guest as guest_of;
use super::*;

/// A message that fills sockets.
fn large(id: impl ToString, bytes: usize) -> Value {
    let view = json!({ "id": id.to_string(), "filling": "x".repeat(bytes) });
    json!({ "type": "messageEvent", "payload": { "messageView": view } })
}

/// Writes so many messages of so many bytes.
async fn fill(server: &Harness, count: usize, bytes: usize) -> Vec<String> {
    let mut cursors = Vec::new();
    while cursors.len() < count {
        let some: Vec<Value> =
            (cursors.len()..count.min(cursors.len() + 400)).map(|n| large(n, bytes)).collect();
        cursors.extend(writes(server, &some).await);
    }
    cursors
}

/// Somebody with a device of its own and little room for what it does not read.
fn narrow(server: &Harness, wire: Wire) -> Guest {
    alice(server, wire).asking(&format!("deviceId={wire:?}")).narrow()
}

/// A reader that has had all there was, and stops reading.
async fn stopped(server: &Harness, guest: &Guest) -> Reader {
    let mut reader = guest.comes().await;
    hears_only_what_is_new(server, &mut reader).await;
    reader
}

/// Lets time pass until a reader is cut; tells what one is told that comes again at once.
async fn until_cut(server: &Harness, guest: &Guest) -> reader::Refused {
    for _ in 0..20 {
        let_pass(server, 1).await;
        if let Err(refused) = guest.clone().asking("cursor=head").tries().await {
            return refused;
        }
    }
    panic!("it is not cut");
}

/// Lags and stalls are small, so that little is enough.
fn strict() -> Options {
    Options { max_lag: 10, ..Options::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_reading_is_told_and_cut_and_misses_nothing_when_it_comes_again() {
    let server = open().await;
    for wire in WIRES {
        let guest = narrow(&server, wire);
        let mut reader = stopped(&server, &guest).await;
        let mut cursors = vec![];
        cursors.extend(fill(&server, 20_000, 500).await);
        let early = until_cut(&server, &guest).await;
        assert_eq!(early.what(), (409, "SlowConsumer"));
        is_a_refusal(early.status, &early.headers, &early.body);
        assert_eq!(early.headers["retry-after"], "1");
        let mut heard = reader.rest().await;
        assert!(!reader.broken, "it ends properly");
        let info = heard.pop().expect("a word at the end");
        assert_eq!((info.kind.as_str(), info.reason()), ("infoEvent", "slow-consumer"));
        let heard: Vec<String> = heard.iter().map(|event| event.cursor().to_owned()).collect();
        assert_eq!(heard, cursors[..heard.len()], "what it has heard is whole");
        assert!(heard.len() < 15_000, "it was behind: {}", heard.len());
        let detail = info.detail();
        assert_eq!((&detail["status"], &detail["resume"]), (&json!(409), &json!(info.cursor())));
        assert_eq!(info.cursor(), heard.last().expect("some").as_str());
        assert_eq!(detail["lag"].as_u64().expect("a number"), (20_000 - heard.len()) as u64);
        let wait = (detail["retryAfter"].as_f64().expect("seconds") * 1000.0).round() as u64;
        assert!((250..=1000).contains(&wait), "{wait}");
        assert_eq!(early.body["retryAfter"], detail["retryAfter"], "no time has passed since");
        match wire {
            Wire::WebSocket => assert_eq!(reader.close.as_ref().map(|(number, _)| *number), Some(4409)),
            Wire::Sse | Wire::SseLater => {
                assert_eq!(reader.retries.len(), 2);
                assert_eq!(reader.retries[1], wait);
            }
        }
        server.clock.advance(Duration::from_millis(wait));
        let mut again = guest.asking(&format!("cursor={}", info.cursor())).comes().await;
        hears_all(&mut again, &cursors[heard.len()..]).await;
    }
}

#[tokio::test]
async fn a_reader_behind_the_ring_is_served_from_the_store_and_not_cut_for_that() {
    let server = open_with(Options { ring: 4, ..Options::default() }).await;
    for wire in WIRES {
        let mut reader = stopped(&server, &narrow(&server, wire)).await;
        let cursors = fill(&server, 200, 8000).await;
        let_pass(&server, 20).await;
        hears_all(&mut reader, &cursors).await;
        hears_only_what_is_new(&server, &mut reader).await;
        assert_eq!(reader.retries.len(), usize::from(wire != Wire::WebSocket), "nothing else was said");
    }
}

#[tokio::test]
async fn a_reader_far_behind_is_cut_when_it_takes_nothing_for_so_long_and_not_before() {
    let server = open_with(strict()).await;
    for wire in WIRES {
        let guest = narrow(&server, wire);
        let mut reader = stopped(&server, &guest).await;
        fill(&server, 60, 16_000).await;
        let_pass(&server, 4).await;
        drop(guest.clone().asking("cursor=head").comes().await);
        assert_eq!(until_cut(&server, &guest).await.what(), (409, "SlowConsumer"));
        assert_eq!(reader.rest().await.last().expect("a word at the end").reason(), "slow-consumer");
    }
}

#[tokio::test]
async fn a_reader_ten_times_too_far_behind_is_cut_without_waiting() {
    // Fewer than can be on their way, so that the reader is far behind whatever the sockets take.
    let server =
        open_with(Options { max_lag: 10, stall: Duration::from_secs(3600), ..Options::default() }).await;
    for wire in WIRES {
        let guest = narrow(&server, wire);
        let mut reader = stopped(&server, &guest).await;
        fill(&server, 90, 16_000).await;
        let_pass(&server, 10).await;
        drop(guest.clone().asking("cursor=head").comes().await);
        fill(&server, 120, 16_000).await;
        let_pass(&server, 1).await;
        let refused = guest.clone().asking("cursor=head").is_refused().await;
        assert_eq!(refused.what(), (409, "SlowConsumer"));
        let heard = reader.rest().await;
        assert_eq!(heard.last().expect("a word at the end").reason(), "slow-consumer");
        let_pass(&server, 2).await;
    }
}

#[tokio::test]
async fn a_long_replay_alone_is_not_slow() {
    let server = open_with(strict()).await;
    let cursors = fill(&server, 400, 8000).await;
    for wire in WIRES {
        let mut reader = narrow(&server, wire).asking("cursor=oldest").comes().await;
        for some in cursors[..100].chunks(10) {
            hears_all(&mut reader, some).await;
            // Less than half of what a reader may take: the server may be slow to see that there is room again.
            let_pass(&server, 2).await;
        }
        hears_all(&mut reader, &cursors[100..]).await;
    }
}

#[tokio::test]
async fn a_replay_of_which_nothing_is_taken_is_cut() {
    let server = open_with(strict()).await;
    fill(&server, 400, 8000).await;
    for wire in WIRES {
        let guest = narrow(&server, wire);
        let mut reader = guest.clone().asking("cursor=oldest").comes().await;
        reader.hears().await;
        assert_eq!(until_cut(&server, &guest).await.what(), (409, "SlowConsumer"));
        let heard = reader.rest().await;
        assert_eq!(heard.last().expect("a word at the end").reason(), "slow-consumer");
        let_pass(&server, 2).await;
    }
}

#[tokio::test]
async fn who_does_not_even_take_the_last_word_is_cut_off() {
    let server = open_with(strict()).await;
    for wire in WIRES {
        let guest = narrow(&server, wire);
        let mut reader = stopped(&server, &guest).await;
        fill(&server, 60, 16_000).await;
        until_cut(&server, &guest).await;
        assert!(!server.server().live_connections().is_empty(), "it is told for a while");
        let_pass(&server, 7).await;
        until("it is cut off", || server.server().live_connections().is_empty()).await;
        let heard = reader.rest().await;
        assert!(reader.broken, "it did not end, its socket was reset");
        assert!(heard.iter().all(|event| event.kind == "messageEvent"), "it took none of the last word");
    }
}

#[tokio::test]
async fn only_the_device_that_was_slow_cools_down() {
    let server = open_with(strict()).await;
    let guest = narrow(&server, Wire::Sse);
    let mut reader = stopped(&server, &guest).await;
    let cursors = fill(&server, 60, 16_000).await;
    until_cut(&server, &guest).await;
    let info = reader.rest().await.pop().expect("a word at the end");
    assert_eq!(info.reason(), "slow-consumer");
    changes_members(&server, "other", &["alice"], &[]).await;
    let device = format!("deviceId={:?}", Wire::Sse);
    // A browser would not come again after 409: it is let wait.
    let browser = alice(&server, Wire::Sse).asking(&device).having_heard(info.cursor());
    let held = tokio::spawn(async move { browser.comes().await });
    until("it waits", || server.clock.sleepers() == SLEEPERS + 1).await;
    let asked = format!("cursor={}", info.cursor());
    for wire in WIRES {
        let same = alice(&server, wire).asking(&asked).asking(&device);
        assert_eq!(same.is_refused().await.what(), (409, "SlowConsumer"), "on any wire");
        alice(&server, wire).asking(&asked).asking("deviceId=another").comes().await;
        alice(&server, wire).asking(&asked).comes().await;
        guest_of(&server, wire, "bob", ROOM).asking(&asked).asking(&device).comes().await;
        guest_of(&server, wire, "alice", "other").asking(&device).comes().await;
    }
    assert!(!held.is_finished());
    server.clock.advance(Duration::from_secs(1));
    let mut served = held.await.expect("it is served");
    let missed = cursors.iter().position(|cursor| cursor == info.cursor()).expect("it was one of them") + 1;
    hears_all(&mut served, &cursors[missed..]).await;
}

#[tokio::test]
async fn who_is_slow_again_and_again_stays_away_twice_as_long_each_time() {
    let server = open_with(strict()).await;
    let guest = narrow(&server, Wire::Sse);
    let mut waits = Vec::new();
    for _ in 0..9 {
        let mut reader = stopped(&server, &guest).await;
        fill(&server, 40, 16_000).await;
        until_cut(&server, &guest).await;
        let info = reader.rest().await.pop().expect("a word at the end");
        assert_eq!(info.reason(), "slow-consumer");
        let wait = (info.detail()["retryAfter"].as_f64().expect("seconds") * 1000.0).round() as u64;
        assert_eq!(reader.retries[1], wait, "a browser is told the same");
        waits.push(wait);
        let_pass(&server, (wait / 1000 + 1) as usize).await;
    }
    assert!((250..=1000).contains(&waits[0]), "{waits:?}");
    for pair in waits.windows(2) {
        assert_eq!(pair[1], (pair[0] * 2).min(30_000), "{waits:?}");
    }
    assert_eq!(waits[8], 30_000);
}

#[tokio::test]
async fn under_pressure_what_is_typed_goes_first() {
    let server = open_with(Options { ring: 16, ..Options::default() }).await;
    for wire in WIRES {
        let mut reader = stopped(&server, &narrow(&server, wire)).await;
        let mut messages = Vec::new();
        for n in 0..120 {
            messages.push(write(&server, large(n, 8000)).await);
            write(&server, typing("bob")).await;
        }
        let mut heard = Vec::new();
        let mut typed = 0;
        while heard.len() < messages.len() {
            let event = reader.hears().await;
            match event.kind.as_str() {
                "typingEvent" => typed += 1,
                _ => heard.push(event.cursor().to_owned()),
            }
        }
        assert_eq!(heard, messages, "nothing that counts is missing");
        assert!(typed < 120, "it was not kept for who is behind: {typed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stops_among_a_thousand_delays_nobody() {
    const EVENTS: usize = 40;
    let rooms = Options { max_lag: 10, max_streams_per_user: 2000, ..Options::default() };
    let server = open_with(rooms).await;
    let stopping = narrow(&server, Wire::Sse);
    let stopped = stopped(&server, &stopping).await;
    let heard = Arc::new(AtomicUsize::new(0));
    let mut readers = Vec::new();
    for n in 0..999 {
        let wire = if n % 10 == 0 { Wire::WebSocket } else { Wire::Sse };
        let mut reader = alice(&server, wire).comes().await;
        let heard = heard.clone();
        readers.push(tokio::spawn(async move {
            let mut cursors = Vec::with_capacity(EVENTS);
            while cursors.len() < EVENTS {
                cursors.push(reader.hears().await.cursor().to_owned());
                heard.fetch_add(1, Ordering::SeqCst);
            }
            (reader, cursors)
        }));
    }
    until("all are there", || server.server().live_connections().len() == 1000).await;
    assert_eq!(server.server().rooms().channels().len(), 2, "they share what is written for them");
    let mut written = Vec::new();
    let now = server.clock.now();
    for n in 1..=EVENTS {
        written.push(write(&server, large(n, 8000)).await);
        // Everybody else has heard it before anything else happens: no further event, and no time that passes.
        until("all others have heard it", || heard.load(Ordering::SeqCst) == n * 999).await;
    }
    assert_eq!(server.clock.now(), now);
    let mut healthy = Vec::new();
    for reader in readers {
        let (reader, cursors) = reader.await.expect("it heard all");
        assert_eq!(cursors, written);
        healthy.push(reader);
    }
    assert_eq!(until_cut(&server, &stopping).await.status, 409, "it was behind all the while");
    let last = write(&server, message("last")).await;
    for reader in &mut healthy {
        hears_all(reader, std::slice::from_ref(&last)).await;
    }
    drop(stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stopped_readers_miss_is_not_kept_for_each_of_them() {
    const READERS: u64 = 200;
    let variables = [
        ("TIDINGS_ROOMS_MAX_STREAMS_PER_USER", "1000"),
        ("TIDINGS_ROOMS_MAX_LAG", "1000000"),
        ("TIDINGS_ROOMS_STALL", "1h"),
    ];
    let process = Process::launch(Launch::new(&["--dev", "--listen", "127.0.0.1:0"], &variables)).await;
    let client = http::Client::new();
    let members = client.post(process.url("/v1/p/rooms/r/members")).json(&json!({ "add": ["dev"] }));
    assert_eq!(answer(members).await.status(), 200);
    let address = process.url("").replace("http://", "").parse().expect("an address");
    let mut stopped = Vec::new();
    for n in 0..READERS {
        let wire = WIRES[n as usize % 3];
        let mut reader = Guest::at(address, wire, "/v1/p/rooms/r/events?caughtUp=1").narrow().comes().await;
        reader.is_told("caught-up").await;
        stopped.push(reader);
    }
    let before = process.memory();
    let block = json!(vec![large("x", 16_000); 200]);
    for _ in 0..10 {
        let written = client.post(process.url("/v1/p/rooms/r/events")).json(&block);
        assert_eq!(answer(written).await.status(), 200);
    }
    let missed = 10 * 200 * 16_000;
    let grown = process.memory().saturating_sub(before);
    // What the store keeps of it in memory, and little for each: a hundredth of what each of them misses.
    let most = 3 * missed + READERS * missed / 100;
    assert!(grown < most, "{grown} bytes more for {READERS} readers that miss {missed} each");
    // They have not been cut, and hear it all when they read on.
    let reader = &mut stopped[0];
    for _ in 0..2000 {
        assert_eq!(reader.hears().await.kind, "messageEvent");
    }
}
