//! How what is published reaches the sessions: in which mode, in which order, how often.

use std::time::Duration;

use tidings_sessions::Options;
use tidings_sessions::breaker::BreakerOptions;
use tidings_testing::until;

use super::*;

/// A source with so many subscribers, `s0` and so on.
async fn source_with(server: &Harness, source: &str, subscribers: usize) {
    create(server, source, "text/plain").await;
    add(server, source, 0..subscribers).await;
}

async fn add(server: &Harness, source: &str, sessions: std::ops::Range<usize>) {
    for n in sessions {
        subscribe(server, &format!("s{n}"), source).await;
    }
}

async fn close(server: &Harness, session: &str) {
    let close = server.post(&format!("/v1/app/stream/{session}")).header("stream-closed", "true");
    assert_eq!(answer(close).await.status(), 204);
}

#[tokio::test]
async fn with_two_hundred_subscribers_it_is_inline_and_with_one_more_it_is_queued() {
    let server = Harness::start().await;
    source_with(&server, "news", 1).await;
    assert_eq!(publish(&server, "news", "a").await, inline(1));
    add(&server, "news", 1..200).await;
    assert_eq!(publish(&server, "news", "b").await, inline(200));
    for n in [0, 99, 199] {
        let expected = if n == 0 { "ab" } else { "b" };
        assert_eq!(content(&server, &format!("s{n}")).await, expected, "there when the publish is answered");
    }
    add(&server, "news", 200..201).await;
    assert_eq!(publish(&server, "news", "c").await, left("queued", 201));
    for n in 0..201 {
        let expected = ["abc", "bc", "c"][usize::from(n > 0) + usize::from(n > 199)];
        comes_to_have(&server, &format!("s{n}"), expected).await;
    }
    assert_eq!(answer(unsubscribing(&server, "s7", "news")).await.status(), 204);
    assert_eq!(publish(&server, "news", "d").await, inline(200), "the follower had nothing left");
    assert_eq!(content(&server, "s0").await, "abcd");
    assert_eq!(content(&server, "s7").await, "bc");
}

#[tokio::test]
async fn without_the_queue_a_thousand_are_inline_and_one_more_are_skipped() {
    let server = server_with(Options { queue: false, ..Options::default() }).await;
    source_with(&server, "news", 201).await;
    assert_eq!(publish(&server, "news", "a").await, inline(201));
    add(&server, "news", 201..1000).await;
    assert_eq!(publish(&server, "news", "b").await, inline(1000));
    add(&server, "news", 1000..1001).await;
    assert_eq!(publish(&server, "news", "c").await, left("skipped", 1001));
    assert_eq!(content(&server, "news").await, "abc", "the source has it");
    assert_eq!(answer(unsubscribing(&server, "s5", "news")).await.status(), 204);
    assert_eq!(publish(&server, "news", "d").await, inline(1000));
    assert_eq!(content(&server, "s0").await, "abd", "what was skipped does not come later");
    assert_eq!(content(&server, "s1000").await, "d");
}

#[tokio::test]
async fn a_session_that_has_expired_is_no_subscriber_from_that_moment_on() {
    for store in [TestStore::Memory, TestStore::Embedded] {
        let ttl = Duration::from_secs(2);
        let sessions = Options { ttl, queue: false, max_inline_fanout: 3, ..Options::default() };
        let server = Harness::with(Setup { sessions, store, ..Setup::default() }).await;
        source_with(&server, "news", 4).await;
        server.clock.advance(Duration::from_secs(1));
        add(&server, "news", 4..5).await;
        assert_eq!(publish(&server, "news", "a").await, left("skipped", 5), "all five are there");
        server.clock.advance(Duration::from_secs(1));
        assert_eq!(publish(&server, "news", "b").await, inline(1), "four have expired");
        assert_eq!(content(&server, "s4").await, "b");
        server.clock.advance(Duration::from_secs(2));
        let close = server.post("/v1/app/publish/news").header("stream-closed", "true");
        assert_eq!(told(&answer(close).await).1, 0, "nobody is left");
    }
}

#[tokio::test]
async fn expired_sessions_do_not_make_a_publish_one_to_many() {
    let server = server_with(Options { fanout_queue_threshold: 2, ..Options::default() }).await;
    source_with(&server, "news", 3).await;
    assert_eq!(publish(&server, "news", "a").await, left("queued", 3));
    comes_to_have(&server, "s2", "a").await;
    until("the follower rests", || server.server().sessions().is_at_rest()).await;
    server.clock.advance(Duration::from_secs(1700));
    subscribe(&server, "s2", "news").await;
    server.clock.advance(Duration::from_secs(100));
    assert_eq!(publish(&server, "news", "b").await, inline(1));
    assert_eq!(content(&server, "s2").await, "ab");
}

