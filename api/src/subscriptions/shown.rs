//! What responses show of subscriptions.

use serde::Serialize;
use tidings_subscriptions::keys::PublicKey;
use tidings_subscriptions::store::Numbered;
use tidings_subscriptions::{Delivery, Glob, Linked, Links, Subscription};
use utoipa::ToSchema;

use crate::wire::{offset, time};

/// A subscription to streams.
#[derive(Serialize, ToSchema)]
pub struct StreamSubscriptionAnswer {
    #[serde(flatten)]
    subscription: StreamSubscription,
    /// Streams that it is linked to, in the order of their paths: one page.
    streams: Vec<LinkedStream>,
    /// Path after which the next page of streams begins: `streams_after`. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    streams_next: Option<String>,
    /// Number of streams that it is linked to.
    stream_count: usize,
}

/// A subscription, without its streams.
#[derive(Serialize, ToSchema)]
pub struct StreamSubscription {
    /// Id, chosen by its owner.
    #[schema(example = "sub-1")]
    id: String,
    /// The same id.
    subscription_id: String,
    /// `webhook` or `pull-wake`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Glob on paths of streams.
    pattern: Option<String>,
    /// Endpoint, for `webhook`.
    webhook: Option<WebhookAnswer>,
    /// Path of the stream that gets wake events, for `pull-wake`.
    wake_stream: Option<String>,
    /// Lease in milliseconds.
    lease_ttl_ms: u64,
    /// Whether webhooks bring messages.
    payload: bool,
    /// Failed attempts in a row after which it is given up.
    max_attempts: u32,
    /// Time of creation, in RFC 3339 format.
    created_at: String,
    /// `active`, or `failed` while the last attempt to wake a worker has failed.
    status: &'static str,
    /// Description for people.
    description: Option<String>,
    /// Number of the last wake.
    generation: u64,
    /// Name of the worker that has claimed the work.
    holder: Option<String>,
    /// Failed attempts in a row.
    failures: u32,
    /// Why the last attempt failed.
    last_error: Option<String>,
    /// Time of the next attempt, in RFC 3339 format.
    next_attempt_at: Option<String>,
    /// Present when it was given up: nothing is attempted until `retry` is called.
    dead_letter: Option<DeadSubscription>,
    /// Streams that match the pattern and were not linked because of a limit.
    unlinked_streams: u64,
}

/// A subscription that was given up.
#[derive(Serialize, ToSchema)]
pub struct DeadSubscription {
    /// Time of the last attempt, in RFC 3339 format.
    since: String,
    /// Failed attempts.
    attempts: u32,
    /// Why the last attempt failed.
    reason: Option<String>,
}

/// Endpoint of a subscription.
#[derive(Serialize, ToSchema)]
pub struct WebhookAnswer {
    /// URL of the endpoint.
    #[schema(example = "https://worker.example/hooks")]
    url: String,
    /// How webhooks are signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    signing: Option<SigningAnswer>,
}

/// How webhooks are signed.
#[derive(Serialize, ToSchema)]
pub struct SigningAnswer {
    /// `ed25519`.
    alg: &'static str,
    /// Id of the current key.
    kid: String,
    /// URL of the public keys.
    jwks_url: String,
}

/// A stream that a subscription is linked to.
#[derive(Serialize, ToSchema)]
pub struct LinkedStream {
    /// Path of the stream, below the root.
    #[schema(example = "events/abc")]
    path: String,
    /// `glob` or `explicit`.
    link_type: &'static str,
    /// Offset up to which it was acknowledged.
    acked_offset: String,
}

impl StreamSubscriptionAnswer {
    /// Shows a subscription with a page of its links.
    pub fn of(of: &Numbered, links: &Links, key: Option<&PublicKey>) -> Self {
        Self {
            subscription: StreamSubscription::of(of, key),
            streams: links.links.iter().map(LinkedStream::of).collect(),
            streams_next: links.next.as_ref().map(|next| next.as_str().to_owned()),
            stream_count: links.count,
        }
    }
}

impl StreamSubscription {
    /// Shows a subscription, whose webhooks are signed by this key.
    pub fn of((_, subscription): &Numbered, key: Option<&PublicKey>) -> Self {
        let Subscription { config, state, .. } = &**subscription;
        let (kind, webhook, wake_stream) = match &config.delivery {
            Delivery::Webhook { url } => {
                let jwks_url = format!("{}/__ds/jwks.json", subscription.root);
                let signing = key.map(|key| SigningAnswer { alg: "ed25519", kid: key.kid.clone(), jwks_url });
                ("webhook", Some(WebhookAnswer { url: url.to_string(), signing }), None)
            }
            Delivery::PullWake { stream } => ("pull-wake", None, Some(stream.as_str().to_owned())),
        };
        let text = |text: &Option<Box<str>>| text.as_ref().map(|text| text.to_string());
        Self {
            id: subscription.id.to_string(),
            subscription_id: subscription.id.to_string(),
            kind,
            pattern: config.pattern.as_ref().map(Glob::as_str).map(str::to_owned),
            webhook,
            wake_stream,
            lease_ttl_ms: config.lease_ms,
            payload: config.payload,
            max_attempts: config.max_attempts,
            created_at: time::print(subscription.created_at),
            status: if state.failures > 0 { "failed" } else { "active" },
            description: text(&config.description),
            generation: state.generation,
            holder: state.wake.as_ref().and_then(|wake| text(&wake.holder)),
            failures: state.failures,
            last_error: text(&state.last_error),
            next_attempt_at: state.next_attempt_at.map(time::print),
            dead_letter: state.dead_since.map(|since| DeadSubscription {
                since: time::print(since),
                attempts: state.failures,
                reason: text(&state.last_error),
            }),
            unlinked_streams: subscription.unlinked,
        }
    }
}

impl LinkedStream {
    fn of(linked: &Linked) -> Self {
        Self {
            path: linked.stream.as_str().to_owned(),
            link_type: if linked.link.explicit { "explicit" } else { "glob" },
            acked_offset: offset::print(linked.link.acked),
        }
    }
}
