//! The way in: requests for which a capability has a fast path go straight to their handler; all others go through the
//! router.
//!
//! What stands around every route is the same here, called one after the other instead of through layers of services,
//! which cost more than an append itself. Both ways give the same answers (`testing/tests/it/ways_in.rs`).

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
use crate::upload::{Lender, Sending, Upload, is_lost_on, read_on};
use crate::{Api, capability};

/// Answers requests.
#[derive(Clone)]
pub struct FastPath {
    /// Set where fast paths are taken.
    straight: Option<Api>,
    router: Router,
    clock: Arc<dyn Clock>,
}

impl FastPath {
    /// All routes.
    pub fn new(api: Api) -> Self {
        // A span would have to be around the whole; whoever exports them has other cares than a few microseconds.
        let straight = (!api.observe.has_spans()).then(|| api.clone());
        Self { straight, clock: api.gate.clock().clone(), router: crate::router(api) }
    }

    /// What operators ask, on a listener of its own.
    pub fn for_operators(api: Api) -> Self {
        Self { straight: None, clock: api.gate.clock().clone(), router: crate::operators_router(api) }
    }

    /// Answers a request. What the routes must know of its connection is put into it by `prepare`; fast paths need not know.
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
            let lender = Lender::default();
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = lender.lend(body);
            let sending = Sending::of(request.version(), request.headers());
            Unread { lender, sending, clock: self.clock.clone() }
        });
        // A router is always ready.
        Answering::Routed(Box::new(self.router.clone().call(request)), unread)
    }
}

/// Answers one kind of request without the router.
pub trait FastHandler: Send + Sync + 'static {
    /// The answer to a request that was let in.
    fn answer(&self, request: Admitted<'_>) -> impl Future<Output = Response> + Send;
}

/// A request that was let in.
pub struct Admitted<'a> {
    /// What handlers stand on.
    pub api: &'a Api,
    /// Who sent it.
    pub caller: &'a Caller,
    /// Its headers, without the credential.
    pub headers: &'a HeaderMap,
    /// Its body.
    pub body: &'a mut Upload,
}

/// Takes a request and answers it with a handler, as the router would at the route of this template.
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
    let Admission { admitted, origin, content } = Admission::of(&api, &request, head, caller.shows());
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
        // Boxed, so that requests whose body is read do not carry the room for it.
        Box::pin(read_on(upload, sending, &**api.gate.clock(), &mut response)).await;
    }
    response
}

/// An answer on its way.
pub enum Answering {
    /// From a handler.
    Straight(BoxFuture<'static, Response>),
    /// From the routes, which may leave something of the body unread.
    Routed(Box<<Router as Service<Request>>::Future>, Option<Unread>),
}

/// The body of a request, if there is one, while the routes have it.
pub struct Unread {
    lender: Lender,
    sending: Sending,
    clock: Arc<dyn Clock>,
}

impl Unread {
    /// What is left of it, if that keeps this answer from the client.
    fn left(&self, response: &Response) -> Option<Upload> {
        self.lender.take().filter(|upload| is_lost_on(response, upload))
    }

    /// Reads on, and then answers.
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
