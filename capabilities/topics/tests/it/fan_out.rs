//! Who is bothered by a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::*;

/// Counts how often it is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_message_wakes_the_subscribers_of_its_topic_and_nobody_else() {
    let world = world();
    let mut clients: Vec<Client> = (0..1_000).map(|number| world.client(&format!("c{number}"))).collect();
    for (number, client) in clients.iter().enumerate() {
        // Topic 7 has a second subscriber.
        client.subscribes(&format!("t{}", if number == 700 { 7 } else { number }));
    }
    let settle = async || {
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    };
    settle().await;
    let wakes: Vec<Arc<Wakes>> = clients.iter().map(|_| Arc::default()).collect();
    for (client, wakes) in clients.iter_mut().zip(&wakes) {
        let waker = Waker::from(wakes.clone());
        let mut nothing = |_: &_| panic!("nothing was published");
        let polled = client.reader.poll_frames(&mut Context::from_waker(&waker), usize::MAX, &mut nothing);
        assert!(matches!(polled, Poll::Pending));
    }
    assert_eq!(world.publishes("t7", "x").matched(), Some(2));
    assert_eq!(world.publishes("t700", "x").matched(), Some(0));
    settle().await;
    let woken = wakes.iter().enumerate().filter(|(_, wakes)| wakes.0.load(Ordering::SeqCst) > 0);
    assert_eq!(woken.map(|(number, _)| number).collect::<Vec<_>>(), [7, 700]);
}

#[tokio::test]
async fn a_message_that_is_handed_to_the_index_reaches_its_subscribers_without_a_bus() {
    let world = world();
    let (mut one, mut two) = (world.client("a"), world.client("b"));
    one.subscribes("t");
    two.subscribes("u");
    let driver = world.hub.driver();
    assert_eq!(driver.deliver_local(&message("t", "from elsewhere")), 1);
    assert_eq!(driver.deliver_local(&message("nobody", "x")), 0);
    assert_eq!(one.hears(1).await, ["from elsewhere"]);
    assert_eq!(two.takes_text(), Vec::<String>::new());
}
