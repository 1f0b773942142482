//! What a broker has to do: connect, take commands in order, and report events.

use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// A broker that can be connected to.
pub trait Broker: Send + Sync + 'static {
    /// Name for logs and errors, without credentials, for example `redis at 127.0.0.1:6379`.
    fn name(&self) -> &str;

    /// Bytes that a message on the channel may have, as far as is known.
    fn message_bytes_max(&self, channel: &str) -> usize;

    /// Connects and authenticates. The caller limits the time. The error is a sentence for operators, without credentials.
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Link>, String>>;
}

/// A connection to a broker. It ends when it is dropped.
pub trait Link: Send {
    /// Begins a command. Commands take effect in this order.
    fn begin(&mut self, command: Command<'_>);

    /// Whether so much waits to be sent that no further command should begin.
    fn is_full(&self) -> bool;

    /// Sends and receives. An error means that the connection has ended.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, String>>;
}

/// What a broker is told to do.
#[derive(Clone, Copy, Debug)]
pub enum Command<'a> {
    /// Publish a message on a channel. It is answered.
    Publish(&'a str, &'a Bytes),
    /// Subscribe to a channel. It is answered.
    Subscribe(&'a str),
    /// End the subscription to a channel. It is not answered.
    Unsubscribe(&'a str),
    /// Show that the connection is alive. It is answered.
    Ping,
}

/// What a broker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The broker has accepted us; only in the course of [`Broker::connect`].
    Ready,
    /// So many of the oldest commands that are not yet answered have succeeded.
    Done(usize),
    /// The oldest command that is not yet answered was refused, for this reason.
    Refused(String),
    /// A message.
    Message {
        /// Name of the channel.
        channel: Bytes,
        /// The message.
        message: Bytes,
    },
}