#[tokio::test]
async fn a_session_that_somebody_reads_is_a_subscriber_however_late_it_is_renewed() {
    let server = server_with(Options { ttl: Duration::from_secs(2), ..Options::default() }).await;
    source_with(&server, "news", 2).await;
    let mut events =
        tidings_testing::sse::Events::of(server.get("/v1/app/stream/s1?offset=-1&live=sse").await);
    assert!(events.next().await.is_some_and(|event| event.name == "control"));
    server.clock.advance(Duration::from_secs(3));
    assert_eq!(publish(&server, "news", "a").await, inline(1));
    assert_eq!(events.next().await.expect("an event").data, "a");
}

#[tokio::test]
async fn the_borders_between_the_modes_can_be_set() {
    let queued = server_with(Options { fanout_queue_threshold: 2, ..Options::default() }).await;
    source_with(&queued, "news", 2).await;
    assert_eq!(publish(&queued, "news", "a").await, inline(2));
    add(&queued, "news", 2..3).await;
    assert_eq!(publish(&queued, "news", "b").await, left("queued", 3));
    let skipping = Options { queue: false, max_inline_fanout: 2, ..Options::default() };
    let skipped = server_with(skipping).await;
    source_with(&skipped, "news", 2).await;
    assert_eq!(publish(&skipped, "news", "a").await, inline(2));
    add(&skipped, "news", 2..3).await;
    assert_eq!(publish(&skipped, "news", "b").await, left("skipped", 3));
    let both = Options { max_inline_fanout: 2, fanout_queue_threshold: 2, ..Options::default() };
    let never = server_with(both).await;
    source_with(&never, "news", 3).await;
    assert_eq!(publish(&never, "news", "a").await, left("queued", 3), "with the queue nothing is skipped");
}

#[tokio::test]
async fn a_publish_that_nobody_hears_says_so_and_one_that_fails_reaches_nobody() {
    let server = Harness::start().await;
    assert_eq!(refused(publishing(&server, "nowhere", "x"), 404).await, "stream_not_found");
    create(&server, "news", "text/plain").await;
    let alone = answer(publishing(&server, "news", "x")).await;
    assert_eq!(told(&alone), inline(0));
    let next = header(&alone, "stream-next-offset").to_owned();
    subscribe(&server, "alice", "news").await;
    for (refusal, status, code) in [
        (
            publishing(&server, "news", "x").header("if-match", "0000000000000000_0000000000000000"),
            412,
            "tail_moved",
        ),
        (publishing(&server, "news", ""), 400, "empty_append"),
        (
            server.post("/v1/app/publish/news").header("content-type", "application/json").body("1"),
            409,
            "content_type_mismatch",
        ),
        (
            publishing(&server, "news", "x")
                .header("producer-id", "p")
                .header("producer-epoch", "0")
                .header("producer-seq", "5"),
            409,
            "producer_gap",
        ),
    ] {
        assert_eq!(refused(refusal, status).await, code);
    }
    assert_eq!(content(&server, "alice").await, "");
    let good = publishing(&server, "news", "y").header("if-match", format!("\"{next}\""));
    assert_eq!(told(&answer(good).await), inline(1));
    assert_eq!(content(&server, "alice").await, "y");
}

#[tokio::test]
async fn a_publish_takes_the_headers_of_an_append_and_is_answered_as_one() {
    for server in both_stores().await {
        create(&server, "news", "text/plain").await;
        subscribe(&server, "alice", "news").await;
        let produced = |seq: &str| {
            let request = publishing(&server, "news", "a").header("producer-id", "p");
            request.header("producer-epoch", "0").header("producer-seq", seq.to_owned())
        };
        let first = answer(produced("0")).await;
        assert_eq!((first.status().as_u16(), told(&first)), (200, inline(1)));
        assert_eq!(header(&first, "producer-seq"), "0");
        let again = answer(produced("0")).await;
        assert_eq!((again.status().as_u16(), told(&again)), (204, left("inline", 1)));
        assert_eq!(content(&server, "alice").await, "a", "once");
        let ordered = |seq: &str| publishing(&server, "news", "b").header("stream-seq", seq.to_owned());
        assert_eq!(told(&answer(ordered("b")).await), inline(1));
        assert_eq!(refused(ordered("a"), 409).await, "sequence_conflict");
        let last = answer(publishing(&server, "news", "c").header("stream-closed", "true")).await;
        assert_eq!((last.status().as_u16(), told(&last)), (204, inline(1)));
        assert_eq!(header(&last, "stream-closed"), "true");
        assert_eq!(refused(publishing(&server, "news", "d"), 409).await, "stream_closed");
        assert_eq!(content(&server, "alice").await, "abc");
        let session = answer(server.request(Method::HEAD, "/v1/app/stream/alice")).await;
        assert!(!session.headers().contains_key("stream-closed"), "sessions stay open");
        assert_eq!(header(&session, "content-type"), "text/plain");
        assert_eq!(header(&session, "stream-ttl"), "1800");
    }
}

