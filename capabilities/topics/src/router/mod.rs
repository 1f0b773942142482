//! Routers: typed messages of connections go to handlers. For programs that embed this crate.
//!
//! Read [`Router`] (handlers, middleware, what comes with pub/sub), [`Context`] (what a handler can do), [`Session`] and
//! [`Outbox`] (the two sides of a connection, which the program serves on whatever socket it has).

mod capability;
mod context;
mod data;
mod failure;
mod frame;
mod outbox;
mod session;
mod without_pub_sub;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::value::RawValue;

pub use capability::{Capability, NoPubSub, PubSub};
pub use context::Context;
pub use data::Data;
pub use failure::{HandlerError, HandlerResult};
pub use outbox::Outbox;
pub use session::Session;

use crate::envelope::PublishEnvelope;
use crate::hub::Hub;
use crate::message::Message;
use crate::options::PublishOptions;
use crate::policy::ClientId;
use crate::result::PublishResult;

/// Takes messages of connections and calls handlers. `D` is the data of a connection, `C` what the router can do.
///
/// A router without pub/sub has handlers that reply:
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tidings_topics::Message;
/// use tidings_topics::router::{NoPubSub, Router};
///
/// #[derive(Serialize, Deserialize)]
/// struct Ping(u32);
/// impl Message for Ping {
///     const TYPE: &'static str = "PING";
///     type Payload = Self;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let router = Router::<(), NoPubSub>::new().on::<Ping, _, _>(|ctx, ping| async move {
///     ctx.reply::<Ping>(&Ping(ping.0 + 1));
///     Ok(())
/// });
/// let (session, mut outbox) = router.connect("a", ()).await;
/// session.receive(r#"{"type":"PING","payload":1}"#).await;
/// let frame = outbox.next().await.expect("a frame");
/// assert_eq!(&frame[..], br#"{"type":"PING","payload":2}"#);
/// # }
/// ```
///
/// It has no topics, which the compiler knows (`without_pub_sub`). With the hub of [`Router::with_pub_sub`] it has:
///
/// ```
/// # use std::sync::Arc;
/// # use tidings_engine::WallClock;
/// # use tidings_topics::{AllowAll, Hub, Message, TopicRules, router::{NoPubSub, Router}};
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Ping(u32);
/// # impl Message for Ping { const TYPE: &'static str = "PING"; type Payload = Self; }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hub = Hub::in_memory(TopicRules::default(), Arc::new(AllowAll), Arc::new(WallClock));
/// let router = Router::<(), NoPubSub>::new().with_pub_sub(hub).on::<Ping, _, _>(|ctx, ping| async move {
///     ctx.topics().subscribe("room:1", &Default::default()).await?;
///     let sent = ctx.publish::<Ping>("room:1", &ping, Default::default()).await;
///     assert_eq!(sent.matched(), Some(1));
///     Ok(())
/// });
/// let (session, mut outbox) = router.connect("a", ()).await;
/// session.receive(r#"{"type":"PING","payload":1}"#).await;
/// let frame = outbox.next().await.expect("a frame");
/// assert_eq!(&frame[..], br#"{"type":"PING","meta":{"topic":"room:1"},"payload":1}"#);
/// # }
/// ```
pub struct Router<D: Send + Sync + 'static, C: Capability<D>> {
    routes: Arc<Routes<D, C>>,
    capability: C,
}

/// What a router does with messages.
pub(crate) struct Routes<D: Send + Sync + 'static, C: Capability<D>> {
    handlers: HashMap<&'static str, Handler<D, C>>,
    middleware: Vec<Middleware<D, C>>,
    opened: Vec<Hook<D, C>>,
    closed: Vec<Hook<D, C>>,
}

type Handler<D, C> =
    Arc<dyn Fn(Context<D, C>, Option<Box<RawValue>>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;
type Middleware<D, C> =
    Arc<dyn Fn(Context<D, C>, Next<D, C>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;
type Hook<D, C> = Arc<dyn Fn(Context<D, C>) -> BoxFuture<'static, HandlerResult> + Send + Sync>;

/// The rest of the way of a message: further middleware, then the handler.
pub struct Next<D: Send + Sync + 'static, C: Capability<D>> {
    routes: Arc<Routes<D, C>>,
    at: usize,
    handler: Handler<D, C>,
    payload: Option<Box<RawValue>>,
}

impl<D: Send + Sync + 'static> Router<D, NoPubSub> {
    /// Creates a router without handlers and without pub/sub, within a Tokio runtime.
    pub fn new() -> Self {
        Self { routes: Arc::default(), capability: NoPubSub::default() }
    }

    /// Adds topics. Do it before handlers are added: they are handlers of the router with topics.
    ///
    /// # Panics
    ///
    /// If there are handlers, middleware or hooks already.
    pub fn with_pub_sub(self, hub: Hub<Data<D>>) -> Router<D, PubSub<D>> {
        assert!(self.routes.is_empty(), "pub/sub is added before handlers, middleware and hooks");
        Router { routes: Arc::default(), capability: PubSub::new(hub) }
    }
}

