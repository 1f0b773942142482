//! The lease of telling changes to hooks.

use tidings_entities::Source;
use tidings_entities::relay::Relay;

use super::Fixture;

#[tokio::test]
async fn one_node_at_a_time_has_the_lease_and_the_next_goes_on_where_it_was() {
    let fixture = Fixture::new().await;
    let (here, there) = (fixture.node(), fixture.node());
    let (one, other) = (here.relay(), there.relay());
    let first = one.claim().await.expect("an answer").expect("nobody has it");
    assert_eq!((first.term, first.relayed.clone()), (1, None));
    assert_eq!(one.claim().await.expect("an answer"), Some(first.clone()), "renewed");
    assert_eq!(other.claim().await.expect("an answer"), None);
    let cursor = here.outbox().now().await.expect("a cursor");
    assert!(one.advance(1, &cursor).await.expect("an answer"));
    assert!(!other.advance(1, &cursor).await.expect("an answer"), "it is not theirs");

    let expired = "UPDATE app.tidings_relay SET held_until = now() - interval '1 s'";
    fixture.sql.batch_execute(expired).await.expect("time has passed");
    assert!(!one.advance(1, &cursor).await.expect("an answer"), "it has run out");
    let taken = other.claim().await.expect("an answer").expect("it has run out");
    assert_eq!((taken.term, taken.relayed), (2, Some(cursor.clone())));
    assert_eq!(one.claim().await.expect("an answer"), None);
    assert!(!one.advance(1, &cursor).await.expect("an answer"));

    other.release(1).await;
    assert_eq!(one.claim().await.expect("an answer"), None, "another term was given back");
    other.release(2).await;
    assert_eq!(one.claim().await.expect("an answer").map(|claim| claim.term), Some(3));
}
