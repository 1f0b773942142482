//! A server and a protocol of live delivery: how to subscribe and how to publish.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Measured, Peer, Served};

/// Protocol of live delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Server-sent events.
    Sse,
    /// WebSocket messages.
    WebSocket,
    /// The text protocol of NATS.
    Nats,
}

impl Wire {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sse => "SSE",
            Self::WebSocket => "WebSocket",
            Self::Nats => "text protocol",
        }
    }

    /// Scheme of its URLs for the load generator.
    pub fn scheme(self) -> &'static str {
        match self {
            Self::Sse => "http",
            Self::WebSocket => "ws",
            Self::Nats => "nats",
        }
    }

    /// Request that subscribes to a path, or, on a connection whose subscriptions are messages, opens it.
    pub fn request(self, address: SocketAddr, path: &str) -> String {
        let wire = match self {
            Self::Nats => return "CONNECT {\"verbose\":false,\"pedantic\":false}\r\n".to_owned(),
            Self::Sse => "Accept: text/event-stream\r\n",
            Self::WebSocket => {
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n"
            }
        };
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{wire}\r\n")
    }

    /// Tries to subscribe to a path. The inner error says what the server answered instead.
    pub fn subscribe(self, address: SocketAddr, path: &str) -> io::Result<Measured<()>> {
        if self == Self::Nats {
            // It answers nothing before it is asked for something.
            return Ok(Ok(()));
        }
        let status = status_of(address, &self.request(address, path))?;
        Ok(if status == self.status() { Ok(()) } else { Err(format!("not served: answered with {status}")) })
    }

    /// Status of a successful response of HTTP.
    pub fn status(self) -> &'static str {
        match self {
            Self::WebSocket => "101",
            Self::Sse | Self::Nats => "200",
        }
    }
}

/// A server and the protocol by which it is subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channel {
    /// The server.
    pub peer: Peer,
    /// The protocol.
    pub wire: Wire,
}

impl Channel {
    /// All combinations that are measured, tidings first.
    pub const ALL: [Self; 6] = [
        Self { peer: Peer::Tidings, wire: Wire::Sse },
        Self { peer: Peer::Tidings, wire: Wire::WebSocket },
        Self { peer: Peer::OfficialRust, wire: Wire::Sse },
        Self { peer: Peer::Nchan, wire: Wire::Sse },
        Self { peer: Peer::Nchan, wire: Wire::WebSocket },
        Self { peer: Peer::Bun, wire: Wire::WebSocket },
    ];

    /// Name in reports.
    pub fn name(self) -> String {
        format!("{} {}", self.peer.name(), self.wire.name())
    }

    /// Path to subscribe to a topic.
    pub fn subscribe_path(self, topic: &str) -> String {
        match (self.peer.has_streams(), self.wire) {
            (true, Wire::Sse) => format!("/v1/stream/{topic}?offset=now&live=sse"),
            (true, Wire::WebSocket) => format!("/v1/stream/{topic}?offset=now&live=websocket"),
            (_, Wire::Nats) => format!("/{topic}"),
            (false, _) => format!("/subscribe/{topic}"),
        }
    }

    /// Path to publish to a topic.
    pub fn publish_path(self, topic: &str) -> String {
        if self.peer.has_streams() { format!("/v1/stream/{topic}") } else { format!("/publish/{topic}") }
    }

    /// Request that subscribes to a topic.
    pub fn request(self, address: SocketAddr, topic: &str) -> String {
        self.wire.request(address, &self.subscribe_path(topic))
    }

    /// Creates the topic and tries to subscribe. The inner error says what the server answered instead.
    pub fn open(self, served: &Served, topic: &str) -> io::Result<Measured<()>> {
        if self.peer.has_streams() {
            let path = self.publish_path(topic);
            let head = "Host: localhost\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n";
            let status = status_of(served.address, &format!("PUT {path} HTTP/1.1\r\n{head}"))?;
            if !matches!(status.as_str(), "200" | "201") {
                return Ok(Err(format!("PUT {path} is answered with {status}")));
            }
        }
        self.wire.subscribe(served.address, &self.subscribe_path(topic))
    }
}

/// Status of the response to one request on a new connection.
fn status_of(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    socket.write_all(request.as_bytes())?;
    let mut line = [0; 12];
    socket.read_exact(&mut line)?;
    Ok(String::from_utf8_lossy(&line[9..]).into_owned())
}
