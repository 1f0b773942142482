//! Where deliveries go, and what sends them there.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use tidings_egress::{Answer, Egress, Outgoing, SendError, Target};
use tidings_model::limits;

use crate::hook::Hook;
use crate::hooks::Handler;

/// Where the deliveries of a hook go.
#[derive(Clone)]
pub(crate) enum Route {
    /// To an endpoint.
    Endpoint(Target),
    /// To a handler in this process.
    Handler {
        /// Name under which it is bound.
        name: String,
        /// The handler.
        handler: Handler,
    },
    /// Nowhere, for this reason. Every attempt fails.
    Nowhere(String),
}

/// A request to an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Post {
    /// The endpoint.
    pub(crate) target: Target,
    /// All headers, except those of the connection.
    pub(crate) headers: HeaderMap,
    /// Body.
    pub(crate) body: Bytes,
    /// Time for the whole request.
    pub(crate) timeout: Duration,
}

/// Knows where deliveries go, and sends them.
pub(crate) trait Sender: Send + Sync + 'static {
    /// Where the deliveries of a hook go. Asked when the hook has changed, and before it gets going again.
    fn route(&self, hook: &Hook) -> Route;

    /// Sends a request. Dropping the future cancels it.
    fn post(&self, post: Post) -> BoxFuture<'static, Result<Answer, SendError>>;
}

/// Sends by [`Egress`].
pub(super) fn post(egress: &Egress, post: Post) -> BoxFuture<'static, Result<Answer, SendError>> {
    let egress = egress.clone();
    Box::pin(async move {
        let Post { target, headers, body, timeout } = post;
        let method = http::Method::POST;
        let keep = limits::HOOK_RESPONSE_BYTES;
        egress.send(Outgoing { method, target: &target, headers, body, timeout, keep }).await
    })
}
