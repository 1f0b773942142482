//! Entry point of requests. A request for which a capability has a fast path goes directly to its handler; all others
//! go through the router.
//!
//! The fast path performs the same steps as the router's middleware, but as plain function calls, because the layers
//! of services cost more than an append itself. Both paths give the same responses, which
//! `testing/tests/it/ways_in.rs` verifies.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http_body::Body as _;
use tidings_engine::Clock;
use tower_service::Service;

use crate::answer::{Admission, finished};
use crate::credential::Caller;
use crate::request_limiter::HeadBytes;
use crate::upload::{Sending, UnreadSlot, Upload, is_lost_on, read_on};
use crate::{Api, capability};

/// Answers requests, on a fast path or through the router.
#[derive(Clone)]
pub struct FastPath {
    /// Set if fast paths are enabled.
    straight: Option<Api>,
    router: Router,
    clock: Arc<dyn Clock>,
}

impl FastPath {
    /// Serves all routes.
    pub fn new(api: Api) -> Self {
        // A span has to enclose the whole request, which only the router does. The few microseconds saved by the fast
        // path do not matter where traces are exported.
        let straight = (!api.observe.has_spans()).then(|| api.clone());
        Self { straight, clock: api.gate.clock().clone(), router: crate::router(api) }
    }

    /// Serves only the routes for operators, for a separate listener.
    pub fn for_operators(api: Api) -> Self {
        Self { straight: None, clock: api.gate.clock().clone(), router: crate::operators_router(api) }
    }

    /// Answers a request. `prepare` adds what the routes need to know about the connection; fast paths do not need
    /// it.
    pub fn answer<B>(&self, request: axum::http::Request<B>, prepare: impl FnOnce(&mut Request)) -> Answering
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let mut request = request.map(Body::new);
        if let Some(api) = &self.straight
            && let Some(answering) = capability::fast_path(api, &mut request)
        {
            return Answering::Straight(answering);
        }
        prepare(&mut request);
        let unread = (!request.body().is_end_stream()).then(|| {
            let unread_slot = UnreadSlot::default();
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = unread_slot.wrap(body);
            let sending = Sending::of(request.version(), request.headers());
            Unread { unread_slot, sending, clock: self.clock.clone() }
        });
        // A router is always ready, so there is no need to poll for readiness.
        Answering::Routed(Box::new(self.router.clone().call(request)), unread)
    }
}

/// Answers one kind of request without the router.
pub trait FastHandler: Send + Sync + 'static {
    /// Returns the response to an admitted request.
    fn answer(&self, request: Admitted<'_>) -> impl Future<Output = Response> + Send;
}

/// A request that has passed the checks common to all routes. The handler still has to check what the caller may do.
pub struct Admitted<'a> {
    /// State shared by all handlers.
    pub api: &'a Api,
    /// Sender of the request.
    pub caller: &'a Caller,
    /// Headers of the request, without the credential.
    pub headers: &'a HeaderMap,
    /// Body of the request.
    pub body: &'a mut Upload,
}

/// Takes a request and answers it with a handler, as the router would do for the route with this template.
pub fn serve(
    api: &Api,
    template: &'static str,
    request: &mut Request,
    handler: impl FastHandler,
) -> BoxFuture<'static, Response> {
    Box::pin(answer(api.clone(), template, std::mem::take(request), handler))
}

async fn answer(
    api: Api,
    template: &'static str,
    mut request: Request,
    handler: impl FastHandler,
) -> Response {
    let head = HeadBytes::of(&request);
    let caller = Caller::take(&api, &mut request);
    let seen = api.observe.begin_at(Some(template), &request);
    let Admission { admitted, origin, content } =
        Admission::of(&api, &request, head, caller.presence(), || caller.names());
    let (parts, body) = request.into_parts();
    let mut upload = Upload::new(body);
    let answered = match admitted {
        Err(error) => error.into_response(),
        Ok(()) => {
            let request = Admitted { api: &api, caller: &caller, headers: &parts.headers, body: &mut upload };
            handler.answer(request).await
        }
    };
    let mut response = finished(answered, origin, content);
    api.observe.end(&seen, &mut response);
    if is_lost_on(&response, &upload) {
        let sending = Sending::of(parts.version, &parts.headers);
        // Boxed, so that the future of a request whose body is read completely does not reserve memory for this.
        Box::pin(read_on(upload, sending, &**api.gate.clock(), &mut response)).await;
    }
    response
}

/// A pending response.
pub enum Answering {
    /// From a fast path.
    Straight(BoxFuture<'static, Response>),
    /// From the router. The handler may leave a part of the request body unread.
    Routed(Box<<Router as Service<Request>>::Future>, Option<Unread>),
}

/// Access to a request body while the router handles the request, to read what is left of it afterwards.
pub struct Unread {
    unread_slot: UnreadSlot,
    sending: Sending,
    clock: Arc<dyn Clock>,
}

impl Unread {
    /// Returns the unread rest of the body, if sending the response without reading it could lose the response.
    fn left(&self, response: &Response) -> Option<Upload> {
        self.unread_slot.take().filter(|upload| is_lost_on(response, upload))
    }

    /// Reads the rest of the body, then returns the response.
    async fn answer(self, upload: Upload, mut response: Response) -> Response {
        read_on(upload, self.sending, &*self.clock, &mut response).await;
        response
    }
}

impl Future for Answering {
    type Output = Result<Response, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            match this {
                Self::Straight(answering) => return answering.as_mut().poll(cx).map(Ok),
                Self::Routed(answering, unread) => {
                    let response = ready!(Pin::new(&mut **answering).poll(cx))?;
                    let Some(unread) = unread.take() else { return Poll::Ready(Ok(response)) };
                    let Some(upload) = unread.left(&response) else { return Poll::Ready(Ok(response)) };
                    *this = Self::Straight(Box::pin(unread.answer(upload, response)));
                }
            }
        }
    }
}
