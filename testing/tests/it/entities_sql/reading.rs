//! What the outbox tells of what is committed.

use tidings_entities::{Action, Reason};
use uuid::Uuid;

use super::{Fixture, Follower, ids};

#[tokio::test]
async fn a_change_that_an_application_logs_is_read() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    let id = Uuid::new_v4();
    fixture.log(id, 4).await;
    let read = follower.drain().await;
    assert_eq!(ids(&read), [id.to_string()]);
    assert_eq!((read[0].code.as_str(), read[0].action, read[0].reason), ("project", Action::Create, None));
    assert!(read[0].version >= 1);
    assert_eq!(follower.drain().await, [], "once");
}

#[tokio::test]
async fn actions_of_the_log_become_create_update_and_delete_and_a_view_nothing() {
    let fixture = Fixture::new().await;
    let mut follower = Follower::new(&fixture.node()).await;
    for action in 0..=5 {
        fixture.log(Uuid::new_v4(), action).await;
    }
    let read = follower.drain().await;
    let told: Vec<(Action, Option<Reason>)> =
        read.iter().map(|change| (change.action, change.reason)).collect();
    let access = Some(Reason::Access);
    let expected = [
        (Action::Update, None),
        (Action::Update, access),
        (Action::Delete, None),
        (Action::Create, None),
        (Action::Update, access),
    ];
    assert_eq!(told, expected);
}
