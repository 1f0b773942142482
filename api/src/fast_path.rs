//! The way in: appends to streams and rooms, which are asked for most, go straight to their handler; all else goes through
//! the routes.
//!
//! What stands around every route is the same here, called one after the other instead of through layers of services,
//! which cost more than an append itself.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use http_body::Body as _;
use tidings_engine::Clock;
use tidings_model::ProjectId;
use tidings_streams::StreamKey;
use tower_service::Service;

use crate::answer::{Admission, finished};
use crate::credential::Caller;
use crate::request_limiter::HeadBytes;
use crate::upload::{Lender, Sending, Upload, is_lost_on, read_on};
use crate::{Api, path, rooms, streams};

/// Answers requests.
#[derive(Clone)]
pub struct FastPath {
    /// Set where appends are served.
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

    /// Answers a request. What the routes must know of its connection is put into it by `prepare`; an append need not know.
    pub fn answer<B>(&self, request: axum::http::Request<B>, prepare: impl FnOnce(&mut Request)) -> Answering
    where
        B: http_body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let mut request = request.map(Body::new);
        if let Some(api) = self.straight.as_ref().filter(|_| request.method() == Method::POST)
            && let Some((template, goal)) = Goal::of(request.uri().path())
        {
            return Answering::Straight(Box::pin(append(api.clone(), template, goal, request)));
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

/// What is appended to.
#[derive(Debug, PartialEq, Eq)]
enum Goal {
    Stream(StreamKey),
    Room(ProjectId, String),
}

impl Goal {
    /// That of a path, and the route that the path would take. What is not plain is for the routes to validate.
    fn of(path: &str) -> Option<(&'static str, Self)> {
        if let Some((project, room)) = rooms::written_to(path) {
            let project = ProjectId::parse(project).ok().filter(|project| !project.is_reserved())?;
            return Some((rooms::EVENTS, Self::Room(project, room.to_owned())));
        }
        let template =
            if path.starts_with("/v1/stream/") { "/v1/stream/{*id}" } else { "/v1/{project}/stream/{*id}" };
        let stream = path::stream_at(path).ok()?;
        let named = template.starts_with("/v1/{");
        (!named || !stream.project.is_reserved()).then_some((template, Self::Stream(stream)))
    }
}

async fn append(api: Api, template: &'static str, goal: Goal, mut request: Request) -> Response {
    let head = HeadBytes::of(&request);
    let caller = Caller::take(&api, &mut request);
    let seen = api.observe.begin_at(Some(template), &request);
    let Admission { admitted, origin, content } = Admission::of(&api, &request, head, caller.shows());
    let (parts, body) = request.into_parts();
    let mut upload = Upload::new(body);
    let answered = match (admitted, &goal) {
        (Err(error), _) => error.into_response(),
        (Ok(()), Goal::Stream(stream)) => {
            streams::append_to(&api, stream, &caller, &parts.headers, &mut upload).await.into_response()
        }
        (Ok(()), Goal::Room(project, room)) => {
            // Boxed, so that appends to streams do not carry the room for it.
            let writing =
                Box::pin(rooms::write::write_to(&api, project, room, &caller, &parts.headers, &mut upload));
            writing.await.into_response()
        }
    };
    let mut response = finished(answered, origin, content);
    api.observe.end(&seen, &mut response);
    if is_lost_on(&response, &upload) {
        let sending = Sending::of(parts.version, &parts.headers);
        // Boxed, so that appends that are taken do not carry the room for it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_of_streams_and_rooms_go_straight() {
        let name = |path| match Goal::of(path)?.1 {
            Goal::Stream(stream) => Some(stream.to_string()),
            Goal::Room(project, room) => Some(format!("{project} room {room}")),
        };
        assert_eq!(name("/v1/stream/a/b").as_deref(), Some("_default/a/b"));
        assert_eq!(name("/v1/app/stream/a%20b").as_deref(), Some("app/a b"));
        assert_eq!(name("/v1/app/rooms/general/events").as_deref(), Some("app room general"));
        for other in [
            "/v1/projects/stream/tokens",
            "/v1/config/stream/x",
            "/v1/_default/stream/x",
            "/v1/a%20b/stream/x",
            "/v1/app/streams",
            "/v1/app/publish/x",
            "/v1/stream/",
            "/v1/app/rooms/a%20b/events",
            "/v1/projects/rooms/r/events",
            "/v1/app/rooms//events",
            "/v1/app/rooms/r/members",
            "/health",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
