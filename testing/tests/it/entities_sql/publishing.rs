//! Changes that are published into the outbox.

use std::sync::Arc;

use tidings_entities::{Action, EntityCode, IdForm, NewChange, Source};
use uuid::Uuid;

use super::{Fixture, Follower, Running, ids};

fn change(id: Uuid, action: Action) -> NewChange {
    NewChange {
        code: EntityCode::parse("it's a \"type\"").expect("a code"),
        id: IdForm::Uuid.parse(&id.to_string()).expect("a UUID"),
        action,
    }
}

#[tokio::test]
async fn published_changes_are_read_in_order_by_every_node() {
    let fixture = Fixture::new().await;
    let (here, there) = (fixture.node(), fixture.node());
    let _running = (Running::start(&here), Running::start(&there));
    let mut followers = [Follower::new(&here).await, Follower::new(&there).await];
    let id = Uuid::new_v4();
    let changes = vec![change(id, Action::Create), change(id, Action::Update), change(id, Action::Delete)];
    let published = here.outbox().publish(changes).await.expect("it is published");
    assert_eq!(published.accepted, 3);
    for follower in &mut followers {
        let read = follower.await_changes(3).await;
        let actions: Vec<Action> = read.iter().map(|change| change.action).collect();
        assert_eq!(actions, [Action::Create, Action::Update, Action::Delete]);
        assert_eq!(read[0].code.as_str(), "it's a \"type\"");
    }
    let mut resumed = Follower::new(&there).await;
    resumed.cursor = published.cursor;
    assert_eq!(resumed.drain().await, [], "whoever resumes where they were published has heard them");
}

#[tokio::test]
async fn ten_thousand_changes_are_published_at_once() {
    let fixture = Fixture::new().await;
    let node = fixture.node();
    let mut follower = Follower::new(&node).await;
    let changes: Vec<NewChange> = (0..10_000).map(|_| change(Uuid::new_v4(), Action::Update)).collect();
    let expected: Vec<String> = changes.iter().map(|change| change.id.to_string()).collect();
    node.outbox().publish(changes).await.expect("it is published");
    assert_eq!(ids(&follower.drain().await), expected);
}

#[tokio::test]
async fn nodes_that_publish_changes_of_one_entity_at_once_are_read_with_rising_versions() {
    let fixture = Fixture::new().await;
    let nodes = [fixture.node(), fixture.node()];
    let mut follower = Follower::new(&nodes[0]).await;
    let id = Uuid::new_v4();
    let outboxes = nodes.each_ref().map(|node| Arc::new(node.outbox()));
    let publishing = outboxes.iter().cycle().take(40).map(|outbox| {
        let (outbox, change) = (outbox.clone(), change(id, Action::Update));
        tokio::spawn(async move { outbox.publish(vec![change]).await })
    });
    let publishing: Vec<_> = publishing.collect();
    let mut read = Vec::new();
    while publishing.iter().any(|publish| !publish.is_finished()) {
        read.extend(follower.drain().await);
    }
    for publish in publishing {
        publish.await.expect("it ends").expect("it is published");
    }
    read.extend(follower.drain().await);
    assert!(!read.is_empty() && read.is_sorted_by(|one, other| one.version < other.version), "{read:?}");
}
