//! Creations that end before everything is linked.

use std::sync::Arc;

use tidings_engine::log::{Commit, Commits, Logs};
use tidings_model::{StreamId, Timestamp};
use tidings_subscriptions::{
    Change, Created, Phase, State, Subscription, SubscriptionError, SubscriptionId, Table,
};

use crate::scene::{Scene, append, create_streams, project, scene, wanted};

fn stream(id: &str) -> StreamId {
    StreamId::parse(id).expect("an id")
}

#[tokio::test]
async fn a_creation_that_was_interrupted_is_completed_by_the_next_request() {
    let Scene { store, streams, subscriptions } = scene();
    create_streams(&streams, ["a/1", "a/2", "a/3"].into_iter().map(str::to_owned)).await;
    let mut request = wanted("s", "a/*");
    request.streams = vec![stream("named")];
    // As a process leaves it that dies when the first streams are linked.
    let number = store.reserve().await.expect("a number");
    let subscription = Arc::new(Subscription {
        project: project(),
        id: request.id.clone(),
        config: Arc::new(request.config.clone()),
        digest: request.config.digest(&request.streams),
        root: "".into(),
        created_at: Timestamp::from_millis(1),
        phase: Phase::Linking { after: Some(stream("a/1")) },
        state: State::default(),
        unlinked: 0,
    });
    let create = Commit::new().changing(Change::Create { number, subscription, most: 10 });
    Commits::<Table>::commit(&*store, create).await.expect("the commit is good");
    let other = wanted("s", "b/*");
    assert!(matches!(subscriptions.create(&project(), other).await, Err(SubscriptionError::Exists)));
    let (created, (same, subscription)) =
        subscriptions.create(&project(), request).await.expect("it is completed");
    assert_eq!((created, same, &subscription.phase), (Created::Existing, number, &Phase::Active));
    let links = subscriptions.links(number, None, 10).await.expect("it answers").links;
    let linked: Vec<_> = links.iter().map(|one| one.stream.as_str()).collect();
    assert_eq!(linked, ["a/2", "a/3", "named"], "it went on where it was");
    append(&streams, "a/3").await;
    let id = SubscriptionId::parse("s").expect("an id");
    let claimed = subscriptions.claim(&project(), &id, "w").await.expect("there is work");
    assert_eq!(claimed.snapshot.streams[0].stream.as_str(), "a/3");
}
