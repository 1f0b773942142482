//! A subscription over 100,000 streams, and many subscriptions of which few are concerned.

use futures_util::future::join_all;
use tidings_model::limits;
use tidings_subscriptions::{Report, SubscriptionError, SubscriptionId, Then, Way};

use crate::scene::{Scene, append, create_streams, key, project, scene, wanted};

#[tokio::test]
async fn a_subscription_over_100_000_streams_tells_of_those_that_have_more() {
    let Scene { streams, subscriptions, .. } = scene();
    let half = 50_000;
    create_streams(&streams, (0..half).map(|n| format!("many/{n}"))).await;
    let (project, id) = (project(), SubscriptionId::parse("s").expect("an id"));
    let (_, (number, _)) = subscriptions.create(&project, wanted("s", "many/*")).await.expect("created");
    create_streams(&streams, (half..2 * half).map(|n| format!("many/{n}"))).await;
    assert_eq!(subscriptions.links(number, None, 1).await.expect("it answers").count, 2 * half);
    let claim = async |worker| subscriptions.claim(&project, &id, worker).await;
    assert!(matches!(claim("w").await, Err(SubscriptionError::NoPendingWork)));
    let tails = [append(&streams, "many/7").await, append(&streams, "many/99999").await];
    let claimed = claim("w").await.expect("there is work");
    let pending: Vec<_> = claimed.snapshot.streams.iter().filter(|one| one.is_pending()).collect();
    assert_eq!(pending.iter().map(|one| one.stream.as_str()).collect::<Vec<_>>(), ["many/7", "many/99999"]);
    assert_eq!(claimed.snapshot.streams.len(), limits::WAKE_STREAMS, "it is bounded");
    assert!(!claimed.snapshot.more);
    let acks = ["many/7", "many/99999"].map(|stream| key(stream).id).into_iter().zip(tails).collect();
    let report = Report {
        token: claimed.token,
        wake_id: claimed.wake_id.to_string(),
        generation: claimed.generation,
        acks,
        then: Then::Done,
    };
    let next = subscriptions.report(&project, &id, Way::PullWake, &report).await.expect("it is taken");
    assert!(!next && matches!(claim("w").await, Err(SubscriptionError::NoPendingWork)));
    // More than one wake can tell.
    for n in 0..=limits::WAKE_STREAMS {
        append(&streams, &format!("many/{n}")).await;
    }
    let claimed = claim("w").await.expect("there is work");
    assert!(claimed.snapshot.more && claimed.snapshot.streams.iter().all(|one| one.is_pending()));
    assert_eq!(claimed.snapshot.streams.len(), limits::WAKE_STREAMS);
}

#[tokio::test]
async fn of_10_000_subscriptions_an_append_concerns_those_that_match() {
    let Scene { streams, subscriptions, .. } = scene();
    create_streams(&streams, (0..20_000).map(|n| format!("tenant-{}/{n}", n % 10_000))).await;
    let project = project();
    for n in 0..10_000 {
        let wanted = wanted(&format!("s{n}"), &format!("tenant-{n}/*"));
        subscriptions.create(&project, wanted).await.expect("created");
    }
    append(&streams, "tenant-77/77").await;
    let claims = (0..10_000).map(|n| {
        let (subscriptions, project) = (subscriptions.clone(), project.clone());
        async move {
            let id = SubscriptionId::parse(&format!("s{n}")).expect("an id");
            (n, subscriptions.claim(&project, &id, "w").await)
        }
    });
    for (n, claim) in join_all(claims).await {
        match claim {
            Ok(claim) => assert_eq!((n, claim.snapshot.streams.len()), (77, 2)),
            Err(error) => {
                assert!(n != 77 && matches!(error, SubscriptionError::NoPendingWork), "{n}: {error}")
            }
        }
    }
}
