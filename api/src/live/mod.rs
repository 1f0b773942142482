//! Answers that stay: a subscription on its way to a client, over whatever carries it.
//!
//! A handler makes a [`Feed`]: a subscription, how it is written, and the [`Terms`] on which it lasts. Who drives it depends
//! on the connection. On plain TCP, when it is the first request, that is a [`Socket`], and nothing stands between
//! ring and kernel; through hyper (TLS, HTTP/2, later requests of a connection) it is a body that is polled. Both ask the feed for bytes when they can
//! send some and leave its cursor where it is when they cannot.
//!
//! Read [`feed`] (what is sent, and when it ends), [`socket`] and [`body`] (who sends it), then [`lives`] (all of them, asked once
//! a second whether they may go on).

mod body;
mod feed;
mod lives;
mod outbox;
mod socket;

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Extensions;
use axum::response::{IntoResponse, Response};
use tidings_engine::Clock;

pub use body::Cut;
pub use feed::{Feed, Framing, Terms};
pub use lives::Lives;
pub use socket::Socket;

/// Put into a request by whoever can hand its socket over; see [`take_over`].
#[derive(Clone, Copy, Debug)]
pub struct RawSocket;

/// A feed in an answer, for whoever has the socket.
#[derive(Clone)]
struct Handover(Arc<Mutex<Option<Feed>>>);

/// What carries an answer.
#[derive(Clone, Debug)]
pub enum Carrier {
    /// A socket that will be handed over.
    Socket,
    /// A body that will be polled, on a connection that can perhaps be cut.
    Body(Option<Cut>),
}

impl Carrier {
    /// The carrier of the answer to a request.
    pub fn of(request: &Extensions) -> Self {
        match request.get::<RawSocket>() {
            Some(RawSocket) => Self::Socket,
            None => Self::Body(request.get::<Cut>().cloned()),
        }
    }

    /// How frames end on it.
    pub fn framing(&self) -> Framing {
        match self {
            Self::Socket => Framing::Chunked,
            Self::Body(_) => Framing::Plain,
        }
    }

    /// An answer with a head and a feed.
    pub fn answer(
        self,
        head: impl IntoResponse,
        feed: Feed,
        clock: Arc<dyn Clock>,
        lives: &Lives,
    ) -> Response {
        let mut response = head.into_response();
        match self {
            Self::Socket => {
                response.extensions_mut().insert(Handover(Arc::new(Mutex::new(Some(feed)))));
            }
            Self::Body(cut) => *response.body_mut() = Body::new(body::LiveBody::new(feed, clock, cut, lives)),
        }
        response
    }
}

/// The feed of an answer, if it is one that stays and its request had a [`RawSocket`].
pub fn take_over(response: &mut Response) -> Option<Feed> {
    let Handover(feed) = response.extensions_mut().remove()?;
    feed.lock().expect("nobody panics while taking it").take()
}
