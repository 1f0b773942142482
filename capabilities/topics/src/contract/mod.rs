//! The contract suite of drivers: what each of them must do, as tests that it runs on itself; and a driver with
//! faults for the tests of everything above.
//!
//! A driver calls [`driver_contract!`](crate::driver_contract) with a function that makes a [`Nodes`]: one or several
//! instances between which messages travel.

mod faulty;
mod promises;

use std::sync::Arc;

use futures_util::future::BoxFuture;

pub use faulty::{Call, Faulty};
pub use promises::*;

use crate::driver::PubSubDriver;

/// Instances of a driver that belong together. Most promises are about the first one.
pub struct Nodes {
    /// One instance for each node.
    pub drivers: Vec<Arc<dyn PubSubDriver>>,
    /// Resolves when all that was published has reached the rings of all nodes.
    pub travelled: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
}

impl Nodes {
    /// A driver of one node only, which has delivered when a call returns.
    pub fn one(driver: Arc<dyn PubSubDriver>) -> Self {
        Self { drivers: vec![driver], travelled: Box::new(|| Box::pin(async {})) }
    }
}

/// Makes a `#[tokio::test]` of each promise, on [`Nodes`](crate::contract::Nodes) from the async function `$make`.
#[macro_export]
macro_rules! driver_contract {
    ($make:expr) => {
        $crate::driver_contract!(@each $make;
            a_subscriber_receives_each_message_once_and_in_order
            nothing_follows_the_end_of_a_subscription
            a_repeated_call_changes_nothing
            frames_are_held_back_until_they_are_released
            an_excluded_member_neither_receives_nor_counts
            nobody_is_reached_where_nobody_subscribes
            numbers_are_what_the_capability_says
            local_subscribers_are_those_of_this_node
            what_is_verified_is_what_is_subscribed
            nothing_is_left_of_a_removed_member
            a_closed_member_cannot_subscribe
            a_binary_payload_is_delivered_or_reported
            a_message_of_another_node_arrives_once
        );
    };
    (@each $make:expr; $($promise:ident)*) => {
        $(
            #[tokio::test]
            async fn $promise() {
                $crate::contract::$promise(($make)().await).await;
            }
        )*
    };
}
