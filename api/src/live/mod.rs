//! Live responses: a subscription that is sent to a client for as long as the connection lasts, over any
//! transport.
//!
//! A handler creates a [`Feed`]: a subscription, its wire format, and its [`FeedOptions`]. The connection
//! decides who drives it. On plain TCP, when it is the first request, that is a [`Socket`], which writes from
//! the ring to the kernel directly; through hyper (TLS, HTTP/2, later requests of a connection) it is a
//! response body that is polled, or an upgraded connection. All of them ask the feed for bytes when they can
//! send, and leave its cursor alone when they cannot.
//!
//! Read `feed` (what is sent, and when it ends), `socket`, `body` and `upgraded` (the transports), then
//! `connections` (all live responses, checked once a second).
//!
//! Invariant: a reader that is slow holds only the frames it is being sent. Not here: rings and cursors
//! (`engine::deliver`).

mod body;
mod connection_handle;
mod connections;
mod driven_feed;
mod feed;
mod feed_options;
mod outbox;
mod pass_handle;
mod protocol;
mod running;
mod socket;
mod upgraded;

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tidings_engine::Clock;
use tidings_engine::deliver::{Inbox, Subscription};

use crate::error::ApiError;
use crate::websocket::{Connection, Limits, Upgrade};

pub use crate::capability::stays_open;
pub use connection_handle::ConnectionHandle;
pub use connections::{Cut, LiveConnections};
pub use feed::{End, Feed, Wire};
pub use feed_options::FeedOptions;
pub use pass_handle::{PassHandle, SwapRefused};
pub use protocol::{CaughtUp, FeedProtocol, FinalTexts, Refusal, Reply};
pub use running::{Panicked, Running, poll_once};
pub use socket::{Serving, Socket};

/// Request extension of a transport that can hand its socket over; see [`take_over`].
#[derive(Clone, Copy, Debug)]
pub struct RawSocket;

/// A feed in an answer, for whoever has the socket.
#[derive(Clone)]
struct Handover(Arc<Mutex<Option<Feed>>>);

/// Takes the feed out of a response, if it is a live one and its request had a [`RawSocket`].
pub fn take_over(response: &mut Response) -> Option<Feed> {
    let Handover(feed) = response.extensions_mut().remove()?;
    feed.lock().expect("nobody panics while taking it").take()
}

/// How frames of server-sent events are framed on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Not at all; the transport does it.
    Plain,
    /// Each frame is a chunk of HTTP/1.1.
    Chunked,
}

/// The transport of a live response.
pub enum Transport {
    /// A socket that will be handed over.
    Socket,
    /// A body polled by hyper. The connection can possibly be cut (handle) or upgraded.
    Hyper(Option<ConnectionHandle>, Option<OnUpgrade>),
}

impl Transport {
    /// The transport of the response to a request.
    pub fn of(request: &mut Request) -> Self {
        let extensions = request.extensions_mut();
        match extensions.get::<RawSocket>() {
            Some(RawSocket) => Self::Socket,
            None => {
                Self::Hyper(extensions.get::<ConnectionHandle>().cloned(), extensions.remove::<OnUpgrade>())
            }
        }
    }

    /// The framing of events on this transport.
    pub fn framing(&self) -> Framing {
        match self {
            Self::Socket => Framing::Chunked,
            Self::Hyper(..) => Framing::Plain,
        }
    }

    /// A live response with a head, some initial events and those of a subscription, which is encoded with
    /// this framing.
    pub fn events(
        self,
        head: HeaderMap,
        first: &[u8],
        subscription: Subscription,
        options: FeedOptions,
        live: &LiveContext,
    ) -> Response {
        let wire = match &self {
            Self::Socket => Wire::Chunked,
            Self::Hyper(..) => Wire::Plain,
        };
        let mut feed = Feed::new(Some(subscription.into()), wire, options);
        if !first.is_empty() {
            feed.say(first);
        }
        match self {
            Self::Socket => hand_over(head.into_response(), feed),
            Self::Hyper(connection_handle, _) => {
                let body =
                    body::LiveBody::new(feed, live.clock.clone(), connection_handle, &live.live_connections);
                (head, Body::new(body)).into_response()
            }
        }
    }

    /// A response that becomes a WebSocket. Without an inbox, the protocol decides where to begin.
    pub fn websocket(
        self,
        upgrade: Upgrade,
        inbox: Option<Inbox>,
        limits: Limits,
        options: FeedOptions,
        live: &LiveContext,
    ) -> Result<Response, ApiError> {
        let socket = Connection::new(limits, options.timeouts, live.clock.now());
        let feed = Feed::new(inbox, Wire::WebSocket(Box::new(socket)), options);
        let (connection_handle, upgrading) = match self {
            Self::Socket => return Ok(hand_over(upgrade.into_response(), feed)),
            Self::Hyper(connection_handle, Some(upgrading)) => (connection_handle, upgrading),
            Self::Hyper(_, None) => {
                let message = "this connection cannot become a WebSocket";
                return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message));
            }
        };
        let live = live.clone();
        let held = connection_handle.as_ref().map(ConnectionHandle::held);
        // The task ends with its connection; the server waits for it through `held`.
        tokio::spawn(async move {
            let _held = held;
            if let Ok(upgraded) = upgrading.await {
                if let Some(connection_handle) = &connection_handle {
                    connection_handle.limit_itself();
                }
                upgraded::serve(TokioIo::new(upgraded), feed, live.clock, &live.live_connections).await;
            }
        });
        Ok(upgrade.into_response())
    }
}

fn hand_over(mut response: Response, feed: Feed) -> Response {
    response.extensions_mut().insert(Handover(Arc::new(Mutex::new(Some(feed)))));
    response
}

/// What live responses need.
#[derive(Clone)]
pub struct LiveContext {
    /// The clock by which they end.
    pub clock: Arc<dyn Clock>,
    /// The registry of all live responses.
    pub live_connections: Arc<LiveConnections>,
}
