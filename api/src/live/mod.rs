//! Answers that stay: a subscription on its way to a client, over whatever carries it.
//!
//! A handler makes a [`Feed`]: a subscription, how it is written, and the [`FeedOptions`] on which it lasts. Who drives it depends
//! on the connection. On plain TCP, when it is the first request, that is a [`Socket`], and nothing stands between
//! ring and kernel; through hyper (TLS, HTTP/2, later requests of a connection) it is a body that is polled, or what an
//! upgrade gives. All of them ask the feed for bytes when they can send some and leave its cursor where it is when they
//! cannot.
//!
//! Read `feed` (what is sent, and when it ends), `socket`, `body` and `upgraded` (who sends it), then `live_connections` (all of
//! them, asked once a second whether they may go on).

mod body;
mod connection_handle;
mod connections;
mod feed;
mod feed_options;
mod outbox;
mod protocol;
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
use tidings_engine::deliver::Subscription;
use tidings_model::limits;

use crate::error::ApiError;
use crate::websocket::{Connection, Limits, Upgrade};

pub use crate::capability::stays_open;
pub use connection_handle::ConnectionHandle;
pub use connections::LiveConnections;
pub use feed::{End, Feed, Wire};
pub use feed_options::FeedOptions;
pub use protocol::{CaughtUp, FeedProtocol, LastWord, Reply};
pub use socket::Socket;

/// Put into a request by whoever can hand its socket over; see [`take_over`].
#[derive(Clone, Copy, Debug)]
pub struct RawSocket;

/// A feed in an answer, for whoever has the socket.
#[derive(Clone)]
struct Handover(Arc<Mutex<Option<Feed>>>);

/// The feed of an answer, if it is one that stays and its request had a [`RawSocket`].
pub fn take_over(response: &mut Response) -> Option<Feed> {
    let Handover(feed) = response.extensions_mut().remove()?;
    feed.lock().expect("nobody panics while taking it").take()
}

/// How frames of server-sent events end on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// Whoever carries them knows how.
    Plain,
    /// Each piece of a frame is a chunk, as in HTTP/1.1.
    Chunked,
}

/// What carries an answer.
pub enum Transport {
    /// A socket that will be handed over.
    Socket,
    /// A body that will be polled, on a connection that can perhaps be cut and perhaps be upgraded.
    Hyper(Option<ConnectionHandle>, Option<OnUpgrade>),
}

impl Transport {
    /// The transport of the answer to a request.
    pub fn of(request: &mut Request) -> Self {
        let extensions = request.extensions_mut();
        match extensions.get::<RawSocket>() {
            Some(RawSocket) => Self::Socket,
            None => {
                Self::Hyper(extensions.get::<ConnectionHandle>().cloned(), extensions.remove::<OnUpgrade>())
            }
        }
    }

    /// How events end on it.
    pub fn framing(&self) -> Framing {
        match self {
            Self::Socket => Framing::Chunked,
            Self::Hyper(..) => Framing::Plain,
        }
    }

    /// An answer with a head, some first events and those of a subscription, encoded with the framing of this transport.
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
        let mut feed = Feed::new(Some(subscription), wire, options);
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

    /// An answer that becomes a WebSocket. Without a subscription, its protocol decides what it begins with.
    pub fn websocket(
        self,
        upgrade: Upgrade,
        subscription: Option<Subscription>,
        options: FeedOptions,
        live: &LiveContext,
    ) -> Result<Response, ApiError> {
        // Little is heard here, so little of it is kept.
        let limits = Limits {
            frame_bytes: limits::UNHEARD_MESSAGE_BYTES,
            message_bytes: limits::UNHEARD_MESSAGE_BYTES,
            message_time: limits::UNHEARD_MESSAGE_TIMEOUT,
            ..Limits::default()
        };
        let socket = Connection::new(limits, options.patience, live.clock.now());
        let feed = Feed::new(subscription, Wire::WebSocket(Box::new(socket)), options);
        let (connection_handle, upgrading) = match self {
            Self::Socket => return Ok(hand_over(upgrade.into_response(), feed)),
            Self::Hyper(connection_handle, Some(upgrading)) => (connection_handle, upgrading),
            Self::Hyper(_, None) => {
                let message = "this connection cannot become a WebSocket";
                return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message));
            }
        };
        let live = live.clone();
        let held = connection_handle.map(|connection_handle| connection_handle.held());
        // Ends with its connection, which the server waits for by what is held.
        tokio::spawn(async move {
            let _held = held;
            if let Ok(upgraded) = upgrading.await {
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

/// What answers that stay need to live.
#[derive(Clone)]
pub struct LiveContext {
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// All of them.
    pub live_connections: Arc<LiveConnections>,
}