impl<D: Send + Sync + 'static> Default for Router<D, NoPubSub> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Router<D, C> {
    /// Adds a handler of messages of a type.
    ///
    /// # Panics
    ///
    /// If the type has a handler already, or is one that no client may send: a mistake in the program.
    pub fn on<M, H, F>(mut self, handler: H) -> Self
    where
        M: Message,
        H: Fn(Context<D, C>, M::Payload) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        assert!(
            PublishEnvelope::new("", M::TYPE).has_valid_kind(),
            "`{}` is reserved, or not a type of messages",
            M::TYPE
        );
        let handler: Handler<D, C> =
            Arc::new(move |ctx, payload| match frame::payload::<M>(payload.as_deref()) {
                Ok(payload) => handler(ctx, payload).boxed(),
                Err(error) => std::future::ready(Err(error)).boxed(),
            });
        let before = self.routes_mut().handlers.insert(M::TYPE, handler);
        assert!(before.is_none(), "`{}` has a handler already", M::TYPE);
        self
    }

    /// Adds middleware: it is called with each message that has a handler, the first one first, and decides when and
    /// whether the rest follows.
    pub fn wrap<H, F>(mut self, middleware: H) -> Self
    where
        H: Fn(Context<D, C>, Next<D, C>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.routes_mut().middleware.push(Arc::new(move |ctx, next| middleware(ctx, next).boxed()));
        self
    }

    /// Adds a function that is called when a connection has been opened.
    pub fn on_open<H, F>(mut self, hook: H) -> Self
    where
        H: Fn(Context<D, C>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.routes_mut().opened.push(Arc::new(move |ctx| hook(ctx).boxed()));
        self
    }

    /// Adds a function that is called when a connection has been closed. Its subscriptions have ended then.
    pub fn on_close<H, F>(mut self, hook: H) -> Self
    where
        H: Fn(Context<D, C>) -> F + Send + Sync + 'static,
        F: Future<Output = HandlerResult> + Send + 'static,
    {
        self.routes_mut().closed.push(Arc::new(move |ctx| hook(ctx).boxed()));
        self
    }

    /// Opens a connection. The program passes what the client sends to the session, and sends what the outbox has.
    pub async fn connect(&self, client_id: impl Into<ClientId>, data: D) -> (Session<D, C>, Outbox) {
        session::open(self.routes.clone(), &self.capability, client_id.into(), data).await
    }

    fn routes_mut(&mut self) -> &mut Routes<D, C> {
        Arc::get_mut(&mut self.routes).expect("a router is put together before it is used")
    }
}

impl<D: Send + Sync + 'static> Router<D, PubSub<D>> {
    /// Publishes a message of the application itself.
    pub async fn publish<M: Message>(
        &self,
        topic: &str,
        payload: &M::Payload,
        options: PublishOptions,
    ) -> PublishResult {
        self.hub().publish_message::<M>(topic, payload, options).await
    }

    /// The hub. Handlers that publish for the application have a clone of it.
    pub fn hub(&self) -> &Hub<Data<D>> {
        self.capability.hub()
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Clone for Router<D, C> {
    fn clone(&self) -> Self {
        Self { routes: self.routes.clone(), capability: self.capability.clone() }
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Default for Routes<D, C> {
    fn default() -> Self {
        Self { handlers: HashMap::new(), middleware: Vec::new(), opened: Vec::new(), closed: Vec::new() }
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Routes<D, C> {
    fn is_empty(&self) -> bool {
        self.handlers.is_empty()
            && self.middleware.is_empty()
            && self.opened.is_empty()
            && self.closed.is_empty()
    }

    /// The way of a message, if its type has a handler.
    fn route(self: &Arc<Self>, kind: &str, payload: Option<Box<RawValue>>) -> Option<Next<D, C>> {
        let handler = self.handlers.get(kind)?.clone();
        Some(Next { routes: self.clone(), at: 0, handler, payload })
    }
}

impl<D: Send + Sync + 'static, C: Capability<D>> Next<D, C> {
    /// Goes on.
    pub fn run(mut self, ctx: Context<D, C>) -> BoxFuture<'static, HandlerResult> {
        match self.routes.middleware.get(self.at).cloned() {
            Some(middleware) => {
                self.at += 1;
                middleware(ctx, self)
            }
            None => (self.handler)(ctx, self.payload),
        }
    }
}
