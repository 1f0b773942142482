//! Wiring of subscriptions to streams: configuration keys, duties and opening.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tidings_api::print_offset;
use tidings_auth::Randomness;
use tidings_egress::{Egress, Target};
use tidings_engine::log::{Conditions, Then};
use tidings_sessions::Sessions;
use tidings_streams::{AppendRequest, Body, Cleared, StreamKey};
use tidings_subscriptions::{Options, Parts, Subscriptions, WakeStreams};

use super::{Foundation, Wiring};
use crate::config::keys::{Key, key};
use crate::duties::Duty;
use crate::projects::SystemRandomness;

/// Upper bound of the configurable numbers of attempts.
const ATTEMPTS_MAX: usize = 65_536;

pub const WIRING: Wiring = Wiring {
    keys: KEYS,
    tables: &[],
    duties: |all| {
        let (dispatching, compacting) = (all.subscriptions.clone(), all.subscriptions.clone());
        vec![
            Duty::lasting("subscription-dispatcher", move || dispatching.clone().dispatch()),
            Duty::lasting("subscription-patterns", move || compacting.clone().compact_patterns())
                .on_each_node(),
        ]
    },
    clear: |all, project| {
        Box::pin(async move {
            let cleared = all.subscriptions.clear(project).await;
            let cleared = cleared.map(|whole| if whole { Cleared::Whole } else { Cleared::InPart });
            cleared.map_err(|error| format!("could not remove its subscriptions: {error}"))
        })
    },
};

const KEYS: &[Key] = &[
    key("subscriptions.max_per_project", |config, given| {
        given.count(1..=10_000_000).map(|count| config.capabilities.subscriptions.max_per_project = count)
    }),
    key("subscriptions.max_attempts", |config, given| {
        given.count(1..=ATTEMPTS_MAX).map(|count| config.capabilities.subscriptions.max_attempts = count)
    }),
    key("subscriptions.max_attempts_per_destination", |config, given| {
        given
            .count(1..=ATTEMPTS_MAX)
            .map(|count| config.capabilities.subscriptions.max_attempts_per_destination = count)
    }),
    key("subscriptions.public_url", |config, given| {
        let url = given.text()?;
        if !url.is_empty() {
            let target = Target::parse(url).map_err(|error| format!("is not good: {error}"))?;
            if target.path() != "/" {
                return Err("must have no path".to_owned());
            }
        }
        config.capabilities.subscriptions.public_url = url.to_owned();
        Ok(())
    }),
];

/// Opens the subscriptions.
pub fn open(sessions: Sessions, foundation: &Foundation, egress: Egress, options: Options) -> Subscriptions {
    let Foundation { store, bus, clock, rng, metrics, .. } = foundation.clone();
    Subscriptions::new(Parts {
        store,
        bus,
        streams: sessions.streams().clone(),
        wake_streams: Arc::new(Appending(sessions)),
        clock,
        rng,
        randomness: Arc::new(|bytes| SystemRandomness.fill(bytes)),
        egress,
        print: print_offset,
        options,
        metrics,
    })
}

/// Resolves to why an event could not be appended, if it could not.
type Appended<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// Appends events as clients do, so that sessions and hooks hear them, too.
struct Appending(Sessions);

impl WakeStreams for Appending {
    fn append<'a>(&'a self, stream: &'a StreamKey, event: Bytes) -> Appended<'a> {
        Box::pin(async move {
            let found = self.0.streams().describe(stream).await.map_err(|error| error.to_string())?;
            let body = Body::Content(found.stream.content_type.clone(), event);
            let request = AppendRequest { body, conditions: Conditions::default(), then: Then::StayOpen };
            self.0.append(stream, &request).await.map(|_| ()).map_err(|error| error.to_string())
        })
    }
}
