//! What the server does by itself: none of it holds up another, and without one of it the server does not go on.

use std::future::pending;
use std::time::Duration;

use serde_json::{Value, json};
use tidings_engine::duty::{Leadership, Role};
use tidings_model::ProjectId;
use tidings_server::Duty;
use tidings_testing::http::{Method, StatusCode};
use tidings_testing::{Harness, SLEEPERS, Setup, until};
use tokio::sync::watch;

/// How many of the server's duties wait for the clock while another node leads: those that are begun by leading do not.
const FOLLOWING: usize = SLEEPERS - 5;

async fn create(server: &Harness, path: &str, header: (&str, &str)) {
    let create = server.put(path).header("content-type", "text/plain").header(header.0, header.1);
    assert_eq!(create.send().await.expect("an answer").status(), 201, "{path}");
}

/// Streams in the store, those included that nobody sees any more.
fn stored(server: &Harness) -> usize {
    server.metric("tidings_streams").expect("it is told") as usize
}

#[tokio::test]
async fn a_removal_that_hangs_holds_up_no_other_duty() {
    let hanging = Duty::lasting("project-removal", pending);
    let server = Harness::with(Setup { duties: vec![hanging], ..Setup::default() }).await;
    create(&server, "/v1/p/stream/brief", ("stream-ttl", "3")).await;
    create(&server, "/v1/p/stream/lasting", ("stream-ttl", "3600")).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS - 1).await;
    server.clock.advance(Duration::from_secs(5));
    until("the expired stream is gone", || stored(&server) == 1).await;
    assert_eq!(server.get("/ready").await.status(), 200);
}

#[tokio::test]
async fn a_duty_that_panics_or_ends_is_named_and_the_server_is_not_ready() {
    let second = Duration::from_secs(1);
    for (bad, why) in [
        (Duty::every("bad", second, || async { panic!("{}", "as it was told to") }), "as it was told to"),
        (Duty::lasting("bad", || async {}), "it came to an end"),
        // Also if it is one of those that each node does.
        (Duty::every("bad", second, || async { panic!("everywhere") }).on_each_node(), "everywhere"),
    ] {
        let server = Harness::with(Setup { duties: vec![bad], ..Setup::default() }).await;
        until("all wait", || server.clock.sleepers() >= SLEEPERS).await;
        server.clock.advance(second);
        let stopped = server.server().failed().await;
        assert_eq!((stopped.duty, stopped.why.as_str()), ("bad", why));
        let answer = server.get("/ready").await;
        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let told: Value = answer.json().await.expect("JSON");
        assert_eq!(told["error"]["code"], "duty_stopped");
        let message = told["error"]["message"].as_str().expect("a text");
        assert!(message.contains("`bad`") && !message.contains(why), "{message}");
        assert_eq!(server.get("/health").await.status(), 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_node_that_does_not_lead_does_none_of_the_duties_until_it_does() {
    let (tell, told) = watch::channel(Role::Follower);
    let sessions = tidings_sessions::Options {
        fanout_queue_threshold: 0,
        ttl: Duration::from_secs(60),
        ..Default::default()
    };
    let cleanup = sessions.cleanup_interval;
    let leadership = Leadership::told(told);
    let server = Harness::with(Setup { leadership, sessions, ..Setup::default() }).await;
    let project = server.post("/v1/projects").json(&json!({ "project": "gone" }));
    assert_eq!(project.send().await.expect("an answer").status(), 201);
    create(&server, "/v1/gone/stream/of-project", ("stream-ttl", "36000")).await;
    create(&server, "/v1/p/stream/brief", ("stream-ttl", "3")).await;
    create(&server, "/v1/p/stream/source", ("stream-max-age", "1")).await;
    for session in ["heard", "expired"] {
        let pair = json!({ "sessionId": session, "streamId": "source" });
        let subscribe = server.post("/v1/p/subscribe").json(&pair).send().await.expect("an answer");
        assert_eq!(subscribe.status(), 201);
    }
    let publish = server.post("/v1/p/publish/source").header("content-type", "text/plain").body("x");
    assert_eq!(publish.send().await.expect("an answer").headers()["stream-fanout-mode"], "queued");
    let remove = server.request(Method::DELETE, "/v1/projects/gone").send().await.expect("an answer");
    assert_eq!(remove.status(), 204);
    let gone = ProjectId::parse("gone").expect("a valid id");
    let heard = async || server.get("/v1/p/stream/heard").await.text().await.expect("text");

    until("all wait", || server.clock.sleepers() == FOLLOWING).await;
    server.clock.advance(Duration::from_secs(30));
    until("all wait again", || server.clock.sleepers() == FOLLOWING).await;
    assert_eq!(stored(&server), 5, "nothing has gone");
    assert_eq!((heard().await.as_str(), server.server().sessions().is_at_rest()), ("", false));
    assert_eq!(server.projects().removing(), [gone]);

    tell.send_replace(Role::Leader);
    until("what was published is delivered", || server.server().sessions().is_at_rest()).await;
    assert_eq!(heard().await, "x");
    until("the project is removed", || server.projects().removing().is_empty()).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(Duration::from_secs(5));
    until("the expired stream is gone", || stored(&server) == 3).await;
    until("all wait", || server.clock.sleepers() == SLEEPERS).await;
    server.clock.advance(cleanup);
    until("the sessions are gone", || stored(&server) == 1).await;

    // It does not go on when it does not lead any more.
    tell.send_replace(Role::Follower);
    create(&server, "/v1/p/stream/brief", ("stream-ttl", "3")).await;
    until("all wait", || server.clock.sleepers() == FOLLOWING).await;
    server.clock.advance(Duration::from_secs(5));
    until("all wait again", || server.clock.sleepers() == FOLLOWING).await;
    assert_eq!(stored(&server), 2);
}
