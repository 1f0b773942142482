//! What outlives a process that is killed: every change that was accepted.

use tidings_testing::Process;

use super::*;

async fn connect(process: &Process) -> Client {
    Client::at(&process.url(PATH), None).await.expect("a WebSocket").admitted().await
}

async fn publish(process: &Process, id: &str) -> Value {
    let body = json!([change("project", id, "UPDATE")]);
    let answer = http::Client::new().post(process.url("/v1/app/changes")).json(&body).send().await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.json::<Value>().await.expect("JSON")["cursor"].clone()
}

#[tokio::test]
async fn what_was_accepted_is_told_after_kill_9_to_whoever_resumes() {
    let mut process = Process::serve(&[]).await;
    let mut client = connect(&process).await;
    client.subscribe("project", &[]).await;
    let mut since = publish(&process, "first").await;
    let mut last = client.changes("project").await[0].2;
    for round in 0..3 {
        let missed: Vec<_> = (0..20).map(|n| format!("{round}-{n}")).collect();
        drop(client);
        for id in &missed {
            publish(&process, id).await;
        }
        process.kill().await;
        process = process.restart().await;
        client = connect(&process).await;
        client.resume("project", &[], &since).await;
        let after = format!("after-{round}");
        since = publish(&process, &after).await;
        let mut told = client.until(&after).await;
        told.sort_by_key(|change| change.2);
        assert_eq!(ids(&told[..20]), missed, "all of them, in order");
        assert!(told[0].2 > last, "versions go on");
        last = told.last().expect("told").2;
    }
    process.stop().await;
}

#[tokio::test]
async fn a_server_that_is_killed_while_changes_are_published_loses_none_that_it_accepted() {
    let mut process = Process::serve(&[]).await;
    let mut client = connect(&process).await;
    let since = client.subscribe("project", &[]).await["cursor"].clone();
    client.leave().await;
    let (url, publisher) = (process.url("/v1/app/changes"), http::Client::new());
    let publishing = tokio::spawn(async move {
        let mut accepted = Vec::new();
        for n in 0.. {
            let id = n.to_string();
            let body = json!([change("project", &id, "UPDATE")]);
            match publisher.post(&url).json(&body).send().await {
                Ok(answer) if answer.status() == 200 => accepted.push(id),
                Ok(_) | Err(_) => break,
            }
        }
        accepted
    });
    // The one exception to the rule that tests do not sleep: the time before a kill.
    tokio::time::sleep(Duration::from_millis(400)).await;
    process.kill().await;
    let accepted = publishing.await.expect("it ends");
    assert!(!accepted.is_empty(), "some were accepted");
    process = process.restart().await;
    let mut client = connect(&process).await;
    client.resume("project", &[], &since).await;
    publish(&process, "end").await;
    let told: std::collections::BTreeSet<_> =
        client.until("end").await.into_iter().map(|change| change.0).collect();
    let lost: Vec<_> = accepted.iter().filter(|id| !told.contains(*id)).collect();
    assert!(lost.is_empty(), "lost of {}: {lost:?}", accepted.len());
    process.stop().await;
}
