//! What a slow client is told, and when it is to fetch everything again.

use tidings_entities::Options;

use crate::world::{World, code};

#[tokio::test]
async fn a_client_that_does_not_read_has_one_change_of_each_entity_to_take() {
    let world = World::new();
    let (mut slow, mut other) = (world.connect("ann", "a"), world.connect("bob", "b"));
    let ids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    slow.subscribe("project", &ids).await;
    other.subscribe("project", &["7"]).await;
    for _ in 0..10 {
        let changes = (0..100_000).map(|number| ("project".to_owned(), (number % 100).to_string()));
        world.source.extend(changes);
        world.delivered(&slow).await;
        assert!(slow.watch.pending() <= 100);
        assert!(other.heard().last().expect("it reads").starts_with("project:7 UPDATE "));
    }
    assert_eq!(world.metric("tidings_entity_pending"), 100.0);
    let heard = slow.heard();
    assert_eq!(heard.len(), 100);
    assert_eq!(heard[0], "project:0 UPDATE 999901", "the latest, in the order in which they began to wait");
    assert_eq!(heard[99], "project:99 UPDATE 1000000");
    assert_eq!(slow.cursor, Some(world.source.end()));
}

#[tokio::test]
async fn of_several_changes_of_an_entity_the_last_is_told() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1", "2", "3"]).await;
    let changes = [
        "project:1 CREATE",
        "project:2 CREATE",
        "project:1 UPDATE",
        "project:1 DELETE",
        "project:2 DELETE",
        "project:2 CREATE",
        "project:3 access",
        "project:3 UPDATE",
    ];
    world.change(&ann, &changes).await;
    let told = ["project:1 DELETE 4", "project:2 CREATE 6", "project:3 UPDATE 8 access"];
    assert_eq!(ann.heard(), told);
}

#[tokio::test]
async fn a_cursor_is_told_only_when_nothing_before_it_is_pending() {
    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &[]).await;
    ann.subscribe("task", &["1"]).await;
    ann.told();
    world.source.extend((0..600).map(|number| ("project".to_owned(), number.to_string())));
    world.change(&ann, &["task:1 UPDATE"]).await;
    let mut heard = Vec::new();
    while ann.watch.pending() > 0 {
        assert_eq!(ann.cursor, None);
        heard.extend(ann.take(1));
    }
    assert_eq!(heard.len(), 601);
    assert_eq!(ann.cursor, Some(world.source.end()));
    // Further subscriptions say from where they can be resumed, also while something is pending.
    let before = world.source.end();
    world.change(&ann, &["task:1 UPDATE"]).await;
    assert_eq!(ann.subscribe("task", &["2"]).await.cursor, before);
    ann.told();
    assert_eq!(ann.subscribe("task", &["3"]).await.cursor, world.source.end());
}

#[tokio::test]
async fn whoever_watches_too_much_at_once_is_to_fetch_everything_of_the_type() {
    let options = Options { max_subscriptions_per_connection: 10, ..Options::default() };
    let world = World::with(options, false);
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &[]).await;
    ann.subscribe("task", &["1"]).await;
    ann.told();
    world.change(&ann, &["task:1 UPDATE"]).await;
    world.source.extend((0..9).map(|number| ("project".to_owned(), number.to_string())));
    world.delivered(&ann).await;
    assert_eq!(ann.watch.pending(), 10);
    world.change(&ann, &["project:8 UPDATE"]).await;
    assert_eq!(ann.watch.pending(), 10);
    world.change(&ann, &["project:9 UPDATE", "project:1 DELETE"]).await;
    assert_eq!(ann.heard(), ["RESYNC project overflow", "task:1 UPDATE 1", "project:1 DELETE 13"]);
    world.source.extend((0..100_000).map(|number| ("project".to_owned(), number.to_string())));
    world.delivered(&ann).await;
    assert!(ann.watch.pending() <= 11);
    assert!(ann.heard().contains(&"RESYNC project overflow".to_owned()));
}

#[tokio::test]
async fn whoever_watches_a_type_is_told_that_all_of_it_was_removed() {
    let world = World::new();
    let (mut ann, mut bob) = (world.connect("ann", "a"), world.connect("bob", "b"));
    let mut cid = world.connect("cid", "c");
    ann.subscribe("project", &["1"]).await;
    bob.subscribe("project", &[]).await;
    bob.subscribe("task", &["1"]).await;
    cid.subscribe("task", &["1"]).await;
    let changes = ["project:1 UPDATE", "task:1 UPDATE", "project TRUNCATE", "project:1 CREATE"];
    world.change(&ann, &changes).await;
    assert_eq!(ann.heard(), ["RESYNC project truncated", "project:1 CREATE 3"]);
    assert_eq!(bob.heard(), ["RESYNC project truncated", "task:1 UPDATE 2", "project:1 CREATE 3"]);
    assert_eq!(cid.heard(), ["task:1 UPDATE 2"]);
    assert_eq!(world.metric("tidings_entity_resyncs_total{reason=\"truncated\"}"), 2.0);
}

#[tokio::test]
async fn all_are_to_fetch_everything_again_when_changes_were_lost() {
    let world = World::new();
    let (mut ann, mut bob) = (world.connect("ann", "a"), world.connect("bob", "b"));
    ann.subscribe("project", &["1"]).await;
    ann.subscribe("task", &["1"]).await;
    let unanswered = bob.watch.subscribe(code("task"), crate::world::subject(&["1"]), None).await;
    world.change(&ann, &["project:1 UPDATE", "task:1 UPDATE"]).await;
    world.source.replace();
    world.change(&ann, &["project:1 CREATE"]).await;
    drop(unanswered);
    assert_eq!(ann.heard()[0], "RESYNC * source-reset");
    assert_eq!(bob.heard(), ["RESYNC * source-reset"]);
    world.change(&ann, &["project:1 UPDATE", "task:1 UPDATE"]).await;
    assert_eq!(bob.heard(), ["task:1 UPDATE 3"]);
    let heard = ann.heard();
    assert_eq!(heard[heard.len() - 1], "task:1 UPDATE 3");
    assert!(!heard.contains(&"task:1 UPDATE 2".to_owned()), "that was in another life");
    assert_eq!(ann.cursor, Some(world.source.end()));
}

#[tokio::test]
async fn a_client_is_woken_once_for_all_that_comes_while_it_waits() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicU64);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    let world = World::new();
    let mut ann = world.connect("ann", "a");
    ann.subscribe("project", &["1", "2"]).await;
    ann.told();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(woken.clone());
    assert!(ann.reader.poll_frames(&mut Context::from_waker(&waker), 1, &mut |_| {}).is_pending());
    world.change(&ann, &["project:1 UPDATE", "project:2 UPDATE", "project:1 UPDATE"]).await;
    world.change(&ann, &["project:1 UPDATE"]).await;
    assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    world.change(&ann, &["project:3 UPDATE"]).await;
    assert_eq!(ann.heard().len(), 2);
}