#[tokio::test]
async fn what_arrives_is_what_was_published_whatever_it_is() {
    for server in both_stores().await {
        let bytes: Vec<u8> = (0..=255).collect();
        create(&server, "raw", "application/octet-stream").await;
        subscribe(&server, "r", "raw").await;
        let raw = server.post("/v1/app/publish/raw").header("content-type", "application/octet-stream");
        assert_eq!(told(&answer(raw.body(bytes.clone())).await), inline(1));
        let read = server.get("/v1/app/stream/r?offset=-1").await;
        assert_eq!(header(&read, "content-type"), "application/octet-stream");
        assert_eq!(read.bytes().await.expect("bytes"), bytes);
        create(&server, "json", "application/json").await;
        subscribe(&server, "j", "json").await;
        let array = server.post("/v1/app/publish/json").header("content-type", "application/json");
        assert_eq!(told(&answer(array.body(r#"[{"a": 1},2,"x"]"#)).await), inline(1));
        for stream in ["json", "j"] {
            assert_eq!(content(&server, stream).await, r#"[{"a": 1},2,"x"]"#);
        }
        // Each element is a message of its own, in the session as in the source.
        let second = server.get("/v1/app/stream/j?offset=-1").await;
        let (_, index) = header(&second, "stream-next-offset").split_once('_').expect("two halves");
        assert_eq!(index.parse::<u64>().expect("a number"), 2);
    }
}

#[tokio::test]
async fn a_plain_append_fans_out_as_a_publish_does() {
    let server = Harness::start().await;
    source_with(&server, "news", 2).await;
    let offset = server.append_text("/v1/app/stream/news", "plain,").await;
    let appended = server.post("/v1/app/stream/news").header("content-type", "text/plain").body("and,");
    let appended = answer(appended).await;
    assert!(!appended.headers().contains_key("stream-fanout-mode"));
    assert!(header(&appended, "stream-next-offset") > offset.as_str());
    publish(&server, "news", "published").await;
    for session in ["s0", "s1"] {
        assert_eq!(content(&server, session).await, "plain,and,published");
    }
}

#[tokio::test]
async fn a_late_subscriber_hears_what_comes_and_nothing_from_before() {
    for server in both_stores().await {
        create(&server, "news", "text/plain").await;
        subscribe(&server, "early", "news").await;
        for n in 0..100 {
            publish(&server, "news", &format!("{n},")).await;
        }
        subscribe(&server, "late", "news").await;
        for n in 100..103 {
            assert_eq!(publish(&server, "news", &format!("{n},")).await, inline(2));
        }
        assert_eq!(content(&server, "late").await, "100,101,102,");
        assert_eq!(content(&server, "early").await, content(&server, "news").await);
    }
}

#[tokio::test]
async fn a_session_that_missed_a_fan_out_goes_on_hearing() {
    let options = Options { queue: false, max_inline_fanout: 1, ..Options::default() };
    let server = server_with(options).await;
    source_with(&server, "news", 1).await;
    publish(&server, "news", "a").await;
    add(&server, "news", 1..2).await;
    assert_eq!(publish(&server, "news", "missed").await, left("skipped", 2));
    assert_eq!(answer(unsubscribing(&server, "s1", "news")).await.status(), 204);
    for text in ["b", "c"] {
        assert_eq!(publish(&server, "news", text).await, inline(1));
    }
    assert_eq!(content(&server, "s0").await, "abc");
}

#[tokio::test]
async fn late_subscribers_of_a_source_that_is_behind_hear_from_where_they_came() {
    // The follower is as quick as it is; what counts is that nobody hears anything twice, out of order or from before.
    let server = server_with(Options { fanout_queue_threshold: 0, ..Options::default() }).await;
    create(&server, "news", "text/plain").await;
    let mut expected = Vec::new();
    for n in 0..30 {
        subscribe(&server, &format!("s{n}"), "news").await;
        expected.push(String::new());
        for m in 0..5 {
            let text = format!("{n}.{m},");
            assert_eq!(publish(&server, "news", &text).await, left("queued", n + 1));
            expected.iter_mut().for_each(|all| all.push_str(&text));
        }
    }
    for (n, expected) in expected.iter().enumerate() {
        comes_to_have(&server, &format!("s{n}"), expected).await;
    }
}

#[tokio::test]
async fn a_closed_session_is_a_failure_and_keeps_nobody_else_from_hearing() {
    let server = Harness::start().await;
    source_with(&server, "news", 120).await;
    close(&server, "s3").await;
    close(&server, "s60").await;
    assert_eq!(publish(&server, "news", "x").await, ("inline".to_owned(), 120, 118, 2));
    for n in [0, 4, 59, 61, 119] {
        assert_eq!(content(&server, &format!("s{n}")).await, "x");
    }
    for n in [3, 60] {
        assert_eq!(content(&server, &format!("s{n}")).await, "");
    }
}

fn quick_breaker() -> Options {
    let breaker = BreakerOptions { failures: 2, recovery: Duration::from_secs(10) };
    Options { breaker, ..Options::default() }
}

#[tokio::test]
async fn five_failures_open_the_circuit_and_the_follower_delivers_meanwhile() {
    let server = Harness::start().await;
    source_with(&server, "news", 3).await;
    source_with_shared(&server, "other").await;
    close(&server, "s1").await;
    for n in 0..5 {
        let told = publish(&server, "news", &format!("{n},")).await;
        assert_eq!(told, ("inline".to_owned(), 3, 2, 1), "one failure among successes counts, {n}");
    }
    assert_eq!(publish(&server, "news", "5,").await, left("circuit-open", 3));
    assert_eq!(content(&server, "news").await, "0,1,2,3,4,5,", "the append succeeds");
    comes_to_have(&server, "s0", "0,1,2,3,4,5,").await;
    assert_eq!(publish(&server, "other", "o,").await, inline(1), "another source has its own circuit");
    server.clock.advance(Duration::from_millis(59_999));
    assert_eq!(publish(&server, "news", "6,").await, left("circuit-open", 3));
    comes_to_have(&server, "s0", "0,1,2,3,4,5,o,6,").await;
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(publish(&server, "news", "7,").await, ("inline".to_owned(), 3, 2, 1), "the trial");
    assert_eq!(
        publish(&server, "news", "8,").await,
        ("inline".to_owned(), 3, 2, 1),
        "closed by its successes"
    );
    assert_eq!(content(&server, "s2").await, "0,1,2,3,4,5,6,7,8,");
}

#[tokio::test]
async fn one_publish_is_one_failure_however_many_units_of_it_fail() {
    let server = Harness::start().await;
    source_with(&server, "news", 120).await;
    // One in each unit of fifty: counted by units, the second publish would be the last that is inline.
    for session in ["s0", "s55", "s110"] {
        close(&server, session).await;
    }
    for n in 0..5 {
        let told = publish(&server, "news", "x").await;
        assert_eq!(told, ("inline".to_owned(), 120, 117, 3), "publish {n}");
    }
    assert_eq!(publish(&server, "news", "x").await, left("circuit-open", 120));
}

async fn source_with_shared(server: &Harness, source: &str) {
    create(server, source, "text/plain").await;
    subscribe(server, "s0", source).await;
}

#[tokio::test]
async fn a_trial_that_only_fails_opens_the_circuit_again() {
    let server = server_with(quick_breaker()).await;
    source_with(&server, "news", 1).await;
    close(&server, "s0").await;
    for _ in 0..2 {
        assert_eq!(publish(&server, "news", "x").await, ("inline".to_owned(), 1, 0, 1));
    }
    for _ in 0..2 {
        until_delivered(&server).await;
        assert_eq!(publish(&server, "news", "x").await, left("circuit-open", 1));
        until_delivered(&server).await;
        server.clock.advance(Duration::from_secs(10));
        assert_eq!(publish(&server, "news", "x").await, ("inline".to_owned(), 1, 0, 1), "a trial that fails");
    }
    // Without failures it closes, and counts from the beginning.
    assert_eq!(answer(server.request(Method::DELETE, "/v1/app/session/s0")).await.status(), 204);
    add(&server, "news", 1..2).await;
    until_delivered(&server).await;
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(publish(&server, "news", "y").await, inline(1));
    close(&server, "s1").await;
    assert_eq!(publish(&server, "news", "y").await, ("inline".to_owned(), 1, 0, 1));
    assert_eq!(publish(&server, "news", "y").await, ("inline".to_owned(), 1, 0, 1));
    until_delivered(&server).await;
    assert_eq!(publish(&server, "news", "y").await, left("circuit-open", 1));
}

/// Waits until the follower has nothing left.
async fn until_delivered(server: &Harness) {
    until("the follower rests", || server.server().sessions().is_at_rest()).await;
}

#[tokio::test]
async fn an_open_circuit_does_not_hold_back_what_is_queued() {
    let server = server_with(Options { fanout_queue_threshold: 2, ..quick_breaker() }).await;
    source_with(&server, "news", 2).await;
    close(&server, "s0").await;
    for _ in 0..2 {
        assert_eq!(publish(&server, "news", "x").await.0, "inline");
    }
    assert_eq!(publish(&server, "news", "x").await, left("circuit-open", 2));
    add(&server, "news", 2..3).await;
    assert_eq!(publish(&server, "news", "y").await, left("queued", 3));
    comes_to_have(&server, "s1", "xxxy").await;
    comes_to_have(&server, "s2", "y").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn publishers_at_the_same_time_are_in_the_same_order_everywhere() {
    for threshold in [200, 0] {
        let sessions = Options { fanout_queue_threshold: threshold, ..Options::default() };
        let setup = Setup { sessions, store: TestStore::Embedded, ..Setup::default() };
        let server = std::sync::Arc::new(Harness::with(setup).await);
        source_with(&server, "news", 8).await;
        let publishers = (0..32).map(|p| {
            let server = server.clone();
            tokio::spawn(async move {
                for n in 0..20 {
                    let answer = answer(publishing(&server, "news", &format!("{p}:{n},"))).await;
                    assert_eq!(answer.status(), 204);
                }
            })
        });
        for publisher in publishers.collect::<Vec<_>>() {
            publisher.await.expect("no panic");
        }
        let expected = content(&server, "news").await;
        assert_eq!(expected.split_terminator(',').count(), 640);
        for session in 0..8 {
            comes_to_have(&server, &format!("s{session}"), &expected).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_goes_on_while_subscribers_come_and_go() {
    let server =
        std::sync::Arc::new(Harness::with(Setup { store: TestStore::Embedded, ..Setup::default() }).await);
    create(&server, "news", "text/plain").await;
    subscribe(&server, "steady", "news").await;
    let coming: Vec<_> = (0..16)
        .map(|n| {
            let server = server.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    subscribe(&server, &format!("s{n}"), "news").await;
                    assert_eq!(answer(unsubscribing(&server, &format!("s{n}"), "news")).await.status(), 204);
                }
            })
        })
        .collect();
    for n in 0..100 {
        assert_eq!(answer(publishing(&server, "news", &format!("{n},"))).await.status(), 204);
    }
    for one in coming {
        one.await.expect("no panic");
    }
    let all = content(&server, "news").await;
    comes_to_have(&server, "steady", &all).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_unsubscribes_during_a_fan_out_hears_nothing_more_and_nobody_else_misses_anything() {
    for threshold in [200, 0] {
        let sessions = Options { fanout_queue_threshold: threshold, ..Options::default() };
        let setup = Setup { sessions, store: TestStore::Embedded, ..Setup::default() };
        let server = std::sync::Arc::new(Harness::with(setup).await);
        source_with(&server, "news", 40).await;
        let publisher = {
            let server = server.clone();
            tokio::spawn(async move {
                for n in 0..200 {
                    publish(&server, "news", &format!("{n},")).await;
                }
            })
        };
        for n in 0..20 {
            assert_eq!(answer(unsubscribing(&server, &format!("s{n}"), "news")).await.status(), 204);
        }
        publisher.await.expect("no panic");
        let all = content(&server, "news").await;
        for n in 20..40 {
            comes_to_have(&server, &format!("s{n}"), &all).await;
        }
        publish(&server, "news", "last").await;
        comes_to_have(&server, "s39", &(all.clone() + "last")).await;
        for n in 0..20 {
            let heard = content(&server, &format!("s{n}")).await;
            assert!(all.starts_with(&heard), "in order, without a gap, and not what came after: {heard}");
        }
    }
}
