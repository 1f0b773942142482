//! Subscriptions that have as many links as they may, in stores with small limits; and selections of few among many.

use tidings_subscriptions::{CreateRequest, SubscriptionError, SubscriptionId};

use crate::scene::{Scene, append, create_streams, key, limited, project, scene, wanted};

fn id(text: &str) -> SubscriptionId {
    SubscriptionId::parse(text).expect("an id")
}

fn named(id: &str, pattern: &str, streams: &[&str]) -> CreateRequest {
    CreateRequest { streams: streams.iter().map(|one| key(one).id).collect(), ..wanted(id, pattern) }
}

fn numbered(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|n| format!("many/{n}"))
}

impl<const S: usize, const P: usize> Scene<S, P> {
    /// Number of streams that a subscription is linked to, and of those that were left out.
    async fn links(&self, of: &str) -> (usize, u64) {
        let (number, subscription) = self.subscriptions.get(&project(), &id(of)).await.expect("it is there");
        let links = self.subscriptions.links(number, None, 100).await.expect("it answers");
        assert_eq!(links.links.len(), links.count);
        (links.count, subscription.unlinked)
    }

    async fn create(&self, request: CreateRequest) -> Result<(), SubscriptionError> {
        self.subscriptions.create(&project(), request).await.map(|_| ())
    }

    async fn name(&self, of: &str, streams: &[&str]) -> Result<(), SubscriptionError> {
        let streams: Vec<_> = streams.iter().map(|one| key(one).id).collect();
        self.subscriptions.add_streams(&project(), &id(of), &streams).await
    }
}

#[tokio::test]
async fn a_stream_beyond_the_links_of_a_subscription_is_created_and_counted_but_not_linked() {
    let scene: Scene<3, 100> = limited();
    scene.create(wanted("s", "many/*")).await.expect("created");
    create_streams(&scene.streams, numbered(0..5)).await;
    assert_eq!(scene.links("s").await, (3, 2));
    append(&scene.streams, "many/4").await;
    let claim = async || scene.subscriptions.claim(&project(), &id("s"), "w").await;
    assert!(matches!(claim().await, Err(SubscriptionError::NoPendingWork)), "it wakes nobody");
    append(&scene.streams, "many/0").await;
    assert_eq!(claim().await.expect("there is work").snapshot.streams.len(), 3);
}

#[tokio::test]
async fn a_subscription_to_more_streams_than_it_may_have_is_refused_and_leaves_nothing_behind() {
    let scene: Scene<3, 100> = limited();
    create_streams(&scene.streams, numbered(0..4)).await;
    for request in [wanted("s", "many/*"), named("s", "none/*", &["a", "b", "c", "d"])] {
        let refused = scene.create(request).await;
        assert!(matches!(refused, Err(SubscriptionError::TooManyLinks)), "{refused:?}");
        let found = scene.subscriptions.get(&project(), &id("s")).await;
        assert!(matches!(found, Err(SubscriptionError::NotFound)), "{found:?}");
    }
    scene.create(named("s", "none/*", &["a", "b", "c"])).await.expect("the limit itself is allowed");
    assert_eq!(scene.links("s").await, (3, 0));
}

#[tokio::test]
async fn streams_that_are_named_beyond_the_limit_are_refused_together() {
    let scene: Scene<3, 100> = limited();
    scene.create(named("s", "none/*", &["a", "b"])).await.expect("created");
    let refused = scene.name("s", &["c", "d"]).await;
    assert!(matches!(refused, Err(SubscriptionError::TooManyLinks)), "{refused:?}");
    assert_eq!(scene.links("s").await, (2, 0), "neither is linked");
    scene.name("s", &["a", "b", "c"]).await.expect("only one of them is new");
    scene.name("s", &["a", "b", "c"]).await.expect("none of them is new");
    scene.subscriptions.remove_stream(&project(), &id("s"), key("a").id).await.expect("removed");
    scene.name("s", &["d"]).await.expect("there is room again");
    assert_eq!(scene.links("s").await, (3, 0));
}

#[tokio::test]
async fn the_links_of_all_subscriptions_of_a_project_are_limited_as_well() {
    let scene: Scene<3, 4> = limited();
    scene.create(wanted("s", "many/*")).await.expect("created");
    scene.create(wanted("t", "many/*")).await.expect("created");
    create_streams(&scene.streams, numbered(0..3)).await;
    let ((s, left_of_s), (t, left_of_t)) = (scene.links("s").await, scene.links("t").await);
    assert_eq!((s + t, left_of_s + left_of_t), (4, 2));
    let refused = scene.name("s", &["a"]).await;
    assert!(matches!(refused, Err(SubscriptionError::TooManyLinks)), "{refused:?}");
}

#[tokio::test]
async fn few_of_very_many_subscriptions_are_selected_page_by_page() {
    let Scene { subscriptions, .. } = scene();
    let project = project();
    for n in 0..10_500 {
        let request = wanted(&format!("s{n:05}"), &format!("tenant-{n}/*"));
        subscriptions.create(&project, request).await.expect("created");
    }
    let select = async |after: Option<&SubscriptionId>, most| {
        let holds = |one: &tidings_subscriptions::Subscription| one.id.as_str().ends_with("444");
        let selected = subscriptions.select(&project, after, most, holds).await.expect("it answers");
        let ids = selected.subscriptions.iter().map(|(_, one)| one.id.to_string()).collect::<Vec<_>>();
        (ids, selected.next)
    };
    let (ids, next) = select(None, 2).await;
    assert_eq!(ids, ["s00444", "s01444"]);
    let (ids, next) = select(next.as_ref(), 100).await;
    assert_eq!(ids.len(), 9, "{ids:?}");
    assert_eq!(ids[8], "s10444");
    assert_eq!(next, None);
    let (ids, next) = select(None, 100).await;
    assert_eq!((ids.len(), next), (10, Some(id("s09999"))), "one call looks at so many");
}
