//! The cases that all clients run: how a stream of a room ends, and what follows.

use serde_json::Value;
use tidings_client::rooms::{BackoffReason, Stopped, Wire};

use crate::scene::*;

const ENDS: &str = include_str!("../../../../testing/conformance/cases/rooms/ends.json");

fn name(reason: &BackoffReason) -> &'static str {
    match reason {
        BackoffReason::SlowConsumer => "slow-consumer",
        BackoffReason::Ended => "ended",
        BackoffReason::ServerRestart => "server-restart",
        BackoffReason::Skipped => "skipped",
        BackoffReason::TokenRefused => "token-refused",
        BackoffReason::Unavailable(_) => "unavailable",
        BackoffReason::Network(_) => "network",
    }
}

/// Lets happen what the case says; returns the scene and the request that was not answered yet.
async fn happen(wire: Wire, when: &Value) -> Scene {
    let setup = Setup { last_seen: Some("01A"), ..Setup::on(wire) };
    if let Some(refused) = when.get("refuse") {
        let mut scene = Scene::with(setup).await;
        scene.expect([disconnected(), connecting()]).await;
        let call = scene.call().await;
        let header = refused["retryAfter"].as_u64().map(|seconds| format!("retry-after: {seconds}\r\n"));
        let status = refused["status"].as_u64().and_then(|status| u16::try_from(status).ok());
        let (status, body) = (status.expect("a status"), refused["body"].clone());
        call.refuse_with(status, &header.unwrap_or_default(), body).await;
        return scene;
    }
    let (scene, mut flow) = Scene::streaming(setup).await;
    if let Some(info) = when.get("info") {
        let reason = info["reason"].as_str().expect("a reason");
        flow.info(reason, "01A", info["detail"].clone()).await;
        // Kept open: the client must not wait for the end that the server announces.
        tokio::spawn(async move { flow.gone().await });
    } else if let Some(code) = when.get("close") {
        flow.close(code.as_u64().and_then(|code| u16::try_from(code).ok()).expect("a code")).await;
    } else {
        flow.end().await;
    }
    scene
}

/// The next thing of interest that the client did: it leaves out notices, and counts what was skipped.
async fn next(scene: &mut Scene, skipped: &mut Vec<String>) -> Told {
    loop {
        match scene.told().await {
            Told::Skipped(missed) => skipped.push(missed.name),
            Told::Info(_) | Told::Stored(_) | Told::Refreshed => {}
            told => return told,
        }
    }
}

#[tokio::test]
async fn every_end_is_followed_by_what_the_cases_of_all_clients_say() {
    let cases: Vec<Value> = serde_json::from_str(ENDS).expect("the cases are JSON");
    assert!(cases.len() >= 25);
    for case in &cases {
        let (title, when, then) = (&case["name"], &case["when"], &case["then"]);
        for wire in WIRES.into_iter().filter(|wire| *wire == Wire::WebSocket || when.get("close").is_none()) {
            let mut scene = happen(wire, when).await;
            let mut skipped = Vec::new();
            let told = next(&mut scene, &mut skipped).await;
            if let Some(stop) = then.get("stop") {
                assert_eq!(told, disconnected(), "{title} {wire:?}");
                let stopped = match scene.ended().await {
                    Stopped::Forbidden(_) => "forbidden",
                    Stopped::Refused(_) => "refused",
                    other => panic!("{title} {wire:?}: {other}"),
                };
                assert_eq!(stop, stopped, "{title} {wire:?}");
                continue;
            }
            let Told::State(tidings_client::rooms::ConnectionState::Backoff { wait, why }) = told else {
                panic!("{title} {wire:?}: it should wait");
            };
            assert_eq!(then["wait"], name(&why), "{title} {wire:?}");
            assert_eq!(then["ms"].as_u64().map(u128::from), Some(wait.as_millis()), "{title} {wire:?}");
            if let Some(expected) = then.get("skipped") {
                assert_eq!(skipped, [expected.as_str().expect("a name")], "{title} {wire:?}");
            }
            scene.pass(wait).await;
            scene.expect([connecting()]).await;
            let expected = if then.get("cursor").is_some() { None } else { Some("01A") };
            assert_eq!(scene.call().await.cursor(), expected, "{title} {wire:?}");
        }
    }
}
