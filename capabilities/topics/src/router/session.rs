//! Sessions: what clients send.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tokio_util::sync::CancellationToken;

use super::context::Connected;
use super::{Capability, Context, Data, HandlerError, HandlerResult, Outbox, Routes, frame};
use crate::policy::ClientId;

/// The receiving side of a connection. Messages may be passed to it concurrently.
pub struct Session<D: Send + Sync + 'static, C: Capability<D>> {
    routes: Arc<Routes<D, C>>,
    connected: Arc<Connected<D, C>>,
    closed: AtomicBool,
}

/// Opens a connection.
pub(crate) async fn open<D: Send + Sync + 'static, C: Capability<D>>(
    routes: Arc<Routes<D, C>>,
    capability: &C,
    client_id: ClientId,
    data: D,
) -> (Session<D, C>, Outbox) {
    let data = Data::new(data);
    let (capability, member, reader) = capability.connect(client_id, data.clone());
    let ended = CancellationToken::new();
    let outbox = Outbox::new(reader, ended.clone());
    let connected = Arc::new(Connected { member, data, capability, ended });
    let session = Session { routes, connected, closed: AtomicBool::new(false) };
    for hook in &session.routes.opened {
        let ctx = session.context(None);
        let result = AssertUnwindSafe(hook(ctx.clone())).catch_unwind().await;
        session.report(&ctx, result);
    }
    (session, outbox)
}

impl<D: Send + Sync + 'static, C: Capability<D>> Session<D, C> {
    /// Handles a message of the client. All failures are told to the client. A client that sends requests and does not
    /// take the answers is disconnected: its outbox ends, and what it sends is ignored.
    pub async fn receive(&self, text: &str) {
        if self.connected.is_over() {
            return;
        }
        let incoming = match frame::parse(text) {
            Ok(incoming) => incoming,
            Err(error) => return self.context(None).fail(&error),
        };
        let frame::Incoming { kind, meta, correlation_id, payload } = incoming;
        let next = self.routes.route(&kind, payload);
        let ctx = Context::new(self.connected.clone(), kind, meta, correlation_id);
        let Some(next) = next else {
            let error = HandlerError::new("UNIMPLEMENTED", format!("`{}` has no handler", ctx.kind()));
            return ctx.fail(&error.with("type", ctx.kind()));
        };
        let result = AssertUnwindSafe(async { next.run(ctx.clone()).await }).catch_unwind().await;
        self.report(&ctx, result);
    }

    /// Ends the connection: its subscriptions, then what the program has to do. The outbox ends. Closing again does
    /// nothing.
    pub async fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        C::close(&self.connected.capability);
        for hook in &self.routes.closed {
            let ctx = self.context(None);
            let result = AssertUnwindSafe(hook(ctx.clone())).catch_unwind().await;
            self.report(&ctx, result);
        }
        self.connected.ended.cancel();
    }

    /// The context of something that is not a message.
    pub fn context(&self, kind: Option<&str>) -> Context<D, C> {
        let kind = kind.unwrap_or_default().to_owned();
        Context::new(self.connected.clone(), kind, serde_json::Map::new(), None)
    }

    fn report(&self, ctx: &Context<D, C>, result: std::thread::Result<HandlerResult>) {
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => ctx.fail(&error),
            Err(_) => {
                tracing::error!(kind = ctx.kind(), client_id = %ctx.client_id(), "a handler panicked");
                ctx.fail(&HandlerError::internal());
            }
        }
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Drop for Session<D, C> {
    fn drop(&mut self) {
        self.connected.end();
    }
}
